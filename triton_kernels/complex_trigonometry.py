"""Trigonometric and hyperbolic functions of complex numbers and their inverses, pairs of blocks of float32 or float64. Special values and
branch cuts are those of C99, annex G. The inverses follow Kahan, Branch cuts for complex elementary functions, 1987: they are made of
square roots whose parts are added without cancelling."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from . import scalar
from .complex_arithmetic import div, mul, reciprocal
from .complex_exponentials import finite, infinite, log_modulus, pick
from .complex_exponentials import sqrt as root


# ------------------------------------------------------------------ hyperbolic functions
@triton.jit
def hyperbolic(x):
    """(cosh x, sinh x, factor): where the two would overflow they are those of x / 2 and the factor is what is missing, else 1."""
    size = tl.abs(x)
    large = size > pick(x, 88.0, 709.0)
    less = libdevice.expm1(tl.where(large, 0.5 * size, size))
    e = less + 1.0
    high, low = 0.5 * (e + scalar.div(tl.full(x.shape, 1.0, x.dtype), e)), 0.5 * (less + scalar.div(less, e))
    high, low = tl.where(large, 0.5 * e, high), tl.where(large, 0.5 * e, low)
    return high, libdevice.copysign(low, x), tl.where(large, e, 1.0)


@triton.jit
def cosh(z):
    x, y = z[0], z[1]
    c, s, more = hyperbolic(x)
    re, im = c * libdevice.cos(y) * more, s * libdevice.sin(y) * more
    re = tl.where(infinite(x) & ~finite(y), float("inf"), re).to(x.dtype)
    im = tl.where((x == 0) & ~finite(y), x, im)
    return re, tl.where(y == 0, libdevice.copysign(tl.full(x.shape, 1.0, x.dtype), x) * y, im)


@triton.jit
def sinh(z):
    x, y = z[0], z[1]
    c, s, more = hyperbolic(x)
    re, im = s * libdevice.cos(y) * more, c * libdevice.sin(y) * more
    re = tl.where(infinite(x) & ~finite(y), x, re)
    return tl.where((x == 0) & ~finite(y), x, re), tl.where(y == 0, y, im)


@triton.jit
def tanh(z):
    """(sinh x cosh x + i sin y cos y) / (sinh² x + cos² y); ±1 and 4 sin y cos y e^(-2|x|) where cosh and sinh are the same."""
    x, y = z[0], z[1]
    far = tl.abs(x) > 20
    less = libdevice.expm1(tl.where(far, 20.0, tl.abs(x)))
    e = less + 1.0
    high, low = 0.5 * (e + scalar.div(tl.full(x.shape, 1.0, x.dtype), e)), 0.5 * (less + scalar.div(less, e))
    sine, cosine = libdevice.sin(y), libdevice.cos(y)
    under = low * low + cosine * cosine
    tail = libdevice.exp(scalar.neg(tl.abs(x)))
    re = tl.where(far, 1.0, scalar.div(low * high, under)).to(x.dtype)
    im = tl.where(far, 4.0 * sine * cosine * tail * tail, scalar.div(sine * cosine, under))
    im = tl.where(infinite(x) & ~finite(y), 0.0, im).to(x.dtype)
    re = tl.where(x == x, libdevice.copysign(tl.where(infinite(x), re, re + (y - y)), x), x)
    return tl.where(x == 0, x, re), tl.where(y == 0, y, im)


@triton.jit
def tanh_backward(g, out):
    square = mul(out, out)
    return mul(g, (1.0 - square[0], scalar.neg(square[1])))


# ------------------------------------------------------------------ trigonometric functions: those of iz
@triton.jit
def sin(z):
    out = sinh((scalar.neg(z[1]), z[0]))
    return out[1], scalar.neg(out[0])


@triton.jit
def cos(z):
    return cosh((scalar.neg(z[1]), z[0]))


@triton.jit
def tan(z):
    out = tanh((scalar.neg(z[1]), z[0]))
    return out[1], scalar.neg(out[0])


@triton.jit
def sinc(z):
    turned = z[0] * 3.141592653589793, z[1] * 3.141592653589793
    out = div(sin(turned), turned)
    zero = (z[0] == 0) & (z[1] == 0)
    return tl.where(zero, 1.0, out[0]).to(z[0].dtype), tl.where(zero, 0.0, out[1]).to(z[0].dtype)


# ------------------------------------------------------------------ inverses
@triton.jit
def arc(x, y):
    """(Re asin, Im asin, Re acos) of a number with both parts positive."""
    a, b = root((1.0 - x, y)), root((1.0 + x, y))
    far = (x > pick(x, 1e18, 1e150)) | (y > pick(x, 1e18, 1e150))
    sine = libdevice.atan2(x, tl.where(far, y, a[0] * b[0] + a[1] * b[1]))
    size = libdevice.asinh(tl.where(far, 1.0, a[0] * b[1] + a[1] * b[0]))
    size = tl.where(far, log_modulus(x, y) + 0.6931471805599453, size)
    cosine = libdevice.atan2(tl.where(far, y, a[0]), tl.where(far, x, b[0]))
    cosine = tl.where(far, cosine, 2.0 * cosine)
    size = tl.where((y == 0) & (x <= 1), y, size)
    return tl.where(x == 0, x, sine), size, tl.where(x == 0, 1.5707963267948966, cosine)


@triton.jit
def asin(z):
    re, im, _ = arc(tl.abs(z[0]), tl.abs(z[1]))
    return libdevice.copysign(re, z[0]), libdevice.copysign(im, z[1])


@triton.jit
def acos(z):
    x, y = tl.abs(z[0]), tl.abs(z[1])
    re, im, cosine = arc(x, y)
    return tl.where(z[0] < 0, 3.141592653589793 - cosine, cosine), libdevice.copysign(im, scalar.neg(z[1]))


@triton.jit
def asinh(z):
    im, re, _ = arc(tl.abs(z[1]), tl.abs(z[0]))
    return libdevice.copysign(re, z[0]), libdevice.copysign(im, z[1])


@triton.jit
def acosh(z):
    out = acos(z)
    return tl.abs(out[1]), libdevice.copysign(out[0], z[1])


@triton.jit
def half_log(x, y):
    """(Re, Im) of atanh of a number with both parts positive: ¼ log(1 + 4x / ((1 - x)² + y²)) and ½ atan2(2y, (1 - x)(1 + x) - y²); far
    out Re 1/z and π/2."""
    near = 1.0 - x
    far = (x > pick(x, 1e8, 1e16)) | (y > pick(x, 1e8, 1e16))
    under = near * near + y * y
    re = 0.25 * libdevice.log1p(scalar.div(4.0 * x, under))
    re = tl.where((x == 1) & (y < pick(x, 1e-8, 1e-16)), 0.5 * (0.6931471805599453 - libdevice.log(y)), re)
    re = tl.where(far, tl.where(infinite(x) | infinite(y), 0.0, reciprocal((x, y))[0]), re)
    im = tl.where(far, 1.5707963267948966, 0.5 * libdevice.atan2(2.0 * y, near * (1.0 + x) - y * y))
    im = tl.where((y != y) | (y == 0) & (x < 1), y, tl.where((x != x) & ~infinite(y), x, im))
    return tl.where(x == 0, x, re), im


@triton.jit
def atanh(z):
    re, im = half_log(tl.abs(z[0]), tl.abs(z[1]))
    return libdevice.copysign(re, z[0]), libdevice.copysign(im, z[1])


@triton.jit
def atan(z):
    im, re = half_log(tl.abs(z[1]), tl.abs(z[0]))
    return libdevice.copysign(re, z[0]), libdevice.copysign(im, z[1])
