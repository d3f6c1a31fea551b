"""Compressed: CSR, CSC, BSR and BSC tensors. The rows (columns) of matrices, or of matrices of blocks, lie one after the other."""
from math import prod

from tritorch.dtype import types
from tritorch.errors import check, sentence
from tritorch.layout import sparse_bsc, sparse_bsr, sparse_csc, sparse_csr
from tritorch.ops import create
from tritorch.ops.shaping import stack
from tritorch.ops.sorting import searchsorted
from tritorch.sparse.base import Sparse
from tritorch.sparse.coo import Coo, add_rows, keys_of, spread, values_of, with_values
from tritorch.sparse.graph import recorded

BY_ROWS = (sparse_csr, sparse_bsr)
BLOCKED = (sparse_bsr, sparse_bsc)


class Compressed(Sparse):
    """A tensor (*batch, rows, columns, *dense) of one of the four layouts. `parts` are (*batch, rows + 1): where rows begin and end;
    (*batch, n): the column of each value; (*batch, n, *dense): the values, or (*batch, n, *block, *dense). Of CSC and BSC, read columns
    for rows and rows for columns; with blocks, count blocks."""

    @property
    def is_sparse_csr(self):
        """Whether the layout is CSR."""
        return self.layout is sparse_csr

    def facts(self):
        return {"layout": self.layout}

    def _zeros(self):                                                    # the places stay, as in PyTorch
        return self.like(self.parts[2].new_zeros(tuple(self.parts[2].shape)))

    def stride(self, dim=None):
        """There are none."""
        raise RuntimeError(sentence("stride", "a strided tensor", f"one of layout {self.layout}"))

    def dense_dim(self):
        """How many dims, the last ones, each value has, those of blocks not counted."""
        return len(self.shape) - len(self.parts[0].shape) - 1

    def sparse_dim(self):
        """Always 2: rows and columns."""
        return 2

    def block(self):
        """The sizes of a block: 1, 1 in CSR and CSC."""
        at = len(self.parts[1].shape)
        return tuple(self.parts[2].shape[at:at + 2]) if self.layout in BLOCKED else (1, 1)

    def _nnz(self):
        """How many values, or blocks, each matrix has."""
        return self.parts[1].shape[-1]

    def values(self):
        """The values. A gradient of theirs is one of the tensor."""
        return values_of(self)

    def _compressed(self, name, by_rows, which):
        fits = (self.layout in BY_ROWS) is by_rows
        kinds = "sparse_csr or sparse_bsr" if by_rows else "sparse_csc or sparse_bsc"
        check(fits, name, f"a tensor of layout {kinds}", self.layout)
        return self.parts[which].detach()

    def crow_indices(self):
        """Where each row begins in the values, and where the last one ends."""
        return self._compressed("crow_indices", True, 0)

    def col_indices(self):
        """The column of each value."""
        return self._compressed("col_indices", True, 1)

    def ccol_indices(self):
        """Where each column begins in the values, and where the last one ends."""
        return self._compressed("ccol_indices", False, 0)

    def row_indices(self):
        """The row of each value."""
        return self._compressed("row_indices", False, 1)

    def is_coalesced(self):
        """Only COO tensors are asked."""
        raise RuntimeError(sentence("is_coalesced", "a tensor of layout sparse_coo", self.layout))

    def to_dense(self, dtype=None, *, masked_grad=None):
        """The elements in a strided tensor. Its gradient reaches the tensor's places, and no others unless `masked_grad` is False."""
        x = self if dtype is None else self.to(dtype)
        whole = masked_grad is False
        return recorded("ToDense", spread(as_coo(x)), [(x, lambda g, x: g if whole else g.sparse_mask(x))], x)


# ------------------------------------------------------------------ places
def rows_of(compressed, n):
    """The row of each of n values, from where rows begin, (*batch, rows + 1)."""
    ends = compressed[..., 1:].contiguous()
    at = create.arange(n, dtype=ends.dtype, device=ends.device).expand(*ends.shape[:-1], n).contiguous()
    return searchsorted(ends, at, right=True)


def bounds_of(rows, count):
    """Where each of `count` rows begins among values whose rows, (*batch, n), rise, and where the last one ends: int64."""
    lead, n = tuple(rows.shape[:-1]), rows.shape[-1]
    at = create.arange(count + 1, dtype=rows.dtype, device=rows.device).expand(*lead, count + 1).contiguous()
    if not n:
        return create.zeros((*lead, count + 1), dtype=types.int64, device=rows.device)
    return searchsorted(rows.contiguous(), at)


def element_places(x):
    """Of each value, (batch · n · block), as a matrix of indices (batch dims + 2, …): the place of each element."""
    compressed, plain, values = x.parts
    lead, n, (high, wide) = tuple(plain.shape[:-1]), plain.shape[-1], x.block()
    first, second = rows_of(compressed, n).to(types.int64), plain.to(types.int64)
    row, column = (first, second) if x.layout in BY_ROWS else (second, first)
    count = prod(lead)
    row, column = [i.reshape(count, n, 1, 1) for i in (row, column)]
    device = values.storage.device
    shape = (count, n, high, wide)
    row = (row * high + create.arange(high, device=device).reshape(high, 1)).expand(shape).reshape(-1)
    column = (column * wide + create.arange(wide, device=device)).expand(shape).reshape(-1)
    batch = create.arange(count, device=device).reshape(count, 1, 1, 1).expand(shape).reshape(-1)
    rows = []
    for m in reversed(lead):
        rows.append(batch % m)
        batch = batch.div(m, rounding_mode="floor")
    return stack([*rows[::-1], row, column])


def flat_values(x, values):
    """The values as (elements, *dense)."""
    return values.reshape(prod(x.parts[1].shape) * prod(x.block()), *values.shape[len(values.shape) - x.dense_dim():])


def as_coo(x):
    """A compressed tensor as COO, without history; in order in CSR without batches."""
    dims = len(x.parts[0].shape) + 1
    in_order = x.layout is sparse_csr
    return Coo.made(x.shape, element_places(x).reshape(dims, -1), flat_values(x, x.parts[2]), _coalesced=in_order)


def taken_by_compressed(g, x):
    """What g, dense or sparse, has at each place of the compressed tensor x, in the form of its values."""
    if isinstance(g, Sparse):
        g = g.to_dense(masked_grad=False)
    dims = len(x.parts[0].shape) + 1
    at = keys_of(element_places(x), x.shape[:dims])
    found = g.reshape(prod(x.shape[:dims]), *x.shape[dims:]).index_select(0, at)
    return found.reshape(tuple(x.parts[2].shape))


# ------------------------------------------------------------------ conversions
def to_coo(x, sparse_dim=None):
    """A compressed tensor as COO: the gradient is one of the values."""
    check(sparse_dim in (None, len(x.parts[0].shape) + 1), "to_sparse", "2 sparse dims beside those of the batch", sparse_dim)
    made = as_coo(x)
    return with_values(made, flat_values(x, values_of(x)))


def compress(x, layout, block=None):
    """A matrix in COO, or a batch or one with dense dims, in a compressed layout, of one number of values in each matrix of the batch."""
    x = x.coalesce()
    lead, dims = x.sparse_dim() - 2, x.sparse_dim()
    check(dims >= 2, "to_sparse_csr", "a tensor of 2 sparse dims or more", tuple(x.shape))
    rows, columns = x.shape[lead:dims]
    high, wide = block or (1, 1)
    indices, values = x.parts[0], values_of(x)
    row, column = indices[lead], indices[lead + 1]
    if block is not None:
        return _in_blocks(x, layout, high, wide, indices, values)
    count = prod(x.shape[:lead])
    batch = keys_of(indices[:lead], x.shape[:lead])
    if layout not in BY_ROWS:
        row, column, rows, columns = column, row, columns, rows
        order = (batch * rows + row).sort(stable=True)[1]
        batch, row, column, values = [i.index_select(0, order) for i in (batch, row, column, values)]
    n = _equal_shares(batch, count, values.shape[0])
    shape = tuple(x.shape[:lead])
    bounds = bounds_of(row.reshape(*shape, n), rows)
    empty = Compressed.made(x.shape, bounds, column.reshape(*shape, n),
                            values.detach().reshape(*shape, n, *values.shape[1:]), layout=layout)
    return with_values(empty, values.reshape(*shape, n, *values.shape[1:]))


def _equal_shares(batch, count, n):
    """How many values each matrix of the batch has; all must have as many."""
    if count == 1:
        return n
    each = n // max(count, 1)
    tally = bounds_of(batch, count).diff()
    check(n == each * count and bool((tally == each).all().item()), "to_sparse_csr", "as many values in every matrix of the batch",
          tally.tolist())
    return each


def _in_blocks(x, layout, high, wide, indices, values):
    """Blocks in which there is an element, filled with zeros."""
    lead, dims = x.sparse_dim() - 2, x.sparse_dim()
    rows, columns = x.shape[lead:dims]
    check(rows % high == 0 and columns % wide == 0, "to_sparse_bsr", f"a matrix that blocks of ({high}, {wide}) fill", (rows, columns))
    batch, count = keys_of(indices[:lead], x.shape[:lead]), prod(x.shape[:lead])
    first, second = indices[lead].div(high, rounding_mode="floor"), indices[lead + 1].div(wide, rounding_mode="floor")
    sizes = [rows // high, columns // wide]
    if layout not in BY_ROWS:
        first, second, sizes = second, first, sizes[::-1]
    known, owner = keys_of(stack([batch, first, second]), (count, *sizes)).unique(return_inverse=True)
    n = _equal_shares(known.div(max(prod(sizes), 1), rounding_mode="floor"), count, known.shape[0])
    inside = (indices[lead] % high) * wide + indices[lead + 1] % wide
    rest, shape = tuple(values.shape[1:]), tuple(x.shape[:lead])
    filled = add_rows(known.shape[0] * high * wide, owner * (high * wide) + inside, values).reshape(*shape, n, high, wide, *rest)
    place = known % max(prod(sizes), 1)
    first, second = place.div(max(sizes[1], 1), rounding_mode="floor"), place % max(sizes[1], 1)
    bounds = bounds_of(first.reshape(*shape, n), sizes[0])
    empty = Compressed.made(x.shape, bounds, second.reshape(*shape, n), filled.detach(), layout=layout)
    return with_values(empty, filled)


def transposed(x):
    """Rows and columns of a compressed tensor exchanged: the other layout, of the same parts."""
    other = {sparse_csr: sparse_csc, sparse_csc: sparse_csr,
             sparse_bsr: sparse_bsc, sparse_bsc: sparse_bsr}[x.layout]
    at = len(x.parts[0].shape) - 1
    shape = (*x.shape[:at], x.shape[at + 1], x.shape[at], *x.shape[at + 2:])
    values = x.parts[2]
    if x.layout in BLOCKED:
        values = values.transpose(at + 1, at + 2)
    out = Compressed.made(shape, *x.parts[:2], values, layout=other)
    return recorded("Transpose", out, [(x, lambda g: g.transpose(at, at + 1))])


def without_values(x):
    """A tensor of zeros in the shape and layout of a compressed one, without values."""
    compressed, plain, values = x.parts
    lead = len(plain.shape) - 1
    none = (*plain.shape[:lead], 0)
    return Compressed.made(x.shape, compressed.new_zeros(tuple(compressed.shape)), plain.new_empty(none),
                           values.new_empty((*none, *values.shape[lead + 1:])), layout=x.layout)
