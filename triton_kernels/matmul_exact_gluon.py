"""matmul_exact.py on Hopper with the schedule written out: a warp loads, two groups of warps multiply 64 rows each of a tile of 128.

A slot of the ring holds the three parts of both operands for BLOCK_K elements. The six products of a slot are queued at once and waited for
once; while one group adds its sums to the result, the other keeps the matrix units busy.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from .matmul import activated, epilogue
from .matmul_exact import in_range
from .matmul_gluon import after, load, place
from .quick import after_the_one_before

ROWS = gl.constexpr(64)                                  # of one group of warps


@gluon.jit
def load_parts(desc, bufs, first, ready, batch, step, row, column, PARTS: gl.constexpr, EACH: gl.constexpr, TURNED: gl.constexpr):
    """PARTS parts of a tile into buffers first, first + EACH …"""
    for part in gl.static_range(PARTS):
        place = [batch + part * step, column, row] if TURNED else [batch + part * step, row, column]
        load(desc, place, ready, bufs.index(first + part * EACH).reshape(desc.block_type.shape))


@gluon.jit
def produce(a_desc, b_desc, ring, shape, total, step_a, step_b, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, SHARED_A: gl.constexpr,
            SHARED_B: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
            GROUP_M: gl.constexpr, STAGES: gl.constexpr):
    """The loading warp."""
    a_bufs, b_bufs, empty, ready = ring
    slot, phase = 0, 1                                   # all slots are empty at first
    for tile in range(gl.program_id(0), total, PROGRAMS):
        batch, m, n = place(tile, shape, BLOCK_M, BLOCK_N, GROUP_M)
        at_a = batch * 0 if SHARED_A else batch
        at_b = batch * 0 if SHARED_B else batch
        for k in range(0, shape[3], BLOCK_K):
            mbarrier.wait(empty.index(slot), phase)
            full = ready.index(slot)
            mbarrier.expect(full, 6 * a_desc.block_type.nbytes + 3 * b_desc.block_type.nbytes)
            load_parts(a_desc, a_bufs, slot * 6, full, at_a, step_a, m, k, 3, 2, TRANS_A)
            load_parts(a_desc, a_bufs, slot * 6 + 1, full, at_a, step_a, m + ROWS, k, 3, 2, TRANS_A)
            load_parts(b_desc, b_bufs, slot * 3, full, at_b, step_b, k, n, 3, 1, TRANS_B)
            slot, phase = after(slot, phase, 1, STAGES)


@gluon.jit
def part(bufs, i, TURNED: gl.constexpr):
    buf = bufs.index(i)
    return buf.permute((1, 0)) if TURNED else buf


@gluon.jit
def consume(out_ptr, pre_ptr, c_ptr, strides, ring, shape, total, alpha, beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr,
            FORM: gl.constexpr, SLOPE: gl.constexpr, ACTIVATION: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK_M: gl.constexpr,
            BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, HALF: gl.constexpr):
    """Rows ROWS · HALF and on of every tile."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    a_bufs, b_bufs, empty, ready = ring
    stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn = strides
    slot, phase = 0, 0
    for tile in range(gl.program_id(0), total, PROGRAMS):
        batch, m, n = place(tile, shape, BLOCK_M, BLOCK_N, GROUP_M)
        acc = gl.zeros((ROWS, BLOCK_N), gl.float32, layout)
        for _ in range(0, shape[3], BLOCK_K):
            mbarrier.wait(ready.index(slot), phase)
            a, b = slot * 6 + HALF, slot * 3             # high parts; middle and low ones lie behind them
            some = gl.zeros((ROWS, BLOCK_N), gl.float32, layout)
            some = warpgroup_mma(part(a_bufs, a + 4, TRANS_A), part(b_bufs, b, TRANS_B), some, use_acc=False, is_async=True)
            some = warpgroup_mma(part(a_bufs, a, TRANS_A), part(b_bufs, b + 2, TRANS_B), some, is_async=True)
            some = warpgroup_mma(part(a_bufs, a + 2, TRANS_A), part(b_bufs, b + 1, TRANS_B), some, is_async=True)
            some = warpgroup_mma(part(a_bufs, a + 2, TRANS_A), part(b_bufs, b, TRANS_B), some, is_async=True)
            some = warpgroup_mma(part(a_bufs, a, TRANS_A), part(b_bufs, b + 1, TRANS_B), some, is_async=True)
            some = warpgroup_mma(part(a_bufs, a, TRANS_A), part(b_bufs, b, TRANS_B), some, is_async=True)
            some = warpgroup_mma_wait(num_outstanding=0, deps=(some, ))
            mbarrier.arrive(empty.index(slot), count=1)
            acc += some
            slot, phase = after(slot, phase, 1, STAGES)
        rm = m + ROWS * HALF + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        rn = n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
        value = epilogue(acc, c_ptr, batch.to(gl.int64) * stride_cb, rm, rn, stride_cm, stride_cn, shape[1], shape[2], alpha, beta,
                         gl.float32, FORM, SLOPE)
        value = gl.convert_layout(value, acc.type.layout, assert_trivial=True)               # which dropout calls by another name
        mask = (rm < shape[1])[:, None] & (rn < shape[2])[None, :]
        offsets = batch.to(gl.int64) * stride_ob + (rm.to(gl.int64)[:, None] * stride_om + rn.to(gl.int64)[None, :] * stride_on)
        if pre_ptr is not None:
            gl.store(pre_ptr + offsets, value, mask=mask)
        gl.store(out_ptr + offsets, activated(value, ACTIVATION), mask=mask)


@gluon.jit
def matmul_exact_gluon_kernel(out_ptr, pre_ptr, verdict_ptr, a_desc, b_desc, c_ptr, range_ptr, stride_ob, stride_om, stride_on, stride_cb,
                              stride_cm, stride_cn, BATCH, M, N, K, bits_k, alpha, beta, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr,
                              SHARED_A: gl.constexpr, SHARED_B: gl.constexpr, FORM: gl.constexpr, SLOPE: gl.constexpr,
                              ACTIVATION: gl.constexpr, PROGRAMS_A: gl.constexpr, PROGRAMS_SPLIT: gl.constexpr, PROGRAMS: gl.constexpr,
                              BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
                              STAGES: gl.constexpr, launch_pdl: gl.constexpr = False):
    """Grid: PROGRAMS. What matmul_exact_kernel takes, but that a's descriptor is of ROWS rows."""
    after_the_one_before(launch_pdl)
    i = gl.arange(0, PROGRAMS_SPLIT, gl.BlockedLayout([4], [32], [4], [0]))
    good = in_range(range_ptr, i, bits_k, PROGRAMS_A, PROGRAMS_SPLIT)
    if gl.program_id(0) == 0:
        gl.store(verdict_ptr, 1 - good.to(gl.int32))
    T: gl.constexpr = a_desc.dtype
    A: gl.constexpr = [BLOCK_K, ROWS] if TRANS_A else [ROWS, BLOCK_K]
    B: gl.constexpr = [BLOCK_N, BLOCK_K] if TRANS_B else [BLOCK_K, BLOCK_N]
    a_bufs = gl.allocate_shared_memory(T, [STAGES * 6, A[0], A[1]], gl.NVMMASharedLayout.get_default_for(A, T))
    b_bufs = gl.allocate_shared_memory(T, [STAGES * 3, B[0], B[1]], gl.NVMMASharedLayout.get_default_for(B, T))
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(empty.index(slot), count=2)
        mbarrier.init(ready.index(slot), count=1)
    fence_async_shared()
    ring, shape = (a_bufs, b_bufs, empty, ready), (BATCH, M, N, K)
    strides = (stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * BATCH
    total = gl.where(good, tiles, 0)
    step_a = 1 if SHARED_A else BATCH
    step_b = 1 if SHARED_B else BATCH
    gl.warp_specialize([
        (consume, (out_ptr, pre_ptr, c_ptr, strides, ring, shape, total, alpha, beta, TRANS_A, TRANS_B, FORM, SLOPE, ACTIVATION, PROGRAMS,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, 0)),
        (consume, (out_ptr, pre_ptr, c_ptr, strides, ring, shape, total, alpha, beta, TRANS_A, TRANS_B, FORM, SLOPE, ACTIVATION, PROGRAMS,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, 1)),
        (produce, (a_desc, b_desc, ring, shape, total, step_a, step_b, TRANS_A, TRANS_B, SHARED_A, SHARED_B, PROGRAMS, BLOCK_M, BLOCK_N,
                   BLOCK_K, GROUP_M, STAGES)),
    ], [4, 1], [232, 40])
