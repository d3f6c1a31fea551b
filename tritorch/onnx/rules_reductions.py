"""Operators along dims: sums, extremes, orders, running sums, softmax, norms."""
import math

from tritorch.dtype import types
from tritorch.onnx.rules import rule
from tritorch.onnx.rules_shapes import plain, wrapped
from tritorch.tracing.sizes import Baked


def dims_of(dim, ndim, all_of_none=True):
    """The dims to reduce over as a list; () and None are all."""
    if dim is None or dim == ():
        return list(range(ndim))
    return [wrapped(d, ndim) for d in (dim if isinstance(dim, tuple) else (dim,))] if ndim else []


@rule("sum", "mean", "prod", "nansum")
def sum_(g, input, dim=None, keepdim=False, dtype=None):
    kind = {"sum": "ReduceSum", "nansum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}[g.current.name]
    x = g.like(input)
    if g.current.name == "nansum" and g.out.dtype.is_floating_point:
        x = g.op("Where", g.op("IsNaN", x), g.like(0.0), x)
    return g.reduced(kind, x, dims_of(dim, input.ndim), keepdim)


@rule("any", "all")
def any_(g, input, dim=None, keepdim=False):
    x = g.cast(g.cast(input, types.bool), types.int32)
    found = g.reduced({"any": "ReduceMax", "all": "ReduceMin"}[g.current.name], x, dims_of(dim, input.ndim), keepdim)
    return g.cast(found, types.bool)


@rule("count_nonzero")
def count_nonzero(g, input, dim=None):
    return g.reduced("ReduceSum", g.cast(g.cast(input, types.bool), types.int64), dims_of(dim, input.ndim), False)


@rule("amax", "amin")
def amax(g, input, dim=(), keepdim=False):
    x, flag = (g.cast(input, types.int32), True) if input.dtype is types.bool else (g.x(input), False)
    found = g.reduced({"amax": "ReduceMax", "amin": "ReduceMin"}[g.current.name], x, dims_of(dim, input.ndim), keepdim)
    return g.cast(found, types.bool) if flag else found


@rule("amin_amax")
def amin_amax(g, input, dim=(), keepdim=False):
    dims = dims_of(dim, input.ndim)
    return g.reduced("ReduceMin", input, dims, keepdim), g.reduced("ReduceMax", input, dims, keepdim)


@rule("argmax", "argmin")
def argmax(g, input, dim=None, keepdim=False):
    kind = {"argmax": "ArgMax", "argmin": "ArgMin"}[g.current.name]
    x = g.cast(input, types.int32) if input.dtype is types.bool else g.x(input)
    if dim is not None and input.ndim:
        return g.op(kind, x, axis=wrapped(dim, input.ndim), keepdims=int(keepdim))
    found = g.op(kind, g.op("Reshape", x, g.constant([-1])), axis=0, keepdims=0)
    return g.op("Reshape", found, g.constant([1] * input.ndim)) if keepdim and input.ndim else found


@rule("max_along", "min_along")
def max_along(g, input, dim, keepdim=False):
    if not input.ndim:
        return g.op("Identity", input), g.constant(0)
    d, kind = wrapped(dim, input.ndim), {"max_along": "Max", "min_along": "Min"}[g.current.name]
    x = g.cast(input, types.int32) if input.dtype is types.bool else g.x(input)
    values = g.reduced(f"Reduce{kind}", x, [d], keepdim)
    return g.cast(values, input.dtype) if input.dtype is types.bool else values, g.op(f"Arg{kind}", x, axis=d, keepdims=int(keepdim))


@rule("sorted_first")
def sorted_first(g, input, k, dim, descending, alike=False):
    if not input.ndim:
        return g.op("Identity", input), g.constant(0)
    kind = types.int32 if input.dtype in (types.bool, types.uint8, types.int8, types.int16) else input.dtype
    values, places = g.op("TopK", g.cast(input, kind), g.size(k), axis=wrapped(dim, input.ndim), largest=int(descending), sorted=1,
                          outputs=2)
    return (values if kind is input.dtype else g.cast(values, input.dtype)), places


@rule("order_statistic")
def order_statistic(g, input, k, dim):
    d = wrapped(dim, input.ndim)
    values, places = g.op("TopK", input, g.size(k), axis=d, largest=0, sorted=1, outputs=2)
    return tuple([g.op("Gather", x, g.constant(-1), axis=d) for x in (values, places)])


@rule("cumsum")
def cumsum(g, input, dim, dtype=None):
    return g.op("CumSum", g.like(input), g.constant(wrapped(dim, input.ndim))) if input.ndim else g.like(input)


@rule("reverse_cumsum")
def reverse_cumsum(g, input, dim, dtype=None):
    return g.op("CumSum", g.like(input), g.constant(wrapped(dim, input.ndim)), reverse=1)


@rule("logsumexp")
def logsumexp(g, input, dim, keepdim=False):
    return g.reduced("ReduceLogSumExp", g.like(input), dims_of(dim, input.ndim), keepdim)


# ------------------------------------------------------------------ softmax
@rule("softmax", "log_softmax")
def softmax(g, input, dim, dtype=None):
    kind, x = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[g.current.name], g.like(input)
    if not input.ndim:
        return g.squeezed(g.op(kind, g.unsqueezed(x, 0), axis=0), 0)
    return g.op(kind, x, axis=wrapped(dim, input.ndim))


@rule("glu")
def glu(g, input, dim=-1):
    half, d = g.out.shape[wrapped(dim, input.ndim)], wrapped(dim, input.ndim)
    a, b = g.sliced(input, d, 0, half), g.sliced(input, d, half, 2**63 - 1)
    return g.op("Mul", a, g.op("Sigmoid", b))


# ------------------------------------------------------------------ spread and norms
@rule("variance", "deviation")
def variance(g, input, dim=None, correction=1, keepdim=False):
    spread = spread_of(g, input, dim, correction, keepdim)
    return g.op("Sqrt", spread) if g.current.name == "deviation" else spread


def spread_of(g, input, dim, correction, keepdim):
    """Σ (x - mean)² / (n - correction)."""
    dims, x = dims_of(dim, input.ndim), g.x(input)
    apart = g.op("Sub", x, g.reduced("ReduceMean", x, dims, True))
    squares = g.op("Mul", apart, apart)
    if correction == 0:
        return g.reduced("ReduceMean", squares, dims, keepdim)
    if all(plain(input.shape[d]) for d in dims):
        count = g.like(float(max(math.prod([input.shape[d] for d in dims]) - correction, 0)))
    else:
        sizes = g.op("Gather", g.op("Shape", input), g.constant(dims))
        count = g.cast(g.op("ReduceProd", sizes, keepdims=0), input.dtype)
        count = g.op("Sub", count, g.cast(float(correction), input.dtype))
    return g.op("Div", g.reduced("ReduceSum", squares, dims, keepdim), count)


@rule("var_mean", "std_mean")
def var_mean(g, input, dim=None, correction=1, keepdim=False):
    spread = spread_of(g, input, dim, correction, keepdim)
    spread = g.op("Sqrt", spread) if g.current.name == "std_mean" else spread
    return spread, g.reduced("ReduceMean", input, dims_of(dim, input.ndim), keepdim)


@rule("vector_norm")
def vector_norm(g, x, ord=2, dim=None, keepdim=False, dtype=None):
    value, dims = g.like(x), dims_of(dim, x.ndim)
    if ord in (1, 2):
        return g.reduced({1: "ReduceL1", 2: "ReduceL2"}[ord], value, dims, keepdim) if dims else g.op("Abs", value)
    size = g.op("Abs", value)
    if abs(ord) == math.inf:
        return g.reduced("ReduceMax" if ord > 0 else "ReduceMin", size, dims, keepdim)
    if ord == 0:
        return g.like(g.reduced("ReduceSum", g.cast(g.op("Not", g.op("Equal", size, g.like(0.0))), types.int64), dims, keepdim))
    total = g.reduced("ReduceSum", g.op("Pow", size, g.like(float(ord))), dims, keepdim)
    return g.op("Pow", total, g.like(1 / ord))


@rule("search_sorted_rows")
def search_sorted_rows(g, sorted_sequence, values, right, kind):
    """How many elements of a sorted vector are smaller (or not greater)."""
    if sorted_sequence.ndim != 1:
        raise Baked("rows of their own for rows of values")
    row, found = g.operands(sorted_sequence, values)
    below = g.op("LessOrEqual" if right else "Less", row, g.unsqueezed(found, values.ndim))
    return g.like(g.reduced("ReduceSum", g.cast(below, types.int64), [values.ndim], False))
