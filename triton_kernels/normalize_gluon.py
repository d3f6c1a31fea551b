"""Gradients of layer and RMS norms of rows so wide that the sums of their parameters' gradients leave no registers to hold one: they wait
in shared memory, from where they are read twice while the next ones are on their way. A thread reads what it has copied itself.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from .monoids import affine_combine
from .reduce import even, offsets


@gluon.jit
def fill(rings, moments, slot, ptrs, moment_ptrs, m, lane, shape_m, stride_m, M, N, HELD: gl.constexpr, ALIGN: gl.constexpr):
    """Ask for row m of g and of x, in HELD tiles each, and for its statistics; what is behind their ends becomes 0."""
    RANK: gl.constexpr = len(shape_m)
    for k in gl.static_range(HELD):
        n = k * lane.shape[0] + lane
        for t in gl.static_range(2):
            row = ptrs[t] + offsets(m, shape_m, stride_m, (1 + t) * RANK, ALIGN)
            async_copy.async_copy_global_to_shared(rings[t][k].index(slot), gl.max_contiguous(row + n, 8), mask=(m < M) & (n < N))
    one = gl.arange(0, 1, lane.type.layout)
    for t in gl.static_range(2):
        if moment_ptrs[t] is not None:
            row = moment_ptrs[t] + offsets(m, shape_m, stride_m, (3 + t) * RANK)
            async_copy.async_copy_global_to_shared(moments[t].index(slot), row + one, mask=(m + one < M))
    async_copy.commit_group()


@gluon.jit
def tiles(rings, weights, slot, k, mean, rstd, layout: gl.constexpr):
    """Tile k of g, of g·w and of x̂."""
    g = rings[0][k].index(slot).load(layout).to(gl.float32)
    x = rings[1][k].index(slot).load(layout).to(gl.float32)
    gw = g
    if weights is not None:
        gw *= weights.index(k).load(layout).to(gl.float32)
    return g, gw, gl.fma(x, rstd, -mean * rstd)


@gluon.jit
def row_sums(rings, weights, slot, mean, rstd, lane, HELD: gl.constexpr):
    """Σ g·w and Σ g·w·x̂ of a row."""
    layout: gl.constexpr = lane.type.layout
    shift = gl.zeros(lane.shape, gl.float32, layout)
    slope = gl.zeros(lane.shape, gl.float32, layout)
    for k in gl.static_range(HELD):
        g, scaled, x = tiles(rings, weights, slot, k, mean, rstd, layout)
        shift += scaled
        slope += scaled * x
    return gl.reduce((shift, slope), 0, affine_combine)


@gluon.jit
def norm_backward_gluon_kernel(
    gx_ptr, gw_ptr, gb_ptr, g_ptr, x_ptr, mean_ptr, rstd_ptr, w_ptr, shape_m, stride_m, M, N,
    CENTER: gl.constexpr, BLOCK_N: gl.constexpr, HELD: gl.constexpr, STAGES: gl.constexpr, ALIGN: gl.constexpr,
):
    """norm_backward_kernel with PARTIAL, of rows whose columns are next to each other: gx of all rows, and of gw and gb a line of
    (programs, N) each. STAGES rows are in shared memory, or on their way there, in tiles that the compiler can tell apart: it puts a
    barrier before what may overwrite what was read. The weights are there too: beside rows the first cache is too small for them, and to
    wait for the second one, twice a row, took 274 µs, not 233
    (8192 rows of 16384 in bfloat16 on an H200). Long, as each row is walked along twice."""
    N = even(N, ALIGN)
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [gl.num_warps()], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lane = gl.arange(0, BLOCK_N, layout)
    rings, gw, gb = ((), ()), (), ()
    for _ in gl.static_range(HELD):
        rings = (rings[0] + (gl.allocate_shared_memory(g_ptr.dtype.element_ty, [STAGES, BLOCK_N], shared),),
                 rings[1] + (gl.allocate_shared_memory(x_ptr.dtype.element_ty, [STAGES, BLOCK_N], shared),))
        gw = gw + (gl.zeros((BLOCK_N,), gl.float32, layout),)
        gb = gb + (gl.zeros((BLOCK_N,), gl.float32, layout),)
    moments = (gl.allocate_shared_memory(gl.float32, [STAGES, 1], shared), gl.allocate_shared_memory(gl.float32, [STAGES, 1], shared))
    weights = None
    if w_ptr is not None:
        weights = gl.allocate_shared_memory(w_ptr.dtype.element_ty, [HELD, BLOCK_N], shared)
        for k in gl.static_range(HELD):
            n = k * BLOCK_N + lane
            weights.index(k).store(gl.load(gl.max_contiguous(w_ptr + n, 8), mask=n < N, other=0))
    step = gl.num_programs(0)
    for s in gl.static_range(STAGES - 1):
        fill(rings, moments, s, (g_ptr, x_ptr), (mean_ptr, rstd_ptr), (gl.program_id(0) + s * step).to(gl.int64), lane, shape_m, stride_m,
             M, N, HELD, ALIGN)
    slot = 0
    for i in range(gl.program_id(0), M, step):
        m = i.to(gl.int64)
        async_copy.wait_group(STAGES - 2)
        fill(rings, moments, (slot + STAGES - 1) % STAGES, (g_ptr, x_ptr), (mean_ptr, rstd_ptr), m + (STAGES - 1) * step, lane, shape_m,
             stride_m, M, N, HELD, ALIGN)
        rstd = moments[1].index(slot).load(layout)
        mean = moments[0].index(slot).load(layout) if mean_ptr is not None else gl.zeros((1,), gl.float32, layout)
        shift, slope = row_sums(rings, weights, slot, mean, rstd, lane, HELD)
        shift, slope = shift / N * rstd if CENTER else 0.0, slope / N * rstd
        more_w, more_b = (), ()
        for k in gl.static_range(HELD):
            n = k * BLOCK_N + lane
            g, scaled, x = tiles(rings, weights, slot, k, mean, rstd, layout)
            more_w, more_b = more_w + (gw[k] + g * x,), more_b + (gb[k] + g,)
            gx = scaled * rstd - (x * slope + shift)
            gl.store(gl.max_contiguous(gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN) + n, 8), gx.to(gx_ptr.dtype.element_ty), mask=n < N)
        gw, gb = more_w, more_b
        slot = (slot + 1) % STAGES
    async_copy.wait_group(0)
    for k in gl.static_range(HELD):
        n = k * BLOCK_N + lane
        gl.store(gw_ptr + gl.program_id(0) * N + n, gw[k], mask=n < N)
        if gb_ptr is not None:
            gl.store(gb_ptr + gl.program_id(0) * N + n, gb[k], mask=n < N)
