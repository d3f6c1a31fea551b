"""Trigonometric and hyperbolic functions, their inverses, and angles: one call an operator, as in `pointwise`."""
import functools

import numpy as np

from tritorch.ops import complex_arrays
from tritorch.ops.elementwise import binary, floating, floats, unary
from tritorch.ops.pointwise import APART, UNIT, along, mul, rsqrt
from tritorch.pairs import HOLOMORPHIC, OWN, refuse

holomorphic = functools.partial(unary, result=floating, complex=HOLOMORPHIC)

sin = unary("sin", "The sine, in radians.", np.sin, result=floating, grad=lambda g, input: along(g, cos(input)), complex=OWN)
cos = unary("cos", "The cosine, in radians.", np.cos, result=floating, grad=lambda g, input: along(-g, sin(input)), complex=OWN)
tan = holomorphic("tan", "The tangent, in radians.", np.tan, domain=UNIT, grad=lambda g, out: g * (out * out + 1))
asin = holomorphic("asin", "The arc sine.", np.arcsin, domain=UNIT, grad=lambda g, input: g * rsqrt(1 - input * input))
acos = holomorphic("acos", "The arc cosine.", np.arccos, domain=UNIT, grad=lambda g, input: -g * rsqrt(1 - input * input))
atan = holomorphic("atan", "The arc tangent.", np.arctan, grad=lambda g, input: g / (input * input + 1))
sinh = holomorphic("sinh", "The hyperbolic sine.", np.sinh, grad=lambda g, input: g * cosh(input))
cosh = holomorphic("cosh", "The hyperbolic cosine.", np.cosh, grad=lambda g, input: g * sinh(input))
tanh = holomorphic("tanh", "The hyperbolic tangent.", np.tanh, grad=lambda g, out: tanh_backward(g, out))
asinh = holomorphic("asinh", "The inverse hyperbolic sine.", np.arcsinh, grad=lambda g, input: g * rsqrt(input * input + 1))
acosh = holomorphic("acosh", "The inverse hyperbolic cosine.", np.arccosh, domain={"low": 1.2, "high": 3.0},
                    grad=lambda g, input: g * _acosh_slope(input))
atanh = holomorphic("atanh", "The inverse hyperbolic tangent.", np.arctanh, domain=UNIT,
                    grad=lambda g, input: g / (1 - input * input))
tanh_backward = binary("tanh_backward", "g · (1 - out²).", lambda g, out: g * (1 - out * out), names=("g_out", "out_value"),
                       grad_input=lambda g, out_value: tanh_backward(g, out_value),
                       grad_other=lambda g, g_out, out_value: g * (g_out * out_value * -2), complex=HOLOMORPHIC)
atan2 = binary("atan2", "The angle of the point (other, input), in radians.", np.arctan2, tensors="input other", result=floating,
               domain=APART,
               grad_input=lambda g, input, other: g * _over_square(other, input, other),
               grad_other=lambda g, input, other: g * _over_square(-input, input, other))


def _acosh_slope(x):
    """1 / √(x² - 1), of complex numbers with the branches of the two factors."""
    return rsqrt(x - 1) * rsqrt(x + 1) if x.dtype.is_complex else rsqrt(x * x - 1)


def _over_square(x, input, other):
    """x over the squared length of the points (other, input), 0 at the origin."""
    square = input * input + other * other
    return (x / square).masked_fill(square == 0, 0)


hypot = binary("hypot", "√(input² + other²).", np.hypot, tensors="input other", result=floats, domain=APART,
               grad_input=lambda g, input, out: g * (input / out),
               grad_other=lambda g, other, out: g * (other / out))
sinc = holomorphic("sinc", "sin(π·input) / (π·input), 1 at 0.", np.sinc, domain=APART, complex_cpu=complex_arrays.sinc,
                   grad=lambda g, input, out: g * ((cos(input * np.pi) - out) / input).masked_fill(input == 0, 0))


def deg2rad(input, *, out=None):
    """Degrees as radians."""
    if input.dtype.is_complex:
        refuse("deg2rad", input)
    return mul(input, np.pi / 180) if out is None else mul.into(out, input, np.pi / 180)


def rad2deg(input, *, out=None):
    """Radians as degrees."""
    if input.dtype.is_complex:
        refuse("rad2deg", input)
    return mul(input, 180 / np.pi) if out is None else mul.into(out, input, 180 / np.pi)


arcsin, arccos, arctan, arcsinh, arccosh, arctanh, arctan2 = asin, acos, atan, asinh, acosh, atanh, atan2
