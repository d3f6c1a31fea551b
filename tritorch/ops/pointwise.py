"""Elementwise arithmetic and mathematics: one call an operator. The loops are those of `elementwise`."""
import builtins
import math

import numpy as np

from tritorch.autograd.modes import no_grad, state
from tritorch.dtype import promote, promote_float, types
from tritorch.errors import check, tensors
from tritorch.ops import compare, complex_arrays, copy, special
from tritorch.ops.arrays import number, on_arrays
from tritorch.ops.elementwise import binary, floating, floats, floats_or_complex, no_bools, numbers, one_dtype, same, unary
from tritorch.ops.loops import COMPLEX, SCALAR, launch_elementwise
from tritorch.ops.powers import pow
from tritorch.ops.slopes import bell_slope, divisor_slope, extreme_slope, line_slope, quotient_slope, sign_slope, square_slope
from tritorch.pairs import HOLOMORPHIC, OWN
from tritorch.tensor import Tensor

APART = {"low": 0.5, "high": 2.0}                                        # samples away from poles and kinks
UNIT = {"low": -0.9, "high": 0.9}
WHOLE = {"integer": True, "low": -20, "high": 20}


# ------------------------------------------------------------------ sums and differences
def _scaled(name, doc, ufunc, plain, sign, result):
    """input ± alpha·other; alpha = 1 costs no multiplication."""
    made = binary(name, doc, ufunc, attrs=(("alpha", 1),), result=result, grad_input=lambda g: g,
                  grad_other=lambda g, alpha: g if sign * alpha == 1 else g * (sign * alpha.conjugate()), complex=OWN,
                  samples=lambda make: [(make(3, 4), make(4), 2)])

    def check_alpha(out, alpha):
        check(isinstance(alpha, (int, np.integer)) or out.dtype.has_gradients, name, "a whole alpha for integers", alpha)
        check(not isinstance(alpha, builtins.complex) or out.dtype.is_complex, name, "a real alpha for real tensors", alpha)

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
        functions = COMPLEX if out.dtype.is_complex else SCALAR
        if alpha == 1:
            launch_elementwise(out, (x, y), getattr(functions, plain), out.dtype.compute)
        else:
            check_alpha(out, alpha)
            launch_elementwise(out, (x, y), getattr(functions, name), out.dtype.compute, (alpha,))

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
    tensors("rsub", input=input)
    return sub(other, input, alpha)


# ------------------------------------------------------------------ products and quotients
mul = binary("mul", """input · other, elementwise, broadcast.

    >>> import tritorch as torch; torch.tensor([1.0, 2.0]) * 3
    tensor([3., 6.])
    """, np.multiply, grad_input=lambda g, other: along(g, other) if g.dtype.is_complex else g * other,
             grad_other=lambda g, input: along(g, input) if g.dtype.is_complex else g * input, complex=OWN)
mul_conjugate = binary("mul_conjugate", "input · conj(other), elementwise, broadcast.", lambda x, y: x * np.conj(y), tensors="input other",
                       grad_input=lambda g, other: g * other, grad_other=lambda g, input: mul_conjugate(input, g), complex=OWN)


def conjugated(x):
    """The conjugate of a tensor or number; real ones themselves, without a copy."""
    return x.conj() if isinstance(x, Tensor) else x.conjugate()


def along(g, slope):
    """The gradient of an input of which a holomorphic function has this derivative: g · conj(slope) in one pass."""
    if isinstance(slope, Tensor):
        return mul_conjugate(g, slope) if slope.dtype.is_complex else g * slope
    return g * conjugated(slope)


div_true = binary("div_true", "input / other in floating point.", np.true_divide, "div", result=floating, domain=APART,
                  compute=floating, complex=OWN,
                  grad_input=lambda g, other: g / conjugated(other) if g.dtype.is_complex else g / other,
                  grad_other=lambda g, input, other: along(-g, (input / other) / other) if g.dtype.is_complex else (
                      divisor_slope(g, input, other)))


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


def rdiv(input, other):
    """other / input; an array of numpy's times 1 / input, which is how PyTorch answers it."""
    try:
        return div(other, input)
    except TypeError:
        if not isinstance(other, np.ndarray):
            raise
        return reciprocal(input) * other


# ------------------------------------------------------------------ powers
def float_power(input, exponent, *, out=None):
    """input to the power of exponent in float64; in complex128 where one of the two is complex. A destination has that dtype, too."""
    kind = types.complex128 if promote(input, exponent).is_complex else types.float64
    base, power = [x.to(kind) if isinstance(x, Tensor) else x if isinstance(x, builtins.complex) else float(x) for x in (input, exponent)]
    check(out is None or out.dtype is kind, "float_power", f"a destination of {kind}", out)
    return pow(base, power) if out is None else pow.into(out, base, power)


square = unary("square", "input².", np.square, result=lambda name, x: types.int64 if x.dtype is types.bool else x.dtype,
               grad=lambda g, input: line_slope(g, input, 2.0, 0.0), complex=HOLOMORPHIC)
sqrt = unary("sqrt", "The square root; NaN below 0, of complex numbers the one on the right.", np.sqrt, result=floating,
             domain=APART, grad=lambda g, out: quotient_slope(g, out, 0.5, -0.0), complex=HOLOMORPHIC)
rsqrt = unary("rsqrt", "1 / √input.", lambda x: 1 / np.sqrt(x), result=floating, domain=APART,
              grad=lambda g, out: square_slope(g, out, -0.5, 0.0) * out, complex=HOLOMORPHIC)
reciprocal = unary("reciprocal", "1 / input.", lambda x: 1 / x, result=floating, domain=APART,
                   grad=lambda g, out: square_slope(g, out, -1.0, 0.0), complex=HOLOMORPHIC)

# ------------------------------------------------------------------ signs and rounding
neg = unary("neg", "-input.", np.negative, result=numbers, grad=lambda g: -g, complex=OWN)
abs = unary("abs", "|input|; the modulus √(Re² + Im²) of complex numbers, a real tensor.", np.abs,
            result=lambda name, x: numbers(name, x).to_real(), complex=OWN,
            grad=lambda g, input: g * sgn(input) if input.dtype.is_complex else sign_slope(g, input))
abs.exact = True


def _sign(x):
    return np.greater(x, 0) if x.dtype.kind == "b" else special.sign(x)


sign = unary("sign", "-1, 0 or 1; 0 for NaN.", _sign, grad=zeros)
sgn = unary("sgn", "input / |input|, 0 for 0: the sign of real numbers, the direction of complex ones.", _sign, "sign", complex=OWN,
            complex_cpu=complex_arrays.sign, grad=lambda g, input, out: _sgn_grad(g, input, out))


def _sgn_grad(g, input, out):
    if not input.dtype.is_complex:
        return zeros(g)
    size = abs(input)
    return ((g - (g * out.conj()).real * out) / size).masked_fill(size == 0, 0)


ceil = unary("ceil", "Rounded up.", np.ceil, result=numbers, grad=zeros)
floor = unary("floor", "Rounded down.", np.floor, result=numbers, grad=zeros)
trunc = unary("trunc", "Rounded towards zero.", np.trunc, result=numbers, grad=zeros)
round_even = unary("round_even", "Rounded to the nearest whole number, halves to even.", lambda x: np.rint(x) if x.dtype.kind == "f" else x,
                   result=numbers, grad=zeros)

for _same in (neg, sign, sgn, ceil, floor, trunc, round_even):
    _same.exact = True


def round(input, *, decimals=0, out=None):
    """Rounded to `decimals` places, halves to even.

    >>> import tritorch as torch; torch.tensor([0.5, 1.5, 2.345]).round(decimals=0)
    tensor([0., 2., 2.])
    """
    if decimals:
        scale = 10.0 ** builtins.abs(decimals)                           # a whole number, where 10^-3 is not exact
        made = round_even(input * scale) / scale if decimals > 0 else round_even(input / scale) * scale
        return copy.deliver(made, out, exact=True)
    return round_even(input) if out is None else round_even.into(out, input)


def frac(input, *, out=None):
    """The fractional part, with the sign of input."""
    floats("frac", input)
    return sub(input, trunc(input)) if out is None else sub.into(out, input, trunc(input), 1)


def positive(input):
    """The tensor itself."""
    check(input.dtype is not types.bool, "positive", "numbers", input.dtype)
    return input


# ------------------------------------------------------------------ exponentials and logarithms
exp = unary("exp", "e to the power of input.", np.exp, result=floating, grad=lambda g, out: along(g, out), complex=OWN)
exp2 = unary("exp2", "2 to the power of input.", np.exp2, result=floating, grad=lambda g, out: line_slope(g, out, 0.6931471805599453, 0.0),
             complex=HOLOMORPHIC)
expm1 = unary("expm1", "e^input - 1, exact near 0.", np.expm1, result=floating, grad=lambda g, out: line_slope(g, out, 1.0, 1.0),
              complex=HOLOMORPHIC, complex_cpu=complex_arrays.expm1)
log = unary("log", "The natural logarithm; NaN below 0, of complex numbers with an imaginary part in [-π, π].", np.log, result=floating,
            domain=APART, grad=lambda g, input: g / input, complex=HOLOMORPHIC)
log2 = unary("log2", "The logarithm to base 2.", np.log2, result=floating, domain=APART,
             grad=lambda g, input: quotient_slope(g, input, 1 / math.log(2), -0.0), complex=HOLOMORPHIC)
log10 = unary("log10", "The logarithm to base 10.", np.log10, result=floating, domain=APART,
              grad=lambda g, input: quotient_slope(g, input, 1 / math.log(10), -0.0), complex=HOLOMORPHIC)
log1p = unary("log1p", "log(1 + input), exact near 0.", np.log1p, result=floating, domain=APART,
              grad=lambda g, input: quotient_slope(g, input, 1.0, 1.0), complex=HOLOMORPHIC, complex_cpu=complex_arrays.log1p)
logaddexp = binary("logaddexp", "log(e^input + e^other), without overflow.", np.logaddexp, tensors="input other",
                   result=floats_or_complex, complex=HOLOMORPHIC, complex_cpu=complex_arrays.logaddexp,
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


sigmoid = unary("sigmoid", "1 / (1 + e^-input).", special.sigmoid, result=floating, grad=lambda g, out: sigmoid_backward(g, out),
                complex=HOLOMORPHIC, complex_cpu=complex_arrays.sigmoid)
sigmoid_backward = binary("sigmoid_backward", "g · out · (1 - out).", lambda g, out: g * (out * (1 - out)), names=("g_out", "out_value"),
                          grad_input=lambda g, out_value: sigmoid_backward(g, out_value),
                          grad_other=lambda g, g_out, out_value: g * (g_out * (1 - 2 * out_value)), complex=HOLOMORPHIC)
logit_eps = unary("logit_eps", "log(p / (1 - p)) of p = input clamped to [eps, 1 - eps]; eps < 0 clamps nothing.", special.logit, "logit",
                  result=floating,
                  attrs=(("eps", -1.0),), domain={"low": 0.1, "high": 0.9},
                  grad=lambda g, input, eps: (g / (input * (1 - input))).masked_fill(
                      (input < max(eps, 0)) | (input > 1 - max(eps, 0)), 0 if eps >= 0 else math.nan))


def logit(input, eps=None, *, out=None):
    """log(input / (1 - input)), the inverse of sigmoid; with eps the input is clamped to [eps, 1 - eps]."""
    eps = -1.0 if eps is None else eps
    return logit_eps(input, eps) if out is None else logit_eps.into(out, input, eps)


# ------------------------------------------------------------------ the error function and gamma
erf = unary("erf", "2/√π ∫₀^input e^(-t²) dt.", special.erf, result=floating,
            grad=lambda g, input: bell_slope(g, input, 1.1283791670955126))
erfc = unary("erfc", "1 - erf(input).", special.erfc, result=floating,
             grad=lambda g, input: bell_slope(g, input, -1.1283791670955126))
erfinv = unary("erfinv", "The inverse of erf, on (-1, 1).", special.erfinv, result=floating, domain=UNIT,
               grad=lambda g, out: g * (exp(out * out) * 0.8862269254527580))
lgamma = unary("lgamma", "log |Γ(input)|.", special.lgamma, result=floating, domain=APART, grad=lambda g, input: g * digamma(input))
digamma = unary("digamma", "The derivative of lgamma.", special.digamma, result=floating, domain=APART,
                grad=lambda g, input: g * polygamma1(input))
polygamma1 = unary("polygamma1", "The derivative of digamma (trigamma).", special.trigamma, "trigamma", result=floating, domain=APART)

# ------------------------------------------------------------------ extremes
maximum = binary("maximum", "The greater of the two; NaN where one is NaN.", np.maximum,
                 tensors="input other", grad_input=lambda g, input, other: extreme_slope(g, input, other, 1),
                 grad_other=lambda g, input, other: extreme_slope(g, other, input, 1))
minimum = binary("minimum", "The smaller of the two; NaN where one is NaN.", np.minimum,
                 tensors="input other", grad_input=lambda g, input, other: extreme_slope(g, input, other, -1),
                 grad_other=lambda g, input, other: extreme_slope(g, other, input, -1))
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
    with no_grad():
        step = compare.where((y > x) == (x > 0), 1, -1).to(types.int16)  # away from zero the bits of a number count up
        least = types.finfo(kind).smallest_normal * types.finfo(kind).eps
        made = compare.where(x == 0, compare.where(y < 0, -least, least).to(kind), (x.view(types.int16) + step).view(kind))
        made = compare.where(x == y, y, compare.where((x != x) | (y != y), math.nan, made))
    if state.grad and x.requires_grad:
        bits, made = made, compare.where(x == y, 0, x)                   # has the gradient that a view of other bits cuts off
        with no_grad():
            made.copy_(bits)
    return copy.deliver(made, out)


heaviside = binary("heaviside", "0 below 0 and for NaN, 1 above, other at 0.", lambda x, y: np.where(np.equal(x, 0), y, np.greater(x, 0)),
                   result=one_dtype, tensors="input other", grad_input=zeros, grad_other=zeros)


# ------------------------------------------------------------------ PyTorch's other names
subtract, multiply, divide, true_divide, negative, absolute, fix = sub, mul, div, div, neg, abs, trunc


def ldexp(input, other, *, out=None):
    """input · 2^other, in two steps: 2^other alone may be too large where the product is not."""
    tensors("ldexp", input=input, other=other)
    kind = promote_float(input, other)
    if kind.is_complex:
        return copy.deliver(mul(input, pow(2.0, other)), out)
    # 2^5000 is infinite in every dtype, and half of it, too; half of an infinite exponent would leave ∞ - ∞
    other = compare.clamp(other.to(kind.compute), -5000, 5000)
    half = trunc(other / 2)
    made = mul(mul(input, pow(2.0, half)), pow(2.0, other - half))
    return copy.deliver(made.to(kind), out)
