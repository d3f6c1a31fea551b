"""Gradients of keys and values of attention for 16-bit types on Hopper; see attention_backward_gluon.py."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from .attention_backward_gluon import anew, row_ptrs, send_parts
from .attention_columns_gluon import across, add_product, both_ended, ended, zeros_of
from .attention_dropout_gluon import draws_of, drop_bits, dropped_negative, first_counter, of_kept
from .attention_gluon import pass_by
from .attention_lists_gluon import block_at, list_of, shown_scores, words_at
from .attention_places_gluon import LINE, WARP, after, barriers, fill, item_of, pairs_of, tiles_in

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def first_key(pair, half, sizes, KEYS: gl.constexpr):
    """Where a tile begins: first the keys that most rows meet under a causal mask."""
    return gl.where(half == 0, pair, gl.cdiv(sizes[2], KEYS) - 1 - pair) * KEYS


@gluon.jit
def rows_met(lists, mask_args, batch, head, n, first, sizes, RIGHT: gl.constexpr, KEYS: gl.constexpr, BLOCK_M: gl.constexpr):
    """(blocks of rows that meet a tile, how many of them at the beginning need a look at single scores, and `seen`)."""
    if len(lists) > 0:
        seen = list_of(lists, mask_args, batch, head, n, first, sizes, 3, KEYS, BLOCK_M)
        return seen[1], seen[0], seen
    else:
        right, begin, edges = sizes[4], 0, 0
        if RIGHT:
            begin = gl.maximum(n - right, 0) // BLOCK_M * BLOCK_M
            edges = gl.cdiv(gl.maximum(n + KEYS - 1 - right, 0), BLOCK_M) - begin // BLOCK_M
        steps = gl.maximum(gl.cdiv(sizes[3] - begin, BLOCK_M), 1)        # one that is not there, where no row meets a tile
        return steps, gl.minimum(edges, steps), (0, 0, right, begin)


@gluon.jit
def row_at(seen, i, BLOCK_M: gl.constexpr):
    """The first row of the ith block that is met: from left to right, or as a list has them."""
    if len(seen) > 4:
        return block_at(seen, i) * BLOCK_M
    else:
        return seen[3] + i * BLOCK_M


@gluon.jit
def met_by_half(steps, seen, n, RIGHT: gl.constexpr, ROWS: gl.constexpr, BLOCK_M: gl.constexpr):
    """The same for the ROWS keys from n on, half of the tile of `steps` and `seen`; and how many of its blocks at the beginning do not meet
    them."""
    passed, edges = 0, 0
    if RIGHT:
        right, begin = seen[2], seen[3]
        passed = gl.minimum((gl.maximum(n - right, 0) // BLOCK_M * BLOCK_M - begin) // BLOCK_M, steps - 1)
        seen = (seen[0], seen[1], right, begin + passed * BLOCK_M)
        edges = gl.cdiv(gl.maximum(n + ROWS - 1 - right, 0), BLOCK_M) - seen[3] // BLOCK_M
    return steps - passed, gl.minimum(edges, steps - passed), seen, passed


@gluon.jit
def load_for_keys(descs, row_args, mask_args, lists, bufs, bars, sizes, GROUP, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
                  ROWS: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr):
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
            n = first_key(pair, half, sizes, 2 * ROWS)
            steps, _, seen = rows_met(lists, mask_args, batch, head * GROUP, n, 0, sizes, RIGHT, 2 * ROWS, BLOCK_M)
            for c in gl.static_range(2):
                kept = 2 * (tiles & 1) + c
                mbarrier.wait(empty.index(kept), (tiles >> 1 & 1) ^ 1)
                mbarrier.expect(ready.index(kept), 2 * descs[0].block_type.nbytes)
                for x in gl.static_range(2):
                    buf = bufs[x].index(kept)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                    tma.async_copy_global_to_shared(descs[x], [batch, head, n + c * ROWS, 0], ready.index(kept), buf)
            tiles += 1
            for i in range(GROUP * steps):
                member, m = head * GROUP + i // steps, row_at(seen, i % steps, BLOCK_M)
                rows = m + gl.arange(0, BLOCK_M, WARP)
                lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, member, rows), mask=rows < L, other=float("inf"))
                if len(lists) > 0:                       # a row that sees no key: its weights are 0
                    lse = gl.where(lse == float("-inf"), float("inf"), lse)
                delta = gl.load(row_ptrs(delta_ptr, stride_delta, batch, member, rows), mask=rows < L, other=0)
                fill(descs[2], batch, member, m, bufs[2], q_empty, q_ready, slot, phase)
                shifts.index(2 * slot).store(lse * LOG2E)
                shifts.index(2 * slot + 1).store(delta)
                mbarrier.arrive(q_ready.index(slot), count=1)
                fill(descs[3], batch, member, m, bufs[3], g_empty, g_ready, slot, phase)
                slot, phase = after(slot, phase, STAGES)


@gluon.jit
def weigh(gv, s, products, g, ahead, shifts, slot, keys, beside_them, seen, scale, draws, EDGE: gl.constexpr, REST: gl.constexpr):
    """Add what the rows at m give to the gradient of values; also the slopes of their scores. The second products are under way."""
    ACROSS: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    m, words, bits = beside_them
    rows = m + gl.arange(0, s.shape[1], ACROSS)
    s = s * scale
    if EDGE and len(seen) > 4:
        s = shown_scores(s, words, seen, keys, rows)
    if len(ahead) > 0:
        lse = ahead[0]
    else:
        lse = shifts.index(2 * slot).load(ACROSS)
    p = gl.exp2(s - lse[None, :])
    if EDGE and len(seen) == 4:
        p = gl.where(rows[None, :] >= (keys - seen[2])[:, None], p, 0.0)
    if len(draws) > 0:
        p = dropped_negative(p, bits, s.shape[1])
    gv = add_product(gv, of_kept(p, draws, g.dtype), g, REST)
    if len(ahead) > 0:
        delta = shifts.index(2 * slot + 1).load(ACROSS)
    products = warpgroup_mma_wait(num_outstanding=len(gv), deps=(products, ))
    if len(ahead) == 0:
        delta = shifts.index(2 * slot + 1).load(ACROSS)
    if len(draws) > 0:
        return gv, gl.abs(p) * (gl.where(p < 0, 0.0, products * draws[3]) - delta[None, :])
    else:
        return gv, p * (products - delta[None, :])


@gluon.jit
def beside(seen, draws, member, i, EDGE: gl.constexpr, BLOCK_M: gl.constexpr):
    """(first row of the ith block that is met, words of its scores that a mask shows, words of those that dropout takes away), as far as
    they are asked for."""
    m, words, bits = row_at(seen, i, BLOCK_M), i, i
    if EDGE:
        words = words_at(seen, i, BLOCK_M)
    if len(draws) > 0:
        matrix, key, L, S = draws[4:]
        first, step = first_counter(draws, matrix + member, L, S)
        bits = drop_bits(draws, first + m // 2 * step + key // 4, S, BLOCK_M)
    return m, words, bits


@gluon.jit
def next_rows(gk, gv, slopes, kept, held, bufs, bars, slots, keys, member, i, seen, scale, draws, EDGE: gl.constexpr, SCORES: gl.constexpr,
              STAGES: gl.constexpr, REST: gl.constexpr):
    """Add what the rows before give to the gradient of keys, and what the ith block gives to that of values; and the slopes of its
    scores."""
    _, _, q_empty, q_ready, g_empty, g_ready = bars
    slot, phase, before = slots
    if len(held) > 0:
        k, v = held
    else:
        kept = anew(kept)
        k, v = bufs[0].index(kept), bufs[1].index(kept)
    ROWS: gl.constexpr = bufs[0].shape[1]
    BLOCK_M: gl.constexpr = bufs[2].shape[1]
    q, g = bufs[2].index(slot), bufs[3].index(slot)
    operand, beside_them = slopes.to(q.dtype), beside(seen, draws, member, i, EDGE, BLOCK_M)
    mbarrier.wait(q_ready.index(slot), phase)
    mbarrier.wait(g_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_M), gl.float32, SCORES)
    s = across(k, q, zeros, REST)
    gk = add_product(gk, operand, bufs[2].index(before), REST)
    products = across(v, g, zeros, REST)
    ahead = ()
    if len(held) > 0:                                                    # there is room to load before the wait; ptxas keeps to its side
        ahead = (bufs[4].index(2 * slot).load(gl.SliceLayout(0, SCORES)), )
    s = warpgroup_mma_wait(num_outstanding=2 * len(gk), deps=(s, ))
    gv, slopes = weigh(gv, s, products, g, ahead, bufs[4], slot, keys, beside_them, seen, scale, draws, EDGE, REST)
    gk, gv = both_ended(gk, gv)
    mbarrier.arrive(q_empty.index(before), count=1)
    mbarrier.arrive(g_empty.index(slot), count=1)
    following, phase = after(slot, phase, STAGES)
    return gk, gv, slopes, (following, phase, slot)


@gluon.jit
def own_keys(gk_desc, gv_desc, mask_args, lists, draws, bufs, bars, sizes, GROUP, scale, RIGHT: gl.constexpr, PROGRAMS: gl.constexpr,
             ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
             HELD: gl.constexpr, TURN: gl.constexpr):
    """A warp group: its ROWS keys of every tile of this program. Long, as own_rows is."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_M, 16])
    empty, ready, q_empty, q_ready, g_empty, g_ready = bars
    FIRST: gl.constexpr = RIGHT or len(lists) > 0
    heads = sizes[0]
    pairs, items = pairs_of(sizes, 2 * ROWS)
    slot, phase, tiles = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % heads, matrix // heads
        for half in range(tiles_in(item, sizes, 2 * ROWS)):
            n = first_key(pair, half, sizes, 2 * ROWS)
            steps, edges, seen = rows_met(lists, mask_args, batch, head * GROUP, n, TURN * ROWS, sizes, RIGHT, 2 * ROWS, BLOCK_M)
            passed = 0
            if HELD and len(lists) == 0:
                steps, edges, seen, passed = met_by_half(steps, seen, n + TURN * ROWS, RIGHT, ROWS, BLOCK_M)
                slot, phase = pass_by(bars, slot, phase, passed, STAGES, False)
            drawn, factor = (), 1.0
            if len(draws) > 0:
                drawn, factor = draws + (matrix * GROUP, n + TURN * ROWS, sizes[3], sizes[2]), draws[3]
            kept = 2 * (tiles & 1) + TURN
            k, v = bufs[0].index(kept), bufs[1].index(kept)
            keys = n + TURN * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            gk, gv = zeros_of(ROWS, BLOCK_D, REST), zeros_of(ROWS, BLOCK_D, REST)
            beside_them = beside(seen, drawn, 0, gl.to_tensor(0), FIRST, BLOCK_M)
            mbarrier.wait(ready.index(kept), tiles >> 1 & 1)
            held, first, second = (), k, v
            if HELD:
                OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SCORES, k_width=2)
                held = (k.load(OPERAND), v.load(OPERAND))
                first, second = held
            zeros = gl.zeros((ROWS, BLOCK_M), gl.float32, SCORES)
            mbarrier.wait(q_ready.index(slot), phase)
            s = across(first, bufs[2].index(slot), zeros, REST)
            mbarrier.wait(g_ready.index(slot), phase)
            products = across(second, bufs[3].index(slot), zeros, REST)
            s = warpgroup_mma_wait(num_outstanding=len(gk), deps=(s, ))
            gv, slopes = weigh(gv, s, products, bufs[3].index(slot), (), bufs[4], slot, keys, beside_them, seen, scale, drawn, FIRST, REST)
            if HELD:
                if tiles > 0:                                            # the results of the tile before have left by now
                    tma.store_wait(pendings=0)
                    mbarrier.arrive(empty.index(2 * (tiles + 1 & 1) + TURN), count=1)
            gv = ended(gv, 0)
            mbarrier.arrive(g_empty.index(slot), count=1)
            following, phase = after(slot, phase, STAGES)
            slots = (following, phase, slot)
            for member in range(GROUP):
                done = gl.where(member == 0, 1, 0)
                if HELD and len(lists) == 0:
                    if member > 0:
                        slots = pass_by(bars, slots[0], slots[1], passed, STAGES, False) + (slots[2], )
                for i in range(done, edges):
                    gk, gv, slopes, slots = next_rows(gk, gv, slopes, kept, held, bufs, bars, slots, keys, member, i, seen, scale, drawn,
                                                      True, SCORES, STAGES, REST)
                for i in range(gl.maximum(edges, done), steps):
                    gk, gv, slopes, slots = next_rows(gk, gv, slopes, kept, held, bufs, bars, slots, keys, member, i, seen, scale, drawn,
                                                      False, SCORES, STAGES, REST)
            slot, phase, before = slots
            gk = ended(add_product(gk, slopes.to(gk_desc.dtype), bufs[2].index(before), REST), 0)
            mbarrier.arrive(q_empty.index(before), count=1)
            send_parts(gv_desc, batch, head, n + TURN * ROWS, v, gv, factor, REST)
            send_parts(gk_desc, batch, head, n + TURN * ROWS, k, gk, scale * LN2, REST)
            if not HELD:
                tma.store_wait(pendings=0)
                mbarrier.arrive(empty.index(kept), count=1)
            tiles += 1
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["threshold", "seed", "offset"])
def attention_backward_kv_gluon_kernel(gk_desc, gv_desc, mask_ptr, lists_ptr, words_ptr, base_ptr, g_desc, q_desc, k_desc, v_desc, lse_ptr,
                                       delta_ptr, stride_lse, stride_delta, stride_mask, stride_lists, BATCH, H, GROUP, L, S, right, scale,
                                       threshold, keep_scale, seed: gl.int64, offset: gl.int64, RIGHT: gl.constexpr, DROPOUT: gl.constexpr,
                                       WIDE: gl.constexpr, PROGRAMS: gl.constexpr, ROWS: gl.constexpr, BLOCK_M: gl.constexpr,
                                       BLOCK_D: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr):
    """Gradients of k and v, over all query heads that share them. A mask, which these share too, has lists, of blocks of 2 · ROWS keys and
    BLOCK_M rows, and there are no bounds then; scale > 0, right ≥ 0. With HELD, where there is room in registers, as
    for heads of 64, keys and values are read from these, and nobody waits for results to leave; BLOCK_M is ROWS then and STAGES 3 or
    more, as a slot is held while another is passed by. ROWS is 64, num_warps 4. Grid: PROGRAMS."""
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
    lists, draws = (), ()
    if lists_ptr is not None:
        lists = (lists_ptr, words_ptr, stride_lists[0], stride_lists[1])
    if DROPOUT:
        draws = draws_of(base_ptr, seed, offset, threshold, keep_scale)
    if WIDE:
        stride_mask = (stride_mask[0], stride_mask[1], gl.to_tensor(stride_mask[2]).to(gl.int64), gl.to_tensor(stride_mask[3]).to(gl.int64))
    gl.warp_specialize([
        (own_keys, (gk_desc, gv_desc, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, GROUP, scale, RIGHT, PROGRAMS, ROWS,
                    BLOCK_M, BLOCK_D, REST, STAGES, HELD, 0)),
        (own_keys, (gk_desc, gv_desc, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, GROUP, scale, RIGHT, PROGRAMS, ROWS,
                    BLOCK_M, BLOCK_D, REST, STAGES, HELD, 1)),
        (load_for_keys, ((k_desc, v_desc, q_desc, g_desc), (lse_ptr, delta_ptr, stride_lse, stride_delta),
                         (mask_ptr, stride_mask), lists, bufs, bars, sizes, GROUP, RIGHT, PROGRAMS, ROWS, BLOCK_M, STAGES)),
    ], [4, 1], [240, 24])
