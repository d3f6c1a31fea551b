"""Matrix products with sparse operands.

A row of sparse · dense is a bag of rows of the dense matrix, each times a value: the kernels are those of `ops/bags.py`, which add up each
row in order, in float32 or wider, without atomics. The gradient of a value is the product of two rows, computed where the tensor has
values and nowhere else; that of the dense matrix is a product with the transposed pattern, whose rows are sorted once.
"""
from tritorch.dtype import promote, types
from tritorch.errors import check, sentence, tensors
from tritorch.layout import sparse_coo, sparse_csc, sparse_csr
from tritorch.ops import create
from tritorch.ops.bags import bag_dots, bag_sums
from tritorch.ops.shaping import cat as joined
from tritorch.sparse.base import Sparse
from tritorch.sparse.compressed import BLOCKED, BY_ROWS, Compressed, as_coo, bounds_of, compress, flat_values, rows_of, to_coo
from tritorch.sparse.coo import Coo, add_rows, made_of, values_of, with_values
from tritorch.sparse.elementwise import add
from tritorch.sparse.graph import plain, recorded
from tritorch.sparse.shaping import spans, transpose
from tritorch.tensor import Tensor


# ------------------------------------------------------------------ the two products
def rows_times(row, column, values, count, dense):
    """Σ values[p] · dense[column[p]] for the p of each of `count` rows, which rise: (count, n). Dense tensors all, history included."""
    kind = promote(values, dense)
    values, dense = values.to(kind), dense.to(kind)
    if kind.is_complex:
        return _complex_rows(row, column, values, count, dense)
    if not kind.is_floating_point or not column.numel():
        return add_rows(count, row, values.unsqueeze(1) * dense.index_select(0, column))
    return bag_sums(dense, column.contiguous(), bounds_of(row, count)[:-1].contiguous(), values)[0]


def _complex_rows(row, column, values, count, dense):
    """The same of complex numbers, as two products of real ones: re · z and im · iz, z being pairs in the columns."""
    from tritorch.ops.complex import view_as_complex, view_as_real

    n = dense.shape[1]

    def half(part, z):
        pairs = view_as_real(z.contiguous()).reshape(z.shape[0], 2 * n)
        return rows_times(row, column, part.contiguous(), count, pairs)

    whole = half(values.real, dense) + half(values.imag, dense * 1j)
    return view_as_complex(whole.reshape(count, n, 2))


def products_at(row, column, a, b):
    """Σ a[row[p], k] · b[column[p], k] for each p; the rows rise."""
    kind = promote(a, b)
    a, b = a.to(kind), b.to(kind)
    if kind.is_floating_point and a.shape[1] and row.numel():
        return bag_dots(b, a, column.contiguous(), row.contiguous(), bounds_of(row, a.shape[0])[:-1].contiguous())
    return (a.index_select(0, row) * b.index_select(0, column)).sum(1).to(kind)


def pattern(x):
    """(row, column, order) of the values of a sparse matrix, row by row; order is None where they lie so."""
    if isinstance(x, Compressed) and x.layout is not None and x.block() == (1, 1) and x.layout in BY_ROWS:
        return rows_of(x.parts[0], x._nnz()).to(types.int64), x.parts[1].to(types.int64), None
    x = x if isinstance(x, Coo) else as_coo(x)
    row, column = x.parts[0]
    if x._coalesced:
        return row, column, None
    row, order = row.sort(stable=True)
    return row, column.index_select(0, order), order


def product(x, dense):
    """Sparse (m, k) times dense (k, n), without history."""
    row, column, order = pattern(x)
    values = x.parts[-1] if isinstance(x, Coo) else flat_values(x, x.parts[-1])
    values = values if order is None else values.index_select(0, order)
    return rows_times(row, column, values, x.shape[0], dense)


def sampled(x, a, b):
    """a @ b at the places of the sparse matrix x, with history: a sparse matrix with its places."""
    x = x.coalesce() if isinstance(x, Coo) else x
    row, column, order = pattern(x)
    found = products_at(row, column, a, b.mT)
    found = found if order is None else found.index_select(0, order.argsort())
    return with_values(x.detach(), found.reshape(tuple(x.parts[-1].shape)))


def matrix(name, x):
    """Refuse what is no sparse matrix of numbers."""
    good = len(x.shape) == 2 and x.dense_dim() == 0
    check(good, name, "sparse matrices without dense dims", tuple(x.shape), f"{x.dense_dim()} dense dims")
    return x


# ------------------------------------------------------------------ matrix products
def times(a, b, label, sparse_gradient):
    """Sparse times dense with history. The gradient of the sparse operand has its places, or is dense, as PyTorch's functions say."""
    matrix("mm", a)
    check(len(b.shape) == 2 and a.shape[1] == b.shape[0], "mm", "a.shape[1] == b.shape[0]", tuple(a.shape), tuple(b.shape))
    out = product(a, plain(b))
    kind = a.dtype

    def of_sparse(g, a, b):
        other = b.mH if b.dtype.is_complex else b.mT
        return (sampled(a, g, other) if sparse_gradient else g @ other).to(kind)

    return recorded(label, out, [(a, of_sparse), (b, lambda g, a, b: matmul(adjoint(a), g))], a, b)


def adjoint(x):
    """The conjugate transpose of a sparse matrix."""
    flipped = transpose(x, 0, 1)                                         # as a function: operators on sparse tensors break up CUDA graphs
    return flipped.conj() if x.dtype.is_complex else flipped


def matmul(input, other):
    """The product where an operand is sparse: of matrices, or of batches of them in COO."""
    if len(input.shape) == 3 or len(other.shape) == 3:
        return _batched(input, other)
    if not isinstance(input, Sparse):
        return times(transpose(other, 0, 1), input.mT, "Mm", False).mT
    if isinstance(other, Sparse):
        return sparse_times_sparse(input, other)
    return times(input, other, "Mm", False)


def _batched(a, b):
    """(b, m, k) in COO times strided (b, k, n): one product of the matrix whose blocks are those of the batch."""
    check(isinstance(a, Coo) and not isinstance(b, Sparse) and len(a.shape) == len(b.shape) == 3 and a.sparse_dim() == 3, "bmm",
          "a sparse_coo tensor of 3 sparse dims times a strided one of 3", tuple(a.shape), tuple(b.shape), error=NotImplementedError)
    (n, m, k), columns = a.shape, b.shape[2]
    check(b.shape[:2] == (n, k), "bmm", f"a second batch of shape ({n}, {k}, …)", tuple(b.shape))
    a = a.coalesce()
    batch, row, column = a.parts[0]
    values = values_of(a)
    out = rows_times(batch * m + row, batch * k + column, values, n * m, b.reshape(n * k, columns))
    return out.reshape(n, m, columns)


def sparse_times_sparse(a, b):
    """The product of two sparse matrices, sparse, in the layout of the first. How many values it has is read from the device."""
    matrix("mm", a)
    matrix("mm", b)
    check(a.shape[1] == b.shape[0], "mm", "a.shape[1] == b.shape[0]", tuple(a.shape), tuple(b.shape))
    if isinstance(a, Compressed) or isinstance(b, Compressed):
        layout = a.layout if isinstance(a, Compressed) else b.layout
        block = (a.block()[0], b.block()[1]) if layout in BLOCKED and isinstance(a, Compressed) and isinstance(b, Compressed) else None
        x, y = [to_coo(t) if isinstance(t, Compressed) else t for t in (a, b)]
        layout = layout if block or layout not in BLOCKED else sparse_csr
        return compress(sparse_times_sparse(x.coalesce(), y.coalesce()), layout, block)
    out = _joined_rows(a.detach().coalesce(), b.detach().coalesce())
    rule_a = (a, lambda g, a, b: (g @ adjoint(b)).sparse_mask(a.coalesce()))
    rule_b = (b, lambda g, a, b: (adjoint(a) @ g).sparse_mask(b.coalesce()))
    return recorded("SparseSparseMatmul", out, [rule_a, rule_b], a, b)


def _joined_rows(a, b):
    """Each value of a meets the row of b that its column names (Gustavson 1978); equal places are summed."""
    kind, (row, column) = promote(a, b), a.parts[0]
    bounds = bounds_of(b.parts[0][0], b.shape[0])
    starts = bounds.index_select(0, column)
    mine, theirs = spans(starts, bounds.index_select(0, column + 1) - starts)
    values = a.parts[1].to(kind).index_select(0, mine) * b.parts[1].to(kind).index_select(0, theirs)
    indices = joined([row.index_select(0, mine).reshape(1, -1), b.parts[0][1].index_select(0, theirs).reshape(1, -1)])
    return Coo.made((a.shape[0], b.shape[1]), indices, values).coalesce()


def addmm(input, mat1, mat2, beta=1, alpha=1, out_dtype=None, sparse_gradient=False):
    """beta · input + alpha · mat1 @ mat2 where a matrix is sparse."""
    check(out_dtype is None, "addmm", "no out_dtype beside sparse matrices", out_dtype)
    both = isinstance(mat1, Sparse) and isinstance(mat2, Sparse)
    if isinstance(mat1, Sparse) and not both and sparse_gradient:
        made = times(mat1, mat2, "SparseAddmm", True)
    else:
        made = mat1.matmul(mat2)
    made = made if alpha == 1 else made * alpha
    if input is None or beta == 0:
        return made
    if isinstance(input, Sparse) and not isinstance(made, Sparse):
        raise RuntimeError(sentence("addmm", "a strided input beside a strided product", f"one of layout {input.layout}"))
    input = input if beta == 1 else input * beta
    return add(input, made) if isinstance(made, Sparse) else input + made


def linear(input, weight, bias=None):
    """input @ weightᵀ + bias with a sparse weight, input (…, k)."""
    check(isinstance(weight, Sparse) and not isinstance(input, Sparse), "linear", "a strided input", getattr(input, "layout", None),
          error=NotImplementedError)
    rows = input.reshape(-1, input.shape[-1])
    out = matmul(weight, rows.mT).mT.reshape(*input.shape[:-1], weight.shape[0])
    return out if bias is None else out + bias


# ------------------------------------------------------------------ PyTorch's functions
def smm(input, mat):
    """The product of a sparse and a strided matrix as a sparse one, in COO: all elements of the rows in which the first has values.

    >>> import tritorch as torch; torch.smm(torch.eye(2).to_sparse(), torch.ones(2, 2)).to_dense()
    tensor([[1., 1.],
            [1., 1.]])
    """
    return sspaddmm(None, input, mat, beta=0)


def sspaddmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """beta · input + alpha · mat1 @ mat2 of sparse input and mat1 and a strided mat2, as a sparse matrix in COO.

    >>> import tritorch as torch; x = torch.eye(2).to_sparse()
    >>> torch.sspaddmm(x, x, torch.ones(2, 2)).to_dense()
    tensor([[2., 1.],
            [1., 2.]])
    """
    rows = hsmm(mat1, mat2) if alpha == 1 else hsmm(mat1, mat2) * alpha
    n = mat2.shape[1]
    row = rows.parts[0][0]
    indices = joined([row.repeat_interleave(n).reshape(1, -1), create.arange(n, device=row.device).repeat(row.shape[0]).reshape(1, -1)])
    made = Coo.made(rows.shape, indices, rows.parts[1].reshape(-1), _coalesced=True)
    if input is not None:
        check(isinstance(input, Coo), "sspaddmm", "a sparse_coo input", getattr(input, "layout", type(input).__name__))
        made = add(made, input.detach().coalesce(), beta) if beta != 0 else made
    return made if out is None else out.become(made)


def saddmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """`sspaddmm` by its older name."""
    return sspaddmm(input, mat1, mat2, beta=beta, alpha=alpha, out=out)


def dsmm(mat1, mat2):
    """The product of a sparse and a strided matrix, `mm` by its older name."""
    return mat1.mm(mat2)


def hsmm(mat1, mat2, *, out=None):
    """The product of a sparse and a strided matrix as a hybrid one: 1 sparse dim, whose places are the rows in which mat1 has values.

    >>> import tritorch as torch; torch.hsmm(torch.eye(2).to_sparse(), torch.ones(2, 3)).dense_dim()
    1
    """
    tensors("hsmm", mat1=mat1, mat2=mat2)
    check(isinstance(mat1, Coo), "hsmm", "a sparse_coo matrix", getattr(mat1, "layout", type(mat1).__name__))
    check(not isinstance(mat2, Sparse), "hsmm", "a strided matrix as mat2", getattr(mat2, "layout", None))
    matrix("hsmm", mat1)
    check(len(mat2.shape) == 2 and mat1.shape[1] == mat2.shape[0], "hsmm", "mat1.shape[1] == mat2.shape[0]", tuple(mat1.shape),
          tuple(mat2.shape))
    x = mat1.detach().coalesce()
    (row, column), (m, _) = x.parts[0], x.shape
    known, place = row.unique(return_inverse=True) if row.numel() else (row, row)
    values = rows_times(place, column, x.parts[1], known.shape[0], plain(mat2))
    made = Coo.made((m, mat2.shape[1]), known.reshape(1, -1), values, _coalesced=True)
    return made if out is None else out.become(made)


hspmm = hsmm


def spdiags(diagonals, offsets, shape, layout=None):
    """A sparse matrix of this shape whose diagonal number offsets[k] is the row k of `diagonals`: element j goes to column j.

    >>> import tritorch as torch
    >>> torch.sparse.spdiags(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1]), (2, 2)).to_dense()
    tensor([[1., 4.],
            [0., 2.]])
    """
    diagonals = diagonals.unsqueeze(0) if len(diagonals.shape) == 1 else diagonals
    offsets = offsets.reshape(1) if not len(offsets.shape) else offsets
    check(len(diagonals.shape) == 2, "spdiags", "diagonals of 1 or 2 dims", tuple(diagonals.shape))
    check(len(tuple(shape)) == 2, "spdiags", "a shape of 2 sizes", tuple(shape))
    check(layout in (None, sparse_coo, sparse_csr, sparse_csc), "spdiags", "the layout sparse_coo, sparse_csr or "
          "sparse_csc", layout)
    check(len(offsets.shape) == 1 and offsets.shape[0] == diagonals.shape[0], "spdiags", "an offset for each diagonal",
          tuple(offsets.shape), tuple(diagonals.shape))
    check(offsets.dtype is types.int64, "spdiags", "offsets of int64", offsets.dtype)
    check(offsets.unique().shape[0] == offsets.shape[0], "spdiags", "offsets of which no two are equal", offsets.tolist())
    (m, n), width = shape, min(diagonals.shape[1], shape[1])
    column = create.arange(width, device=offsets.device).expand(offsets.shape[0], width)
    row = column - offsets.unsqueeze(1)
    inside = ((row >= 0) & (row < m)).reshape(-1).nonzero().reshape(-1)
    indices = joined([i.reshape(1, -1).index_select(1, inside) for i in (row, column)])
    values = diagonals[:, :width].reshape(-1).index_select(0, inside)
    out = made_of((m, n), indices, values)
    return out if layout in (None, sparse_coo) else out.to_sparse(layout=layout)


def sampled_addmm(input, mat1, mat2, *, beta=1.0, alpha=1.0, out=None):
    """beta · input + alpha · mat1 @ mat2 at the places of the CSR matrix `input`, and nowhere else: mat1 (m, k), mat2 (k, n).

    >>> import tritorch as torch; x = torch.eye(2).to_sparse_csr()
    >>> torch.sparse.sampled_addmm(x, torch.ones(2, 3), torch.ones(3, 2)).to_dense()
    tensor([[4., 0.],
            [0., 4.]])
    """
    name = "sampled_addmm"
    check(isinstance(input, Compressed) and input.is_sparse_csr, name, "an input of layout sparse_csr", getattr(input, "layout", None))
    check(isinstance(mat1, Tensor) and isinstance(mat2, Tensor) and not isinstance(mat1, Sparse) and not isinstance(mat2, Sparse), name,
          "strided matrices", getattr(mat1, "layout", mat1), getattr(mat2, "layout", mat2))
    check(len(input.shape) == 2 == len(mat1.shape) == len(mat2.shape), name, "matrices", tuple(input.shape), tuple(mat1.shape),
          tuple(mat2.shape))
    check(mat1.shape[1] == mat2.shape[0] and input.shape == (mat1.shape[0], mat2.shape[1]), name, "matrices whose product has the shape of "
          "input", tuple(input.shape), tuple(mat1.shape), tuple(mat2.shape))
    check(input.dtype is mat1.dtype is mat2.dtype, name, "one dtype", input.dtype, mat1.dtype, mat2.dtype)
    row, column, _ = pattern(input)
    values = products_at(row, column, mat1, mat2.mT) * alpha
    if beta != 0:
        values = values + values_of(input) * beta
    made = with_values(input.detach(), values)
    return made if out is None else out.become(made)


