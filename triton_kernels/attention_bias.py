"""Gradients of what is added to the scores of attention, a mask or slopes times distances; see attention_backward.py.

    gmask = Σ dS over the dims in which the mask is repeated        gslopes = -Σ dS · |distance from the diagonal|

A program owns a tile of the gradient and goes over the scores to which it was added, or over an equal part of them where there are few
tiles: slopes, and masks of keys alone, have next to none. The parts lie behind each other and are added up by another kernel, so the
bits are the same every time. Two products for each tile of scores; nothing of their size is stored but the gradient itself.
"""
import triton
import triton.language as tl

from .attention import (
    LOG2E,
    draws_of,
    head_ptr,
    kept,
    keys_of,
    load_mask,
    load_rows,
    matrix_ptr,
    product,
    rows_from,
    sequence,
)
from .attention_backward import load_lse, rows_of, weights


@triton.jit
def add_slopes(acc, q, g, lse, delta, k_ptr, v_ptr, mask_ptr, strides, rows, n, bounds, bias, draws, keep_scale, E: tl.constexpr,
               EV: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
               PRECISION: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
               DISTANCE: tl.constexpr):
    """acc + dS of some rows and the keys from n on, times minus their distance with DISTANCE."""
    stride_k, stride_v, stride_mask = strides
    L, S, shift = bounds[0], bounds[1], bounds[2]
    columns = rows_from(n, BLOCK_N, WIDE)
    i, j = rows[:, None], columns[None, :]
    mask = load_mask(mask_ptr, stride_mask, i, j, L, S, MASK)
    k = load_rows(k_ptr, stride_k, columns, S, E, BLOCK_D, False)
    v = load_rows(v_ptr, stride_v, columns, S, EV, BLOCK_V, False)
    s = product(q, tl.trans(k), tl.zeros((q.shape[0], BLOCK_N), acc.dtype), PRECISION)
    slopes = product(g, tl.trans(v), tl.zeros((q.shape[0], BLOCK_N), acc.dtype), PRECISION)
    p = weights(s, mask, lse[:, None], i, j, bounds, bias, LEFT, RIGHT, MASK, ALIBI, True)
    if DROPOUT:
        slopes = tl.where(kept(draws, rows, n, S, BLOCK_N), slopes * keep_scale, 0.0)
    slopes = p * (slopes - delta[:, None])
    if DISTANCE:
        slopes *= -tl.abs(j - i - shift).to(acc.dtype)
    return acc + slopes


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_backward_bias_kernel(gb_ptr, g_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, slopes_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr,
                                   base_ptr, stride_gb, stride_g, stride_q, stride_k, stride_v, stride_mask, stride_slopes, stride_o,
                                   stride_lse, batches, own_batches, own_heads, H, GROUP, L, S, left, right, scale, threshold,
                                   keep_scale, seed: tl.int64, offset: tl.int64, E: tl.constexpr, EV: tl.constexpr, LEFT: tl.constexpr,
                                   RIGHT: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
                                   WIDE: tl.constexpr, EVERY_ROW: tl.constexpr, EVERY_KEY: tl.constexpr, DISTANCE: tl.constexpr,
                                   TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
                                   BLOCK_V: tl.constexpr):
    """The gradient of a mask, or of slopes (DISTANCE), of own_batches and own_heads: 1 stands for all. EVERY_ROW and EVERY_KEY: one number
    is added to all rows, to all keys. stride_gb is (part, batch, head, row, column). Grid: (tiles · batches · heads, parts).
    Long, because a tile is one (mask) or runs over rows or keys (a row or a column of it), and the rest is the same."""
    PACKED: tl.constexpr = cu_q_ptr is not None
    ALIBI: tl.constexpr = slopes_ptr is not None
    ACC: tl.constexpr = lse_ptr.dtype.element_ty
    tiles_m, tiles_n = 1 if EVERY_ROW else tl.cdiv(L, BLOCK_M), 1 if EVERY_KEY else tl.cdiv(S, BLOCK_N)
    tile, own = tl.program_id(0) % (tiles_m * tiles_n), tl.program_id(0) // (tiles_m * tiles_n)
    own_m, own_n, own_head, own_batch = tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N, own % own_heads, own // own_heads
    first, last = 0, L                                                   # rows that meet some of these keys
    if not EVERY_KEY:
        first, _, _, last = rows_of(own_n, L, 0, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    if not EVERY_ROW:
        first, last = tl.maximum(first, own_m), tl.minimum(last, own_m + BLOCK_M)
    blocks = tl.cdiv(tl.maximum(last - first, 0), BLOCK_M)
    heads = H // own_heads
    units = batches // own_batches * heads * blocks
    share, blocks = tl.cdiv(units, tl.num_programs(1)), tl.maximum(blocks, 1)    # without a turn the pipeline divides too
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for unit in tl.range(tl.program_id(1) * share, tl.minimum((tl.program_id(1) + 1) * share, units)):
        m, pair = first + unit % blocks * BLOCK_M, unit // blocks
        head, batch = own_head + pair % heads, own_batch + pair // heads
        start_q, length = sequence(cu_q_ptr, batch, L)
        start_k, keys = sequence(cu_k_ptr, batch, S)
        shift, slope = 0, 0.0
        if PACKED:
            shift = keys - length
        rows = rows_from(m, BLOCK_M, WIDE)
        k_of = matrix_ptr(k_ptr, stride_k, batch, head // GROUP, start_k, PACKED, False)
        v_of = matrix_ptr(v_ptr, stride_v, batch, head // GROUP, start_k, PACKED, False)
        lse = load_lse(matrix_ptr(lse_ptr, stride_lse, batch, head, start_q, PACKED, False), stride_lse, rows, length)
        q = load_rows(matrix_ptr(q_ptr, stride_q, batch, head, start_q, PACKED, False), stride_q, rows, length, E, BLOCK_D, False)
        g = load_rows(matrix_ptr(g_ptr, stride_g, batch, head, start_q, PACKED, False), stride_g, rows, length, EV, BLOCK_V, False)
        out = load_rows(matrix_ptr(out_ptr, stride_o, batch, head, start_q, PACKED, False), stride_o, rows, length, EV, BLOCK_V, False)
        delta = tl.sum(g.to(ACC) * out.to(ACC), 1)
        mask_of = mask_ptr
        if MASK > 0:
            mask_of = head_ptr(mask_ptr, stride_mask, batch, head)
        if ALIBI:
            slope = tl.load(head_ptr(slopes_ptr, stride_slopes, batch, head)).to(ACC) * LOG2E
        draws = draws_of(seed, offset, base_ptr, threshold, batch * H + head, L)
        bounds, bias, strides = (length, keys, shift, left, right), (scale, slope), (stride_k, stride_v, stride_mask)
        if EVERY_KEY:
            begin, _, _, end = keys_of(m, keys, shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
            if PACKED:
                end = tl.where(m < length, end, begin)
            for n in tl.range(begin, end, BLOCK_N):
                acc = add_slopes(acc, q, g, lse, delta, k_of, v_of, mask_of, strides, rows, n, bounds, bias, draws, keep_scale, E, EV, LEFT,
                                 RIGHT, MASK, ALIBI, DROPOUT, PRECISION, WIDE, BLOCK_N, BLOCK_D, BLOCK_V, DISTANCE)
        else:
            acc = add_slopes(acc, q, g, lse, delta, k_of, v_of, mask_of, strides, rows, own_n, bounds, bias, draws, keep_scale, E, EV, LEFT,
                             RIGHT, MASK, ALIBI, DROPOUT, PRECISION, WIDE, BLOCK_N, BLOCK_D, BLOCK_V, DISTANCE)
    rows, columns = rows_from(own_m, BLOCK_M, True), rows_from(own_n, BLOCK_N, True)
    rows_left, columns_left = L, S
    if EVERY_ROW:
        acc, rows, rows_left = tl.sum(acc, 0, keep_dims=True), tl.zeros((1,), tl.int64), 1
    if EVERY_KEY:
        acc, columns, columns_left = tl.sum(acc, 1, keep_dims=True), tl.zeros((1,), tl.int64), 1
    gb_ptr += tl.program_id(1).to(tl.int64) * stride_gb[0]
    gb_ptrs = head_ptr(gb_ptr, (stride_gb[1], stride_gb[2]), own_batch, own_head) + (rows[:, None] * stride_gb[3]
                                                                                     + columns[None, :] * stride_gb[4])
    tl.store(gb_ptrs, acc.to(gb_ptr.dtype.element_ty), mask=(rows < rows_left)[:, None] & (columns < columns_left)[None, :])
