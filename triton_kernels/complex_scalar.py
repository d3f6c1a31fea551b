"""Scalar functions of the elementwise operators on complex numbers, by the names of the real ones in scalar.py. Each takes and returns
pairs (real, imaginary) of blocks of float32 or float64, predicates and moduli a block; attributes are pairs as well. The loops are in
pointwise.py."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from . import scalar
from .complex_arithmetic import addcdiv, addcmul, div, lerp, minus, mul, mul_conjugate, plus, reciprocal, square  # noqa: F401
from .complex_exponentials import (  # noqa: F401
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    pow,
    rsqrt,
    sigmoid,
    sigmoid_backward,
    silu,
    silu_backward,
    sqrt,
)
from .complex_slopes import line_slope, power_slope, quotient_slope, square_slope  # noqa: F401
from .complex_trigonometry import (  # noqa: F401
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    sin,
    sinc,
    sinh,
    tan,
    tanh,
    tanh_backward,
)


# ------------------------------------------------------------------ arithmetic
@triton.jit
def add(x, y, alpha):
    return plus(x, mul(y, alpha))


@triton.jit
def sub(x, y, alpha):
    return minus(x, mul(y, alpha))


@triton.jit
def complex(x, y):
    return x[0], y[0]


@triton.jit
def polar(x, y):
    return x[0] * libdevice.cos(y[0]), x[0] * libdevice.sin(y[0])


@triton.jit
def times_i(x):
    return scalar.neg(x[1]), x[0]


@triton.jit
def conjugate(x):
    return x[0], scalar.neg(x[1])


@triton.jit
def neg(x):
    return scalar.neg(x[0]), scalar.neg(x[1])


@triton.jit
def eq(x, y):
    return (x[0] == y[0]) & (x[1] == y[1])


@triton.jit
def ne(x, y):
    return (x[0] != y[0]) | (x[1] != y[1])


@triton.jit
def isnan(x):
    return (x[0] != x[0]) | (x[1] != x[1])


@triton.jit
def isinf(x):
    return (tl.abs(x[0]) == float("inf")) | (tl.abs(x[1]) == float("inf"))


@triton.jit
def isfinite(x):
    return (x[0] - x[0] == 0) & (x[1] - x[1] == 0)


@triton.jit
def true(x):
    return (x[0] != 0) | (x[1] != 0)


@triton.jit
def logical_not(x):
    return (x[0] == 0) & (x[1] == 0)


@triton.jit
def logical_and(x, y):
    return true(x) & true(y)


@triton.jit
def logical_or(x, y):
    return true(x) | true(y)


@triton.jit
def logical_xor(x, y):
    return true(x) != true(y)


@triton.jit
def where(condition, x, y):
    return tl.where(condition != 0, x[0], y[0]), tl.where(condition != 0, x[1], y[1])


# ------------------------------------------------------------------ modulus and angle
@triton.jit
def abs(x):
    return libdevice.hypot(x[0], x[1])


@triton.jit
def angle(x):
    return libdevice.atan2(x[1], x[0])


@triton.jit
def sign(x):
    size = abs(x)
    size = tl.where(size == 0, 1.0, size)
    return scalar.div(x[0], size), scalar.div(x[1], size)
