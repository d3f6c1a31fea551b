"""Gradient of the rows of attention for heads of 256 numbers on Hopper, 16-bit types; conventions as in attention_backward_gluon.py.

Two warp groups own ROWS rows each, as there. A head fills shared memory so soon that keys have STAGES slots and values one: products are
issued in the order in which the slots come free again. There is no room for the result, which leaves from where q was, nor for that of the
forward pass, which is read by pointers. Results are those of triton_kernels/attention_backward.py, which is also the reference.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from .attention_backward_gluon import anew, row_ptrs, send
from .attention_places_gluon import after, barriers, fill, first_row, item_of, keys_of, pairs_of, tiles_in

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)
CHUNK = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def load_for_rows(descs, bufs, bars, sizes, GROUP, LEFT: gl.constexpr, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr,
                  BLOCK_N: gl.constexpr, STAGES: gl.constexpr):
    """The loading warp: what stays of each tile, then keys and values."""
    empty, ready, k_empty, k_ready, v_empty, v_ready = bars
    H = sizes[0]
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, turn, steps_phase = 0, 1, 1, 1          # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            begin, steps, _, _ = keys_of(m, sizes, LEFT, RIGHT, 2 * ROWS, BLOCK_N)
            for c in gl.static_range(2):
                mbarrier.wait(empty.index(c), turn)
                mbarrier.expect(ready.index(c), 2 * descs[0].block_type.nbytes)
                for x in gl.static_range(2):
                    buf = bufs[x].index(c)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                    tma.async_copy_global_to_shared(descs[x], [batch, head, m + c * ROWS, 0], ready.index(c), buf)
            turn ^= 1
            for i in range(steps):
                n = (begin + steps - 1 - i) * BLOCK_N
                fill(descs[2], batch, head // GROUP, n, bufs[2], k_empty, k_ready, slot, phase)
                fill(descs[3], batch, head // GROUP, n, bufs[3], v_empty, v_ready, 0, steps_phase)
                slot, phase = after(slot, phase, STAGES)
                steps_phase ^= 1


@gluon.jit
def weights_of_rows(s, lse, rows, n, bounds, scale, EDGE: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """The weights of a tile from its products of rows and keys."""
    S, left, right = bounds
    p = gl.exp2(s * scale - lse[:, None])
    if EDGE:
        keys = n + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        seen = (keys < S)[None, :]
        if RIGHT:
            seen = keys[None, :] < gl.minimum(rows + right + 1, S)[:, None]
        if LEFT:
            seen = seen & (keys[None, :] >= (rows - left)[:, None])
        p = gl.where(seen, p, 0.0)
    return p


@gluon.jit
def next_keys(gq, slopes, lse, delta, bufs, bars, slots, rows, n, bounds, scale, EDGE: gl.constexpr, LEFT: gl.constexpr,
              RIGHT: gl.constexpr, SCORES: gl.constexpr, STAGES: gl.constexpr, TURN: gl.constexpr):
    """Add what the keys before give to the gradient of the rows, from the slopes of their scores, and find the slopes of those at n. The
    keys before are given back while the last product runs, as the next ones come there."""
    _, _, k_empty, k_ready, v_empty, v_ready = bars
    slot, phase, before, turn = slots
    place = anew(gl.to_tensor(TURN))
    q, g, k_bufs, v = bufs[0].index(place), bufs[1].index(place), bufs[2], bufs[3].index(place - TURN)
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=gq.type.layout, k_width=2)
    operand = gl.convert_layout(slopes.to(q.dtype), OPERAND)
    mbarrier.wait(k_ready.index(slot), phase)
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
    s = warpgroup_mma(q, k_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    gq = warpgroup_mma(operand, k_bufs.index(before), gq, is_async=True)
    mbarrier.wait(v_ready.index(0), turn)
    products = warpgroup_mma(g, v.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=2, deps=(s, ))
    p = weights_of_rows(s, lse, rows, n, bounds, scale, EDGE, LEFT, RIGHT)
    gq = warpgroup_mma_wait(num_outstanding=1, deps=(gq, ))
    mbarrier.arrive(k_empty.index(before), count=1)
    products = warpgroup_mma_wait(num_outstanding=0, deps=(products, ))
    mbarrier.arrive(v_empty.index(0), count=1)
    following, phase = after(slot, phase, STAGES)
    return gq, p * (products - delta[:, None]), (following, phase, slot, turn ^ 1)


@gluon.jit
def delta_of(g, out_ptr, rows, L, stride, EV: gl.constexpr, BLOCK_D: gl.constexpr):
    """Σ g · out of each row, of which 64 numbers at a time are in registers."""
    ROWS: gl.constexpr = g.shape[0]
    WIDTH: gl.constexpr = BLOCK_D // 4
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], g.dtype)
    parts = g._reinterpret(g.dtype, [4, ROWS, WIDTH], layout)
    delta = gl.zeros((ROWS, ), gl.float32, gl.SliceLayout(1, CHUNK))
    for c in gl.static_range(4):
        columns = c * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, CHUNK))
        out = gl.load(out_ptr + (rows.to(gl.int64)[:, None] * stride + columns[None, :]),
                      mask=(rows < L)[:, None] & (columns < EV)[None, :], other=0)
        delta += gl.sum(parts.index(c).load(CHUNK).to(gl.float32) * out.to(gl.float32), 1)
    return delta


@gluon.jit
def own_rows(gq_desc, row_args, bufs, bars, sizes, scale, LEFT: gl.constexpr, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
             ROWS: gl.constexpr, BLOCK_N: gl.constexpr, EV: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr, TURN: gl.constexpr):
    """A warp group: its ROWS rows of every tile of this program. Long, because a buffer is given back where its last product has ended:
    the order of the lines is the schedule."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    delta_ptr, out_ptr, lse_ptr, stride_out, stride_lse, stride_delta = row_args
    empty, ready, k_empty, k_ready, v_empty, v_ready = bars
    H, L, bounds = sizes[0], sizes[2], sizes[3:]
    T: gl.constexpr = gq_desc.dtype
    k_bufs = bufs[2]
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, turn, steps_phase = 0, 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            begin, steps, edges, rest = keys_of(m, sizes, LEFT, RIGHT, 2 * ROWS, BLOCK_N)
            place, m = anew(gl.to_tensor(TURN)), m + TURN * ROWS
            q, g, v = bufs[0].index(place), bufs[1].index(place), bufs[3].index(place - TURN)
            end, edges = begin + steps - 1, gl.maximum(edges, 1)
            if LEFT:
                edges = gl.minimum(edges, steps)
                rest = gl.minimum(gl.maximum(rest, edges), steps)
            rows = m + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, head, rows), mask=rows < L, other=0) * LOG2E
            mbarrier.wait(ready.index(TURN), turn)
            out_of = out_ptr + batch.to(gl.int64) * stride_out[0] + head.to(gl.int64) * stride_out[1]
            delta = delta_of(g, out_of, m + gl.arange(0, ROWS, gl.SliceLayout(1, CHUNK)), L, stride_out[2], EV, BLOCK_D)
            delta = gl.convert_layout(delta, gl.SliceLayout(1, SCORES))
            gl.store(row_ptrs(delta_ptr, stride_delta, batch, head, rows), delta, mask=rows < L)
            gq = gl.zeros((ROWS, BLOCK_D), gl.float32, OUT)
            zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
            mbarrier.wait(k_ready.index(slot), phase)
            s = warpgroup_mma(q, k_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(v_ready.index(0), steps_phase)
            products = warpgroup_mma(g, v.permute((1, 0)), zeros, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(num_outstanding=1, deps=(s, ))
            p = weights_of_rows(s, lse, rows, end * BLOCK_N, bounds, scale, True, LEFT, RIGHT)
            products = warpgroup_mma_wait(num_outstanding=0, deps=(products, ))
            mbarrier.arrive(v_empty.index(0), count=1)
            slopes = p * (products - delta[:, None])
            following, phase_following = after(slot, phase, STAGES)
            slots = (following, phase_following, slot, steps_phase ^ 1)
            for i in range(1, edges):
                gq, slopes, slots = next_keys(gq, slopes, lse, delta, bufs, bars, slots, rows, (end - i) * BLOCK_N, bounds, scale,
                                              True, LEFT, RIGHT, SCORES, STAGES, TURN)
            for i in range(edges, rest):
                gq, slopes, slots = next_keys(gq, slopes, lse, delta, bufs, bars, slots, rows, (end - i) * BLOCK_N, bounds, scale,
                                              False, LEFT, RIGHT, SCORES, STAGES, TURN)
            if LEFT:
                for i in range(rest, steps):
                    gq, slopes, slots = next_keys(gq, slopes, lse, delta, bufs, bars, slots, rows, (end - i) * BLOCK_N, bounds, scale,
                                                  True, LEFT, RIGHT, SCORES, STAGES, TURN)
            slot, phase, before, steps_phase = slots
            gq = warpgroup_mma(gl.convert_layout(slopes.to(T), OPERAND), k_bufs.index(before), gq, is_async=True)
            gq = warpgroup_mma_wait(num_outstanding=0, deps=(gq, ))
            mbarrier.arrive(k_empty.index(before), count=1)
            send(gq_desc, batch, head, m, q, gq * (scale * LN2))
            tma.store_wait(pendings=0)
            mbarrier.arrive(empty.index(TURN), count=1)
            turn ^= 1


@gluon.jit
def attention_backward_wide_q_gluon_kernel(gq_desc, delta_ptr, g_desc, q_desc, k_desc, v_desc, out_ptr, lse_ptr, stride_out, stride_lse,
                                           stride_delta, BATCH, H, GROUP, L, S, left, right, scale, LEFT: gl.constexpr,
                                           RIGHT: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
                                           EV: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr):
    """Gradient of q, and delta = Σ g · out. Without masks; scale > 0, right ≥ 0, with LEFT L ≤ S. num_warps is 4. Grid: PROGRAMS."""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_D], T)
    q_bufs = gl.allocate_shared_memory(T, [2, ROWS, BLOCK_D], layout)
    g_bufs = gl.allocate_shared_memory(T, [2, ROWS, BLOCK_D], layout)
    k_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [1, BLOCK_N, BLOCK_D], layout)
    bars = (barriers(2, 1), barriers(2, 1), barriers(STAGES, 2), barriers(STAGES, 1), barriers(1, 2), barriers(1, 1))
    fence_async_shared()
    bufs, sizes = (q_bufs, g_bufs, k_bufs, v_bufs), (H, BATCH * H, L, S, left, right)
    row_args = (delta_ptr, out_ptr, lse_ptr, stride_out, stride_lse, stride_delta)
    gl.warp_specialize([
        (own_rows, (gq_desc, row_args, bufs, bars, sizes, scale, LEFT, RIGHT, PROGRAMS, ROWS, BLOCK_N, EV, BLOCK_D, STAGES, 0)),
        (own_rows, (gq_desc, row_args, bufs, bars, sizes, scale, LEFT, RIGHT, PROGRAMS, ROWS, BLOCK_N, EV, BLOCK_D, STAGES, 1)),
        (load_for_rows, ((q_desc, g_desc, k_desc, v_desc), bufs, bars, sizes, GROUP, LEFT, RIGHT, PROGRAMS, ROWS, BLOCK_N, STAGES)),
    ], [4, 1], [240, 24])
