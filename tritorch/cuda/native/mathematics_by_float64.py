"""Functions of float32 whose polynomials are evaluated in float64: where the accuracy of float32 would not do, or would take more steps.

Results are off by little more than half an ulp. How the polynomials came about, and what `fit` is, mathematics_float32.py says.
"""
from __future__ import annotations

import math

from .mathematics_float32 import COS, LOG2E, SIN, clamped, large_by_libm, log_at_edges, nearest, quarter_turns, split_any
from .mathematics_special import erfcinv, erfinv, in_double, normcdfinv
from .vectors import polynomial

LOG2 = (0.28291725666241424, 0.31990461759749267, 0.4122092752689755, 0.5770779421837025, 0.9617966941136916, 2.8853900817778504)
#                                                                                                              fit 2^-45.1
EXP2 = (1.5196044078092672e-05, 0.00015466882365825199, 0.0013333936561185488, 0.009618037769577575, 0.05550410362988177,
        0.2402265106877426, 0.6931471807056903)                                                                    # 2^-34.3
ATAN = (-0.0017821441870182753, 0.010866271331906319, -0.0310935340821743, 0.05787887051701546, -0.08399207890033722, 0.10950861126184464,
        -0.1426401436328888, 0.1999852955341339, -0.33333298563957214)                                             # 2^-28.5
ERFC = (0.18327905052193466, -1.354184752051672, 4.33276105562744, -7.755156415325927, 8.377961207783724, -5.6119565560091225,
        2.5751877062197455, -1.0333251321622912, 0.12305608788760236, 0.04953118882442284, 0.37857441112955104, 0.9997781627914635,
        -1.2655060150811592)                                                                                       # 2^-32.6


def log2_of_size(x):
    """log2 |x| of a float32 in float64: with s = (m - 1)/(m + 1), 2 atanh(s) / ln 2."""
    size = abs(x)
    exponent, mantissa = split_any(size)
    mantissa = mantissa.convert("fpext", "f64")
    s = (mantissa - 1.0) / (mantissa + 1.0)
    out = s.fma(polynomial(s * s, LOG2), exponent.convert("fpext", "f64"))
    return log_at_edges(size.convert("fpext", "f64"), out)


def log(x):
    """Of a float64 that is not subnormal, to the accuracy that float32 needs."""
    offset = 0x3FE6A09E667F3BCD                                        # √½
    biased = (x.bits() - offset + (1023 << 52)).shifted_right(52)
    mantissa = (x.bits() - (biased << 52) + (1023 << 52)).as_float()
    exponent = (biased | 0x4330000000000000).as_float() - (2.0**52 + 1023)          # the bits of 2⁵² + biased
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return log_at_edges(x, s.fma(polynomial(s * s, LOG2), exponent) * math.log(2))


def exp2(x):
    """2ˣ for numbers whose result float32 has a use for."""
    x = clamped(x, -160.0, 130.0)
    n, whole = nearest(x, 1.0)
    r = x - n
    y = polynomial(r, EXP2).fma(r, 1.0)
    return y * ((whole + 1023) << 52).as_float()


def pow(x, y):
    """2^(y log2 |x|); the sign and the special cases are those of C's pow."""
    size = exp2(y.convert("fpext", "f64") * log2_of_size(x)).convert("fptrunc", "f32")
    half, floor = y * 0.5, y.intrinsic("floor")
    odd = y.equals(floor) & half.differs(half.intrinsic("floor")) & (abs(y) < math.inf)
    out = ((x.bits() < 0) & odd).where(-size, size)
    lost = (x < 0.0) & (x > -math.inf) & y.differs(floor) & (abs(y) < math.inf)
    out = lost.where(math.nan, out)
    one = x.equals(1.0) | y.equals(0.0) | (x.equals(-1.0) & abs(y).equals(math.inf))
    return one.where(1.0, out)


def hypot(x, y):
    """The squares of float32 neither overflow nor vanish in float64."""
    root = x.fma(x, y * y).intrinsic("sqrt")
    return (abs(x).equals(math.inf) | abs(y).equals(math.inf)).where(math.inf, root)


def atan2(y, x):
    """The arc of the smaller over the larger, between 0 and π/4, and from it by the octant."""
    high, wide = abs(y), abs(x)
    steep = high > wide
    small, large = steep.where(wide, high), steep.where(high, wide)
    q = small / large
    q = (small + large).equals(0.0).where(0.0, (small.equals(math.inf) & large.equals(math.inf)).where(1.0, q))
    square = q * q
    arc = (square * q).fma(polynomial(square, ATAN), q)
    arc = steep.where(math.pi / 2 - arc, arc)
    return (x.bits() < 0).where(math.pi - arc, arc).copysign(y)


def other_leg(x):
    return ((1.0 - x) * (x + 1.0)).intrinsic("sqrt")


def tan(x):
    r, n = quarter_turns(x)
    square = r * r
    sine = (square * r).fma(polynomial(square, SIN), r)
    cosine = (square * square).fma(polynomial(square, COS), square.fma(-0.5, 1.0))
    even = (n & 1).equals(0)
    out = (even.where(sine, -cosine) / even.where(cosine, sine)).convert("fptrunc", "f32")
    return large_by_libm("tan", x, x.equals(0.0).where(x, out))


def sinh(x):
    """Below 2^-6 the sum of powers, as the difference of exponentials cancels there."""
    size = abs(x)
    power = exp2(size * LOG2E)
    small = (size * size * size).fma(1 / 6, size)
    return (size < 2.0**-6).where(small, (power - 1.0 / power) * 0.5).copysign(x)


def cosh(x):
    power = exp2(abs(x) * LOG2E)
    return (power + 1.0 / power) * 0.5


def asinh(x):
    size = abs(x)
    small = (size * size * size).fma(-1 / 6, size)
    return (size < 2.0**-16).where(small, log(size + size.fma(size, 1.0).intrinsic("sqrt"))).copysign(x)


def acosh(x):
    return (x >= 1.0).where(log(x + ((x - 1.0) * (x + 1.0)).intrinsic("sqrt")), math.nan)


def atanh(x):
    size = abs(x)
    small = (size * size * size).fma(1 / 3, size)
    return (size < 2.0**-14).where(small, log((size + 1.0) / (1.0 - size)) * 0.5).copysign(x)


def erfc(x):
    """exp of -x² and a polynomial in t = 1/(1 + |x|/2), times t."""
    size = abs(x)
    size = (size > 11.0).where(11.0, size)
    t = 1.0 / size.fma(0.5, 1.0)
    tail = exp2((polynomial(t, ERFC) - size * size) * LOG2E) * t
    return (x < 0.0).where(2.0 - tail, tail)


def log10(x):
    return log_at_edges(x, (log2_of_size(x) * math.log10(2)).convert("fptrunc", "f32"))


BY_FLOAT64 = {name: in_double(rule) for name, rule in {
    "hypot": hypot, "atan2": atan2, "atan": lambda x: atan2(x, x.constant(1.0)), "asin": lambda x: atan2(x, other_leg(x)),
    "acos": lambda x: atan2(other_leg(x), x), "sinh": sinh, "cosh": cosh, "asinh": asinh, "acosh": acosh, "atanh": atanh, "erfc": erfc,
    "exp10": lambda x: exp2(x * math.log2(10)), "normcdf": lambda x: erfc(x * -math.sqrt(0.5)) * 0.5,
    "erfinv": lambda x: erfinv(x, log), "erfcinv": lambda x: erfcinv(x, log), "normcdfinv": lambda x: normcdfinv(x, log),
}.items()} | {"pow": pow, "tan": tan, "log10": log10}
