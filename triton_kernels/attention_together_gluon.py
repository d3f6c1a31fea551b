"""The three gradients of attention together, for 16-bit types on Hopper, with the schedule written out; see attention_backward.py.

Programs stay and take blocks of keys by ticket. Two warp groups own half of the keys of a block each and go over the rows. What both find
to be the slopes of the scores they leave in shared memory, and each finds a half of what the block gives to the gradient of the rows: half
of the rows (BY_ROWS) or half of the columns. While it is added to the sum in memory, the last of the five products is under way. One
warp loads, one waits for this program's turn at each block of rows, one ends the turn when both groups have added; it is the
one that pays for the fence, and the one before it for the way to the counter and back. The groups have no registers to spare: where a
block of rows lies they read from shared memory, where the warps beside leave it.

Where the rows' product is BEHIND, it is that of the step before: what the other group finds has been there for long, and no group waits for
the other, so one exponentiates while the other multiplies.

The sum in memory is no matrix: the numbers lie as the threads hold them, so that each adds four at a time.
Results and conventions are those of triton_kernels/attention_backward.py, which is also the reference.
"""
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from .attention_backward_gluon import anew, row_ptrs, send
from .attention_dropout_gluon import drawn_ahead, draws_of, dropped_negative, first_counter, no_drop_bits, without_dropped
from .attention_mask_gluon import end_of_seen, line_of, masked
from .attention_places_gluon import LINE, WARP, after, barriers, fill
from .attention_softmax_gluon import less_by_distance, slope_of
from .attention_turns_gluon import await_turns, end_turns, leave, left, place_of, seen_keys, taken, tile_of, turn_of

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)
FOURS = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))


# ------------------------------------------------------------------ the warps beside
@gluon.jit
def load_tiles(descs, turns_ptr, row_args, mask_args, slopes_ptr, stride_slopes, draws, bufs, bars, sizes, items, LEFT: gl.constexpr,
               RIGHT: gl.constexpr, MASK: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, KEPT: gl.constexpr,
               STAGES: gl.constexpr, SKIP: gl.constexpr, BESIDE: gl.constexpr):
    """The loading warp: a ticket, the slot of keys and values, then slots of rows for all heads that share them. Long for all it brings."""
    lse_ptr, delta_ptr, stride_lse, stride_delta = row_args
    q_bufs, g_bufs, shifts, tickets, edges = bufs[2], bufs[3], bufs[5], bufs[6], bufs[8]
    kept_empty, kept_ready, q_empty, q_ready, g_empty, g_ready = bars
    place, turn, slot, phase = 0, 1, 0, 1                                # all slots are empty at first
    ticket = gl.atomic_add(turns_ptr, 1, sem="relaxed")
    while ticket < items:
        batch, key_head, block = place_of(ticket, sizes, BLOCK_N, BESIDE)
        seen = sizes[3]
        if SKIP:
            seen = end_of_seen(mask_args[0], mask_args[1], batch, key_head * sizes[1], sizes[3], WARP, BLOCK_N)
        tile = tile_of(ticket, seen, sizes, LEFT, RIGHT, BLOCK_M, BLOCK_N, BESIDE)
        n, steps = tile[2], tile[4]
        mbarrier.wait(kept_empty.index(place), turn)
        leave(tickets, place, ticket)
        if SKIP:
            leave(tickets, KEPT + place, seen)
        mbarrier.expect(kept_ready.index(place), 4 * descs[0].block_type.nbytes)
        for x in gl.static_range(2):
            for c in gl.static_range(2):
                buf = bufs[x].index(2 * place + c)._reinterpret(descs[x].dtype, descs[x].block_type.shape, descs[x].layout)
                tma.async_copy_global_to_shared(descs[x], [batch, key_head, n + c * (BLOCK_N // 2), 0], kept_ready.index(place), buf)
        mbarrier.arrive(kept_ready.index(place), count=1)                # for the ticket
        for t in range(sizes[1] * steps):
            head, m, block, i, before, last = turn_of(tile, t, sizes, LEFT, RIGHT, BLOCK_M, BLOCK_N, BESIDE)
            rows = m + gl.arange(0, BLOCK_M, WARP)
            lse = gl.load(row_ptrs(lse_ptr, stride_lse, batch, head, rows), mask=rows < sizes[2], other=float("inf"))
            if MASK > 0:
                lse = gl.where(lse == float("-inf"), float("inf"), lse)  # of a row that sees no key: its weights are 0
            delta = gl.load(row_ptrs(delta_ptr, stride_delta, batch, head, rows), mask=rows < sizes[2], other=0)
            fill(descs[2], batch, head, m, q_bufs, q_empty, q_ready, slot, phase)
            shifts.index(2 * slot).store(lse * LOG2E)
            if len(draws) > 0:                                           # the products are not scaled for what is kept, their sums are
                delta = delta / draws[3]
            shifts.index(2 * slot + 1).store(delta)
            looked_at = i < tile[5]
            if LEFT:
                looked_at = looked_at | (i >= tile[6])
            leave(edges, slot, gl.where(looked_at, m, -1 - m))
            if len(draws) > 0:
                first, across = first_counter(draws, batch * (sizes[0] * sizes[1]) + head, sizes[2], sizes[3])
                bufs[9].index(slot).store(gl.full((1, ), first + m // 2 * across + n // 4, gl.int64, WARP))
            if slopes_ptr is not None:
                bufs[10].index(slot).store(gl.full((1, ), slope_of(slopes_ptr, stride_slopes, batch, head), gl.float32, WARP))
            mbarrier.arrive(q_ready.index(slot), count=1)
            fill(descs[3], batch, head, m, g_bufs, g_empty, g_ready, slot, phase)
            slot, phase = after(slot, phase, STAGES)
        place, turn = after(place, turn, KEPT)
        ticket = gl.atomic_add(turns_ptr, 1, sem="relaxed")
    mbarrier.wait(kept_empty.index(place), turn)
    leave(tickets, place, ticket)
    mbarrier.arrive(kept_ready.index(place), count=2)


# ------------------------------------------------------------------ the two warp groups
@gluon.jit
def half_of(buf, TURN: gl.constexpr):
    """Half of the columns of a buffer, 64 of which lie together."""
    ROWS: gl.constexpr = buf.shape[0]
    COLUMNS: gl.constexpr = buf.shape[1] // 2
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], buf.dtype)
    return buf._reinterpret(buf.dtype, [2, ROWS, COLUMNS], layout).index(TURN)


@gluon.jit
def product_for_rows(slopes_bufs, k_bufs, one, other, PART: gl.constexpr, BY_ROWS: gl.constexpr, TURN: gl.constexpr):
    """Begin this group's half of what the keys give to a block of rows, from both halves of the slopes."""
    ROWS: gl.constexpr = slopes_bufs.shape[2]
    COLUMNS: gl.constexpr = k_bufs[0].shape[1]
    if BY_ROWS:
        gq = gl.zeros((ROWS // 2, COLUMNS), gl.float32, PART)
        gq = warpgroup_mma(half_of(slopes_bufs.index(one), TURN).permute((1, 0)), k_bufs[0], gq, use_acc=False, is_async=True)
        return warpgroup_mma(half_of(slopes_bufs.index(other), TURN).permute((1, 0)), k_bufs[1], gq, is_async=True)
    else:
        gq = gl.zeros((ROWS, COLUMNS // 2), gl.float32, PART)
        gq = warpgroup_mma(slopes_bufs.index(one).permute((1, 0)), half_of(k_bufs[0], TURN), gq, use_acc=False, is_async=True)
        return warpgroup_mma(slopes_bufs.index(other).permute((1, 0)), half_of(k_bufs[1], TURN), gq, is_async=True)


@gluon.jit
def give_to_rows(gq, batch, notes, out_args, may, added, count, sizes, factor, E: gl.constexpr, BY_ROWS: gl.constexpr,
                 TURN: gl.constexpr):
    """Add this group's half of what the keys give to the gradient of a block of rows. The first stores instead, the last rounds."""
    gq_ptr, sum_ptr, stride_gq = out_args
    ROWS: gl.constexpr = gq.shape[0]
    COLUMNS: gl.constexpr = gq.shape[1]
    mbarrier.wait(may.index(count & 1), count >> 1 & 1)
    noted = 4 * (count & 1)
    block, before = left(notes, noted + 2), left(notes, noted + 3)
    sum_ptrs = sum_ptr + (block * 2 + TURN).to(gl.int64) * (ROWS * COLUMNS) + gl.arange(0, ROWS * COLUMNS, FOURS)
    if before < 0:                                                       # -1 - before: the last
        if before < -1:
            so_far = gl.load(sum_ptrs, cache_modifier=".cg").reshape((COLUMNS // 8, ROWS // 16, 8, 4, 2, 2))
            gq += gl.convert_layout(so_far.permute((1, 4, 2, 0, 3, 5)).reshape((ROWS, COLUMNS)), gq.type.layout, assert_trivial=True)
        rows, columns = left(notes, noted + 1), TURN * COLUMNS
        if BY_ROWS:
            rows, columns = rows + TURN * ROWS, 0
        rows += gl.arange(0, ROWS, gl.SliceLayout(1, gq.type.layout))
        columns += gl.arange(0, COLUMNS, gl.SliceLayout(0, gq.type.layout))
        gq_ptrs = row_ptrs(gq_ptr, stride_gq, batch, left(notes, noted), rows[:, None]) + columns[None, :]
        there = (rows < sizes[2])[:, None]
        if E < (COLUMNS if BY_ROWS else 2 * COLUMNS):
            there = there & (columns < E)[None, :]
        gl.store(gq_ptrs, (gq * factor).to(gq_ptr.dtype.element_ty), mask=there)
    else:
        part = gq.reshape((ROWS // 16, 2, 8, COLUMNS // 8, 4, 2)).permute((3, 0, 2, 4, 1, 5)).reshape((ROWS * COLUMNS, ))
        part = gl.convert_layout(part, FOURS, assert_trivial=True)
        if before == 0:
            gl.store(sum_ptrs, part)
        else:
            gl.atomic_add(sum_ptrs, part, sem="relaxed")
    mbarrier.arrive(added.index(count & 1), count=1)


@gluon.jit
def slope_factor(scale, draws):
    """What the products of slopes are still to be multiplied by."""
    factor = scale * LN2
    if len(draws) > 0:
        factor *= draws[3]
    return factor


@gluon.jit
def last_rows(batch, k_bufs, bufs, slopes_bars, ways, out_args, draws, past, sizes, scale, E: gl.constexpr, BY_ROWS: gl.constexpr,
              PART: gl.constexpr, TURN: gl.constexpr):
    """What is left when the rows' product is a step behind: that of the last block of a tile."""
    mbarrier.wait(slopes_bars[1].index(past & 1), past >> 1 & 1)
    gq = product_for_rows(bufs[4], k_bufs, 2 * (past & 1), 2 * (past & 1) + 1, PART, BY_ROWS, TURN)
    gq = warpgroup_mma_wait(num_outstanding=0, deps=(gq, ))
    mbarrier.arrive(slopes_bars[0].index(past & 1), count=1)
    give_to_rows(gq, batch, bufs[7], out_args, ways[0], ways[1], past, sizes, slope_factor(scale, draws), E, BY_ROWS, TURN)


@gluon.jit
def step(gk, gv, batch, due, more, place, bufs, bars, slopes_bars, ways, out_args, draws, slots, keys, line, sizes, scale, E: gl.constexpr,
         LEFT: gl.constexpr, RIGHT: gl.constexpr, MASK: gl.constexpr, BY_ROWS: gl.constexpr, SCORES: gl.constexpr, PART: gl.constexpr,
         BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BEHIND: gl.constexpr, TURN: gl.constexpr):
    """One block of rows: add to the gradients of keys, values and rows. (Longer than a screen, because its order is what it is about. That
    nothing is under way from one step to the next is ptxas's wish: it would wait for each single product otherwise.)"""
    q_bufs, g_bufs, slopes_bufs, shifts = bufs[2], bufs[3], bufs[4], bufs[5]
    q_empty, q_ready, g_empty, g_ready = bars[2], bars[3], bars[4], bars[5]
    slot, phase, count = slots[0], slots[1], slots[2]
    place = anew(place)
    k_bufs, v = (bufs[0].index(2 * place), bufs[0].index(2 * place + 1)), bufs[1].index(2 * place + TURN)
    q, g, mine = q_bufs.index(slot), g_bufs.index(slot), k_bufs[TURN]
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=gk.type.layout, k_width=2)
    T: gl.constexpr = q.dtype
    zeros = gl.zeros((BLOCK_N // 2, BLOCK_M), gl.float32, SCORES)
    mbarrier.wait(q_ready.index(slot), phase)
    s = warpgroup_mma(mine, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(g_ready.index(slot), phase)
    products = warpgroup_mma(v, g.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s, ))
    lse = shifts.index(2 * slot).load(gl.SliceLayout(0, SCORES))
    edge = left(bufs[8], slot)
    s = s * scale
    if len(bufs) > 10:
        rows = gl.maximum(edge, -1 - edge) + gl.arange(0, BLOCK_M, gl.SliceLayout(0, SCORES))
        s = less_by_distance(s, rows[None, :], keys[:, None], left(bufs[10], slot))
    if MASK > 0:
        s = masked(s, line[:, None], MASK)
    s -= lse[None, :]
    if MASK == 2:                                                        # a large lse is not to the digit
        s = gl.minimum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
    p = gl.exp2(s)
    if edge >= 0:                                                        # the first row of a block that some keys may not meet
        rows = edge + gl.arange(0, BLOCK_M, gl.SliceLayout(0, SCORES))
        seen = (keys < sizes[3])[:, None]
        if RIGHT:
            seen = seen & (rows[None, :] >= (keys - sizes[5])[:, None])
        if LEFT:
            seen = seen & (rows[None, :] <= (keys + sizes[4])[:, None])
        p = gl.where(seen, p, 0.0)
    if len(draws) > 0:
        p = dropped_negative(p, slots[3], BLOCK_M)
        met = without_dropped(p, T)
    else:
        met = p.to(T)
    gv = warpgroup_mma(gl.convert_layout(met, OPERAND), g, gv, is_async=True)
    products = warpgroup_mma_wait(num_outstanding=1, deps=(products, ))
    delta = shifts.index(2 * slot + 1).load(gl.SliceLayout(0, SCORES))
    if len(draws) > 0:
        slopes = (gl.maximum(p, 0.0) * products - gl.abs(p) * delta[None, :]).to(T)
    else:
        slopes = (p * (products - delta[None, :])).to(T)
    at, past = count & BEHIND, count - BEHIND
    mbarrier.wait(slopes_bars[0].index(at), (count >> BEHIND & 1) ^ 1)
    slopes_bufs.index(2 * at + TURN).store(slopes)
    fence_async_shared()
    mbarrier.arrive(slopes_bars[1].index(at), count=1)
    one, other = 2 * (past & BEHIND), 2 * (past & BEHIND) + 1
    if due:
        mbarrier.wait(slopes_bars[1].index(past & BEHIND), past >> BEHIND & 1)
    else:                                                                # a product that nobody asks for costs less than ways around it
        one, other = 2 * at + TURN, 2 * at + TURN
    gq = product_for_rows(slopes_bufs, k_bufs, one, other, PART, BY_ROWS, TURN)
    gk = warpgroup_mma(gl.convert_layout(slopes, OPERAND), q, gk, is_async=True)
    gv, gq = warpgroup_mma_wait(num_outstanding=1, deps=(gv, gq))
    mbarrier.arrive(g_empty.index(slot), count=1)
    if due:
        mbarrier.arrive(slopes_bars[0].index(past & BEHIND), count=1)
        give_to_rows(gq, batch, bufs[7], out_args, ways[0], ways[1], past, sizes, slope_factor(scale, draws), E, BY_ROWS, TURN)
    following, phase = after(slot, phase, STAGES)
    slots = (following, phase, count + 1)
    if len(draws) > 0:                                                   # while others add, and there is room in registers
        slots = slots + (drawn_ahead(more, draws, bufs[9], q_ready, following, phase, TURN * (BLOCK_N // 8), sizes[3], BLOCK_M), )
    gk = warpgroup_mma_wait(num_outstanding=0, deps=(gk, ))
    mbarrier.arrive(q_empty.index(slot), count=1)
    return gk, gv, slots


@gluon.jit
def own_keys(gk_desc, gv_desc, out_args, mask_args, draws, bufs, bars, slopes_bars, ways, sizes, items, scale, E: gl.constexpr,
             LEFT: gl.constexpr, RIGHT: gl.constexpr, MASK: gl.constexpr, BY_ROWS: gl.constexpr, BLOCK_M: gl.constexpr,
             BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, KEPT: gl.constexpr, STAGES: gl.constexpr, SKIP: gl.constexpr,
             BESIDE: gl.constexpr, BEHIND: gl.constexpr, TURN: gl.constexpr):
    """A warp group: its half of the keys of every tile of this program. Long, as it is all that happens to them."""
    KEYS: gl.constexpr = BLOCK_N // 2
    WIDTH: gl.constexpr = BLOCK_D if BY_ROWS else BLOCK_D // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16])
    place, turn, slots = 0, 0, (0, 0, 0)
    if len(draws) > 0:
        slots = (0, 0, 0, no_drop_bits(BLOCK_M))
    ticket = taken(bufs[6], bars, place, turn)
    while ticket < items:
        tile = tile_of(ticket, seen_keys(bufs[6], place, sizes, SKIP, KEPT), sizes, LEFT, RIGHT, BLOCK_M, BLOCK_N, BESIDE)
        batch, head, n, steps = tile[0], tile[1], tile[2], tile[4]
        k, v = bufs[0].index(2 * place + TURN), bufs[1].index(2 * place + TURN)
        keys = n + TURN * KEYS + gl.arange(0, KEYS, gl.SliceLayout(1, SCORES))
        line = keys
        if MASK > 0:
            line = line_of(mask_args[0], mask_args[1], batch, head * sizes[1], keys, sizes[3])
        gk = gl.zeros((KEYS, BLOCK_D), gl.float32, OUT)
        gv = gl.zeros((KEYS, BLOCK_D), gl.float32, OUT)
        if len(draws) > 0:
            slots = slots[:3] + (drawn_ahead(steps > 0, draws, bufs[9], bars[3], slots[0], slots[1], TURN * (BLOCK_N // 8), sizes[3],
                                             BLOCK_M), )
        for t in range(1, 1 + sizes[1] * steps):
            due = True
            if BEHIND > 0:
                due = t > 1
            gk, gv, slots = step(gk, gv, batch, due, t < sizes[1] * steps, place, bufs, bars, slopes_bars, ways, out_args, draws, slots,
                                 keys, line, sizes, scale, E, LEFT, RIGHT, MASK, BY_ROWS, SCORES, PART, BLOCK_M, BLOCK_N, STAGES, BEHIND,
                                 TURN)
        past = slots[2] - 1
        if BEHIND > 0:
            if steps > 0:
                k_bufs = (bufs[0].index(2 * place), bufs[0].index(2 * place + 1))
                last_rows(batch, k_bufs, bufs, slopes_bars, ways, out_args, draws, past, sizes, scale, E, BY_ROWS, PART, TURN)
        mbarrier.wait(slopes_bars[0].index(past & BEHIND), past >> BEHIND & 1)           # the other group multiplies by these keys too
        if len(draws) > 0:
            gv = gv * draws[3]
        send(gv_desc, batch, head, n + TURN * KEYS, v, gv)
        send(gk_desc, batch, head, n + TURN * KEYS, k, gk * slope_factor(scale, draws))
        tma.store_wait(pendings=0)
        mbarrier.arrive(bars[0].index(place), count=1)
        place, turn = after(place, turn, KEPT)
        ticket = taken(bufs[6], bars, place, turn)


@gluon.jit(do_not_specialize=["beside", "threshold", "seed", "offset"])
def attention_together_gluon_kernel(gk_desc, gv_desc, gq_ptr, sum_ptr, turns_ptr, g_desc, q_desc, k_desc, v_desc, lse_ptr, delta_ptr,
                                    mask_ptr, slopes_ptr, base_ptr, stride_gq, stride_lse, stride_delta, stride_mask, stride_slopes, beside,
                                    BATCH, H, GROUP, L, S, left, right, scale, threshold, keep_scale, seed: gl.int64, offset: gl.int64,
                                    E: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASK: gl.constexpr, DROPOUT: gl.constexpr,
                                    BY_ROWS: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                                    BLOCK_D: gl.constexpr, KEPT: gl.constexpr, STAGES: gl.constexpr, BESIDE: gl.constexpr,
                                    BEHIND: gl.constexpr, WIDE: gl.constexpr):
    """Gradients of q, k and v, after attention_backward_delta_kernel has set the ticket and the counters to 0. A mask is that of all rows,
    and of all query heads that share keys; scale > 0, right ≥ 0, with LEFT L ≤ S, with DROPOUT keep_scale > 0; columns lie side by side;
    a head of gq spans 2³¹ elements or more if WIDE. Half of a block of rows (BY_ROWS) or of the columns is 64. num_warps is 4. Grid:
    PROGRAMS. (Long, because it places what is shared.)"""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_D], T)
    slopes_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N // 2, BLOCK_M], T)
    k_bufs = gl.allocate_shared_memory(T, [2 * KEPT, BLOCK_N // 2, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [2 * KEPT, BLOCK_N // 2, BLOCK_D], layout)
    q_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    g_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_M, BLOCK_D], layout)
    slopes_bufs = gl.allocate_shared_memory(T, [2 + 2 * BEHIND, BLOCK_N // 2, BLOCK_M], slopes_layout)
    shifts = gl.allocate_shared_memory(gl.float32, [2 * STAGES, BLOCK_M], LINE)
    tickets = gl.allocate_shared_memory(gl.int32, [2 * KEPT, 1], LINE)   # and how many keys are before those that a mask hides
    notes = gl.allocate_shared_memory(gl.int32, [8, 1], LINE)            # two steps: head, first row, block of rows, blocks before
    edges = gl.allocate_shared_memory(gl.int32, [STAGES, 1], LINE)       # the first row, or -1 less it, where all scores are met
    bars = (barriers(KEPT, 4), barriers(KEPT, 2), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 2), barriers(STAGES, 1))
    slopes_bars, ways = (barriers(1 + BEHIND, 2), barriers(1 + BEHIND, 2)), (barriers(2, 1), barriers(2, 2), barriers(2, 1))
    fence_async_shared()
    counters = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LINE)    # with which dropout begins
    bufs = (k_bufs, v_bufs, q_bufs, g_bufs, slopes_bufs, shifts, tickets, notes, edges, counters)
    if slopes_ptr is not None:
        bufs = bufs + (gl.allocate_shared_memory(gl.float32, [STAGES, 1], LINE), )
    sizes = (H // GROUP, GROUP, L, S, left, right, BATCH * (H // GROUP), beside)
    items = sizes[6] * gl.cdiv(S, BLOCK_N)
    if WIDE:
        stride_gq = (stride_gq[0], stride_gq[1], gl.to_tensor(stride_gq[2]).to(gl.int64))
    out_args, mask_args, draws = (gq_ptr, sum_ptr, stride_gq), (mask_ptr, stride_mask), ()
    if DROPOUT:
        draws = draws_of(base_ptr, seed, offset, threshold, keep_scale)
    SKIP: gl.constexpr = MASK > 0 and not LEFT                           # who has a bound on the left may meet hidden keys alone
    gl.warp_specialize([
        (own_keys, (gk_desc, gv_desc, out_args, mask_args, draws, bufs, bars, slopes_bars, ways, sizes, items, scale, E, LEFT, RIGHT, MASK,
                    BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_D, KEPT, STAGES, SKIP, BESIDE, BEHIND, 0)),
        (own_keys, (gk_desc, gv_desc, out_args, mask_args, draws, bufs, bars, slopes_bars, ways, sizes, items, scale, E, LEFT, RIGHT, MASK,
                    BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_D, KEPT, STAGES, SKIP, BESIDE, BEHIND, 1)),
        (load_tiles, ((k_desc, v_desc, q_desc, g_desc), turns_ptr, (lse_ptr, delta_ptr, stride_lse, stride_delta), mask_args, slopes_ptr,
                      stride_slopes, draws, bufs, bars, sizes, items, LEFT, RIGHT, MASK, BLOCK_M, BLOCK_N, KEPT, STAGES, SKIP,
                      BESIDE)),
        (await_turns, (turns_ptr, tickets, notes, bars, ways, sizes, items, LEFT, RIGHT, BLOCK_M, BLOCK_N, KEPT, SKIP, BESIDE)),
        (end_turns, (turns_ptr, tickets, bars, ways, sizes, items, LEFT, RIGHT, BLOCK_M, BLOCK_N, KEPT, SKIP, BESIDE)),
    ], [4, 1, 1, 1], [240, 24, 24, 24])
