"""Scalar functions of gradients of complex numbers, by the names of the real ones in slopes.py."""
import triton
import triton.language as tl

from .complex_arithmetic import div, mul, plus, square
from .complex_exponentials import pow


@triton.jit
def line_slope(g, x, a, b):
    return mul(g, plus(mul(x, a), b))


@triton.jit
def square_slope(g, x, a, b):
    return mul(g, plus(mul(square(x), a), b))


@triton.jit
def quotient_slope(g, x, factor, more):
    return div(mul(g, factor), plus(x, more))


@triton.jit
def power_slope(g, x, exponent):
    less = tl.full(x[0].shape, exponent[0] - 1, x[0].dtype), tl.full(x[0].shape, exponent[1], x[0].dtype)
    return mul(g, mul(pow(x, less), exponent))
