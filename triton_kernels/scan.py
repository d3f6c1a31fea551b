"""Scans along one dim of any strided tensor: running sums, products, extremes, log-sum-exps and linear recurrences.

A scan runs a monoid (see `triton_kernels/monoids.py`) tile by tile and carries the last state on. Few long rows are cut into
chunks: `scan_kernel` with TOTALS stores the state of every chunk, `prefix_kernel` scans those, and `scan_kernel` with PREFIX
starts every chunk from what came before it.
"""

import triton
import triton.language as tl

from .monoids import finite, prod_combine, sum_combine
from .quick import quick_exp
from .reduce import even, offsets, parts_of


@triton.jit
def nothing(x_ptrs, m, lane, LIFT: tl.constexpr, IDENTITY: tl.constexpr, ACC: tl.constexpr, BLOCK_M: tl.constexpr):
    """The identity of every row."""
    zeros = ()
    for k in tl.static_range(len(x_ptrs)):
        zeros = zeros + parts_of(tl.zeros((BLOCK_M, 1), x_ptrs[k].dtype.element_ty), ACC)
    return LIFT(*zeros, m.to(lane.dtype) * 0, m < 0, IDENTITY)


@triton.jit
def before(prefix_ptrs, identity, m, inside, M, piece):
    """The states of the columns in front of a chunk; the first has none."""
    found = ()
    for k in tl.static_range(len(prefix_ptrs)):
        value = tl.load(prefix_ptrs[k] + (piece - 1) * M + m, mask=inside & (piece > 0), other=0)
        found = found + (tl.where(piece > 0, value.to(identity[k].dtype), identity[k]),)
    return found


@triton.jit
def places(ptr, m, at, shape_m, stride_m, stride_n, K: tl.constexpr, ALIGN: tl.constexpr, SIDE: tl.constexpr):
    """Where columns `at` of rows m of operand K are. SIDE: as many rows a thread takes at once, whatever it could, so that it has whole
    rows of a tile."""
    ptrs = ptr + offsets(m, shape_m, stride_m, K * len(shape_m), ALIGN) + at.to(tl.int64) * stride_n[K]
    if SIDE:
        return tl.max_contiguous(ptrs, (SIDE, 1))
    else:
        return ptrs


@triton.jit
def load_columns(x_ptrs, m, at, valid, shape_m, stride_m, stride_n, OUTS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr,
                 SIDE: tl.constexpr, ACC: tl.constexpr):
    """A tile of every input, whose strides follow those of OUTS results."""
    x = ()
    for k in tl.static_range(len(x_ptrs)):
        ptrs = places(x_ptrs[k], m, at, shape_m, stride_m, stride_n, OUTS + k, ALIGN, SIDE)
        x = x + parts_of(tl.load(ptrs, mask=None if EVEN else valid, other=None if EVEN else 0), ACC)
    return x


@triton.jit
def turned(x, VEC: tl.constexpr):
    """Tiles with every VEC columns in the opposite order."""
    found = ()
    for k in tl.static_range(len(x)):
        if VEC > 1:
            pieces = tl.reshape(x[k], (x[k].shape[0], x[k].shape[1] // VEC, VEC))
            found = found + (tl.reshape(tl.flip(pieces, 2), x[k].shape),)
        else:
            found = found + (x[k],)
    return found


@triton.jit
def last_column(state, lane, BLOCK_N: tl.constexpr):
    found = ()
    for k in tl.static_range(len(state)):
        found = found + (tl.sum(tl.where(lane == BLOCK_N - 1, state[k], 0), 1, keep_dims=True).to(state[k].dtype),)
    return found


@triton.jit
def scan_kernel(
    out_ptrs, x_ptrs, prefix_ptrs, shape_m, stride_m, stride_n, M, N, chunk,
    LIFT: tl.constexpr, COMBINE: tl.constexpr, SCAN: tl.constexpr, FINISH: tl.constexpr, IDENTITY: tl.constexpr, ACC: tl.constexpr,
    REVERSE: tl.constexpr, PREFIX: tl.constexpr, TOTALS: tl.constexpr, EVEN: tl.constexpr, LOOP: tl.constexpr, WIDE: tl.constexpr,
    ALIGN: tl.constexpr, VEC: tl.constexpr, SIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Program (i, c) scans columns [c * chunk, (c + 1) * chunk) of rows [i * BLOCK_M, (i + 1) * BLOCK_M).

    `stride_m` and `stride_n` hold the strides of the results, then those of the inputs. REVERSE scans from the last column; VEC of them,
    which a thread takes at once, are read as they lie and then turned around. EVEN: rows and columns fill all tiles. LOOP: a chunk is more
    than one. ALIGN divides all of a row but the steps of its columns.
    """
    OUTS: tl.constexpr = len(stride_n) - len(x_ptrs)
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    inside = m < M
    piece, lane = tl.program_id(1), tl.arange(0, BLOCK_N)[None, :]
    if WIDE:
        piece, lane = piece.to(tl.int64), lane.to(tl.int64)
    stop = even(tl.minimum((piece + 1) * chunk, N), ALIGN)
    carry = nothing(x_ptrs, m, lane, LIFT, IDENTITY, ACC, BLOCK_M)
    if PREFIX:
        carry = before(prefix_ptrs, carry, m, inside, M, piece)
    valid = tl.full((BLOCK_M, BLOCK_N), True, tl.int1)
    for j in range(piece * chunk, stop if LOOP else piece * chunk + 1, BLOCK_N):
        at = j + lane
        if not EVEN:
            valid = inside & (at < stop)
        if REVERSE:
            at = even(N, ALIGN) - j - VEC - lane // VEC * VEC + lane % VEC
        x = load_columns(x_ptrs, m, at, valid, shape_m, stride_m, stride_n, OUTS, EVEN, ALIGN, SIDE, ACC)
        if REVERSE:
            x = turned(x, VEC)
        state = SCAN(LIFT(*x, at, valid, IDENTITY))
        if LOOP or PREFIX:
            state = COMBINE(*carry, *state)
        if not TOTALS:
            results = FINISH(*state)
            if REVERSE:
                results = turned(results, VEC)
            for k in tl.static_range(OUTS):
                ptrs = places(out_ptrs[k], m, at, shape_m, stride_m, stride_n, k, ALIGN, SIDE)
                tl.store(ptrs, results[k], mask=None if EVEN else valid)
        if LOOP or TOTALS:
            carry = last_column(state, lane, BLOCK_N)
    if TOTALS:
        for k in tl.static_range(len(out_ptrs)):
            tl.store(out_ptrs[k] + piece * M + m, carry[k], mask=inside)


@triton.jit
def prefix_kernel(state_ptrs, M, pieces, SCAN: tl.constexpr, BLOCK_M: tl.constexpr, PIECES: tl.constexpr):
    """Scan the states of the chunks, stored as (pieces, M), in place."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    piece = tl.arange(0, PIECES)[None, :]
    valid = (m < M) & (piece < pieces)
    state = ()
    for k in tl.static_range(len(state_ptrs)):
        state = state + (tl.load(state_ptrs[k] + piece * M + m, mask=valid, other=0),)
    state = SCAN(state)
    for k in tl.static_range(len(state_ptrs)):
        tl.store(state_ptrs[k] + piece * M + m, state[k], mask=valid)


# ------------------------------------------------------------------ sums, products, log-sum-exps
@triton.jit
def sum_lift(x, index, valid, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, 0),)


@triton.jit
def sum_scan(state):
    return tl.associative_scan(state, 1, sum_combine)


@triton.jit
def prod_lift(x, index, valid, IDENTITY: tl.constexpr):
    return (tl.where(valid, x, 1),)


@triton.jit
def prod_scan(state):
    return tl.associative_scan(state, 1, prod_combine)


@triton.jit
def first_finish(a):
    return (a,)


@triton.jit
def logsumexp_lift(x, index, valid, IDENTITY: tl.constexpr):
    """(largest, sum of exponentials relative to it). The largest is finite: infinities and nan are sums of their own."""
    total = tl.where(tl.abs(x) < float("inf"), 1.0, tl.where(x < 0, 0.0, x))
    return finite(tl.where(valid, x, float("-inf"))), tl.where(valid, total, 0.0).to(x.dtype)


@triton.jit
def logsumexp_combine(a, s, b, t):
    delta = a - b
    ratio = quick_exp(-tl.abs(delta))
    left = delta >= 0
    return tl.maximum(a, b), tl.where(left, s, t) + tl.where(left, t, s) * ratio


@triton.jit
def logsumexp_scan(state):
    return tl.associative_scan(state, 1, logsumexp_combine)


@triton.jit
def logsumexp_finish(a, s):
    return (tl.where(s == 0, -float("inf"), a + tl.log(s)),)


# ------------------------------------------------------------------ extremes with their index: the last of equals wins, NaN above all
@triton.jit
def indexed_lift(x, index, valid, IDENTITY: tl.constexpr):
    return tl.where(valid, x, IDENTITY), tl.zeros(x.shape, index.dtype) + index


@triton.jit
def max_combine(a, i, b, j):
    right = (b >= a) | (b != b)
    return tl.where(right, b, a), tl.where(right, j, i)


@triton.jit
def max_scan(state):
    return tl.associative_scan(state, 1, max_combine)


@triton.jit
def min_combine(a, i, b, j):
    right = (b <= a) | (b != b)
    return tl.where(right, b, a), tl.where(right, j, i)


@triton.jit
def min_scan(state):
    return tl.associative_scan(state, 1, min_combine)


@triton.jit
def both_finish(a, i):
    return a, i


# ------------------------------------------------------------------ linear recurrence: the state (a, b) stands for h -> a * h + b
@triton.jit
def recurrence_lift(a, b, index, valid, IDENTITY: tl.constexpr):
    return tl.where(valid, a, 1), tl.where(valid, b, 0)


@triton.jit
def recurrence_combine(a, b, c, d):
    return c * a, c * b + d


@triton.jit
def recurrence_scan(state):
    return tl.associative_scan(state, 1, recurrence_combine)


@triton.jit
def recurrence_finish(a, b):
    return (b,)
