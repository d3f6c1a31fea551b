"""How sparse tensors are made: of indices and values, of dense tensors, and what is checked of them."""
import functools

from tritorch.device import as_device
from tritorch.dtype import get_default_dtype, types
from tritorch.errors import check, explained, whole_numbers
from tritorch.layout import sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr, strided
from tritorch.ops.create import tensor
from tritorch.sparse.base import Sparse
from tritorch.sparse.compressed import BLOCKED, BY_ROWS, Compressed, compress, rows_of, to_coo
from tritorch.sparse.coo import Coo, keys, made_of, nothing, places_of, with_values
from tritorch.sparse.graph import recorded
from tritorch.tensor import Tensor

_checking = [False]
KINDS = {kind: kind.name for kind in (sparse_csr, sparse_csc, sparse_bsr, sparse_bsc)}


class check_sparse_tensor_invariants:
    """Whether sparse tensors are checked when they are made: switched for all (`enable`, `disable`), inside a with block, or in a
    decorated function.

    >>> import tritorch as torch
    >>> with torch.sparse.check_sparse_tensor_invariants():
    ...     torch.sparse_coo_tensor([[3]], [1.0], (2,))
    Traceback (most recent call last):
    RuntimeError: sparse_coo_tensor: expected indices below the sizes (2,), got [[3]]
    """

    def __init__(self, enable=True):
        self.state, self.before = bool(enable), []

    @staticmethod
    def is_enabled():
        """Whether they are checked now."""
        return _checking[0]

    @staticmethod
    def enable():
        """Have them checked from here on."""
        _checking[0] = True

    @staticmethod
    def disable():
        """Have them not checked from here on."""
        _checking[0] = False

    def __enter__(self):
        self.before.append(_checking[0])
        _checking[0] = self.state

    def __exit__(self, *exception):
        _checking[0] = self.before.pop()

    def __call__(self, mth):
        @functools.wraps(mth)
        def checked(*args, **kwargs):
            with type(self)(self.state):
                return mth(*args, **kwargs)

        return checked


def _parts(name, indices, values, dtype, device, pin_memory):
    """Indices as integer tensors and the values, all on one device."""
    values = tensor(values, dtype=dtype) if not isinstance(values, Tensor) else values if dtype is None else values.to(dtype)
    made = [tensor(i) if not isinstance(i, Tensor) else i for i in indices]
    check(not any(isinstance(x, Sparse) for x in (*made, values)), name, "strided indices and values", "a sparse one")
    home = values.device if device is None and isinstance(values, Tensor) else as_device(device)
    values, made = values.to(home), [i.detach().to(home) for i in made]
    if pin_memory:
        values, made = values.pin_memory(), [i.pin_memory() for i in made]
    return made, values


def _finished(out, requires_grad):
    return out.requires_grad_() if requires_grad and not out.requires_grad else out


@explained
def sparse_coo_tensor(*args, indices=None, values=None, size=None, dtype=None, device=None, pin_memory=False, requires_grad=False,
                      check_invariants=None, is_coalesced=None):
    """A tensor of layout `sparse_coo`: `sparse_coo_tensor(indices, values, size=None)`. `indices` (sparse dims, n) says where each of the
    `values` (n, *dense dims) stands; values of equal places are summed. Without a size it is the smallest that holds them, for which the
    device is asked. `sparse_coo_tensor(size)` has no values. Gradients flow to the values. `is_coalesced` says that places are in order, no
    two of them equal; it is checked, as are indices, with `check_invariants`. Raises RuntimeError where shapes do not fit.

    >>> import tritorch as torch
    >>> torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3)).to_dense()
    tensor([[0., 0., 3.],
            [4., 0., 5.]])
    """
    name, given = "sparse_coo_tensor", [*args]
    if indices is None and given:
        indices = given.pop(0)
    if values is None and given:
        values = given.pop(0)
    if size is None and given:
        size = given.pop(0)
    check(not given, name, "indices, values and size", f"{len(args)} arguments", error=TypeError)
    if values is None:
        shape = whole_numbers(name, "sizes", size if indices is None else indices)
        out = nothing(shape, len(shape), get_default_dtype() if dtype is None else types.as_dtype(dtype), as_device(device))
        return _finished(out, requires_grad)
    (indices,), values = _parts(name, [indices], values, dtype, device, pin_memory)
    check(len(indices.shape) == 2, name, "indices of 2 dims, (sparse dims, n)", tuple(indices.shape))
    check(len(values.shape) > 0, name, "values of 1 dim or more", "0 dims")
    indices, dims = indices.to(types.int64), indices.shape[0]
    check(indices.shape[1] == values.shape[0], name, "as many values as columns of indices", values.shape[0], indices.shape[1])
    if size is None:
        tops = [n + 1 for n in indices.max(1)[0].tolist()] if indices.shape[1] and dims else [0] * dims
        check(not indices.numel() or bool((indices >= 0).all().item()), name, "indices that are not negative", indices.min().item()
              if indices.numel() else None)
        size = (*tops, *values.shape[1:])
    size = whole_numbers(name, "sizes", size)
    dense = len(values.shape) - 1
    check(len(size) == dims + dense, name, "as many sizes as sparse and dense dims", tuple(size), dims, dense)
    check(min(size, default=0) >= 0, name, "sizes that are not negative", tuple(size))
    check(size[dims:] == tuple(values.shape[1:]), name, f"values of shape (n, {', '.join(map(str, size[dims:]))})", tuple(values.shape))
    out = made_of(size, indices, values, bool(is_coalesced))
    if _checking[0] if check_invariants is None else check_invariants:
        _check_coo(name, out)
    return _finished(out, requires_grad)


def _check_coo(name, x):
    indices, sizes = x.parts[0], tuple(x.shape[:x.sparse_dim()])
    if not indices.numel():
        return
    limits = indices.new_tensor(sizes).unsqueeze(1)
    check(not (indices < 0).any().item(), name, "indices that are not negative", indices.tolist())
    check(not (indices >= limits).any().item(), name, f"indices below the sizes {sizes}", indices.tolist())
    if x.is_coalesced():
        at = keys(x)
        check(bool((at[1:] > at[:-1]).all().item()), name, "places in order, no two of them equal, with is_coalesced", indices.tolist())


# ------------------------------------------------------------------ compressed layouts
def _compressed(name, layout, compressed, plain, values, size, dtype, device, pin_memory, requires_grad, check_invariants):
    (compressed, plain), values = _parts(name, [compressed, plain], values, dtype, device, pin_memory)
    for what, i in (("the compressed indices", compressed), ("the plain indices", plain)):
        check(i.dtype in (types.int64, types.int32), name, f"int64 or int32 as {what}", i.dtype)
        check(len(i.shape) >= 1, name, f"1 dim or more of {what}", "0 dims")
    check(compressed.dtype is plain.dtype, name, "indices of one dtype", compressed.dtype, plain.dtype)
    lead, blocked = len(compressed.shape) - 1, layout in BLOCKED
    check(len(plain.shape) == lead + 1 and compressed.shape[:-1] == plain.shape[:-1], name, "indices of one number of dims, and of batches",
          tuple(compressed.shape), tuple(plain.shape))
    check(len(values.shape) >= lead + 1 + 2 * blocked, name, f"values of {lead + 1 + 2 * blocked} dims or more", tuple(values.shape))
    check(values.shape[:lead + 1] == plain.shape, name, "a value for each plain index", tuple(values.shape), tuple(plain.shape))
    check(compressed.shape[-1] >= 1, name, "one compressed index or more", 0)
    block = tuple(values.shape[lead + 1:lead + 3]) if blocked else (1, 1)
    rest = tuple(values.shape[lead + 1 + 2 * blocked:])
    across = 0 if layout in BY_ROWS else 1
    if size is None:
        other = int(plain.max().item()) + 1 if plain.numel() else 0
        pair = [(compressed.shape[-1] - 1) * block[across], other * block[1 - across]]
        size = (*compressed.shape[:-1], *(pair if layout in BY_ROWS else pair[::-1]), *rest)
    size = whole_numbers(name, "sizes", size)
    check(len(size) == lead + 2 + len(rest), name, f"{lead + 2 + len(rest)} sizes", size)
    fits = size[:lead] == tuple(compressed.shape[:-1]) and size[lead + 2:] == rest
    check(fits, name, f"sizes of batches {tuple(compressed.shape[:-1])} and of values {rest}", size)
    made = Compressed.made(size, compressed, plain, values.detach(), layout=layout)
    check(compressed.shape[-1] == size[lead + across] // block[across] + 1 and size[lead + across] % block[across] == 0, name,
          "one compressed index more than there are rows (columns in CSC and BSC)", tuple(compressed.shape), size)
    if _checking[0] if check_invariants is None else check_invariants:
        _check_compressed(name, made, size[lead + 1 - across] // block[1 - across])
    return _finished(with_values(made, values), requires_grad)


def _check_compressed(name, x, count):
    """What costs a look at the indices."""
    compressed, plain, _ = x.parts
    n = plain.shape[-1]
    check(bool((compressed[..., 0] == 0).all().item()), name, "compressed indices that begin with 0", compressed.tolist())
    check(bool((compressed[..., -1] == n).all().item()), name, f"compressed indices that end with {n}, the number of values",
          compressed.tolist())
    check(bool((compressed.diff() >= 0).all().item()), name, "compressed indices that do not fall", compressed.tolist())
    inside = not plain.numel() or bool(((plain >= 0) & (plain < count)).all().item())
    check(inside, name, f"plain indices from 0 on, below {count}", plain.tolist())
    if n > 1:
        rows = rows_of(compressed, n)
        rises = (plain[..., 1:] > plain[..., :-1]) | (rows[..., 1:] != rows[..., :-1])
        check(bool(rises.all().item()), name, "plain indices that rise within each row (column)", plain.tolist())


_csr, _csc, _bsr, _bsc = [functools.partial(_compressed, f"{name}_tensor", layout) for layout, name in KINDS.items()]


@explained
def sparse_csr_tensor(crow_indices, col_indices, values, size=None, *, dtype=None, device=None, pin_memory=False, requires_grad=False,
                      check_invariants=None):
    """A tensor of layout `sparse_csr`: row r has values[crow_indices[r]:crow_indices[r + 1]], in the columns col_indices of these places.
    Dims before are a batch, dims of the values after the first are dense. Raises RuntimeError where shapes do not fit.

    >>> import tritorch as torch
    >>> torch.sparse_csr_tensor([0, 1, 3], [2, 0, 2], [3.0, 4.0, 5.0], (2, 3)).to_dense()
    tensor([[0., 0., 3.],
            [4., 0., 5.]])
    """
    return _csr(crow_indices, col_indices, values, size, dtype, device, pin_memory, requires_grad, check_invariants)


@explained
def sparse_csc_tensor(ccol_indices, row_indices, values, size=None, *, dtype=None, device=None, pin_memory=False, requires_grad=False,
                      check_invariants=None):
    """A tensor of layout `sparse_csc`: column c has values[ccol_indices[c]:ccol_indices[c + 1]], in the rows row_indices of these places.

    >>> import tritorch as torch
    >>> torch.sparse_csc_tensor([0, 1, 1, 3], [1, 0, 1], [4.0, 3.0, 5.0], (2, 3)).to_dense()
    tensor([[0., 0., 3.],
            [4., 0., 5.]])
    """
    return _csc(ccol_indices, row_indices, values, size, dtype, device, pin_memory, requires_grad, check_invariants)


@explained
def sparse_bsr_tensor(crow_indices, col_indices, values, size=None, *, dtype=None, device=None, pin_memory=False, requires_grad=False,
                      check_invariants=None):
    """A tensor of layout `sparse_bsr`: as CSR, of blocks: values (n, high, wide).

    >>> import tritorch as torch
    >>> torch.sparse_bsr_tensor([0, 1], [1], torch.ones(1, 1, 2), (1, 4)).to_dense()
    tensor([[0., 0., 1., 1.]])
    """
    return _bsr(crow_indices, col_indices, values, size, dtype, device, pin_memory, requires_grad, check_invariants)


@explained
def sparse_bsc_tensor(ccol_indices, row_indices, values, size=None, *, dtype=None, device=None, pin_memory=False, requires_grad=False,
                      check_invariants=None):
    """A tensor of layout `sparse_bsc`: as CSC, of blocks: values (n, high, wide).

    >>> import tritorch as torch
    >>> torch.sparse_bsc_tensor([0, 0, 1], [0], torch.ones(1, 1, 2), (1, 4)).to_dense()
    tensor([[0., 0., 1., 1.]])
    """
    return _bsc(ccol_indices, row_indices, values, size, dtype, device, pin_memory, requires_grad, check_invariants)


@explained
def sparse_compressed_tensor(compressed_indices, plain_indices, values, size=None, *, dtype=None, layout=None, device=None,
                             pin_memory=False, requires_grad=False, check_invariants=None):
    """A tensor of the given layout, `sparse_csr`, `sparse_csc`, `sparse_bsr` or `sparse_bsc`: see the functions of these names.

    >>> import tritorch as torch
    >>> torch.sparse_compressed_tensor([0, 1], [1], [2.0], (1, 2), layout=torch.sparse_csr).to_dense()
    tensor([[0., 2.]])
    """
    check(layout in KINDS, "sparse_compressed_tensor", "the layout sparse_csr, sparse_csc, sparse_bsr or sparse_bsc", layout)
    make = {"sparse_csr": _csr, "sparse_csc": _csc, "sparse_bsr": _bsr, "sparse_bsc": _bsc}[KINDS[layout]]
    return make(compressed_indices, plain_indices, values, size, dtype, device, pin_memory, requires_grad, check_invariants)


def zeros(shape, layout, dtype, device):
    """A tensor without values in a layout, COO, CSR or CSC."""
    check(layout in (sparse_coo, sparse_csr, sparse_csc), "zeros", "the layout strided, sparse_coo, sparse_csr or sparse_csc", layout,
          error=RuntimeError if layout in KINDS else TypeError)
    made = nothing(tuple(shape), len(shape), dtype, device)
    return made if layout is sparse_coo else compress(made, layout)


# ------------------------------------------------------------------ of dense tensors
def from_dense(x, sparse_dim):
    """The elements (slices of the dense dims) of a strided tensor that are not 0, in order. Their number is read from the device."""
    ndim = len(x.shape)
    check(0 <= sparse_dim <= ndim and (sparse_dim > 0 or ndim == 0), "to_sparse", f"1 to {ndim} sparse dims", sparse_dim)
    sizes = tuple(x.shape[:sparse_dim])
    flat = x.detach().reshape(-1, *x.shape[sparse_dim:]) if sizes else x.detach().reshape(1)
    present = flat != 0
    present = present.reshape(present.shape[0], -1).any(1) if len(present.shape) > 1 and present.numel() else present.reshape(-1)
    if present.shape[0] != flat.shape[0]:
        present = flat.new_zeros((flat.shape[0],), dtype=types.bool)
    at = present.nonzero().reshape(-1)
    out = Coo.made(x.shape, places_of(at, sizes), flat.index_select(0, at), _coalesced=True)
    return recorded("ToSparse", out, [(x, lambda g: g.to_dense() if isinstance(g, Sparse) else g)])


def block_sizes(name, blocksize):
    """A pair of whole numbers; one stands for both."""
    blocksize = (blocksize, blocksize) if isinstance(blocksize, int) else blocksize
    check(blocksize is not None and len(tuple(blocksize)) == 2, name, "a blocksize of two sizes", blocksize)
    sizes = whole_numbers(name, "block sizes", blocksize)
    check(min(sizes) > 0, name, "a blocksize of positive sizes", sizes)
    return sizes


def to_layout(x, layout, blocksize=None, dense_dim=None):
    """A tensor of any layout in another one, given or named."""
    layout = next((kind for kind, name in KINDS.items() if name == layout), layout)
    name = f"to_{KINDS.get(layout, 'sparse')}"
    block = block_sizes(name, blocksize) if layout in BLOCKED else None
    if isinstance(x, Compressed):
        if x.layout is layout and (block is None or block == x.block()):
            return x
        x = to_coo(x)
    elif not isinstance(x, Coo):
        dense_dim = dense_dim or 0
        check(len(x.shape) - dense_dim >= 2, name, "a tensor of 2 dims or more beside the dense ones", tuple(x.shape), dense_dim)
        x = from_dense(x, len(x.shape) - dense_dim)
    elif dense_dim is not None:
        check(dense_dim == x.dense_dim(), name, f"the {x.dense_dim()} dense dims that the tensor has", dense_dim)
    return x if layout is sparse_coo else compress(x, layout, block)


def to_sparse(self, sparse_dim=None, layout=None, blocksize=None, dense_dim=None):
    """`x.to_sparse(…)` of a tensor of any layout."""
    if sparse_dim is not None or layout in (None, sparse_coo):
        check(layout in (None, sparse_coo) and blocksize is None, "to_sparse", "no other layout or blocksize beside COO", layout,
              blocksize)
        if isinstance(self, Coo):
            dims = self.sparse_dim()
            check(sparse_dim in (None, dims), "to_sparse", f"the {dims} sparse dims that the tensor has", sparse_dim)
            return self
        if isinstance(self, Compressed):
            return to_coo(self, sparse_dim)
        dims = len(self.shape) - (dense_dim or 0) if sparse_dim is None else sparse_dim
        return from_dense(self, dims)
    if layout is strided:
        return self.to_dense()
    check(layout in KINDS, "to_sparse", "a layout", layout)
    check(blocksize is None or layout in BLOCKED, "to_sparse", "no blocksize beside CSR and CSC", blocksize)
    return to_layout(self, layout, blocksize, dense_dim)
