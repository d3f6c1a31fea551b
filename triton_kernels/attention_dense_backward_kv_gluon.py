"""Gradients of keys and values under a mask of rows and keys; see attention_dense_backward_gluon.py."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from triton_kernels.attention_backward_gluon import anew, row_ptrs, send
from triton_kernels.attention_dense_gluon import list_of, listed, shown_scores, words_at
from triton_kernels.attention_dropout_gluon import draws_of, drop_bits, dropped_negative, first_counter, of_kept
from triton_kernels.attention_gluon import LINE, WARP, after, barriers, fill, item_of, pairs_of, tiles_in

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def first_key(pair, half, sizes, KEYS: gl.constexpr):
    """Where a tile begins: first the keys that most rows meet under a causal mask."""
    return gl.where(half == 0, pair, gl.cdiv(sizes[2], KEYS) - 1 - pair) * KEYS


@gluon.jit
def load_for_keys(descs, row_args, lists, bufs, bars, sizes, GROUP, PROGRAMS: gl.constexpr, ROWS: gl.constexpr, BLOCK_M: gl.constexpr,
                  STAGES: gl.constexpr):
    """The loading warp: keys and values of each tile, then the rows of every query head that shares them, with what their scores and
    slopes are less by, for which the groups have no registers to spare."""
    lse_ptr, delta_ptr, stride_lse, stride_delta = row_args
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars
    heads, L, shifts, across = sizes[0], sizes[3], bufs[4], gl.cdiv(sizes[3], BLOCK_M)
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, tiles = 0, 1, 0                         # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            n = first_key(pair, half, sizes, 2 * ROWS)
            list_ptr, _ = list_of(lists, batch, head * GROUP, n // (2 * ROWS), gl.cdiv(sizes[2], 2 * ROWS), across)
            part, steps = gl.load(list_ptr), gl.load(list_ptr + 1)
            for c in gl.static_range(2):
                kept = 2 * (tiles & 1) + c
                mbarrier.wait(empty.index(kept), (tiles >> 1 & 1) ^ 1)
                mbarrier.expect(ready.index(kept), 2 * descs[0].block_type.nbytes)
                for x in gl.static_range(2):
                    buf = bufs[x].index(kept)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                    tma.async_copy_global_to_shared(descs[x], [batch, head, n + c * ROWS, 0], ready.index(kept), buf)
            tiles += 1
            for i in range(GROUP * steps):
                member, m = head * GROUP + i // steps, listed(list_ptr, i % steps, part, across) * BLOCK_M
                rows = m + gl.arange(0, BLOCK_M, WARP)
                lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, member, rows), mask=rows < L, other=float("inf"))
                lse = gl.where(lse == float("-inf"), float("inf"), lse)  # of a row that sees no key: its weights are 0
                delta = gl.load(row_ptrs(delta_ptr, stride_delta, batch, member, rows), mask=rows < L, other=0)
                fill(descs[2], batch, member, m, bufs[2], q_empty, q_ready, slot, phase)
                shifts.index(2 * slot).store(lse * LOG2E)
                shifts.index(2 * slot + 1).store(delta)
                mbarrier.arrive(q_ready.index(slot), count=1)
                fill(descs[3], batch, member, m, bufs[3], g_empty, g_ready, slot, phase)
                slot, phase = after(slot, phase, STAGES)


@gluon.jit
def weigh(gv, s, products, g, shifts, slot, keys, words, bits, seen, m, scale, draws, PART: gl.constexpr, MASK: gl.constexpr):
    """Add what the rows at m give to the gradient of values; also the slopes of their scores. The second products are under way."""
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=gv.type.layout, k_width=2)
    ACROSS: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    s = s * scale
    if PART:
        s = shown_scores(s, words, seen[0], seen[1], keys, m + gl.arange(0, s.shape[1], ACROSS), seen[2], seen[3], MASK)
    p = gl.exp2(s - shifts.index(2 * slot).load(ACROSS)[None, :])
    if len(draws) > 0:
        p = dropped_negative(p, bits, s.shape[1])
    gv = warpgroup_mma(gl.convert_layout(of_kept(p, draws, g.dtype), OPERAND), g, gv, is_async=True)
    products = warpgroup_mma_wait(num_outstanding=1, deps=(products, ))
    delta = shifts.index(2 * slot + 1).load(ACROSS)
    if len(draws) > 0:
        return gv, gl.abs(p) * (gl.where(p < 0, 0.0, products * draws[3]) - delta[None, :])
    else:
        return gv, p * (products - delta[None, :])


@gluon.jit
def beside(seen, draws, member, i, TURN: gl.constexpr, KEYS: gl.constexpr, PART: gl.constexpr, MASK: gl.constexpr, BLOCK_M: gl.constexpr):
    """(first row of the ith block listed, words of its scores that the mask shows, words of those that dropout takes away), as far as
    they are asked for."""
    words, bits, m = i, i, i
    if PART:
        words = words_at(seen[5], i, TURN * KEYS, BLOCK_M)
    if len(draws) > 0 or PART and MASK == 2:
        m = listed(seen[4], i, seen[6], seen[7]) * BLOCK_M
    if len(draws) > 0:
        L, S = seen[3], seen[2]
        first, across = first_counter(draws, seen[8] + member, L, S)
        bits = drop_bits(draws, first + m // 2 * across + (seen[9] + TURN * KEYS) // 4, S, BLOCK_M)
    return m, words, bits


@gluon.jit
def next_rows(gk, gv, slopes, kept, bufs, bars, slots, keys, member, i, seen, scale, draws, PART: gl.constexpr, MASK: gl.constexpr,
              SCORES: gl.constexpr, STAGES: gl.constexpr, TURN: gl.constexpr):
    """Add what the rows before give to the gradient of keys, and what the ith block listed gives to that of values; and the slopes of its
    scores."""
    _, _, q_empty, q_ready, g_empty, g_ready = bars
    slot, phase, before = slots
    kept = anew(kept)
    k, v = bufs[0].index(kept), bufs[1].index(kept)
    ROWS: gl.constexpr = k.shape[0]
    BLOCK_M: gl.constexpr = bufs[2].shape[1]
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=gk.type.layout, k_width=2)
    q, g = bufs[2].index(slot), bufs[3].index(slot)
    operand = gl.convert_layout(slopes.to(k.dtype), OPERAND)
    m, words, bits = beside(seen, draws, member, i, TURN, ROWS, PART, MASK, BLOCK_M)
    mbarrier.wait(q_ready.index(slot), phase)
    mbarrier.wait(g_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_M), gl.float32, SCORES)
    s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    gk = warpgroup_mma(operand, bufs[2].index(before), gk, is_async=True)
    products = warpgroup_mma(v, g.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=2, deps=(s, ))
    gv, slopes = weigh(gv, s, products, g, bufs[4], slot, keys, words, bits, seen, m, scale, draws, PART, MASK)
    gk, gv = warpgroup_mma_wait(num_outstanding=0, deps=(gk, gv))
    mbarrier.arrive(q_empty.index(before), count=1)
    mbarrier.arrive(g_empty.index(slot), count=1)
    following, phase = after(slot, phase, STAGES)
    return gk, gv, slopes, (following, phase, slot)


@gluon.jit
def own_keys(gk_desc, gv_desc, mask_args, lists, draws, bufs, bars, sizes, GROUP, scale, MASK: gl.constexpr, PROGRAMS: gl.constexpr,
             ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr, TURN: gl.constexpr):
    """A warp group: its ROWS keys of every tile of this program. Long, as it is all that happens to a tile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars
    heads, _, S, L = sizes
    across = gl.cdiv(L, BLOCK_M)
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, tiles = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            n = first_key(pair, half, sizes, 2 * ROWS)
            list_ptr, words_ptr = list_of(lists, batch, head * GROUP, n // (2 * ROWS), gl.cdiv(S, 2 * ROWS), across)
            part, steps, tells = gl.load(list_ptr), gl.load(list_ptr + 1), gl.load(list_ptr + 2) == 0
            mask_ptr, stride_mask = mask_args
            mask = (mask_ptr + batch.to(gl.int64) * stride_mask[0] + (head * GROUP).to(gl.int64) * stride_mask[1], stride_mask[3],
                    stride_mask[2])
            seen = (tells, mask, S, L, list_ptr, words_ptr, part, across, matrix * GROUP, n)
            kept = 2 * (tiles & 1) + TURN
            k, v = bufs[0].index(kept), bufs[1].index(kept)
            keys = n + TURN * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            gk = gl.zeros((ROWS, BLOCK_D), gl.float32, OUT)
            gv = gl.zeros((ROWS, BLOCK_D), gl.float32, OUT)
            m, words, bits = beside(seen, draws, 0, gl.to_tensor(0), TURN, ROWS, True, MASK, BLOCK_M)
            mbarrier.wait(ready.index(kept), tiles >> 1 & 1)
            zeros = gl.zeros((ROWS, BLOCK_M), gl.float32, SCORES)
            mbarrier.wait(q_ready.index(slot), phase)
            s = warpgroup_mma(k, bufs[2].index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(g_ready.index(slot), phase)
            products = warpgroup_mma(v, bufs[3].index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(num_outstanding=1, deps=(s, ))
            gv, slopes = weigh(gv, s, products, bufs[3].index(slot), bufs[4], slot, keys, words, bits, seen, m, scale, draws, True, MASK)
            gv = warpgroup_mma_wait(num_outstanding=0, deps=(gv, ))
            mbarrier.arrive(g_empty.index(slot), count=1)
            following, phase = after(slot, phase, STAGES)
            slots = (following, phase, slot)
            for member in range(GROUP):
                for i in range(gl.where(member == 0, 1, 0), part):
                    gk, gv, slopes, slots = next_rows(gk, gv, slopes, kept, bufs, bars, slots, keys, member, i, seen, scale, draws, True,
                                                      MASK, SCORES, STAGES, TURN)
                for i in range(gl.maximum(gl.where(member == 0, 1, 0), part), steps):
                    gk, gv, slopes, slots = next_rows(gk, gv, slopes, kept, bufs, bars, slots, keys, member, i, seen, scale, draws, False,
                                                      MASK, SCORES, STAGES, TURN)
            slot, phase, before = slots
            gk = warpgroup_mma(gl.convert_layout(slopes.to(k.dtype), OPERAND), bufs[2].index(before), gk, is_async=True)
            gk = warpgroup_mma_wait(num_outstanding=0, deps=(gk, ))
            mbarrier.arrive(q_empty.index(before), count=1)
            if len(draws) > 0:
                gv = gv * draws[3]
            send(gv_desc, batch, head, n + TURN * ROWS, v, gv)
            send(gk_desc, batch, head, n + TURN * ROWS, k, gk * (scale * LN2))
            tma.store_wait(pendings=0)
            mbarrier.arrive(empty.index(kept), count=1)
            tiles += 1


@gluon.jit(do_not_specialize=["threshold", "seed", "offset"])
def attention_dense_backward_kv_gluon_kernel(gk_desc, gv_desc, mask_ptr, lists_ptr, words_ptr, base_ptr, g_desc, q_desc, k_desc, v_desc,
                                             lse_ptr, delta_ptr, stride_lse, stride_delta, stride_mask, stride_lists, BATCH, H, GROUP, L, S,
                                             scale, threshold, keep_scale, seed: gl.int64, offset: gl.int64, MASK: gl.constexpr,
                                             DROPOUT: gl.constexpr, WIDE: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr,
                                             BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr):
    """Gradients of k and v, over all query heads that share them, which share a mask; scale > 0. ROWS is 64, num_warps 4.
    Grid: PROGRAMS."""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_D], T)
    k_bufs = gl.allocate_shared_memory(T, [4, ROWS, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [4, ROWS, BLOCK_D], layout)
    q_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    g_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    shifts = gl.allocate_shared_memory(gl.float32, [2 * STAGES, BLOCK_M], LINE)
    bars = (barriers(4, 1), barriers(4, 1), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 1))
    fence_async_shared()
    bufs, sizes = (k_bufs, v_bufs, q_bufs, g_bufs, shifts), (H // GROUP, BATCH * (H // GROUP), S, L)
    lists, draws = (lists_ptr, words_ptr, stride_lists[0], stride_lists[1]), ()
    if DROPOUT:
        draws = draws_of(base_ptr, seed, offset, threshold, keep_scale)
    if WIDE:
        stride_mask = (stride_mask[0], stride_mask[1], gl.to_tensor(stride_mask[2]).to(gl.int64), gl.to_tensor(stride_mask[3]).to(gl.int64))
    gl.warp_specialize([
        (own_keys, (gk_desc, gv_desc, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, GROUP, scale, MASK, PROGRAMS, ROWS, BLOCK_M,
                    BLOCK_D, STAGES, 0)),
        (own_keys, (gk_desc, gv_desc, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, GROUP, scale, MASK, PROGRAMS, ROWS, BLOCK_M,
                    BLOCK_D, STAGES, 1)),
        (load_for_keys, ((k_desc, v_desc, q_desc, g_desc), (lse_ptr, delta_ptr, stride_lse, stride_delta), lists, bufs, bars, sizes, GROUP,
                         PROGRAMS, ROWS, BLOCK_M, STAGES)),
    ], [4, 1], [240, 24])
