"""Dims of sparse tensors: exchanged, inserted, selected, joined."""
from tritorch.dtype import promote_types, types
from tritorch.errors import check, sentence
from tritorch.ops import create
from tritorch.ops.shaping import cat as joined
from tritorch.ops.shaping import several
from tritorch.ops.sorting import searchsorted
from tritorch.shape import wrap_dim
from tritorch.sparse.base import Sparse
from tritorch.sparse.compressed import Compressed, to_coo, transposed
from tritorch.sparse.coo import Coo, made_of, values_of
from tritorch.sparse.graph import straight


def settled(x):
    """The tensor, coalesced where a gradient is wanted: then each of its values is an element."""
    return x.coalesce() if x.requires_grad else x


def values_in(x):
    """The values, with their history if the tensor has one; it is settled then."""
    return values_of(x) if x.requires_grad else x.parts[-1]


def coo(name, x):
    """The tensor, which must be COO."""
    if not isinstance(x, Coo):
        raise NotImplementedError(sentence(name, "a tensor of layout sparse_coo or strided", getattr(x, "layout", type(x).__name__),
                                   use="x.to_sparse()"))
    return x


def transpose(input, dim0, dim1):
    """Two dims exchanged, both sparse or both dense."""
    ndim = len(input.shape)
    a, b = wrap_dim(dim0, ndim, "transpose"), wrap_dim(dim1, ndim, "transpose")
    if isinstance(input, Compressed):
        lead = len(input.parts[0].shape) - 1
        check({a, b} == {lead, lead + 1}, "transpose", "the dims of rows and columns of a compressed tensor", dim0, dim1)
        return transposed(input)
    order = [*range(ndim)]
    if ndim:
        order[a], order[b] = b, a
    return permute_dims(input, tuple(order), "transpose", "Transpose")


def permute_dims(x, dims, name="permute", label="Permute"):
    """The dims in another order, in which the sparse ones come first again."""
    coo(name, x)
    ndim, first = len(x.shape), x.sparse_dim()
    order = [wrap_dim(d, ndim, name) for d in dims]
    check(sorted(order) == [*range(ndim)], name, f"each of {ndim} dims once", tuple(dims))
    check(sorted(order[:first]) == [*range(first)], name, "sparse dims that stay before dense ones", tuple(dims))
    indices, values = x.parts
    if order[:first] != [*range(first)]:
        indices = rows_among(indices, order[:first])
    if order[first:] != [*range(first, ndim)]:
        values = values.permute(0, *[d - first + 1 for d in order[first:]])
    kept = x._coalesced and (indices is x.parts[0] or x._nnz() < 2)
    back = tuple([order.index(d) for d in range(ndim)])
    out = Coo.made(tuple([x.shape[d] for d in order]), indices, values, _coalesced=kept)
    return straight(label, x, out, lambda g: g.permute(back))


def rows_among(indices, rows):
    """Some rows of a matrix of indices, in this order; their numbers are not brought to the device."""
    return joined([indices[d:d + 1] for d in rows]) if rows else indices[:0]


def unsqueeze(input, dim):
    """A new dim of size 1."""
    x, at = coo("unsqueeze", input), wrap_dim(dim, len(input.shape) + 1, "unsqueeze")
    shape, (indices, values), first = (*x.shape[:at], 1, *x.shape[at:]), x.parts, x.sparse_dim()
    if at <= first:
        indices = joined([indices[:at], create.zeros((1, indices.shape[1]), dtype=types.int64, device=indices.device), indices[at:]])
    else:
        values = values.unsqueeze(at - first + 1)
    out = Coo.made(shape, indices, values, _coalesced=x._coalesced)
    return straight("Unsqueeze", x, out, lambda g: g.select(at, 0))


def select(input, dim, index):
    """The elements at one place of a dim. With the last sparse dim they are dense. The number of them is read from the device."""
    x = settled(coo("select", input if isinstance(input, Coo) else to_coo(input)))
    at, first = wrap_dim(dim, len(x.shape), "select"), x.sparse_dim()
    size = x.shape[at]
    check(-size <= index < size, "select", f"an index in [{-size}, {size - 1}]", index, error=IndexError)
    index, shape, values = int(index) % size, (*x.shape[:at], *x.shape[at + 1:]), values_in(x)
    if at >= first:
        return made_of(shape, x.parts[0], values.select(at - first + 1, index), x._coalesced)
    found = (x.parts[0][at] == index).nonzero().reshape(-1)
    values = values.index_select(0, found)
    if first == 1:
        return values.sum(0).to(x.dtype)
    indices = x.parts[0].index_select(1, found)
    return made_of(shape, joined([indices[:at], indices[at + 1:]]), values, x._coalesced)


def index_select(input, dim, index):
    """The slices along a dim that the index names. How many values they have is read from the device."""
    x = settled(coo("index_select", input))
    at, first = wrap_dim(dim, len(x.shape), "index_select"), x.sparse_dim()
    check(index.dtype in (types.int64, types.int32) and len(index.shape) == 1, "index_select", "a vector of integers as index", index.dtype,
          tuple(index.shape))
    shape, size, values = (*x.shape[:at], index.shape[0], *x.shape[at + 1:]), x.shape[at], values_in(x)
    if at >= first:
        return made_of(shape, x.parts[0], values.index_select(at - first + 1, index), x._coalesced)
    index = index.to(types.int64)
    if index.numel():
        low, high = int(index.min().item()), int(index.max().item())
        check(-size <= low and high < size, "index_select", f"indices in [{-size}, {size - 1}]", low, high, error=IndexError)
        index = index % size
    source, place = matches(index, x.parts[0][at])
    indices = x.parts[0].index_select(1, source)
    indices = joined([indices[:at], place.reshape(1, -1), indices[at + 1:]])
    return made_of(shape, indices, values.index_select(0, source))


def matches(index, keys):
    """(k, i) of all pairs with index[i] == keys[k]. Their number is read from the device."""
    known, order = index.sort(stable=True)
    low = searchsorted(known, keys.contiguous())
    source, place = spans(low, searchsorted(known, keys.contiguous(), right=True) - low)
    return source, order.index_select(0, place)


def spans(starts, counts):
    """(k, i) of all i from starts[k] on, counts[k] of them. Their number is read from the device."""
    source = create.arange(counts.shape[0], device=counts.device).repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    place = create.arange(source.shape[0], device=counts.device) - before.index_select(0, source) + starts.index_select(0, source)
    return source, place


def concatenated(tensors, dim, sizes=None):
    """Sparse tensors joined along a dim."""
    tensors = several("cat", tensors)
    for t in tensors:
        check(isinstance(t, Sparse), "cat", "sparse tensors, or none", getattr(t, "layout", type(t).__name__))
        coo("cat", t)
    first, kind = tensors[0], tensors[0].dtype
    at, dims = wrap_dim(dim, len(first.shape), "cat"), first.sparse_dim()
    for t in tensors:
        fits = t.sparse_dim() == dims and (*t.shape[:at], *t.shape[at + 1:]) == (*first.shape[:at], *first.shape[at + 1:])
        check(fits, "cat", f"{dims} sparse dims and sizes like {tuple(first.shape)} but for dim {at}", tuple(t.shape), t.sparse_dim())
        kind = promote_types(kind, t.dtype)
    tensors, starts = [settled(t) for t in tensors], [0]
    for t in tensors:
        starts.append(starts[-1] + t.shape[at])
    total, indices, values = starts.pop(), [], []
    for t, start in zip(tensors, starts):
        i, v = t.parts[0], values_in(t).to(kind)
        if at < dims:
            i = joined([i[:at], i[at:at + 1] + start, i[at + 1:]]) if start else i
        else:
            d = at - dims + 1
            gap = [(*v.shape[:d], n, *v.shape[d + 1:]) for n in (start, total - start - t.shape[at])]
            v = joined([create.zeros(gap[0], dtype=kind, device=v.device), v, create.zeros(gap[1], dtype=kind, device=v.device)], d)
        indices.append(i)
        values.append(v)
    return made_of((*first.shape[:at], total, *first.shape[at + 1:]), joined(indices, 1), joined(values))


