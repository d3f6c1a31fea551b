"""Gradient of the rows of attention under a mask of rows and keys, 16-bit types on Hopper.

The schedule is that of attention_backward_gluon.py, the blocks that are met are those of attention_blocks.py, as in
attention_dense_gluon.py: one loop has those at a list's front, another one the rest. Results are those of attention_backward.py.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from triton_kernels.attention_backward_gluon import row_ptrs, send
from triton_kernels.attention_dense_gluon import list_of, listed, shown_scores, words_at
from triton_kernels.attention_dropout_gluon import draws_of, dropped_keys, first_counter
from triton_kernels.attention_gluon import after, barriers, fill, first_row, item_of, pairs_of, tiles_in

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)


# ------------------------------------------------------------------ rows
@gluon.jit
def load_for_rows(descs, lists, bufs, bars, sizes, GROUP, PROGRAMS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
                  STAGES: gl.constexpr):
    """The loading warp: what stays of each tile, then keys and values."""
    empty, ready, k_empty, k_ready, v_empty, v_ready, out_empty, out_ready = bars
    H, across = sizes[0], gl.cdiv(sizes[3], BLOCK_N)
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, turn = 0, 1, 1                          # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            list_ptr, _ = list_of(lists, batch, head, m // (2 * ROWS), gl.cdiv(sizes[2], 2 * ROWS), across)
            part, steps = gl.load(list_ptr), gl.load(list_ptr + 1)
            for c in gl.static_range(2):
                mbarrier.wait(empty.index(c), turn)
                mbarrier.expect(ready.index(c), 2 * descs[0].block_type.nbytes)
                for x in gl.static_range(2):
                    buf = bufs[x].index(c)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                    tma.async_copy_global_to_shared(descs[x], [batch, head, m + c * ROWS, 0], ready.index(c), buf)
            for i in range(steps):
                n = listed(list_ptr, i, part, across) * BLOCK_N
                fill(descs[3], batch, head // GROUP, n, bufs[3], k_empty, k_ready, slot, phase)
                fill(descs[4], batch, head // GROUP, n, bufs[4], v_empty, v_ready, slot, phase)
                slot, phase = after(slot, phase, STAGES)
                if i == 0:                               # the result of the tile before leaves from here, which is the last that it does
                    for c in gl.static_range(2):
                        fill(descs[2], batch, head, m + c * ROWS, bufs[2], out_empty, out_ready, c, turn)
            turn ^= 1


@gluon.jit
def slopes_of(s, products, lse, delta, words, seen, rows, n, scale, draws, PART: gl.constexpr, MASK: gl.constexpr):
    """The gradient of a tile of scores: `s` are products of rows and keys, `products` is under way and waited for in between."""
    s = s * scale
    if PART:
        keys = n + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        s = shown_scores(s, words, seen[0], seen[1], rows, keys, seen[2], seen[3], MASK)
    p = gl.exp2(s - lse[:, None])
    if len(draws) > 0:
        p = dropped_keys(p, draws, draws[1], draws[3], n, s.shape[1])
    products = warpgroup_mma_wait(num_outstanding=0, deps=(products, ))
    if len(draws) > 0:
        return gl.abs(p) * (gl.where(p < 0, 0.0, products * draws[4]) - delta[:, None])
    else:
        return p * (products - delta[:, None])


@gluon.jit
def next_keys(gq, slopes, q, g, lse, delta, k_bufs, v_bufs, bars, slots, rows, i, seen, scale, draws, PART: gl.constexpr,
              MASK: gl.constexpr, SCORES: gl.constexpr, STAGES: gl.constexpr):
    """Add what the keys before give to the gradient of the rows, from the slopes of their scores, and find the slopes of the ith listed."""
    _, _, k_empty, k_ready, v_empty, v_ready, _, _ = bars
    slot, phase, before = slots
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=gq.type.layout, k_width=2)
    words, n = rows, 0
    if PART:
        words = words_at(seen[5], i, seen[8], BLOCK_N)
    if len(draws) > 0 or PART and MASK == 2:
        n = listed(seen[4], i, seen[6], seen[7]) * BLOCK_N
    operand = gl.convert_layout(slopes.to(q.dtype), OPERAND)
    mbarrier.wait(k_ready.index(slot), phase)
    mbarrier.wait(v_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
    s = warpgroup_mma(q, k_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    gq = warpgroup_mma(operand, k_bufs.index(before), gq, is_async=True)
    products = warpgroup_mma(g, v_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=2, deps=(s, ))
    slopes = slopes_of(s, products, lse, delta, words, seen, rows, n, scale, draws, PART, MASK)
    gq = warpgroup_mma_wait(num_outstanding=0, deps=(gq, ))
    mbarrier.arrive(v_empty.index(slot), count=1)
    mbarrier.arrive(k_empty.index(before), count=1)
    following, phase = after(slot, phase, STAGES)
    return gq, slopes, (following, phase, slot)


@gluon.jit
def own_rows(gq_desc, delta_ptr, lse_ptr, stride_delta, stride_lse, mask_args, lists, draws, bufs, bars, sizes, scale, MASK: gl.constexpr,
             PROGRAMS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr,
             TURN: gl.constexpr):
    """A warp group: its ROWS rows of every tile of this program. Long, because a buffer is given back where its last product has ended:
    the order of the lines is the schedule."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    empty, ready, k_empty = bars[0], bars[1], bars[2]
    H, _, L, S = sizes
    T: gl.constexpr = gq_desc.dtype
    q, g, out, across = bufs[0].index(TURN), bufs[1].index(TURN), bufs[2].index(TURN), gl.cdiv(S, BLOCK_N)
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, turn = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            list_ptr, words_ptr = list_of(lists, batch, head, m // (2 * ROWS), gl.cdiv(L, 2 * ROWS), across)
            part, steps, tells = gl.load(list_ptr), gl.load(list_ptr + 1), gl.load(list_ptr + 2) == 0
            mask_ptr, stride_mask = mask_args
            mask = (mask_ptr + batch.to(gl.int64) * stride_mask[0] + head.to(gl.int64) * stride_mask[1], stride_mask[2], stride_mask[3])
            seen = (tells, mask, L, S, list_ptr, words_ptr, part, across, TURN * ROWS)
            drawn = ()
            if len(draws) > 0:
                drawn = (draws[0], first_counter(draws, matrix, L, S), draws[2], m + TURN * ROWS, draws[3])
            rows = m + TURN * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, head, rows), mask=rows < L, other=0) * LOG2E
            lse = gl.where(lse == float("-inf"), float("inf"), lse)      # of a row that sees no key: its weights are 0
            words, n = words_at(words_ptr, 0, TURN * ROWS, BLOCK_N), listed(list_ptr, 0, part, across) * BLOCK_N
            mbarrier.wait(ready.index(TURN), turn)
            mbarrier.wait(bars[7].index(TURN), turn)
            delta = gl.sum(g.load(OUT).to(gl.float32) * out.load(OUT).to(gl.float32), 1)
            delta = gl.convert_layout(delta, gl.SliceLayout(1, SCORES))
            gl.store(row_ptrs(delta_ptr, stride_delta, batch, head, rows), delta, mask=rows < L)
            gq = gl.zeros((ROWS, BLOCK_D), gl.float32, OUT)
            mbarrier.wait(bars[3].index(slot), phase)
            mbarrier.wait(bars[5].index(slot), phase)
            zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
            s = warpgroup_mma(q, bufs[3].index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
            products = warpgroup_mma(g, bufs[4].index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(num_outstanding=1, deps=(s, ))
            slopes = slopes_of(s, products, lse, delta, words, seen, rows, n, scale, drawn, True, MASK)
            mbarrier.arrive(bars[4].index(slot), count=1)
            following, phase_following = after(slot, phase, STAGES)
            slots = (following, phase_following, slot)
            for i in range(1, part):
                gq, slopes, slots = next_keys(gq, slopes, q, g, lse, delta, bufs[3], bufs[4], bars, slots, rows, i, seen, scale, drawn,
                                              True, MASK, SCORES, STAGES)
            for i in range(gl.maximum(part, 1), steps):
                gq, slopes, slots = next_keys(gq, slopes, q, g, lse, delta, bufs[3], bufs[4], bars, slots, rows, i, seen, scale, drawn,
                                              False, MASK, SCORES, STAGES)
            mbarrier.arrive(empty.index(TURN), count=1)                  # the next rows come while these are finished
            slot, phase, before = slots
            OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
            gq = warpgroup_mma(gl.convert_layout(slopes.to(T), OPERAND), bufs[3].index(before), gq, is_async=True)
            gq = warpgroup_mma_wait(num_outstanding=0, deps=(gq, ))
            mbarrier.arrive(k_empty.index(before), count=1)
            send(gq_desc, batch, head, m + TURN * ROWS, out, gq * (scale * LN2))
            tma.store_wait(pendings=0)
            mbarrier.arrive(bars[6].index(TURN), count=1)
            turn ^= 1


@gluon.jit(do_not_specialize=["threshold", "seed", "offset"])
def attention_dense_backward_q_gluon_kernel(gq_desc, delta_ptr, mask_ptr, lists_ptr, words_ptr, base_ptr, g_desc, q_desc, k_desc, v_desc,
                                            out_desc, lse_ptr, stride_lse, stride_delta, stride_mask, stride_lists, BATCH, H, GROUP, L, S,
                                            scale, threshold, keep_scale, seed: gl.int64, offset: gl.int64, MASK: gl.constexpr,
                                            DROPOUT: gl.constexpr, WIDE: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr,
                                            BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr):
    """Gradient of q, and delta = Σ g · out; scale > 0. ROWS is 64, num_warps 4. Grid: PROGRAMS."""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_D], T)
    q_bufs = gl.allocate_shared_memory(T, [2, ROWS, BLOCK_D], layout)
    g_bufs = gl.allocate_shared_memory(T, [2, ROWS, BLOCK_D], layout)
    out_bufs = gl.allocate_shared_memory(T, [2, ROWS, BLOCK_D], layout)
    k_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    bars = (barriers(2, 1), barriers(2, 1), barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, 2), barriers(STAGES, 1),
            barriers(2, 1), barriers(2, 1))
    fence_async_shared()
    bufs, sizes = (q_bufs, g_bufs, out_bufs, k_bufs, v_bufs), (H, BATCH * H, L, S)
    lists, draws = (lists_ptr, words_ptr, stride_lists[0], stride_lists[1]), ()
    if DROPOUT:
        draws = draws_of(base_ptr, seed, offset, threshold, keep_scale)
    if WIDE:
        stride_mask = (stride_mask[0], stride_mask[1], gl.to_tensor(stride_mask[2]).to(gl.int64), gl.to_tensor(stride_mask[3]).to(gl.int64))
    gl.warp_specialize([
        (own_rows, (gq_desc, delta_ptr, lse_ptr, stride_delta, stride_lse, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, scale,
                    MASK, PROGRAMS, ROWS, BLOCK_N, BLOCK_D, STAGES, 0)),
        (own_rows, (gq_desc, delta_ptr, lse_ptr, stride_delta, stride_lse, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, scale,
                    MASK, PROGRAMS, ROWS, BLOCK_N, BLOCK_D, STAGES, 1)),
        (load_for_rows, ((q_desc, g_desc, out_desc, k_desc, v_desc), lists, bufs, bars, sizes, GROUP, PROGRAMS, ROWS, BLOCK_N, STAGES)),
    ], [4, 1], [240, 24])
