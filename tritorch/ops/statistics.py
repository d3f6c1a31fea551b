"""Variance, standard deviation and vector norms."""
import math
import warnings

import numpy as np

from tritorch.autograd.places import stacklevel
from tritorch.dispatch import op
from tritorch.dtype import chosen, promote_types, types
from tritorch.errors import check
from tritorch.ops import copy
from tritorch.ops.arrays import single
from tritorch.ops.complex import view_as_real
from tritorch.ops.destinations import call
from tritorch.ops.loss_terms import mse_slope
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.reduce import dims_of, mean, mean_cpu, restore, size_of, sweeps
from tritorch.ops.rows import kept
from tritorch.pairs import OWN


# ------------------------------------------------------------------ variance
def spread_array(out, x, dim, correction, keepdim, root):
    x, dims = single(x), dims_of(dim, x.ndim, "var")
    n = math.prod([x.shape[d] for d in dims])
    x = x - np.sum(x, axis=dims, keepdims=True) / x.dtype.type(n)
    square = np.sum(np.square(x), axis=dims, keepdims=keepdim) / x.dtype.type(max(n - correction, 0))
    out[...] = np.sqrt(square) if root else square


def spread(name, doc, finish, root):
    """variance and deviation: moments of what a thread has, merged, on the GPU, two passes in numpy."""
    def rule(input, dim=None, correction=1, keepdim=False):
        check(input.dtype.is_floating_point, name, "a floating dtype", input.dtype, use="x.float()")
        return kept(input.shape, dims_of(dim, input.ndim, name), keepdim), input.dtype, input.device

    rule.__name__, rule.__doc__ = name, doc
    f = op(rule)

    @f.impl("cpu")
    def cpu(out, x, dim, correction, keepdim):
        spread_array(out, x, dim, correction, keepdim, root)

    @f.impl("cuda")
    def cuda(out, x, dim, correction, keepdim):
        monoid = Monoid("moments", "moments", finish, (None,) * 4)
        reduce_rows([out], [x], dims_of(dim, x.ndim, name), keepdim, monoid, x.dtype.compute, param=correction)

    @f.samples
    def samples(make):
        yield make(3, 5),
        yield make(2, 3, 5), 1, 0
        yield make(2, 3, 7), (0, -1), 1, True
        yield make(4, 9), 0, 2, True
        yield make(37, 43), -1, 0.5
        yield make(3, 0, 2), 2, 0

    f.errors(lambda make: [((make(3, integer=True, low=0, high=5),), {}, RuntimeError, "expected a floating dtype")])
    sweeps(f)
    return f


variance = spread("variance", """Variance over `dim`: Σ (x - mean)² / (n - correction).

    >>> import tritorch as torch; torch.tensor([1.0, 3.0]).var().item()
    2.0
    """, "var", False)
deviation = spread("deviation", """Standard deviation over `dim`: √(Σ (x - mean)² / (n - correction)).

    The gradient at 0 is 0.

    >>> import tritorch as torch; torch.tensor([1.0, 5.0]).std(correction=0).item()
    2.0
    """, "std", True)


def together(name, doc, spread, root):
    """Variance or deviation, and the mean, of one pass."""
    def rule(input, dim=None, correction=1, keepdim=False):
        check(input.dtype.is_floating_point, name, "a floating dtype", input.dtype, use="x.float()")
        promise = kept(input.shape, dims_of(dim, input.ndim, name), keepdim), input.dtype, input.device
        return [promise, promise]

    rule.__name__, rule.__doc__ = name, doc
    f = op(rule, returns=("spread", "mean"))

    @f.impl("cpu")
    def cpu(out, middle, x, dim, correction, keepdim):
        spread_array(out, x, dim, correction, keepdim, root)
        mean_cpu(middle, x, dim, keepdim, None)

    @f.impl("cuda")
    def cuda(out, middle, x, dim, correction, keepdim):
        monoid = Monoid("moments", "moments", name, (None,) * 4)
        reduce_rows([out, middle], [x], dims_of(dim, x.ndim, name), keepdim, monoid, x.dtype.compute, param=correction)

    @f.formula
    def formula(input, dim, correction, keepdim):
        return spread(input, dim, correction, keepdim), mean(input, dim, keepdim)

    f.samples(spread.samples_body)
    f.errors(spread.errors_body)
    sweeps(f)
    return f


variance_mean = together("var_mean", """Variance and mean over `dim` in one pass; see `var_mean`.

    >>> import tritorch as torch; from tritorch.ops.statistics import variance_mean
    >>> [v.item() for v in variance_mean(torch.tensor([1.0, 3.0]))]
    [2.0, 2.0]
    """, variance, False)
deviation_mean = together("std_mean", """Standard deviation and mean over `dim` in one pass; see `std_mean`.

    >>> import tritorch as torch; from tritorch.ops.statistics import deviation_mean
    >>> [v.item() for v in deviation_mean(torch.tensor([1.0, 5.0]), None, 0)]
    [2.0, 3.0]
    """, deviation, True)


def centered(g, input, dim, correction, keepdim):
    """g · 2 (x - mean) / (n - correction): what the gradients of both share."""
    free = max(size_of(input.shape, dim) - correction, 0)
    return mse_slope(restore(g, input.ndim, dim, keepdim) * (1 / free if free else math.inf), input, mean(input, dim, keepdim=True))


@variance.grad("input")
def variance_grad(g, input, dim, correction, keepdim):
    return centered(g, input, dim, correction, keepdim)


@deviation.grad("input")
def deviation_grad(g, input, out, dim, correction, keepdim):
    return centered((g / out).masked_fill(out == 0, 0) / 2, input, dim, correction, keepdim)


def arguments(name, input, dim, unbiased, correction):
    """PyTorch's older and newer ways to say what is divided by, as (dim, correction). Warns where that leaves nothing to divide by."""
    if isinstance(dim, bool):                                            # x.var(False)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    if (n := math.prod([input.shape[d] for d in dims_of(dim, len(input.shape), name)])) <= correction:
        warnings.warn(f"{name}: expected more elements than the correction of {correction}, got {n}: there are no degrees of freedom",
                      stacklevel=stacklevel())
    return dim, correction


def _of_parts(spread, input, dim, correction, keepdim):
    """A spread of the real and one of the imaginary parts, along a last dim."""
    dims = dims_of(dim, input.ndim, spread.__name__)
    if not dims:                                                         # of a number: no dims would be all
        return spread(view_as_real(input).unsqueeze(0), 0, correction)
    return spread(view_as_real(input), dims, correction, keepdim)


def var(input, dim=None, unbiased=None, keepdim=False, *, correction=None, axis=None, keepdims=False, out=None):
    """Variance over `dim`: Σ |x - mean|² / (n - correction); `unbiased=False` is correction 0. Of complex numbers it is real.

    >>> import tritorch as torch; torch.var(torch.tensor([1.0, 3.0]), correction=0).item()
    1.0
    """
    values = input, *arguments("var", input, dim if axis is None else axis, unbiased, correction), keepdim or keepdims
    if input.dtype.is_complex:
        return copy.deliver(_of_parts(variance, *values).sum(-1), out)
    return variance(*values) if out is None else variance.into(out, *values)


def std(input, dim=None, unbiased=None, keepdim=False, *, correction=None, axis=None, keepdims=False, out=None):
    """Standard deviation over `dim`; see `var`.

    >>> import tritorch as torch; torch.std(torch.tensor([1.0, 5.0]), correction=0).item()
    2.0
    """
    values = input, *arguments("std", input, dim if axis is None else axis, unbiased, correction), keepdim or keepdims
    if input.dtype.is_complex:
        return copy.deliver(vector_norm(_of_parts(deviation, *values), 2, -1), out)
    return deviation(*values) if out is None else deviation.into(out, *values)


def var_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """(variance, mean) over `dim`; see `var`.

    >>> import tritorch as torch; [v.item() for v in torch.var_mean(torch.tensor([1.0, 3.0]))]
    [2.0, 2.0]
    """
    dim, correction = arguments("var_mean", input, dim, unbiased, correction)
    if input.dtype.is_complex:
        return var(input, dim, correction=correction, keepdim=keepdim), mean(input, dim, keepdim)
    return tuple(variance_mean(input, dim, correction, keepdim))


def std_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """(standard deviation, mean) over `dim`; see `var`.

    >>> import tritorch as torch; [v.item() for v in torch.std_mean(torch.tensor([1.0, 5.0]), correction=0)]
    [2.0, 3.0]
    """
    dim, correction = arguments("std_mean", input, dim, unbiased, correction)
    if input.dtype.is_complex:
        return std(input, dim, correction=correction, keepdim=keepdim), mean(input, dim, keepdim)
    return tuple(deviation_mean(input, dim, correction, keepdim))


# ------------------------------------------------------------------ vector norms
def norm_monoid(p):
    """The reduction of each order, and its identity."""
    if p in (math.inf, -math.inf):
        return Monoid("bounded_absolute", "max" if p > 0 else "min"), 0 if p > 0 else math.inf
    simple = {0: ("zeroth", "first"), 1: ("absolute", "first"), 2: ("square", "root"), 3: ("cube", "power"), 4: ("fourth", "power")}
    lift, finish = simple.get(p, ("power", "power"))
    return Monoid(lift, "sum", finish), 0


@op
def vector_norm(x, ord=2, dim=None, keepdim=False, dtype=None):
    """The p-norm of the elements over `dim`.

    (Σ |x|^p)^(1/p); inf: the largest |x|; -inf: the smallest; 0: how many are not 0. The gradient at 0 is 0. Of complex numbers it is real,
    `dtype` is complex.

    >>> import tritorch as torch; from tritorch.ops.statistics import vector_norm; vector_norm(torch.tensor([3.0, 4.0])).item()
    5.0
    """
    check(x.dtype.has_gradients, "vector_norm", "a floating dtype", x.dtype, use="x.float()")
    alike = dtype is None or types.as_dtype(dtype).is_complex is x.dtype.is_complex
    check(alike, "vector_norm", "a dtype that is complex where x is", dtype)
    wide = dtype is None or promote_types(x.dtype, dtype) is types.as_dtype(dtype)
    check(wide, "vector_norm", f"a dtype that {x.dtype} can be cast to without loss", dtype)
    dims = dims_of(dim, x.ndim, "vector_norm")
    check(math.prod([x.shape[d] for d in dims]) > 0 or 0 <= ord < math.inf, "vector_norm", f"an element for order {ord}", tuple(x.shape))
    return kept(x.shape, dims, keepdim), chosen(dtype, x.dtype).to_real(), x.device


@vector_norm.impl("cpu")
def vector_norm_cpu(out, x, ord, dim, keepdim, dtype):
    dims = dims_of(dim, x.ndim, "vector_norm")
    x = single(x if dtype is None else x.astype(types.as_dtype(dtype).numpy, copy=False))
    x = np.abs(x) if x.dtype.kind == "c" else x
    over = {"axis": dims, "keepdims": keepdim}
    if ord == 2:
        out[...] = np.sqrt(np.sum(np.square(x), **over))
    elif ord == 0:
        out[...] = np.count_nonzero(x, **over)
    elif abs(ord) == math.inf:
        out[...] = (np.max if ord > 0 else np.min)(np.abs(x), **over)
    else:
        out[...] = np.sum(np.abs(x) ** ord, **over) ** (1 / ord)


@vector_norm.impl("cuda")
def vector_norm_cuda(out, x, ord, dim, keepdim, dtype):
    monoid, identity = norm_monoid(ord)
    x = x if dtype is None or not x.dtype.is_complex else x.to(dtype)
    reduce_rows([out], [x], dims_of(dim, x.ndim, "vector_norm"), keepdim, monoid, out.dtype.compute, identity, ord)


@vector_norm.grad("x")
def vector_norm_grad(g, x, out, ord, dim, keepdim):
    g, norm = restore(g, x.ndim, dim, keepdim), restore(out, x.ndim, dim, keepdim)
    if ord == 0:
        return x.new_zeros(x.shape)
    if ord == 1:
        return x.sgn() * g
    if ord == 2:
        return x * (g / norm.masked_fill(norm == 0, math.inf))           # 0 at 0, and so is what moves with it
    if abs(ord) == math.inf:
        ties = (x.abs() == norm) | x.isnan()
        return x.sgn() * (g / ties.sum(dim, keepdim=True) * ties)
    scale = g * norm ** (1 - ord) if ord < 1 else g / norm.masked_fill(norm == 0, 1) ** (ord - 1)
    return (x.sgn() * x.abs() ** (ord - 1)).masked_fill(x == 0, 0) * scale


vector_norm.complex = OWN


@vector_norm.samples
def vector_norm_samples(make):
    yield make(3, 5),
    yield make(2, 3, 5), 1, 1
    yield make(2, 3, 7), math.inf, (0, -1)
    yield make(4, 9), -math.inf, 0, True
    yield make(37, 43), 3, -1
    yield make(7, 5), 4, 0
    yield make(5, 4, positive=True), 0.5, 1
    yield make(5, 4), 0, 1
    yield make(3, 0, 2), 2, 2


@vector_norm.errors
def vector_norm_errors(make):
    yield (make(3, integer=True, low=0, high=5),), {}, RuntimeError, "expected a floating dtype"
    yield (make(0, 3), math.inf, 0), {}, RuntimeError, "expected an element for order inf"


sweeps(vector_norm, 2)


def norm(input, p="fro", dim=None, keepdim=False, dtype=None, *, out=None):
    """Vector norm of order p over `dim`; "fro" is 2, "nuc" the sum of a matrix's singular values.

    >>> import tritorch as torch; torch.tensor([[3.0], [4.0]]).norm().item()
    5.0
    """
    if p == "nuc":
        from tritorch.ops.singular import nuclear_norm  # which rests on what is above this module

        return nuclear_norm(input if dtype is None else input.to(dtype), dim, keepdim, out=out)
    check(p == "fro" or not isinstance(p, str), "norm", "a number, 'fro' or 'nuc'", p, use="linalg.matrix_norm")
    return call(vector_norm, (input, 2 if p in ("fro", None) else p, dim, keepdim, dtype), out)
