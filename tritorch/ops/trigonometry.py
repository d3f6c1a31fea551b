"""Trigonometric and hyperbolic functions, their inverses, and angles: one call an operator, as in `pointwise`."""
import numpy as np

from tritorch.ops.elementwise import binary, floating, floats, unary
from tritorch.ops.pointwise import APART, UNIT, mul, rsqrt

sin = unary("sin", "The sine, in radians.", np.sin, result=floating, grad=lambda g, input: g * cos(input))
cos = unary("cos", "The cosine, in radians.", np.cos, result=floating, grad=lambda g, input: -g * sin(input))
tan = unary("tan", "The tangent, in radians.", np.tan, result=floating, domain=UNIT, grad=lambda g, out: g * (out * out + 1))
asin = unary("asin", "The arc sine.", np.arcsin, result=floating, domain=UNIT, grad=lambda g, input: g * rsqrt(1 - input * input))
acos = unary("acos", "The arc cosine.", np.arccos, result=floating, domain=UNIT, grad=lambda g, input: -g * rsqrt(1 - input * input))
atan = unary("atan", "The arc tangent.", np.arctan, result=floating, grad=lambda g, input: g / (input * input + 1))
sinh = unary("sinh", "The hyperbolic sine.", np.sinh, result=floating, grad=lambda g, input: g * cosh(input))
cosh = unary("cosh", "The hyperbolic cosine.", np.cosh, result=floating, grad=lambda g, input: g * sinh(input))
tanh = unary("tanh", "The hyperbolic tangent.", np.tanh, result=floating, grad=lambda g, out: tanh_backward(g, out))
asinh = unary("asinh", "The inverse hyperbolic sine.", np.arcsinh, result=floating, grad=lambda g, input: g * rsqrt(input * input + 1))
acosh = unary("acosh", "The inverse hyperbolic cosine.", np.arccosh, result=floating, domain={"low": 1.2, "high": 3.0},
              grad=lambda g, input: g * rsqrt(input * input - 1))
atanh = unary("atanh", "The inverse hyperbolic tangent.", np.arctanh, result=floating, domain=UNIT,
              grad=lambda g, input: g / (1 - input * input))
tanh_backward = binary("tanh_backward", "g · (1 - out²).", lambda g, out: g * (1 - out * out), names=("g_out", "out_value"),
                       grad_input=lambda g, out_value: tanh_backward(g, out_value),
                       grad_other=lambda g, g_out, out_value: g * (g_out * out_value * -2))
atan2 = binary("atan2", "The angle of the point (other, input), in radians.", np.arctan2, tensors="input other", result=floating,
               domain=APART,
               grad_input=lambda g, input, other: g * _over_square(other, input, other),
               grad_other=lambda g, input, other: g * _over_square(-input, input, other))


def _over_square(x, input, other):
    """x over the squared length of the points (other, input), 0 at the origin."""
    square = input * input + other * other
    return (x / square).masked_fill(square == 0, 0)


hypot = binary("hypot", "√(input² + other²).", np.hypot, tensors="input other", result=floats, domain=APART,
               grad_input=lambda g, input, out: g * (input / out),
               grad_other=lambda g, other, out: g * (other / out))
sinc = unary("sinc", "sin(π·input) / (π·input), 1 at 0.", np.sinc, result=floating, domain=APART,
             grad=lambda g, input, out: g * ((cos(input * np.pi) - out) / input).masked_fill(input == 0, 0))


def deg2rad(input, *, out=None):
    """Degrees as radians."""
    return mul(input, np.pi / 180) if out is None else mul.into(out, input, np.pi / 180)


def rad2deg(input, *, out=None):
    """Radians as degrees."""
    return mul(input, 180 / np.pi) if out is None else mul.into(out, input, 180 / np.pi)


arcsin, arccos, arctan, arcsinh, arccosh, arctanh, arctan2 = asin, acos, atan, asinh, acosh, atanh, atan2
