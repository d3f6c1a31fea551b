"""What reductions and scans of complex numbers compute, by the names of monoids.py with pair_ in front: LIFT takes the two parts of an
element, and where the result is complex the states hold parts, too."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .monoids import finite
from .quick import quick_exp, quick_power


# ------------------------------------------------------------------ sums and products
@triton.jit
def pair_sum_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, 0), tl.where(valid, y, 0)


@triton.jit
def pair_sum_combine(a, b, c, d):
    return a + c, b + d


@triton.jit
def pair_sum_fold(state, lane):
    return tl.reduce(state, 1, pair_sum_combine)


@triton.jit
def pair_prod_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, 1), tl.where(valid, y, 0)


@triton.jit
def pair_prod_combine(a, b, c, d):
    return a * c - b * d, a * d + b * c


@triton.jit
def pair_prod_fold(state, lane):
    return tl.reduce(state, 1, pair_prod_combine)


@triton.jit
def pair_first_finish(a, b, count, param):
    return a, b


@triton.jit
def pair_mean_finish(a, b, count, param):
    return a / count, b / count


# ------------------------------------------------------------------ with real results
@triton.jit
def pair_truth_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, ((x != 0) | (y != 0)).to(tl.int32), IDENTITY),)


@triton.jit
def pair_nonzero_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & ((x != 0) | (y != 0)), 1, 0).to(tl.int64),)


@triton.jit
def pair_zeroth_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & ((x != 0) | (y != 0)), 1, 0).to(x.dtype),)


@triton.jit
def pair_absolute_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, libdevice.hypot(x, y), 0),)


@triton.jit
def pair_bounded_absolute_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, libdevice.hypot(x, y), IDENTITY),)


@triton.jit
def pair_square_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x * x + y * y, 0),)


@triton.jit
def pair_cube_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    size = libdevice.hypot(x, y)
    return (tl.where(valid, size * size * size, 0),)


@triton.jit
def pair_fourth_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    square = x * x + y * y
    return (tl.where(valid, square * square, 0),)


@triton.jit
def pair_power_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, quick_power(libdevice.hypot(x, y), param), 0),)


# ------------------------------------------------------------------ log-sum-exp: the largest real part, and a sum relative to it
@triton.jit
def relative(x, y, valid):
    """(the real part, finite, and the parts of the exponential relative to it)."""
    size = tl.where(tl.abs(x) < float("inf"), 1.0, tl.where(x < 0, 0.0, x))            # infinities and NaN are sums of their own
    some = valid & (size != 0)
    turn = tl.where(some, y, 0.0).to(x.dtype)
    up = tl.sin(turn)
    re, im = size * tl.cos(turn), tl.where(up == 0, 0.0, size * up)      # no NaN from inf * 0
    return finite(tl.where(valid, x, float("-inf"))), tl.where(some, re, 0.0).to(x.dtype), tl.where(some, im, 0.0).to(x.dtype)


@triton.jit
def pair_logsumexp_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return relative(x, y, valid)


@triton.jit
def pair_logsumexp_combine(a, s, t, b, u, v):
    ratio = quick_exp(-tl.abs(a - b))
    left = a >= b
    one, two = tl.where(left, 1.0, ratio).to(a.dtype), tl.where(left, ratio, 1.0).to(a.dtype)
    return tl.maximum(a, b), s * one + u * two, t * one + v * two


@triton.jit
def pair_logsumexp_fold(state, lane):
    return tl.reduce(state, 1, pair_logsumexp_combine)


@triton.jit
def pair_logsumexp_finish(a, s, t, count, param):
    size = libdevice.hypot(s, t)
    return tl.where(size == 0, -float("inf"), a + tl.log(size)), libdevice.atan2(t, s)
