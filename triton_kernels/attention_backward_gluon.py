"""Gradients of attention for 16-bit types on Hopper with the schedule written out; conventions as in attention_gluon.py.

One warp loads, two warp groups own ROWS rows, or ROWS keys, each and go over the keys, or the rows. What a group adds to its result is
still being multiplied while the products of the next block begin; while a group exponentiates, the matrix units work for the other one.
There is room for the keys of two tiles, and with KEPT 2 for the rows of two, so that the next ones are there when their tile begins, and
nobody waits for results to leave; rows that do not meet the first keys of their tile then pass them by.
Under a mask of rows and keys they go over the blocks that are on lists, as in attention_gluon.py. The gradients of keys are in
attention_backward_kv_gluon.py. The results are those of triton_kernels/attention_backward.py, which is also the reference.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from .attention_columns_gluon import across, add_product, ended, put, scaled, zeros_of
from .attention_dropout_gluon import draws_of, dropped_keys, first_counter
from .attention_gluon import pass_by
from .attention_lists_gluon import block_at, list_of, shown_scores, words_at
from .attention_places_gluon import LINE, WARP, after, barriers, fill, first_row, item_of, keys_of, pairs_of, tiles_in

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
def keys_met(lists, mask_args, batch, head, m, first, sizes, RIGHT: gl.constexpr, TILE: gl.constexpr, BLOCK_N: gl.constexpr):
    """(blocks of keys that a tile meets, how many of them at the beginning need a look at single scores, and `seen`)."""
    if len(lists) > 0:
        seen = list_of(lists, mask_args, batch, head, m, first, sizes, 2, TILE, BLOCK_N)
        return seen[1], seen[0], seen
    else:
        _, steps, edges, _ = keys_of(m, sizes, False, RIGHT, TILE, BLOCK_N)
        return steps, edges, (sizes[3], 0, sizes[5], steps - 1)


@gluon.jit
def load_for_rows(descs, lse_ptr, stride_lse, mask_args, lists, bufs, bars, sizes, GROUP, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
                  ROWS: gl.constexpr, BLOCK_N: gl.constexpr, KEPT: gl.constexpr, STAGES: gl.constexpr):
    """The loading warp: what stays of each tile, then keys and values."""
    empty, ready, k_empty, k_ready, v_empty, v_ready, out_empty, out_ready = bars
    H = sizes[0]
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, tiles = 0, 1, 0                         # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            steps, _, seen = keys_met(lists, mask_args, batch, head, m, 0, sizes, RIGHT, 2 * ROWS, BLOCK_N)
            kept, turn = 2 * (tiles % KEPT), (tiles // KEPT & 1) ^ 1
            tiles += 1
            rows = m + gl.arange(0, ROWS, WARP)
            lse = (gl.load(row_ptrs(lse_ptr, stride_lse, batch, head, rows), mask=rows < sizes[2], other=0),
                   gl.load(row_ptrs(lse_ptr, stride_lse, batch, head, rows + ROWS), mask=rows + ROWS < sizes[2], other=0))
            for c in gl.static_range(2):
                mbarrier.wait(empty.index(kept + c), turn)
                mbarrier.expect(ready.index(kept + c), 2 * descs[0].block_type.nbytes)
                for x in gl.static_range(2):
                    buf = bufs[x].index(kept + c)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                    tma.async_copy_global_to_shared(descs[x], [batch, head, m + c * ROWS, 0], ready.index(kept + c), buf)
            for i in range(steps):
                n = block_at(seen, i) * BLOCK_N
                fill(descs[3], batch, head // GROUP, n, bufs[3], k_empty, k_ready, slot, phase)
                fill(descs[4], batch, head // GROUP, n, bufs[4], v_empty, v_ready, slot, phase)
                slot, phase = after(slot, phase, STAGES)
                if i == 0:                               # the result of the tile before leaves from here, which is the last that it does
                    for c in gl.static_range(2):
                        fill(descs[2], batch, head, m + c * ROWS, bufs[2], out_empty, out_ready, kept + c, turn)
                        shift = lse[c] * LOG2E
                        if len(lists) > 0:               # a row that sees no key: its weights are 0
                            shift = gl.where(shift == float("-inf"), float("inf"), shift)
                        bufs[5].index(kept + c).store(shift)
                        mbarrier.arrive(out_ready.index(kept + c), count=1)


@gluon.jit
def slopes_of(s, products, lse, delta, words, rows, n, seen, scale, draws, EDGE: gl.constexpr, RIGHT: gl.constexpr):
    """The gradient of a tile of scores: `s` are products of rows and keys, `products` is under way and waited for in between."""
    keys = n + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    s = s * scale
    if EDGE and len(seen) > 4:
        s = shown_scores(s, words, seen, rows, keys)
    p = gl.exp2(s - lse[:, None])
    if EDGE and len(seen) == 4:
        met = (keys < seen[0])[None, :]
        if RIGHT:
            met = keys[None, :] < gl.minimum(rows + seen[2] + 1, seen[0])[:, None]
        p = gl.where(met, p, 0.0)
    if len(draws) > 0:
        p = dropped_keys(p, draws, draws[1], draws[3], n, s.shape[1])
    products = warpgroup_mma_wait(num_outstanding=0, deps=(products, ))
    if len(draws) > 0:
        return gl.abs(p) * (gl.where(p < 0, 0.0, products * draws[4]) - delta[:, None])
    else:
        return p * (products - delta[:, None])


@gluon.jit
def next_keys(gq, slopes, q, g, lse, delta, k_bufs, v_bufs, bars, slots, rows, i, seen, scale, draws, EDGE: gl.constexpr,
              RIGHT: gl.constexpr, SCORES: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr):
    """Add what the keys before give to the gradient of the rows, from the slopes of their scores, and find the slopes of the ith block."""
    _, _, k_empty, k_ready, v_empty, v_ready, _, _ = bars
    slot, phase, before = slots
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    n, words = block_at(seen, i) * BLOCK_N, i
    if EDGE:
        words = words_at(seen, i, BLOCK_N)
    operand = slopes.to(q.dtype)
    mbarrier.wait(k_ready.index(slot), phase)
    mbarrier.wait(v_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
    s = across(q, k_bufs.index(slot), zeros, REST)
    gq = add_product(gq, operand, k_bufs.index(before), REST)
    products = across(g, v_bufs.index(slot), zeros, REST)
    s = warpgroup_mma_wait(num_outstanding=2 * len(gq), deps=(s, ))
    slopes = slopes_of(s, products, lse, delta, words, rows, n, seen, scale, draws, EDGE, RIGHT)
    gq = ended(gq, 0)
    mbarrier.arrive(v_empty.index(slot), count=1)
    mbarrier.arrive(k_empty.index(before), count=1)
    following, phase = after(slot, phase, STAGES)
    return gq, slopes, (following, phase, slot)


@gluon.jit
def own_rows(gq_desc, delta_ptr, stride_delta, mask_args, lists, draws, bufs, bars, sizes, scale, RIGHT: gl.constexpr,
             PROGRAMS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr,
             KEPT: gl.constexpr, STAGES: gl.constexpr, TURN: gl.constexpr):
    """A warp group: its ROWS rows of every tile of this program. Long, because a buffer is given back where its last product has ended:
    the order of the lines is the schedule."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    empty, ready, k_empty = bars[0], bars[1], bars[2]
    H, L, S = sizes[0], sizes[2], sizes[3]
    T: gl.constexpr = gq_desc.dtype
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, tiles = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            m = first_row(pair, half, sizes, 2 * ROWS)
            steps, edges, seen = keys_met(lists, mask_args, batch, head, m, TURN * ROWS, sizes, RIGHT, 2 * ROWS, BLOCK_N)
            if KEPT > 1 and RIGHT and BLOCK_N < 2 * ROWS and len(lists) == 0:            # not all rows meet the last keys of the tile
                begun = steps
                steps, edges, seen = keys_met(lists, mask_args, batch, head, m + TURN * ROWS, 0, sizes, RIGHT, ROWS, BLOCK_N)
                slot, phase = pass_by(bars[:6], slot, phase, begun - steps, STAGES, False)
            drawn = ()
            if len(draws) > 0:
                drawn = (draws[0], first_counter(draws, matrix, L, S), draws[2], m + TURN * ROWS, draws[3])
            rows = m + TURN * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            n, words = block_at(seen, 0) * BLOCK_N, words_at(seen, 0, BLOCK_N)
            kept, turn = 2 * (tiles % KEPT) + TURN, tiles // KEPT & 1
            q, g, out = bufs[0].index(kept), bufs[1].index(kept), bufs[2].index(kept)
            gq = zeros_of(ROWS, BLOCK_D, REST)
            mbarrier.wait(ready.index(kept), turn)
            mbarrier.wait(bars[3].index(slot), phase)
            zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
            s = across(q, bufs[3].index(slot), zeros, REST)
            mbarrier.wait(bars[5].index(slot), phase)
            products = across(g, bufs[4].index(slot), zeros, REST)
            mbarrier.wait(bars[7].index(kept), turn)
            delta = gl.sum(g.load(OUT).to(gl.float32) * out.load(OUT).to(gl.float32), 1)
            delta = gl.convert_layout(delta, gl.SliceLayout(1, SCORES))
            gl.store(row_ptrs(delta_ptr, stride_delta, batch, head, rows), delta, mask=rows < L)
            lse = bufs[5].index(kept).load(gl.SliceLayout(1, SCORES))
            s = warpgroup_mma_wait(num_outstanding=len(gq), deps=(s, ))
            slopes = slopes_of(s, products, lse, delta, words, rows, n, seen, scale, drawn, True, RIGHT)
            if KEPT > 1:
                if tiles > 0:                                            # the result of the tile before has left by now
                    tma.store_wait(pendings=0)
                    mbarrier.arrive(bars[6].index(2 * ((tiles - 1) % KEPT) + TURN), count=1)
            mbarrier.arrive(bars[4].index(slot), count=1)
            following, phase_following = after(slot, phase, STAGES)
            slots = (following, phase_following, slot)
            for i in range(1, edges):
                gq, slopes, slots = next_keys(gq, slopes, q, g, lse, delta, bufs[3], bufs[4], bars, slots, rows, i, seen, scale, drawn,
                                              True, RIGHT, SCORES, STAGES, REST)
            for i in range(gl.maximum(edges, 1), steps):
                gq, slopes, slots = next_keys(gq, slopes, q, g, lse, delta, bufs[3], bufs[4], bars, slots, rows, i, seen, scale, drawn,
                                              False, RIGHT, SCORES, STAGES, REST)
            mbarrier.arrive(empty.index(kept), count=1)                  # the next rows come while these are finished
            slot, phase, before = slots
            gq = ended(add_product(gq, slopes.to(T), bufs[3].index(before), REST), 0)
            mbarrier.arrive(k_empty.index(before), count=1)
            send_parts(gq_desc, batch, head, m + TURN * ROWS, out, gq, scale * LN2, REST)
            if KEPT == 1:
                tma.store_wait(pendings=0)
                mbarrier.arrive(bars[6].index(TURN), count=1)
            tiles += 1
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["threshold", "seed", "offset"])
def attention_backward_q_gluon_kernel(gq_desc, delta_ptr, mask_ptr, lists_ptr, words_ptr, base_ptr, g_desc, q_desc, k_desc, v_desc,
                                      out_desc, lse_ptr, stride_lse, stride_delta, stride_mask, stride_lists, BATCH, H, GROUP, L, S,
                                      right, scale, threshold, keep_scale, seed: gl.int64, offset: gl.int64, RIGHT: gl.constexpr,
                                      DROPOUT: gl.constexpr, WIDE: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr,
                                      BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr, KEPT: gl.constexpr,
                                      STAGES: gl.constexpr):
    """Gradient of q, and delta = Σ g · out. A mask has lists, of blocks of 2 · ROWS rows and BLOCK_N keys, and there are no bounds then;
    scale > 0, right ≥ 0. KEPT is 1 or 2, ROWS 64, num_warps 4. Grid: PROGRAMS."""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_D], T)
    q_bufs = gl.allocate_shared_memory(T, [2 * KEPT, ROWS, BLOCK_D], layout)
    g_bufs = gl.allocate_shared_memory(T, [2 * KEPT, ROWS, BLOCK_D], layout)
    out_bufs = gl.allocate_shared_memory(T, [2 * KEPT, ROWS, BLOCK_D], layout)
    k_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    shifts = gl.allocate_shared_memory(gl.float32, [2 * KEPT, ROWS], LINE)
    bars = (barriers(2 * KEPT, 1), barriers(2 * KEPT, 1), barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, 2),
            barriers(STAGES, 1), barriers(2 * KEPT, 1), barriers(2 * KEPT, 2))
    fence_async_shared()
    bufs, sizes = (q_bufs, g_bufs, out_bufs, k_bufs, v_bufs, shifts), (H, BATCH * H, L, S, 0, right)
    lists, draws = (), ()
    if lists_ptr is not None:
        lists = (lists_ptr, words_ptr, stride_lists[0], stride_lists[1])
    if DROPOUT:
        draws = draws_of(base_ptr, seed, offset, threshold, keep_scale)
    if WIDE:
        stride_mask = (stride_mask[0], stride_mask[1], gl.to_tensor(stride_mask[2]).to(gl.int64), gl.to_tensor(stride_mask[3]).to(gl.int64))
    gl.warp_specialize([
        (own_rows, (gq_desc, delta_ptr, stride_delta, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, scale, RIGHT, PROGRAMS,
                    ROWS, BLOCK_N, BLOCK_D, REST, KEPT, STAGES, 0)),
        (own_rows, (gq_desc, delta_ptr, stride_delta, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, scale, RIGHT, PROGRAMS,
                    ROWS, BLOCK_N, BLOCK_D, REST, KEPT, STAGES, 1)),
        (load_for_rows, ((q_desc, g_desc, out_desc, k_desc, v_desc), lse_ptr, stride_lse, (mask_ptr, stride_mask), lists, bufs, bars,
                         sizes, GROUP, RIGHT, PROGRAMS, ROWS, BLOCK_N, KEPT, STAGES)),
    ], [4, 1], [240, 24])
