"""Elementwise arithmetic and mathematics: one call an operator. The loops are those of `elementwise`."""
import builtins
import math

import numpy as np

from tritorch.dtype import promote, promote_float, types
from tritorch.errors import check, tensors
from tritorch.ops import compare, copy, special
from tritorch.ops.arrays import number, on_arrays
from tritorch.ops.elementwise import SCALAR, binary, floating, floats, launch_elementwise, no_bools, numbers, one_dtype, same, unary
from tritorch.tensor import Tensor

APART = {"low": 0.5, "high": 2.0}                                        # samples away from poles and kinks
UNIT = {"low": -0.9, "high": 0.9}
WHOLE = {"integer": True, "low": -20, "high": 20}


# ------------------------------------------------------------------ sums and differences
def _scaled(name, doc, ufunc, plain, sign, result):
    """input ± alpha·other; alpha = 1 costs no multiplication."""
    made = binary(name, doc, ufunc, attrs=(("alpha", 1),), result=result, grad_input=lambda g: g,
                  grad_other=lambda g, alpha: g if sign * alpha == 1 else g * (sign * alpha),
                  samples=lambda make: [(make(3, 4), make(4), 2)])

    def check_alpha(out, alpha):
        check(isinstance(alpha, (int, np.integer)) or out.dtype.is_floating_point, name, "a whole alpha for integers", alpha)

    @made.impl("cpu", raw=True)
    def on_cpu(out, x, y, alpha):
        a, b = x.array if isinstance(x, Tensor) else x, y.array if isinstance(y, Tensor) else y
        if alpha == 1:
            on_arrays(ufunc, out.array, out.dtype.compute, a, b)
        else:
            check_alpha(out, alpha)
            kind = out.dtype.compute
            on_arrays(lambda p, q: ufunc(p, np.multiply(q, number(kind.numpy, alpha))), out.array, kind, a, b)

    @made.impl("cuda", passes={"other": float})
    def on_cuda(out, x, y, alpha):
        if alpha == 1:
            launch_elementwise(out, (x, y), getattr(SCALAR, plain), out.dtype.compute)
        else:
            check_alpha(out, alpha)
            launch_elementwise(out, (x, y), getattr(SCALAR, name), out.dtype.compute, (alpha,))

    return made


add = _scaled("add", """input + alpha · other, elementwise, broadcast.

    >>> import tritorch as torch; torch.add(torch.tensor([1.0, 2.0]), 3, alpha=2)
    tensor([7., 8.])
    """, np.add, "plus", 1, same)
sub = _scaled("sub", """input - alpha · other, elementwise, broadcast.

    >>> import tritorch as torch; torch.tensor([1.0, 2.0]) - 1
    tensor([0., 1.])
    """, np.subtract, "minus", -1, no_bools)


def rsub(input, other, alpha=1):
    """other - alpha · input."""
    return sub(other, input, alpha)


# ------------------------------------------------------------------ products and quotients
mul = binary("mul", """input · other, elementwise, broadcast.

    >>> import tritorch as torch; torch.tensor([1.0, 2.0]) * 3
    tensor([3., 6.])
    """, np.multiply, grad_input=lambda g, other: g * other, grad_other=lambda g, input: g * input)
div_true = binary("div_true", "input / other in floating point.", np.true_divide, "div", result=floating, domain=APART, compute=floating,
                  grad_input=lambda g, other: g / other, grad_other=lambda g, input, other: -g * ((input / other) / other))


def _no_zeros(name, divided):
    """A division of numpy arrays that refuses whole zeros as divisors."""

    def divide(x, y):
        check(np.result_type(x, y).kind == "f" or np.all(y) or not np.size(x), name, "divisors other than 0 for integers", 0)
        return divided(x, y)

    return divide


def _remainder(x, y):
    if np.result_type(x, y).kind != "f":
        return np.remainder(x, y)
    rest = np.fmod(x, y)                                                 # np.remainder gives a zero the sign of y, PyTorch that of x
    return np.where((rest != 0) & ((rest < 0) != np.less(y, 0)), rest + y, rest)


def _truncated_division(x, y):
    if np.result_type(x, y).kind == "f":
        return np.trunc(x / y)
    quotient = np.floor_divide(x, y)
    return quotient + ((np.remainder(x, y) != 0) & (np.less(x, 0) != np.less(y, 0)))


def zeros(g):
    """The gradient of steps."""
    return g.new_zeros(g.shape)


floor_divide = binary("floor_divide", """input / other rounded down.

    >>> import tritorch as torch; torch.tensor([-7, 7]) // 2
    tensor([-4,  3])
    """, _no_zeros("floor_divide", np.floor_divide), result=numbers, domain=APART, grad_input=zeros, grad_other=zeros,
                      samples=lambda make: [(make(9, **WHOLE), 4), (make(9, **WHOLE), -3)])
trunc_divide = binary("trunc_divide", "input / other rounded towards zero.", _no_zeros("trunc_divide", _truncated_division), result=numbers,
                      domain=APART, grad_input=zeros, grad_other=zeros, samples=lambda make: [(make(9, **WHOLE), n) for n in (4, -3)])
remainder = binary("remainder", """input - other · ⌊input / other⌋: the sign of `other`, as Python's %.

    >>> import tritorch as torch; torch.tensor([-7, 7]) % 3
    tensor([2, 1])
    """, _no_zeros("remainder", _remainder), result=numbers, domain=APART, grad_input=lambda g: g,
                   grad_other=lambda g, input, other: -g * floor_divide(input, other),
                   samples=lambda make: [(make(9, **WHOLE), 4), (make(9, **WHOLE), -3), (make(9), 0.7)])
fmod = binary("fmod", "The remainder of the division rounded towards zero: the sign of `input`, as C's fmod.", _no_zeros("fmod", np.fmod),
              tensors="input", result=numbers, domain=APART,
              grad_input=lambda g: g, grad_other=lambda g, input, other: -g * trunc_divide(input, other),
              samples=lambda make: [(make(9, **WHOLE), 4), (make(9, **WHOLE), -3), (make(9), 0.7)])


def div(input, other, *, rounding_mode=None, out=None):
    """input / other, elementwise, broadcast; `rounding_mode` "floor" or "trunc" rounds the quotient.

    >>> import tritorch as torch; torch.tensor([1, 2]) / 4
    tensor([0.2500, 0.5000])
    """
    check(rounding_mode in (None, "floor", "trunc"), "div", "rounding_mode None, 'floor' or 'trunc'", rounding_mode)
    f = div_true if rounding_mode is None else floor_divide if rounding_mode == "floor" else trunc_divide
    if isinstance(input, (bool, int, float)) and isinstance(other, (bool, int, float)):
        from tritorch.ops.create import tensor

        input = tensor(input)                                            # two numbers make a tensor, as lengths of sequences are divided
    return f(input, other) if out is None else f.into(out, input, other)


# ------------------------------------------------------------------ powers
def _pow_grad_input(g, input, other):
    if not isinstance(other, Tensor):
        return zeros(g) if other == 0 else g * (other * pow(input, other - 1))
    return (g * (other * pow(input, other - 1))).masked_fill(other == 0, 0)


def _pow_grad_other(g, input, other, out):
    log_input = log(input) if isinstance(input, Tensor) else math.log(input) if input > 0 else -math.inf if input == 0 else math.nan
    zero_base = (input == 0) & (other >= 0) if isinstance(input, Tensor) else (other >= 0) if input == 0 else None
    grad = g * (out * log_input)
    return grad if zero_base is None else grad.masked_fill(zero_base, 0)


def _power_dtype(name, x, y):
    kind = promote(x, y)
    check(kind is not types.bool or not isinstance(y, Tensor), name, "numbers", kind, use="logical operators for bools")
    check(kind.is_floating_point or isinstance(y, Tensor) or y >= 0, name, "exponents that are not negative for integers", y,
          use="a floating base")
    return kind


def _power(x, y):
    below = np.less(y, 0)
    if np.result_type(x, y).kind != "i" or not np.any(below):
        return np.power(x, y)
    inverse = np.where(np.equal(x, 1), 1, np.where(np.equal(x, -1), 1 - 2 * np.remainder(y, 2), 0))       # rounded towards zero
    return np.where(below, inverse, np.power(x, np.maximum(y, 0)))


pow = binary("pow", """input to the power of other, elementwise, broadcast.

    >>> import tritorch as torch; torch.tensor([1.0, 2.0, 3.0]) ** 2
    tensor([1., 4., 9.])
    """, _power, result=_power_dtype, domain=APART, grad_input=_pow_grad_input, grad_other=_pow_grad_other,
             samples=lambda make: [(make(6), 3), (make(6, **APART), -0.5), (make(4, **WHOLE), 2), (make(5), 0), (make(5), 1),
                                   (make(40, integer=True, low=-2, high=3), make(40, integer=True, low=-4, high=4))])


def float_power(input, exponent, *, out=None):
    """input to the power of exponent in float64."""
    base = input.to(types.float64) if isinstance(input, Tensor) else float(input)
    power = exponent.to(types.float64) if isinstance(exponent, Tensor) else float(exponent)
    return pow(base, power) if out is None else pow.into(out, base, power)


square = unary("square", "input².", np.square, result=lambda name, x: types.int64 if x.dtype is types.bool else x.dtype,
               grad=lambda g, input: g * (input * 2))
sqrt = unary("sqrt", "The square root; NaN below 0.", np.sqrt, result=floating, domain=APART, grad=lambda g, out: g / (out * 2))
rsqrt = unary("rsqrt", "1 / √input.", lambda x: 1 / np.sqrt(x), result=floating, domain=APART,
              grad=lambda g, out: g * (out * out * out * -0.5))
reciprocal = unary("reciprocal", "1 / input.", lambda x: 1 / x, result=floating, domain=APART, grad=lambda g, out: -g * out * out)

# ------------------------------------------------------------------ signs and rounding
neg = unary("neg", "-input.", np.negative, result=numbers, grad=lambda g: -g)
abs = unary("abs", "|input|.", np.abs, result=numbers, grad=lambda g, input: g * sign(input))
abs.exact = True
sign = unary("sign", "-1, 0 or 1; 0 for NaN.", lambda x: np.greater(x, 0) if x.dtype.kind == "b" else np.sign(np.nan_to_num(x, nan=0.0)),
             grad=zeros)
ceil = unary("ceil", "Rounded up.", np.ceil, result=numbers, grad=zeros)
floor = unary("floor", "Rounded down.", np.floor, result=numbers, grad=zeros)
trunc = unary("trunc", "Rounded towards zero.", np.trunc, result=numbers, grad=zeros)
round_even = unary("round_even", "Rounded to the nearest whole number, halves to even.", lambda x: np.rint(x) if x.dtype.kind == "f" else x,
                   result=numbers, grad=zeros)


def round(input, *, decimals=0, out=None):
    """Rounded to `decimals` places, halves to even.

    >>> import tritorch as torch; torch.tensor([0.5, 1.5, 2.345]).round(decimals=0)
    tensor([0., 2., 2.])
    """
    if decimals:
        scale = 10.0 ** builtins.abs(decimals)                           # a whole number, where 10^-3 is not exact
        made = round_even(input * scale) / scale if decimals > 0 else round_even(input / scale) * scale
        return copy.deliver(made, out)
    return round_even(input) if out is None else round_even.into(out, input)


def frac(input, *, out=None):
    """The fractional part, with the sign of input."""
    check(input.dtype.is_floating_point, "frac", "a floating dtype", input.dtype)
    return sub(input, trunc(input)) if out is None else sub.into(out, input, trunc(input), 1)


def positive(input):
    """The tensor itself."""
    check(input.dtype is not types.bool, "positive", "numbers", input.dtype)
    return input


def real(input):
    """The tensor itself: there are no complex tensors. Also `conj` and its kin."""
    return input


conj = resolve_conj = resolve_neg = conj_physical = real


# ------------------------------------------------------------------ exponentials and logarithms
exp = unary("exp", "e to the power of input.", np.exp, result=floating, grad=lambda g, out: g * out)
exp2 = unary("exp2", "2 to the power of input.", np.exp2, result=floating, grad=lambda g, out: g * (out * 0.6931471805599453))
expm1 = unary("expm1", "e^input - 1, exact near 0.", np.expm1, result=floating, grad=lambda g, out: g * (out + 1))
log = unary("log", "The natural logarithm.", np.log, result=floating, domain=APART, grad=lambda g, input: g / input)
log2 = unary("log2", "The logarithm to base 2.", np.log2, result=floating, domain=APART,
             grad=lambda g, input: g / (input * 0.6931471805599453))
log10 = unary("log10", "The logarithm to base 10.", np.log10, result=floating, domain=APART,
              grad=lambda g, input: g / (input * 2.302585092994046))
log1p = unary("log1p", "log(1 + input), exact near 0.", np.log1p, result=floating, domain=APART, grad=lambda g, input: g / (input + 1))


logaddexp = binary("logaddexp", "log(e^input + e^other), without overflow.", np.logaddexp, tensors="input other", result=floats,
                   grad_input=lambda g, input, other: g / (exp(other - input) + 1),
                   grad_other=lambda g, input, other: g / (exp(input - other) + 1))
logaddexp2 = binary("logaddexp2", "log₂(2^input + 2^other), without overflow.", np.logaddexp2, tensors="input other", result=floats,
                    grad_input=lambda g, input, other: g / (exp2(other - input) + 1),
                    grad_other=lambda g, input, other: g / (exp2(input - other) + 1))
xlogy = binary("xlogy", "input · log(other), 0 where input is 0 and other is not NaN.", special.xlogy, result=floating, domain=APART,
               grad_input=lambda g, input, other: _xlogy_grad(g, input, other), grad_other=lambda g, input, other: g * input / other)


def _xlogy_grad(g, input, other):
    grad = xlogy(g, other)                                               # 0 where g is 0, even if the logarithm is infinite
    if isinstance(other, Tensor):
        return grad.masked_fill((input == 0) & (other <= 0), 0)
    return grad if other > 0 else grad.masked_fill(input == 0, 0)


sigmoid = unary("sigmoid", "1 / (1 + e^-input).", special.sigmoid, result=floating, grad=lambda g, out: sigmoid_backward(g, out))
sigmoid_backward = binary("sigmoid_backward", "g · out · (1 - out).", lambda g, out: g * (out * (1 - out)), names=("g_out", "out_value"),
                          grad_input=lambda g, out_value: sigmoid_backward(g, out_value),
                          grad_other=lambda g, g_out, out_value: g * (g_out * (1 - 2 * out_value)))
logit_eps = unary("logit_eps", "log(p / (1 - p)) of p = input clamped to [eps, 1 - eps]; eps < 0 clamps nothing.", special.logit, "logit",
                  result=floating,
                  attrs=(("eps", -1.0),), domain={"low": 0.1, "high": 0.9},
                  grad=lambda g, input, eps: (g / (input * (1 - input))).masked_fill(
                      (input < max(eps, 0)) | (input > 1 - max(eps, 0)), 0 if eps >= 0 else math.nan))


def logit(input, eps=None, *, out=None):
    """log(input / (1 - input)), the inverse of sigmoid; with eps the input is clamped to [eps, 1 - eps]."""
    eps = -1.0 if eps is None else eps
    return logit_eps(input, eps) if out is None else logit_eps.into(out, input, eps)


# ------------------------------------------------------------------ trigonometry
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


# ------------------------------------------------------------------ the error function and gamma
erf = unary("erf", "2/√π ∫₀^input e^(-t²) dt.", special.erf, result=floating,
            grad=lambda g, input: g * (exp(-(input * input)) * 1.1283791670955126))
erfc = unary("erfc", "1 - erf(input).", special.erfc, result=floating,
             grad=lambda g, input: g * (exp(-(input * input)) * -1.1283791670955126))
erfinv = unary("erfinv", "The inverse of erf, on (-1, 1).", special.erfinv, result=floating, domain=UNIT,
               grad=lambda g, out: g * (exp(out * out) * 0.8862269254527580))
lgamma = unary("lgamma", "log |Γ(input)|.", special.lgamma, result=floating, domain=APART, grad=lambda g, input: g * digamma(input))
digamma = unary("digamma", "The derivative of lgamma.", special.digamma, result=floating, domain=APART,
                grad=lambda g, input: g * polygamma1(input))
polygamma1 = unary("polygamma1", "The derivative of digamma (trigamma).", special.trigamma, "trigamma", result=floating, domain=APART)

# ------------------------------------------------------------------ extremes
maximum = binary("maximum", "The greater of the two; NaN where one is NaN.", np.maximum,
                 tensors="input other", grad_input=lambda g, input, other: _won(g, input < other, input == other),
                 grad_other=lambda g, input, other: _won(g, input > other, input == other))
minimum = binary("minimum", "The smaller of the two; NaN where one is NaN.", np.minimum,
                 tensors="input other", grad_input=lambda g, input, other: _won(g, input > other, input == other),
                 grad_other=lambda g, input, other: _won(g, input < other, input == other))
fmax = binary("fmax", "The greater of the two; the other where one is NaN.", np.fmax,
              tensors="input other", grad_input=lambda g, input, other: g.masked_fill(~((input >= other) | (other != other)), 0),
              grad_other=lambda g, input, other: g.masked_fill((input >= other) | (other != other), 0))
fmin = binary("fmin", "The smaller of the two; the other where one is NaN.", np.fmin,
              tensors="input other", grad_input=lambda g, input, other: g.masked_fill(~((input <= other) | (other != other)), 0),
              grad_other=lambda g, input, other: g.masked_fill((input <= other) | (other != other), 0))
copysign = binary("copysign", "|input| with the sign of other.", np.copysign, tensors="input", result=floating, domain=APART,
                  grad_input=lambda g, input, out: g * (sign(input) * sign(out)), grad_other=zeros)
next_wide = binary("nextafter", "The next number after input towards other, in float32 or float64.", np.nextafter, functions=compare.K,
                   tensors="input other", result=floats, grad_input=lambda g, input, other: g.masked_fill(input == other, 0),
                   grad_other=zeros)


def nextafter(input, other, *, out=None):
    """The next number after input towards other, of those that the dtype has."""
    tensors("nextafter", input=input, other=other)
    kind = promote(input, other)
    if not kind.is_floating_point or kind.compute is kind:
        return next_wide(input, other) if out is None else next_wide.into(out, input, other)
    x, y = input.to(kind), other.to(kind)
    step = compare.where((y > x) == (x > 0), 1, -1).to(types.int16)      # away from zero the bits of a number count up
    least = types.finfo(kind).smallest_normal * types.finfo(kind).eps
    made = compare.where(x == 0, compare.where(y < 0, -least, least).to(kind), (x.view(types.int16) + step).view(kind))
    return copy.deliver(compare.where(x == y, y, compare.where((x != x) | (y != y), math.nan, made)), out)


heaviside = binary("heaviside", "0 below 0 and for NaN, 1 above, other at 0.", lambda x, y: np.where(np.equal(x, 0), y, np.greater(x, 0)),
                   result=one_dtype, tensors="input other", grad_input=zeros, grad_other=zeros)


def _won(g, loses, ties):
    """How PyTorch splits the gradient of an extreme: 0 for an operand that loses, half of it for one that ties, all of it beside a NaN."""
    return (g / 2).where(ties, g).masked_fill(loses, 0)


# ------------------------------------------------------------------ PyTorch's other names
subtract, multiply, divide, true_divide, negative, absolute, fix, sgn = sub, mul, div, div, neg, abs, trunc, sign
arcsin, arccos, arctan, arcsinh, arccosh, arctanh, arctan2 = asin, acos, atan, asinh, acosh, atanh, atan2


def ldexp(input, other, *, out=None):
    """input · 2^other, in two steps: 2^other alone may be too large where the product is not."""
    tensors("ldexp", input=input)
    kind = promote_float(input, other)
    other = other.to(kind.compute) if isinstance(other, Tensor) else float(other)
    half = trunc(other / 2) if isinstance(other, Tensor) else other // 2
    made = mul(mul(input, pow(2.0, half)), pow(2.0, other - half))
    return copy.deliver(made.to(kind), out)
