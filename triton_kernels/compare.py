"""Scalar functions of comparisons, predicates, logic, bits and choices; the loops are in pointwise.py."""
import triton
import triton.language as tl
from triton.language.extra import libdevice


# ------------------------------------------------------------------ choices
@triton.jit
def where(condition, x, y):
    return tl.where(condition != 0, x, y)


@triton.jit
def made_finite(x, nan, high, low):
    return tl.where(x != x, nan, tl.where(x == float("inf"), high, tl.where(x == -float("inf"), low, x))).to(x.dtype)


@triton.jit
def clamp_numbers(x, low, high):
    x = tl.where(x < low, low, x).to(x.dtype)
    return tl.where(x > high, high, x).to(x.dtype)


# ------------------------------------------------------------------ comparisons and predicates
@triton.jit
def eq(x, y):
    return x == y


@triton.jit
def ne(x, y):
    return x != y


@triton.jit
def lt(x, y):
    return x < y


@triton.jit
def le(x, y):
    return x <= y


@triton.jit
def gt(x, y):
    return x > y


@triton.jit
def ge(x, y):
    return x >= y


@triton.jit
def close_numbers(x, y, rtol, atol):
    apart = tl.abs(x - y)
    return (x == y) | ((apart <= (tl.abs(y) * rtol + atol).to(x.dtype)) & (apart - apart == 0))


@triton.jit
def close_or_nan(x, y, rtol, atol):
    return close_numbers(x, y, rtol, atol) | ((x != x) & (y != y))


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def isinf(x):
    return (x == float("inf")) | (x == -float("inf")) if x.dtype.is_floating() else x != x


@triton.jit
def isfinite(x):
    return (x - x == 0) if x.dtype.is_floating() else x == x


@triton.jit
def isposinf(x):
    return x == float("inf") if x.dtype.is_floating() else x != x


@triton.jit
def isneginf(x):
    return x == -float("inf") if x.dtype.is_floating() else x != x


@triton.jit
def signbit(x):
    return libdevice.copysign(tl.full(x.shape, 1.0, x.dtype), x) < 0 if x.dtype.is_floating() else x < 0


@triton.jit
def logical_not(x):
    return x == 0


@triton.jit
def logical_and(x, y):
    return (x != 0) & (y != 0)


@triton.jit
def logical_or(x, y):
    return (x != 0) | (y != 0)


@triton.jit
def logical_xor(x, y):
    return (x != 0) != (y != 0)


# ------------------------------------------------------------------ bits
@triton.jit
def nextafter(x, y):
    """By the bits of x, which count up away from zero: libdevice's takes what is next to 0 in float32 for 0."""
    kind: tl.constexpr = tl.int64 if x.dtype == tl.float64 else tl.int32
    minus_least: tl.constexpr = -0x7FFFFFFFFFFFFFFF if x.dtype == tl.float64 else -0x7FFFFFFF
    bits = x.to(kind, bitcast=True)
    beyond = bits + tl.where((y > x) == (x > 0), 1, -1).to(kind)
    beyond = tl.where(x == 0, tl.where(y > 0, 1, minus_least).to(kind), beyond)
    return tl.where((x != x) | (y != y), x + y, tl.where(x == y, y, beyond.to(x.dtype, bitcast=True)))


@triton.jit
def bitwise_and(x, y):
    return x & y


@triton.jit
def bitwise_or(x, y):
    return x | y


@triton.jit
def bitwise_xor(x, y):
    return x ^ y


@triton.jit
def bitwise_not(x):
    return ~x


@triton.jit
def bitwise_left_shift(x, y):
    inside = (y >= 0) & (y < x.dtype.primitive_bitwidth)                 # Triton leaves the rest open: of a wide y 32 bits would count
    return tl.where(inside, x << y, 0)


@triton.jit
def bitwise_right_shift(x, y):
    inside = (y >= 0) & (y < x.dtype.primitive_bitwidth)
    return tl.where(inside, x >> y, tl.where(x < 0, -1, 0).to(x.dtype))


@triton.jit
def gcd(x, y):
    x, y = tl.abs(x), tl.abs(y)
    while tl.max(y) > 0:
        rest = tl.where(y == 0, x, x % tl.where(y == 0, 1, y))
        x, y = tl.where(y == 0, x, y), tl.where(y == 0, y, rest)
    return x


@triton.jit
def lcm(x, y):
    divisor = gcd(x, y)
    return tl.abs(x // tl.where(divisor == 0, 1, divisor) * y)


# ------------------------------------------------------------------ three operands
@triton.jit
def lerp(x, end, weight):
    return tl.where(tl.abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1 - weight))


@triton.jit
def addcmul(x, y, z, value):
    return x + y * z * value


@triton.jit
def addcdiv(x, y, z, value):
    return x + y / z * value
