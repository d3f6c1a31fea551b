"""Batch normalization, forward and backward: a row is a channel, all its elements the columns.

    x̂ = (x - mean) · rstd          y = x̂ · w + b          rstd = 1 / √(var + eps)
    gx = w · rstd · (g - gb / n - x̂ · gw / n)        gw = Σ g·x̂        gb = Σ g

With RELU y is the rectified one, of the sum with a residual if there is one, and g counts where it is above 0.
Program (i, p) has a block of channels and, of their columns, the tiles p, p + pieces, …; whatever the layout, nothing is moved to read it.
So all programs together walk through memory from one end to the other, and a second pass goes back: where it begins is still in the cache.
It may have a program for each tile, of which those that begin first have the last columns.
What is summed over pieces goes through memory, as lines of (pieces, channels), and is put together in a fixed order.
"""

import triton
import triton.language as tl

from .activation import relu, relu_backward
from .reduce import offsets


@triton.jit
def piece(WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BACK: tl.constexpr = False):
    """(channels, lanes, first column, columns from tile to tile) of this program; BACK: the last of the programs has the first columns."""
    start, lane = (tl.num_programs(1) - 1 - tl.program_id(1) if BACK else tl.program_id(1)) * BLOCK_N, tl.arange(0, BLOCK_N)
    if WIDE:
        start, lane = start.to(tl.int64), lane.to(tl.int64)
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    return m, lane, start, tl.num_programs(1) * BLOCK_N


@triton.jit
def ends(start, N, step):
    """The sum of a program's first and last columns of tiles: less one of them, this is where it is on the way back."""
    return 2 * start + (tl.cdiv(N - start, step) - 1) * step


@triton.jit
def reciprocal(lane, shape_n, QUICK: tl.constexpr):
    """For QUICK columns 2³² over the length of a row of them, rounded up; one for each lane."""
    if QUICK:
        return (lane * 0).to(tl.uint32) + (0xFFFFFFFF // tl.cast(shape_n[1], tl.uint32) + 1)
    else:
        return lane                                                      # for nothing


@triton.jit
def at(m, n, many, shape_m, stride_m, shape_n, stride_n, K: tl.constexpr, QUICK: tl.constexpr):
    """Offsets of a tile of operand K. QUICK, else 0: columns are two dims, and their number times a row's length is below 2³², so that the
    high half of a product is their quotient: two instructions for a division's twenty. Steps, and rows, are multiples of it."""
    if QUICK:
        row = tl.umulhi(n.to(tl.uint32), many).to(tl.int32)
        columns = row * stride_n[2 * K] + (n - row * shape_n[1]) * stride_n[2 * K + 1]
        columns = tl.max_contiguous(tl.multiple_of(columns, QUICK), QUICK)
    else:
        columns = offsets(n, shape_n, stride_n, K * len(shape_n))
    return offsets(m, shape_m, stride_m, K * len(shape_m))[:, None] + columns[None, :]


@triton.jit
def vector(ptr, m, M, ACC: tl.constexpr):
    """One value a channel, as a column."""
    return tl.load(ptr + m, mask=m < M, other=0).to(ACC)[:, None]


@triton.jit
def channels(mean_ptr, var_ptr, w_ptr, b_ptr, m, M, eps, ACC: tl.constexpr):
    """(mean, rstd, w · rstd, b) of the channels, as columns."""
    mean, rstd = vector(mean_ptr, m, M, ACC), 1 / tl.sqrt(vector(var_ptr, m, M, ACC) + eps)
    scale, shift = rstd, tl.zeros_like(rstd)
    if w_ptr is not None:
        scale = rstd * vector(w_ptr, m, M, ACC)
    if b_ptr is not None:
        shift = vector(b_ptr, m, M, ACC)
    return mean, rstd, scale, shift


@triton.jit
def normalized(x, mean, scale, shift, T: tl.constexpr):
    """y as it is stored in dtype T: the sign that it has there is the same in forward and backward passes, for both round as fma does."""
    return tl.fma(x - mean, scale, shift).to(T).to(x.dtype)


@triton.jit
def columns_of(p, pieces, N, BLOCK_N: tl.constexpr):
    """How many columns piece p has: the last tile of all may be a part of one."""
    tiles = tl.cdiv(N, BLOCK_N)
    return tl.cdiv(tiles - p, pieces) * BLOCK_N - tl.where((tiles - 1) % pieces == p, tiles * BLOCK_N - N, 0)


@triton.jit
def moments_kernel(
    mean_ptr, square_ptr, x_ptr, shape_m, stride_m, shape_n, stride_n, M, N,
    ACC: tl.constexpr, WIDE: tl.constexpr, QUICK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Mean and sum of squares around it of every piece, (pieces, M) each. EVEN: pieces are whole tiles.

    Squares are summed relative to the mean of the piece's first tile, which is so near that their difference keeps its digits.
    """
    m, lane, start, step = piece(WIDE, BLOCK_M, BLOCK_N)
    many = reciprocal(lane, shape_n, QUICK)
    inside = (m < M)[:, None]
    n = start + lane
    first = tl.load(x_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 0, QUICK), mask=inside & (n < N)[None, :], other=0).to(ACC)
    near = tl.sum(first, 1) / tl.minimum(N - start, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    square = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for j in tl.range(start, N, step, num_stages=STAGES):
        n = j + lane
        valid = inside if EVEN else inside & (n < N)[None, :]
        x = tl.load(x_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 0, QUICK), mask=valid, other=0).to(ACC) - near[:, None]
        if not EVEN:
            x = tl.where((n < N)[None, :], x, 0)             # channels past the last are not stored
        total += x
        square += x * x
    count = columns_of(tl.program_id(1), tl.num_programs(1), N, BLOCK_N)
    away = tl.sum(total, 1) / count
    place = tl.program_id(1).to(tl.int64) * M + m
    tl.store(mean_ptr + place, near + away, mask=m < M)
    tl.store(square_ptr + place, tl.sum(square, 1) - away * away * count, mask=m < M)


@triton.jit
def merge_moments_kernel(
    mean_ptr, var_ptr, means_ptr, squares_ptr, M, N, pieces, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PIECES: tl.constexpr,
):
    """Mean and biased variance from those of the pieces. Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for
    computing sample variances, 1979."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    p = tl.arange(0, PIECES)[None, :]
    valid = (m < M) & (p < pieces)
    mean = tl.load(means_ptr + p * M + m, mask=valid, other=0)
    square = tl.load(squares_ptr + p * M + m, mask=valid, other=0)
    count = tl.where(valid, columns_of(p, pieces, N, BLOCK_N), 0).to(mean.dtype)
    middle = tl.sum(mean * count, 1, keep_dims=True) / N
    away = mean - middle
    var = tl.sum(square + count * away * away, 1, keep_dims=True) / N
    tl.store(mean_ptr + m, middle, mask=m < M)
    tl.store(var_ptr + m, tl.where(var < 0, 0, var), mask=m < M)


@triton.jit
def apply_kernel(
    out_ptr, x_ptr, residual_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, shape_m, stride_m, shape_n, stride_n, M, N, eps,
    RELU: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, QUICK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """y = (x - mean) / sqrt(var + eps) · w + b, every channel with its own; mean, var, w and b are contiguous. A residual is added to what
    would have been stored."""
    m, lane, start, step = piece(WIDE, BLOCK_M, BLOCK_N, True)
    many = reciprocal(lane, shape_n, QUICK)
    mean, rstd, scale, shift = channels(mean_ptr, var_ptr, w_ptr, b_ptr, m, M, eps, ACC)
    both = ends(start, N, step)
    for j in tl.range(start, N, step, num_stages=STAGES):
        n = both - j + lane
        valid = (m < M)[:, None] & (n < N)[None, :]
        from_x = x_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 1, QUICK)
        x = tl.load(from_x, mask=valid, other=0, eviction_policy="evict_first").to(ACC)
        y = normalized(x, mean, scale, shift, out_ptr.dtype.element_ty)
        if residual_ptr is not None:
            y += tl.load(residual_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 2, QUICK), mask=valid, other=0).to(ACC)
        if RELU:
            y = relu(y)
        tl.store(out_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 0, QUICK), y, mask=valid, eviction_policy="evict_first")


@triton.jit
def sums_kernel(
    gw_ptr, gb_ptr, gr_ptr, g_ptr, x_ptr, y_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, shape_m, stride_m, shape_n, stride_n, M, N, eps,
    RELU: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, QUICK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Σ g·x̂ and Σ g of every piece, (pieces, M) each. With a y, g counts where that is above 0 and is stored as gr."""
    m, lane, start, step = piece(WIDE, BLOCK_M, BLOCK_N)
    many = reciprocal(lane, shape_n, QUICK)
    mean, rstd, scale, shift = channels(mean_ptr, var_ptr, w_ptr, b_ptr, m, M, eps, ACC)
    gw = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    gb = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for j in tl.range(start, N, step, num_stages=STAGES):
        n = j + lane
        valid = (m < M)[:, None] & (n < N)[None, :]
        g = tl.load(g_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 0, QUICK), mask=valid, other=0).to(ACC)
        x = tl.load(x_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 1, QUICK), mask=valid, other=0).to(ACC)
        if RELU:
            g = relu_backward(g, normalized(x, mean, scale, shift, x_ptr.dtype.element_ty))
        if y_ptr is not None:
            y = tl.load(y_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 2, QUICK), mask=valid, other=0).to(ACC)
            g = relu_backward(g, y)
            tl.store(gr_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 3, QUICK), g, mask=valid)
        gw += g * (x - mean)
        gb += g
    place = tl.program_id(1).to(tl.int64) * M + m
    tl.store(gw_ptr + place[:, None], tl.sum(gw, 1, keep_dims=True) * rstd, mask=(m < M)[:, None])
    tl.store(gb_ptr + place, tl.sum(gb, 1), mask=m < M)


@triton.jit
def slope_kernel(
    gx_ptr, g_ptr, x_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, gw_ptr, gb_ptr, shape_m, stride_m, shape_n, stride_n, M, N, eps,
    TRAINING: tl.constexpr, RELU: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, QUICK: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):
    """gx from g, x, the statistics and the sums gw and gb of every channel; the last six are contiguous."""
    m, lane, start, step = piece(WIDE, BLOCK_M, BLOCK_N, True)
    many = reciprocal(lane, shape_n, QUICK)
    mean, rstd, scale, shift = channels(mean_ptr, var_ptr, w_ptr, b_ptr, m, M, eps, ACC)
    if TRAINING:
        level, slope = vector(gb_ptr, m, M, ACC) / N, vector(gw_ptr, m, M, ACC) / N * rstd
    both = ends(start, N, step)
    for j in tl.range(start, N, step, num_stages=STAGES):
        n = both - j + lane
        valid = (m < M)[:, None] & (n < N)[None, :]
        from_g = g_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 1, QUICK)
        g = tl.load(from_g, mask=valid, other=0, eviction_policy="evict_first").to(ACC)
        if TRAINING or RELU:
            from_x = x_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 2, QUICK)
            x = tl.load(from_x, mask=valid, other=0, eviction_policy="evict_first").to(ACC)
        if RELU:
            g = relu_backward(g, normalized(x, mean, scale, shift, x_ptr.dtype.element_ty))
        if TRAINING:
            g = g - level - (x - mean) * slope
        tl.store(gx_ptr + at(m, n, many, shape_m, stride_m, shape_n, stride_n, 0, QUICK), g * scale, mask=valid,
                 eviction_policy="evict_first")


@triton.jit
def running_kernel(
    mean_ptr, var_ptr, old_mean_ptr, old_var_ptr, new_mean_ptr, new_var_ptr, M, momentum, correction,
    ACC: tl.constexpr, BLOCK: tl.constexpr,
):
    """(1 - momentum) · old + momentum · new, for the mean and for the variance, whose new value is multiplied by `correction`."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old, new = tl.load(old_mean_ptr + m, mask=m < M, other=0).to(ACC), tl.load(new_mean_ptr + m, mask=m < M, other=0).to(ACC)
    tl.store(mean_ptr + m, old + momentum * (new - old), mask=m < M)
    old, new = tl.load(old_var_ptr + m, mask=m < M, other=0).to(ACC), tl.load(new_var_ptr + m, mask=m < M, other=0).to(ACC)
    tl.store(var_ptr + m, old + momentum * (new * correction - old), mask=m < M)
