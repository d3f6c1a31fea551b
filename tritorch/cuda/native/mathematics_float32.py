"""Fast functions of float32: range reduction and a polynomial on whole registers; no tables, and calls only where sin and cos are past 2²⁷.

The polynomials are minimax fits of our own (Lawson's weighted least squares in float64 on 600 Chebyshev nodes, the targets computed to 40
digits, coefficients rounded to float32 one after another, the rest fitted anew each time). `fit` below is the largest relative error of the
function they approximate in exact arithmetic; the rounded result's, in ulp, is what tests/test_native_mathematics.py holds.
"""
from __future__ import annotations

import math

from .libm import by_libm, rarely
from .vectors import polynomial

LOG2E, PI = math.log2(math.e), math.pi
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6      # the first has 16 bits: n times it is exact
MAGIC = {"f32": 1.5 * 2.0**23, "f64": 1.5 * 2.0**52}                  # a sum with it rounds to a whole number, in the low bits

EXP = (0.001381982583552599, 0.008368686772882938, 0.041668277233839035, 0.1666652113199234, 0.4999999403953552)         # fit 2^-28.2
EXPM1 = (0.00019764249736908823, 0.001393234240822494, 0.008333543315529823, 0.04166649281978607, 0.1666666567325592, 0.5)   # 2^-31.1
EXP2 = (0.00015326788707170635, 0.0013391025131568313, 0.009618505835533142, 0.05550359562039375, 0.24022647738456726,
        0.6931471824645996)                                                                                          # 2^-28.3
LOG = (0.0674985721707344, -0.11671175807714462, 0.11883873492479324, -0.12406114488840103, 0.14220310747623444, -0.16667991876602173,
       0.20002073049545288, -0.25000008940696716, 0.3333331346511841)                                                # 2^-30.3
LOG2 = (-0.11025579273700714, 0.1870882362127304, -0.19139085710048676, 0.20448657870292664, -0.2395673543214798, 0.28857141733169556,
        -0.3606986701488495, 0.4808982014656067, -0.7213473320007324)                        # and log2(e) before them: 2^-27.7
SIN = (-0.00019517903274390846, 0.008332187309861183, -0.16666655242443085)                                          # 2^-27.9
COS = (2.4432327336398885e-05, -0.0013887309469282627, 0.04166664555668831)                                          # 2^-33.0
TANH = (-0.0056922961957752705, 0.02062816731631756, -0.05373651534318924, 0.13331405818462372, -0.3333328068256378)       # 2^-27.7
ERF = (7.806903158780187e-05, -0.0007997853099368513, 0.005187162198126316, -0.026853347197175026, 0.11283578723669052,
       -0.3761262595653534, 0.12837916612625122)                                                                     # 2^-29.4
LOG_ERFC = (-2.1098810975672677e-05, 0.00043449518852867186, -0.0041711716912686825, 0.025119604542851448, -0.1082802340388298,
            -0.6333468556404114, -1.1295149326324463, 0.00017468321311753243)                            # of erf from 0.92: 2^-34.2
ATAN = (-0.0017821441870182753, 0.010866271331906319, -0.0310935340821743, 0.05787887051701546, -0.08399207890033722, 0.10950861126184464,
        -0.1426401436328888, 0.1999852955341339, -0.33333298563957214)                                               # 2^-28.5
LOG2_DOUBLE = (0.28291725666241424, 0.31990461759749267, 0.4122092752689755, 0.5770779421837025, 0.9617966941136916,
               2.8853900817778504)                                                                                   # 2^-45.1
EXP2_DOUBLE = (1.5196044078092672e-05, 0.00015466882365825199, 0.0013333936561185488, 0.009618037769577575, 0.05550410362988177,
               0.2402265106877426, 0.6931471807056903)                                                               # 2^-34.3


def clamped(x, low, high):
    """Within two numbers; NaN stays NaN."""
    x = (x < low).where(low, x)
    return (x > high).where(high, x)


def nearest(x, factor):
    """x · factor rounded to a whole number: as a float, and as an integer."""
    magic = x.lift(MAGIC[x.element])
    shifted = x.fma(x.lift(factor), magic)
    return shifted - magic, shifted.bits() - magic.bits()


def power_of_two(n):
    """2ⁿ of an integer n that gives a normal number."""
    return (n + 127 << 23).as_float()


def scaled(y, n):
    """y · 2ⁿ in two steps, so that subnormal results are rounded once and n may be 128."""
    half = n >> 1
    return y * power_of_two(half) * power_of_two(n - half)


def less_ln2(x, n):
    """x - n ln 2."""
    return n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))


def exp_reduced(r):
    """exp for |r| up to ln(2)/2."""
    return (r * r).fma(polynomial(r, EXP), r) + 1.0


def exp_within(x):
    """exp where the result is a normal number."""
    n, whole = nearest(x, LOG2E)
    return exp_reduced(less_ln2(x, n)) * power_of_two(whole)


def exp(x):
    x = clamped(x, -104.0, 89.0)
    n, whole = nearest(x, LOG2E)
    return scaled(exp_reduced(less_ln2(x, n)), whole)


def exp2(x):
    x = clamped(x, -151.0, 128.5)
    n, whole = nearest(x, 1.0)
    r = x - n
    return scaled(polynomial(r, EXP2).fma(r, 1.0), whole)


def expm1(x):
    """2ⁿ expm1(r) + (2ⁿ - 1), halved where 2ⁿ would be infinite; what r lost to rounding is added at the end."""
    given, x = x, clamped(x, -18.0, 89.0)
    n, whole = nearest(x, LOG2E)
    high = n.fma(-LN2_HIGH, x)
    r = n.fma(-LN2_LOW, high)
    lost = n.fma(-LN2_LOW, high - r)
    half = power_of_two(whole - 1)
    head = half.fma(r, half - 0.5)
    rest = half.fma(r, half - 0.5 - head)
    tail = (r * r).fma(polynomial(r, EXPM1), lost)
    out = (head + half.fma(tail, rest)) * 2.0
    return (abs(given) < 2.0**-24).where(given, out)


def split(x):
    """The exponent, a float and an integer, and the mantissa between √½ and √2, of a positive number."""
    bits = x.bits()
    exponent = bits - 0x3F3504F3 >> 23
    return exponent, (bits - (exponent << 23)).as_float()


def split_any(x):
    """The same, subnormal numbers too."""
    tiny = x < 2.0**-126
    exponent, mantissa = split(tiny.where(x * 2.0**23, x))
    return tiny.where(exponent - 23, exponent).convert("sitofp", "f32"), mantissa


def log_at_edges(x, inside):
    """`inside` for positive numbers, and what logarithms are elsewhere."""
    other = x.equals(0.0).where(-math.inf, (x < 0.0).where(math.nan, x))
    return ((x > 0.0) & (x < math.inf)).where(inside, other)


def log_near_one(f, exponent):
    """log(1 + f) + exponent · ln 2 for f between √½ - 1 and √2 - 1."""
    square = f * f
    rest = (square * f).fma(polynomial(f, LOG), square * -0.5)
    return exponent.fma(LN2_HIGH, f + exponent.fma(LN2_LOW, rest))


def log(x):
    exponent, mantissa = split_any(x)
    return log_at_edges(x, log_near_one(mantissa - 1.0, exponent))


def log2(x):
    exponent, mantissa = split_any(x)
    f = mantissa - 1.0
    high = 1.44269502162933349609375
    rest = f * polynomial(f, LOG2) + (LOG2E - high)
    return log_at_edges(x, f.fma(high, f * rest) + exponent)


def log1p(x):
    """log of 1 + x, what that sum lost added to the mantissa."""
    total = x + 1.0
    part = total - x
    lost = (x - (total - part)) + (1.0 - part)
    exponent, mantissa = split(total)
    f = lost.fma(power_of_two(0 - exponent.intrinsic("smin", 126)), mantissa - 1.0)
    out = log_at_edges(total, log_near_one(f, exponent.convert("sitofp", "f32")))
    return (x.equals(0.0) | x.equals(math.inf)).where(x, out)


def tanh(x):
    """A polynomial up to 5/8, 1 - 2 / (exp(2|x|) + 1) above."""
    size, square = abs(x), x * x
    small = (square * size).fma(polynomial(square, TANH), size)
    large = 1.0 - 2.0 / (exp_within(clamped(size, 0.0, 10.0) * 2.0) + 1.0)
    return (size > 0.625).where(large, small).copysign(x)


def erf(x):
    """A polynomial up to 0.92, 1 - exp of a polynomial above."""
    size, square = abs(x), x * x
    small = size.fma(polynomial(square, ERF), size)
    large = 1.0 - exp_within(polynomial((size > 4.0).where(4.0, size), LOG_ERFC))
    return (size > 0.92).where(large, small).copysign(x)


def sine_and_cosine(x):
    """Of x less n π/2, and n; the subtraction in float64."""
    wide = x.convert("fpext", "f64")
    n, whole = nearest(wide, 2 / PI)
    rest = n.fma(-6.123233995736766e-17, n.fma(-PI / 2, wide)).convert("fptrunc", "f32")
    square = rest * rest
    sine = (square * rest).fma(polynomial(square, SIN), rest)
    cosine = (square * square).fma(polynomial(square, COS), square.fma(-0.5, 1.0))
    return sine, cosine, whole.convert("trunc", "i32")


def quarter(sine, cosine, n):
    """sin(r + n π/2)."""
    bits = (n & 1).equals(0).where(sine, cosine).bits()
    return (bits ^ ((n & 2) << 30)).as_float()


def large_by_libm(symbol, x, out):
    """`out`, but by the C library where |x| is finite and at least 2²⁷."""
    large = (abs(x) >= 2.0**27) & (abs(x) < math.inf)
    return rarely(large, f"{symbol}_large_f32", by_libm(symbol), x, out)


def sin(x):
    sine, cosine, n = sine_and_cosine(x)
    return large_by_libm("sin", x, x.equals(0.0).where(x, quarter(sine, cosine, n)))


def cos(x):
    sine, cosine, n = sine_and_cosine(x)
    return large_by_libm("cos", x, quarter(sine, cosine, n + 1))


def log2_double(x):
    """log2 |x| in float64: with s = (m - 1)/(m + 1), 2 atanh(s) / ln 2."""
    size = abs(x)
    exponent, mantissa = split_any(size)
    mantissa = mantissa.convert("fpext", "f64")
    s = (mantissa - 1.0) / (mantissa + 1.0)
    out = s.fma(polynomial(s * s, LOG2_DOUBLE), exponent.convert("fpext", "f64"))
    special = size.equals(0.0).where(-math.inf, size)
    return ((size > 0.0) & (size < math.inf)).where(out, special.convert("fpext", "f64"))


def exp2_double(x):
    """2ˣ in float64, rounded to float32."""
    x = clamped(x, -160.0, 130.0)
    n, whole = nearest(x, 1.0)
    r = x - n
    y = polynomial(r, EXP2_DOUBLE).fma(r, 1.0)
    return y * ((whole + 1023) << 52).as_float()


def pow(x, y):
    """2^(y log2 |x|) in float64; the sign and the special cases are those of C's pow."""
    exponent = y.convert("fpext", "f64")
    size = exp2_double(exponent * log2_double(x)).convert("fptrunc", "f32")
    half = y * 0.5
    whole = y.equals(y.intrinsic("floor"))
    odd = whole & half.differs(half.intrinsic("floor")) & (abs(y) < 2.0**24)
    negative = x.bits() < 0
    out = (negative & odd).where(-size, size)
    lost = (x < 0.0) & (x > -math.inf) & y.differs(y.intrinsic("floor")) & (abs(y) < math.inf)
    out = lost.where(math.nan, out)
    one = x.equals(1.0) | y.equals(0.0) | (x.equals(-1.0) & abs(y).equals(math.inf))
    return one.where(1.0, out)


def hypot(x, y):
    """In float64 the squares neither overflow nor vanish."""
    a, b = x.convert("fpext", "f64"), y.convert("fpext", "f64")
    root = a.fma(a, b * b).intrinsic("sqrt").convert("fptrunc", "f32")
    return (abs(x).equals(math.inf) | abs(y).equals(math.inf)).where(math.inf, root)


FLOAT32 = {"exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": log2, "log1p": log1p, "tanh": tanh, "erf": erf, "sin": sin,
           "cos": cos, "pow": pow, "hypot": hypot}
