"""float32 products from bfloat16 parts on Hopper in one kernel: matmul_exact.py says what the parts are and why they do.

TMA brings blocks of K as they are, STAGES at a time. While the matrix units multiply the parts of one block, six products that are queued at
once, the same warps cut the next block into parts, into the other of two buffers: the cutting, which every tile does for itself, hides
behind the products, and nobody writes parts to memory or reads them from there. Numbers of which parts cannot say all become NaN; a tile
whose sums are not finite is summed up once more, as float32 units do it. CAREFUL is that of `sum_of_parts`.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from triton_kernels.matmul import INFINITE, marked_parts
from triton_kernels.matmul_exact_gluon import part
from triton_kernels.matmul_gluon import place
from triton_kernels.matmul_small_gluon import fill, first_fill, store_tile


@gluon.jit
def cut(buf, bufs, first, WARPS: gl.constexpr):
    """The parts of a block into buffers first (high), first + 1 and first + 2."""
    COLUMNS: gl.constexpr = buf.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [128 // COLUMNS, COLUMNS // 4], [WARPS, 1], [1, 0])
    high, middle, low = marked_parts(buf.load(layout))
    bufs.index(first).store(high)
    bufs.index(first + 1).store(middle)
    bufs.index(first + 2).store(low)


@gluon.jit
def cut_both(ring, parts, i, turn, STAGES: gl.constexpr, WARPS: gl.constexpr):
    """The parts of block i of K of both operands, once it has come."""
    slot = i % STAGES
    mbarrier.wait(ring[2].index(slot), i // STAGES & 1)
    cut(ring[0].index(slot), parts[0], 3 * turn, WARPS)
    cut(ring[1].index(slot), parts[1], 3 * turn, WARPS)
    fence_async_shared()


@gluon.jit
def begin_products(parts, turn, some, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):
    """Queue the six products of a block, the small ones first."""
    a_bufs, b_bufs = parts
    i = 3 * turn
    some = warpgroup_mma(part(a_bufs, i + 2, TRANS_A), part(b_bufs, i, TRANS_B), some, use_acc=False, is_async=True)
    some = warpgroup_mma(part(a_bufs, i, TRANS_A), part(b_bufs, i + 2, TRANS_B), some, is_async=True)
    some = warpgroup_mma(part(a_bufs, i + 1, TRANS_A), part(b_bufs, i + 1, TRANS_B), some, is_async=True)
    some = warpgroup_mma(part(a_bufs, i + 1, TRANS_A), part(b_bufs, i, TRANS_B), some, is_async=True)
    some = warpgroup_mma(part(a_bufs, i, TRANS_A), part(b_bufs, i + 1, TRANS_B), some, is_async=True)
    return warpgroup_mma(part(a_bufs, i, TRANS_A), part(b_bufs, i, TRANS_B), some, is_async=True)


@gluon.jit
def added(acc, lost, some, CAREFUL: gl.constexpr):
    """acc + some, and with CAREFUL what was lost there so far."""
    total = acc + some
    if CAREFUL:
        there = total - acc
        lost += (acc - (total - there)) + (some - there)
    return total, lost


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
def matmul_parts_gluon_kernel(out_ptr, pre_ptr, a_desc, b_desc, a_ptr, b_ptr, c_ptr, stride_os, stride_ob, stride_om, stride_on, stride_ab,
                              stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, BATCH, M, N, K,
                              K_SPAN, alpha, beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, SHARED_A: gl.constexpr,
                              SHARED_B: gl.constexpr, FORM: gl.constexpr, SLOPE: gl.constexpr, ACTIVATION: gl.constexpr,
                              CAREFUL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                              GROUP_M: gl.constexpr, STAGES: gl.constexpr, launch_pdl: gl.constexpr = False):
    """Grid: (tiles · BATCH, splits); what matmul_small_gluon_kernel takes, and where both operands lie."""
    WARPS: gl.constexpr = gl.num_warps()
    A: gl.constexpr = [BLOCK_K, BLOCK_M] if TRANS_A else [BLOCK_M, BLOCK_K]
    B: gl.constexpr = [BLOCK_N, BLOCK_K] if TRANS_B else [BLOCK_K, BLOCK_N]
    F: gl.constexpr = gl.float32
    H: gl.constexpr = gl.bfloat16
    a_bufs = gl.allocate_shared_memory(F, [STAGES, A[0], A[1]], gl.NVMMASharedLayout.get_default_for(A, F))
    b_bufs = gl.allocate_shared_memory(F, [STAGES, B[0], B[1]], gl.NVMMASharedLayout.get_default_for(B, F))
    a_parts = gl.allocate_shared_memory(H, [6, A[0], A[1]], gl.NVMMASharedLayout.get_default_for(A, H))
    b_parts = gl.allocate_shared_memory(H, [6, B[0], B[1]], gl.NVMMASharedLayout.get_default_for(B, H))
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ring, parts, shape, split = (a_bufs, b_bufs, ready), (a_parts, b_parts), (BATCH, M, N, K), gl.program_id(1)
    batch, m, n = place(gl.program_id(0), shape, BLOCK_M, BLOCK_N, GROUP_M)
    start = split * K_SPAN
    end = gl.minimum(start + K_SPAN, K)
    steps = gl.cdiv(end - start, BLOCK_K)
    at = (batch * 0 if SHARED_A else batch, m, batch * 0 if SHARED_B else batch, n)
    first_fill(a_desc, b_desc, ring, at, start, steps, TRANS_A, TRANS_B, BLOCK_K, STAGES, launch_pdl)
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BLOCK_N, 16])
    acc = gl.zeros((BLOCK_M, BLOCK_N), F, layout)
    lost, some = acc, acc
    cut_both(ring, parts, 0, 0, STAGES, WARPS)
    gl.thread_barrier()
    fill(a_desc, b_desc, ring, 0, at, start + STAGES * BLOCK_K, STAGES < steps, TRANS_A, TRANS_B)
    for i in range(steps - 1):
        some = begin_products(parts, i & 1, some, TRANS_A, TRANS_B)
        cut_both(ring, parts, i + 1, 1 - (i & 1), STAGES, WARPS)
        some = warpgroup_mma_wait(num_outstanding=0, deps=(some, ))
        acc, lost = added(acc, lost, some, CAREFUL)
        gl.thread_barrier()                              # all warps have cut block i + 1, and need the parts before no more
        later = i + 1 + STAGES
        fill(a_desc, b_desc, ring, later % STAGES, at, start + later * BLOCK_K, later < steps, TRANS_A, TRANS_B)
    some = begin_products(parts, (steps - 1) & 1, some, TRANS_A, TRANS_B)
    some = warpgroup_mma_wait(num_outstanding=0, deps=(some, ))
    acc, lost = added(acc, lost, some, CAREFUL)
    if CAREFUL:
        acc += lost
    largest = gl.max(gl.max(acc.to(gl.int32, bitcast=True) & INFINITE, 1), 0)
    if largest == INFINITE:
        operands = (a_ptr, b_ptr, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn)
        acc = sum_by_units(operands, batch, m, n, shape, start, end, BLOCK_M, BLOCK_N, layout)
    strides = (stride_os, stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn)
    store_tile(out_ptr, pre_ptr, c_ptr, split, batch, m, n, shape, strides, acc, alpha, beta, FORM, SLOPE, ACTIVATION)
