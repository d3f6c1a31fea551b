"""Gradients of attention for 16-bit types on Hopper with the schedule written out; conventions as in attention_gluon.py.

One warp loads, two warp groups own ROWS rows, or ROWS keys, each and go over the keys, or the rows. What a group adds to its result is
still being multiplied while the products of the next block begin; while a group exponentiates, the matrix units work for the other one.
There is room for the keys of two tiles, so that the next ones are there when their tile begins.
The results are those of triton_kernels/attention_backward.py, which is also the reference.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from triton_kernels.attention_columns_gluon import across, add_product, both_ended, ended, put, scaled, zeros_of
from triton_kernels.attention_gluon import LINE, WARP, after, barriers, fill, first_row, item_of, keys_of, pairs_of, tiles_in

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def row_ptrs(x_ptr, stride, batch, head, rows):
    """Where the numbers of rows of one head lie."""
    return x_ptr + batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1] + rows * stride[2]


@gluon.jit
def send(desc, batch, head, row, buf, value):
    """Store the rows of one warp group through shared memory."""
    buf.store(value.to(desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [batch, head, row, 0], buf._reinterpret(desc.dtype, desc.block_type.shape, desc.layout))


@gluon.jit
def send_parts(desc, batch, head, row, buf, acc, factor, REST: gl.constexpr):
    """The same of a result in parts, each times a number."""
    put(buf, scaled(acc, factor), REST)
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [batch, head, row, 0], buf._reinterpret(desc.dtype, desc.block_type.shape, desc.layout))


@gluon.jit
def anew(x):
    """x, of which the compiler does not know that it is the same in every round: it would keep all addresses that follow from it in
    registers, of which there are none to spare."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


# ------------------------------------------------------------------ rows
@gluon.jit
def load_for_rows(descs, bufs, bars, sizes, GROUP, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
                  STAGES: gl.constexpr):
    """The loading warp: what stays of each tile, then keys and values."""
    empty, ready, k_empty, k_ready, v_empty, v_ready, out_empty, out_ready = bars
    H = sizes[0]
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, turn = 0, 1, 1                          # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            _, steps, _, _ = keys_of(m, sizes, False, RIGHT, 2 * ROWS, BLOCK_N)
            for c in gl.static_range(2):
                mbarrier.wait(empty.index(c), turn)
                mbarrier.expect(ready.index(c), 2 * descs[0].block_type.nbytes)
                for x in gl.static_range(2):
                    buf = bufs[x].index(c)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                    tma.async_copy_global_to_shared(descs[x], [batch, head, m + c * ROWS, 0], ready.index(c), buf)
            for i in range(steps):
                n = (steps - 1 - i) * BLOCK_N
                fill(descs[3], batch, head // GROUP, n, bufs[3], k_empty, k_ready, slot, phase)
                fill(descs[4], batch, head // GROUP, n, bufs[4], v_empty, v_ready, slot, phase)
                slot, phase = after(slot, phase, STAGES)
                if i == 0:                               # the result of the tile before leaves from here, which is the last that it does
                    for c in gl.static_range(2):
                        fill(descs[2], batch, head, m + c * ROWS, bufs[2], out_empty, out_ready, c, turn)
            turn ^= 1


@gluon.jit
def slopes_of(s, slopes, lse, delta, rows, n, S, right, scale, EDGE: gl.constexpr, RIGHT: gl.constexpr):
    """The gradient of a tile of scores: `s` are products of rows and keys, `slopes` is under way and waited for in between."""
    p = gl.exp2(s * scale - lse[:, None])
    if EDGE:
        keys = n + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        seen = (keys < S)[None, :]
        if RIGHT:
            seen = keys[None, :] < gl.minimum(rows + right + 1, S)[:, None]
        p = gl.where(seen, p, 0.0)
    slopes = warpgroup_mma_wait(num_outstanding=0, deps=(slopes, ))
    return p * (slopes - delta[:, None])


@gluon.jit
def next_keys(gq, slopes, q, g, lse, delta, k_bufs, v_bufs, bars, slots, rows, n, S, right, scale, EDGE: gl.constexpr, RIGHT: gl.constexpr,
              SCORES: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr):
    """Add what the keys before give to the gradient of the rows, from the slopes of their scores, and find the slopes of those at n."""
    _, _, k_empty, k_ready, v_empty, v_ready, _, _ = bars
    slot, phase, before = slots
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    operand = slopes.to(q.dtype)
    mbarrier.wait(k_ready.index(slot), phase)
    mbarrier.wait(v_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
    s = across(q, k_bufs.index(slot), zeros, REST)
    gq = add_product(gq, operand, k_bufs.index(before), REST)
    products = across(g, v_bufs.index(slot), zeros, REST)
    s = warpgroup_mma_wait(num_outstanding=2 * len(gq), deps=(s, ))
    slopes = slopes_of(s, products, lse, delta, rows, n, S, right, scale, EDGE, RIGHT)
    gq = ended(gq, 0)
    mbarrier.arrive(v_empty.index(slot), count=1)
    mbarrier.arrive(k_empty.index(before), count=1)
    following, phase = after(slot, phase, STAGES)
    return gq, slopes, (following, phase, slot)


@gluon.jit
def own_rows(gq_desc, delta_ptr, lse_ptr, stride_delta, stride_lse, bufs, bars, sizes, scale, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
             ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
             TURN: gl.constexpr):
    """A warp group: its ROWS rows of every tile of this program. Long, because a buffer is given back where its last product has ended:
    the order of the lines is the schedule."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    empty, ready, k_empty = bars[0], bars[1], bars[2]
    H, _, L, S, _, right = sizes
    T: gl.constexpr = gq_desc.dtype
    q, g, out = bufs[0].index(TURN), bufs[1].index(TURN), bufs[2].index(TURN)
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, turn = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            _, steps, edges, _ = keys_of(m, sizes, False, RIGHT, 2 * ROWS, BLOCK_N)
            rows = m + TURN * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, head, rows), mask=rows < L, other=0) * LOG2E
            mbarrier.wait(ready.index(TURN), turn)
            mbarrier.wait(bars[7].index(TURN), turn)
            delta = gl.sum(g.load(OUT).to(gl.float32) * out.load(OUT).to(gl.float32), 1)
            delta = gl.convert_layout(delta, gl.SliceLayout(1, SCORES))
            gl.store(row_ptrs(delta_ptr, stride_delta, batch, head, rows), delta, mask=rows < L)
            gq = zeros_of(ROWS, BLOCK_D, REST)
            mbarrier.wait(bars[3].index(slot), phase)
            mbarrier.wait(bars[5].index(slot), phase)
            zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
            s = across(q, bufs[3].index(slot), zeros, REST)
            products = across(g, bufs[4].index(slot), zeros, REST)
            s = warpgroup_mma_wait(num_outstanding=len(gq), deps=(s, ))
            slopes = slopes_of(s, products, lse, delta, rows, (steps - 1) * BLOCK_N, S, right, scale, True, RIGHT)
            mbarrier.arrive(bars[4].index(slot), count=1)
            following, phase_following = after(slot, phase, STAGES)
            slots = (following, phase_following, slot)
            for i in range(1, edges):
                gq, slopes, slots = next_keys(gq, slopes, q, g, lse, delta, bufs[3], bufs[4], bars, slots, rows, (steps - 1 - i) * BLOCK_N,
                                              S, right, scale, True, RIGHT, SCORES, STAGES, REST)
            for i in range(gl.maximum(edges, 1), steps):
                gq, slopes, slots = next_keys(gq, slopes, q, g, lse, delta, bufs[3], bufs[4], bars, slots, rows, (steps - 1 - i) * BLOCK_N,
                                              S, right, scale, False, RIGHT, SCORES, STAGES, REST)
            mbarrier.arrive(empty.index(TURN), count=1)                  # the next rows come while these are finished
            slot, phase, before = slots
            gq = ended(add_product(gq, slopes.to(T), bufs[3].index(before), REST), 0)
            mbarrier.arrive(k_empty.index(before), count=1)
            send_parts(gq_desc, batch, head, m + TURN * ROWS, out, gq, scale * LN2, REST)
            tma.store_wait(pendings=0)
            mbarrier.arrive(bars[6].index(TURN), count=1)
            turn ^= 1


@gluon.jit
def attention_backward_q_gluon_kernel(gq_desc, delta_ptr, g_desc, q_desc, k_desc, v_desc, out_desc, lse_ptr, stride_lse, stride_delta,
                                      BATCH, H, GROUP, L, S, right, scale, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
                                      ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr,
                                      STAGES: gl.constexpr):
    """Gradient of q, and delta = Σ g · out. Without masks; scale > 0, right ≥ 0. num_warps is 4. Grid: PROGRAMS."""
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
    bufs, sizes = (q_bufs, g_bufs, out_bufs, k_bufs, v_bufs), (H, BATCH * H, L, S, 0, right)
    gl.warp_specialize([
        (own_rows, (gq_desc, delta_ptr, lse_ptr, stride_delta, stride_lse, bufs, bars, sizes, scale, RIGHT, PROGRAMS, ROWS, BLOCK_N,
                    BLOCK_D, REST, STAGES, 0)),
        (own_rows, (gq_desc, delta_ptr, lse_ptr, stride_delta, stride_lse, bufs, bars, sizes, scale, RIGHT, PROGRAMS, ROWS, BLOCK_N,
                    BLOCK_D, REST, STAGES, 1)),
        (load_for_rows, ((q_desc, g_desc, out_desc, k_desc, v_desc), bufs, bars, sizes, GROUP, RIGHT, PROGRAMS, ROWS, BLOCK_N, STAGES)),
    ], [4, 1], [240, 24])


# ------------------------------------------------------------------ keys
@gluon.jit
def place_of_keys(pair, half, sizes, RIGHT: gl.constexpr, ROWS: gl.constexpr, BLOCK_M: gl.constexpr):
    """(first key, first row that meets it, blocks of rows, how many of them cross an edge) of a tile."""
    _, _, S, L, right = sizes
    n = gl.where(half == 0, pair, gl.cdiv(S, 2 * ROWS) - 1 - pair) * (2 * ROWS)
    begin, edges = 0, 0
    if RIGHT:
        begin = gl.maximum(n - right, 0) // BLOCK_M * BLOCK_M
        edges = gl.cdiv(gl.maximum(n + 2 * ROWS - 1 - right, 0), BLOCK_M) - begin // BLOCK_M
    steps = gl.cdiv(gl.maximum(L - begin, 0), BLOCK_M)
    return n, begin, steps, gl.minimum(edges, steps)


@gluon.jit
def load_for_keys(descs, row_args, bufs, bars, sizes, GROUP, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr,
                  BLOCK_M: gl.constexpr, STAGES: gl.constexpr):
    """The loading warp: keys and values of each tile, then the rows of every query head that shares them, with what their scores and
    slopes are less by, for which the groups have no registers to spare."""
    lse_ptr, delta_ptr, stride_lse, stride_delta = row_args
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars
    heads, L, shifts = sizes[0], sizes[3], bufs[4]
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, tiles = 0, 1, 0                         # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            n, begin, steps, _ = place_of_keys(pair, half, sizes, RIGHT, ROWS, BLOCK_M)
            for c in gl.static_range(2):
                kept = 2 * (tiles & 1) + c
                mbarrier.wait(empty.index(kept), (tiles >> 1 & 1) ^ 1)
                mbarrier.expect(ready.index(kept), 2 * descs[0].block_type.nbytes)
                for x in gl.static_range(2):
                    buf = bufs[x].index(kept)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                    tma.async_copy_global_to_shared(descs[x], [batch, head, n + c * ROWS, 0], ready.index(kept), buf)
            tiles += 1
            for i in range(GROUP * steps):
                member, m = head * GROUP + i // steps, begin + i % steps * BLOCK_M
                rows = m + gl.arange(0, BLOCK_M, WARP)
                lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, member, rows), mask=rows < L, other=float("inf"))
                delta = gl.load(row_ptrs(delta_ptr, stride_delta, batch, member, rows), mask=rows < L, other=0)
                fill(descs[2], batch, member, m, bufs[2], q_empty, q_ready, slot, phase)
                shifts.index(2 * slot).store(lse * LOG2E)
                shifts.index(2 * slot + 1).store(delta)
                mbarrier.arrive(q_ready.index(slot), count=1)
                fill(descs[3], batch, member, m, bufs[3], g_empty, g_ready, slot, phase)
                slot, phase = after(slot, phase, STAGES)


@gluon.jit
def weigh(gv, s, products, g, shifts, slot, keys, m, right, scale, EDGE: gl.constexpr, REST: gl.constexpr):
    """Add what the rows at m give to the gradient of values; also the slopes of their scores. The second products are under way."""
    T: gl.constexpr = g.dtype
    ACROSS: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    lse = shifts.index(2 * slot).load(ACROSS)
    p = gl.exp2(s * scale - lse[None, :])
    if EDGE:
        rows = m + gl.arange(0, s.shape[1], ACROSS)
        p = gl.where(rows[None, :] >= (keys - right)[:, None], p, 0.0)
    gv = add_product(gv, p.to(T), g, REST)
    products = warpgroup_mma_wait(num_outstanding=len(gv), deps=(products, ))
    delta = shifts.index(2 * slot + 1).load(ACROSS)
    return gv, p * (products - delta[None, :])


@gluon.jit
def next_rows(gk, gv, slopes, kept, bufs, bars, slots, keys, m, right, scale, EDGE: gl.constexpr, SCORES: gl.constexpr,
              STAGES: gl.constexpr, REST: gl.constexpr):
    """Add what the rows before give to the gradient of keys, and what those at m give to that of values; and the slopes of their scores."""
    _, _, q_empty, q_ready, g_empty, g_ready = bars
    slot, phase, before = slots
    kept = anew(kept)
    k, v = bufs[0].index(kept), bufs[1].index(kept)
    ROWS: gl.constexpr = k.shape[0]
    BLOCK_M: gl.constexpr = bufs[2].shape[1]
    q, g = bufs[2].index(slot), bufs[3].index(slot)
    operand = slopes.to(k.dtype)
    mbarrier.wait(q_ready.index(slot), phase)
    mbarrier.wait(g_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_M), gl.float32, SCORES)
    s = across(k, q, zeros, REST)
    gk = add_product(gk, operand, bufs[2].index(before), REST)
    products = across(v, g, zeros, REST)
    s = warpgroup_mma_wait(num_outstanding=2 * len(gk), deps=(s, ))
    gv, slopes = weigh(gv, s, products, g, bufs[4], slot, keys, m, right, scale, EDGE, REST)
    gk, gv = both_ended(gk, gv)
    mbarrier.arrive(q_empty.index(before), count=1)
    mbarrier.arrive(g_empty.index(slot), count=1)
    following, phase = after(slot, phase, STAGES)
    return gk, gv, slopes, (following, phase, slot)


@gluon.jit
def own_keys(gk_desc, gv_desc, bufs, bars, sizes, GROUP, scale, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr,
             BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr, TURN: gl.constexpr):
    """A warp group: its ROWS keys of every tile of this program. Long, as own_rows is."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_M, 16])
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars
    heads, _, _, L, right = sizes
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, tiles = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            n, begin, steps, edges = place_of_keys(pair, half, sizes, RIGHT, ROWS, BLOCK_M)
            kept = 2 * (tiles & 1) + TURN
            k, v = bufs[0].index(kept), bufs[1].index(kept)
            keys = n + TURN * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            gk, gv = zeros_of(ROWS, BLOCK_D, REST), zeros_of(ROWS, BLOCK_D, REST)
            mbarrier.wait(ready.index(kept), tiles >> 1 & 1)
            if steps > 0:
                zeros = gl.zeros((ROWS, BLOCK_M), gl.float32, SCORES)
                mbarrier.wait(q_ready.index(slot), phase)
                s = across(k, bufs[2].index(slot), zeros, REST)
                mbarrier.wait(g_ready.index(slot), phase)
                products = across(v, bufs[3].index(slot), zeros, REST)
                s = warpgroup_mma_wait(num_outstanding=len(gk), deps=(s, ))
                gv, slopes = weigh(gv, s, products, bufs[3].index(slot), bufs[4], slot, keys, begin, right, scale, RIGHT, REST)
                gv = ended(gv, 0)
                mbarrier.arrive(g_empty.index(slot), count=1)
                following, phase = after(slot, phase, STAGES)
                slots = (following, phase, slot)
                for member in range(GROUP):
                    done = gl.where(member == 0, 1, 0)
                    for i in range(done, edges):
                        gk, gv, slopes, slots = next_rows(gk, gv, slopes, kept, bufs, bars, slots, keys, begin + i * BLOCK_M, right, scale,
                                                          True, SCORES, STAGES, REST)
                    for i in range(gl.maximum(edges, done), steps):
                        gk, gv, slopes, slots = next_rows(gk, gv, slopes, kept, bufs, bars, slots, keys, begin + i * BLOCK_M, right, scale,
                                                          False, SCORES, STAGES, REST)
                slot, phase, before = slots
                gk = ended(add_product(gk, slopes.to(k.dtype), bufs[2].index(before), REST), 0)
                mbarrier.arrive(q_empty.index(before), count=1)
            send_parts(gv_desc, batch, head, n + TURN * ROWS, v, gv, 1.0, REST)
            send_parts(gk_desc, batch, head, n + TURN * ROWS, k, gk, scale * LN2, REST)
            tma.store_wait(pendings=0)
            mbarrier.arrive(empty.index(kept), count=1)
            tiles += 1


@gluon.jit
def attention_backward_kv_gluon_kernel(gk_desc, gv_desc, g_desc, q_desc, k_desc, v_desc, lse_ptr, delta_ptr, stride_lse, stride_delta,
                                       BATCH, H, GROUP, L, S, right, scale, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
                                       ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr,
                                       STAGES: gl.constexpr):
    """Gradients of k and v, over all query heads that share them. Without masks; scale > 0, right ≥ 0.
    num_warps is 4. Grid: PROGRAMS."""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_D], T)
    k_bufs = gl.allocate_shared_memory(T, [4, ROWS, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [4, ROWS, BLOCK_D], layout)
    q_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    g_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    shifts = gl.allocate_shared_memory(gl.float32, [2 * STAGES, BLOCK_M], LINE)
    bars = (barriers(4, 1), barriers(4, 1), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 1))
    fence_async_shared()
    bufs, sizes = (k_bufs, v_bufs, q_bufs, g_bufs, shifts), (H // GROUP, BATCH * (H // GROUP), S, L, right)
    gl.warp_specialize([
        (own_keys, (gk_desc, gv_desc, bufs, bars, sizes, GROUP, scale, RIGHT, PROGRAMS, ROWS, BLOCK_M, BLOCK_D, REST, STAGES, 0)),
        (own_keys, (gk_desc, gv_desc, bufs, bars, sizes, GROUP, scale, RIGHT, PROGRAMS, ROWS, BLOCK_M, BLOCK_D, REST, STAGES, 1)),
        (load_for_keys, ((k_desc, v_desc, q_desc, g_desc), (lse_ptr, delta_ptr, stride_lse, stride_delta), bufs, bars, sizes, GROUP, RIGHT,
                         PROGRAMS, ROWS, BLOCK_M, STAGES)),
    ], [4, 1], [240, 24])
