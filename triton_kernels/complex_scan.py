"""What scans of complex numbers compute, by the names of scan.py with pair_ in front: LIFT takes the two parts of every element."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .complex_monoids import pair_logsumexp_combine, pair_prod_combine, pair_sum_combine, relative


@triton.jit
def pair_sum_lift(x, y, index, valid, IDENTITY: tl.constexpr):
    return tl.where(valid, x, 0), tl.where(valid, y, 0)


@triton.jit
def pair_sum_scan(state):
    return tl.associative_scan(state, 1, pair_sum_combine)


@triton.jit
def pair_prod_lift(x, y, index, valid, IDENTITY: tl.constexpr):
    return tl.where(valid, x, 1), tl.where(valid, y, 0)


@triton.jit
def pair_prod_scan(state):
    return tl.associative_scan(state, 1, pair_prod_combine)


@triton.jit
def pair_first_finish(a, b):
    return a, b


@triton.jit
def pair_logsumexp_lift(x, y, index, valid, IDENTITY: tl.constexpr):
    return relative(x, y, valid)


@triton.jit
def pair_logsumexp_scan(state):
    return tl.associative_scan(state, 1, pair_logsumexp_combine)


@triton.jit
def pair_logsumexp_finish(a, s, t):
    size = libdevice.hypot(s, t)
    return tl.where(size == 0, -float("inf"), a + tl.log(size)), libdevice.atan2(t, s)


# ------------------------------------------------------------------ linear recurrence: the state stands for h -> a * h + b
@triton.jit
def pair_recurrence_lift(ar, ai, br, bi, index, valid, IDENTITY: tl.constexpr):
    return tl.where(valid, ar, 1), tl.where(valid, ai, 0), tl.where(valid, br, 0), tl.where(valid, bi, 0)


@triton.jit
def pair_recurrence_combine(ar, ai, br, bi, cr, ci, dr, di):
    return cr * ar - ci * ai, cr * ai + ci * ar, cr * br - ci * bi + dr, cr * bi + ci * br + di


@triton.jit
def pair_recurrence_scan(state):
    return tl.associative_scan(state, 1, pair_recurrence_combine)


@triton.jit
def pair_recurrence_finish(ar, ai, br, bi):
    return br, bi
