"""Vectors: their combinations, cross products, powers and covariances."""
import itertools

import numpy as np

from tritorch.dtype import types
from tritorch.errors import check, tensors
from tritorch.ops import copy, create, slicing, view
from tritorch.ops.bounds import every
from tritorch.ops.complex import complex
from tritorch.ops.distances import distances
from tritorch.ops.shaping import diff, meshgrid, stack
from tritorch.ops.statistics import vector_norm
from tritorch.shape import broadcast_shapes, own_dim, wrap_dim


def cartesian_prod(*tensors):
    """All combinations of the elements of vectors, as rows.

    >>> import tritorch as torch
    >>> torch.cartesian_prod(torch.tensor([1, 2]), torch.tensor([3, 4])).tolist()
    [[1, 3], [1, 4], [2, 3], [2, 4]]
    """
    vectors = tensors and all(len(t.shape) == 1 for t in tensors)
    check(vectors, "cartesian_prod", "one or more vectors", *[t.shape for t in tensors])
    if len(tensors) == 1:
        return tensors[0]
    return stack([view.reshape(g, -1) for g in meshgrid(*tensors)], 1)


def combinations(input, r=2, with_replacement=False):
    """All combinations of r elements of a vector, as rows.

    >>> import tritorch as torch
    >>> torch.combinations(torch.tensor([1, 2, 3])).tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    check(len(input.shape) == 1, "combinations", "a vector", input.shape)
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(pick(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    return input[create.tensor(places, device=input.device)]


def vander(x, N=None, increasing=False):
    """The powers of the elements of a vector as columns: x^(N-1) … x^0, or the other way round.

    >>> import tritorch as torch
    >>> torch.vander(torch.tensor([1, 2, 3]))
    tensor([[1, 1, 1],
            [4, 2, 1],
            [9, 3, 1]])
    """
    check(len(x.shape) == 1, "vander", "a vector", x.shape)
    count = x.shape[0] if N is None else N
    check(count >= 0, "vander", "N of at least 0", count)
    if not count:
        return create.new_zeros(x, x.shape[0], 0)
    powers = create.arange(count, device=x.device)
    return x.unsqueeze(1) ** (powers if increasing else powers.flip(0))


def cross(input, other, dim=None, *, out=None):
    """The cross product of vectors of 3 elements along `dim` (None: the first dim of size 3).

    >>> import tritorch as torch; torch.cross(torch.tensor([1, 0, 0]), torch.tensor([0, 1, 0]), dim=0)
    tensor([0, 0, 1])
    """
    tensors("cross", input=input, other=other)
    check(input.dtype is other.dtype, "cross", "tensors of one dtype", input.dtype, other.dtype)
    check(len(input.shape) == len(other.shape), "cross", "tensors of as many dims", input.shape, other.shape)
    shape = broadcast_shapes("cross", input.shape, other.shape)
    if dim is None:
        check(3 in shape, "cross", "a dim of size 3", shape)
        dim = shape.index(3)
    d = wrap_dim(dim, len(shape), "cross")
    check(input.shape[d] == other.shape[d] == 3, "cross", f"size 3 in dim {d}", input.shape, other.shape)
    (a, b, c), (x, y, z) = [view.expand_to(t, shape).unbind(d) for t in (input, other)]
    return copy.deliver(stack([b * z - c * y, c * x - a * z, a * y - b * x], d), out, exact=True)


def cov(input, *, correction=1, fweights=None, aweights=None):
    """The covariances of variables, one a row, with one observation a column; weights repeat (fweights) or scale (aweights) observations.

    >>> import tritorch as torch; torch.cov(torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    check(len(input.shape) <= 2, "cov", "at most 2 dims", input.shape)
    check(input.dtype is not types.bool, "cov", "numbers", input.dtype)
    rows = input if len(input.shape) == 2 else view.reshape(input, 1, -1)
    rows = rows if rows.dtype.has_gradients else rows.to(types.get_default_dtype())
    weights = None
    for w in (fweights, aweights):
        if w is not None:
            check(w.shape == rows.shape[1:], "cov", f"{rows.shape[1]} weights", w.shape)
            check(w is aweights or not w.dtype.has_gradients, "cov", "fweights that are whole numbers", w.dtype)
            check(w is fweights or w.dtype.is_floating_point, "cov", "aweights of a floating dtype", w.dtype)
            check(not every(w < 0).any().item(), "cov", "weights that are not negative", w)
            weights = w if weights is None else weights * w
    if weights is None:
        total, centred = rows.shape[1], rows - rows.mean(1, True)
        weighted, loss = centred, correction
    else:
        total = weights.sum()
        check(bool(every(total != 0).all()), "cov", "weights that do not sum to zero", weights)
        centred = rows - (rows * weights).sum(1, True) / total
        weighted = centred * weights
        loss = correction if aweights is None else correction * (weights * aweights).sum() / total
    freedom = total - loss
    freedom = freedom.clamp(min=0) if hasattr(freedom, "clamp") else max(freedom, 0)
    made = centred @ weighted.conj().t() / freedom
    return view.reshape(made, ()) if rows.shape[0] == 1 else made


def corrcoef(input):
    """The correlations of variables, one a row: covariances over the products of the standard deviations, within [-1, 1], of complex
    numbers both parts."""
    c = cov(input)
    if not c.shape:
        return c / c
    deviation = c.diagonal().real.sqrt()
    made = c / deviation.unsqueeze(1) / deviation
    return complex(made.real.clamp(-1, 1), made.imag.clamp(-1, 1)) if made.dtype.is_complex else made.clamp(-1, 1)


def cdist(x1, x2, p=2.0, compute_mode=None):
    """‖x1_i - x2_j‖_p for all rows i of x1 (..., P, M) and j of x2 (..., R, M): (..., P, R).

    PyTorch's `compute_mode` is accepted; distances are always taken from the differences.

    >>> import tritorch as torch
    >>> torch.cdist(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[5.],
            [4.]])
    """
    check(len(x1.shape) > 1 and len(x2.shape) > 1 and x1.shape[-1] == x2.shape[-1], "cdist", "rows of one length", x1.shape, x2.shape)
    check(x1.dtype is x2.dtype, "cdist", "rows of one dtype", x1.dtype, x2.dtype)
    check(not x1.dtype.is_complex, "cdist", "real rows", x1.dtype)
    check(p >= 0, "cdist", "p ≥ 0", p)
    return distances(x1, x2, float(p))


def dist(input, other, p=2):
    """The p-norm of input - other."""
    return vector_norm(input - other, p)


def trapezoid(y, x=None, *, dx=None, dim=-1):
    """The integral along `dim` by the trapezoidal rule, at places x or dx apart.

    >>> import tritorch as torch
    >>> torch.trapezoid(torch.tensor([1.0, 2.0, 4.0]), dx=0.5)
    tensor(2.2500)
    """
    return _trapezes(y, x, dx, dim).sum(dim)


def cumulative_trapezoid(y, x=None, *, dx=None, dim=-1):
    """The running integral along `dim` by the trapezoidal rule.

    >>> import tritorch as torch
    >>> torch.cumulative_trapezoid(torch.tensor([1.0, 2.0, 4.0]))
    tensor([1.5000, 4.5000])
    """
    return _trapezes(y, x, dx, dim).cumsum(dim)


def _trapezes(y, x, dx, dim):
    d = own_dim(dim, y.shape, "trapezoid")
    n = y.shape[d]
    means = (slicing.narrow(y, d, min(n, 1), max(n - 1, 0)) + slicing.narrow(y, d, 0, max(n - 1, 0))) / 2
    if x is None:
        return means if dx is None else means * dx
    steps = diff(x, dim=d if len(x.shape) > 1 else 0)
    return means * (steps if len(x.shape) > 1 else view.reshape(steps, [-1 if k == d else 1 for k in range(len(y.shape))]))


trapz = trapezoid
