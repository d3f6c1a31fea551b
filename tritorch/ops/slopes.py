"""Gradients that are one function of few numbers, each an operator: one launch and one rounding instead of one for every step.

The first operand is the gradient that arrives. Each is linear in it and has the gradients of its formula.
"""
import inspect

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.ops import elementwise, special
from tritorch.ops.arrays import either, fills, keep
from tritorch.pairs import OWN

K = kernels("slopes")
RANGE = (("low", -0.5), ("high", 0.5))


def slope(name, doc, cpu, formula, attrs=(), names=("g_out", "input"), **options):
    """The operator of (g, input, attributes)."""
    defaults = [value for _, value in attrs]
    made = elementwise.binary(name, doc, cpu, functions=K, names=names, attrs=attrs,
                              samples=lambda make: [(make(2, 5), make(2, 5), *defaults)], **options)
    made.formula(formula)
    return made if made.complex else linear(made)


def linear(made):
    """The gradient in the first operand of what is linear in it: the operator again, so that what the formula multiplies by 0 where
    something is infinite or NaN does not matter."""
    def again(g, *rest):
        return made(g, *rest)

    names = ["g", *made.names[1:]]
    again.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])
    made.grad(made.names[0])(again)
    return made


def slope_of_two(name, doc, cpu, formula, attrs=(), names=("g_out", "input", "other"), more=(), apart=False, grads=None):
    """The operator of (g, input, other, attributes); `more` are further values of the attributes for the tests, in which with `apart` the
    last operand is far from 0."""
    away = {"low": 0.5, "high": 2.0} if apart else {}

    def samples(make):
        for values in ([value for _, value in attrs], *more):
            yield make(3, 4), make(3, 4), make(3, 4, **away), *values
        yield make(3, 1), make(4), make(**away), *values
        yield make(0, 2), make(2), make(2, **away), *values

    made = elementwise.ternary(name, doc, cpu, functions=K, names=names, attrs=attrs, samples=samples, grads=grads)
    made.formula(formula)
    return linear(made)


# ------------------------------------------------------------------ of what is cut off
def _kept(test):
    """g where the test of (x, bounds…) says so, else 0."""
    @fills(passes=1)
    def cpu(out, g, x, *bounds):
        keep(out, g, test(x, *map(x.dtype.type, bounds)))

    return cpu


def _within(x, low, high):
    return (x >= low) & (x <= high)


keep_within = slope("keep_within", "g where low ≤ x ≤ high, else 0.", _kept(_within),
                    lambda g_out, input, low, high: g_out.masked_fill(~_within(input, low, high), 0), attrs=RANGE)
drop_within = slope("drop_within", "0 where low ≤ x ≤ high, else g.", _kept(lambda x, low, high: ~_within(x, low, high)),
                    lambda g_out, input, low, high: g_out.masked_fill(_within(input, low, high), 0), attrs=RANGE)
drop_beyond = slope("drop_beyond", "0 where x ≤ low or x ≥ high, else g.", _kept(lambda x, low, high: ~((x <= low) | (x >= high))),
                    lambda g_out, input, low, high: g_out.masked_fill((input <= low) | (input >= high), 0), attrs=RANGE)
keep_finite = slope("keep_finite", "g where x is a number, 0 where it is NaN or infinite.", _kept(lambda x: np.isfinite(x)),
                    lambda g_out, input: g_out.masked_fill(~input.isfinite(), 0))
leaky_relu_backward = slope("leaky_relu_backward", "g where x > 0, else g · slope.",
                            lambda g, x, slope: either(x > 0, g, g * g.dtype.type(slope)),
                            lambda g_out, input, slope: g_out.where(input > 0, g_out * slope), attrs=(("slope", 0.01),))


def _extreme(g, x, y, sign):
    loses = x < y if sign > 0 else x > y
    return either(x == y, g * g.dtype.type(0.5), either(loses, g.dtype.type(0), g))


extreme_slope = slope_of_two(
    "extreme_slope", "How PyTorch splits the gradient of the greater (sign 1) or smaller (-1) of x and y: what of it x gets. 0 where x "
    "loses, half where both are equal, all beside a NaN.", _extreme, lambda g_out, input, other, sign: (g_out * 0.5).where(
        input == other, g_out).masked_fill(input < other if sign > 0 else input > other, 0), attrs=(("sign", 1),), more=[(-1,)])


prelu_backward = slope_of_two("prelu_backward", "g where x > 0, else g · weight.", lambda g, x, weight: np.where(x > 0, g, g * weight),
                              lambda g_out, input, weight: g_out.where(input > 0, g_out * weight), names=("g_out", "input", "weight"))
below_zero_slope = slope("below_zero_slope", "0 where x > 0, else g · x.", lambda g, x: np.where(x > 0, g.dtype.type(0), g * x),
                         lambda g_out, input: (g_out * input).masked_fill(input > 0, 0))


# ------------------------------------------------------------------ of powers and exponentials
line_slope = slope("line_slope", "g · (a·x + b).", lambda g, x, a, b: g * (x * x.dtype.type(a) + x.dtype.type(b)),
                      lambda g_out, input, a, b: g_out * (input * a + b), attrs=(("a", 2.0), ("b", 0.0)), complex=OWN)
square_slope = slope("square_slope", "g · (a·x² + b).", lambda g, x, a, b: g * (x * x * x.dtype.type(a) + x.dtype.type(b)),
                        lambda g_out, input, a, b: g_out * (input * input * a + b), attrs=(("a", -1.0), ("b", 0.0)), complex=OWN)
quotient_slope = slope("quotient_slope", "g · factor / (x + more).",
                          lambda g, x, factor, more: g * g.dtype.type(factor) / (x + x.dtype.type(more)),
                          lambda g_out, input, factor, more: g_out * factor / (input + more), attrs=(("factor", 0.5), ("more", 3.0)),
                          complex=OWN)
divisor_slope = slope_of_two("divisor_slope", "-g · x / y².", lambda g, x, y: -g * ((x / y) / y), lambda g_out, input, other: -g_out * (
    (input / other) / other), apart=True)
bell_slope = slope("bell_slope", "g · factor · e^(-x²).", lambda g, x, factor: g * (np.exp(-(x * x)) * x.dtype.type(factor)),
                      lambda g_out, input, factor: g_out * ((-(input * input)).exp() * factor), attrs=(("factor", 1.5),))
sign_slope = slope("sign_slope", "g · sign(x), 0 for NaN.", lambda g, x: g * special.sign(x),
                      lambda g_out, input: g_out * input.sign())
power_slope = slope("power_slope", "g · n · x^(n - 1).",
                       lambda g, x, exponent: g * (special.power(x, x.dtype.type(exponent - 1)) * x.dtype.type(exponent)),
                       lambda g_out, input, exponent: g_out * (input ** (exponent - 1) * exponent), attrs=(("exponent", 3.0),), complex=OWN)


# ------------------------------------------------------------------ of smooth activations
def sigmoid(x):
    out = np.empty_like(x)
    special.sigmoid(out, x)
    return out


def softplus(x):
    """log(1 + e^x) without overflow, many times faster than np.logaddexp."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _softplus_backward(g, x, beta, threshold):
    scaled = x * x.dtype.type(beta)
    return either(scaled > threshold, g, g * sigmoid(scaled))


def _mish_backward(g, x):
    t, s = np.tanh(softplus(x)), sigmoid(x)
    return g * (t + x * s * (1 - t * t))


def _mish_formula(g_out, input):
    from tritorch.ops.activation import softplus as smooth

    t, s = smooth(input, 1.0, 20.0).tanh(), input.sigmoid()
    return g_out * (t + input * s * (1 - t * t))


def _elu_backward(g, x, below, rate):
    kind = x.dtype.type
    return either(x <= 0, g * (np.exp(np.minimum(x, 0) * kind(rate)) * kind(below)), g)


def _softplus_bend(g, g_out, input, beta, threshold):
    scaled = input * beta
    return (g * g_out * (scaled.sigmoid() * (-scaled).sigmoid() * beta)).masked_fill(scaled >= threshold, 0)


def _elu_bend(g, g_out, input, below, rate):
    return elu_backward(g * g_out, input, below * rate, rate).masked_fill(~(input < 0), 0)


softplus_backward = slope("softplus_backward", "g · σ(beta·x), g itself where beta·x > threshold.", _softplus_backward,
                          lambda g_out, input, beta, threshold: g_out.where(input * beta > threshold, g_out * (input * beta).sigmoid()),
                          attrs=(("beta", 1.0), ("threshold", 20.0)), grad_other=_softplus_bend)
log_sigmoid_backward = slope("log_sigmoid_backward", "g · σ(-x).", lambda g, x: g * sigmoid(-x),
                             lambda g_out, input: g_out * (-input).sigmoid(),
                             grad_other=lambda g, g_out, input: -g * g_out * (input.sigmoid() * (-input).sigmoid()))
mish_backward = slope("mish_backward", "g · (t + x·σ(x)·(1 - t²)) with t = tanh(softplus(x)).", _mish_backward, _mish_formula)
elu_backward = slope("elu_backward", "g where x > 0, else g · below · e^(rate·x).", _elu_backward,
                     lambda g_out, input, below, rate: (g_out * ((input.clamp(max=0.0) * rate).exp() * below)).where(input <= 0, g_out),
                     attrs=(("below", 1.5), ("rate", 0.5)), grad_other=_elu_bend)
hardswish_backward = slope(
    "hardswish_backward", "0 up to -3, g · (x/3 + ½) up to 3, g from there on.",
    lambda g, x: either(x <= -3, x.dtype.type(0), either(x < 3, g * (x / 3 + x.dtype.type(0.5)), g)),
    lambda g_out, input: (g_out * (input / 3 + 0.5)).where(input < 3, g_out).masked_fill(input <= -3, 0),
    grad_other=lambda g, g_out, input: (g * g_out / 3).masked_fill(~(input.abs() < 3), 0))
hardsigmoid_backward = slope("hardsigmoid_backward", "g / 6 where -3 < x < 3, else 0.",
                             lambda g, x: either(np.abs(x) < 3, g * x.dtype.type(1 / 6), x.dtype.type(0)),
                             lambda g_out, input: (g_out / 6).masked_fill(~(input.abs() < 3), 0))
