"""libdevice's rarer functions, which neither LLVM nor the C library has, in float64 arithmetic; float32 is widened and rounded."""
from __future__ import annotations

import math

from .libm import by_libm
from .vectors import polynomial

EXP, LOG, SIN, CBRT, ERFC = (by_libm(name) for name in ("exp", "log", "sin", "cbrt", "erfc"))


def in_double(rule):
    """A rule of float64 made one of float32 too."""
    def both(*arguments):
        if all(a.element != "f32" for a in arguments):
            return rule(*arguments)
        return rule(*(a.convert("fpext", "f64") if a.element == "f32" else a for a in arguments)).convert("fptrunc", "f32")
    return both


# M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37 (1988): PPND16
MIDDLE = ((2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4, 4.5921953931549871457e+4,
           1.3731693765509461125e+4, 1.9715909503065514427e+3, 1.3314166789178437745e+2, 3.3871328727963666080e+0),
          (5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4, 2.1213794301586595867e+4,
           5.3941960214247511077e+3, 6.8718700749205790830e+2, 4.2313330701600911252e+1, 1.0))
NEAR = ((7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e+0,
         3.64784832476320460504e+0, 5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0),
        (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
         6.89767334985100004550e-1, 1.67638483018380384940e+0, 2.05319162663775882187e+0, 1.0))
FAR = ((2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
        2.96560571828504891230e-1, 1.78482653991729133580e+0, 5.46378491116411436990e+0, 6.65790464350110377720e+0),
       (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
        1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0))


def ratio(pair, x):
    return polynomial(x, pair[0]) / polynomial(x, pair[1])


def normal_quantile(q, tail, log):
    """The quantile of the normal distribution at p, given q = p - 1/2 and the smaller of p and 1 - p, each without cancellation."""
    middle = q * ratio(MIDDLE, 0.180625 - q * q)
    r = (-log(tail)).intrinsic("sqrt")
    outer = (r <= 5.0).where(ratio(NEAR, r - 1.6), ratio(FAR, r - 5.0))
    outer = tail.equals(0.0).where(math.inf, outer).copysign(q)
    out = (abs(q) <= 0.425).where(middle, outer)
    return (abs(q) <= 0.5).where(out, math.nan)


def smaller(a, b):
    return (a < b).where(a, b)


def normcdfinv(p, log=LOG):
    return normal_quantile(p - 0.5, smaller(p, 1.0 - p), log)


def erfinv(x, log=LOG):
    return normal_quantile(x * 0.5, (1.0 - abs(x)) * 0.5, log) * math.sqrt(0.5)


def erfcinv(x, log=LOG):
    return normal_quantile((1.0 - x) * 0.5, smaller(x, 2.0 - x) * 0.5, log) * math.sqrt(0.5)


def normcdf(x):
    """erfc(-x/√2)/2; what the argument lost to rounding is made good by the derivative."""
    high, low = -math.sqrt(0.5), 4.833646656726456519e-17              # their sum is -√½
    t = x * high
    lost = x.fma(low, x.fma(high, -t))
    lost = (abs(x) < math.inf).where(lost, 0.0)
    return (ERFC(t) - lost * EXP(-(t * t)) * (2 / math.sqrt(math.pi))) * 0.5


def erfcx(x):
    """exp(x²) erfc(x): the product below 10, where what x² lost is made good; above, the asymptotic series, 12 terms of it."""
    square = x * x
    lost = x.fma(x, -square)
    head = EXP(square)
    product = head.fma(lost, head) * ERFC(x)
    inverse = 1.0 / square
    series = polynomial(inverse, [math.prod(range(1, 2 * k, 2)) * (-0.5) ** k for k in range(12, -1, -1)]) / (x * math.sqrt(math.pi))
    return (x > 10.0).where(series, (x < -26.6288).where(math.inf, product))


def bessel_i(order):
    """Modified Bessel function of order 0 or 1: below 20 its power series, of positive terms alone, above the asymptotic one."""
    power = [0.25**k / (math.factorial(k) * math.factorial(k + order)) for k in range(45, -1, -1)]
    far = [1.0]
    for k in range(1, 37):
        far.append(far[-1] * ((2 * k - 1) ** 2 - 4 * order) / (8 * k))

    def rule(x):
        size = abs(x)
        near = polynomial(smaller(size, x.lift(20.0)) * smaller(size, x.lift(20.0)), power)
        near = near if order == 0 else near * size * 0.5
        half = EXP(size * 0.5)                                         # exp(x) overflows before the product does
        asymptotic = half * (polynomial(1.0 / size, far[::-1]) / (size * (2 * math.pi)).intrinsic("sqrt")) * half
        out = (size <= 20.0).where(near, size.equals(math.inf).where(math.inf, asymptotic))
        return out if order == 0 else out.copysign(x)
    return rule


def sinpi(x):
    """sin πx, near whole numbers too; of those it is a 0 of their sign."""
    whole = x.intrinsic("roundeven")
    half = whole * 0.5
    made = SIN((x - whole) * math.pi)
    made = half.differs(half.intrinsic("floor")).where(-made, made)
    return (x.equals(whole) & (abs(x) < math.inf)).where(made.constant(0.0).copysign(x), made)


def cospi(x):
    size = abs(x)
    rest = size - (size * 0.5).intrinsic("floor") * 2.0                # exact: 0 to 2
    return sinpi(0.5 - rest) + 0.0


def rooted(*numbers):
    """The square root of the sum of squares, scaled so that it neither overflows nor vanishes."""
    sizes = [abs(x) for x in numbers]
    largest = sizes[0]
    for size in sizes[1:]:
        largest = largest.intrinsic("maxnum", size)
    infinite = largest.equals(math.inf)
    scale = ((largest > 0.0) & (largest < math.inf)).where(largest, 1.0)
    scale = (scale.bits() & 0x7FF0000000000000).as_float()
    scale = scale.equals(0.0).where(2.0**-1022, scale)
    total = None
    for size in sizes:
        part = size / scale
        total = part * part if total is None else part.fma(part, total)
    return infinite.where(math.inf, total.intrinsic("sqrt") * scale)


def fdim(x, y):
    return x.compare("uno", y).where(x + y, (x > y).where(x - y, 0.0))


SPECIAL = {name: in_double(rule) for name, rule in {
    "erfinv": erfinv, "erfcinv": erfcinv, "normcdf": normcdf, "normcdfinv": normcdfinv, "erfcx": erfcx,
    "cyl_bessel_i0": bessel_i(0), "cyl_bessel_i1": bessel_i(1), "sinpi": sinpi, "cospi": cospi,
    "rcbrt": lambda x: 1.0 / CBRT(x), "rhypot": lambda x, y: 1.0 / rooted(x, y),
    "norm3d": rooted, "norm4d": rooted, "rnorm3d": lambda *x: 1.0 / rooted(*x), "rnorm4d": lambda *x: 1.0 / rooted(*x),
}.items()}
