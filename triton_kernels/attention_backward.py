"""Gradients of scaled dot-product attention; the weights are computed again, block by block, from q, k and lse.

    P = exp(scores - lse)    dS = P (g @ vᵀ - delta),  delta = Σ g · out    gv = Pᵀ @ g    gq = scale · dS @ k    gk = scale · dSᵀ @ q

One kernel owns keys and goes over the rows. It holds its tiles as (keys, rows), so that Pᵀ and dSᵀ are in the registers from which the
matrix units read them. Names and conventions are those of triton_kernels/attention.py. The gradient of the rows comes in one of two ways:

- Together: the same kernel adds what its keys give to a block of rows to a sum in memory, five products in all. The programs that meet
  a block do so one after the other, from the last keys to the first, so the bits are the same every time. The last of them rounds. A
  counter per block says whose turn it is. A program waits for those with later keys alone; programs take their keys from a ticket, the
  last ones first, so whoever is waited for has started. Under a causal mask each program is a step behind the one it waits for anyway.
- Apart: another kernel owns rows and goes over the keys, seven products in all, but nobody waits and nothing but the results is written.
"""
import triton
import triton.language as tl

from .attention import (
    LN2,
    LOG2E,
    biased,
    draws_of,
    end_of_seen,
    head_ptr,
    kept,
    keys_of,
    load_mask,
    load_rows,
    load_tile,
    matrix_ptr,
    product,
    rows_from,
    sequence,
    store_rows,
    visible,
)


@triton.jit
def load_lse(lse_ptr, stride, rows, L):
    """Row shifts in units of log 2; infinite, so that the weights are 0, past the end and where a row sees no key."""
    lse = tl.load(lse_ptr + rows * stride[2], mask=rows < L, other=float("inf")) * LOG2E
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def weights(s, mask, lse, i, j, bounds, bias, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr,
            EDGE: tl.constexpr):
    """The weights of a tile from its products of rows i and keys j. None is more than 1, whatever a large lse was rounded to; nor are those
    of keys past the end, whose infinity times zero would be in the gradient of the rows."""
    _, S, shift, left, right = bounds
    scale, slope = bias
    s = biased(s, mask, i, j, shift, scale, slope, MASK, ALIBI) - lse
    p = tl.exp2(tl.minimum(s, 0.0, propagate_nan=tl.PropagateNan.ALL))
    if EDGE:
        p = tl.where(visible(i, j, S, shift, left, right, LEFT, RIGHT), p, 0.0)
    return p


# ------------------------------------------------------------------ apart: rows
@triton.jit
def over_keys(gq, q, g, lse, delta, k_ptr, v_ptr, mask_ptr, strides, batch, head, rows, begin, end, bounds, bias, draws, keep_scale,
              E: tl.constexpr, EV: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr,
              DROPOUT: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr,
              BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Add what the keys from begin to end give to the gradient of a block of rows."""
    stride_k, stride_v, stride_mask = strides
    L, S = bounds[0], bounds[1]
    if not EDGE or begin < end:                                         # as in attention.attend; ptxas needs no more
        for n in tl.range(begin, end, BLOCK_N):
            columns = rows_from(n, BLOCK_N, WIDE)
            i, j = rows[:, None], columns[None, :]
            mask = load_mask(mask_ptr, stride_mask, i, j, L, S, MASK)
            k = load_tile(k_ptr, stride_k, batch, head, n, columns, S, E, BLOCK_D, not EDGE, TMA)
            v = load_tile(v_ptr, stride_v, batch, head, n, columns, S, EV, BLOCK_V, not EDGE, TMA)
            s = product(q, tl.trans(k), tl.zeros((q.shape[0], BLOCK_N), gq.dtype), PRECISION)
            slopes = product(g, tl.trans(v), tl.zeros((q.shape[0], BLOCK_N), gq.dtype), PRECISION)
            p = weights(s, mask, lse[:, None], i, j, bounds, bias, LEFT, RIGHT, MASK, ALIBI, EDGE)
            if DROPOUT:
                slopes = tl.where(kept(draws, rows, n, S, BLOCK_N), slopes * keep_scale, 0.0)
            gq = product((p * (slopes - delta[:, None])).to(k.dtype), k, gq, PRECISION)
    return gq


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_backward_q_kernel(gq_ptr, delta_ptr, g_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, slopes_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr,
                                base_ptr, stride_gq, stride_g, stride_q, stride_k, stride_v, stride_mask, stride_slopes, stride_o,
                                stride_lse, stride_delta, H, GROUP, L, S, left, right, scale, threshold, keep_scale, seed: tl.int64,
                                offset: tl.int64, E: tl.constexpr, EV: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
                                MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
                                TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
                                BLOCK_V: tl.constexpr):
    """Gradient of q, and delta, which the other kernel needs. Grid: row blocks · B · H. Long, because it places every operand: the work is
    in `over_keys`."""
    blocks = tl.cdiv(L, BLOCK_M)
    matrix = tl.program_id(0) // blocks
    head, batch = matrix % H, matrix // H
    m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M               # under a causal mask the longest rows start first
    rows = rows_from(m, BLOCK_M, WIDE)
    draws = draws_of(seed, offset, base_ptr, threshold, matrix, L)
    PACKED: tl.constexpr = cu_q_ptr is not None
    ALIBI: tl.constexpr = slopes_ptr is not None
    start_q, L = sequence(cu_q_ptr, batch, L)
    start_k, S = sequence(cu_k_ptr, batch, S)
    shift, slope = 0, 0.0
    if PACKED:
        shift = S - L
    q_ptr = matrix_ptr(q_ptr, stride_q, batch, head, start_q, PACKED, TMA)
    g_ptr = matrix_ptr(g_ptr, stride_g, batch, head, start_q, PACKED, TMA)
    k_ptr = matrix_ptr(k_ptr, stride_k, batch, head // GROUP, start_k, PACKED, TMA)
    v_ptr = matrix_ptr(v_ptr, stride_v, batch, head // GROUP, start_k, PACKED, TMA)
    lse_ptr = matrix_ptr(lse_ptr, stride_lse, batch, head, start_q, PACKED, False)
    lse = load_lse(lse_ptr, stride_lse, rows, L)
    q = load_tile(q_ptr, stride_q, batch, head, m, rows, L, E, BLOCK_D, False, TMA)
    g = load_tile(g_ptr, stride_g, batch, head, m, rows, L, EV, BLOCK_V, False, TMA)
    out = load_rows(matrix_ptr(out_ptr, stride_o, batch, head, start_q, PACKED, False), stride_o, rows, L, EV, BLOCK_V, False)
    delta = tl.sum(g.to(lse.dtype) * out.to(lse.dtype), 1)
    delta_ptr = matrix_ptr(delta_ptr, stride_delta, batch, head, start_q, PACKED, False)
    tl.store(delta_ptr + rows * stride_delta[2], delta, mask=rows < L)
    if MASK > 0:
        mask_ptr = head_ptr(mask_ptr, stride_mask, batch, head)
    if ALIBI:
        slope = tl.load(head_ptr(slopes_ptr, stride_slopes, batch, head)).to(lse.dtype) * LOG2E
    bounds, bias, strides, key_head = (L, S, shift, left, right), (scale, slope), (stride_k, stride_v, stride_mask), head // GROUP
    gq = tl.zeros((BLOCK_M, BLOCK_D), lse.dtype)
    seen = end_of_seen(mask_ptr, stride_mask, S, MASK, WIDE)
    begin, whole, rest, end = keys_of(m, seen, shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    if PACKED:
        if m >= L:
            begin, whole, rest, end = 0, 0, 0, 0
    if LEFT:
        gq = over_keys(gq, q, g, lse, delta, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, begin, whole, bounds, bias, draws,
                       keep_scale, E, EV, LEFT, RIGHT, MASK, ALIBI, DROPOUT, True, PRECISION, WIDE, TMA, BLOCK_N, BLOCK_D, BLOCK_V)
    gq = over_keys(gq, q, g, lse, delta, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, whole, rest, bounds, bias, draws,
                   keep_scale, E, EV, LEFT, RIGHT, MASK, ALIBI, DROPOUT, False, PRECISION, WIDE, TMA, BLOCK_N, BLOCK_D, BLOCK_V)
    gq = over_keys(gq, q, g, lse, delta, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, rest, end, bounds, bias, draws,
                   keep_scale, E, EV, LEFT, RIGHT, MASK, ALIBI, DROPOUT, True, PRECISION, WIDE, TMA, BLOCK_N, BLOCK_D, BLOCK_V)
    store_rows(matrix_ptr(gq_ptr, stride_gq, batch, head, start_q, PACKED, False), stride_gq, rows, L, gq * (scale * LN2), E, BLOCK_D)


# ------------------------------------------------------------------ keys
@triton.jit
def rows_of(n, L, shift, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(begin, whole, rest, end) of the rows that meet the keys from n on, as in `keys_of`; but all start at multiples of BLOCK_M."""
    begin, end, whole, rest = 0, L, 0, L
    if RIGHT:
        begin = tl.maximum(n - shift - right, 0) // BLOCK_M * BLOCK_M
        whole = tl.cdiv(tl.maximum(n + BLOCK_N - 1 - shift - right, 0), BLOCK_M) * BLOCK_M
    if LEFT:
        end = tl.minimum(L, tl.maximum(n + BLOCK_N - shift + left, 0))
        rest = tl.minimum(L, tl.maximum(n - shift + left + 1, 0) // BLOCK_M * BLOCK_M)
    whole = tl.minimum(tl.maximum(whole, begin), end)
    return begin, whole, tl.maximum(whole, rest), end


@triton.jit
def keys_meeting(m, S, shift, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(first, last) block of keys whose `rows_of` have the block of rows at m among them; the last is less than the first: none."""
    first, last = 0, tl.cdiv(S, BLOCK_N) - 1
    if RIGHT:
        reach = m + BLOCK_M - 1 + shift + right
        last = tl.where(reach < 0, -1, tl.minimum(last, reach // BLOCK_N))
    if LEFT:
        first = tl.maximum(m + shift - left, 0) // BLOCK_N
    return first, last


@triton.jit
def block_places(start, batch, head, H, places, PACKED: tl.constexpr, BLOCK_M: tl.constexpr):
    """Number of the first block of rows of one head of one sequence. There are `places` in a head and batch, or packed, in a head; packed
    sequences begin inside of blocks, hence one more for each of them."""
    if PACKED:
        return head.to(tl.int64) * places + (start // BLOCK_M + batch)
    else:
        return (batch.to(tl.int64) * H + head) * places


# In assembly, because the compiler loads ahead in no loop that has another loop or a barrier in it. The simulated GPU, which knows no
# assembly, runs the programs one after the other in their order.
@triton.jit
def await_turn(turn_ptr, turn, WAIT: tl.constexpr):
    """Return when the counter has come to `turn`."""
    if WAIT:
        tl.inline_asm_elementwise("""{
            .reg .pred early;
            again: ld.acquire.gpu.global.s32 $0, [$1];
            setp.lt.s32 early, $0, $2;
            @early bra again;
            }""", "=&r,l,r", [turn_ptr, turn], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.device_assert(tl.load(turn_ptr) == turn, "the blocks of keys that meet a block of rows take turns")


@triton.jit
def end_turn(turn_ptr, WAIT: tl.constexpr):
    """Let the next program have its turn, once all threads have done what was to do in this one."""
    if WAIT:
        tl.inline_asm_elementwise("""{
            .reg .pred first;
            .reg .u32 thread;
            bar.sync 0;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first red.release.gpu.global.add.s32 [$1], 1;
            mov.u32 $0, 0;
            }""", "=&r,l", [turn_ptr], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.store(turn_ptr, tl.load(turn_ptr) + 1)


@triton.jit
def give_to_rows(gq, sums, rows, m, n, bounds, E: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_M: tl.constexpr,
                 BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WAIT: tl.constexpr):
    """Add to the gradient of the rows at m, in this program's turn, what its keys give. The first stores instead, the last rounds."""
    gq_ptr, stride_gq, sum_ptr, turn_ptr, seen = sums
    L, _, shift, left, right = bounds
    first, last = keys_meeting(m, seen, shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    mine, turn_ptr = n // BLOCK_N, turn_ptr + m // BLOCK_M
    sum_ptrs = sum_ptr + m.to(tl.int64) * BLOCK_D + (tl.arange(0, BLOCK_M)[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :])
    if mine == first:                                                    # (each branch waits by itself: the compiler moves branches)
        if mine < last:
            await_turn(turn_ptr, last - mine, WAIT)
            gq += tl.load(sum_ptrs, cache_modifier=".cg")
        store_rows(gq_ptr, stride_gq, rows, L, gq, E, BLOCK_D)
    else:
        if mine == last:
            tl.store(sum_ptrs, gq)
        else:
            await_turn(turn_ptr, last - mine, WAIT)
            tl.atomic_add(sum_ptrs, gq, sem="relaxed")
        end_turn(turn_ptr, WAIT)


@triton.jit
def attention_backward_delta_kernel(gq_ptr, delta_ptr, turns_ptr, g_ptr, out_ptr, cu_q_ptr, cu_k_ptr, stride_gq, stride_g, stride_o,
                                    stride_delta, places, H, L, S, left, right, E: tl.constexpr, EV: tl.constexpr, LEFT: tl.constexpr,
                                    RIGHT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, BLOCK_M: tl.constexpr,
                                    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """delta, the counters and the ticket at 0, and the gradient of rows that meet no keys. Grid: row blocks · B · H."""
    blocks = tl.cdiv(L, BLOCK_M)
    matrix = tl.program_id(0) // blocks
    head, batch = matrix % H, matrix // H
    m = tl.program_id(0) % blocks * BLOCK_M
    rows = rows_from(m, BLOCK_M, WIDE)
    PACKED: tl.constexpr = cu_q_ptr is not None
    start_q, L = sequence(cu_q_ptr, batch, L)
    _, S = sequence(cu_k_ptr, batch, S)
    shift = 0
    if PACKED:
        shift = S - L
    if tl.program_id(0) == 0:
        tl.store(turns_ptr, 0)
    if m < L:
        g_ptr = matrix_ptr(g_ptr, stride_g, batch, head, start_q, PACKED, TMA)
        out_ptr = matrix_ptr(out_ptr, stride_o, batch, head, start_q, PACKED, TMA)
        g = load_tile(g_ptr, stride_g, batch, head, m, rows, L, EV, BLOCK_V, False, TMA)
        out = load_tile(out_ptr, stride_o, batch, head, m, rows, L, EV, BLOCK_V, False, TMA)
        delta_ptr = matrix_ptr(delta_ptr, stride_delta, batch, head, start_q, PACKED, False)
        ACC: tl.constexpr = delta_ptr.dtype.element_ty
        tl.store(delta_ptr + rows * stride_delta[2], tl.sum(g.to(ACC) * out.to(ACC), 1), mask=rows < L)
        place = block_places(start_q, batch, head, H, places, PACKED, BLOCK_M) + m // BLOCK_M
        tl.store(turns_ptr + 1 + place, 0)
        first, last = keys_meeting(m, S, shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
        if last < first:
            gq_ptr = matrix_ptr(gq_ptr, stride_gq, batch, head, start_q, PACKED, False)
            store_rows(gq_ptr, stride_gq, rows, L, tl.zeros((BLOCK_M, BLOCK_D), ACC), E, BLOCK_D)


@triton.jit
def over_rows(gk, gv, k, v, q_ptr, g_ptr, lse_ptr, delta_ptr, mask_ptr, sums, strides, batch, head, columns, n, begin, end, bounds, bias,
              draws, keep_scale, E: tl.constexpr, EV: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr,
              ALIBI: tl.constexpr, DROPOUT: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
              TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, TOGETHER: tl.constexpr,
              WAIT: tl.constexpr):
    """Add what the rows from begin to end give to the gradients of a block of keys, and with TOGETHER what the keys give to theirs."""
    stride_q, stride_g, stride_lse, stride_delta, stride_mask = strides
    L, S = bounds[0], bounds[1]
    if EDGE or begin < end:                                             # as in attention.attend; at the edges it would not help
        for m in tl.range(begin, end, BLOCK_M):
            rows = rows_from(m, BLOCK_M, WIDE)
            i, j = rows[None, :], columns[:, None]
            mask = load_mask(mask_ptr, stride_mask, i, j, L, S, MASK)
            q = load_tile(q_ptr, stride_q, batch, head, m, rows, L, E, BLOCK_D, False, TMA)
            g = load_tile(g_ptr, stride_g, batch, head, m, rows, L, EV, BLOCK_V, False, TMA)
            lse = load_lse(lse_ptr, stride_lse, rows, L)
            delta = tl.load(delta_ptr + rows * stride_delta[2], mask=rows < L, other=0)
            s = product(k, tl.trans(q), tl.zeros((k.shape[0], BLOCK_M), gk.dtype), PRECISION)
            slopes = product(v, tl.trans(g), tl.zeros((k.shape[0], BLOCK_M), gk.dtype), PRECISION)
            p = weights(s, mask, lse[None, :], i, j, bounds, bias, LEFT, RIGHT, MASK, ALIBI, EDGE)
            met = p
            if DROPOUT:
                keep = tl.trans(kept(draws, rows, n, S, k.shape[0]))
                met = tl.where(keep, p * keep_scale, 0.0)
                slopes = tl.where(keep, slopes * keep_scale, 0.0)
            gv = product(met.to(g.dtype), g, gv, PRECISION)
            slopes = (p * (slopes - delta[None, :])).to(q.dtype)
            gk = product(slopes, q, gk, PRECISION)
            if TOGETHER:
                gq = product(tl.trans(slopes), k, tl.zeros((BLOCK_M, BLOCK_D), gk.dtype), PRECISION)
                gq *= bias[0] * LN2
                give_to_rows(gq, sums, rows, m, n, bounds, E, LEFT, RIGHT, BLOCK_M, k.shape[0], BLOCK_D, WAIT)
    return gk, gv


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_backward_kv_kernel(gk_ptr, gv_ptr, gq_ptr, sum_ptr, turns_ptr, g_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, slopes_ptr, lse_ptr,
                                 delta_ptr, cu_q_ptr, cu_k_ptr, base_ptr, stride_gk, stride_gv, stride_gq, stride_g, stride_q, stride_k,
                                 stride_v, stride_mask, stride_slopes, stride_lse, stride_delta, places, H, GROUP, L, S, left, right,
                                 scale, threshold, keep_scale, seed: tl.int64, offset: tl.int64, E: tl.constexpr, EV: tl.constexpr,
                                 LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
                                 PRECISION: tl.constexpr, WIDE: tl.constexpr, WAIT: tl.constexpr, TMA: tl.constexpr,
                                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Gradients of k and v, summed over the group of query heads that share them; with `sum_ptr` the gradient of q as well, after
    attention_backward_delta_kernel has set `turns_ptr`, a ticket and the counters, to 0. Grid: key blocks · B · H / GROUP.
    Long, because it places every operand: the work is in `over_rows`."""
    TOGETHER: tl.constexpr = sum_ptr is not None
    blocks = tl.cdiv(S, BLOCK_N)
    program = tl.program_id(0)
    if TOGETHER:
        program = tl.atomic_add(turns_ptr, 1, sem="relaxed")
    matrix = program // blocks
    key_head, batch = matrix % (H // GROUP), matrix // (H // GROUP)
    n = program % blocks * BLOCK_N                                       # under a causal mask the first keys meet most rows
    if TOGETHER:
        n = (blocks - 1) * BLOCK_N - n
    columns = rows_from(n, BLOCK_N, WIDE)
    PACKED: tl.constexpr = cu_q_ptr is not None
    ALIBI: tl.constexpr = slopes_ptr is not None
    ACC: tl.constexpr = lse_ptr.dtype.element_ty
    longest = L
    start_q, L = sequence(cu_q_ptr, batch, L)
    start_k, S = sequence(cu_k_ptr, batch, S)
    shift = 0
    if PACKED:
        shift = S - L
    k_ptr = matrix_ptr(k_ptr, stride_k, batch, key_head, start_k, PACKED, TMA)
    v_ptr = matrix_ptr(v_ptr, stride_v, batch, key_head, start_k, PACKED, TMA)
    k = load_tile(k_ptr, stride_k, batch, key_head, n, columns, S, E, BLOCK_D, False, TMA)
    v = load_tile(v_ptr, stride_v, batch, key_head, n, columns, S, EV, BLOCK_V, False, TMA)
    bounds, strides = (L, S, shift, left, right), (stride_q, stride_g, stride_lse, stride_delta, stride_mask)
    gk = tl.zeros((BLOCK_N, BLOCK_D), ACC)
    gv = tl.zeros((BLOCK_N, BLOCK_V), ACC)
    begin, whole, rest, end = rows_of(n, L, shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    if PACKED:
        if n >= S:
            begin, whole, rest, end = 0, 0, 0, 0
    for member in range(0, GROUP):
        head = key_head * GROUP + member
        draws = draws_of(seed, offset, base_ptr, threshold, batch * H + head, longest)
        q_of = matrix_ptr(q_ptr, stride_q, batch, head, start_q, PACKED, TMA)
        g_of = matrix_ptr(g_ptr, stride_g, batch, head, start_q, PACKED, TMA)
        lse_of = matrix_ptr(lse_ptr, stride_lse, batch, head, start_q, PACKED, False)
        delta_of = matrix_ptr(delta_ptr, stride_delta, batch, head, start_q, PACKED, False)
        mask_of, sums, seen = mask_ptr, (), S
        if MASK > 0:
            mask_of = head_ptr(mask_ptr, stride_mask, batch, head)
            if not (TOGETHER and LEFT):                                  # some rows may meet hidden keys alone, and would have no last turn
                seen = end_of_seen(mask_of, stride_mask, S, MASK, WIDE)
        if TOGETHER:
            place = block_places(start_q, batch, head, H, places, PACKED, BLOCK_M)
            gq_of = matrix_ptr(gq_ptr, stride_gq, batch, head, start_q, PACKED, False)
            sums = (gq_of, stride_gq, sum_ptr + place * (BLOCK_M * BLOCK_D), turns_ptr + 1 + place, seen)
        slope = 0.0                                                      # not carried round the loop, where its type may not change
        if ALIBI:
            slope = tl.load(head_ptr(slopes_ptr, stride_slopes, batch, head)).to(ACC) * LOG2E
        bias = (scale, slope)
        first, upto, after, stop = begin, whole, rest, end
        if MASK > 0:
            first, upto, after, stop = rows_of(n, tl.where(n < seen, L, 0), shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
        if RIGHT:
            gk, gv = over_rows(gk, gv, k, v, q_of, g_of, lse_of, delta_of, mask_of, sums, strides, batch, head, columns, n, first, upto,
                               bounds, bias, draws, keep_scale, E, EV, LEFT, RIGHT, MASK, ALIBI, DROPOUT, True, PRECISION, WIDE, TMA,
                               BLOCK_M, BLOCK_D, BLOCK_V, TOGETHER, WAIT)
        gk, gv = over_rows(gk, gv, k, v, q_of, g_of, lse_of, delta_of, mask_of, sums, strides, batch, head, columns, n, upto, after,
                           bounds, bias, draws, keep_scale, E, EV, LEFT, RIGHT, MASK, ALIBI, DROPOUT, False, PRECISION, WIDE, TMA,
                           BLOCK_M, BLOCK_D, BLOCK_V, TOGETHER, WAIT)
        if LEFT:
            gk, gv = over_rows(gk, gv, k, v, q_of, g_of, lse_of, delta_of, mask_of, sums, strides, batch, head, columns, n, after, stop,
                               bounds, bias, draws, keep_scale, E, EV, LEFT, RIGHT, MASK, ALIBI, DROPOUT, True, PRECISION, WIDE, TMA,
                               BLOCK_M, BLOCK_D, BLOCK_V, TOGETHER, WAIT)
    gk_ptr = matrix_ptr(gk_ptr, stride_gk, batch, key_head, start_k, PACKED, False)
    gv_ptr = matrix_ptr(gv_ptr, stride_gv, batch, key_head, start_k, PACKED, False)
    store_rows(gk_ptr, stride_gk, columns, S, gk * (scale * LN2), E, BLOCK_D)
    store_rows(gv_ptr, stride_gv, columns, S, gv, EV, BLOCK_V)
