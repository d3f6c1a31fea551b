"""Roots, exponentials, logarithms and powers of complex numbers, pairs of blocks of float32 or float64. Infinities, NaN, zeros with a sign
and branch cuts are those of C99, annex G, as numpy's are; nothing overflows or vanishes on the way to a result that does not."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from . import scalar
from .complex_arithmetic import div, minus, mul, plus, real


# ------------------------------------------------------------------ limits of the two types
@triton.jit
def pick(x, single: tl.constexpr, double: tl.constexpr):
    """A number for float32, another for float64."""
    return double if x.dtype == tl.float64 else single


@triton.jit
def infinite(x):
    return tl.abs(x) == float("inf")


@triton.jit
def finite(x):
    return x - x == 0


# ------------------------------------------------------------------ roots
@triton.jit
def scale_of(x, y):
    """A power of 4 that brings the larger of two numbers to where neither their squares' root nor its square overflow or lose bits."""
    large = tl.maximum(tl.abs(x), tl.abs(y))
    up, down = large < pick(x, 1e-30, 1e-290), large > pick(x, 1e37, 1e307)
    one = tl.full(x.shape, 1.0, x.dtype)
    return tl.where(up, 18014398509481984.0, tl.where(down, 0.25, one)).to(x.dtype)          # 2^54, 2^-2


@triton.jit
def sqrt(z):
    """By the half angle: t = √((|x| + |z|) / 2) is one part, y / 2t the other, and no digits cancel (Kahan 1987)."""
    scale = scale_of(z[0], z[1])
    x, y = z[0] * scale, z[1] * scale
    t = scalar.sqrt(0.5 * (tl.abs(x) + libdevice.hypot(x, y)))
    other = tl.where(t == 0, y, scalar.div(y, 2.0 * t))
    left = x < 0
    back = tl.where(scale == 0.25, 2.0, tl.where(scale == 1, 1.0, 7.450580596923828e-09)).to(x.dtype)         # 2^-27
    re, im = tl.where(left, tl.abs(other), t) * back, tl.where(left, libdevice.copysign(t, y), other) * back
    return tl.where(infinite(y), float("inf"), re).to(x.dtype), tl.where(infinite(y), y, im)


@triton.jit
def rsqrt(z):
    root = sqrt(z)
    return div(real(tl.full(root[0].shape, 1.0, root[0].dtype)), root)


# ------------------------------------------------------------------ exponentials
@triton.jit
def turned(half, again, x, y):
    """half · again · (cos y + i sin y), of half = e^x or, where it would overflow, of both = e^(x / 2)."""
    re, im = half * libdevice.cos(y) * again, half * libdevice.sin(y) * again
    re = tl.where((x == float("inf")) & ~finite(y), float("inf"), re)
    im = tl.where(y == 0, y, im)                                         # ∞ · 0
    none = (x == -float("inf")) & ~finite(y)
    return tl.where(none, 0.0, re).to(x.dtype), tl.where(none, 0.0, im).to(x.dtype)


@triton.jit
def exp(z):
    x, y = z[0], z[1]
    large = x > pick(x, 88.0, 709.0)
    half = libdevice.exp(tl.where(large, 0.5 * x, x))
    return turned(half, tl.where(large, half, 1.0), x, y)


@triton.jit
def exp2(z):
    x, y = z[0], z[1] * 0.6931471805599453
    large = x > pick(x, 127.0, 1023.0)
    half = libdevice.exp2(tl.where(large, 0.5 * x, x))
    return turned(half, tl.where(large, half, 1.0), x, y)


@triton.jit
def expm1(z):
    """Re: (e^x - 1) cos y - 2 sin²(y / 2)."""
    x, y = z[0], z[1]
    whole = exp(z)
    sine = libdevice.sin(0.5 * y)
    near = libdevice.expm1(x) * libdevice.cos(y) - 2.0 * sine * sine
    return tl.where((x < 1) & finite(y), near, whole[0] - 1.0), whole[1]


@triton.jit
def sigmoid(z):
    """1 / (1 + e^-z), for Re z < 0 as e^z / (1 + e^z): the exponential is never large."""
    right = z[0] >= 0
    small = exp((scalar.neg(tl.abs(z[0])), tl.where(right, scalar.neg(z[1]), z[1])))
    top = tl.where(right, 1.0, small[0]), tl.where(right, 0.0, small[1])
    return div(top, (1.0 + small[0], small[1]))


@triton.jit
def sigmoid_backward(g, out):
    return mul(g, mul(out, (1.0 - out[0], scalar.neg(out[1]))))


@triton.jit
def silu(z):
    return mul(z, sigmoid(z))


@triton.jit
def silu_backward(g, z):
    s = sigmoid(z)
    more = mul(z, (1.0 - s[0], scalar.neg(s[1])))
    return mul(g, mul(s, (1.0 + more[0], more[1])))


# ------------------------------------------------------------------ logarithms
@triton.jit
def excess(x, y):
    """(1 + x)² + y² - 1; of float32 in float64, because it cancels near the circle around -1."""
    a, b = x.to(tl.float64), y.to(tl.float64)
    return (a * (2.0 + a) + b * b).to(x.dtype)


@triton.jit
def log_modulus(x, y):
    """log √(x² + y²)."""
    scale = scale_of(x, y)
    size = libdevice.hypot(x * scale, y * scale)
    out = libdevice.log(size)
    out = tl.where(scale == 0.25, out + 1.3862943611198906, tl.where(scale == 1, out, out - 37.42994775023705))         # log of 4, of 2^54
    high, low = tl.maximum(tl.abs(x), tl.abs(y)), tl.minimum(tl.abs(x), tl.abs(y))
    near = (size > 0.5) & (size < 2) & (scale == 1)
    return tl.where(near, 0.5 * libdevice.log1p(excess(high - 1.0, low)), out)


@triton.jit
def log(z):
    return log_modulus(z[0], z[1]), libdevice.atan2(z[1], z[0])


@triton.jit
def log2(z):
    out = log(z)
    return out[0] * 1.4426950408889634, out[1] * 1.4426950408889634


@triton.jit
def log10(z):
    out = log(z)
    return out[0] * 0.4342944819032518, out[1] * 0.4342944819032518


@triton.jit
def log1p(z):
    x, y = z[0], z[1]
    beside = 1.0 + x
    size = libdevice.hypot(beside, y)
    near = (size > 0.5) & (size < 2)
    q = tl.where(near, excess(tl.where(near, x, 0.0).to(x.dtype), tl.where(near, y, 0.0).to(x.dtype)), 0.0).to(x.dtype)
    return tl.where(near, 0.5 * libdevice.log1p(q), log_modulus(beside, y)), libdevice.atan2(y, beside)


@triton.jit
def logaddexp(x, y):
    """The one with the larger real part, plus log(1 + e^(other - it))."""
    first = x[0] >= y[0]
    high = tl.where(first, x[0], y[0]), tl.where(first, x[1], y[1])
    low = tl.where(first, y[0], x[0]), tl.where(first, y[1], x[1])
    rest = minus(low, high)
    same = (x[0] == y[0]) & (x[1] == y[1]) & infinite(x[0])
    more = log1p(exp((tl.where(same, 0.0, rest[0]).to(x[0].dtype), tl.where(same, 0.0, rest[1]).to(x[0].dtype))))
    return plus(high, more)


# ------------------------------------------------------------------ powers
@triton.jit
def whole_power(z, n):
    """z to the power of whole numbers of both signs, by squaring."""
    left = tl.abs(n).to(tl.int32)
    re, im = tl.full(n.shape, 1.0, n.dtype), tl.zeros_like(n)
    base_re, base_im = z[0], z[1]
    while tl.max(left) > 0:
        odd = left % 2 == 1
        first = (re == 1) & (im == 0)                                    # 1 · ∞i would have a NaN
        more_re, more_im = mul((re, im), (base_re, base_im))
        re, im = tl.where(odd, tl.where(first, base_re, more_re), re), tl.where(odd, tl.where(first, base_im, more_im), im)
        base_re, base_im = mul((base_re, base_im), (base_re, base_im))
        left = left // 2
    under = div(real(tl.full(n.shape, 1.0, n.dtype)), (re, im))
    return tl.where(n < 0, under[0], re), tl.where(n < 0, under[1], im)


@triton.jit
def pow(z, w):
    """e^(w log z), small whole powers by multiplying. 0^0 = 1, 0^w = 0 where Re w > 0, infinite where Re w < 0."""
    x, y, c, d = z[0], z[1], w[0], w[1]
    whole = (d == 0) & (tl.abs(c) <= 64) & (libdevice.rint(c) == c)
    made_re, made_im = whole_power(z, tl.where(whole, c, 0.0).to(c.dtype))
    theta, logarithm = libdevice.atan2(y, x), log_modulus(x, y)
    exponent = c * logarithm - d * theta
    large = exponent > pick(x, 88.0, 709.0)
    half, again = libdevice.exp(tl.where(large, 0.5 * exponent, exponent)), tl.full(x.shape, 1.0, x.dtype)
    size = libdevice.pow(libdevice.hypot(x, y), c)                       # of a real power this keeps the last bits
    plain = (d == 0) & (size > pick(x, 1e-37, 1e-307)) & (size < float("inf"))
    re, im = turned(tl.where(plain, size, half), tl.where(large & ~plain, half, again), exponent, d * logarithm + c * theta)
    zero = (x == 0) & (y == 0)
    re = tl.where(zero, tl.where(c > 0, 0.0, tl.where(c < 0, float("inf"), float("nan"))), re).to(x.dtype)
    im = tl.where(zero, tl.where(c > 0, 0.0, float("nan")), im).to(x.dtype)
    return tl.where(whole, made_re, re), tl.where(whole, made_im, im)
