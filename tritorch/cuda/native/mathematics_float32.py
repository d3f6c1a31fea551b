"""Fast functions of float32: range reduction and a polynomial on whole registers; no tables, and calls only for sin and cos past 2²⁷.

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


def or_nothing(power, x, least, most):
    """`power` of x up to `most`, and 0 below `least`. Masks are made of exp(-inf), and products that underflow cost a processor time."""
    below = x < least
    x = below.where(0.0, x)
    return below.where(0.0, power((x > most).where(most, x)))


def exp_any(x):
    n, whole = nearest(x, LOG2E)
    return scaled(exp_reduced(less_ln2(x, n)), whole)


def exp2_any(x):
    n, whole = nearest(x, 1.0)
    r = x - n
    return scaled(polynomial(r, EXP2).fma(r, 1.0), whole)


def exp(x):
    return or_nothing(exp_any, x, -104.0, 89.0)


def exp2(x):
    return or_nothing(exp2_any, x, -150.0, 128.5)


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


def polynomials(x):
    """sin and cos for |x| up to π/4."""
    square = x * x
    return (square * x).fma(polynomial(square, SIN), x), (square * square).fma(polynomial(square, COS), square.fma(-0.5, 1.0))


def quarter_turns(x):
    """x less n π/2 in float64, and n."""
    wide = x.convert("fpext", "f64")
    n, whole = nearest(wide, 2 / PI)
    return n.fma(-6.123233995736766e-17, n.fma(-PI / 2, wide)), whole.convert("trunc", "i32")


def sine_and_cosine(x):
    rest, n = quarter_turns(x)
    return *polynomials(rest.convert("fptrunc", "f32")), n


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


def half_turns(x):
    """sin and cos of π (x less n/2), and n; numbers from 2²⁴ on are even."""
    x = (abs(x) >= 2.0**24).where(x - x, x)
    n, whole = nearest(x.convert("fpext", "f64"), 2.0)
    rest = n.fma(-0.5, x.convert("fpext", "f64")) * PI
    return *polynomials(rest.convert("fptrunc", "f32")), whole.convert("trunc", "i32")


def sinpi(x):
    """Of whole numbers it is a 0 of their sign."""
    sine, cosine, n = half_turns(x)
    whole = x.equals(x.intrinsic("trunc")) & (abs(x) < math.inf)
    return whole.where(x.constant(0.0).copysign(x), quarter(sine, cosine, n))


def cospi(x):
    sine, cosine, n = half_turns(x)
    return quarter(sine, cosine, n + 1) + 0.0


FLOAT32 = {"exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": log2, "log1p": log1p, "tanh": tanh, "erf": erf, "sin": sin,
           "cos": cos, "sinpi": sinpi, "cospi": cospi}
