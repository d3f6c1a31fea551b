"""Gradients of the keys and values of attention for heads of 256 numbers on Hopper, 16-bit types; see attention_backward_wide_gluon.py.

Both warp groups own the same ROWS keys. One finds the weights and the gradient of the values, the other the slopes and the gradient of the
keys: each has two products of the four, and the registers for one result. The weights go from the one to the other in float32, as the
threads hold them. The first is as much as a block of rows ahead, so while one group computes the other multiplies.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from .attention_backward_gluon import row_ptrs, send
from .attention_places_gluon import LINE, WARP, after, barriers, fill, item_of, pairs_of, tiles_in

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)
FOURS = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))


@gluon.jit
def rows_of(pair, half, sizes, LEFT: gl.constexpr, RIGHT: gl.constexpr, KEYS: gl.constexpr, BLOCK_M: gl.constexpr):
    """(first key, first row that meets it, blocks of rows, how many of them at the beginning need a look at single scores, and how many
    come before those at the end that do) of a tile."""
    _, _, S, L, left, right = sizes
    n = gl.where(half == 0, pair, gl.cdiv(S, KEYS) - 1 - pair) * KEYS
    begin, edges, end, rest = 0, 0, L, L
    if RIGHT:
        begin = gl.maximum(n - right, 0) // BLOCK_M * BLOCK_M
        edges = gl.cdiv(gl.maximum(n + KEYS - 1 - right, 0), BLOCK_M) - begin // BLOCK_M
    if LEFT:
        end, rest = gl.minimum(L, n + KEYS + left), n + left + 1
    return n, begin, gl.cdiv(gl.maximum(end - begin, 0), BLOCK_M), edges, rest // BLOCK_M - begin // BLOCK_M


@gluon.jit
def load_for_keys(descs, row_args, bufs, bars, sizes, GROUP, LEFT: gl.constexpr, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
                  KEYS: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr):
    """The loading warp: keys and values of each tile, then the rows of every query head that shares them, with what their scores and
    slopes are less by."""
    lse_ptr, delta_ptr, stride_lse, stride_delta = row_args
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars[:6]
    heads, L, shifts = sizes[0], sizes[3], bufs[4]
    pairs, items = pairs_of(sizes, KEYS)
    slot, phase, turn = 0, 1, 1                          # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, KEYS)):
            n, begin, steps, _, _ = rows_of(pair, half, sizes, LEFT, RIGHT, KEYS, BLOCK_M)
            for x in gl.static_range(2):
                fill(descs[x], batch, head, n, bufs[x], empty, ready, x, turn)
            turn ^= 1
            for t in range(GROUP * steps):
                member, m = head * GROUP + t // steps, begin + t % steps * BLOCK_M
                rows = m + gl.arange(0, BLOCK_M, WARP)
                lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, member, rows), mask=rows < L, other=float("inf"))
                delta = gl.load(row_ptrs(delta_ptr, stride_delta, batch, member, rows), mask=rows < L, other=0)
                fill(descs[2], batch, member, m, bufs[2], q_empty, q_ready, slot, phase)
                shifts.index(2 * slot).store(lse * LOG2E)
                mbarrier.arrive(q_ready.index(slot), count=1)
                fill(descs[3], batch, member, m, bufs[3], g_empty, g_ready, slot, phase)
                shifts.index(2 * slot + 1).store(delta)
                mbarrier.arrive(g_ready.index(slot), count=1)
                slot, phase = after(slot, phase, STAGES)


@gluon.jit
def hand_over(p, bufs, bars, count):
    """Leave weights for the other group, as the threads hold them."""
    KEYS: gl.constexpr = p.shape[0]
    ROWS: gl.constexpr = p.shape[1]
    part = p.reshape((KEYS // 16, 2, 8, ROWS // 8, 4, 2)).permute((3, 0, 2, 4, 1, 5)).reshape((KEYS * ROWS, ))
    mbarrier.wait(bars[6].index(count & 1), (count >> 1 & 1) ^ 1)
    bufs[5].index(count & 1).store(gl.convert_layout(part, FOURS, assert_trivial=True))
    mbarrier.arrive(bars[7].index(count & 1), count=1)


@gluon.jit
def handed_over(bufs, bars, count, SCORES: gl.constexpr, KEYS: gl.constexpr, ROWS: gl.constexpr):
    """The weights that the other group has left."""
    mbarrier.wait(bars[7].index(count & 1), count >> 1 & 1)
    part = bufs[5].index(count & 1).load(FOURS).reshape((ROWS // 8, KEYS // 16, 8, 4, 2, 2))
    p = gl.convert_layout(part.permute((1, 4, 2, 0, 3, 5)).reshape((KEYS, ROWS)), SCORES, assert_trivial=True)
    mbarrier.arrive(bars[6].index(count & 1), count=1)
    return p


@gluon.jit
def weights_of_keys(s, shifts, slot, keys, m, edge, bounds, scale, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """The weights of keys and the rows from m on; `edge`: some row may not meet some key."""
    left, right = bounds
    ACROSS: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    p = gl.exp2(s * scale - shifts.index(2 * slot).load(ACROSS)[None, :])
    if edge:
        rows = m + gl.arange(0, s.shape[1], ACROSS)
        if RIGHT:
            p = gl.where(rows[None, :] >= (keys - right)[:, None], p, 0.0)
        if LEFT:
            p = gl.where(rows[None, :] <= (keys + left)[:, None], p, 0.0)
    return p


@gluon.jit
def own_values(gv_desc, bufs, bars, sizes, GROUP, scale, LEFT: gl.constexpr, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
               KEYS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr):
    """The warp group that finds the weights: the gradient of values. Its product with them is under way while the next scores are found.
    Long, as own_rows is."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars[:6]
    k, q_bufs, g_bufs, shifts = bufs[0].index(0), bufs[2], bufs[3], bufs[4]
    T: gl.constexpr = gv_desc.dtype
    heads, bounds = sizes[0], sizes[4:]
    pairs, items = pairs_of(sizes, KEYS)
    slot, phase, turn, count = 0, 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, KEYS)):
            n, begin, steps, edges, rest = rows_of(pair, half, sizes, LEFT, RIGHT, KEYS, BLOCK_M)
            keys = n + gl.arange(0, KEYS, gl.SliceLayout(1, SCORES))
            gv = gl.zeros((KEYS, BLOCK_D), gl.float32, OUT)
            zeros = gl.zeros((KEYS, BLOCK_M), gl.float32, SCORES)
            mbarrier.wait(ready.index(0), turn)
            if steps > 0:
                mbarrier.wait(q_ready.index(slot), phase)
                s = warpgroup_mma(k, q_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
                s = warpgroup_mma_wait(num_outstanding=0, deps=(s, ))
                p = weights_of_keys(s, shifts, slot, keys, begin, (edges > 0) | (rest < 1), bounds, scale, LEFT, RIGHT)
                mbarrier.arrive(q_empty.index(slot), count=1)
                hand_over(p, bufs, bars, count)
                for t in range(1, GROUP * steps):
                    before, phase_before, i = slot, phase, t % steps
                    slot, phase = after(slot, phase, STAGES)
                    operand = gl.convert_layout(p.to(T), OPERAND)
                    mbarrier.wait(q_ready.index(slot), phase)
                    mbarrier.wait(g_ready.index(before), phase_before)
                    s = warpgroup_mma(k, q_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
                    gv = warpgroup_mma(operand, g_bufs.index(before), gv, is_async=True)
                    s = warpgroup_mma_wait(num_outstanding=1, deps=(s, ))
                    p = weights_of_keys(s, shifts, slot, keys, begin + i * BLOCK_M, (i < edges) | (i >= rest), bounds, scale, LEFT, RIGHT)
                    mbarrier.arrive(q_empty.index(slot), count=1)
                    hand_over(p, bufs, bars, count + t)
                    gv = warpgroup_mma_wait(num_outstanding=0, deps=(gv, ))
                    mbarrier.arrive(g_empty.index(before), count=1)
                mbarrier.wait(g_ready.index(slot), phase)
                gv = warpgroup_mma(gl.convert_layout(p.to(T), OPERAND), g_bufs.index(slot), gv, is_async=True)
                gv = warpgroup_mma_wait(num_outstanding=0, deps=(gv, ))
                mbarrier.arrive(g_empty.index(slot), count=1)
                slot, phase = after(slot, phase, STAGES)
            count += GROUP * steps
            send(gv_desc, batch, head, n, k, gv)
            tma.store_wait(pendings=0)
            mbarrier.arrive(empty.index(0), count=1)
            turn ^= 1


@gluon.jit
def own_slopes(gk_desc, bufs, bars, sizes, GROUP, scale, LEFT: gl.constexpr, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
               KEYS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr):
    """The warp group that finds the slopes of the scores: the gradient of keys."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars[:6]
    v, q_bufs, g_bufs, shifts = bufs[1].index(1), bufs[2], bufs[3], bufs[4]
    heads = sizes[0]
    pairs, items = pairs_of(sizes, KEYS)
    slot, phase, turn, count = 0, 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, KEYS)):
            n, _, steps, _, _ = rows_of(pair, half, sizes, LEFT, RIGHT, KEYS, BLOCK_M)
            gk = gl.zeros((KEYS, BLOCK_D), gl.float32, OUT)
            zeros = gl.zeros((KEYS, BLOCK_M), gl.float32, SCORES)
            mbarrier.wait(ready.index(1), turn)
            for _ in range(GROUP * steps):
                mbarrier.wait(g_ready.index(slot), phase)
                products = warpgroup_mma(v, g_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
                products = warpgroup_mma_wait(num_outstanding=0, deps=(products, ))
                slopes = products - shifts.index(2 * slot + 1).load(gl.SliceLayout(0, SCORES))[None, :]
                mbarrier.arrive(g_empty.index(slot), count=1)
                slopes = slopes * handed_over(bufs, bars, count, SCORES, KEYS, BLOCK_M)
                mbarrier.wait(q_ready.index(slot), phase)
                gk = warpgroup_mma(gl.convert_layout(slopes.to(v.dtype), OPERAND), q_bufs.index(slot), gk, is_async=True)
                gk = warpgroup_mma_wait(num_outstanding=0, deps=(gk, ))
                mbarrier.arrive(q_empty.index(slot), count=1)
                slot, phase = after(slot, phase, STAGES)
                count += 1
            send(gk_desc, batch, head, n, v, gk * (scale * LN2))
            tma.store_wait(pendings=0)
            mbarrier.arrive(empty.index(1), count=1)
            turn ^= 1


@gluon.jit
def attention_backward_wide_kv_gluon_kernel(gk_desc, gv_desc, g_desc, q_desc, k_desc, v_desc, lse_ptr, delta_ptr, stride_lse, stride_delta,
                                            BATCH, H, GROUP, L, S, left, right, scale, LEFT: gl.constexpr, RIGHT: gl.constexpr,
                                            PROGRAMS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_M: gl.constexpr,
                                            BLOCK_D: gl.constexpr, STAGES: gl.constexpr):
    """Gradients of k and v, over all query heads that share them; ROWS are those of a tile of keys, GROUPS is 1. Without masks; scale > 0,
    right ≥ 0, with LEFT L ≤ S. num_warps is 4. Grid: PROGRAMS."""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_D], T)
    kept = gl.allocate_shared_memory(T, [2, ROWS, BLOCK_D], layout)      # keys, and values
    q_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    g_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    handed = gl.allocate_shared_memory(gl.float32, [2, ROWS * BLOCK_M], LINE)
    shifts = gl.allocate_shared_memory(gl.float32, [2 * STAGES, BLOCK_M], LINE)
    bars = (barriers(2, 1), barriers(2, 1), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 2),
            barriers(2, 1), barriers(2, 1))
    fence_async_shared()
    bufs, sizes = (kept, kept, q_bufs, g_bufs, shifts, handed), (H // GROUP, BATCH * (H // GROUP), S, L, left, right)
    gl.warp_specialize([
        (own_values, (gv_desc, bufs, bars, sizes, GROUP, scale, LEFT, RIGHT, PROGRAMS, ROWS, BLOCK_M, BLOCK_D, STAGES)),
        (own_slopes, (gk_desc, bufs, bars, sizes, GROUP, scale, LEFT, RIGHT, PROGRAMS, ROWS, BLOCK_M, BLOCK_D, STAGES)),
        (load_for_keys, ((k_desc, v_desc, q_desc, g_desc), (lse_ptr, delta_ptr, stride_lse, stride_delta), bufs, bars, sizes, GROUP, LEFT,
                         RIGHT, PROGRAMS, ROWS, BLOCK_M, STAGES)),
    ], [4, 1], [240, 24])
