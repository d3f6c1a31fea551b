"""Reductions of sparse tensors: sums over dims, norms, and softmax, for which the elements that are not there are −∞."""
import math

from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create
from tritorch.ops.scatter import index_reduce
from tritorch.shape import wrap_dim
from tritorch.sparse.base import Sparse
from tritorch.sparse.compressed import Compressed, to_coo
from tritorch.sparse.coo import Coo, add_rows, keys_of, made_of, values_of, with_values
from tritorch.sparse.graph import recorded
from tritorch.sparse.shaping import coo, rows_among, settled, values_in


def _dims(dim, ndim, name):
    """The dims of a reduction, all without any."""
    given = range(ndim) if dim is None or dim == () else (dim,) if isinstance(dim, int) else tuple(dim)
    dims = sorted(wrap_dim(d, ndim, name) for d in given)
    check(len({*dims}) == len(dims), name, "each dim once", dim)
    return dims


def total(input, dim=None, keepdim=False, dtype=None):
    """The sum over dims, without them. Over all dims it is a strided tensor of one element, whose gradient is strided."""
    x = input if dtype is None else input.to(dtype)
    dims = _dims(dim, len(x.shape), "sum")
    if len(dims) < len(x.shape):
        return sum(x if dtype is not None or x.dtype.has_gradients else x.to(types.int64), tuple(dims), keepdim=keepdim)
    made = x.parts[-1].sum()
    made = made.reshape((1,) * len(x.shape)) if keepdim else made
    shape = tuple(x.shape)
    return recorded("Sum", made, [(x, lambda g: g.expand(shape).clone())])


def sum(input, dim=None, dtype=None, keepdim=False):
    """The sum of a sparse tensor over dims, without them: sparse while there are sparse dims left, else strided. The gradient of the
    tensor has its places, and no others.

    >>> import tritorch as torch; x = torch.tensor([[0.0, 2.0], [3.0, 4.0]]).to_sparse()
    >>> torch.sparse.sum(x), torch.sparse.sum(x, dim=0).to_dense()
    (tensor(9.), tensor([3., 6.]))
    """
    check(isinstance(input, Sparse), "sum", "a sparse tensor", getattr(input, "layout", type(input).__name__))
    x = input if dtype is None else input.to(dtype)
    if isinstance(x, Compressed):
        return _sum_compressed(x, dim, keepdim)
    dims, first, ndim = _dims(dim, len(x.shape), "sum"), x.sparse_dim(), len(x.shape)
    x = settled(x)
    values, rest = values_in(x), [d for d in dims if d >= first]
    if rest:
        values = values.sum(tuple([d - first + 1 for d in rest]))
    kept = [d for d in range(first) if d not in dims]
    if not kept:
        made = values.sum(0)
        return made.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else made
    shape = tuple([x.shape[d] for d in range(ndim) if d not in dims])
    if len(kept) == first:
        out = made_of(shape, x.parts[0], values, x._coalesced)
    else:
        out = made_of(shape, rows_among(x.parts[0], kept), values).coalesce()
    if keepdim:
        for d in dims:
            out = out.unsqueeze(d)
    return out


def _sum_compressed(x, dim, keepdim):
    """Over all dims a strided tensor; over rows or columns a matrix of one row or column in CSR, as PyTorch's `keepdim`."""
    dims = _dims(dim, len(x.shape), "sum")
    if len(dims) == len(x.shape):
        return total(x, None, keepdim)
    check(keepdim, "sum", "keepdim=True for a sum over some dims of a compressed tensor", keepdim)
    return sum(to_coo(x), tuple(dims), keepdim=True).to_sparse(layout=x.layout)


def vector_norm(x, ord=2, dim=None, keepdim=False, dtype=None):
    """The norm over all elements."""
    check(dim is None or len(_dims(dim, len(x.shape), "norm")) == len(x.shape), "norm", "all dims of a sparse tensor", dim)
    check(ord > 0 and ord != -math.inf, "norm", "an order greater than 0 of a sparse tensor", ord)
    x = x.coalesce() if isinstance(x, Coo) else x
    values = values_of(x) if x.requires_grad else x.parts[-1]
    if not values.numel():
        return create.zeros((1,) * len(x.shape) if keepdim else (), dtype=x.dtype.to_real(), device=x.device)
    made = values.norm(ord, dtype=dtype)
    return made.reshape((1,) * len(x.shape)) if keepdim else made


def any_of(input, dim=None, keepdim=False):
    """Whether an element is not 0."""
    check(dim is None, "any", "all dims of a sparse tensor", dim, error=NotImplementedError)
    x = input.coalesce() if isinstance(input, Coo) else input
    return x.parts[-1].any()


# ------------------------------------------------------------------ softmax
def softmax(input, dim, *, dtype=None):
    """exp(xᵢ) / Σ exp(xⱼ) over the elements along a dim that have values: those without count as −∞.

    >>> import tritorch as torch; x = torch.tensor([[1.0, 1.0], [0.0, 5.0]]).to_sparse()
    >>> torch.sparse.softmax(x, 1).to_dense()
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]])
    """
    return _softmax("softmax", input, dim, dtype, lambda e, z, shifted: e / z)


def log_softmax(input, dim, *, dtype=None):
    """The logarithm of `softmax` at the places that have values.

    >>> import tritorch as torch; x = torch.tensor([[1.0, 1.0], [0.0, 5.0]]).to_sparse()
    >>> torch.sparse.log_softmax(x, 1).to_dense()
    tensor([[-0.6931, -0.6931],
            [ 0.0000,  0.0000]])
    """
    return _softmax("log_softmax", input, dim, dtype, lambda e, z, shifted: shifted - z.log())


def _softmax(name, input, dim, dtype, finish):
    x = coo(name, input if dtype is None else input.to(dtype)).coalesce()
    check(x.dtype.has_gradients, name, "a floating dtype", x.dtype, error=NotImplementedError)
    at, first = wrap_dim(dim, len(x.shape), name), x.sparse_dim()
    values = values_of(x)
    if not x._nnz():
        return with_values(x.detach(), values)
    if at >= first:
        made = values.softmax(at - first + 1) if name == "softmax" else values.log_softmax(at - first + 1)
        return with_values(x.detach(), made)
    others = [d for d in range(first) if d != at]
    indices = rows_among(x.parts[0], others)
    groups, owner = keys_of(indices, [x.shape[d] for d in others]).unique(return_inverse=True)
    flat, count = values.reshape(values.shape[0], -1), groups.shape[0]
    low = create.full((count, flat.shape[1]), -math.inf, dtype=x.dtype, device=x.device)
    top = index_reduce(low, 0, owner, flat.detach(), "amax", include_self=False)
    top = top.masked_fill(top.isinf(), 0)
    shifted = flat - top.index_select(0, owner)
    e = shifted.exp()
    z = add_rows(count, owner, e).index_select(0, owner)
    return with_values(x.detach(), finish(e, z, shifted).reshape(tuple(values.shape)))
