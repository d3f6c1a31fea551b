"""float32 products from bfloat16 parts on Hopper in one kernel: matmul_exact.py says what the parts are and why they do.

TMA brings blocks of K as they are, STAGES at a time. While the matrix units multiply the parts of one block, six products queued at once,
the same warps cut the next block into parts, a's into registers and b's into the other of two buffers: the cutting, which every tile does
for itself, hides behind the products, and nobody writes parts to memory or reads them from there. With a's parts in shared memory, too,
what that can bring would be the limit: for 128 x 64 x 32 it would be busy for 1250 cycles, the matrix units for 768. Two blocks are a
round, so that a's parts of one never come into the registers that are being multiplied: ptxas would wait for every product.

Numbers of which parts cannot say all become NaN; a tile whose sums are not finite is summed up once more, as float32 units do it. CAREFUL
is that of `sum_of_parts`.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from .matmul import INFINITE, added, marked_parts
from .matmul_gluon import place
from .matmul_small_gluon import fill, first_fill, join_tile
from .quick import let_the_next_begin


@gluon.jit
def cut_both(ring, b_parts, i, TRANS_A: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr, layout: gl.constexpr):
    """The parts of block i of K, once it has come: those of a in registers, those of b in buffers."""
    a_bufs, b_bufs, ready = ring
    slot = i % STAGES
    mbarrier.wait(ready.index(slot), i // STAGES & 1)
    COLUMNS: gl.constexpr = b_bufs.shape[2]
    rows: gl.constexpr = gl.BlockedLayout([1, 4], [128 // COLUMNS, COLUMNS // 4], [WARPS, 1], [1, 0])
    high, middle, low = marked_parts(b_bufs.index(slot).load(rows))
    b_parts[0].store(high)
    b_parts[1].store(middle)
    b_parts[2].store(low)
    fence_async_shared()
    a = a_bufs.index(slot)
    return marked_parts((a.permute((1, 0)) if TRANS_A else a).load(gl.DotOperandLayout(operand_index=0, parent=layout, k_width=2)))


@gluon.jit
def fill_again(load_from, i, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr):
    """Load a later block to where block i was, which all warps have cut."""
    a_desc, b_desc, ring, at, start, steps = load_from
    fill(a_desc, b_desc, ring, i % STAGES, at, start + (i + STAGES) * BLOCK_K, i + STAGES < steps, TRANS_A, TRANS_B)


@gluon.jit
def lying(buf, TURNED: gl.constexpr):
    return buf.permute((1, 0)) if TURNED else buf


@gluon.jit
def begin_products(a, b, some, TRANS_B: gl.constexpr):
    """Queue the six products of a block, the small ones first."""
    high, middle, low = lying(b[0], TRANS_B), lying(b[1], TRANS_B), lying(b[2], TRANS_B)
    some = warpgroup_mma(a[2], high, some, use_acc=False, is_async=True)
    some = warpgroup_mma(a[0], low, some, is_async=True)
    some = warpgroup_mma(a[1], middle, some, is_async=True)
    some = warpgroup_mma(a[1], high, some, is_async=True)
    some = warpgroup_mma(a[0], middle, some, is_async=True)
    return warpgroup_mma(a[0], high, some, is_async=True)


@gluon.jit
def end_products(acc, lost, some, CAREFUL: gl.constexpr):
    """Wait for them: acc + some, and with CAREFUL what was lost there."""
    some = warpgroup_mma_wait(num_outstanding=0, deps=(some, ))
    total, lost = added(acc, some, lost, CAREFUL)
    gl.thread_barrier()                                  # all warps have cut the next block, and need b's parts of this one no more
    return total, lost, some


@gluon.jit
def sum_by_units(operands, batch, m, n, shape, start, end, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, layout: gl.constexpr):
    """The sums of a tile as float32 units make them: slow, and rare."""
    a_ptr, b_ptr, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn = operands
    rm = (m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout))) % shape[1]
    rn = (n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))) % shape[2]
    a_ptrs = a_ptr + batch.to(gl.int64) * stride_ab + rm.to(gl.int64) * stride_am
    b_ptrs = b_ptr + batch.to(gl.int64) * stride_bb + rn.to(gl.int64) * stride_bn
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout)
    for k in range(start, end):
        a, b = gl.load(a_ptrs + k.to(gl.int64) * stride_ak), gl.load(b_ptrs + k.to(gl.int64) * stride_bk)
        acc += a[:, None] * b[None, :]
    return acc


@gluon.jit
def matmul_parts_gluon_kernel(out_ptr, pre_ptr, part_ptr, counter_ptr, a_desc, b_desc, a_ptr, b_ptr, c_ptr, stride_os, stride_ob,
                              stride_om, stride_on, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb,
                              stride_cm, stride_cn, BATCH, M, N, K, K_SPAN, alpha, beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr,
                              SHARED_A: gl.constexpr, SHARED_B: gl.constexpr, FORM: gl.constexpr, SLOPE: gl.constexpr,
                              ACTIVATION: gl.constexpr, CAREFUL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                              BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, JOINED: gl.constexpr,
                              launch_pdl: gl.constexpr = False):
    """Grid: (tiles · BATCH, splits); what matmul_small_gluon_kernel takes, and where both operands lie. Long, as the last
    round is written out: it has no next block."""
    WARPS: gl.constexpr = gl.num_warps()
    A: gl.constexpr = [BLOCK_K, BLOCK_M] if TRANS_A else [BLOCK_M, BLOCK_K]
    B: gl.constexpr = [BLOCK_N, BLOCK_K] if TRANS_B else [BLOCK_K, BLOCK_N]
    F: gl.constexpr = gl.float32
    H: gl.constexpr = gl.bfloat16
    HALVES: gl.constexpr = gl.NVMMASharedLayout.get_default_for(B, H)
    a_bufs = gl.allocate_shared_memory(F, [STAGES, A[0], A[1]], gl.NVMMASharedLayout.get_default_for(A, F))
    b_bufs = gl.allocate_shared_memory(F, [STAGES, B[0], B[1]], gl.NVMMASharedLayout.get_default_for(B, F))
    # apart from each other, or Triton would have all warps wait between two accesses
    b_even = (gl.allocate_shared_memory(H, B, HALVES), gl.allocate_shared_memory(H, B, HALVES), gl.allocate_shared_memory(H, B, HALVES))
    b_odd = (gl.allocate_shared_memory(H, B, HALVES), gl.allocate_shared_memory(H, B, HALVES), gl.allocate_shared_memory(H, B, HALVES))
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ring, shape, split = (a_bufs, b_bufs, ready), (BATCH, M, N, K), gl.program_id(1)
    batch, m, n = place(gl.program_id(0), shape, BLOCK_M, BLOCK_N, GROUP_M)
    start = split * K_SPAN
    end = gl.minimum(start + K_SPAN, K)
    steps = gl.cdiv(end - start, 2 * BLOCK_K) * 2        # of what lies beyond K come zeros
    at = (batch * 0 if SHARED_A else batch, m, batch * 0 if SHARED_B else batch, n)
    first_fill(a_desc, b_desc, ring, at, start, steps, TRANS_A, TRANS_B, BLOCK_K, STAGES, launch_pdl)
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BLOCK_N, 16])
    acc = gl.zeros((BLOCK_M, BLOCK_N), F, layout)
    lost, some = acc, acc
    load_from = (a_desc, b_desc, ring, at, start, steps)
    a_even = cut_both(ring, b_even, 0, TRANS_A, STAGES, WARPS, layout)
    gl.thread_barrier()
    for i in range(0, steps - 2, 2):
        some = begin_products(a_even, b_even, some, TRANS_B)
        fill_again(load_from, i, TRANS_A, TRANS_B, BLOCK_K, STAGES)
        a_odd = cut_both(ring, b_odd, i + 1, TRANS_A, STAGES, WARPS, layout)
        acc, lost, some = end_products(acc, lost, some, CAREFUL)
        some = begin_products(a_odd, b_odd, some, TRANS_B)
        fill_again(load_from, i + 1, TRANS_A, TRANS_B, BLOCK_K, STAGES)
        a_even = cut_both(ring, b_even, i + 2, TRANS_A, STAGES, WARPS, layout)
        acc, lost, some = end_products(acc, lost, some, CAREFUL)
    some = begin_products(a_even, b_even, some, TRANS_B)
    a_odd = cut_both(ring, b_odd, steps - 1, TRANS_A, STAGES, WARPS, layout)
    acc, lost, some = end_products(acc, lost, some, CAREFUL)
    some = begin_products(a_odd, b_odd, some, TRANS_B)
    acc, lost, some = end_products(acc, lost, some, CAREFUL)
    let_the_next_begin(launch_pdl)
    if CAREFUL:
        acc += lost
    largest = gl.max(gl.max(acc.to(gl.int32, bitcast=True) & INFINITE, 1), 0)
    if largest == INFINITE:
        operands = (a_ptr, b_ptr, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn)
        acc = sum_by_units(operands, batch, m, n, shape, start, end, BLOCK_M, BLOCK_N, layout)
    strides = (stride_os, stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn)
    join_tile(out_ptr, pre_ptr, part_ptr, counter_ptr, c_ptr, gl.program_id(0), split, batch, m, n, shape, strides, acc, alpha, beta, FORM,
              SLOPE, ACTIVATION, JOINED)
