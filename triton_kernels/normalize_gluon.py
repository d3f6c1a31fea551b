"""Gradients of layer and RMS norms of rows so wide that the sums of their parameters' gradients leave no registers to hold one: they wait
in shared memory, from where they are read twice while the next ones are on their way. A thread reads what it has copied itself.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from triton_kernels.monoids import affine_combine
from triton_kernels.reduce import even, offsets


@gluon.jit
def fill(rings, slot, ptrs, m, lane, shape_m, stride_m, M, N, HELD: gl.constexpr, ALIGN: gl.constexpr):
    """Ask for row m of g and of x, in HELD tiles each; what is behind their ends becomes 0."""
    BLOCK_N: gl.constexpr = lane.shape[0]
    for k in gl.static_range(HELD):
        n = k * BLOCK_N + lane
        for t in gl.static_range(2):
            row = ptrs[t] + offsets(m, shape_m, stride_m, (1 + t) * len(shape_m), ALIGN)
            async_copy.async_copy_global_to_shared(rings[t].index(slot * HELD + k), gl.max_contiguous(row + n, 8), mask=(m < M) & (n < N))
    async_copy.commit_group()


@gluon.jit
def statistics(mean_ptr, rstd_ptr, m, M, shape_m, stride_m):
    """(mean, rstd) of row m; without means 0."""
    RANK: gl.constexpr = len(shape_m)
    mean = gl.to_tensor(0.0)
    if mean_ptr is not None:
        mean = gl.load(mean_ptr + offsets(m, shape_m, stride_m, 3 * RANK), mask=m < M, other=0)
    return mean, gl.load(rstd_ptr + offsets(m, shape_m, stride_m, 4 * RANK), mask=m < M, other=0)


@gluon.jit
def tiles(rings, slot, k, mean, w_ptr, n, N, HELD: gl.constexpr):
    """Tile k of g, of g·w and of x - mean."""
    g = rings[0].index(slot * HELD + k).load(n.type.layout).to(gl.float32)
    x = rings[1].index(slot * HELD + k).load(n.type.layout).to(gl.float32)
    gw = g
    if w_ptr is not None:
        gw *= gl.load(w_ptr + n, mask=n < N, other=0, eviction_policy="evict_last").to(gl.float32)
    return g, gw, x - mean


@gluon.jit
def row_sums(rings, slot, mean, w_ptr, lane, N, HELD: gl.constexpr):
    """Σ g·w and Σ g·w·(x - mean) of a row."""
    BLOCK_N: gl.constexpr = lane.shape[0]
    layout: gl.constexpr = lane.type.layout
    shift = gl.zeros((BLOCK_N,), gl.float32, layout)
    slope = gl.zeros((BLOCK_N,), gl.float32, layout)
    for k in gl.static_range(HELD):
        g, scaled, x = tiles(rings, slot, k, mean, w_ptr, k * BLOCK_N + lane, N, HELD)
        shift += scaled
        slope += scaled * x
    return gl.reduce((shift, slope), 0, affine_combine)


@gluon.jit
def norm_backward_gluon_kernel(
    gx_ptr, gw_ptr, gb_ptr, g_ptr, x_ptr, mean_ptr, rstd_ptr, w_ptr, shape_m, stride_m, M, N,
    CENTER: gl.constexpr, BLOCK_N: gl.constexpr, HELD: gl.constexpr, STAGES: gl.constexpr, ALIGN: gl.constexpr,
):
    """norm_backward_kernel with PARTIAL, of rows whose columns are next to each other: gx of all rows, and of gw and gb a line of
    (programs, N) each. STAGES rows are in shared memory, or on their way there."""
    N = even(N, ALIGN)
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [gl.num_warps()], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lane = gl.arange(0, BLOCK_N, layout)
    rings = (gl.allocate_shared_memory(g_ptr.dtype.element_ty, [STAGES * HELD, BLOCK_N], shared),
             gl.allocate_shared_memory(x_ptr.dtype.element_ty, [STAGES * HELD, BLOCK_N], shared))
    gw, gb = (), ()
    for _ in gl.static_range(HELD):
        gw = gw + (gl.zeros((BLOCK_N,), gl.float32, layout),)
        gb = gb + (gl.zeros((BLOCK_N,), gl.float32, layout),)
    step = gl.num_programs(0)
    for s in gl.static_range(STAGES - 1):
        fill(rings, s, (g_ptr, x_ptr), (gl.program_id(0) + s * step).to(gl.int64), lane, shape_m, stride_m, M, N, HELD, ALIGN)
    mean, rstd = statistics(mean_ptr, rstd_ptr, gl.program_id(0).to(gl.int64), M, shape_m, stride_m)
    slot = 0
    for i in range(gl.program_id(0), M, step):
        m = i.to(gl.int64)
        async_copy.wait_group(STAGES - 2)
        fill(rings, (slot + STAGES - 1) % STAGES, (g_ptr, x_ptr), m + (STAGES - 1) * step, lane, shape_m, stride_m, M, N, HELD, ALIGN)
        next_mean, next_rstd = statistics(mean_ptr, rstd_ptr, m + step, M, shape_m, stride_m)
        shift, slope = row_sums(rings, slot, mean, w_ptr, lane, N, HELD)
        shift, slope = shift / N * rstd if CENTER else 0.0, slope / N * (rstd * rstd)
        more_w, more_b = (), ()
        for k in gl.static_range(HELD):
            n = k * BLOCK_N + lane
            g, scaled, x = tiles(rings, slot, k, mean, w_ptr, n, N, HELD)
            x *= rstd
            more_w, more_b = more_w + (gw[k] + g * x,), more_b + (gb[k] + g,)
            gx = scaled * rstd - (x * slope + shift)
            gl.store(gl.max_contiguous(gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN) + n, 8), gx.to(gx_ptr.dtype.element_ty), mask=n < N)
        gw, gb, mean, rstd = more_w, more_b, next_mean, next_rstd
        slot = (slot + 1) % STAGES
    async_copy.wait_group(0)
    for k in gl.static_range(HELD):
        n = k * BLOCK_N + lane
        gl.store(gw_ptr + gl.program_id(0) * N + n, gw[k], mask=n < N)
        if gb_ptr is not None:
            gl.store(gb_ptr + gl.program_id(0) * N + n, gb[k], mask=n < N)
