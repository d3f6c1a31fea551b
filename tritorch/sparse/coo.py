"""Coo: a tensor as a list of its elements: where each stands, and its value. Equal places are summed."""
from math import prod

from tritorch.dtype import types
from tritorch.errors import check, sentence
from tritorch.layout import sparse_coo
from tritorch.ops import create
from tritorch.ops.shaping import stack
from tritorch.ops.sorting import searchsorted
from tritorch.sparse.base import Sparse
from tritorch.sparse.graph import recorded, straight
from tritorch.tensor import Tensor


class Coo(Sparse):
    """A tensor of layout `sparse_coo`: `parts` are indices (sparse dims, n), int64, and values (n, *dense dims)."""

    layout, is_sparse = sparse_coo, True
    _coalesced = False

    def facts(self):
        return {"_coalesced": self._coalesced}

    def _zeros(self):
        indices, values = self.parts
        return Coo.made(self.shape, indices[:, :0], values[:0], _coalesced=True)

    def sparse_dim(self):
        """How many of the dims, the first ones, the indices are of."""
        return self.parts[0].shape[0]

    def dense_dim(self):
        """How many dims, the last ones, each value has."""
        return len(self.parts[1].shape) - 1

    _dimI, _dimV = sparse_dim, dense_dim

    def t(self):
        """The transpose of a matrix; a vector as it is."""
        check(len(self.shape) < 3, "t", "at most 2 dims", tuple(self.shape))
        return self if len(self.shape) < 2 else self.transpose(0, 1)

    def new_zeros(self, *size, dtype=None, device=None, requires_grad=False):
        """A tensor of sparse dims alone, without values, of this one's dtype and device unless told otherwise."""
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        out = nothing(shape, len(shape), dtype or self.dtype, device or self.device)
        return out.requires_grad_() if requires_grad else out

    new_empty = new_zeros

    def narrow_copy(self, dim, start, length):
        """The `length` slices of a dim that begin at `start`. How many values they have is read from the device."""
        from tritorch.sparse.shaping import index_select

        check(0 <= length <= self.shape[dim], "narrow_copy", f"a length from 0 to {self.shape[dim]}", length)
        start += self.shape[dim] if start < 0 else 0
        check(0 <= start <= self.shape[dim] - length, "narrow_copy", f"a start from 0 to {self.shape[dim] - length}", start)
        return index_select(self, dim, create.arange(start, start + length, device=self.device))

    def _nnz(self):
        """How many values there are."""
        return self.parts[0].shape[1]

    def is_coalesced(self):
        """Whether the places are known to be in order, no two of them equal."""
        return self._coalesced

    def _coalesced_(self, coalesced):
        """Say whether the places are in order, no two of them equal."""
        self._coalesced = coalesced
        return self

    def _indices(self):
        """The places (sparse dims, n), as they are, equal ones included."""
        return self.parts[0].detach()

    def _values(self):
        """The values (n, *dense dims), as they are, without history."""
        return self.parts[1].detach()

    def indices(self):
        """The places (sparse dims, n) of a coalesced tensor, in order."""
        check(self._coalesced, "indices", "a coalesced tensor", "one that is not", use="x.coalesce()")
        return self.parts[0].detach()

    def values(self):
        """The values (n, *dense dims) of a coalesced tensor. A gradient of theirs is one of the tensor."""
        check(self._coalesced, "values", "a coalesced tensor", "one that is not", use="x.coalesce()")
        return values_of(self)

    def coalesce(self):
        """The same tensor with its places in order and equal ones summed. The number of places is read from the device."""
        return self if self._coalesced else straight("Coalesce", self, summed(self))

    def to_dense(self, dtype=None, *, masked_grad=None):
        """The elements in a strided tensor. Its gradient reaches the tensor's places, and no others unless `masked_grad` is False."""
        x = self if dtype is None else self.to(dtype)
        whole = masked_grad is False
        return recorded("ToDense", spread(x), [(x, lambda g, x: g if whole else g.sparse_mask(x.coalesce()))], x)

    def sparse_resize_(self, size, sparse_dim, dense_dim):
        """Change the shape and how many dims are sparse. Dims may only grow, and their numbers only change, while there are values."""
        size, kept = tuple(size), self._nnz() > 0
        _check_resize(self, "sparse_resize_", size, sparse_dim, dense_dim)
        old, now = (self.sparse_dim(), self.dense_dim()), (sparse_dim, dense_dim)
        check(not kept or old == now, "sparse_resize_", f"{old[0]} sparse and {old[1]} dense dims, while there are values", now)
        grows = all(n >= m for n, m in zip(size, self.shape)) or not kept
        check(grows, "sparse_resize_", f"sizes that do not fall below {tuple(self.shape)}, while there are values", size)
        indices, values = self.parts
        if tuple(values.shape[1:]) != size[sparse_dim:]:
            wider = create.zeros((values.shape[0], *size[sparse_dim:]), dtype=self.dtype, device=self.device)
            if values.numel():
                wider[(slice(None), *[slice(n) for n in values.shape[1:]])] = values
            values = wider
        if sparse_dim != old[0]:
            indices = create.empty((sparse_dim, 0), dtype=types.int64, device=self.device)
        return self.become(Coo.made(size, indices, values, _coalesced=self._coalesced))

    def sparse_resize_and_clear_(self, size, sparse_dim, dense_dim):
        """Become a tensor of zeros of this shape."""
        _check_resize(self, "sparse_resize_and_clear_", tuple(size), sparse_dim, dense_dim)
        return self.become(nothing(tuple(size), sparse_dim, self.dtype, self.device))

    def resize_as_sparse_(self, other):
        """Take the shape, sparse and dense dims of another sparse tensor."""
        check(isinstance(other, Coo), "resize_as_sparse_", "a tensor of layout sparse_coo", getattr(other, "layout", other))
        if (self.shape, self.sparse_dim(), self.dense_dim()) == (other.shape, other.sparse_dim(), other.dense_dim()):
            return self
        return self.sparse_resize_(other.shape, other.sparse_dim(), other.dense_dim())

    resize_as_ = resize_as_sparse_


def _check_resize(x, name, size, sparse_dim, dense_dim):
    check(sparse_dim + dense_dim == len(size), name, "as many sizes as sparse and dense dims", size, sparse_dim, dense_dim)
    check(not x.requires_grad, name, "a tensor that requires no gradient", "one that does", use="x.detach()")


def nothing(shape, sparse_dim, dtype, device):
    """A tensor without values."""
    indices = create.empty((sparse_dim, 0), dtype=types.int64, device=device)
    values = create.empty((0, *shape[sparse_dim:]), dtype=dtype, device=device)
    return Coo.made(shape, indices, values, _coalesced=True)


# ------------------------------------------------------------------ places as numbers
def keys_of(indices, sizes):
    """The place of each column of indices in the dims of these sizes, counted row-major."""
    if not len(sizes):
        return create.zeros((indices.shape[1],), dtype=types.int64, device=indices.device)
    keys = indices[0]
    for d in range(1, len(sizes)):
        keys = keys * sizes[d] + indices[d]
    return keys


def keys(x):
    """The places of a COO tensor as numbers."""
    return keys_of(x.parts[0], x.shape[:x.sparse_dim()])


def places_of(keys, sizes):
    """The columns of indices that the numbers stand for."""
    rows = []
    for n in reversed(sizes):
        rows.append(keys % max(n, 1))
        keys = keys.div(max(n, 1), rounding_mode="floor")
    if not rows:
        return create.empty((0, keys.shape[0]), dtype=types.int64, device=keys.device)
    return stack(rows[::-1])


def add_rows(count, where, values):
    """Sums (count, …) of the values (n, …) that go to the same row, in their order."""
    kind = values.dtype
    if kind is types.bool:                                               # the sum of bools is their or
        return add_rows(count, where, values.to(types.int32)) > 0
    flat = values.reshape(values.shape[0], prod(values.shape[1:]))
    out = create.zeros((count, flat.shape[1]), dtype=kind, device=values.device)
    return (out.index_add(0, where, flat) if flat.numel() else out).reshape(count, *values.shape[1:])


def summed(x):
    """A COO tensor coalesced, without history."""
    indices, values = x.parts
    if indices.shape[1] < 2:
        return Coo.made(x.shape, indices, values, _coalesced=True)
    at, order = keys(x).sort(stable=True)
    first = create.ones(at.shape, dtype=types.bool, device=at.device)
    first[1:] = at[1:] != at[:-1]
    starts = first.nonzero().reshape(-1)
    owners = first.to(types.int64).cumsum(0) - 1
    joined = add_rows(starts.shape[0], owners, values.index_select(0, order))
    return Coo.made(x.shape, indices.index_select(1, order.index_select(0, starts)), joined, _coalesced=True)


def spread(x):
    """A COO tensor as a dense one, without history."""
    sizes = x.shape[:x.sparse_dim()]
    return add_rows(prod(sizes), keys(x), x.parts[1]).reshape(tuple(x.shape))


# ------------------------------------------------------------------ to and from values with history
def values_of(x):
    """The values of a coalesced (or compressed) tensor with its history: a gradient of theirs is a tensor with the same places."""
    return recorded("Values", x.parts[-1].detach(), [(x, lambda g, x: with_values(x, g))], x)


def with_values(x, values):
    """The places of x with other values, history included."""
    return recorded("SparseCooTensorWithDimsAndTensors", x.like(values.detach()),
                    [(values, lambda g, x: masked_values(g, x))], x.detach())


def made_of(shape, indices, values, coalesced=False):
    """A COO tensor of indices and of values with history."""
    return with_values(Coo.made(shape, indices, values.detach(), _coalesced=coalesced), values)


def masked_values(g, x):
    """The values of g, dense or sparse, at the places of x, one for each."""
    if type(g) is type(x) and g.facts() == x.facts() and all(a is b for a, b in zip(g.parts[:-1], x.parts[:-1])):
        if not isinstance(g, Coo) or g.is_coalesced():
            return values_of(g)
    return taken(g, x)


def taken(g, x):
    """What g, dense or sparse, has at each place of the sparse tensor x, in the form of the values of x."""
    if not isinstance(x, Coo):
        from tritorch.sparse.compressed import taken_by_compressed

        return taken_by_compressed(g, x)
    if not isinstance(g, Sparse):
        sizes = x.shape[:x.sparse_dim()]
        return g.reshape(prod(sizes), *x.shape[len(sizes):]).index_select(0, keys(x))
    g = g.to_sparse() if not isinstance(g, Coo) else g
    check(g.sparse_dim() == x.sparse_dim(), "sparse_mask", f"{x.sparse_dim()} sparse dims", g.sparse_dim())
    g = g.coalesce()
    values, wanted = values_of(g), keys(x)
    if not g._nnz():
        return create.zeros(tuple(x.parts[1].shape), dtype=g.dtype, device=g.device)
    known = keys(g)
    at = known_places(known, wanted)
    hit = known.index_select(0, at) == wanted
    found = values.index_select(0, at)
    return found.where(hit.reshape(-1, *[1] * (len(found.shape) - 1)), create.zeros((), dtype=g.dtype, device=g.device))


def known_places(known, wanted):
    """Where in the rising numbers `known`, of which there is one at least, each of the wanted ones would be."""
    return searchsorted(known.contiguous(), wanted.contiguous()).clamp(max=known.shape[0] - 1)


def sparse_mask(input, mask):
    """The elements of input, strided or sparse, at the places of the sparse tensor `mask`, in its layout; other elements are dropped."""
    check(isinstance(mask, Sparse), "sparse_mask", "a sparse mask", getattr(mask, "layout", type(mask).__name__))
    check(isinstance(input, Tensor) and input.shape == mask.shape, "sparse_mask", f"the shape of the mask, {tuple(mask.shape)}",
          tuple(input.shape))
    if isinstance(input, Sparse) and input.layout is not mask.layout:
        raise RuntimeError(sentence("sparse_mask", f"a strided input, or one of layout {mask.layout}", input.layout))
    out = mask.detach().like(taken(input.detach(), mask))
    dense = not isinstance(input, Sparse)

    def rule(g, mask):
        g = g.sparse_mask(mask.coalesce() if isinstance(mask, Coo) else mask) if not isinstance(g, Coo) or not dense else g
        return g.to_dense() if dense else g

    return recorded("SparseMask", out, [(input, rule)], mask.detach())
