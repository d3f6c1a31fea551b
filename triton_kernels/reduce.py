"""Reductions of any strided tensor: a loop over rows × columns and, in one file because it is given them by name, the monoids it runs.

A row is one element of the result, its columns are the elements reduced into it; both are given as (shape, strides), so no
layout needs a copy. What is reduced is a monoid, written as four functions on states (tuples of one to three values):

    LIFT(x, index, valid, param, IDENTITY)  the state of one element; the identity where `valid` is false
    COMBINE(*left, *right)                  two neighbouring states as one; associative
    STEP(*state, *later)                    the same for the state of one element behind all others: COMBINE, or what is cheaper
    FOLD(state)                             a tile's columns as one: tl.reduce, which takes COMBINE by name only
    FINISH(*state, count, param)            the results, one for each output

Few long rows are split over programs: each stores its state, and `merge_kernel` combines the states in a fixed order, so the
result is deterministic.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def offsets(index, shape, strides, FIRST: tl.constexpr = 0):
    """Element offsets of flat indices into a strided shape; `strides` starts at FIRST. The outermost dim needs no remainder."""
    offset = index * 0
    for k in tl.static_range(1, len(shape)):                             # no name for the dim: a constexpr is given a value but once
        offset += (index % shape[len(shape) - k]) * strides[FIRST + len(shape) - k]
        index = index // shape[len(shape) - k]
    return offset + index * strides[FIRST]


@triton.jit
def column_offsets(n, outer, inner, shape, strides, FIRST: tl.constexpr, INNER: tl.constexpr):
    """Element offsets of columns n. INNER: they lie in one step of all dims but the last, `outer`, so that no element needs a division."""
    if INNER:
        RANK: tl.constexpr = len(shape)
        start = tl.zeros((), tl.int64)
        for k in tl.static_range(RANK - 1):
            size = shape[RANK - 2 - k]
            start += (outer % size).to(tl.int64) * strides[FIRST + RANK - 2 - k]
            outer = outer // size
        return start + inner * strides[FIRST + RANK - 1]
    else:
        return offsets(n, shape, strides, FIRST)


@triton.jit
def load_tiles(x_ptrs, m, n, outer, inner, M, there, shape_m, stride_m, shape_n, stride_n, SKIP: tl.constexpr, FORMS: tl.constexpr,
               ACC: tl.constexpr, EVEN: tl.constexpr, INNER: tl.constexpr):
    """A tile of every operand. FORMS says what it varies along: "tile" (both), "row" (one value a row) or "column".

    `stride_m` and `stride_n` hold the strides of all operands; in `stride_m` those of SKIP results come first. EVEN: all of it is there.
    """
    x = ()
    for k in tl.static_range(len(FORMS)):
        # one value a row is loaded as a vector: as a tile of one column every thread would load it once for each of its elements
        if FORMS[k] == "row":
            value = tl.load(x_ptrs[k] + offsets(m, shape_m, stride_m, (SKIP + k) * len(shape_m)), mask=m < M, other=0)[:, None]
        elif FORMS[k] == "column":
            at = column_offsets(n, outer, inner, shape_n, stride_n, k * len(shape_n), INNER)
            value = tl.load(x_ptrs[k] + at, mask=there, other=0)[None, :]
        else:
            row = offsets(m, shape_m, stride_m, (SKIP + k) * len(shape_m))[:, None]
            at = row + column_offsets(n, outer, inner, shape_n, stride_n, k * len(shape_n), INNER)[None, :]
            value = tl.load(x_ptrs[k] + at, mask=None if EVEN else (m < M)[:, None] & there[None, :], other=None if EVEN else 0)
        x = x + (value.to(ACC),)
    return x


@triton.jit
def lifted_tile(
    x_ptrs, m, j, lane, M, stop, width, shape_m, stride_m, shape_n, stride_n, param, LIFT: tl.constexpr, IDENTITY: tl.constexpr,
    ACC: tl.constexpr, FORMS: tl.constexpr, OUTS: tl.constexpr, EVEN: tl.constexpr, INNER: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The states of the elements of a tile, which begins at column j, of `width` to a step of the outer dims if INNER."""
    outer = j // width
    inner = j - outer * width + lane
    if INNER:
        size = shape_n[len(shape_n) - 1]
        n = outer * size + inner
        there = (inner < size) & (j + lane < stop)
    else:
        n = j + lane
        there = n < stop
    valid = tl.full((BLOCK_M, BLOCK_N), True, tl.int1)
    if not EVEN:
        valid = (m < M)[:, None] & there[None, :]
    x = load_tiles(x_ptrs, m, n, outer, inner, M, there, shape_m, stride_m, shape_n, stride_n, OUTS, FORMS, ACC, EVEN, INNER)
    return LIFT(*x, n[None, :], valid, param, IDENTITY)


@triton.jit
def reduce_kernel(
    out_ptrs, x_ptrs, shape_m, stride_m, shape_n, stride_n, M, N, width, chunk, count, param,
    LIFT: tl.constexpr, STEP: tl.constexpr, FOLD: tl.constexpr, FINISH: tl.constexpr, IDENTITY: tl.constexpr, ACC: tl.constexpr,
    FORMS: tl.constexpr, OUTS: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, INNER: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Program (i, s) reduces columns [s * chunk, (s + 1) * chunk) of rows [i * BLOCK_M, (i + 1) * BLOCK_M).

    With SPLIT the states are stored, as (splits, M), instead of the OUTS results. EVEN: rows and columns fill all tiles. INNER: N counts
    columns as if the last of their dims had `width` elements, whole tiles, so that no tile passes its end.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    piece, lane = tl.program_id(1), tl.arange(0, BLOCK_N)
    if WIDE:
        piece, lane = piece.to(tl.int64), lane.to(tl.int64)
    start = piece * chunk
    stop = tl.minimum(start + chunk, N)
    state = lifted_tile(x_ptrs, m, start, lane, M, stop, width, shape_m, stride_m, shape_n, stride_n, param, LIFT, IDENTITY, ACC, FORMS,
                        OUTS, EVEN, INNER, BLOCK_M, BLOCK_N)
    for j in range(start + BLOCK_N, stop, BLOCK_N):
        state = STEP(*state, *lifted_tile(x_ptrs, m, j, lane, M, stop, width, shape_m, stride_m, shape_n, stride_n, param, LIFT, IDENTITY,
                                          ACC, FORMS, OUTS, EVEN, INNER, BLOCK_M, BLOCK_N))
    state = FOLD(state)
    if SPLIT:
        for k in tl.static_range(len(out_ptrs)):
            tl.store(out_ptrs[k] + tl.program_id(1) * M + m, state[k], mask=m < M)
    else:
        results = FINISH(*state, count, param)
        for k in tl.static_range(len(out_ptrs)):
            tl.store(out_ptrs[k] + offsets(m, shape_m, stride_m, k * len(shape_m)), results[k], mask=m < M)


@triton.jit
def merge_kernel(
    out_ptrs, state_ptrs, shape_m, stride_m, M, count, param,
    FOLD: tl.constexpr, FINISH: tl.constexpr, BLOCK_M: tl.constexpr, SPLITS: tl.constexpr,
):
    """Combine the states of SPLITS programs, stored as (SPLITS, M)."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = m < M
    at = tl.arange(0, SPLITS)[None, :] * M + m[:, None]
    state = ()
    for k in tl.static_range(len(state_ptrs)):
        state = state + (tl.load(state_ptrs[k] + at, mask=inside[:, None], other=0),)
    results = FINISH(*FOLD(state), count, param)
    for k in tl.static_range(len(out_ptrs)):
        tl.store(out_ptrs[k] + offsets(m, shape_m, stride_m, k * len(shape_m)), results[k], mask=inside)


# ------------------------------------------------------------------ sums
@triton.jit
def sum_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, 0),)


@triton.jit
def nansum_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & (x == x), x, 0),)


@triton.jit
def nonzero_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & (x != 0), 1, 0).to(tl.int64),)


@triton.jit
def zeroth_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & (x != 0), 1, 0).to(x.dtype),)


@triton.jit
def absolute_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, tl.abs(x), 0),)


@triton.jit
def square_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x * x, 0),)


@triton.jit
def power_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, libdevice.pow(tl.abs(x), param + tl.zeros_like(x)), 0),)


@triton.jit
def sum_combine(a, b):
    return (a + b,)


@triton.jit
def sum_fold(state):
    return tl.reduce(state, 1, sum_combine)


@triton.jit
def prod_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, 1),)


@triton.jit
def prod_combine(a, b):
    return (a * b,)


@triton.jit
def prod_fold(state):
    return tl.reduce(state, 1, prod_combine)


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
def bounded_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, IDENTITY),)


@triton.jit
def bounded_absolute_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, tl.abs(x), IDENTITY),)


@triton.jit
def truth_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, (x != 0).to(tl.int32), IDENTITY),)


@triton.jit
def max_combine(a, b):
    return (tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL),)


@triton.jit
def max_fold(state):
    return tl.reduce(state, 1, max_combine)


@triton.jit
def min_combine(a, b):
    return (tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL),)


@triton.jit
def min_fold(state):
    return tl.reduce(state, 1, min_combine)


@triton.jit
def both_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, IDENTITY[0]), tl.where(valid, x, IDENTITY[1])


@triton.jit
def both_combine(low, high, other_low, other_high):
    return min_combine(low, other_low)[0], max_combine(high, other_high)[0]


@triton.jit
def both_fold(state):
    return tl.reduce(state, 1, both_combine)


# ------------------------------------------------------------------ extremes with their index: the first of equals wins
@triton.jit
def indexed_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, IDENTITY), tl.where(valid, index, 0x7FFFFFFF if index.dtype == tl.int32 else 0x7FFFFFFFFFFFFFFF)


@triton.jit
def first_of(best, a, i):
    """The least index of the elements that are `best`, of those that are NaN if it is."""
    last = tl.full((1, 1), 0x7FFFFFFF if i.dtype == tl.int32 else 0x7FFFFFFFFFFFFFFF, i.dtype)
    return tl.min(tl.where((a == best[:, None]) | (a != a), i, last), 1)


@triton.jit
def argmax_step(a, i, b, j):
    later = (b > a) | ((b != b) & (a == a))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def argmax_fold(state):
    best = max_fold((state[0],))[0]
    return best, first_of(best, state[0], state[1])


@triton.jit
def argmin_step(a, i, b, j):
    later = (b < a) | ((b != b) & (a == a))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def argmin_fold(state):
    best = min_fold((state[0],))[0]
    return best, first_of(best, state[0], state[1])


@triton.jit
def index_finish(a, i, count, param):
    return (i,)


# ------------------------------------------------------------------ variance: Welford, merged by Chan's formula
@triton.jit
def moments_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, 0), tl.zeros_like(x), tl.where(valid, 1, 0).to(x.dtype)


@triton.jit
def moments_combine(mean_a, square_a, n_a, mean_b, square_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0, 0, n_b / tl.where(n == 0, 1, n))
    return mean_a + delta * share, square_a + square_b + delta * delta * n_a * share, n


@triton.jit
def moments_step(mean, square, n, x, zero, one):
    """One more element, or, where `one` is 0, none. An approximate share of the mean only moves the point that squares are taken from."""
    total = n + one
    delta = x - mean
    if x.dtype == tl.float32:
        share = libdevice.fast_dividef(one, tl.maximum(total, 1.0))
    else:
        share = one / tl.maximum(total, 1.0)
    return mean + delta * share, square + delta * delta * n * share, total


@triton.jit
def moments_fold(state):
    return tl.reduce(state, 1, moments_combine)


@triton.jit
def var_finish(mean, square, n, count, param):
    return (square / tl.maximum(count - param, 0.0),)


@triton.jit
def std_finish(mean, square, n, count, param):
    return (tl.sqrt(square / tl.maximum(count - param, 0.0)),)


# ------------------------------------------------------------------ gradients of scale and shift: Σ g · (x - mean) · rstd and Σ g
@triton.jit
def affine_lift(g, x, mean, rstd, index, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, g * ((x - mean) * rstd), 0), tl.where(valid, g, 0)


@triton.jit
def scale_lift(g, x, rstd, index, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, g * (x * rstd), 0),)


@triton.jit
def affine_combine(a, b, c, d):
    return a + c, b + d


@triton.jit
def affine_fold(state):
    return tl.reduce(state, 1, affine_combine)


# ------------------------------------------------------------------ log of a sum of exponentials: (largest, sum relative to it)
@triton.jit
def logsumexp_lift(x, index, valid, param, IDENTITY: tl.constexpr):
    return tl.where(valid, x, float("-inf")), tl.where(valid, 1, 0).to(x.dtype)


@triton.jit
def logsumexp_combine(a, s, b, t):
    # equal largest values, infinities too, have ratio 1: their difference may be nan
    ratio = tl.exp(tl.where(a == b, 0.0, -tl.abs(a - b)))
    left = (a >= b) | (a != a)
    return tl.where(left, a, b), tl.where(left, s + t * ratio, s * ratio + t)


@triton.jit
def logsumexp_fold(state):
    return tl.reduce(state, 1, logsumexp_combine)


@triton.jit
def logsumexp_finish(a, s, count, param):
    return (tl.where(s == 0, a, a + tl.log(s)),)
