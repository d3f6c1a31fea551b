"""Reductions to one value: sum, nansum, mean, nanmean, prod, any, all, count_nonzero.

On the GPU a reduction is a monoid run over the rows of any layout by `reduce_rows` (monoids.py).
"""
import math
from functools import lru_cache

import numpy as np

from tritorch.autograd.modes import state
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import compare, copy
from tritorch.ops.arrays import cast, single
from tritorch.ops.destinations import made_in_dtype
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.rows import kept
from tritorch.ops.shaping import cat
from tritorch.ops.view import expand_to, same_memory
from tritorch.pairs import HOLOMORPHIC, OWN
from tritorch.shape import wrap_dims

# ------------------------------------------------------------------ the common ground of all reductions
_DIMS = (int, tuple, type(None), bool)


def dims_of(dim, ndim, name):
    """The dims that `dim` names; None and () name all."""
    try:
        return _dims_of(dim, ndim, name)
    except TypeError:                                                    # a list, or a number of numpy's, which nothing remembers
        return wrap_dims(None if dim.__class__ is list and not dim else dim, ndim, name)


@lru_cache(maxsize=1024, typed=True)
def _dims_of(dim, ndim, name):
    if dim.__class__ not in _DIMS:
        raise TypeError(dim)
    return wrap_dims(None if dim == () else dim, ndim, name)


def size_of(shape, dim):
    """How many elements a reduction over `dim` makes one of."""
    return math.prod([shape[d] for d in dims_of(dim, len(shape), "reduce")])


def restore(g, ndim, dim, keepdim):
    """A reduced tensor with its reduced dims back, of size 1."""
    if keepdim:
        return g
    dims, sizes = dims_of(dim, ndim, "reduce"), iter(g.shape)
    return g.reshape(tuple([1 if d in dims else next(sizes) for d in range(ndim)]))


def spread(g, shape, dim, keepdim):
    """The gradient of a sum: every element gets that of the sum it is in."""
    if g.shape and not state.grad and state.interpreter is None and g._tangents is None:               # as below, in one step
        dims, steps = dims_of(dim, len(shape), "reduce"), iter(g.strides)
        strides = tuple([0 if d in dims else step for d, step in enumerate(steps)]) if keepdim else (
            tuple([0 if d in dims else next(steps) for d in range(len(shape))]))
        return same_memory(g, shape, strides)
    return expand_to(restore(g, len(shape), dim, keepdim) if g.shape else g, shape)


def whole(dtype):
    """The dtype of a sum or product: int64 for integers and bools."""
    return dtype if dtype.has_gradients else types.int64


def loadable(x, dtype):
    """x as kernels can load it for a result of this dtype: they widen real numbers, but cut nothing off and add no imaginary parts."""
    if x.dtype.is_complex or dtype.is_complex:
        return x if x.dtype is dtype else x.to(dtype)
    return x if dtype.is_floating_point or not x.dtype.is_floating_point else x.to(dtype)


def accumulator(dtype):
    """What values of `dtype` are compared in on the GPU: small integers have no registers of their own."""
    return dtype.compute if dtype.is_floating_point or dtype is types.int64 else types.int32


def row_sums(x):
    """Sums along the last dim: einsum runs over short contiguous rows three times as fast as np.sum, but adds naively along long ones."""
    return np.einsum("...i->...", x) if x.shape[-1] <= 4096 and x.dtype.kind == "f" else x.sum(-1)


@lru_cache(maxsize=64)
def row_of_ones(n, kind):
    return np.ones(n, kind)


def sums_along(x, dim):
    """Sums along one dim, which stays with size 1. Of short rows by a product with ones, in half the time of einsum; `dot` begins
    1.5 µs sooner than `matmul`, but has no BLAS for more than two dims."""
    n = x.shape[dim]
    if dim in (-1, x.ndim - 1) and n <= 4096:
        ones = row_of_ones(n, x.dtype)
        return (x.dot(ones) if x.ndim == 2 else np.matmul(x, ones))[..., None]
    return x.sum(axis=dim, keepdims=True)


def sample_dims(make):
    """The calls that every reduction is tested with."""
    yield make(3, 5),
    yield make(2, 3, 5), 1
    yield make(2, 3, 7), (0, -1)
    yield make(4, 9), 0, True
    yield make(37, 43), -1
    yield make(),
    yield make(3, 0, 2), 2


def bad_dims(f):
    """The sentences of a dim out of range and of a dim named twice."""
    def errors(make):
        yield (make(2, 3), 2), {}, IndexError, "expected a dim in [-2, 1], got 2"
        yield (make(2, 3), (0, -2)), {}, RuntimeError, "expected each dim once"
    f.errors(errors)


def sweeps(f, *front, whole=True):
    """Rows and columns of 512 MiB in rows of 4096, and all of it, timed; `front` are the arguments in front of the dim."""
    def workloads(make):
        for kind in types.float32, types.bfloat16:
            rows = (1 << 17) // kind.itemsize
            for label, dim in (("rows", 1), ("columns", 0), ("all", None))[:3 if whole else 2]:
                yield (f"{rows}x4096 {kind.name} {label}",
                       lambda dim=dim, rows=rows, kind=kind: (make(rows, 4096, dtype=kind), *front, dim), rows * 4096 * kind.itemsize, 0)
    f.workloads(workloads)


# ------------------------------------------------------------------ sums
def summing(name, doc, monoid, on_array):
    """A reduction with `dtype`: the input is cast first, integers give int64."""
    def rule(input, dim=None, keepdim=False, dtype=None):
        kind = whole(input.dtype) if dtype is None else types.as_dtype(dtype)
        return kept(input.shape, dims_of(dim, input.ndim, name), keepdim), kind, input.device

    rule.__name__, rule.__doc__ = name, doc
    f = made_in_dtype(op(rule))

    @f.impl("cpu")
    def cpu(out, x, dim, keepdim, dtype):
        dims = dims_of(dim, x.ndim, name)
        if dtype and x.dtype != out.dtype:
            x = cast(x, out.dtype)
        x = single(x)
        if on_array is np.sum and x.dtype == out.dtype and x.size <= 4096:
            np.add.reduce(x, dims, None, out, keepdim)                   # the same without 3 µs of np.sum's own
        elif on_array is np.sum and dims == (x.ndim - 1,):
            out[...] = row_sums(x).reshape(out.shape)
        elif x.dtype == out.dtype:
            on_array(x, axis=dims, keepdims=keepdim, out=out)
        else:
            out[...] = on_array(x, axis=dims, keepdims=keepdim, **({} if x.dtype.kind in "fV" else {"dtype": np.int64}))

    @f.impl("cuda")
    def cuda(out, x, dim, keepdim, dtype):
        reduce_rows([out], [loadable(x, out.dtype) if dtype else x], dims_of(dim, x.ndim, name), keepdim, monoid, whole(out.dtype.compute))

    f.samples(sample_dims)
    bad_dims(f)
    sweeps(f)
    return f


sum = summing("sum", """Sum over `dim` (an int, a tuple, or None for all).

    out = Σ x over the dims. Integers and bools sum to int64, half types in float32; an empty sum is 0.

    >>> import tritorch as torch; torch.ones(2, 3).sum(dim=1, keepdim=True).shape
    tritorch.Size([2, 1])
    """, Monoid("sum", "sum"), np.sum)


@sum.grad("input")
def sum_grad(g, input_shape, dim, keepdim):
    return spread(g, input_shape, dim, keepdim)


sum.complex = OWN
nansum = summing("nansum", """Sum over `dim` that counts NaN as 0.

    >>> import tritorch as torch; torch.tensor([1.0, float("nan")]).nansum().item()
    1.0
    """, Monoid("nansum", "sum"), np.nansum)


@nansum.grad("input")
def nansum_grad(g, input, dim, keepdim):
    return restore(g, input.ndim, dim, keepdim) * (input == input)


@op
def mean(input, dim=None, keepdim=False, dtype=None):
    """Mean over `dim` (an int, a tuple, or None for all).

    out = Σ x / n over the dims; an empty mean is NaN. Integers need a floating `dtype`.

    >>> import tritorch as torch; torch.tensor([[1.0, 3.0], [2.0, 6.0]]).mean(dim=0)
    tensor([1.5000, 4.5000])
    """
    kind = input.dtype if dtype is None else types.as_dtype(dtype)
    check(kind.has_gradients, "mean", "a floating dtype", kind, use="x.mean(dtype=torch.float32)")
    return kept(input.shape, dims_of(dim, input.ndim, "mean"), keepdim), kind, input.device


@mean.impl("cpu")
def mean_cpu(out, x, dim, keepdim, dtype):
    dims = dims_of(dim, x.ndim, "mean")
    x = single(x if dtype is None else cast(x, out.dtype))
    total = row_sums(x).reshape(out.shape) if dims == (x.ndim - 1,) else np.sum(x, axis=dims, keepdims=keepdim)
    np.divide(total, x.dtype.type(math.prod([x.shape[d] for d in dims])), out=out, casting="unsafe")


@mean.impl("cuda")
def mean_cuda(out, x, dim, keepdim, dtype):
    x = loadable(x, out.dtype)
    reduce_rows([out], [x], dims_of(dim, x.ndim, "mean"), keepdim, Monoid("sum", "sum", "mean"), out.dtype.compute)


@mean.grad("input")
def mean_grad(g, input_shape, dim, keepdim):
    return spread(g / max(size_of(input_shape, dim), 1), input_shape, dim, keepdim)


mean.complex = OWN
mean.samples(sample_dims)
sweeps(mean)


@mean.errors
def mean_errors(make):
    yield (make(3, integer=True, low=0, high=5),), {}, RuntimeError, "expected a floating dtype"
    yield (make(2, 3), 2), {}, IndexError, "expected a dim in [-2, 1], got 2"


def nanmean(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """The mean of the elements that are not NaN.

    >>> import tritorch as torch; torch.tensor([1.0, float("nan"), 3.0]).nanmean().item()
    2.0
    """
    check(input.dtype.is_floating_point, "nanmean", "a floating dtype", input.dtype)
    made = nansum(input, dim, keepdim, dtype=dtype) / sum(~compare.isnan(input), dim, keepdim)
    return copy.deliver(made, out)


# ------------------------------------------------------------------ product
prod = summing("prod", """Product over one dim, or over all.

    out = Π x. Integers and bools give int64; an empty product is 1. The gradient is right where factors are 0.

    >>> import tritorch as torch; torch.tensor([2, 3, 4]).prod().item()
    24
    """, Monoid("prod", "prod"), np.prod)


prod.complex = HOLOMORPHIC


@prod.grad("input")
def prod_grad(g, input, dim, keepdim):
    if not input.shape:
        return g
    input = input if input.dtype.is_complex is g.dtype.is_complex else input.to(g.dtype)
    dims = dims_of(dim, input.ndim, "prod")
    order = [*[d for d in range(input.ndim) if d not in dims], *dims]    # the factors of a product side by side, in one dim
    x = input.permute(order).flatten(-len(dims))
    others = before(x, -1) * before(x.flip(-1), -1).flip(-1)             # no division, so factors of 0 do no harm
    others = others.reshape([input.shape[d] for d in order]).permute([order.index(d) for d in range(input.ndim)])
    return g.reshape(kept(input.shape, dims, True)) * others


def before(x, dim):
    """The product of all elements in front of each."""
    first = x.narrow(dim, 0, min(x.shape[dim], 1))
    return cat([first.new_ones(first.shape), x.narrow(dim, 0, max(x.shape[dim] - 1, 0))], dim).cumprod(dim)


@prod.samples
def prod_samples(make):
    yield make(3, 5),
    yield make(2, 3, 5), 1
    yield make(4, 9), 0, True
    yield make(2, 3, 5), (0, -1)
    yield make(5, 7, integer=True, low=-2, high=3), 1
    yield make(),
    yield make(3, 0, 2), 1


# ------------------------------------------------------------------ truth and counts
def truth(name, doc, combine, identity, on_array):
    """any and all: bool, or uint8 for uint8; NaN is true."""
    def rule(input, dim=None, keepdim=False):
        kind = types.uint8 if input.dtype is types.uint8 else types.bool
        return kept(input.shape, dims_of(dim, input.ndim, name), keepdim), kind, input.device

    rule.__name__, rule.__doc__ = name, doc
    f = op(rule)
    f.exact, f.complex = True, OWN
    monoid = Monoid("truth", combine, states=(types.int32,))

    @f.impl("cpu")
    def cpu(out, x, dim, keepdim):
        out[...] = on_array(x, axis=dims_of(dim, x.ndim, name), keepdims=keepdim)

    @f.impl("cuda")
    def cuda(out, x, dim, keepdim):
        reduce_rows([out], [x], dims_of(dim, x.ndim, name), keepdim, monoid, accumulator(x.dtype), identity)

    f.samples(sample_dims)
    bad_dims(f)
    sweeps(f)
    return f


any = truth("any", """Whether some element over `dim` is not 0.

    >>> import tritorch as torch; torch.tensor([[0, 0], [0, 2]]).any(dim=1)
    tensor([False,  True])
    """, "max", 0, np.any)
all = truth("all", """Whether every element over `dim` is not 0; true for none.

    >>> import tritorch as torch; torch.tensor([[1, 0], [3, 2]]).all(dim=1)
    tensor([False,  True])
    """, "min", 1, np.all)


@op
def count_nonzero(input, dim=None):
    """How many elements over `dim` are not 0, as int64.

    >>> import tritorch as torch; torch.tensor([0.0, 2.0, float("nan")]).count_nonzero().item()
    2
    """
    return kept(input.shape, dims_of(dim, input.ndim, "count_nonzero"), False), types.int64, input.device


@count_nonzero.impl("cpu")
def count_nonzero_cpu(out, x, dim):
    out[...] = np.count_nonzero(x, axis=dims_of(dim, x.ndim, "count_nonzero"))


@count_nonzero.impl("cuda")
def count_nonzero_cuda(out, x, dim):
    monoid = Monoid("nonzero", "sum", states=(types.int64,))
    reduce_rows([out], [x], dims_of(dim, x.ndim, "count_nonzero"), False, monoid, accumulator(x.dtype))


@count_nonzero.samples
def count_nonzero_samples(make):
    yield make(3, 5),
    yield make(37, 43, integer=True, low=-1, high=2), -1
    yield make(2, 3, 7), (0, -1)
    yield make(),
    yield make(3, 0, 2), 2


count_nonzero.complex = OWN
bad_dims(count_nonzero)
sweeps(count_nonzero)
