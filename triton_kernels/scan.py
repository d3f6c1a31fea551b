"""Scans along one dim of any strided tensor: running sums, products, extremes, log-sum-exps and linear recurrences.

A scan runs a monoid (see `triton_kernels/monoids.py`) tile by tile and carries the last state on. Few long rows are cut into
chunks: `scan_kernel` with TOTALS stores the state of every chunk, `prefix_kernel` scans those, and `scan_kernel` with PREFIX
starts every chunk from what came before it.
"""

import triton
import triton.language as tl

from triton_kernels.monoids import logsumexp_combine, prod_combine, sum_combine
from triton_kernels.reduce import offsets


@triton.jit
def nothing(x_ptrs, m, lane, LIFT: tl.constexpr, IDENTITY: tl.constexpr, ACC: tl.constexpr, BLOCK_M: tl.constexpr):
    """The identity of every row."""
    zeros = ()
    for _ in tl.static_range(len(x_ptrs)):
        zeros = zeros + (tl.zeros((BLOCK_M, 1), ACC),)
    return LIFT(*zeros, m.to(lane.dtype) * 0, m < 0, IDENTITY)


@triton.jit
def before(prefix_ptrs, identity, m, inside, M, piece):
    """The states of the columns in front of a chunk; the first has none."""
    found = ()
    for k in tl.static_range(len(prefix_ptrs)):
        value = tl.load(prefix_ptrs[k] + (piece - 1) * M + m, mask=inside & (piece > 0), other=0)
        found = found + (tl.where(piece > 0, value, identity[k]),)
    return found


@triton.jit
def load_columns(x_ptrs, m, at, valid, shape_m, stride_m, stride_n, OUTS: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr):
    """A tile of every input, whose strides follow those of OUTS results."""
    x = ()
    for k in tl.static_range(len(x_ptrs)):
        ptrs = x_ptrs[k] + offsets(m, shape_m, stride_m, (OUTS + k) * len(shape_m)) + at.to(tl.int64) * stride_n[OUTS + k]
        x = x + (tl.load(ptrs, mask=None if EVEN else valid, other=None if EVEN else 0).to(ACC),)
    return x


@triton.jit
def last_column(state, lane, BLOCK_N: tl.constexpr):
    last = ()
    for k in tl.static_range(len(state)):
        last = last + (tl.sum(tl.where(lane == BLOCK_N - 1, state[k], 0), 1, keep_dims=True).to(state[k].dtype),)
    return last


@triton.jit
def scan_kernel(
    out_ptrs, x_ptrs, prefix_ptrs, shape_m, stride_m, stride_n, M, N, chunk,
    LIFT: tl.constexpr, COMBINE: tl.constexpr, SCAN: tl.constexpr, FINISH: tl.constexpr, IDENTITY: tl.constexpr, ACC: tl.constexpr,
    REVERSE: tl.constexpr, PREFIX: tl.constexpr, TOTALS: tl.constexpr, EVEN: tl.constexpr, LOOP: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Program (i, c) scans columns [c * chunk, (c + 1) * chunk) of rows [i * BLOCK_M, (i + 1) * BLOCK_M).

    `stride_m` and `stride_n` hold the strides of the results, then those of the inputs. REVERSE scans from the last column. EVEN: rows and
    columns fill all tiles. LOOP: a chunk is more than one.
    """
    OUTS: tl.constexpr = len(stride_n) - len(x_ptrs)
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    inside = m < M
    piece, lane = tl.program_id(1), tl.arange(0, BLOCK_N)[None, :]
    if WIDE:
        piece, lane = piece.to(tl.int64), lane.to(tl.int64)
    stop = tl.minimum((piece + 1) * chunk, N)
    carry = nothing(x_ptrs, m, lane, LIFT, IDENTITY, ACC, BLOCK_M)
    if PREFIX:
        carry = before(prefix_ptrs, carry, m, inside, M, piece)
    valid = tl.full((BLOCK_M, BLOCK_N), True, tl.int1)
    for j in range(piece * chunk, stop if LOOP else piece * chunk + 1, BLOCK_N):
        n = j + lane
        if not EVEN:
            valid = inside & (n < stop)
        at = n
        if REVERSE:
            at = N - 1 - n
        state = SCAN(LIFT(*load_columns(x_ptrs, m, at, valid, shape_m, stride_m, stride_n, OUTS, EVEN, ACC), n, valid, IDENTITY))
        if LOOP or PREFIX:
            state = COMBINE(*carry, *state)
        if not TOTALS:
            results = FINISH(*state)
            for k in tl.static_range(OUTS):
                ptrs = out_ptrs[k] + offsets(m, shape_m, stride_m, k * len(shape_m)) + at.to(tl.int64) * stride_n[k]
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
    return tl.where(valid, x, float("-inf")), tl.where(valid, 1, 0).to(x.dtype)


@triton.jit
def logsumexp_scan(state):
    return tl.associative_scan(state, 1, logsumexp_combine)


@triton.jit
def logsumexp_finish(a, s):
    return (tl.where(s == 0, a, a + tl.log(s)),)


# ------------------------------------------------------------------ extremes with their index: the last of equals wins, NaN above all
@triton.jit
def indexed_lift(x, index, valid, IDENTITY: tl.constexpr):
    return tl.where(valid, x, IDENTITY), tl.where(valid, index, -1).to(tl.int64)


@triton.jit
def max_combine(a, i, b, j):
    right = (b >= a) | (b != b)
    right = right & (j >= 0)
    return tl.where(right, b, a), tl.where(right, j, i)


@triton.jit
def max_scan(state):
    return tl.associative_scan(state, 1, max_combine)


@triton.jit
def min_combine(a, i, b, j):
    right = (b <= a) | (b != b)
    right = right & (j >= 0)
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
