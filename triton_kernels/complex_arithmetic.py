"""Arithmetic of complex numbers, pairs (real, imaginary) of blocks of float32 or float64."""
import triton
import triton.language as tl

from . import scalar


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
def mul_conjugate(x, y):
    return x[0] * y[0] + x[1] * y[1], x[1] * y[0] - x[0] * y[1]


@triton.jit
def div(x, y):
    """By Smith's way (1962): divided through by the larger part of y, so that squares neither overflow nor vanish."""
    flat = tl.abs(y[0]) >= tl.abs(y[1])
    large, small = tl.where(flat, y[0], y[1]), tl.where(flat, y[1], y[0])
    zero, ratio = (y[0] == 0) & (y[1] == 0), scalar.div(small, large)
    scale = tl.where(zero, tl.abs(large), large + small * ratio)         # x / 0 is x / |0|, without a NaN from 0 / 0
    first, second = tl.where(flat, x[0], x[1]), tl.where(flat, x[1], x[0])
    re, im = first + second * ratio, second - first * ratio              # (a + bi) / (c + di), and i (b - ai) / i (d - ci)
    re, im = tl.where(zero, x[0], re), tl.where(zero, x[1], tl.where(flat, im, scalar.neg(im)))
    return scalar.div(re, scale), scalar.div(im, scale)


@triton.jit
def real(x):
    """A block of real numbers as complex ones."""
    return x, tl.zeros_like(x)


@triton.jit
def square(x):
    return (x[0] - x[1]) * (x[0] + x[1]), x[0] * x[1] + x[0] * x[1]


@triton.jit
def reciprocal(x):
    return div(real(tl.full(x[0].shape, 1.0, x[0].dtype)), x)


@triton.jit
def lerp(x, end, weight):
    """From the nearer end, as the real one."""
    way = minus(end, x)
    low, high = plus(x, mul(weight, way)), minus(end, mul(way, (1.0 - weight[0], scalar.neg(weight[1]))))
    near = weight[0] * weight[0] + weight[1] * weight[1] < 0.25
    return tl.where(near, low[0], high[0]), tl.where(near, low[1], high[1])


@triton.jit
def addcmul(x, y, z, value):
    return plus(x, mul(mul(y, z), value))


@triton.jit
def addcdiv(x, y, z, value):
    return plus(x, mul(div(y, z), value))
