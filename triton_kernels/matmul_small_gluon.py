"""Small and narrow matrix products on Hopper: a program for each tile, or piece of K of one, and as much as possible on its way at once.

Where a product takes a few µs, what comes before the first load and after the last product is most of it. So no warp has a role of its own:
one thread asks for STAGES blocks of K by TMA, all there are if they fit (WHOLE), and everybody multiplies them as they arrive. Descriptors
are those of matmul_persistent.py, the epilogue is that of matmul.py. Pieces of K are joined as matmul_joined.py says; where they are too
many for that, piece s leaves its sums at s · stride_os, for split_sum_kernel.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from .matmul import activated, epilogue
from .matmul_gluon import load
from .matmul_joined import comes_last, joined, place_in_part
from .quick import after_the_one_before, let_the_next_begin

AT_ONCE = gl.constexpr(64 * 128)                         # numbers of parts that a program has on their way at a time


@gluon.jit
def spot(BATCH, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Split, matrix, row and column of a program's tile, by its place in the grid: to divide takes hundreds of cycles before the first
    load."""
    return gl.program_id(2) // BATCH, gl.program_id(2) % BATCH, gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N


@gluon.jit
def load_both(a_desc, b_desc, a, b, full, at, k, wanted, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):
    """Load the blocks of a and b from element k of K on into two buffers, if they are wanted; at: of a matrix and a row, of b and a
    column."""
    at_a, m, at_b, n = at
    mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=wanted)
    a, b = a.reshape(a_desc.block_type.shape), b.reshape(b_desc.block_type.shape)
    load(a_desc, [at_a, k, m] if TRANS_A else [at_a, m, k], full, a, pred=wanted)
    load(b_desc, [at_b, n, k] if TRANS_B else [at_b, k, n], full, b, pred=wanted)


@gluon.jit
def fill(a_desc, b_desc, ring, slot, at, k, wanted, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr):
    """The same into a slot."""
    a_bufs, b_bufs, ready = ring
    load_both(a_desc, b_desc, a_bufs.index(slot), b_bufs.index(slot), ready.index(slot), at, k, wanted, TRANS_A, TRANS_B)


@gluon.jit
def first_fill(a_desc, b_desc, ring, at, start, steps, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr, BLOCK_K: gl.constexpr,
               STAGES: gl.constexpr, launch_pdl: gl.constexpr):
    """Make the barriers and fill the ring, slot by slot: all warps meet behind each barrier that is made, so the others come after the
    first load."""
    for slot in gl.static_range(STAGES):
        mbarrier.init(ring[2].index(slot), count=1)
        fence_async_shared()
        if slot == 0:
            after_the_one_before(launch_pdl)
        fill(a_desc, b_desc, ring, slot, at, start + slot * BLOCK_K, slot < steps, TRANS_A, TRANS_B)
    gl.thread_barrier()


@gluon.jit
def store_tile(out_ptr, pre_ptr, c_ptr, split, batch, m, n, shape, strides, acc, alpha, beta, FORM: gl.constexpr, SLOPE: gl.constexpr,
               ACTIVATION: gl.constexpr):
    """The epilogue of a tile, from the registers that its sums are in."""
    stride_os, stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn = strides
    rm = m + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
    rn = n + gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))
    value = epilogue(acc, c_ptr, batch.to(gl.int64) * stride_cb, rm, rn, stride_cm, stride_cn, shape[1], shape[2], alpha, beta,
                     out_ptr.dtype.element_ty, FORM, SLOPE)
    value = gl.convert_layout(value, acc.type.layout, assert_trivial=True)                   # which dropout calls by another name
    mask = (rm < shape[1])[:, None] & (rn < shape[2])[None, :]
    offsets = split.to(gl.int64) * stride_os + batch.to(gl.int64) * stride_ob + (
        rm.to(gl.int64)[:, None] * stride_om + rn.to(gl.int64)[None, :] * stride_on)
    if pre_ptr is not None:
        gl.store(pre_ptr + offsets, value, mask=mask)
    gl.store(out_ptr + offsets, activated(value, ACTIVATION), mask=mask)


@gluon.jit
def store_joined(out_ptr, pre_ptr, part_ptr, c_ptr, batch, m, n, shape, strides, alpha, beta, FORM: gl.constexpr, SLOPE: gl.constexpr,
                 ACTIVATION: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, JOINED: gl.constexpr):
    """The same of the sum of a tile's parts, some columns at a time."""
    WARPS: gl.constexpr = gl.num_warps()
    WIDTH: gl.constexpr = max(min(AT_ONCE // (2 if JOINED == 2 else 4) // BLOCK_M, BLOCK_N), 8)
    LANES: gl.constexpr = min(WIDTH // 4, 8)
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    rows = gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout))[:, None]
    for i in gl.static_range(BLOCK_N // WIDTH):
        columns = i * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
        mask = (m + rows < shape[1]) & (n + columns < shape[2])
        acc = joined(part_ptr + place_in_part(rows, columns, BLOCK_N), mask, BLOCK_M * BLOCK_N, JOINED)
        store_tile(out_ptr, pre_ptr, c_ptr, batch * 0, batch, m, n + i * WIDTH, shape, strides, acc, alpha, beta, FORM, SLOPE, ACTIVATION)


@gluon.jit
def join_tile(out_ptr, pre_ptr, part_ptr, counter_ptr, c_ptr, tile, split, batch, m, n, shape, strides, acc, alpha, beta,
              FORM: gl.constexpr, SLOPE: gl.constexpr, ACTIVATION: gl.constexpr, JOINED: gl.constexpr):
    """The same of a tile of which JOINED programs have a piece of K each, for the last of them."""
    if JOINED == 1:
        store_tile(out_ptr, pre_ptr, c_ptr, split, batch, m, n, shape, strides, acc, alpha, beta, FORM, SLOPE, ACTIVATION)
    else:
        BLOCK_M: gl.constexpr = acc.shape[0]
        BLOCK_N: gl.constexpr = acc.shape[1]
        SIZE: gl.constexpr = BLOCK_M * BLOCK_N
        rows = gl.arange(0, BLOCK_M, gl.SliceLayout(1, acc.type.layout))[:, None]
        columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, acc.type.layout))[None, :]
        part_ptr += tile * (JOINED * SIZE)
        mask = (m + rows < shape[1]) & (n + columns < shape[2])
        if comes_last(part_ptr + (split * SIZE + place_in_part(rows, columns, BLOCK_N)), acc, mask, counter_ptr + tile, JOINED):
            store_joined(out_ptr, pre_ptr, part_ptr, c_ptr, batch, m, n, shape, strides, alpha, beta, FORM, SLOPE, ACTIVATION, BLOCK_M,
                         BLOCK_N, JOINED)
            gl.store(counter_ptr + tile, 0)


@gluon.jit
def matmul_small_gluon_kernel(out_ptr, pre_ptr, part_ptr, counter_ptr, a_desc, b_desc, c_ptr, stride_os, stride_ob, stride_om, stride_on,
                              stride_cb, stride_cm, stride_cn, BATCH, M, N, K, K_SPAN, alpha, beta, TRANS_A: gl.constexpr,
                              TRANS_B: gl.constexpr, SHARED_A: gl.constexpr, SHARED_B: gl.constexpr, FORM: gl.constexpr,
                              SLOPE: gl.constexpr, ACTIVATION: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                              BLOCK_K: gl.constexpr, STAGES: gl.constexpr, WHOLE: gl.constexpr, JOINED: gl.constexpr,
                              launch_pdl: gl.constexpr = False):
    """Grid: (rows of tiles, columns of tiles, splits · BATCH). WHOLE: no program has more than STAGES blocks of K."""
    T: gl.constexpr = a_desc.dtype
    A: gl.constexpr = [BLOCK_K, BLOCK_M] if TRANS_A else [BLOCK_M, BLOCK_K]
    B: gl.constexpr = [BLOCK_N, BLOCK_K] if TRANS_B else [BLOCK_K, BLOCK_N]
    a_bufs = gl.allocate_shared_memory(T, [STAGES, A[0], A[1]], gl.NVMMASharedLayout.get_default_for(A, T))
    b_bufs = gl.allocate_shared_memory(T, [STAGES, B[0], B[1]], gl.NVMMASharedLayout.get_default_for(B, T))
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ring, shape = (a_bufs, b_bufs, ready), (BATCH, M, N, K)
    split, batch, m, n = spot(BATCH, BLOCK_M, BLOCK_N)
    start = split * K_SPAN
    steps = gl.cdiv(gl.minimum(K_SPAN, K - start), BLOCK_K)
    at = (batch * 0 if SHARED_A else batch, m, batch * 0 if SHARED_B else batch, n)
    first_fill(a_desc, b_desc, ring, at, start, steps, TRANS_A, TRANS_B, BLOCK_K, STAGES, launch_pdl)
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_N, 16])
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout)
    for i in range(steps):
        slot = i % STAGES
        mbarrier.wait(ready.index(slot), i // STAGES & 1)
        a, b = a_bufs.index(slot), b_bufs.index(slot)
        acc = warpgroup_mma(a.permute((1, 0)) if TRANS_A else a, b.permute((1, 0)) if TRANS_B else b, acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc, ))
        if not WHOLE:
            gl.thread_barrier()                          # all warps have multiplied the slot before this one
            later = i + STAGES - 1
            fill(a_desc, b_desc, ring, later % STAGES, at, start + later * BLOCK_K, (i > 0) & (later < steps), TRANS_A, TRANS_B)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc, ))
    let_the_next_begin(launch_pdl)
    strides = (stride_os, stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn)
    tile = (batch * gl.num_programs(1) + gl.program_id(1)) * gl.num_programs(0) + gl.program_id(0)
    join_tile(out_ptr, pre_ptr, part_ptr, counter_ptr, c_ptr, tile, split, batch, m, n, shape, strides, acc, alpha, beta, FORM, SLOPE,
              ACTIVATION, JOINED)
