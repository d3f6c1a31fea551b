"""Layer, RMS and group normalization, forward and backward.

    x̂ = (x - mean) · rstd          y = x̂ · w + b
    gx = rstd · (g·w - mean(g·w) - x̂ · mean(g·w·x̂))        gw = Σ g·x̂        gb = Σ g

The statistics are those of a row. A row that fits in registers is read once, a longer one a second time, mostly from the L2 cache.
The weight of column n is n (layer, RMS), or its channel: `row % groups * channels + n // inner` (group norm).
Programs take every num_programs-th block of rows.
"""

import triton
import triton.language as tl

from .monoids import affine_combine
from .reduce import even, offsets
from .rows import again, gradient_tiles, lanes, line, lines, side_by_side, store_lines, thread_sums, zeros


@triton.jit
def parameter(w_ptr, m, start, inside, N, groups, inner, SHARED: tl.constexpr, BLOCK_N: tl.constexpr,
              VEC: tl.constexpr, COPIES: tl.constexpr):
    """The weights of the columns from `start` on: one line for all rows, or where SHARED those of each row's channels. SHARED neighbours
    are of one channel, which is then looked up once for all of them."""
    if SHARED:
        k = start // SHARED + tl.arange(0, BLOCK_N // SHARED)[None, :]
        at = (m % groups) * (N // inner) + k // (inner // SHARED)
        w = tl.load(w_ptr + at, mask=inside & (k * SHARED < N), other=0)
        return tl.reshape(tl.broadcast_to(w[:, :, None], (m.shape[0], BLOCK_N // SHARED, SHARED)), (m.shape[0], BLOCK_N))
    else:
        return line(w_ptr, start, N, BLOCK_N, VEC, COPIES)


@triton.jit
def scaled(y, w_ptr, b_ptr, m, start, inside, N, groups, inner, SHARED: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr,
           VEC: tl.constexpr, COPIES: tl.constexpr):
    """y · w + b, each if there is one. They come last: before, they would take registers, and they are in the cache."""
    if w_ptr is not None:
        y *= parameter(w_ptr, m, start, inside, N, groups, inner, SHARED, BLOCK_N, VEC, COPIES).to(ACC)
    if b_ptr is not None:
        y += parameter(b_ptr, m, start, inside, N, groups, inner, SHARED, BLOCK_N, VEC, COPIES).to(ACC)
    return y


@triton.jit
def row_moments(
    x_rows, lane, shape_n, stride_n, inside, N, eps,
    CENTER: tl.constexpr, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):
    """(mean, 1 / √(var + eps)) of long rows, read once. Squares are summed relative to the mean of the first tile: that is as near
    as (mean - there)² < var · N / BLOCK_N, so the difference of squares keeps its digits."""
    near = tl.zeros((BLOCK_M, 1), ACC)
    if CENTER:
        tile = tl.load(x_rows + offsets(lane, shape_n, stride_n, len(shape_n)), mask=inside & (lane < N), other=0)
        near = tl.sum(tile.to(ACC), 1, keep_dims=True) / tl.minimum(N, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    square = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        n = j + lane
        valid = inside & (n < N)
        x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=0, eviction_policy="evict_last").to(ACC)
        if CENTER:
            x = tl.where(valid, x - near, 0)
            total += x
        square += x * x
    return moments_from(near, total, square, N, eps, CENTER)


@triton.jit
def moments_from(near, total, square, N, eps, CENTER: tl.constexpr):
    """The same from the sums of distances to `near` and of their squares; without CENTER `near` is 0."""
    var = tl.sum(square, 1, keep_dims=True) / N
    if CENTER:
        away = tl.sum(total, 1, keep_dims=True) / N
        var -= away * away
        near += away
    return near, 1 / tl.sqrt(tl.where(var < 0, 0, var) + eps)            # nan stays


@triton.jit
def total_of(xs, ACC: tl.constexpr):
    """The sum of tiles that are a row, and 0 behind its end."""
    total = xs[0].to(ACC)
    for k in tl.static_range(1, len(xs)):
        total += xs[k].to(ACC)
    return total


@triton.jit
def squares(xs, mean, lane, N, ACC: tl.constexpr):
    """The sum of squares of their distances to the mean. Only the last tile passes the end: to ask of all was a tenth of the work."""
    total = None
    for k in tl.static_range(len(xs)):
        x = again(xs[k], ACC) - mean
        if k == len(xs) - 1:
            x = tl.where(k * lane.shape[1] + lane < N, x, 0)
        total = x * x if total is None else total + x * x
    return total


@triton.jit
def norm_kernel(
    out_ptr, mean_ptr, rstd_ptr, x_ptr, w_ptr, b_ptr, shape_m, stride_m, shape_n, stride_n, M, N, groups, inner, eps,
    CENTER: tl.constexpr, SHARED: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LOOP: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
):
    """Normalize rows and keep their statistics. Long, because a row is held in registers or read again.

    max_contiguous keeps a result of another type than x from choosing which thread has which elements, and so in which order a row is
    summed up: its statistics are the same to the last bit."""
    RANK: tl.constexpr = len(shape_m)
    N = even(N, ALIGN)
    lane = lanes(BLOCK_N, WIDE)
    HALF: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth <= 16
    w, b = None, None
    if STAGES > 1 and not LOOP and not SHARED and (HALF or BLOCK_M * BLOCK_N * HELD <= 8192):
        if w_ptr is not None:
            w = lines(w_ptr, N, BLOCK_N, HELD, VEC, COPIES)
        if b_ptr is not None:
            b = lines(b_ptr, N, BLOCK_N, HELD, VEC, COPIES)
    for i in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.num_programs(0), num_stages=1 if LOOP else STAGES):
        m = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        inside = m < M
        out_rows = out_ptr + offsets(m, shape_m, stride_m, 0, ALIGN)
        x_rows = x_ptr + offsets(m, shape_m, stride_m, 3 * RANK, ALIGN)
        mean = tl.zeros((BLOCK_M, 1), ACC)
        if LOOP:
            mean, rstd = row_moments(x_rows, lane, shape_n, stride_n, inside, N, eps, CENTER, ACC, BLOCK_M, BLOCK_N, STAGES)
            for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
                n = j + lane
                valid = inside & (n < N)
                x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=0, eviction_policy="evict_first")
                y = scaled((x.to(ACC) - mean) * rstd, w_ptr, b_ptr, m, j, inside, N, groups, inner, SHARED, ACC, BLOCK_N, VEC, COPIES)
                tl.store(tl.max_contiguous(out_rows + offsets(n, shape_n, stride_n), (1, VEC)), y, mask=valid)
        else:
            xs = ()
            for k in tl.static_range(HELD):
                n = k * BLOCK_N + lane
                valid = inside & (n < N) if k == HELD - 1 else inside
                xs = xs + (tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=0),)
            if CENTER:
                mean = tl.sum(total_of(xs, ACC), 1, keep_dims=True) / N
            rstd = 1 / tl.sqrt(tl.sum(squares(xs, mean, lane, N, ACC), 1, keep_dims=True) / N + eps)
            for k in tl.static_range(HELD):
                n = k * BLOCK_N + lane
                y = (again(xs[k], ACC) - mean) * rstd
                if w is not None:
                    y *= w[k].to(ACC)
                if b is not None:
                    y += b[k].to(ACC)
                y = scaled(y, w_ptr if w is None else None, b_ptr if b is None else None, m, k * BLOCK_N, inside, N, groups, inner, SHARED,
                           ACC, BLOCK_N, VEC, COPIES)
                valid = inside & (n < N) if k == HELD - 1 else inside
                tl.store(tl.max_contiguous(out_rows + offsets(n, shape_n, stride_n), (1, VEC)), y, mask=valid)
        if CENTER:
            tl.store(mean_ptr + offsets(m, shape_m, stride_m, RANK), mean, mask=inside)
        tl.store(rstd_ptr + offsets(m, shape_m, stride_m, 2 * RANK), rstd, mask=inside)


# ------------------------------------------------------------------ groups of channels that are next to each other in memory
@triton.jit
def group_sum(tile):
    """The sum of a tile of (pixels, groups, channels) in each group."""
    return tl.sum(tl.sum(tile, 2, keep_dims=True), 0, keep_dims=True)


@triton.jit
def image_norm_kernel(
    out_ptr, mean_ptr, rstd_ptr, x_ptr, w_ptr, b_ptr, shape_m, stride_m, shape_n, stride_n, N, groups, size, eps,
    ACC: tl.constexpr, WIDE: tl.constexpr, ALIGN: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr, CHANNELS: tl.constexpr,
):
    """Group norm of images whose pixels have their channels side by side: a row is a group of `size` channels, a column one of N pixels.
    A program takes GROUPS neighbours of a sample, and a tile has BLOCK_N pixels of them: what it reads of a pixel is in one piece.
    Long, because what all pixels share stays in registers. Squares are summed relative to about the mean of the first tile, rounded to
    what x is, so that a load can put it where there is nothing."""
    RANK: tl.constexpr = len(shape_m)
    size = even(size, ALIGN)
    lane = tl.arange(0, BLOCK_N)[:, None, None]
    lane = lane.to(tl.int64) if WIDE else lane
    blocks = tl.cdiv(groups, GROUPS)
    c = tl.arange(0, CHANNELS)[None, None, :]
    g = tl.program_id(0) % blocks * GROUPS + tl.arange(0, GROUPS)[None, :, None]
    m = (tl.program_id(0) // blocks).to(tl.int64) * groups + g
    inside = (g < groups) & (c < size)
    out_rows = out_ptr + offsets(m, shape_m, stride_m, 0, ALIGN) + c
    x_rows = x_ptr + offsets(m, shape_m, stride_m, 3 * RANK, ALIGN) + c

    first = tl.load(x_rows + offsets(lane, shape_n, stride_n, len(shape_n), ALIGN), mask=inside & (lane < N), other=0).to(ACC)
    close = (group_sum(first) / (tl.minimum(N, BLOCK_N) * size)).to(x_ptr.dtype.element_ty)
    near = close.to(ACC)
    total = tl.zeros((BLOCK_N, GROUPS, CHANNELS), ACC)
    square = tl.zeros((BLOCK_N, GROUPS, CHANNELS), ACC)
    for j in tl.range(0, N, BLOCK_N):
        n = j + lane
        x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n), ALIGN), mask=inside & (n < N), other=close,
                    eviction_policy="evict_last").to(ACC) - near                           # 0 where there is none
        total += x
        square += x * x
    away = group_sum(total) / N / size                                   # their product may pass 2³¹
    var = group_sum(square) / N / size - away * away
    mean, rstd = near + away, 1 / tl.sqrt(tl.where(var < 0, 0, var) + eps)                 # nan stays
    here = (g < groups) & (c < 1)
    tl.store(mean_ptr + offsets(m, shape_m, stride_m, RANK) + c, mean, mask=here)
    tl.store(rstd_ptr + offsets(m, shape_m, stride_m, 2 * RANK) + c, rstd, mask=here)

    scale, shift = rstd, tl.zeros((1, GROUPS, CHANNELS), ACC)
    if w_ptr is not None:
        scale = rstd * tl.load(w_ptr + g * size + c, mask=inside, other=0).to(ACC)
    if b_ptr is not None:
        shift += tl.load(b_ptr + g * size + c, mask=inside, other=0).to(ACC)
    for j in tl.range(0, N, BLOCK_N):
        n = tl.cdiv(N, BLOCK_N) * BLOCK_N - BLOCK_N - j + lane                             # the last pixels first: they are in the cache
        valid = inside & (n < N)
        x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n), ALIGN), mask=valid, other=0, eviction_policy="evict_first")
        tl.store(out_rows + offsets(n, shape_n, stride_n, 0, ALIGN), (x.to(ACC) - mean) * scale + shift, mask=valid)


# ------------------------------------------------------------------ gradients
@triton.jit
def norm_slope(gw, x, rstd, shift, slope, CENTER: tl.constexpr):
    """gx from g·w, x̂ and the means of g·w and of g·w·x̂."""
    return rstd * (gw - shift - x * slope) if CENTER else rstd * (gw - x * slope)


@triton.jit
def norm_backward_long(
    g_ptr, x_ptr, gx_rows, m, inside, mean, rstd, w_ptr, shape_m, stride_m, shape_n, stride_n, N, groups, inner,
    CENTER: tl.constexpr, SHARED: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr, STAGES: tl.constexpr,
):
    """Gradient of rows that are read twice."""
    lane = lanes(BLOCK_N, WIDE)
    sum_g = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    sum_gx = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        g, x = gradient_tiles(g_ptr, x_ptr, m, j + lane, inside, N, shape_m, stride_m, shape_n, stride_n, "evict_last", VEC, ALIGN)
        g = scaled(g.to(ACC), w_ptr, None, m, j, inside, N, groups, inner, SHARED, ACC, BLOCK_N, VEC, COPIES)
        sum_g += g
        sum_gx += g * ((x.to(ACC) - mean) * rstd)
    shift, slope = tl.sum(sum_g, 1, keep_dims=True) / N, tl.sum(sum_gx, 1, keep_dims=True) / N
    for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        n = j + lane
        g, x = gradient_tiles(g_ptr, x_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, "evict_first", VEC, ALIGN)
        g = scaled(g.to(ACC), w_ptr, None, m, j, inside, N, groups, inner, SHARED, ACC, BLOCK_N, VEC, COPIES)
        gx = norm_slope(g, (x.to(ACC) - mean) * rstd, rstd, shift, slope, CENTER)
        tl.store(side_by_side(gx_rows, offsets(n, shape_n, stride_n), VEC), gx, mask=inside & (n < N))


@triton.jit
def norm_backward_short(
    g_ptr, x_ptr, gx_rows, m, inside, mean, rstd, w, w_ptr, gw_sums, gb_sums, shape_m, stride_m, shape_n, stride_n, N, groups, inner,
    CENTER: tl.constexpr, SHARED: tl.constexpr, PARTIAL: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr,
    VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr, HELD: tl.constexpr, TWICE: tl.constexpr,
):
    """Gradient of rows that fit in registers, in HELD tiles; returns the sums with what they add to gw and gb. `w` are the lines of
    weights if they were kept. TWICE: all is read a second time, from the first cache. Long, because of that choice."""
    lane = lanes(BLOCK_N, WIDE)
    gs, xs, ws = (), (), ()
    for k in tl.static_range(HELD):
        g, x = gradient_tiles(g_ptr, x_ptr, m, k * BLOCK_N + lane, inside, N, shape_m, stride_m, shape_n, stride_n, "", VEC, ALIGN)
        gs, xs = gs + (g,), xs + (x,)
    shift_terms = None
    slope_terms = None
    for k in tl.static_range(HELD):
        first = gs[k].to(ACC)
        if w is not None:
            first *= w[k].to(ACC)
        elif w_ptr is not None:
            v = parameter(w_ptr, m, k * BLOCK_N, inside, N, groups, inner, SHARED, BLOCK_N, VEC, COPIES)
            first *= v.to(ACC)
            ws = ws + (v,)
        second = first * ((xs[k].to(ACC) - mean) * rstd)
        if TWICE:
            first, second = thread_sums(first, VEC), thread_sums(second, VEC)
        shift_terms = first if shift_terms is None else shift_terms + first
        slope_terms = second if slope_terms is None else slope_terms + second
    if CENTER:
        shift, slope = tl.reduce((shift_terms, slope_terms), 1, affine_combine, keep_dims=True)
    else:
        shift, slope = mean, tl.sum(slope_terms, 1, keep_dims=True)
    gw, gb = (), ()
    for k in tl.static_range(HELD):
        n = k * BLOCK_N + lane
        g, x = gs[k], xs[k]
        if TWICE:
            g, x = gradient_tiles(g_ptr, x_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, "evict_first", VEC, ALIGN)
        g, x = again(g, ACC), (again(x, ACC) - mean) * rstd
        if PARTIAL:
            gw = gw + (gw_sums[k] + g * x,)
            if CENTER:
                gb = gb + (gb_sums[k] + g,)
        if w is not None:
            g *= w[k].to(ACC)
        elif TWICE:
            g = scaled(g, w_ptr, None, m, k * BLOCK_N, inside, N, groups, inner, SHARED, ACC, BLOCK_N, VEC, COPIES)
        elif w_ptr is not None:
            g *= again(ws[k], ACC)
        gx = norm_slope(g, x, rstd, shift / N, slope / N, CENTER)
        tl.store(side_by_side(gx_rows, offsets(n, shape_n, stride_n), VEC), gx, mask=inside & (n < N))
    return gw, gb


@triton.jit
def norm_backward_kernel(
    gx_ptr, gw_ptr, gb_ptr, g_ptr, x_ptr, mean_ptr, rstd_ptr, w_ptr, shape_m, stride_m, shape_n, stride_n, M, N, groups, inner,
    CENTER: tl.constexpr, SHARED: tl.constexpr, PARTIAL: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr,
    STAGES: tl.constexpr, HELD: tl.constexpr, TWICE: tl.constexpr,
):
    """Gradient of rows; with PARTIAL every program also adds up gw and gb of all its rows, one line of (programs, N) each."""
    RANK: tl.constexpr = len(shape_m)
    N = even(N, ALIGN)
    gw, gb = (), ()
    if PARTIAL:
        gw = zeros(BLOCK_M, BLOCK_N, HELD, ACC)
        if CENTER:
            gb = zeros(BLOCK_M, BLOCK_N, HELD, ACC)
    w = None
    if STAGES > 1 and not (LOOP or SHARED or TWICE) and BLOCK_M * BLOCK_N <= 8192:       # of more, 1024 threads would spill
        if w_ptr is not None:
            w = lines(w_ptr, N, BLOCK_N, HELD, VEC, COPIES)
    for i in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.num_programs(0), num_stages=1 if LOOP else STAGES):
        m = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        rstd = tl.load(rstd_ptr + offsets(m, shape_m, stride_m, 4 * RANK), mask=m < M, other=0).to(ACC)[:, None]
        mean = rstd * 0
        if CENTER:
            mean = tl.load(mean_ptr + offsets(m, shape_m, stride_m, 3 * RANK), mask=m < M, other=0).to(ACC)[:, None]
        m = m[:, None]
        gx_rows = gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN)
        if LOOP:
            norm_backward_long(g_ptr, x_ptr, gx_rows, m, m < M, mean, rstd, w_ptr, shape_m, stride_m, shape_n, stride_n, N, groups,
                               inner, CENTER, SHARED, ACC, WIDE, BLOCK_M, BLOCK_N, VEC, ALIGN, COPIES, STAGES)
        else:
            gw, gb = norm_backward_short(g_ptr, x_ptr, gx_rows, m, m < M, mean, rstd, w, w_ptr, gw, gb, shape_m, stride_m, shape_n,
                                         stride_n, N, groups, inner, CENTER, SHARED, PARTIAL, ACC, WIDE, BLOCK_N, VEC, ALIGN, COPIES,
                                         HELD, TWICE)
    store_lines(gw_ptr, gw, N, VEC)
    store_lines(gb_ptr, gb, N, VEC)


# ------------------------------------------------------------------ gradients of groups whose channels or whose pixels are side by side
@triton.jit
def image_backward_kernel(
    gx_ptr, gw_ptr, gb_ptr, g_ptr, x_ptr, mean_ptr, rstd_ptr, w_ptr, shape_m, stride_m, stride_c, shape_n, stride_n, N, groups, size,
    ACC: tl.constexpr, WIDE: tl.constexpr, ALIGN_C: tl.constexpr, ALIGN_N: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Gradient of group norm, in tiles of (pixels, groups, channels) as in `image_norm_kernel`; what each channel of a sample adds to gw
    and gb comes first, (samples, groups, size) each, since the means of the gradient are sums of those. ALIGN_C divides the steps from
    channel to channel, ALIGN_N those from pixel to pixel; where one of them is 1, what is next to each other is a multiple of the other.
    Long, because what all pixels share stays in registers."""
    RANK: tl.constexpr = len(shape_m)
    COLUMNS: tl.constexpr = len(shape_n)
    ALIGN: tl.constexpr = ALIGN_C * ALIGN_N
    size, N = even(size, ALIGN_N), even(N, ALIGN_C)
    lane = tl.arange(0, BLOCK_N)[:, None, None]
    lane = lane.to(tl.int64) if WIDE else lane
    blocks = tl.cdiv(groups, GROUPS)
    c = tl.arange(0, CHANNELS)[None, None, :]
    k = tl.program_id(0) % blocks * GROUPS + tl.arange(0, GROUPS)[None, :, None]
    m = (tl.program_id(0) // blocks).to(tl.int64) * groups + k
    inside = (k < groups) & (c < size)
    far = c.to(tl.int64)
    gx_rows = gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN) + far * even(stride_c[0], ALIGN_C)
    g_rows = g_ptr + offsets(m, shape_m, stride_m, RANK, ALIGN) + far * even(stride_c[1], ALIGN_C)
    x_rows = x_ptr + offsets(m, shape_m, stride_m, 2 * RANK, ALIGN) + far * even(stride_c[2], ALIGN_C)
    mean = tl.load(mean_ptr + offsets(m, shape_m, stride_m, 3 * RANK), mask=k < groups, other=0).to(ACC)
    rstd = tl.load(rstd_ptr + offsets(m, shape_m, stride_m, 4 * RANK), mask=k < groups, other=0).to(ACC)

    sum_g = tl.zeros((BLOCK_N, GROUPS, CHANNELS), ACC)
    sum_gx = tl.zeros((BLOCK_N, GROUPS, CHANNELS), ACC)
    for j in tl.range(0, N, BLOCK_N):
        n = j + lane
        valid = inside & (n < N)
        g = tl.load(g_rows + offsets(n, shape_n, stride_n, COLUMNS, ALIGN_N), mask=valid, other=0, eviction_policy="evict_last").to(ACC)
        x = tl.load(x_rows + offsets(n, shape_n, stride_n, 2 * COLUMNS, ALIGN_N), mask=valid, other=0, eviction_policy="evict_last")
        sum_g += g
        sum_gx += g * ((x.to(ACC) - mean) * rstd)
    gb, gw = tl.sum(sum_g, 0, keep_dims=True), tl.sum(sum_gx, 0, keep_dims=True)
    tl.store(gb_ptr + m * size + c, gb, mask=inside)
    tl.store(gw_ptr + m * size + c, gw, mask=inside)

    w = tl.full((1, GROUPS, CHANNELS), 1, ACC)
    if w_ptr is not None:
        w = tl.load(w_ptr + k * size + c, mask=inside, other=0).to(ACC)
    shift, slope = tl.sum(gb * w, 2, keep_dims=True) / N / size, tl.sum(gw * w, 2, keep_dims=True) / N / size
    for j in tl.range(0, N, BLOCK_N):
        n = tl.cdiv(N, BLOCK_N) * BLOCK_N - BLOCK_N - j + lane                             # the last pixels first: they are in the cache
        valid = inside & (n < N)
        g = tl.load(g_rows + offsets(n, shape_n, stride_n, COLUMNS, ALIGN_N), mask=valid, other=0, eviction_policy="evict_first").to(ACC)
        x = tl.load(x_rows + offsets(n, shape_n, stride_n, 2 * COLUMNS, ALIGN_N), mask=valid, other=0, eviction_policy="evict_first")
        gx = norm_slope(g * w, (x.to(ACC) - mean) * rstd, rstd, shift, slope, True)
        tl.store(gx_rows + offsets(n, shape_n, stride_n, 0, ALIGN_N), gx, mask=valid)
