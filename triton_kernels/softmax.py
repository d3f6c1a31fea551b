"""Softmax and log-softmax over the columns of rows of any layout, and their gradients.

    softmax      y = exp(x - max) / Σ exp(x - max)        gx = (g - Σ g·y) · y
    log-softmax  y = x - max - log Σ exp(x - max)         gx = g - exp(y) · Σ g

A row that fits in registers is read once. A longer one is read twice: the first pass keeps (largest, sum relative to it) in
every lane (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018) and merges the lanes at its end.
"""

import triton
import triton.language as tl

from triton_kernels.reduce import logsumexp_combine, logsumexp_fold, offsets


@triton.jit
def softmax_kernel(
    out_ptr, x_ptr, shape_m, stride_m, shape_n, stride_n, M, N,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr,
):
    m = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    inside = m < M
    out_rows = out_ptr + offsets(m, shape_m, stride_m)
    x_rows = x_ptr + offsets(m, shape_m, stride_m, len(shape_m))
    lane = tl.arange(0, BLOCK_N)[None, :]
    if WIDE:
        lane = lane.to(tl.int64)
    if LOOP:
        top = tl.full((BLOCK_M, BLOCK_N), float("-inf"), ACC)
        total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for j in range(0, N, BLOCK_N):
            n = j + lane
            x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=inside & (n < N), other=float("-inf")).to(ACC)
            top, total = logsumexp_combine(top, total, x, tl.where(n < N, 1, 0).to(ACC))
        row_top, row_total = logsumexp_fold((top, total))
        row_top, row_total = row_top[:, None], row_total[:, None]
        for j in range(0, N, BLOCK_N):
            n = j + lane
            valid = inside & (n < N)
            x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=float("-inf")).to(ACC)
            y = x - row_top - tl.log(row_total) if LOG else tl.exp(x - row_top) / row_total
            tl.store(out_rows + offsets(n, shape_n, stride_n), y, mask=valid)
    else:
        valid = inside & (lane < N)
        x = tl.load(x_rows + offsets(lane, shape_n, stride_n, len(shape_n)), mask=valid, other=float("-inf")).to(ACC)
        x = x - tl.max(x, 1, keep_dims=True)
        e = tl.exp(x)
        total = tl.sum(e, 1, keep_dims=True)
        y = x - tl.log(total) if LOG else e / total
        tl.store(out_rows + offsets(lane, shape_n, stride_n), y, mask=valid)


@triton.jit
def softmax_backward_kernel(
    gx_ptr, g_ptr, y_ptr, shape_m, stride_m, shape_n, stride_n, M, N,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr,
):
    m = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    inside = m < M
    gx_rows = gx_ptr + offsets(m, shape_m, stride_m)
    lane = tl.arange(0, BLOCK_N)[None, :]
    if WIDE:
        lane = lane.to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    if LOOP:
        for j in range(0, N, BLOCK_N):
            g, y = softmax_tiles(g_ptr, y_ptr, m, j + lane, inside, N, shape_m, stride_m, shape_n, stride_n, ACC)
            total += g if LOG else g * y
        row_total = tl.sum(total, 1, keep_dims=True)
        for j in range(0, N, BLOCK_N):
            n = j + lane
            g, y = softmax_tiles(g_ptr, y_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, ACC)
            gx = g - tl.exp(y) * row_total if LOG else (g - row_total) * y
            tl.store(gx_rows + offsets(n, shape_n, stride_n), gx, mask=inside & (n < N))
    else:
        g, y = softmax_tiles(g_ptr, y_ptr, m, lane, inside, N, shape_m, stride_m, shape_n, stride_n, ACC)
        row_total = tl.sum(g if LOG else g * y, 1, keep_dims=True)
        gx = g - tl.exp(y) * row_total if LOG else (g - row_total) * y
        tl.store(gx_rows + offsets(lane, shape_n, stride_n), gx, mask=inside & (lane < N))


@triton.jit
def softmax_tiles(g_ptr, y_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, ACC: tl.constexpr):
    """Tiles of g and y; both are 0 outside."""
    RANK_M: tl.constexpr = len(shape_m)
    RANK_N: tl.constexpr = len(shape_n)
    valid = inside & (n < N)
    g = tl.load(g_ptr + offsets(m, shape_m, stride_m, RANK_M) + offsets(n, shape_n, stride_n, RANK_N), mask=valid, other=0)
    y = tl.load(y_ptr + offsets(m, shape_m, stride_m, 2 * RANK_M) + offsets(n, shape_n, stride_n, 2 * RANK_N), mask=valid, other=0)
    return g.to(ACC), y.to(ACC)
