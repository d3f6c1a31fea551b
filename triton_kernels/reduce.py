"""Reductions of any strided tensor: a loop over rows × columns that runs a monoid (see monoids.py).

A row is one element of the result, its columns are the elements reduced into it; both are given as (shape, strides), so no
layout needs a copy. Few long rows are split over programs: each stores its state, and `merge_kernel` combines the states in a
fixed order, so the result is deterministic.
"""

import triton
import triton.language as tl

from .pairs import halves


@triton.jit
def even(x, EVEN: tl.constexpr):
    """x, which EVEN divides: Triton, which sees for itself only what 16 divides, can then load several elements at once."""
    if EVEN == 1 or EVEN == 16:
        return x
    else:
        return x // EVEN * EVEN


@triton.jit
def offsets(index, shape, strides, FIRST: tl.constexpr = 0, ALIGN: tl.constexpr = 1):
    """Element offsets of flat indices into a strided shape; `strides` starts at FIRST, and ALIGN divides them. The outermost dim needs no
    remainder."""
    offset = index * 0
    for k in tl.static_range(1, len(shape)):                             # no name for the dim: a constexpr is given a value but once
        offset += (index % shape[len(shape) - k]) * even(strides[FIRST + len(shape) - k], ALIGN)
        index = index // shape[len(shape) - k]
    return offset + index * even(strides[FIRST], ALIGN)


@triton.jit
def column_offsets(n, outer, inner, shape, strides, FIRST: tl.constexpr, INNER: tl.constexpr, ALIGN: tl.constexpr):
    """Element offsets of columns n. INNER: they lie in one step of all dims but the last, `outer`, so that no element needs a division."""
    if INNER:
        RANK: tl.constexpr = len(shape)
        start = tl.zeros((), tl.int64)
        for k in tl.static_range(RANK - 1):
            size = shape[RANK - 2 - k]
            start += (outer % size).to(tl.int64) * even(strides[FIRST + RANK - 2 - k], ALIGN)
            outer = outer // size
        return start + inner * strides[FIRST + RANK - 1]
    else:
        return offsets(n, shape, strides, FIRST)


@triton.jit
def parts_of(value, ACC: tl.constexpr):
    """What was loaded in the dtype of the state: of words, which are complex numbers, two values."""
    if value.dtype == tl.uint64:
        return halves(value)
    else:
        return (value.to(ACC),)


@triton.jit
def load_tiles(x_ptrs, m, n, outer, inner, M, there, shape_m, stride_m, shape_n, stride_n, SKIP: tl.constexpr, FORMS: tl.constexpr,
               ACC: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, INNER: tl.constexpr, ALIGN: tl.constexpr):
    """A tile of every operand. FORMS says what it varies along: "tile" (both), "row" (one value a row) or "column".

    `stride_m` and `stride_n` hold the strides of all operands; in `stride_m` those of SKIP results come first. EVEN: all of it is there.
    WHOLE: all columns are.
    """
    x = ()
    inside = (m < M)[:, None] if WHOLE else (m < M)[:, None] & there[None, :]
    for k in tl.static_range(len(FORMS)):
        # one value a row is loaded as a vector: as a tile of one column every thread would load it once for each of its elements
        if FORMS[k] == "row":
            value = tl.load(x_ptrs[k] + offsets(m, shape_m, stride_m, (SKIP + k) * len(shape_m)), mask=m < M, other=0)[:, None]
        elif FORMS[k] == "column":
            at = column_offsets(n, outer, inner, shape_n, stride_n, k * len(shape_n), INNER, ALIGN)
            value = tl.load(x_ptrs[k] + at, mask=there, other=0)[None, :]
        else:
            row = offsets(m, shape_m, stride_m, (SKIP + k) * len(shape_m), ALIGN)[:, None]
            at = row + column_offsets(n, outer, inner, shape_n, stride_n, k * len(shape_n), INNER, ALIGN)[None, :]
            value = tl.load(x_ptrs[k] + at, mask=None if EVEN else inside, other=None if EVEN else 0)
        x = x + parts_of(value, ACC)
    return x


@triton.jit
def lifted_tile(
    x_ptrs, m, j, lane, M, stop, width, shape_m, stride_m, shape_n, stride_n, param, LIFT: tl.constexpr, IDENTITY: tl.constexpr,
    ACC: tl.constexpr, FORMS: tl.constexpr, OUTS: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, INNER: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """The states of the elements of a tile, which begins at column j, of `width` to a step of the outer dims if INNER. What is not valid is
    so in all rows, those past the end too: so is what follows from it alone, such as how many there are, computed once."""
    outer = j // width
    inner = j - outer * width + lane
    if INNER:
        size = even(shape_n[len(shape_n) - 1], ALIGN)
        base = outer * size + j - outer * width
        there = (inner < size) & (j + lane < stop)
    else:
        base = j
        there = j + lane < stop
    x = load_tiles(x_ptrs, m, base + lane, outer, inner, M, there, shape_m, stride_m, shape_n, stride_n, OUTS, FORMS, ACC, EVEN, WHOLE,
                   INNER, ALIGN)
    valid = tl.full((1, 1), True, tl.int1) if EVEN or WHOLE else there[None, :]
    return LIFT(*x, base, valid, param, IDENTITY)


@triton.jit
def reduce_kernel(
    out_ptrs, x_ptrs, shape_m, stride_m, shape_n, stride_n, M, N, width, chunk, count, param,
    LIFT: tl.constexpr, STEP: tl.constexpr, FOLD: tl.constexpr, FINISH: tl.constexpr, IDENTITY: tl.constexpr, ACC: tl.constexpr,
    FORMS: tl.constexpr, OUTS: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, INNER: tl.constexpr, SPLIT: tl.constexpr,
    NEAR: tl.constexpr, ALIGN: tl.constexpr, HELD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Program (i, s) reduces columns [s * chunk, (s + 1) * chunk) of rows [i * BLOCK_M, (i + 1) * BLOCK_M).

    With SPLIT the states are stored, as (splits, M), instead of the OUTS results. EVEN: rows and columns fill all tiles. INNER: N counts
    columns as if the last of their dims had `width` elements, whole tiles, so that no tile passes its end. HELD: so many tiles are a
    row, and all of it is loaded at once. NEAR: tiles are taken relative to what the first one gave first.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    piece, lane = tl.program_id(1), tl.arange(0, BLOCK_N)
    if WIDE:
        piece, lane = piece.to(tl.int64), lane.to(tl.int64)
    start = piece * chunk
    stop = even(tl.minimum(start + chunk, N), ALIGN)
    state = lifted_tile(x_ptrs, m, start, lane, M, stop, width, shape_m, stride_m, shape_n, stride_n, param, LIFT, IDENTITY, ACC, FORMS,
                        OUTS, EVEN, HELD > 1, INNER, ALIGN)
    if HELD:
        for k in tl.static_range(1, HELD):
            state = STEP(*state, *lifted_tile(x_ptrs, m, k * BLOCK_N, lane, M, stop, width, shape_m, stride_m, shape_n, stride_n,
                                              state[0] if NEAR else param, LIFT, IDENTITY, ACC, FORMS, OUTS, EVEN, k < HELD - 1, INNER,
                                              ALIGN))
    else:
        for j in range(start + BLOCK_N, stop, BLOCK_N):
            state = STEP(*state, *lifted_tile(x_ptrs, m, j, lane, M, stop, width, shape_m, stride_m, shape_n, stride_n,
                                              state[0] if NEAR else param, LIFT, IDENTITY, ACC, FORMS, OUTS, EVEN, False, INNER, ALIGN))
    state = FOLD(state, lane[None, :])
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
    results = FINISH(*FOLD(state, 0), count, param)
    for k in tl.static_range(len(out_ptrs)):
        tl.store(out_ptrs[k] + offsets(m, shape_m, stride_m, k * len(shape_m)), results[k], mask=inside)
