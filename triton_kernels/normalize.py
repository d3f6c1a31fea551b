"""Layer, RMS, group and batch normalization, forward and backward.

    x̂ = (x - mean) · rstd          y = x̂ · w + b
    gx = rstd · (g·w - mean(g·w) - x̂ · mean(g·w·x̂))        gw = Σ g·x̂        gb = Σ g

Layer, RMS and group norm take their statistics over a row, batch norm over a channel, which here is a row too: all its
elements. The weight of column n is n (layer, RMS), or its channel: `row % groups * channels + n // inner` (group norm).
"""

import triton
import triton.language as tl

from triton_kernels.reduce import offsets


@triton.jit
def channel(m, n, N, groups, inner, GROUPED: tl.constexpr):
    """Index of the weight of row m, column n."""
    return (m % groups) * (N // inner) + n // inner if GROUPED else n


@triton.jit
def norm_kernel(
    out_ptr, mean_ptr, rstd_ptr, x_ptr, w_ptr, b_ptr, shape_m, stride_m, shape_n, stride_n, M, N, groups, inner, eps,
    CENTER: tl.constexpr, GROUPED: tl.constexpr, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr,
):
    """Normalize rows and keep their statistics: x once where the row fits in registers, else once a pass."""
    RANK: tl.constexpr = len(shape_m)
    m = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    inside = m < M
    out_rows = out_ptr + offsets(m, shape_m, stride_m)
    x_rows = x_ptr + offsets(m, shape_m, stride_m, 3 * RANK)
    lane = tl.arange(0, BLOCK_N)[None, :]
    mean = tl.zeros((BLOCK_M, 1), ACC)
    if LOOP:
        if CENTER:
            total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
            for j in range(0, N, BLOCK_N):
                n = j + lane
                total += tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=inside & (n < N), other=0).to(ACC)
            mean = tl.sum(total, 1, keep_dims=True) / N
        square = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for j in range(0, N, BLOCK_N):
            n = j + lane
            valid = inside & (n < N)
            x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=0).to(ACC)
            x = tl.where(valid, x - mean, 0)
            square += x * x
        rstd = 1 / tl.sqrt(tl.sum(square, 1, keep_dims=True) / N + eps)
        for j in range(0, N, BLOCK_N):
            n = j + lane
            valid = inside & (n < N)
            x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=0).to(ACC)
            y = affine((x - mean) * rstd, w_ptr, b_ptr, channel(m, n, N, groups, inner, GROUPED), valid if GROUPED else n < N, ACC)
            tl.store(out_rows + offsets(n, shape_n, stride_n), y, mask=valid)
    else:
        valid = inside & (lane < N)
        x = tl.load(x_rows + offsets(lane, shape_n, stride_n, len(shape_n)), mask=valid, other=0).to(ACC)
        if CENTER:
            mean = tl.sum(x, 1, keep_dims=True) / N
            x = tl.where(valid, x - mean, 0)
        rstd = 1 / tl.sqrt(tl.sum(x * x, 1, keep_dims=True) / N + eps)
        y = affine(x * rstd, w_ptr, b_ptr, channel(m, lane, N, groups, inner, GROUPED), valid if GROUPED else lane < N, ACC)
        tl.store(out_rows + offsets(lane, shape_n, stride_n), y, mask=valid)
    if CENTER:
        tl.store(mean_ptr + offsets(m, shape_m, stride_m, RANK), mean, mask=inside)
    tl.store(rstd_ptr + offsets(m, shape_m, stride_m, 2 * RANK), rstd, mask=inside)


@triton.jit
def affine(x, w_ptr, b_ptr, at, valid, ACC: tl.constexpr):
    """x · w + b; what is None is left out."""
    if w_ptr is not None:
        x = x * tl.load(w_ptr + at, mask=valid, other=0).to(ACC)
    if b_ptr is not None:
        x = x + tl.load(b_ptr + at, mask=valid, other=0).to(ACC)
    return x


@triton.jit
def norm_tiles(
    g_ptr, x_ptr, w_ptr, m, n, mean, rstd, inside, N, groups, inner, shape_m, stride_m, shape_n, stride_n,
    GROUPED: tl.constexpr, ACC: tl.constexpr,
):
    """Tiles of g, g · w and x̂; the first two are 0 outside. Operands are gx, g, x, then mean and rstd, which have rows only."""
    RANK_M: tl.constexpr = len(shape_m)
    RANK_N: tl.constexpr = len(shape_n)
    valid = inside & (n < N)
    g = tl.load(g_ptr + offsets(m, shape_m, stride_m, RANK_M) + offsets(n, shape_n, stride_n, RANK_N), mask=valid, other=0).to(ACC)
    x = tl.load(x_ptr + offsets(m, shape_m, stride_m, 2 * RANK_M) + offsets(n, shape_n, stride_n, 2 * RANK_N), mask=valid, other=0).to(ACC)
    gw = affine(g, w_ptr, None, channel(m, n, N, groups, inner, GROUPED), valid if GROUPED else n < N, ACC)
    return g, gw, tl.where(valid, (x - mean) * rstd, 0)


@triton.jit
def norm_backward_kernel(
    gx_ptr, gw_ptr, gb_ptr, g_ptr, x_ptr, mean_ptr, rstd_ptr, w_ptr, shape_m, stride_m, shape_n, stride_n, M, N, groups, inner,
    CENTER: tl.constexpr, GROUPED: tl.constexpr, PARTIAL: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr,
):
    """Gradient of rows; with PARTIAL every program also adds up gw and gb of all its rows, one line of (programs, N) each."""
    RANK: tl.constexpr = len(shape_m)
    lane = tl.arange(0, BLOCK_N)[None, :]
    gw = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    gb = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for i in range(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.num_programs(0)):
        m = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        rstd = tl.load(rstd_ptr + offsets(m, shape_m, stride_m, 4 * RANK), mask=m < M, other=0)[:, None]
        mean = rstd * 0
        if CENTER:
            mean = tl.load(mean_ptr + offsets(m, shape_m, stride_m, 3 * RANK), mask=m < M, other=0)[:, None]
        m = m[:, None]
        inside = m < M
        gx_rows = gx_ptr + offsets(m, shape_m, stride_m)
        if LOOP:
            sum_g = tl.zeros((BLOCK_M, BLOCK_N), ACC)
            sum_gx = tl.zeros((BLOCK_M, BLOCK_N), ACC)
            for j in range(0, N, BLOCK_N):
                _, g, x = norm_tiles(g_ptr, x_ptr, w_ptr, m, j + lane, mean, rstd, inside, N, groups, inner,
                                     shape_m, stride_m, shape_n, stride_n, GROUPED, ACC)
                sum_g += g
                sum_gx += g * x
            shift = tl.sum(sum_g, 1, keep_dims=True) / N if CENTER else 0.0
            slope = tl.sum(sum_gx, 1, keep_dims=True) / N
            for j in range(0, N, BLOCK_N):
                n = j + lane
                _, g, x = norm_tiles(g_ptr, x_ptr, w_ptr, m, n, mean, rstd, inside, N, groups, inner,
                                     shape_m, stride_m, shape_n, stride_n, GROUPED, ACC)
                tl.store(gx_rows + offsets(n, shape_n, stride_n), rstd * (g - shift - x * slope), mask=inside & (n < N))
        else:
            raw, g, x = norm_tiles(g_ptr, x_ptr, w_ptr, m, lane, mean, rstd, inside, N, groups, inner,
                                   shape_m, stride_m, shape_n, stride_n, GROUPED, ACC)
            shift = tl.sum(g, 1, keep_dims=True) / N if CENTER else 0.0
            slope = tl.sum(g * x, 1, keep_dims=True) / N
            tl.store(gx_rows + offsets(lane, shape_n, stride_n), rstd * (g - shift - x * slope), mask=inside & (lane < N))
            if PARTIAL:
                gw += raw * x
                gb += raw
    if PARTIAL:
        at = tl.program_id(0) * N + tl.arange(0, BLOCK_N)
        tl.store(gw_ptr + at, tl.sum(gw, 0), mask=tl.arange(0, BLOCK_N) < N)
        if CENTER:
            tl.store(gb_ptr + at, tl.sum(gb, 0), mask=tl.arange(0, BLOCK_N) < N)


# ------------------------------------------------------------------ batch norm: a row is a channel
@triton.jit
def channel_tile(M, N, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows and columns of this program, as vectors; programs go through the columns of a block of rows first."""
    pieces = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    piece = pid % pieces
    if WIDE:
        piece = piece.to(tl.int64)
    return (pid // pieces).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M), piece * BLOCK_N + tl.arange(0, BLOCK_N)


@triton.jit
def channel_load(x_ptr, m, n, M, N, shape_m, stride_m, shape_n, stride_n, K: tl.constexpr):
    """A tile of operand K."""
    at = offsets(m, shape_m, stride_m, K * len(shape_m))[:, None] + offsets(n, shape_n, stride_n, K * len(shape_n))[None, :]
    return tl.load(x_ptr + at, mask=(m < M)[:, None] & (n < N)[None, :], other=0)


@triton.jit
def channel_kernel(
    out_ptr, x_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, shape_m, stride_m, shape_n, stride_n, M, N, eps,
    ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """y = (x - mean) / sqrt(var + eps) · w + b, every channel with its own; mean, var, w and b are contiguous."""
    m, n = channel_tile(M, N, WIDE, BLOCK_M, BLOCK_N)
    mean = tl.load(mean_ptr + m, mask=m < M, other=0).to(ACC)
    scale = affine(1 / tl.sqrt(tl.load(var_ptr + m, mask=m < M, other=1).to(ACC) + eps), w_ptr, None, m, m < M, ACC)
    x = channel_load(x_ptr, m, n, M, N, shape_m, stride_m, shape_n, stride_n, 1).to(ACC)
    y = (x - mean[:, None]) * scale[:, None]
    if b_ptr is not None:
        y += tl.load(b_ptr + m, mask=m < M, other=0).to(ACC)[:, None]
    out_ptrs = out_ptr + offsets(m, shape_m, stride_m)[:, None] + offsets(n, shape_n, stride_n)[None, :]
    tl.store(out_ptrs, y, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def channel_backward_kernel(
    gx_ptr, g_ptr, x_ptr, mean_ptr, var_ptr, w_ptr, gw_ptr, gb_ptr, shape_m, stride_m, shape_n, stride_n, M, N, eps,
    TRAINING: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """gx from g, x, the statistics and the sums gw = Σ g·x̂ and gb = Σ g of every channel; the last five are contiguous."""
    m, n = channel_tile(M, N, WIDE, BLOCK_M, BLOCK_N)
    rstd = 1 / tl.sqrt(tl.load(var_ptr + m, mask=m < M, other=1).to(ACC) + eps)
    g = channel_load(g_ptr, m, n, M, N, shape_m, stride_m, shape_n, stride_n, 1).to(ACC)
    if TRAINING:
        mean = tl.load(mean_ptr + m, mask=m < M, other=0).to(ACC)
        slope = tl.load(gw_ptr + m, mask=m < M, other=0).to(ACC) / N * rstd
        shift = tl.load(gb_ptr + m, mask=m < M, other=0).to(ACC) / N
        x = channel_load(x_ptr, m, n, M, N, shape_m, stride_m, shape_n, stride_n, 2).to(ACC)
        g = g - shift[:, None] - (x - mean[:, None]) * slope[:, None]
    gx = g * affine(rstd, w_ptr, None, m, m < M, ACC)[:, None]
    gx_ptrs = gx_ptr + offsets(m, shape_m, stride_m)[:, None] + offsets(n, shape_n, stride_n)[None, :]
    tl.store(gx_ptrs, gx, mask=(m < M)[:, None] & (n < N)[None, :])
