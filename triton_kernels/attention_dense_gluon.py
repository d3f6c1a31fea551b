"""Attention of 16-bit types on Hopper under a mask of rows and keys; conventions and schedule as in attention_gluon.py.

attention_blocks.py has listed the blocks of keys that each block of rows meets: first those of which single scores are hidden or changed,
then the others, which cost what they do without a mask. Others are not read. Which scores of a block are hidden is in bits: a word for each
of the four threads that hold a row, which is there by the time the product is. Where bits do not tell, a thread reads the mask itself.
The results are those of triton_kernels/attention.py, which is also the reference.
"""
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from triton_kernels.attention_dropout_gluon import draws_of, dropped_keys, first_counter, of_kept
from triton_kernels.attention_gluon import (
    after,
    barriers,
    fill,
    first_row,
    item_of,
    pairs_of,
    sums_of_threads,
    tiles_in,
)
from triton_kernels.attention_mask_gluon import masked

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)
LOWEST = gl.constexpr(-2.0 ** 100)                                       # as in attention_mask_gluon.py
HEAD = gl.constexpr(4)                                                   # as in attention_blocks.py


# ------------------------------------------------------------------ lists and words
@gluon.constexpr_function
def spread(C):
    """(row, c, t, d): where a product of 64 rows and 8 C columns has the column 8 c + 2 t + d, as its threads hold it."""
    columns = [[0, 1 << bit, 0, 0] for bit in range(C.bit_length() - 1)]
    return gl.DistributedLinearLayout([[0, 0, 0, 1], [8, 0, 0, 0], *columns], [[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0],
                                      [4, 0, 0, 0]], [[16, 0, 0, 0], [32, 0, 0, 0]], [], [64, C, 4, 2])


@gluon.constexpr_function
def words_of(C):
    """(row, t): where each thread has the words of its own numbers."""
    return gl.SliceLayout(1, gl.SliceLayout(3, spread(C)))


@gluon.jit
def list_of(lists, batch, head, block, blocks, across):
    """(the list of a block, the words of those at its front), from pointers and the steps of batches and heads, in matrices."""
    lists_ptr, words_ptr, step_batch, step_head = lists
    place = (batch * step_batch + head * step_head).to(gl.int64) * blocks + block
    return lists_ptr + place * (HEAD + across), words_ptr + place * across * 512


@gluon.jit
def listed(list_ptr, i, part, across):
    """The block that is the ith of a list."""
    return gl.load(list_ptr + HEAD + gl.where(i < part, i, across - 1 - (i - part)))


@gluon.jit
def words_at(words_ptr, place, first, BLOCK_N: gl.constexpr):
    """The words of 64 rows, of which the first is so far from that of the block, at a place in the list."""
    W: gl.constexpr = words_of(BLOCK_N // 8)
    row, t = gl.arange(0, 64, gl.SliceLayout(1, W)), gl.arange(0, 4, gl.SliceLayout(0, W))
    return gl.load(words_ptr + gl.to_tensor(place).to(gl.int64) * 512 + (first * 4 + row[:, None] * 4 + t[None, :]))


@gluon.jit
def shown(s, words):
    """Scores, -inf where their bit is 0. Each bit is looked at where its score is chosen, as in attention_gluon.hidden."""
    C: gl.constexpr = s.shape[1] // 8
    L4: gl.constexpr = spread(C)
    zeros = gl.zeros((64, C, 4, 2), gl.int32, L4)
    c = gl.arange(0, C, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L4))))
    d = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L4))))
    bits = (zeros + 1) << (2 * c[None, :, None, None] + d[None, None, None, :])
    words = gl.convert_layout((words[:, None, :, None] + zeros).reshape(s.shape), s.type.layout, assert_trivial=True)
    bits = gl.convert_layout(bits.reshape(s.shape), s.type.layout, assert_trivial=True)
    return gl.inline_asm_elementwise("{.reg .pred met; .reg .b32 bit; and.b32 bit, $2, $3; setp.ne.s32 met, bit, 0; "
                                     "selp.f32 $0, $1, 0fFF800000, met;}", "=f,f,r,r", [s, words, bits], dtype=gl.float32, is_pure=True,
                                     pack=1)


@gluon.jit
def with_mask(s, mask, rows, keys, L, S):
    """Scores in units of log 2 with the numbers of a mask in them; `mask` is its pointer and steps along dims 0 and 1 of s."""
    there = (rows < L)[:, None] & (keys < S)[None, :]
    added = gl.load(mask[0] + (rows[:, None] * mask[1] + keys[None, :] * mask[2]), mask=there, other=float("-inf")).to(gl.float32)
    added = gl.where(added == float("-inf"), added, gl.maximum(added * LOG2E, LOWEST, propagate_nan=tl.PropagateNan.ALL))
    return masked(s, added, 2)


@gluon.jit
def shown_scores(s, words, tells, mask, rows, keys, L, S, MASK: gl.constexpr):
    """Scores in units of log 2 under the mask: by its bits where these tell."""
    if MASK == 1:
        s = shown(s, words)
    else:
        if tells:
            s = shown(s, words)
        else:
            s = with_mask(s, mask, rows, keys, L, S)
    return s


# ------------------------------------------------------------------ the warps
@gluon.jit
def produce(q_desc, k_desc, v_desc, lists, bufs, bars, sizes, GROUP, PROGRAMS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr,
            BLOCK_N: gl.constexpr, STAGES: gl.constexpr, QUEUE: gl.constexpr):
    """The loading warp."""
    q_bufs, k_bufs, v_bufs = bufs[0], bufs[1], bufs[2]
    q_empty, q_ready, k_empty, k_ready, v_empty, v_ready = bars
    TILE: gl.constexpr = GROUPS * ROWS
    H, across = sizes[0], gl.cdiv(sizes[3], BLOCK_N)
    pairs, items = pairs_of(sizes, TILE)
    slot, phase, tiles = 0, 1, 0                         # all slots are empty at first
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, TILE)):
            m = first_row(pair, half, sizes, TILE)
            list_ptr, _ = list_of(lists, batch, head, m // TILE, gl.cdiv(sizes[2], TILE), across)
            part, steps = gl.load(list_ptr), gl.load(list_ptr + 1)
            for c in gl.static_range(GROUPS):
                place, turn = tiles % QUEUE * GROUPS + c, (tiles // QUEUE & 1) ^ 1
                fill(q_desc, batch, head, m + c * ROWS, q_bufs, q_empty, q_ready, place, turn)
            tiles += 1
            for i in range(steps):
                n = listed(list_ptr, i, part, across) * BLOCK_N
                fill(k_desc, batch, head // GROUP, n, k_bufs, k_empty, k_ready, slot, phase)
                fill(v_desc, batch, head // GROUP, n, v_bufs, v_empty, v_ready, slot, phase)
                slot, phase = after(slot, phase, STAGES)


@gluon.jit
def softmax(s, top, total, words, seen, rows, n, scale, PART: gl.constexpr, MASK: gl.constexpr):
    """(weights, new maximum, new totals of each thread, how much shrinks what was there). Scores s are not scaled yet."""
    if PART:
        keys = n + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        s = shown_scores(s * scale, words, seen[0], seen[1], rows, keys, seen[2], seen[3], MASK)
        scale = 1.0
    higher = gl.maximum(top, gl.max(s, 1) * scale)
    pivot = gl.where(higher == float("-inf"), 0.0, higher)               # a row that sees no key yet
    p = gl.exp2(s * scale - pivot[:, None])
    shrink = gl.exp2(top - pivot)
    mine = gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout), assert_trivial=True)
    return p, higher, total * mine[:, None] + sums_of_threads(p), shrink


@gluon.jit
def step(acc, p, top, total, q, bufs, bars, slots, rows, i, seen, scale, draws, PART: gl.constexpr, MASK: gl.constexpr,
         SCORES: gl.constexpr, STAGES: gl.constexpr):
    """Begin the products with the ith keys of the list and with the values before them, take the softmax of the first while the second
    runs."""
    k_bufs, v_bufs = bufs[1], bufs[2]
    _, _, k_empty, k_ready, v_empty, v_ready = bars
    slot, phase, before = slots
    OUT: gl.constexpr = acc.type.layout
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    _, mask, L, S, list_ptr, words_ptr, part, across, first = seen
    words, n = rows, 0
    if PART:
        words = words_at(words_ptr, i, first, BLOCK_N)
    if len(draws) > 0 or PART and MASK == 2:
        n = listed(list_ptr, i, part, across) * BLOCK_N
    weights = gl.convert_layout(of_kept(p, draws, q.dtype), OPERAND)     # carried as they are: rounded, each would be unpacked and packed
    mbarrier.wait(k_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
    s = warpgroup_mma(q, k_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    acc = warpgroup_mma(weights, v_bufs.index(before), acc, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s, ))
    mbarrier.arrive(k_empty.index(slot), count=1)
    p, top, total, shrink = softmax(s, top, total, words, seen, rows, n, scale, PART, MASK)
    if len(draws) > 0:
        p = dropped_keys(p, draws, draws[1], draws[3], n, BLOCK_N)
    mbarrier.wait(v_ready.index(slot), phase)                            # for the next step; ptxas would exponentiate after acc's wait
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc, ))
    mbarrier.arrive(v_empty.index(before), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, OUT))[:, None]
    following, phase_following = after(slot, phase, STAGES)
    return acc, p, top, total, (following, phase_following, slot)


@gluon.jit
def attend(q, q_empty, bufs, bars, slot, phase, rows, steps, seen, scale, draws, MASK: gl.constexpr, SCORES: gl.constexpr,
           OUT: gl.constexpr, STAGES: gl.constexpr, QUEUE: gl.constexpr):
    """(result, maxima, totals of the rows of one group; where the ring stands then). Long, because the first step and the last are not as
    the others."""
    k_bufs, v_bufs = bufs[1], bufs[2]
    _, _, k_empty, k_ready, v_empty, v_ready = bars
    ROWS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_bufs.shape[1]
    BLOCK_D: gl.constexpr = q.shape[1]
    _, mask, L, S, list_ptr, words_ptr, part, across, first = seen
    words, n = words_at(words_ptr, 0, first, BLOCK_N), listed(list_ptr, 0, part, across) * BLOCK_N
    mbarrier.wait(k_ready.index(slot), phase)
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, SCORES)
    s = warpgroup_mma(q, k_bufs.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=0, deps=(s, ))
    mbarrier.arrive(k_empty.index(slot), count=1)
    top = gl.full((ROWS, ), float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = sums_of_threads(zeros)
    p, top, total, _ = softmax(s, top, total, words, seen, rows, n, scale, True, MASK)
    if len(draws) > 0:
        p = dropped_keys(p, draws, draws[1], draws[3], n, BLOCK_N)
    mbarrier.wait(v_ready.index(slot), phase)
    acc = gl.zeros((ROWS, BLOCK_D), gl.float32, OUT)
    following, phase_following = after(slot, phase, STAGES)
    slots = (following, phase_following, slot)
    for i in range(1, part):
        acc, p, top, total, slots = step(acc, p, top, total, q, bufs, bars, slots, rows, i, seen, scale, draws, True, MASK, SCORES, STAGES)
    for i in range(gl.maximum(part, 1), steps):
        acc, p, top, total, slots = step(acc, p, top, total, q, bufs, bars, slots, rows, i, seen, scale, draws, False, MASK, SCORES, STAGES)
    if QUEUE > 1:
        mbarrier.arrive(q_empty, count=1)
    slot, phase, before = slots
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=OUT, k_width=2)
    acc = warpgroup_mma(gl.convert_layout(of_kept(p, draws, q.dtype), OPERAND), v_bufs.index(before), acc, is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc, ))
    mbarrier.arrive(v_empty.index(before), count=1)
    return acc, top, total, slot, phase


@gluon.jit
def consume(out_desc, lse_ptr, stride_lse, mask_args, lists, draws, bufs, bars, sizes, scale, MASK: gl.constexpr, PROGRAMS: gl.constexpr,
            GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr,
            QUEUE: gl.constexpr, TURN: gl.constexpr):
    """A warp group: its ROWS rows of every tile of this program. Long, as it is all that happens to a tile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_D, 16])
    TILE: gl.constexpr = GROUPS * ROWS
    T: gl.constexpr = out_desc.dtype
    H, L, S, q_empty, q_ready = sizes[0], sizes[2], sizes[3], bars[0], bars[1]
    out, across = bufs[3].index(TURN), gl.cdiv(S, BLOCK_N)
    pairs, items = pairs_of(sizes, TILE)
    slot, phase, tiles = 0, 0, 0
    for cycle in range(gl.cdiv(items, PROGRAMS)):
        item = item_of(cycle, PROGRAMS)
        pair, matrix = item % pairs, item // pairs
        head, batch = matrix % H, matrix // H
        for half in range(tiles_in(item, sizes, TILE)):
            m, place = first_row(pair, half, sizes, TILE), tiles % QUEUE * GROUPS + TURN
            list_ptr, words_ptr = list_of(lists, batch, head, m // TILE, gl.cdiv(L, TILE), across)
            part, steps = gl.load(list_ptr), gl.load(list_ptr + 1)
            mask_ptr, stride_mask = mask_args
            mask, tells = (mask_ptr, stride_mask[2], stride_mask[3]), part
            if MASK == 2:
                mask = (mask_ptr + batch.to(gl.int64) * stride_mask[0] + head.to(gl.int64) * stride_mask[1], stride_mask[2], stride_mask[3])
                tells = gl.load(list_ptr + 2) == 0
            m += TURN * ROWS
            rows = m + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            seen = (tells, mask, L, S, list_ptr, words_ptr, part, across, TURN * ROWS)
            drawn = ()
            if len(draws) > 0:
                drawn = (draws[0], first_counter(draws, matrix, L, S), draws[2], m)
            mbarrier.wait(q_ready.index(place), tiles // QUEUE & 1)
            acc, top, total, slot, phase = attend(bufs[0].index(place), q_empty.index(place), bufs, bars, slot, phase, rows, steps, seen,
                                                  scale, drawn, MASK, SCORES, OUT, STAGES, QUEUE)
            tiles += 1
            total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, SCORES))
            factor = 1 / gl.where(total == 0, 1.0, total)                # a row that sees no key gives 0
            if len(draws) > 0:
                factor *= draws[3]
            acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, OUT))[:, None]
            tma.store_wait(pendings=0)                                   # of the tile before
            out.store(acc.to(T))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [batch, head, m, 0],
                                            out._reinterpret(T, out_desc.block_type.shape, out_desc.layout))
            lse_ptrs = lse_ptr + batch.to(gl.int64) * stride_lse[0] + head.to(gl.int64) * stride_lse[1] + rows * stride_lse[2]
            gl.store(lse_ptrs, (top + gl.log2(total)) * LN2, mask=rows < L)
            if QUEUE == 1:
                tma.store_wait(pendings=0)
                mbarrier.arrive(q_empty.index(place), count=1)
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["threshold", "seed", "offset"])
def attention_dense_gluon_kernel(out_desc, lse_ptr, mask_ptr, lists_ptr, words_ptr, base_ptr, q_desc, k_desc, v_desc, stride_lse,
                                 stride_mask, stride_lists, BATCH, H, GROUP, L, S, scale, threshold, keep_scale, seed: gl.int64,
                                 offset: gl.int64, MASK: gl.constexpr, DROPOUT: gl.constexpr, WIDE: gl.constexpr, PROGRAMS: gl.constexpr,
                                 GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr,
                                 STAGES: gl.constexpr):
    """out and lse as of attention_kernel, after attention_blocks_kernel for blocks of 2 · ROWS rows and BLOCK_N keys; scale > 0. ROWS is
    64, GROUPS 2, num_warps 4. Grid: PROGRAMS."""
    T: gl.constexpr = q_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_D], T)
    QUEUE: gl.constexpr = 2 if BLOCK_D <= 128 else 1
    q_bufs = gl.allocate_shared_memory(T, [QUEUE * GROUPS, ROWS, BLOCK_D], layout)
    k_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    v_bufs = gl.allocate_shared_memory(T, [STAGES, BLOCK_N, BLOCK_D], layout)
    out_bufs = q_bufs if QUEUE == 1 else gl.allocate_shared_memory(T, [GROUPS, ROWS, BLOCK_D], layout)
    bars = (barriers(QUEUE * GROUPS, 1), barriers(QUEUE * GROUPS, 1), barriers(STAGES, GROUPS), barriers(STAGES, 1),
            barriers(STAGES, GROUPS), barriers(STAGES, 1))
    fence_async_shared()
    bufs, sizes = (q_bufs, k_bufs, v_bufs, out_bufs), (H, BATCH * H, L, S)
    lists, draws = (lists_ptr, words_ptr, stride_lists[0], stride_lists[1]), ()
    if DROPOUT:
        draws = draws_of(base_ptr, seed, offset, threshold, keep_scale)
    if WIDE:
        stride_mask = (stride_mask[0], stride_mask[1], gl.to_tensor(stride_mask[2]).to(gl.int64), gl.to_tensor(stride_mask[3]).to(gl.int64))
    gl.warp_specialize([
        (consume, (out_desc, lse_ptr, stride_lse, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, scale, MASK, PROGRAMS, GROUPS,
                   ROWS, BLOCK_N, BLOCK_D, STAGES, QUEUE, 0)),
        (consume, (out_desc, lse_ptr, stride_lse, (mask_ptr, stride_mask), lists, draws, bufs, bars, sizes, scale, MASK, PROGRAMS, GROUPS,
                   ROWS, BLOCK_N, BLOCK_D, STAGES, QUEUE, 1)),
        (produce, (q_desc, k_desc, v_desc, lists, bufs, bars, sizes, GROUP, PROGRAMS, GROUPS, ROWS, BLOCK_N, STAGES, QUEUE)),
    ], [4, 1], [240, 24])
