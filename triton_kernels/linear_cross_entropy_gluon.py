"""loss_and_gradient_kernel of linear_cross_entropy.py for rows of 16-bit logits that wait in shared memory, without label smoothing.

There the row is read twice from memory's caches, and while a program adds up, nothing of it is on its way. Here a program owns some of the
rows: one comes in HELD tiles by asynchronous copies, is read twice from shared memory, and once a tile's gradient is on its way out the
same tile of the next row is asked for. Each tile has memory of its own: in one for all the compiler cannot tell what is asked for from
what is read next, and has all threads meet three times a tile, not twice (618 µs, not 452, are predicted for 8192 rows of 50304 on an
H200). exp(x - lse) is 2^(x · log₂e - lse · log₂e) in one multiplication and addition: what it rounds is less than what x has lost as a
number of 16 bits.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra import libdevice

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def ask(tiles, k, x_row, n, WIDTH, wanted):
    """Let tile k of a row come; beyond its WIDTH there are zeros."""
    async_copy.async_copy_global_to_shared(tiles[k], gl.max_contiguous(x_row + n, 8), mask=wanted & (n < WIDTH))
    async_copy.commit_group()


@gluon.jit
def finite(high):
    return gl.where(high == float("-inf"), 0.0, high)


@gluon.jit
def sum_of_exponentials(tiles, lane, N, HELD: gl.constexpr):
    """The largest logit of the row that comes, and the sum of exponentials relative to it; each thread has its own until the end."""
    BLOCK_N: gl.constexpr = lane.shape[0]
    LANES: gl.constexpr = BLOCK_N // 8
    eights: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [gl.num_warps(), 1], [1, 0])
    top = gl.full((LANES,), float("-inf"), gl.float32, gl.SliceLayout(1, eights))
    total = gl.zeros((LANES,), gl.float32, gl.SliceLayout(1, eights))
    for k in gl.static_range(HELD):
        async_copy.wait_group(HELD - 1 - k)
        x = tiles[k].load(lane.type.layout).to(gl.float32)
        if k == HELD - 1:
            x = gl.where(k * BLOCK_N + lane < N, x, float("-inf"))
        x = gl.convert_layout(x.reshape((LANES, 8)), eights, assert_trivial=True)
        high = gl.maximum(top, gl.max(x, 1))
        shift = finite(high) * LOG2E
        total = total * libdevice.exp2(top * LOG2E - shift) + gl.sum(libdevice.exp2(x * LOG2E - shift[:, None]), 1)
        top = high
    high = gl.max(top, 0)
    return high, gl.sum(total * libdevice.exp2((top - finite(high)) * LOG2E), 0)


@gluon.jit
def chosen(x_ptr, target_ptr, w_ptr, m, M, stride_xm, stride_target, N, ignore_index):
    """Of row m: the target, whether it is a class or at least to be ignored, its logit and weight, which is 0 where the row does not
    count."""
    target = gl.load(target_ptr + m * stride_target, mask=m < M, other=ignore_index).to(gl.int64)
    known = (target >= 0) & (target < N)
    counts = known & (target != ignore_index) & (m < M)
    picked = gl.load(x_ptr + m * stride_xm + target, mask=counts, other=0).to(gl.float32)
    hit = gl.where(counts, 1.0, 0.0)
    if w_ptr is not None:
        hit = gl.load(w_ptr + target, mask=counts, other=0).to(gl.float32)
    return target, known | (target == ignore_index), counts, picked, hit


@gluon.jit
def loss_and_gradient_gluon_kernel(
    loss_ptr, weight_ptr, gx_ptr, word_ptr, x_ptr, target_ptr, w_ptr, scale_ptr, stride_gxm, stride_xm, stride_target, M, N, WIDTH,
    ignore_index, number, SCALED: gl.constexpr, BLOCK_N: gl.constexpr, HELD: gl.constexpr,
):
    """Rows of WIDTH >= N numbers of which each begins at a multiple of 16 bytes, WIDTH a multiple of 8; HELD * BLOCK_N >= N, so that the
    last tile alone is not whole. Grid: as many programs as there are on the GPU at once. Long, since rows come while others are read."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [gl.num_warps()], [0])
    lane = gl.arange(0, BLOCK_N, layout)
    tiles = ()
    for _ in gl.static_range(HELD):
        tiles = tiles + (gl.allocate_shared_memory(x_ptr.dtype.element_ty, [BLOCK_N], gl.SwizzledSharedLayout(1, 1, 1, [0])), )
    scale, bits = 1.0, 0.0
    if scale_ptr is not None:
        scale = gl.load(scale_ptr)
        if SCALED:
            bits = libdevice.fast_log2f(scale)                   # exp(x - lse) times the scale costs nothing
    step, first = gl.num_programs(0), gl.program_id(0).to(gl.int64)
    for k in gl.static_range(HELD):
        ask(tiles, k, x_ptr + first * stride_xm, k * BLOCK_N + lane, WIDTH, first < M)
    target, known, counts, picked, hit = chosen(x_ptr, target_ptr, w_ptr, first, M, stride_xm, stride_target, N, ignore_index)
    for i in range(gl.program_id(0), M, step):
        m = i.to(gl.int64)
        after, gx_row = m + step, gx_ptr + m * stride_gxm
        following = chosen(x_ptr, target_ptr, w_ptr, after, M, stride_xm, stride_target, N, ignore_index)
        if word_ptr is not None:
            if known == 0:
                gl.store(word_ptr, number)
                gl.store(word_ptr + 1, target)
        top, total = sum_of_exponentials(tiles, lane, N, HELD)
        log_total = gl.where(total == 0, 0.0, libdevice.fast_log2f(total) * LN2)
        gl.store(weight_ptr + m, hit)
        loss = gl.where(counts, hit * (log_total + (top - picked)), 0.0)         # in this order large logits cancel exactly
        gl.store(loss_ptr + m, loss * scale)                                     # NaN where no row counts
        lse = (top + log_total) * LOG2E
        shift, mass = lse - bits, hit
        if SCALED:
            mass = hit * scale
        for k in gl.static_range(HELD):
            n = k * BLOCK_N + lane
            x = tiles[k].load(layout).to(gl.float32)
            gx = libdevice.exp2(x * LOG2E - shift)
            if w_ptr is not None:
                gx *= hit
            gx = gl.where(counts, gx, 0.0)
            gl.store(gl.max_contiguous(gx_row + n, 8), gx.to(gx_ptr.dtype.element_ty), mask=n < WIDTH)
            ask(tiles, k, x_ptr + after * stride_xm, n, WIDTH, after < M)
        gl.thread_barrier()                                      # the gradient of all classes is there: now the target's is replaced
        gl.store(gx_row + target, (libdevice.exp2(picked * LOG2E - lse) * mass - mass).to(gx_ptr.dtype.element_ty), mask=counts)
        target, known, counts, picked, hit = following
    async_copy.wait_group(0)
