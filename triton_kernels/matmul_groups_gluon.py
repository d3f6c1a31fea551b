"""float32 products from bfloat16 parts on Hopper by groups of warps that take blocks of K in turn: matmul_exact.py says what the parts are
and why they do.

A warp loads blocks of K by TMA into a ring, tile after tile. Each block belongs to one group: it cuts a's numbers into parts in registers
and b's into buffers of its own, multiplies them, and adds the sums to its own. Groups wait for each other at the end of a tile alone, where
the first adds up what the others have, always in the same order. So the units multiply the block of one group while the others cut theirs,
which takes about as long. Nothing of what they share goes to memory and comes back in a second kernel.

What a number loses where it is cut is seen in the bits that bfloat16 has no room for; a tile that lost something, or whose sums are not
finite, is summed up once more, as float32 units do it. CAREFUL is that of `sum_of_parts`.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from .matmul import INFINITE, added, parts_of
from .matmul_gluon import after, place
from .matmul_parts_gluon import begin_products, sum_by_units
from .matmul_small_gluon import join_tile, load_both
from .quick import after_the_one_before, let_the_next_begin

LOST = gl.constexpr(0xFFFF)                              # bits of a float32 number that bfloat16 has no room for


@gluon.jit
def either(x, y):
    return x | y


@gluon.jit
def pairs(x):
    """What lies in even places of x's rows, and in odd ones: a thread has both."""
    return x.reshape((x.shape[0], x.shape[1] // 2, 2)).split()


@gluon.jit
def lost_by(high, low):
    """Where bits are set that are LOST, the parts of a number do not say all about it."""
    return high.to(gl.int32, bitcast=True) | low.to(gl.int32, bitcast=True)


@gluon.jit
def cut_right(b):
    """The parts of b in bfloat16; NaN among them where they do not say all."""
    high, middle, low = parts_of(b)
    even, odd = pairs(lost_by(high, low))
    first, second = pairs(low)
    first = gl.where(((even | odd) & LOST) == 0, first, float("nan"))
    return high.to(gl.bfloat16), middle.to(gl.bfloat16), gl.join(first, second).reshape(b.shape).to(gl.bfloat16)


@gluon.jit
def of_threads(bits):
    """Of each row of a block of a, what any of the numbers has that are one thread's: four threads share a row."""
    M: gl.constexpr = bits.shape[0]
    K: gl.constexpr = bits.shape[1]
    return gl.reduce(gl.reduce(bits.reshape((M, K // 8, 4, 2)), 3, either), 1, either)


@gluon.jit
def cut_left(a):
    """The same of a, without NaN, and `of_threads` bits that are LOST."""
    high, middle, low = parts_of(a)
    return (high.to(gl.bfloat16), middle.to(gl.bfloat16), low.to(gl.bfloat16)), of_threads(lost_by(high, low))


@gluon.jit
def dealt(a):
    """Rows of a block, of eight the even ones first: then a warp's threads find two neighbours each in all banks at once."""
    M: gl.constexpr = a.shape[0]
    K: gl.constexpr = a.shape[1]
    return a.reshape((M // 8, 2, 2, 2, K)).permute((0, 3, 1, 2, 4)).reshape((M, K))


@gluon.jit
def gathered(acc):
    """Sums whose rows were dealt, back in order; this moves nothing between threads."""
    M: gl.constexpr = acc.shape[0]
    N: gl.constexpr = acc.shape[1]
    return acc.reshape((M // 8, 2, 2, 2, N)).permute((0, 2, 3, 1, 4)).reshape((M, N))


@gluon.jit
def multiply(G: gl.constexpr, ring, b_parts, at, phase, steps, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, CAREFUL: gl.constexpr,
             BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
             WARPS: gl.constexpr, layout: gl.constexpr):
    """A group's sums of a tile over its next `steps` blocks of K, `at` this one of its slots; NaN where parts lose something."""
    a_bufs, b_bufs, barriers = ring
    empty, ready = barriers[G]
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=layout, k_width=2)
    B: gl.constexpr = [BLOCK_N, BLOCK_K] if TRANS_B else [BLOCK_K, BLOCK_N]
    rows: gl.constexpr = gl.BlockedLayout([1, 4], [128 // B[1], B[1] // 4], [WARPS, 1], [1, 0])
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout)
    some, lost = acc, acc
    seen = of_threads(gl.zeros((BLOCK_M, BLOCK_K), gl.int32, left))
    for _ in range(steps):
        slot = at * GROUPS + G
        mbarrier.wait(ready.index(at), phase)
        b_high, b_middle, b_low = cut_right(b_bufs.index(slot).load(rows))
        b_parts[0].store(b_high)
        b_parts[1].store(b_middle)
        b_parts[2].store(b_low)
        a = a_bufs.index(slot)
        a_parts, bits = cut_left((a.permute((1, 0)) if TRANS_A else dealt(a)).load(left))
        fence_async_shared()
        gl.thread_barrier()                              # all warps have read the slot and stored b's parts
        some = begin_products(a_parts, b_parts, some, TRANS_B)
        mbarrier.arrive(empty.index(at), count=1)
        seen |= bits
        some = warpgroup_mma_wait(num_outstanding=0, deps=(some, ))
        acc, lost = added(acc, some, lost, CAREFUL)
        at, phase = after(at, phase, 1, STAGES // GROUPS)
    if CAREFUL:
        acc += lost
    seen = gl.convert_layout(gl.reduce(seen, 1, either), gl.SliceLayout(1, layout))
    return gl.where((seen & LOST)[:, None] == 0, acc, float("nan")), at, phase


@gluon.jit
def consume(G: gl.constexpr, out_ptr, pre_ptr, part_ptr, counter_ptr, c_ptr, strides, own, ring, b_parts, sums, met, shape, span, alpha,
            beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, FORM: gl.constexpr, SLOPE: gl.constexpr, ACTIVATION: gl.constexpr,
            CAREFUL: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
            GROUP_M: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, WARPS: gl.constexpr, JOINED: gl.constexpr):
    """Group G's share of every tile; the first group adds up and stores them."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BLOCK_N, 16])
    start, end, split = span
    done, free = met
    first, last, apart = tiles_of(shape, PROGRAMS, BLOCK_M, BLOCK_N)
    steps = steps_of(span, BLOCK_K, GROUPS)
    at, phase, turn = 0, 0, 0
    for tile in range(first, last, apart):
        acc, at, phase = multiply(G, ring, b_parts[G], at, phase, steps, TRANS_A, TRANS_B, CAREFUL, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                                  GROUPS, WARPS, layout)
        if G > 0:
            mbarrier.wait(free, turn & 1 ^ 1)            # the first group has read the sums of the tile before this one
            sums.index(G - 1).store(acc)
            gl.thread_barrier()
            mbarrier.arrive(done, count=1)
        else:
            let_the_next_begin(PROGRAMS == 0)
            if GROUPS > 1:
                mbarrier.wait(done, turn & 1)
                lost = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout)
                for other in gl.static_range(GROUPS - 1):
                    acc, lost = added(acc, sums.index(other).load(layout), lost, CAREFUL)
                if CAREFUL:
                    acc += lost
                gl.thread_barrier()
                mbarrier.arrive(free, count=1)
            batch, m, n = place(tile, shape, BLOCK_M, BLOCK_N, GROUP_M, PROGRAMS)
            acc = acc if TRANS_A else gathered(acc)
            there: gl.constexpr = acc.type.layout
            largest = gl.max(gl.max(acc.to(gl.int32, bitcast=True) & INFINITE, 1), 0)
            if largest == INFINITE:
                acc = sum_by_units(own, batch, m, n, shape, start, end, BLOCK_M, BLOCK_N, there)
            at_tile = tile if PROGRAMS else (batch * gl.num_programs(1) + gl.program_id(1)) * gl.num_programs(0) + gl.program_id(0)
            join_tile(out_ptr, pre_ptr, part_ptr, counter_ptr, c_ptr, at_tile, split, batch, m, n, shape, strides, acc, alpha, beta, FORM,
                      SLOPE, ACTIVATION, JOINED)
        turn += 1


@gluon.jit
def consumer(G: gl.constexpr, tiles):
    consume(G, *tiles)


@gluon.jit
def tiles_of(shape, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """A program's first tile, the end of all tiles, and how far its tiles are apart. PROGRAMS 0: it has one."""
    if PROGRAMS == 0:
        return 0, 1, 1
    else:
        return gl.program_id(0), gl.cdiv(shape[1], BLOCK_M) * gl.cdiv(shape[2], BLOCK_N) * shape[0], PROGRAMS


@gluon.jit
def steps_of(span, BLOCK_K: gl.constexpr, GROUPS: gl.constexpr):
    """Blocks of K for each group: of what lies beyond K come zeros. So a group has the same slots in every round of the ring, else it could
    not tell by a phase's one bit that a slot is still to be filled for another."""
    return gl.cdiv(span[1] - span[0], GROUPS * BLOCK_K)


@gluon.jit
def produce(a_desc, b_desc, ring, shape, span, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, SHARED_A: gl.constexpr,
            SHARED_B: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
            GROUP_M: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr):
    """The loading warp."""
    a_bufs, b_bufs, barriers = ring
    lap, phase = 0, 1                                    # all slots are empty at first
    first, last, apart = tiles_of(shape, PROGRAMS, BLOCK_M, BLOCK_N)
    for tile in range(first, last, apart):
        batch, m, n = place(tile, shape, BLOCK_M, BLOCK_N, GROUP_M, PROGRAMS)
        at = (batch * 0 if SHARED_A else batch, m, batch * 0 if SHARED_B else batch, n)
        for i in range(steps_of(span, BLOCK_K, GROUPS)):
            for group in gl.static_range(GROUPS):
                slot, k = lap * GROUPS + group, span[0] + (i * GROUPS + group) * BLOCK_K
                mbarrier.wait(barriers[group][0].index(lap), phase)
                load_both(a_desc, b_desc, a_bufs.index(slot), b_bufs.index(slot), barriers[group][1].index(lap), at, k, True,
                          TRANS_A, TRANS_B)
            lap, phase = after(lap, phase, 1, STAGES // GROUPS)


@gluon.jit
def start_groups(GROUPS: gl.constexpr, WARPS: gl.constexpr, tiles, loads):
    """GROUPS consumers and the loading warp, with warps and registers as in matmul_gluon.py."""
    if GROUPS == 1:
        gl.warp_specialize([(consumer, (0, tiles)), (produce, loads)], [1], [24])
    elif GROUPS == 2:
        gl.warp_specialize([(consumer, (0, tiles)), (consumer, (1, tiles)), (produce, loads)], [WARPS, 1],
                           [232 if WARPS == 4 else 112, 24])
    elif GROUPS == 3:
        gl.warp_specialize([(consumer, (0, tiles)), (consumer, (1, tiles)), (consumer, (2, tiles)), (produce, loads)],
                           [4, 4, 1], [160, 160, 24])
    else:
        gl.warp_specialize([(consumer, (0, tiles)), (consumer, (1, tiles)), (consumer, (2, tiles)), (consumer, (3, tiles)),
                            (produce, loads)], [4, 4, 4, 1], [112, 112, 112, 24])


@gluon.jit
def buffers_of_parts(ROWS: gl.constexpr, COLUMNS: gl.constexpr, COUNT: gl.constexpr):
    """For each group three buffers, apart from each other, or Triton would have all warps wait between two accesses."""
    H: gl.constexpr = gl.bfloat16
    B: gl.constexpr = [ROWS, COLUMNS]
    L: gl.constexpr = gl.NVMMASharedLayout.get_default_for(B, H)
    three = (gl.allocate_shared_memory(H, B, L), gl.allocate_shared_memory(H, B, L), gl.allocate_shared_memory(H, B, L))
    if COUNT == 1:
        return (three, )
    else:
        return (three, ) + buffers_of_parts(ROWS, COLUMNS, COUNT - 1)


@gluon.jit
def barriers_of(SLOTS: gl.constexpr, COUNT: gl.constexpr):
    """For each group those of its slots: that one is empty, that it is ready. Apart from each other for the same reason."""
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    two = (empty, gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout()))
    if COUNT == 1:
        return (two, )
    else:
        return (two, ) + barriers_of(SLOTS, COUNT - 1)


@gluon.jit
def matmul_groups_gluon_kernel(out_ptr, pre_ptr, part_ptr, counter_ptr, a_desc, b_desc, a_ptr, b_ptr, c_ptr, stride_os, stride_ob,
                               stride_om, stride_on, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb,
                               stride_cm, stride_cn, BATCH, M, N, K, K_SPAN, alpha, beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr,
                               SHARED_A: gl.constexpr, SHARED_B: gl.constexpr, FORM: gl.constexpr, SLOPE: gl.constexpr,
                               ACTIVATION: gl.constexpr, CAREFUL: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr,
                               BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
                               GROUPS: gl.constexpr, JOINED: gl.constexpr, launch_pdl: gl.constexpr = False):
    """Grid: (PROGRAMS, splits), or with PROGRAMS 0 (rows of tiles, columns of tiles, splits · BATCH); what matmul_parts_gluon_kernel
    takes. num_warps is that of one group."""
    WARPS: gl.constexpr = gl.num_warps()
    A: gl.constexpr = [BLOCK_K, BLOCK_M] if TRANS_A else [BLOCK_M, BLOCK_K]
    B: gl.constexpr = [BLOCK_N, BLOCK_K] if TRANS_B else [BLOCK_K, BLOCK_N]
    F: gl.constexpr = gl.float32
    a_bufs = gl.allocate_shared_memory(F, [STAGES, A[0], A[1]], gl.NVMMASharedLayout.get_default_for(A, F))
    b_bufs = gl.allocate_shared_memory(F, [STAGES, B[0], B[1]], gl.NVMMASharedLayout.get_default_for(B, F))
    b_parts = buffers_of_parts(B[0], B[1], GROUPS)
    banks: gl.constexpr = gl.SwizzledSharedLayout(8, max(32 // BLOCK_N, 1), min(BLOCK_N // 8, 4), [1, 0])
    sums = gl.allocate_shared_memory(F, [max(GROUPS - 1, 1), BLOCK_M, BLOCK_N], banks)
    barriers = barriers_of(STAGES // GROUPS, GROUPS)
    for slot in gl.static_range(STAGES // GROUPS):
        for group in gl.static_range(GROUPS):
            mbarrier.init(barriers[group][0].index(slot), count=1)
            mbarrier.init(barriers[group][1].index(slot), count=1)
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=max(GROUPS - 1, 1))
    mbarrier.init(free, count=1)
    fence_async_shared()
    after_the_one_before(launch_pdl)
    split = gl.program_id(1) if PROGRAMS else gl.program_id(2) // BATCH
    ring, shape, span = (a_bufs, b_bufs, barriers), (BATCH, M, N, K), (split * K_SPAN, gl.minimum(split * K_SPAN + K_SPAN, K), split)
    strides = (stride_os, stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn)
    own = (a_ptr, b_ptr, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn)
    start_groups(GROUPS, WARPS,
                 (out_ptr, pre_ptr, part_ptr, counter_ptr, c_ptr, strides, own, ring, b_parts, sums, (done, free), shape, span, alpha, beta,
                  TRANS_A, TRANS_B, FORM, SLOPE, ACTIVATION, CAREFUL, PROGRAMS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, GROUPS, WARPS,
                  JOINED),
                 (a_desc, b_desc, ring, shape, span, TRANS_A, TRANS_B, SHARED_A, SHARED_B, PROGRAMS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                  STAGES, GROUPS))
