"""Attention of 16-bit types on Hopper with the schedule written out, after FlashAttention-3 (Shah et al. 2024).

One warp loads: the rows of q, then keys and values into rings of STAGES slots, tile after tile, without waiting for the tiles to be
finished; there is room for the rows of QUEUE tiles, two but for the largest heads, so that the first keys of the next one are there when
it begins. GROUPS warp groups own ROWS rows each. A group has the products of the next keys under way while it takes the softmax of these,
and while one exponentiates the matrix units work for another. (To make them take turns by barriers, as the paper does, gained nothing on
an H100.) A group gives back what only the others' rows meet as it comes. Keys are met from right to left: blocks that cross the edge on
the right come first, those that cross one on the left last. Under a mask of rows and keys a block of rows meets what its list has, see
attention_lists_gluon.py; `seen` says what is met, and has more numbers then. The results are those of triton_kernels/attention.py; there is
no interpreter for Gluon, so that file is also the reference.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from .attention_columns_gluon import across, add_product, ended, put, times, zeros_of
from .attention_dropout_gluon import carried, draws_of, dropped_keys, first_counter, multiplied
from .attention_lists_gluon import block_at, list_of, words_at
from .attention_mask_gluon import end_of_seen, line_of
from .attention_places_gluon import (
    LINE,
    WARP,
    after,
    barriers,
    bring,
    ending,
    fill,
    first_row,
    item_of,
    keys_of,
    pairs_of,
    tiles_in,
)
from .attention_slots_gluon import await_free, give_back, slots_to_fill
from .attention_softmax_gluon import slope_of, softmax, sums_of_threads

LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def produce(q_desc, k_desc, v_desc, mask_args, lists, bufs, bars, sizes, GROUP, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASK: gl.constexpr,
            PROGRAMS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
            STAGES: gl.constexpr, QUEUE: gl.constexpr, LEAN: gl.constexpr):
    """The loading warp."""
    q_bufs, k_bufs, v_bufs = bufs[0], bufs[1], bufs[2]
    q_empty, q_ready, k_empty, k_ready, v_empty, v_ready = bars
    TILE: gl.constexpr = GROUPS * ROWS
    H = sizes[0]
    pairs, items = pairs_of(sizes, TILE)
    slot, phase, tiles = 0, 1, 0                         # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, TILE)):
            m, end = first_row(pair, half, sizes, TILE), sizes[3]
            if MASK > 0:
                end = end_of_seen(mask_args[0], mask_args[1], batch, head, end, WARP, BLOCK_N)
            if len(lists) > 0:
                seen = list_of(lists, mask_args, batch, head, m, 0, sizes, 2, TILE, BLOCK_N)
                steps = seen[1]
            else:
                begin, steps, _, _ = keys_of(m, ending(sizes, end), LEFT, RIGHT, TILE, BLOCK_N)
                seen = (0, 0, 0, begin + steps - 1)
            for c in gl.static_range(GROUPS):
                place, turn = tiles % QUEUE * GROUPS + c, (tiles // QUEUE & 1) ^ 1
                if MASK > 0:
                    mbarrier.wait(q_empty.index(place), turn)
                    bufs[5].index(place).store(gl.full((1, ), end, gl.int32, WARP))
                    mbarrier.arrive(q_ready.index(place), count=1)
                fill(q_desc, batch, head, m + c * ROWS, q_bufs, q_empty, q_ready, place, turn)
            tiles += 1
            for i in range(steps):
                n = block_at(seen, i) * BLOCK_N
                if MASK > 0:
                    line = line_of(mask_args[0], mask_args[1], batch, head, n + gl.arange(0, BLOCK_N, WARP), sizes[3])
                await_free(k_empty, slot, phase, LEAN)
                bring(k_desc, batch, head // GROUP, n, k_bufs, k_ready, slot)
                await_free(v_empty, slot, phase, LEAN)
                if MASK > 0:                 # read behind the product with the keys: it lies by the values
                    bufs[4].index(slot).store(line)
                    mbarrier.arrive(v_ready.index(slot), count=1)
                bring(v_desc, batch, head // GROUP, n, v_bufs, v_ready, slot)
                slot, phase = after(slot, phase, STAGES)


@gluon.jit
def step(acc, p, top, total, q, bufs, bars, slots, rows, i, seen, scale, slope, draws, EDGE: gl.constexpr, LEFT: gl.constexpr,
         RIGHT: gl.constexpr, MASK: gl.constexpr, SCORES: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr, LEAN: gl.constexpr):
    """Begin the products with the ith keys that are met and with the values before them, take the softmax of the first while the second
    runs."""
    k_bufs, v_bufs = bufs[1], bufs[2]
    _, _, k_empty, k_ready, v_empty, v_ready = bars
    slot, phase, before = slots
    n, words = block_at(seen, i) * k_bufs.shape[1], i
    if EDGE:
        words = words_at(seen, i, k_bufs.shape[1])
    weights = multiplied(p, draws, q.dtype, SCORES, LEAN)
    mbarrier.wait(k_ready.index(slot), phase)
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
    s = across(q, k_bufs.index(slot), zeros, REST)
    acc = add_product(acc, weights, v_bufs.index(before), REST)
    s = warpgroup_mma_wait(num_outstanding=len(acc), deps=(s, ))
    give_back(k_empty, slot, LEAN)
    if MASK > 0:
        mbarrier.wait(v_ready.index(slot), phase)
    p, top, total, shrink = softmax(s, top, total, words, rows, n, seen, scale, slope, bufs[4].index(slot), EDGE, LEFT, RIGHT, MASK)
    if len(draws) > 0:
        p = dropped_keys(p, draws, draws[1], draws[3], n, BLOCK_N)
    p = carried(p, draws, q.dtype, LEAN)
    mbarrier.wait(v_ready.index(slot), phase)                            # for the next step; ptxas would exponentiate after acc's wait
    acc = ended(acc, 0)
    give_back(v_empty, before, LEAN)
    acc = times(acc, shrink)
    following, phase_following = after(slot, phase, STAGES)
    return acc, p, top, total, (following, phase_following, slot)


@gluon.jit
def first_weights(q, k, empty, words, rows, n, seen, scale, slope, line, ready, LEFT: gl.constexpr, RIGHT: gl.constexpr,
                  MASK: gl.constexpr, REST: gl.constexpr, LEAN: gl.constexpr):
    """(weights, maxima, totals of each thread) of the keys that are met first."""
    ROWS: gl.constexpr = q.shape[0]
    KEYS: gl.constexpr = k.shape[0]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16])
    zeros = gl.zeros((ROWS, KEYS), gl.float32, SCORES)
    s = across(q, k, zeros, REST)
    s = warpgroup_mma_wait(num_outstanding=0, deps=(s, ))
    give_back(empty[0], empty[1], LEAN)
    top = gl.full((ROWS, ), float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = sums_of_threads(zeros)
    if MASK > 0:
        mbarrier.wait(ready[0], ready[1])
    p, top, total, _ = softmax(s, top, total, words, rows, n, seen, scale, slope, line, True, LEFT, RIGHT, MASK)
    return p, top, total


@gluon.jit
def first_half(q, k, empty, words, m, n, seen, scale, slope, LEFT: gl.constexpr, RIGHT: gl.constexpr, SCORES: gl.constexpr,
               REST: gl.constexpr, LEAN: gl.constexpr):
    """The same, without a mask, where the rows do not meet the second half of these keys: their weights are 0."""
    ROWS: gl.constexpr = q.shape[0]
    HALF: gl.constexpr = k.shape[0] // 2
    NARROW: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HALF, 16])
    rows = m + gl.arange(0, ROWS, gl.SliceLayout(1, NARROW))
    p, top, total = first_weights(q, k.slice(0, HALF, dim=0), empty, words, rows, n, seen, scale, slope, None, None, LEFT, RIGHT, 0, REST,
                                  LEAN)
    p = gl.join(p, gl.zeros((ROWS, HALF), gl.float32, NARROW)).permute((0, 2, 1)).reshape((ROWS, 2 * HALF))
    like = sums_of_threads(gl.zeros((ROWS, 2 * HALF), gl.float32, SCORES))
    return (gl.convert_layout(p, SCORES, assert_trivial=True), gl.convert_layout(top, gl.SliceLayout(1, SCORES), assert_trivial=True),
            gl.convert_layout(total, like.type.layout, assert_trivial=True))


@gluon.jit
def attend(q, q_empty, bufs, bars, slot, phase, rows, m, half, seen, steps, edges, rest, scale, slope, draws, LEFT: gl.constexpr,
           RIGHT: gl.constexpr, MASK: gl.constexpr, SCORES: gl.constexpr, STAGES: gl.constexpr, QUEUE: gl.constexpr, REST: gl.constexpr,
           HALVES: gl.constexpr, LEAN: gl.constexpr):
    """(result, maxima, totals of the rows of one group; where the ring stands then). Long, because the first step and the last are not as
    the others."""
    k_bufs, v_bufs = bufs[1], bufs[2]
    _, _, k_empty, k_ready, v_empty, v_ready = bars
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    BLOCK_D: gl.constexpr = q.shape[1]
    n, words = block_at(seen, 0) * BLOCK_N, words_at(seen, 0, BLOCK_N)
    mbarrier.wait(k_ready.index(slot), phase)
    k, empty, line, ready = k_bufs.index(slot), (k_empty, slot), bufs[4].index(slot), (v_ready.index(slot), phase)
    if not HALVES:
        p, top, total = first_weights(q, k, empty, words, rows, n, seen, scale, slope, line, ready, LEFT, RIGHT, MASK, REST, LEAN)
    elif half:
        p, top, total = first_half(q, k, empty, words, m, n, seen, scale, slope, LEFT, RIGHT, SCORES, REST, LEAN)
    else:
        p, top, total = first_weights(q, k, empty, words, rows, n, seen, scale, slope, line, ready, LEFT, RIGHT, MASK, REST, LEAN)
    if len(draws) > 0:
        p = dropped_keys(p, draws, draws[1], draws[3], n, BLOCK_N)
    p = carried(p, draws, q.dtype, LEAN)
    mbarrier.wait(v_ready.index(slot), phase)
    acc = zeros_of(ROWS, BLOCK_D, REST)
    following, phase_following = after(slot, phase, STAGES)
    slots = (following, phase_following, slot)
    edges = gl.maximum(edges, 1)
    if LEFT:
        edges = gl.minimum(edges, steps)
        rest = gl.minimum(gl.maximum(rest, edges), steps)
    for i in range(1, edges):
        acc, p, top, total, slots = step(acc, p, top, total, q, bufs, bars, slots, rows, i, seen, scale, slope, draws, True, LEFT, RIGHT,
                                         MASK, SCORES, STAGES, REST, LEAN)
    for i in range(edges, rest):
        acc, p, top, total, slots = step(acc, p, top, total, q, bufs, bars, slots, rows, i, seen, scale, slope, draws, False, LEFT, RIGHT,
                                         MASK, SCORES, STAGES, REST, LEAN)
    if LEFT:
        for i in range(rest, steps):
            acc, p, top, total, slots = step(acc, p, top, total, q, bufs, bars, slots, rows, i, seen, scale, slope, draws, True, LEFT,
                                             RIGHT, MASK, SCORES, STAGES, REST, LEAN)
    if QUEUE > 1:
        mbarrier.arrive(q_empty, count=1)
    slot, phase, before = slots
    acc = ended(add_product(acc, multiplied(p, draws, q.dtype, SCORES, LEAN), v_bufs.index(before), REST), 0)
    give_back(v_empty, before, LEAN)
    return acc, top, total, slot, phase


@gluon.jit
def pass_by(bars, slot, phase, count, STAGES: gl.constexpr, LEAN: gl.constexpr):
    """Give back blocks of keys that only rows of other groups meet."""
    _, _, k_empty, k_ready, v_empty, v_ready = bars
    for _ in range(count):
        mbarrier.wait(k_ready.index(slot), phase)
        give_back(k_empty, slot, LEAN)
        mbarrier.wait(v_ready.index(slot), phase)
        give_back(v_empty, slot, LEAN)
        slot, phase = after(slot, phase, STAGES)
    return slot, phase


@gluon.jit
def consume(TURN: gl.constexpr, out_desc, lse_ptr, slopes_ptr, stride_lse, stride_slopes, mask_args, lists, draws, bufs, bars, sizes, scale,
            LEFT: gl.constexpr, RIGHT: gl.constexpr, MASK: gl.constexpr, PROGRAMS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr,
            BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr, QUEUE: gl.constexpr, REST: gl.constexpr,
            HALVES: gl.constexpr, LEAN: gl.constexpr):
    """A warp group: its ROWS rows of every tile of this program. Where there is room for one tile, its results leave from where q was.
    Long, as it is all that happens to a tile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    TILE: gl.constexpr = GROUPS * ROWS
    UPPER: gl.constexpr = HALVES and RIGHT and MASK == 0 and TURN == 0 and len(lists) == 0       # rows of which some miss half a block
    T: gl.constexpr = out_desc.dtype
    H, L, S, q_empty, q_ready = sizes[0], sizes[2], sizes[3], bars[0], bars[1]
    out = bufs[3].index(TURN)
    pairs, items = pairs_of(sizes, TILE)
    slot, phase, tiles = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, TILE)):
            m, met, place = first_row(pair, half, sizes, TILE), sizes, tiles % QUEUE * GROUPS + TURN
            if MASK > 0:
                mbarrier.wait(q_ready.index(place), tiles // QUEUE & 1)
                met = ending(sizes, gl.max(bufs[5].index(place).load(gl.BlockedLayout([1], [32], [4], [0])), 0))
            if len(lists) > 0:
                seen = list_of(lists, mask_args, batch, head, m, TURN * ROWS, sizes, 2, TILE, BLOCK_N)
                m += TURN * ROWS
                edges, steps = seen[0], seen[1]
                rest = steps
            else:
                first, blocks, _, _ = keys_of(m, met, LEFT, RIGHT, TILE, BLOCK_N)
                m += TURN * ROWS
                begin, steps, edges, rest = keys_of(m, met, LEFT, RIGHT, ROWS, BLOCK_N)
                if GROUPS > 2:
                    if m >= L:                                           # nobody looks at what these rows find
                        begin, steps, edges, rest = begin + steps - 1, 1, 1, 1
                seen = (met[3], met[4], met[5], begin + steps - 1)
                slot, phase = pass_by(bars, slot, phase, first + blocks - begin - steps, STAGES, LEAN)
            rows = m + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            slope = None
            if slopes_ptr is not None:
                slope = slope_of(slopes_ptr, stride_slopes, batch, head)
            half = False
            if UPPER:
                half = seen[3] * BLOCK_N + BLOCK_N // 2 > m + ROWS - 1 + met[5]
            drawn = ()
            if len(draws) > 0:
                drawn = (draws[0], first_counter(draws, matrix, L, S), draws[2], m)
            mbarrier.wait(q_ready.index(place), tiles // QUEUE & 1)
            acc, top, total, slot, phase = attend(bufs[0].index(place), q_empty.index(place), bufs, bars, slot, phase, rows, m, half, seen,
                                                  steps, edges, rest, scale, slope, drawn, LEFT, RIGHT, MASK, SCORES, STAGES, QUEUE, REST,
                                                  UPPER, LEAN)
            if len(lists) == 0:
                slot, phase = pass_by(bars, slot, phase, begin - first, STAGES, LEAN)
            tiles += 1
            total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, SCORES))
            factor = total
            if MASK > 0 or len(lists) > 0:                               # a row that sees no key gives 0
                factor = gl.where(total == 0, 1.0, total)
            factor = 1 / factor
            if len(draws) > 0:
                factor *= draws[3]
            acc = times(acc, factor)
            tma.store_wait(pendings=0)                                   # of the tile before
            put(out, acc, REST)
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [batch, head, m, 0],
                                            out._reinterpret(T, out_desc.block_type.shape, out_desc.layout))
            lse_ptrs = lse_ptr + batch.to(gl.int64) * stride_lse[0] + head.to(gl.int64) * stride_lse[1] + rows * stride_lse[2]
            gl.store(lse_ptrs, (top + gl.log2(total)) * LN2, mask=rows < L)
            if QUEUE == 1:
                tma.store_wait(pendings=0)
                mbarrier.arrive(q_empty.index(place), count=1)
    tma.store_wait(pendings=0)


@gluon.jit
def consumer(TURN: gl.constexpr, rows):
    consume(TURN, *rows)


@gluon.jit
def start(GROUPS: gl.constexpr, rows, loads):
    """GROUPS groups and the loading warp; the numbers are of warps and of registers of each thread, but for the first group's. A function
    because of its arguments: tuples of tensors and what is compiled in, of which one with a name would make tensors."""
    if GROUPS == 2:
        gl.warp_specialize([(consumer, (0, rows)), (consumer, (1, rows)), (produce, loads)], [4, 1], [240, 24])
    elif GROUPS == 3:
        gl.warp_specialize([(consumer, (0, rows)), (consumer, (1, rows)), (consumer, (2, rows)), (produce, loads)],
                           [4, 4, 1], [160, 160, 24])
    else:
        gl.warp_specialize([(consumer, (0, rows)), (consumer, (1, rows)), (consumer, (2, rows)), (consumer, (3, rows)), (produce, loads)],
                           [4, 4, 4, 1], [112, 112, 112, 24])


@gluon.jit(do_not_specialize=["threshold", "seed", "offset"])
def attention_gluon_kernel(out_desc, lse_ptr, mask_ptr, lists_ptr, words_ptr, slopes_ptr, base_ptr, q_desc, k_desc, v_desc, stride_lse,
                           stride_mask, stride_lists, stride_slopes, BATCH, H, GROUP, L, S, left, right, scale, threshold, keep_scale,
                           seed: gl.int64, offset: gl.int64, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASK: gl.constexpr,
                           DROPOUT: gl.constexpr, WIDE: gl.constexpr, PROGRAMS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr,
                           BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
                           HALVES: gl.constexpr, LEAN: gl.constexpr):
    """out and lse as of attention_kernel; a mask is that of all rows, or attention_blocks_kernel has made lists of it for blocks of
    2 · ROWS rows and BLOCK_N keys, and there are no bounds and no slopes; scale > 0, right ≥ 0, with LEFT L ≤ S. ROWS is 64, GROUPS 2 to 4,
    with lists 2, and with HALVES BLOCK_N is 2 · ROWS. LEAN: see `carried` and attention_slots_gluon.py. num_warps is 4.
    Grid: PROGRAMS."""
    LINES: gl.constexpr = MASK if lists_ptr is None else 0               # of masks that all rows share
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_D], T)
    QUEUE: gl.constexpr = 2 if BLOCK_D <= 128 else 1
    q_bufs = gl.allocate_shared_memory(T, [QUEUE * GROUPS, ROWS, BLOCK_D], layout)
    k_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    out_bufs = q_bufs if QUEUE == 1 else gl.allocate_shared_memory(T, [GROUPS, ROWS, BLOCK_D], layout)
    bars = (barriers(QUEUE * GROUPS, 1), barriers(QUEUE * GROUPS, 2 if LINES > 0 else 1), slots_to_fill("keys", STAGES, GROUPS, LEAN),
            barriers(STAGES, 1), slots_to_fill("values", STAGES, GROUPS, LEAN), barriers(STAGES, 2 if LINES > 0 else 1))
    lines = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_N], LINE)
    ends = gl.allocate_shared_memory(gl.int32, [QUEUE * GROUPS, 1], LINE)
    fence_async_shared()
    bufs, sizes = (q_bufs, k_bufs, v_bufs, out_bufs, lines, ends), (H, BATCH * H, L, S, left, right)
    lists, draws = (), ()
    if lists_ptr is not None:
        lists = (lists_ptr, words_ptr, stride_lists[0], stride_lists[1])
    if DROPOUT:
        draws = draws_of(base_ptr, seed, offset, threshold, keep_scale)
    if WIDE:
        stride_mask = (stride_mask[0], stride_mask[1], gl.to_tensor(stride_mask[2]).to(gl.int64), gl.to_tensor(stride_mask[3]).to(gl.int64))
    start(GROUPS,
          (out_desc, lse_ptr, slopes_ptr, stride_lse, stride_slopes, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, scale, LEFT,
           RIGHT, LINES, PROGRAMS, GROUPS, ROWS, BLOCK_N, BLOCK_D, STAGES, QUEUE, REST, HALVES, LEAN),
          (q_desc, k_desc, v_desc, (mask_ptr, stride_mask), lists, bufs, bars, sizes, GROUP, LEFT, RIGHT, LINES, PROGRAMS, GROUPS, ROWS,
           BLOCK_N, STAGES, QUEUE, LEAN))
