"""What reductions and scans compute: monoids, as functions on states, which are tuples of one to four values.

    LIFT(x, base, valid, param, IDENTITY)   an element's state, of a tile that begins at column `base`; the identity if not `valid`.
                                            Of moments: that of all that a thread has of a row; `param` is what went before
    COMBINE(*left, *right)                  two neighbouring states as one; associative
    STEP(*state, *later)                    the same for the state of one element behind all others: COMBINE, or what is cheaper
    FOLD(state, lane)                       a tile's columns, at `lane` in it, as one: tl.reduce, which takes COMBINE by name only
    FINISH(*state, count, param)            the results, one for each output
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .quick import quick_exp, quick_power


# ------------------------------------------------------------------ sums
@triton.jit
def sum_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, 0),)


@triton.jit
def product_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x * y, 0),)


@triton.jit
def nansum_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & (x == x), x, 0),)


@triton.jit
def nonzero_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & (x != 0), 1, 0).to(tl.int64),)


@triton.jit
def zeroth_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & (x != 0), 1, 0).to(x.dtype),)


@triton.jit
def absolute_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, tl.abs(x), 0),)


@triton.jit
def square_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x * x, 0),)


@triton.jit
def cube_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, tl.abs(x) * x * x, 0),)


@triton.jit
def fourth_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, (x * x) * (x * x), 0),)


@triton.jit
def power_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, quick_power(tl.abs(x), param), 0),)


@triton.jit
def sum_combine(a, b):
    return (a + b,)


@triton.jit
def sum_fold(state, lane):
    return tl.reduce(state, 1, sum_combine)


@triton.jit
def prod_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, 1),)


@triton.jit
def prod_combine(a, b):
    return (a * b,)


@triton.jit
def prod_fold(state, lane):
    return tl.reduce(state, 1, prod_combine)


@triton.jit
def xor_combine(a, b):
    return (a ^ b,)


@triton.jit
def xor_fold(state, lane):
    return tl.reduce(state, 1, xor_combine)


@triton.jit
def first_finish(a, count, param):
    return (a,)


@triton.jit
def both_finish(a, b, count, param):
    return a, b


@triton.jit
def mean_finish(a, count, param):
    return (a / count,)


@triton.jit
def root_finish(a, count, param):
    return (tl.sqrt(a),)


@triton.jit
def power_finish(a, count, param):
    return (libdevice.pow(a, 1 / param + tl.zeros_like(a)),)


# ------------------------------------------------------------------ extremes: NaN wins, as in PyTorch
@triton.jit
def bounded_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, IDENTITY),)


@triton.jit
def bounded_absolute_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, tl.abs(x), IDENTITY),)


@triton.jit
def truth_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, (x != 0).to(tl.int32), IDENTITY),)


@triton.jit
def max_combine(a, b):
    return (tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL),)


@triton.jit
def max_fold(state, lane):
    return tl.reduce(state, 1, max_combine)


@triton.jit
def min_combine(a, b):
    return (tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL),)


@triton.jit
def min_fold(state, lane):
    return tl.reduce(state, 1, min_combine)


@triton.jit
def both_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, IDENTITY[0]), tl.where(valid, x, IDENTITY[1])


@triton.jit
def both_combine(low, high, other_low, other_high):
    return min_combine(low, other_low)[0], max_combine(high, other_high)[0]


@triton.jit
def both_fold(state, lane):
    return tl.reduce(state, 1, both_combine)


# ------------------------------------------------------------------ extremes with their index: the first of equals wins
# Until a tile is folded an index is that of its tile, one number for all lanes: an element costs two comparisons and two selections.
# Invalid elements need no index of their own: where their value is the best, so is that of the first, which is valid.
@triton.jit
def indexed_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, IDENTITY), tl.zeros(x.shape, tl.int32) + base


@triton.jit
def first_of(best, a, i):
    """The least index of the elements that are `best`, of those that are NaN if it is."""
    last = tl.full((1, 1), 0x7FFFFFFF if i.dtype == tl.int32 else 0x7FFFFFFFFFFFFFFF, i.dtype)
    return tl.min(tl.where((a == best[:, None]) | (a != a), i, last), 1)


@triton.jit
def argmax_step(a, i, b, j):
    later = ((b <= a) == 0) & (a == a)
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def argmax_fold(state, lane):
    best = max_fold((state[0],), lane)[0]
    return best, first_of(best, state[0], state[1] + lane)


@triton.jit
def argmin_step(a, i, b, j):
    later = ((b >= a) == 0) & (a == a)
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def argmin_fold(state, lane):
    best = min_fold((state[0],), lane)[0]
    return best, first_of(best, state[0], state[1] + lane)


@triton.jit
def index_finish(a, i, count, param):
    return (i,)


# ------------------------------------------------------------------ variance: sums relative to what a thread saw first
@triton.jit
def weighted(x, n):
    """Σ x / Σ n of each row. Both are scaled by a power of two before they are summed, which rounds nothing: of any other product that is
    fused with a sum, threads that exchange halves get different sums, and all differences here are to one number."""
    SCALE: tl.constexpr = 1 / x.shape[1]
    count = tl.sum(n * SCALE, 1)
    return tl.sum(x * SCALE, 1) / tl.where(count > 0, count, 1.0)


@triton.jit
def moments_lift(x, base, valid, near, THREADS: tl.constexpr):
    """Of what each thread has of each row of a tile: a number near to them, the sums of differences to it and of their squares, and how
    many there are. `near` is what the tiles before were taken relative to; a number stands for none. THREADS[0] have a row, of THREADS[1]
    neighbours at a time. So an element costs a difference, a sum and a product, and far from 0 nothing large is rounded."""
    ROWS: tl.constexpr = x.shape[0]
    LANES: tl.constexpr = THREADS[0]
    VEC: tl.constexpr = THREADS[1]
    EACH: tl.constexpr = x.shape[1] // (LANES * VEC)
    WHOLE: tl.constexpr = valid.shape[1] == 1
    x = tl.reshape(x, (ROWS, EACH, LANES, VEC))
    if WHOLE:
        n = tl.full((1, LANES), EACH * VEC, x.dtype)
    else:
        there = tl.reshape(valid, (1, EACH, LANES, VEC))
        n = tl.sum(tl.sum(there.to(x.dtype), 3), 1)
    if len(near.shape) == 0:
        if WHOLE:
            near = tl.sum(tl.sum(x * (1 / (EACH * VEC)), 3), 1)
        else:                                                            # of the row: a thread may have nothing yet, but all elements later
            near = weighted(tl.sum(tl.sum(x * (1 / (EACH * VEC)), 3), 1), n * (1 / (EACH * VEC)))    # what is not there was loaded as 0
            near = tl.broadcast_to(near[:, None], (ROWS, LANES))
    away = x - near[:, None, :, None]
    if not WHOLE:
        away = tl.where(there, away, 0)
    return near, tl.sum(tl.sum(away, 3), 1), tl.sum(tl.sum(away * away, 3), 1), n


@triton.jit
def moments_step(near, total, square, n, same, total_b, square_b, n_b):
    return near, total + total_b, square + square_b, n + n_b


@triton.jit
def moments_fold(state, lane):
    """The same of all threads, or pieces, that share a row, relative to one number: what theirs differ from it by is hardly rounded."""
    near, total, square, n = state
    n = tl.broadcast_to(n, near.shape)
    middle = weighted(tl.where(n > 0, near, 0), tl.where(n > 0, 1.0, 0.0).to(n.dtype))
    away = near - middle[:, None]
    return middle, tl.sum(total + n * away, 1), tl.sum(square + away * (2 * total + n * away), 1), tl.sum(n, 1)


@triton.jit
def squares_of(total, square, n):
    """The sum of squares around the mean."""
    square -= total * (total / tl.maximum(n, 1.0))
    return tl.where(square < 0, 0.0, square)


@triton.jit
def mean_of(near, total, n, count):
    """NaN of a row without elements. `n` cannot tell: where a tile is one column wide its mask counts as true (`moments_lift`)."""
    return tl.where(count > 0, near + total / n, float("nan"))


@triton.jit
def var_finish(near, total, square, n, count, param):
    return (squares_of(total, square, n) / tl.maximum(count - param, 0.0),)


@triton.jit
def std_finish(near, total, square, n, count, param):
    return (tl.sqrt(var_finish(near, total, square, n, count, param)[0]),)


@triton.jit
def var_mean_finish(near, total, square, n, count, param):
    return var_finish(near, total, square, n, count, param)[0], mean_of(near, total, n, count)


@triton.jit
def std_mean_finish(near, total, square, n, count, param):
    return std_finish(near, total, square, n, count, param)[0], mean_of(near, total, n, count)


# ------------------------------------------------------------------ gradients of scale and shift: Σ g · (x - mean) · rstd and Σ g
@triton.jit
def affine_lift(g, x, mean, rstd, base, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, g * ((x - mean) * rstd), 0), tl.where(valid, g, 0)


@triton.jit
def scale_lift(g, x, rstd, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, g * (x * rstd), 0),)


@triton.jit
def affine_combine(a, b, c, d):
    return a + c, b + d


@triton.jit
def affine_fold(state, lane):
    return tl.reduce(state, 1, affine_combine)


# ------------------------------------------------------------------ log of a sum of exponentials: (largest, sum relative to it)
# What exponentials are taken relative to is finite, so no difference is nan; only an element on its own may be its own largest as it is.
@triton.jit
def finite(x):
    most = 1.7976931348623157e308 if x.dtype == tl.float64 else 3.4028234663852886e38
    return tl.minimum(tl.maximum(x, -most), most)


@triton.jit
def logsumexp_lift(x, base, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, float("-inf")), tl.full(x.shape, 1, x.dtype)


@triton.jit
def logsumexp_step(a, s, x, one):
    """A second exponential is cheaper than to find out which of the two is 1."""
    top = finite(tl.maximum(a, x))
    return top, s * quick_exp(a - top) + quick_exp(x - top)


@triton.jit
def logsumexp_fold(state, lane):
    """The largest first: an exponential for each lane, instead of one at each step of a tree."""
    a, s = state
    top = finite(tl.max(a, 1))
    return top, tl.sum(s * quick_exp(a - top[:, None]), 1)


@triton.jit
def logsumexp_finish(a, s, count, param):
    return (tl.where(s == 0, -float("inf"), a + tl.log(s)),)


@triton.jit
def exponentials_finish(a, s, count, param):
    """What softmax divides by; an infinite sum makes all of its row nan."""
    return a, tl.where(s == float("inf"), float("nan"), s)
