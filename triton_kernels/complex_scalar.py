"""Scalar functions of the elementwise operators on complex numbers, by the names of the real ones in scalar.py. Each takes and returns
pairs (real, imaginary) of blocks of float32 or float64, predicates and moduli a block; attributes are pairs as well. The loops are in
pointwise.py."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from triton_kernels import scalar


# ------------------------------------------------------------------ arithmetic
@triton.jit
def plus(x, y):
    return x[0] + y[0], x[1] + y[1]


@triton.jit
def minus(x, y):
    return x[0] - y[0], x[1] - y[1]


@triton.jit
def mul(x, y):
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


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
    return x[0] * tl.cos(y[0]), x[0] * tl.sin(y[0])


@triton.jit
def times_i(x):
    return -x[1], x[0]


@triton.jit
def conjugate(x):
    return x[0], -x[1]


@triton.jit
def neg(x):
    return -x[0], -x[1]


@triton.jit
def div(x, y):
    """By Smith's way (1962): divided through by the larger part of y, so that squares neither overflow nor vanish."""
    flat = tl.abs(y[0]) >= tl.abs(y[1])
    large, small = tl.where(flat, y[0], y[1]), tl.where(flat, y[1], y[0])
    ratio = tl.where(large == 0, small, scalar.div(small, large))        # large is 0 where both are: x / 0, no NaN from 0 / 0
    scale = large + small * ratio
    first, second = tl.where(flat, x[0], x[1]), tl.where(flat, x[1], x[0])
    re, im = first + second * ratio, second - first * ratio              # (a + bi) / (c + di), and i (b - ai) / i (d - ci)
    return scalar.div(re, scale), scalar.div(tl.where(flat, im, -im), scale)


@triton.jit
def eq(x, y):
    return (x[0] == y[0]) & (x[1] == y[1])


@triton.jit
def ne(x, y):
    return (x[0] != y[0]) | (x[1] != y[1])


@triton.jit
def where(condition, x, y):
    return tl.where(condition != 0, x[0], y[0]), tl.where(condition != 0, x[1], y[1])


# ------------------------------------------------------------------ modulus
@triton.jit
def abs(x):
    return libdevice.hypot(x[0], x[1])


@triton.jit
def sign(x):
    size = abs(x)
    size = tl.where(size == 0, 1.0, size)
    return scalar.div(x[0], size), scalar.div(x[1], size)
