"""Largest and smallest: amax, amin, max, min, argmax, argmin, aminmax. NaN is larger, and smaller, than every number."""
import math

import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.copy import deliver
from tritorch.ops.destinations import call
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.reduce import accumulator, dims_of, restore, sample_dims, sweeps
from tritorch.ops.rows import kept
from tritorch.return_types import result
from tritorch.shape import wrap_dim
from tritorch.tensor import Tensor

MaxResult, MinResult = result("max", "values indices"), result("min", "values indices")
AminmaxResult = result("aminmax", "min max")


def lowest(dtype):
    """The value that no element is below."""
    return -math.inf if dtype.is_floating_point else 0 if dtype is types.bool else types.iinfo(dtype).min


def highest(dtype):
    """The value that no element is above."""
    return math.inf if dtype.is_floating_point else 1 if dtype is types.bool else types.iinfo(dtype).max


def check_not_empty(name, input, dims, error=IndexError):
    """There is no largest element of none."""
    empty = [d for d in dims if not input.shape[d]]
    check(not empty, name, "dims of at least one element", tuple(input.shape), error=error)


def extreme(name, doc, combine, identity, on_array):
    """amax and amin: over any dims; ties share the gradient evenly."""
    def rule(input, dim=(), keepdim=False):
        dims = dims_of(dim, input.ndim, name)
        check_not_empty(name, input, dims, IndexError if dim or dim == 0 else RuntimeError)
        return kept(input.shape, dims, keepdim), input.dtype, input.device

    rule.__name__, rule.__doc__ = name, doc
    f = op(rule)
    f.exact = True

    @f.impl("cpu")
    def cpu(out, x, dim, keepdim):
        on_array(x, axis=dims_of(dim, x.ndim, name), keepdims=keepdim, out=out)

    @f.impl("cuda")
    def cuda(out, x, dim, keepdim):
        reduce_rows([out], [x], dims_of(dim, x.ndim, name), keepdim, Monoid("bounded", combine), accumulator(x.dtype), identity(x.dtype))

    @f.grad("input")
    def grad(g, input, out, dim, keepdim):
        ties = input == restore(out, input.ndim, dim, keepdim)
        if dim is None and input.dtype.is_floating_point:
            ties = ties | input.isnan()                                  # if there is one it is the extreme
        return restore(g, input.ndim, dim, keepdim) / ties.sum(dim, keepdim=True) * ties       # counted in int64, float16 ends at 65504

    f.samples(sample_dims)
    f.errors(lambda make: [((make(0, 3), 0), {}, IndexError, "expected dims of at least one element"),
                           ((make(2, 3), 2), {}, IndexError, "expected a dim in [-2, 1], got 2")])
    sweeps(f)
    return f


amax = extreme("amax", """Largest value over `dim` (an int, a tuple; () for all).

    NaN wins; the gradient is shared evenly by equal values.

    >>> import tritorch as torch; torch.tensor([[1, 5], [7, 2]]).amax(dim=1)
    tensor([5, 7])
    """, "max", lowest, np.max)
amin = extreme("amin", """Smallest value over `dim` (an int, a tuple; () for all).

    NaN wins; the gradient is shared evenly by equal values.

    >>> import tritorch as torch; torch.tensor([[1, 5], [7, 2]]).amin(dim=1)
    tensor([1, 2])
    """, "min", highest, np.min)


def samples_along(make):
    yield make(3, 5), 0
    yield make(2, 3, 5), 1
    yield make(4, 9), -1, True
    yield make(37, 43), -1
    yield make(7, 11, integer=True, low=0, high=4), 0
    yield make(), 0
    yield make(3, 0, 2), 2


def indexed(name, doc, combine, identity, on_array):
    """max and min over one dim: the values and where they were first."""
    def rule(input, dim, keepdim=False):
        dims = (wrap_dim(dim, input.ndim, name),) if input.ndim else dims_of(dim, 0, name)
        check_not_empty(name, input, dims)
        shape = kept(input.shape, dims, keepdim)
        return [(shape, input.dtype, input.device), (shape, types.int64, input.device)]

    rule.__name__, rule.__doc__ = name, doc
    f = op(rule, returns=("values", "indices"))

    @f.impl("cpu")
    def cpu(values, indices, x, dim, keepdim):
        if not x.ndim:
            values[...], indices[...] = x, 0
            return
        at = on_array(x, axis=dim, keepdims=True)
        indices[...] = at.reshape(indices.shape)
        values[...] = np.take_along_axis(x, at, dim).reshape(values.shape)

    @f.impl("cuda")
    def cuda(values, indices, x, dim, keepdim):
        monoid = Monoid("indexed", combine, "both", (None, types.int64))
        reduce_rows([values, indices], [x], dims_of(dim, x.ndim, name), keepdim, monoid, accumulator(x.dtype), identity(x.dtype))

    @f.grad("input")
    def grad(g_values, input_shape, indices, dim, keepdim):
        if not input_shape:
            return g_values
        indices, g_values = [restore(t, len(input_shape), dim, keepdim) for t in (indices, g_values)]
        return g_values.new_zeros(input_shape).scatter(dim, indices, g_values)

    f.samples(samples_along)
    f.errors(lambda make: [((make(0, 3), 0), {}, IndexError, "expected dims of at least one element")])
    sweeps(f, whole=False)
    return f


max_along = indexed("max_along", """Largest values along one dim and the first index of each, as (values, indices).

    The gradient goes to that element alone.

    >>> import tritorch as torch; torch.max(torch.tensor([[1, 5], [7, 2]]), dim=1).indices
    tensor([1, 0])
    """, "argmax", lowest, np.argmax)
min_along = indexed("min_along", """Smallest values along one dim and the first index of each, as (values, indices).

    The gradient goes to that element alone.

    >>> import tritorch as torch; torch.min(torch.tensor([[1, 5], [7, 2]]), dim=1).indices
    tensor([0, 1])
    """, "argmin", highest, np.argmin)


def index_of(name, doc, combine, identity, on_array):
    """argmax and argmin."""
    def rule(input, dim=None, keepdim=False):
        dims = dims_of(dim, input.ndim, name)
        check(input.numel() or dim is not None, name, "an element, or a dim", tuple(input.shape), error=IndexError)
        check_not_empty(name, input, dims)
        return kept(input.shape, dims, keepdim), types.int64, input.device

    rule.__name__, rule.__doc__ = name, doc
    f = op(rule)
    f.exact = True

    @f.impl("cpu")
    def cpu(out, x, dim, keepdim):
        out[...] = on_array(x, axis=dim if x.ndim else None, keepdims=keepdim and x.ndim > 0)

    @f.impl("cuda")
    def cuda(out, x, dim, keepdim):
        monoid = Monoid("indexed", combine, "index", (None, types.int64))
        reduce_rows([out], [x], dims_of(dim, x.ndim, name), keepdim, monoid, accumulator(x.dtype), identity(x.dtype))

    @f.samples
    def samples(make):
        yield make(3, 5),
        yield make(2, 3, 5), 1
        yield make(4, 9), -1, True
        yield make(37, 43), 0
        yield make(7, 11, integer=True, low=0, high=4), 0
        yield make(), 0
        yield make(3, 0, 2), 2

    f.errors(lambda make: [((make(0, 3), 0), {}, IndexError, "expected dims of at least one element"),
                           ((make(0),), {}, IndexError, "expected an element, or a dim")])
    sweeps(f)
    return f


argmax = index_of("argmax", """Index of the first largest element along `dim`, or in the flattened tensor.

    >>> import tritorch as torch; torch.tensor([[1, 5], [7, 2]]).argmax().item()
    2
    """, "argmax", lowest, np.argmax)
argmin = index_of("argmin", """Index of the first smallest element along `dim`, or in the flattened tensor.

    >>> import tritorch as torch; torch.tensor([[1, 5], [7, 2]]).argmin(dim=1)
    tensor([0, 1])
    """, "argmin", highest, np.argmin)


@op(returns=("min", "max"))
def amin_amax(input, dim=(), keepdim=False):
    """Smallest and largest value over `dim` in one pass, as (min, max).

    >>> import tritorch as torch; [v.item() for v in torch.aminmax(torch.tensor([3, 1, 2]))]
    [1, 3]
    """
    dims = dims_of(dim, input.ndim, "aminmax")
    check_not_empty("aminmax", input, dims, IndexError if isinstance(dim, int) else RuntimeError)
    promise = kept(input.shape, dims, keepdim), input.dtype, input.device
    return [promise, promise]


@amin_amax.impl("cpu")
def amin_amax_cpu(low, high, x, dim, keepdim):
    dims = dims_of(dim, x.ndim, "aminmax")
    np.min(x, axis=dims, keepdims=keepdim, out=low)
    np.max(x, axis=dims, keepdims=keepdim, out=high)


@amin_amax.impl("cuda")
def amin_amax_cuda(low, high, x, dim, keepdim):
    monoid, identity = Monoid("both", "both", "both", (None, None)), (highest(x.dtype), lowest(x.dtype))
    reduce_rows([low, high], [x], dims_of(dim, x.ndim, "aminmax"), keepdim, monoid, accumulator(x.dtype), identity)


@amin_amax.formula
def amin_amax_formula(input, dim, keepdim):
    return amin(input, dim, keepdim), amax(input, dim, keepdim)


amin_amax.samples(sample_dims)
sweeps(amin_amax)


# ------------------------------------------------------------------ PyTorch's overloads
def max(input, dim=None, keepdim=False, *, axis=None, keepdims=False, out=None):
    """max(x): the largest value. max(x, dim): (values, indices) along a dim. max(x, other): the larger of each pair.

    >>> import tritorch as torch; torch.max(torch.tensor([1, 5, 3])).item()
    5
    """
    return overload("max", input, dim if axis is None else axis, keepdim or keepdims, amax, max_along, MaxResult, out)


def min(input, dim=None, keepdim=False, *, axis=None, keepdims=False, out=None):
    """min(x): the smallest value. min(x, dim): (values, indices) along a dim. min(x, other): the smaller of each pair.

    >>> import tritorch as torch; torch.min(torch.tensor([4, 1, 3])).item()
    1
    """
    return overload("min", input, dim if axis is None else axis, keepdim or keepdims, amin, min_along, MinResult, out)


def overload(name, input, dim, keepdim, everything, along, result, out):
    if isinstance(dim, Tensor):
        return getattr(input, name + "imum")(dim, out=out)
    if dim is not None:
        return call(along, (input, dim, keepdim), out, result)
    check(input.numel() > 0, name, "an element, or a dim", tuple(input.shape))
    return deliver(everything(input, None), out)                         # None: of max() the NaN share the gradient, of amax() it is NaN


def aminmax(input, *, dim=None, keepdim=False, out=None):
    """Smallest and largest value along a dim, or of all, as (min, max).

    >>> import tritorch as torch; torch.aminmax(torch.tensor([3, 1, 2])).max.item()
    3
    """
    return call(amin_amax, (input, () if dim is None else dim, keepdim), out, AminmaxResult)
