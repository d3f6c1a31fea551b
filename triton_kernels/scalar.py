"""Scalar functions of the elementwise operators. Each takes and returns blocks of one compute type; the loops are in pointwise.py."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .digamma import digamma, trigamma  # noqa: F401
from .division import div  # noqa: F401
from .quick import quick_exp, quick_inverse

SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)                   # numbers nearer to 0 are 0 to libdevice's functions of float32


# ------------------------------------------------------------------ arithmetic
@triton.jit
def identity(x):
    return x


@triton.jit
def add(x, y, alpha):
    return x + y * alpha


@triton.jit
def plus(x, y):
    return x + y


@triton.jit
def sub(x, y, alpha):
    return x - y * alpha


@triton.jit
def minus(x, y):
    return x - y


@triton.jit
def mul(x, y):
    return x * y


@triton.jit
def mul_conjugate(x, y):
    return x * y


@triton.jit
def trunc_divide(x, y):
    if x.dtype.is_floating():
        return libdevice.trunc(div(x, y))
    else:
        return x // y


@triton.jit
def rest_of(x, y):
    return tl.where(tl.abs(x) < tl.abs(y), x, libdevice.fmod(x, y))


@triton.jit
def fmod(x, y):
    if x.dtype == tl.float32:                                            # modulo a multiple of y, and of that modulo y, where y is tiny
        scale = tl.where(tl.abs(y) < SMALLEST_NORMAL, 1.152921504606847e18, 1.0)
        return rest_of(rest_of(x, y * scale) * scale, y * scale) / scale
    elif x.dtype.is_floating():
        return libdevice.fmod(x, y)
    else:
        return x % y


@triton.jit
def remainder(x, y):
    rest = fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def floor_divide(x, y):
    rest = fmod(x, y)
    away = (rest != 0) & ((rest < 0) != (y < 0))
    if x.dtype.is_floating():
        quotient = div(x - rest, y) - tl.where(away, 1.0, 0.0).to(x.dtype)
        below = libdevice.floor(quotient)
        whole = tl.where(quotient - below > 0.5, below + 1, below)
        return tl.where(y == 0, div(x, y), tl.where(whole == 0, div(x, y) * 0, whole))                  # a 0 with its sign
    else:
        return x // y - away.to(x.dtype)


@triton.jit
def pow(x, y):
    if x.dtype == tl.float32:
        tiny = tl.abs(x) < SMALLEST_NORMAL
        out = libdevice.pow(tl.where(tiny, x * 16777216.0, x), y)
        return tl.where(tiny, out * libdevice.exp2(-24.0 * y), out)
    elif x.dtype.is_floating():
        return libdevice.pow(x, y)
    else:
        out = tl.where(y >= 0, 1, tl.where(x == 1, 1, tl.where(x == -1, 1 - 2 * (y & 1), 0))).to(x.dtype)
        while tl.max(y) > 0:                                             # by squaring
            out = tl.where(y % 2 == 1, out * x, out)
            x = x * x
            y = y // 2
        return out


@triton.jit
def square(x):
    return x * x


@triton.jit
def cube(x):
    return x * x * x


@triton.jit
def reciprocal(x):
    return div(tl.full(x.shape, 1.0, x.dtype), x)


@triton.jit
def neg(x):
    return x * -1.0 if x.dtype.is_floating() else -x                    # -x is 0 - x, which loses the sign of 0


@triton.jit
def abs(x):
    return tl.abs(x)


@triton.jit
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def round_even(x):
    return libdevice.rint(x) if x.dtype.is_floating() else x


# ------------------------------------------------------------------ functions of libdevice
@triton.jit
def exp(x):
    return libdevice.exp(x)


@triton.jit
def exp2(x):
    return libdevice.exp2(x)


@triton.jit
def expm1(x):
    return libdevice.expm1(x)


@triton.jit
def log(x):
    return libdevice.log(x)


@triton.jit
def log2(x):
    return libdevice.log2(x)


@triton.jit
def log10(x):
    return libdevice.log10(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def sqrt(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else libdevice.sqrt(x)


@triton.jit
def rsqrt(x):
    if x.dtype == tl.float32:
        tiny = tl.abs(x) < SMALLEST_NORMAL
        return libdevice.rsqrt(tl.where(tiny, x * 16777216.0, x)) * tl.where(tiny, 4096.0, 1.0)
    else:
        return libdevice.rsqrt(x)


@triton.jit
def sin(x):
    return libdevice.sin(x)


@triton.jit
def cos(x):
    return libdevice.cos(x)


@triton.jit
def tan(x):
    return libdevice.tan(x)


@triton.jit
def asin(x):
    return libdevice.asin(x)


@triton.jit
def acos(x):
    return libdevice.acos(x)


@triton.jit
def atan(x):
    return libdevice.atan(x)


@triton.jit
def sinh(x):
    return libdevice.sinh(x)


@triton.jit
def cosh(x):
    return libdevice.cosh(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def asinh(x):
    return libdevice.asinh(x)


@triton.jit
def acosh(x):
    return libdevice.acosh(x)


@triton.jit
def atanh(x):
    return libdevice.atanh(x)


@triton.jit
def erf(x):
    return libdevice.erf(x)


@triton.jit
def erfc(x):
    return libdevice.erfc(x)


@triton.jit
def erfinv(x):
    return libdevice.erfinv(x)


@triton.jit
def lgamma(x):
    if x.dtype == tl.float32:
        tiny = tl.abs(x) < SMALLEST_NORMAL                               # there it is -log|x|
        return libdevice.lgamma(tl.where(tiny, x * 16777216.0, x)) + tl.where(tiny, 16.635532333438686, 0.0)
    else:
        return libdevice.lgamma(x)


@triton.jit
def ceil(x):
    whole = trunc(x)                                                     # libdevice's ceil is 0 also of subnormal numbers above 0
    return tl.where(whole < x, whole + 1, whole)


@triton.jit
def floor(x):
    whole = trunc(x)
    return tl.where(whole > x, whole - 1, whole)


@triton.jit
def trunc(x):
    return libdevice.trunc(x) if x.dtype.is_floating() else x


@triton.jit
def from_zero(x, y):
    """A power of two by which two numbers next to 0 are none that libdevice takes for 0."""
    return tl.where(tl.maximum(tl.abs(x), tl.abs(y)) < 8.673617379884035e-19, 1.152921504606847e18, 1.0)


@triton.jit
def atan2(x, y):
    if x.dtype == tl.float32:
        scale = from_zero(x, y)
        return libdevice.atan2(x * scale, y * scale)
    else:
        return libdevice.atan2(x, y)


@triton.jit
def hypot(x, y):
    if x.dtype == tl.float32:
        scale = from_zero(x, y)
        return libdevice.hypot(x * scale, y * scale) / scale
    else:
        return libdevice.hypot(x, y)


@triton.jit
def copysign(x, y):
    return libdevice.copysign(x, y)


@triton.jit
def sigmoid(x):
    return quick_inverse(1.0 + quick_exp(-x))


@triton.jit
def logit(x, eps):
    bounded = tl.where(x < eps, eps, tl.where(x > 1 - eps, 1 - eps, x)).to(x.dtype)
    x = tl.where(eps >= 0, bounded, x)
    return libdevice.log(div(x, 1 - x))


@triton.jit
def sigmoid_backward(g, out):
    return g * (out * (1 - out))


@triton.jit
def tanh_backward(g, out):
    return g * (1 - out * out)


@triton.jit
def logaddexp(x, y):
    high, low = tl.maximum(x, y), tl.minimum(x, y)
    sum = high + libdevice.log1p(libdevice.exp(low - high))
    return tl.where((x == y) & (libdevice.abs(x) == float("inf")), x, tl.where((x == x) & (y == y), sum, x + y))


@triton.jit
def logaddexp2(x, y):
    high, low = tl.maximum(x, y), tl.minimum(x, y)
    sum = high + libdevice.log1p(libdevice.exp2(low - high)) * 1.4426950408889634
    return tl.where((x == y) & (libdevice.abs(x) == float("inf")), x, tl.where((x == x) & (y == y), sum, x + y))


@triton.jit
def xlogy(x, y):
    return tl.where((x == 0) & (y == y), tl.zeros_like(x), x * libdevice.log(y))


@triton.jit
def sinc(x):
    turned = x * 3.141592653589793
    return tl.where(tl.abs(x) < 1e-9, tl.full(x.shape, 1.0, x.dtype), div(libdevice.sin(turned), turned))


@triton.jit
def maximum(x, y):
    if x.dtype.is_floating():
        return tl.where((x >= y) | (x != x), x, y)
    else:
        return tl.maximum(x, y)


@triton.jit
def minimum(x, y):
    if x.dtype.is_floating():
        return tl.where((x <= y) | (x != x), x, y)
    else:
        return tl.minimum(x, y)


@triton.jit
def fmax(x, y):
    return tl.where((x >= y) | (y != y), x, y)


@triton.jit
def fmin(x, y):
    return tl.where((x <= y) | (y != y), x, y)


@triton.jit
def heaviside(x, y):
    return tl.where(x == 0, y, (x > 0).to(x.dtype))
