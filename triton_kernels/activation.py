"""Scalar functions of the activations and their derivatives; the loops are in pointwise.py."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .compare import clamp_numbers
from .quick import quick_inverse
from .scalar import sigmoid


@triton.jit
def relu(x):
    return tl.where(x > 0, x, tl.where(x == x, 0, x))


@triton.jit
def relu_backward(g, out):
    return tl.where(out <= 0, 0, g)


@triton.jit
def leaky_slope(x, slope):
    return tl.where(x > 0, x, x * slope)


@triton.jit
def threshold_at(x, threshold, value):
    return tl.where(x <= threshold, value, x).to(x.dtype)


@triton.jit
def hardshrink_at(x, lambd):
    return tl.where((x > lambd) | (x < -lambd) | (x != x), x, tl.zeros_like(x))


@triton.jit
def softshrink_at(x, lambd):
    return tl.where(x > lambd, x - lambd, tl.where(x < -lambd, x + lambd, tl.where(x == x, 0.0, x))).to(x.dtype)


@triton.jit
def tail_power(x):
    """(t, p) with Φ(-|x|) = t · 2^(p - x²/2 · log₂ e) for float32, within 3e-7 of itself everywhere, where 1 + erf cancels; and in half the
    instructions. Numerical Recipes, erfcc: a fit by Chebyshev polynomials of t = 1 / (1 + |x|/√8), here with log₂ ½ and to base 2."""
    t = quick_inverse(1.0 + 0.35355339059327373 * tl.abs(x))
    p = -1.1861149451 + t * 0.2465172979
    p = -1.6377531523 + t * (2.1474744640 + t * p)
    p = -0.2687568607 + t * (0.4023215817 + t * p)
    p = 0.5397006155 + t * (0.1396300565 + t * p)
    return t, -2.8257482180 + t * (1.4427292037 + t * p)


@triton.jit
def either_side(x, tail):
    """Φ(x), given Φ(-|x|)."""
    return tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def gelu_erf(x):
    if x.dtype == tl.float32:
        t, p = tail_power(x)
        return x * either_side(x, t * libdevice.exp2(p - 0.7213475204444817 * x * x))
    else:
        return x * (0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476)))


@triton.jit
def gelu_erf_backward(g, x):
    if x.dtype == tl.float32:
        t, p = tail_power(x)
        density = libdevice.exp2(-0.7213475204444817 * x * x)
        cdf = either_side(x, t * libdevice.exp2(p) * density)
    else:
        density = libdevice.exp(-0.5 * x * x)
        cdf = 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))
    return g * (cdf + x * density * 0.3989422804014327)


@triton.jit
def tanh_share(x, square):
    """(1 + tanh u) / 2 = σ(2u) for u = √(2/π) · (x + 0.044715 · x³), the constants times -2 log₂ e: where products end with it, every
    instruction counts. In float64 exp instead: the compiler takes the product and the difference that exp2 begins with for one rounding or
    for two, as it happens to see both, and bits would depend on the kernel."""
    if x.dtype == tl.float64:
        return quick_inverse(1.0 + libdevice.exp(x * (-1.5957691216057308 + -0.07135481627260025 * square)))
    return quick_inverse(1.0 + libdevice.exp2(x * (-2.302208198144325 + -0.1029432395800235 * square)))


@triton.jit
def gelu_tanh(x):
    return x * tanh_share(x, x * x)


@triton.jit
def gelu_tanh_backward(g, x):
    square = x * x
    s = tanh_share(x, square)
    return g * (s + x * s * (1.0 - s) * (1.5957691216057308 + 0.21406444881780073 * square))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_backward(g, x):
    s = sigmoid(x)
    return g * s * (1.0 + x * (1.0 - s))


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + libdevice.log1p(libdevice.exp(-tl.abs(x)))


@triton.jit
def softplus_of(x, beta, threshold):
    return tl.where(x * beta > threshold, x, softplus((x * beta).to(x.dtype)) / beta).to(x.dtype)


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - libdevice.log1p(libdevice.exp(-tl.abs(x)))


@triton.jit
def mish(x):
    return x * libdevice.tanh(softplus(x))


@triton.jit
def elu_of(x, alpha):
    return tl.where(x < 0, libdevice.expm1(x) * alpha, x).to(x.dtype)


@triton.jit
def celu_of(x, alpha):
    return tl.where(x < 0, libdevice.expm1((x / alpha).to(x.dtype)) * alpha, x).to(x.dtype)


@triton.jit
def selu(x):
    return 1.0507009873554805 * tl.where(x < 0, 1.6732632423543772 * libdevice.expm1(x), x)


@triton.jit
def hardsigmoid(x):
    return clamp_numbers(x + 3.0, 0.0, 6.0) * 0.16666666666666666


@triton.jit
def hardswish(x):
    return x * clamp_numbers(x + 3.0, 0.0, 6.0) * 0.16666666666666666
