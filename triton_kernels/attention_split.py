"""Attention of few rows to many keys, as when a text is written word by word: the keys are cut into pieces, so that all of the GPU reads.

The query heads that share a key head are rows of one tile, row r of it row r // GROUP of head r % GROUP of them: keys and values are read
once for all. Of each piece comes the maximum, the total and the weighted sum of values of its rows; a second kernel joins the pieces in
their order. Everything else is as in triton_kernels/attention.py, whose `attend` takes the keys of a piece.
"""
import triton
import triton.language as tl

from .attention import (
    LOG2E,
    attend,
    draws_of,
    end_of_seen,
    ended,
    head_ptr,
    keys_of,
    load_rows,
    matrix_ptr,
    sequence,
    store_rows,
)


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_split_kernel(out_ptr, top_ptr, total_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, slopes_ptr, cu_q_ptr, cu_k_ptr, base_ptr, stride_o,
                           stride_top, stride_q, stride_k, stride_v, stride_mask, stride_slopes, PIECES, H, GROUP, L, S, left, right,
                           scale, threshold, keep_scale, seed: tl.int64, offset: tl.int64, E: tl.constexpr, EV: tl.constexpr,
                           LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, LATE: tl.constexpr, DROPOUT: tl.constexpr,
                           PRECISION: tl.constexpr, WIDE: tl.constexpr, ALIKE: tl.constexpr, BLOCK_M: tl.constexpr,
                           BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Weighted sums, maxima (in units of log 2) and totals of the pieces; strides are (batch, head, row, [column,] piece). Without
    total_ptr there is one piece, and out and lse are what is stored. ALIKE: all heads have the same mask.
    Grid: row blocks · pieces · B · key heads. Long, because it places every operand."""
    blocks = tl.cdiv(L * GROUP, BLOCK_M)
    first, cut = tl.program_id(0) % blocks * BLOCK_M, tl.program_id(0) // blocks
    piece, matrix = cut % PIECES, cut // PIECES
    key_head, batch = matrix % (H // GROUP), matrix // (H // GROUP)
    head, rows = key_head * GROUP + (first + tl.arange(0, BLOCK_M)) % GROUP, (first + tl.arange(0, BLOCK_M)) // GROUP
    if WIDE:
        rows = rows.to(tl.int64)
    draws = draws_of(seed, offset, base_ptr, threshold, batch.to(tl.int64) * H + head, L)
    PACKED: tl.constexpr = cu_q_ptr is not None
    ALIBI: tl.constexpr = slopes_ptr is not None
    ACC: tl.constexpr = top_ptr.dtype.element_ty
    start_q, L = sequence(cu_q_ptr, batch, L)
    start_k, S = sequence(cu_k_ptr, batch, S)
    shift, slope = 0, 0.0
    if PACKED:
        shift = S - L
    q = load_rows(matrix_ptr(q_ptr, stride_q, batch, head, start_q, PACKED, False)[:, None], stride_q, rows, L, E, BLOCK_D, False)
    k_ptr = matrix_ptr(k_ptr, stride_k, batch, key_head, start_k, PACKED, False)
    v_ptr = matrix_ptr(v_ptr, stride_v, batch, key_head, start_k, PACKED, False)
    seen = S
    if ALIKE:
        seen = end_of_seen(head_ptr(mask_ptr, stride_mask, batch, key_head), stride_mask, S, MASK, WIDE)
    if MASK > 0:
        mask_ptr = head_ptr(mask_ptr, stride_mask, batch, head)[:, None]
    if ALIBI:
        slope = tl.load(head_ptr(slopes_ptr, stride_slopes, batch, head)).to(ACC)[:, None] * LOG2E
    bounds, bias, strides = (L, S, shift, left, right), (scale, slope), (stride_k, stride_v, stride_mask)
    acc = tl.zeros((BLOCK_M, BLOCK_V), ACC)
    top = tl.full((BLOCK_M,), float("-inf"), ACC)
    total = tl.zeros((BLOCK_M,), ACC)
    begin, whole, rest, end = keys_of(first // GROUP, seen, shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    share = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N), PIECES) * BLOCK_N
    begin += piece * share
    end = tl.minimum(end, begin + share)
    whole = tl.minimum(tl.maximum(whole, begin), end)
    rest = tl.maximum(tl.minimum(rest, end), whole)
    if LEFT:
        acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, begin, whole, bounds, bias,
                                 draws, E, EV, LEFT, RIGHT, MASK, ALIBI, LATE, DROPOUT, True, PRECISION, WIDE, False, BLOCK_N, BLOCK_D,
                                 BLOCK_V)
    acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, whole, rest, bounds, bias, draws,
                             E, EV, LEFT, RIGHT, MASK, ALIBI, LATE, DROPOUT, False, PRECISION, WIDE, False, BLOCK_N, BLOCK_D, BLOCK_V)
    acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, rest, end, bounds, bias, draws,
                             E, EV, LEFT, RIGHT, MASK, ALIBI, LATE, DROPOUT, True, PRECISION, WIDE, False, BLOCK_N, BLOCK_D, BLOCK_V)
    if total_ptr is None:
        acc, top = ended(acc, top, total, keep_scale, DROPOUT)
    out_ptr = matrix_ptr(out_ptr, stride_o, batch, head, start_q, PACKED, False)[:, None] + piece.to(tl.int64) * stride_o[4]
    store_rows(out_ptr, stride_o, rows, L, acc, EV, BLOCK_V)
    place = matrix_ptr(0, stride_top, batch, head, start_q, PACKED, False) + rows * stride_top[2] + piece.to(tl.int64) * stride_top[3]
    tl.store(top_ptr + place, top, mask=rows < L)
    if total_ptr is not None:
        tl.store(total_ptr + place, total, mask=rows < L)


@triton.jit
def attention_join_kernel(out_ptr, lse_ptr, part_ptr, top_ptr, total_ptr, stride_o, stride_lse, PIECES, ROWS, H, L, keep_scale,
                          EV: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr):
    """out and lse of a row, from its pieces: the contiguous tensors (pieces, B · H · L [, EV]). Grid: ROWS = B · H · L."""
    ACC: tl.constexpr = top_ptr.dtype.element_ty
    row, d = tl.program_id(0), tl.arange(0, BLOCK_V)
    acc, top, total = tl.zeros((1, BLOCK_V), ACC), tl.full((1,), float("-inf"), ACC), tl.zeros((1,), ACC)
    for p in range(0, PIECES, BLOCK_P):
        pieces = p + tl.arange(0, BLOCK_P)
        places, there = pieces.to(tl.int64) * ROWS + row, pieces < PIECES
        tops = tl.load(top_ptr + places, mask=there, other=float("-inf"))
        totals = tl.load(total_ptr + places, mask=there, other=0)
        parts = tl.load(part_ptr + places[:, None] * EV + d[None, :], mask=there[:, None] & (d < EV)[None, :], other=0)
        higher = tl.maximum(top, tl.max(tops, 0))
        pivot = tl.where(higher == float("-inf"), 0.0, higher)           # no key was met yet
        shrink, weights = tl.exp2(top - pivot), tl.exp2(tops - pivot)
        total = total * shrink + tl.sum(totals * weights, 0)
        acc = acc * shrink[:, None] + tl.sum(parts * weights[:, None], 0)[None, :]
        top = higher
    acc, lse = ended(acc, top, total, keep_scale, DROPOUT)
    i, head, batch = row % L, row // L % H, row // L // H
    out_ptrs = head_ptr(out_ptr, stride_o, batch, head) + i.to(tl.int64) * stride_o[2] + d[None, :] * stride_o[3]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(d < EV)[None, :])
    tl.store(head_ptr(lse_ptr, stride_lse, batch, head) + i.to(tl.int64) * stride_lse[2] + tl.arange(0, 1), lse)
