"""Scalar functions of gradients that are one function of few numbers, and of losses; the loops are in pointwise.py."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .activation import log_sigmoid, softplus
from .scalar import div, sigmoid


# ------------------------------------------------------------------ of what is cut off
@triton.jit
def keep_within(g, x, low, high):
    return tl.where((x >= low) & (x <= high), g, 0)


@triton.jit
def drop_beyond(g, x, low, high):
    return tl.where((x <= low) | (x >= high), 0, g)


@triton.jit
def drop_within(g, x, low, high):
    return tl.where((x >= low) & (x <= high), 0, g)


@triton.jit
def keep_finite(g, x):
    return tl.where(x - x == 0, g, 0)


@triton.jit
def prelu(x, weight):
    return tl.where(x > 0, x, x * weight)


@triton.jit
def prelu_backward(g, x, weight):
    return tl.where(x > 0, g, g * weight)


@triton.jit
def below_zero_slope(g, x):
    return tl.where(x > 0, 0.0, g * x).to(g.dtype)


@triton.jit
def leaky_relu_backward(g, x, slope):
    return tl.where(x > 0, g, g * slope).to(g.dtype)


@triton.jit
def extreme_slope(g, x, y, sign):
    """All of g where sign · (x - y) > 0 or one of them is NaN, half of it where they are equal."""
    return tl.where(x == y, g * 0.5, tl.where(tl.where(sign > 0, x < y, x > y), 0.0, g)).to(g.dtype)


# ------------------------------------------------------------------ of smooth functions
@triton.jit
def softplus_backward(g, x, beta, threshold):
    return tl.where(x * beta > threshold, g, g * sigmoid((x * beta).to(x.dtype)))


@triton.jit
def log_sigmoid_backward(g, x):
    return g * sigmoid(-x)


@triton.jit
def mish_backward(g, x):
    t, s = libdevice.tanh(softplus(x)), sigmoid(x)
    return g * (t + x * s * (1.0 - t * t))


@triton.jit
def elu_backward(g, x, below, rate):
    return tl.where(x <= 0, g * (libdevice.exp((x * rate).to(x.dtype)) * below), g).to(g.dtype)


@triton.jit
def hardswish_backward(g, x):
    return tl.where(x <= -3, 0.0, tl.where(x < 3, g * (x * 0.3333333333333333 + 0.5), g)).to(g.dtype)


@triton.jit
def hardsigmoid_backward(g, x):
    return tl.where(tl.abs(x) < 3, g * 0.16666666666666666, 0.0).to(g.dtype)


@triton.jit
def line_slope(g, x, a, b):
    return (g * (x * a + b)).to(g.dtype)


@triton.jit
def square_slope(g, x, a, b):
    return (g * (x * x * a + b)).to(g.dtype)


@triton.jit
def quotient_slope(g, x, factor, more):
    return div((g * factor).to(g.dtype), (x + more).to(g.dtype))


@triton.jit
def divisor_slope(g, x, y):
    return -g * div(div(x, y), y)


@triton.jit
def bell_slope(g, x, factor):
    return (g * (libdevice.exp(-(x * x)) * factor)).to(g.dtype)


@triton.jit
def sign_slope(g, x):
    return tl.where(x > 0, g, tl.where(x < 0, -g, g * 0))


@triton.jit
def power_slope(g, x, exponent):
    return (g * (libdevice.pow(x, tl.full(x.shape, exponent - 1, x.dtype)) * exponent)).to(g.dtype)


@triton.jit
def gated(x, gate):
    return x * sigmoid(gate)


@triton.jit
def gated_backward(g, x, gate):
    s = sigmoid(gate)
    return g * x * (s * (1.0 - s))


# ------------------------------------------------------------------ distances: the losses and their gradients in x
@triton.jit
def mse_terms(x, y):
    return (x - y) * (x - y)


@triton.jit
def mse_slope(g, x, y):
    return g * ((x - y) * 2.0)


@triton.jit
def l1_terms(x, y):
    return tl.abs(x - y)


@triton.jit
def l1_slope(g, x, y):
    return g * tl.where(x > y, 1.0, tl.where(x < y, -1.0, 0.0)).to(g.dtype)


@triton.jit
def bent(x, bend):
    """½ x² up to the bend, a line from there on."""
    x = tl.abs(x)
    near = tl.where(x > bend, bend, x).to(x.dtype)
    return near * (x - near * 0.5)


@triton.jit
def straight(x, bend):
    """x between the bends."""
    return tl.where(x > bend, bend, tl.where(x < -bend, -bend, x)).to(x.dtype)


@triton.jit
def smooth_l1_terms(x, y, beta):
    return (bent(x - y, beta) / beta).to(x.dtype)


@triton.jit
def smooth_l1_slope(g, x, y, beta):
    return g * straight(((x - y) / beta).to(x.dtype), 1.0)


@triton.jit
def huber_terms(x, y, delta):
    return bent(x - y, delta)


@triton.jit
def huber_slope(g, x, y, delta):
    return g * straight(x - y, delta)


# ------------------------------------------------------------------ binary cross entropy of logits, p: the weight of the positive ones
@triton.jit
def logit_terms(x, y, p):
    return (1.0 - y) * x - tl.where(p == 1, 1.0, (p - 1.0) * y + 1.0).to(x.dtype) * log_sigmoid(x)


@triton.jit
def logit_slope(g, x, y):
    return g * (sigmoid(x) - y)


@triton.jit
def weighted_logit_slope(x, y, p):
    return (1.0 - y) - ((p - 1.0) * y + 1.0) * sigmoid(-x)


@triton.jit
def divergence_terms(x, y):
    return tl.where(y == 0, y, y * libdevice.log(y)) - y * x
