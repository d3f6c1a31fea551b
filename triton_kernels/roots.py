"""Roots of unity, from angles that are whole numbers of parts of the circle, and so exact however large they are."""
import triton
import triton.language as tl

from .scalar import div


@triton.jit
def times(x, y):
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


@triton.jit
def point(octant, fraction):
    """exp(-iπ/4 (octant + fraction)) for even octants, exp(-iπ/4 (octant + 1 - fraction)) for odd ones, by Taylor's series."""
    x = fraction * 0.7853981633974483
    y = x * x
    if x.dtype == tl.float32:
        s = x + x * y * (-1.6666667e-1 + y * (8.3333333e-3 + y * (-1.9841270e-4 + y * 2.7557319e-6)))
        c = 1 + y * (-0.5 + y * (4.1666667e-2 + y * (-1.3888889e-3 + y * (2.4801587e-5 - y * 2.7557319e-7))))
    else:
        s = tl.full(x.shape, 1, tl.float64)
        c = s
        for k in tl.static_range(9):
            s = 1 - y * s * (1 / ((18 - 2 * k) * (19 - 2 * k)))
            c = 1 - y * c * (1 / ((18 - 2 * k) * (17 - 2 * k)))
        s *= x
    flat = ((octant + 1) & 2) == 0                                       # nearer to the real axis
    re, im = tl.where(flat, c, s), tl.where(flat, s, c)
    return tl.where(((octant + 2) & 4) != 0, -re, re), tl.where((octant & 4) != 0, im, -im)


@triton.jit
def divided(num, den):
    """(num // den, num % den) for a quotient that is less than 2^22, by a product with 1 / den; integers have no division of their own."""
    quotient = (num.to(tl.float32) * (1.0 / den)).to(num.dtype)
    rest = num - quotient * den
    low, high = rest < 0, rest >= den
    quotient += high.to(num.dtype) - low.to(num.dtype)
    return quotient, tl.where(low, rest + den, tl.where(high, rest - den, rest))


@triton.jit
def root(num, den, FLOAT: tl.constexpr):
    """exp(-2πi num / den) for 0 ≤ num < den, which are int64 if den ≥ 2^28."""
    octant, rest = divided(num * 8, den)
    rest = tl.where((octant & 1) != 0, den - rest, rest)
    return point(octant, rest.to(FLOAT) * div(tl.full((), 1, FLOAT), tl.zeros((), FLOAT) + den))


@triton.jit
def short_root(num, LOG: tl.constexpr, FLOAT: tl.constexpr):
    """exp(-2πi num / 2^LOG)."""
    octant = (num * 8) >> LOG
    rest = (num * 8) & ((1 << LOG) - 1)
    rest = tl.where((octant & 1) != 0, (1 << LOG) - rest, rest)
    return point(octant, rest.to(FLOAT) * (1 / (1 << LOG)))


@triton.jit
def chirp(j, n, FLOAT: tl.constexpr):
    """exp(-iπ j² / n) for j < n < 2^12; or for int64 of any size."""
    if j.dtype == tl.int64:
        rest = (j * j) % (2 * n)
    else:
        _, rest = divided(j * j, 2 * n)
    return root(rest, 2 * n, FLOAT)
