"""Activation functions, each with its derivative as an operator of its own where that saves passes over memory."""
import functools
import math

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.errors import check, explained, refuse_misuse, sentence
from tritorch.ops import compare, complex_arrays, pointwise, slopes, special
from tritorch.ops.arrays import either, fills, keep, number
from tritorch.ops.elementwise import binary, floats, floats_or_complex, numbers, unary
from tritorch.pairs import HOLOMORPHIC, OWN

K = kernels("activation")
_unary = functools.partial(unary, functions=K, result=floats)
_INV_SQRT2, _INV_SQRT_2PI, _SQRT_2_PI = 1 / math.sqrt(2), 1 / math.sqrt(2 * math.pi), math.sqrt(2 / math.pi)


def _slope(name, doc, cpu, formula, attrs=(), source="input", **options):
    """The derivative of an activation times the arriving gradient: an operator of (g, input or output, attributes) with the
    formula's gradients."""
    defaults = [v for _, v in attrs]
    made = binary(name, doc, cpu, functions=K, names=("g_out", source), attrs=attrs,
                  samples=lambda make: [(make(2, 5), make(2, 5), *defaults)], **options)
    made.formula(formula)
    return made if made.complex else slopes.linear(made)


# ------------------------------------------------------------------ the rectifier and its kin
@fills(passes=1)
def _relu(out, x):
    if x.dtype.kind == "f" and x.size > 8192:
        np.clip(x, x.dtype.type(0), x.dtype.type(np.inf), out=out)       # four times faster than np.maximum, but for 5 µs before it starts
    else:
        np.maximum(x, _zero(x.dtype), out=out)                           # an array is 0.6 µs cheaper than a number


@functools.lru_cache(maxsize=32)
def _zero(kind):
    return np.zeros((), kind)


@fills(passes=1)
def _relu_backward(out, g, x):
    keep(out, g, np.logical_not(x <= 0))                                 # so that NaN keeps its gradient, as in PyTorch


relu_backward = _slope("relu_backward", "g where out > 0, else 0.", _relu_backward,
                       lambda g_out, out_value: compare.choose(out_value <= 0, 0, g_out),
                       source="out_value")
relu = _unary("relu", """max(input, 0); NaN stays NaN.

    >>> import tritorch as torch; torch.relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """, _relu, result=numbers, grad=lambda g, out: relu_backward(g, out))
leaky_relu = _unary("leaky_relu", "input above 0, negative_slope · input below.",
                    lambda x, slope: either(x > 0, x, x * x.dtype.type(slope)), "leaky_slope", attrs=(("negative_slope", 0.01),),
                    grad=lambda g, input, negative_slope: slopes.leaky_relu_backward(g, input, negative_slope))
hardtanh_between = _unary("hardtanh_between", "input clamped to [min_val, max_val], with the gradient 0 on the bounds.",
                          compare.between, "clamp_numbers", attrs=(("min_val", -1.0), ("max_val", 1.0)), result=numbers,
                          grad=lambda g, input, min_val, max_val: slopes.drop_beyond(g, input, min_val, max_val))
threshold_at = _unary("threshold_at", "input where it is greater than threshold, else value.",
                      lambda x, t, v: either(x <= t, number(x.dtype, v), x), result=numbers,
                      attrs=(("threshold", 0.1), ("value", 20.0)),
                      grad=lambda g, input, threshold: slopes.drop_within(g, input, -math.inf, threshold))
hardshrink = _unary("hardshrink", "input where |input| > lambd, else 0.",
                    lambda x, lambd: either(np.abs(x) <= lambd, x.dtype.type(0), x), "hardshrink_at", attrs=(("lambd", 0.5),),
                    grad=lambda g, input, lambd: slopes.drop_within(g, input, -lambd, lambd))
softshrink_at = _unary("softshrink_at", "input moved towards 0 by lambd, 0 between.",
                       lambda x, lambd: either(x > lambd, x - x.dtype.type(lambd),
                                               either(x < -lambd, x + x.dtype.type(lambd), either(x == x, x.dtype.type(0), x))),
                       attrs=(("lambd", 0.5),),
                       grad=lambda g, input, lambd: slopes.drop_within(g, input, -lambd, lambd))


# ------------------------------------------------------------------ smooth ones
@fills
def _gelu(out, x):
    special.erf(out, x, _INV_SQRT2)
    out += x.dtype.type(1)
    out *= x
    out *= x.dtype.type(0.5)


@fills
def _gelu_backward(out, g, x):
    kind = x.dtype.type
    density = np.multiply(x, x)
    density *= kind(-0.5)
    np.exp(density, out=density)
    density *= x
    density *= kind(2 * _INV_SQRT_2PI)
    special.erf(out, x, _INV_SQRT2)
    out += kind(1)
    out += density
    out *= kind(0.5)
    out *= g


@fills
def _gelu_tanh(out, x):
    kind = x.dtype.type
    np.multiply(x, x, out=out)
    out *= kind(0.044715 * _SQRT_2_PI)
    out += kind(_SQRT_2_PI)
    out *= x
    np.tanh(out, out=out)
    out += kind(1)
    out *= x
    out *= kind(0.5)


@fills
def _gelu_tanh_backward(out, g, x):
    kind = x.dtype.type
    square = x * x
    tanh = square * kind(0.044715 * _SQRT_2_PI)
    tanh += kind(_SQRT_2_PI)
    tanh *= x
    np.tanh(tanh, out=tanh)
    square *= kind(3 * 0.044715 * _SQRT_2_PI)                            # the derivative of the argument, times x
    square += kind(_SQRT_2_PI)
    square *= x
    np.multiply(tanh, tanh, out=out)
    np.subtract(kind(1), out, out=out)
    out *= square
    out += tanh
    out += kind(1)
    out *= kind(0.5)
    out *= g


def _normal_cdf(x):
    return (pointwise.erf(x * _INV_SQRT2) + 1) * 0.5


def _gelu_formula(g_out, input):
    return g_out * (_normal_cdf(input) + input * (input * input * -0.5).exp() * _INV_SQRT_2PI)


def _gelu_tanh_formula(g_out, input):
    square = input * input
    tanh = (input * (square * 0.044715 + 1) * _SQRT_2_PI).tanh()
    return g_out * ((tanh + 1) * 0.5 + input * 0.5 * (1 - tanh * tanh) * ((square * (3 * 0.044715) + 1) * _SQRT_2_PI))


gelu_erf_backward = _slope("gelu_erf_backward", "g · (Φ(x) + x·φ(x)).", _gelu_backward, _gelu_formula)
gelu_tanh_backward = _slope("gelu_tanh_backward", "The derivative of the tanh form of GELU, times g.", _gelu_tanh_backward,
                            _gelu_tanh_formula)
gelu_erf = _unary("gelu_erf", "x·Φ(x) with the normal distribution function Φ.", _gelu,
                  grad=lambda g, input: gelu_erf_backward(g, input))
gelu_tanh = _unary("gelu_tanh", "x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))).", _gelu_tanh,
                   grad=lambda g, input: gelu_tanh_backward(g, input))


def gelu(input, approximate="none"):
    """x · Φ(x) with the normal distribution function Φ; `approximate="tanh"` takes x/2·(1 + tanh(√(2/π)(x + 0.044715x³))).

    Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.

    >>> import tritorch as torch; torch.nn.functional.gelu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    if approximate not in ("none", "tanh"):
        kind = RuntimeError if isinstance(approximate, str) else TypeError
        raise kind(sentence("gelu", "approximate 'none' or 'tanh'", repr(approximate)))
    return gelu_erf(input) if approximate == "none" else gelu_tanh(input)


@fills
def _silu(out, x):
    special.sigmoid(out, x)
    out *= x


@fills
def _silu_backward(out, g, x):
    one, s = x.dtype.type(1), np.empty_like(out)
    special.sigmoid(s, x)
    np.subtract(one, s, out=out)
    out *= x
    out += one
    out *= s
    out *= g


def _silu_backward_complex(g, x):
    s = complex_arrays.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def _silu_formula(g_out, input):
    s = pointwise.sigmoid(input)
    return g_out * s * (1 + input * (1 - s))


silu_backward = _slope("silu_backward", "g · σ(x)·(1 + x·(1 - σ(x))).", _silu_backward, _silu_formula, complex=OWN,
                       complex_cpu=_silu_backward_complex)
silu = _unary("silu", "x · σ(x) (also called swish).", _silu, result=floats_or_complex, grad=lambda g, input: silu_backward(g, input),
              complex=HOLOMORPHIC, complex_cpu=lambda x: x * complex_arrays.sigmoid(x))


def _softplus(x, beta, threshold):
    scaled = x * x.dtype.type(beta)
    return either(scaled > threshold, x, slopes.softplus(scaled) / x.dtype.type(beta))


softplus = _unary("softplus", "log(1 + e^(beta·x)) / beta; x itself where beta·x > threshold.", _softplus, "softplus_of",
                  attrs=(("beta", 1.0), ("threshold", 20.0)),
                  grad=lambda g, input, beta, threshold: slopes.softplus_backward(g, input, beta, threshold))
logsigmoid = _unary("logsigmoid", "log σ(x) = log(1 / (1 + e^-x)), without overflow.",
                    lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), "log_sigmoid",
                    grad=lambda g, input: slopes.log_sigmoid_backward(g, input))
mish = _unary("mish", "x · tanh(softplus(x)).", lambda x: x * np.tanh(slopes.softplus(x)),
              grad=lambda g, input: slopes.mish_backward(g, input))


def _elu(x, alpha, scale, input_scale):
    kind = x.dtype.type
    return either(x < 0, kind(alpha) * np.expm1(np.minimum(x, 0) * kind(input_scale)), x) * kind(scale)


elu = _unary("elu", "x above 0, alpha·(e^x - 1) below.", lambda x, alpha: _elu(x, alpha, 1, 1), "elu_of", attrs=(("alpha", 1.0),),
             grad=lambda g, input, alpha: slopes.elu_backward(g, input, alpha, 1.0))
celu_of = _unary("celu_of", "x above 0, alpha·(e^(x/alpha) - 1) below.", lambda x, alpha: _elu(x, alpha, 1, 1 / alpha),
                 attrs=(("alpha", 1.0),),
                 grad=lambda g, input, alpha: slopes.elu_backward(g, input, 1.0, 1 / alpha))
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
selu = _unary("selu", "scale · elu(x, alpha) with the constants that keep mean 0 and variance 1 (Klambauer et al., 2017).",
              lambda x: _elu(x, _SELU_ALPHA, _SELU_SCALE, 1),
              grad=lambda g, input: slopes.elu_backward(g, input, _SELU_ALPHA, 1.0) * _SELU_SCALE)
hardswish = _unary("hardswish", "x · relu6(x + 3) / 6.", lambda x: x * np.clip(x + 3, 0, 6) / 6,
                   grad=lambda g, input: slopes.hardswish_backward(g, input))
hardsigmoid = _unary("hardsigmoid", "relu6(x + 3) / 6.", lambda x: np.clip(x + 3, 0, 6) / 6,
                     grad=lambda g, input: slopes.hardsigmoid_backward(g, input))


# ------------------------------------------------------------------ PyTorch's names above them
def threshold(input, threshold, value):
    """input where it is greater than `threshold`, else `value`.

    >>> import tritorch as torch
    >>> torch.threshold(torch.tensor([-1.0, 2.0]), 0.5, -9.0)
    tensor([-9.,  2.])
    """
    return threshold_at(input, threshold, value)


def softshrink(input, lambd=0.5):
    """input moved towards 0 by lambd; 0 where |input| ≤ lambd."""
    try:
        check(lambd >= 0, "softshrink", "lambd of at least 0", lambd)
        return softshrink_at(input, lambd)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def celu(input, alpha=1.0):
    """x above 0, alpha·(e^(x/alpha) - 1) below."""
    check(alpha != 0, "celu", "alpha other than 0", alpha)
    return celu_of(input, alpha)


@explained
def softsign(input):
    """x / (1 + |x|)."""
    return input / (input.abs() + 1)


@explained
def tanhshrink(input):
    """x - tanh(x)."""
    return input - input.tanh()


rectified = binary("rectified", "x above 0, weight · x below.", lambda x, weight: either(x > 0, x, x * weight), "prelu",
                   functions=slopes.K, names=("x", "slope_weight"),
                   grad_input=lambda g, x, slope_weight: slopes.prelu_backward(g, x, slope_weight),
                   grad_other=lambda g, x: slopes.below_zero_slope(g, x))


def prelu(input, weight):
    """input above 0, weight · input below, with one weight for all or one for each channel (dim 1)."""
    try:
        channels = input.shape[1] if len(input.shape) > 1 else 1
        check(input.dtype is weight.dtype, "prelu", f"weights of {input.dtype}", weight.dtype)
        check(input.dtype.is_floating_point, "prelu", "a floating dtype", input.dtype, error=NotImplementedError)
        check(len(weight.shape) < 2, "prelu", "a vector of weights, or one", weight.shape)
        check(weight.numel() in (1, channels), "prelu", f"1 or {channels} weights", weight.numel())
        if weight.numel() > 1:
            weight = weight.reshape((1, -1) + (1,) * (len(input.shape) - 2))
        elif len(weight.shape) != len(input.shape):
            weight = weight.reshape(())
        return rectified(input, weight)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise
