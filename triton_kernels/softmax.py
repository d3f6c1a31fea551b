"""softmax and log-softmax over the rows of any layout, and their gradients.

    softmax      y = exp(x - max) / Σ exp(x - max)        gx = (g - Σ g·y) · y
    log-softmax  y = x - max - log Σ exp(x - max)         gx = g - exp(y) · Σ g

A row that fits in registers is read once; one of few columns in narrow tiles (HELD of them), so that few threads, or one, have all of
it. A longer one is read twice, the second time mostly from the L2 cache: the first pass
keeps (largest, sum relative to it) in every thread (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
Programs take every num_programs-th block of rows. Of rows so few that multiprocessors would be left without one, a reduction in pieces
finds the sums, and every tile has a program (the kernels named long).
"""

import triton
import triton.language as tl

from .reduce import even, offsets
from .rows import again, gradient_tiles, held_tiles, lanes, online, online_rows, store_tiles


@triton.jit
def softmax_kernel(
    out_ptr, x_ptr, shape_m, stride_m, shape_n, stride_n, M, N,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr,
    LANES: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
):
    N = even(N, ALIGN)
    lane = lanes(BLOCK_N, WIDE)
    for i in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.num_programs(0), num_stages=1 if LOOP else STAGES):
        m = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        inside = m < M
        out_rows = out_ptr + offsets(m, shape_m, stride_m, 0, ALIGN)
        x_rows = x_ptr + offsets(m, shape_m, stride_m, len(shape_m), ALIGN)
        if LOOP:
            top = tl.full((BLOCK_M, LANES), float("-inf"), ACC)
            total = tl.zeros((BLOCK_M, LANES), ACC)
            for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
                n = j + lane
                x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=inside & (n < N), other=float("-inf"),
                            eviction_policy="evict_last").to(ACC)
                top, total = online(top, total, x, LANES, VEC)
            row_top, row_total = online_rows(top, total)
            row_top, row_total = row_top[:, None], row_total[:, None]
            scale, shift = 1 / row_total, tl.log(row_total)
            for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
                n = j + lane
                valid = inside & (n < N)
                x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=float("-inf"),
                            eviction_policy="evict_first").to(ACC)
                y = x - row_top - shift if LOG else tl.exp(x - row_top) * scale
                tl.store(out_rows + offsets(n, shape_n, stride_n), y, mask=valid)
        elif HELD:
            x = held_tiles(x_rows, stride_n[1], lane, inside, N, HELD, ACC)
            store_tiles(out_rows, stride_n[0], softmax_tiles(x, LOG), lane, inside, N)
        else:
            valid = inside & (lane < N)
            x = tl.load(x_rows + offsets(lane, shape_n, stride_n, len(shape_n)), mask=valid, other=float("-inf")).to(ACC)
            x = x - tl.max(x, 1, keep_dims=True)
            e = tl.exp(x)
            total = tl.sum(e, 1, keep_dims=True)
            y = x - tl.log(total) if LOG else e * (1 / total)
            tl.store(out_rows + offsets(lane, shape_n, stride_n), y, mask=valid)


@triton.jit
def softmax_backward_kernel(
    gx_ptr, g_ptr, y_ptr, shape_m, stride_m, shape_n, stride_n, M, N,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr,
    VEC: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
):
    RANK: tl.constexpr = len(shape_m)
    N = even(N, ALIGN)
    lane = lanes(BLOCK_N, WIDE)
    for i in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.num_programs(0), num_stages=1 if LOOP else STAGES):
        m = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        inside = m < M
        gx_rows = gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN)
        if LOOP:
            total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
            for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
                g, y = gradient_tiles(g_ptr, y_ptr, m, j + lane, inside, N, shape_m, stride_m, shape_n, stride_n, "evict_last", VEC, ALIGN)
                total += g.to(ACC) if LOG else g.to(ACC) * y.to(ACC)
            row_total = tl.sum(total, 1, keep_dims=True)
            for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
                n = j + lane
                g, y = gradient_tiles(g_ptr, y_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, "evict_first", VEC, ALIGN)
                gx = softmax_slope(g.to(ACC), y.to(ACC), row_total, LOG)
                tl.store(gx_rows + offsets(n, shape_n, stride_n), gx, mask=inside & (n < N))
        elif HELD:
            g = held_tiles(g_ptr + offsets(m, shape_m, stride_m, RANK, ALIGN), stride_n[1], lane, inside, N, HELD, ACC, 0)
            y = held_tiles(y_ptr + offsets(m, shape_m, stride_m, 2 * RANK, ALIGN), stride_n[2], lane, inside, N, HELD, ACC, 0)
            store_tiles(gx_rows, stride_n[0], slope_tiles(g, y, LOG), lane, inside, N)
        else:
            g, y = gradient_tiles(g_ptr, y_ptr, m, lane, inside, N, shape_m, stride_m, shape_n, stride_n, "", VEC, ALIGN)
            row_total = tl.sum(g.to(ACC) if LOG else g.to(ACC) * y.to(ACC), 1, keep_dims=True)
            gx = softmax_slope(again(g, ACC), again(y, ACC), row_total, LOG)
            tl.store(gx_rows + offsets(lane, shape_n, stride_n), gx, mask=inside & (lane < N))


@triton.jit
def softmax_long_kernel(
    out_ptr, x_ptr, top_ptr, total_ptr, shape_m, stride_m, shape_n, stride_n, M, N,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALIGN: tl.constexpr,
):
    """A tile, from the largest of every row and the sum of exponentials relative to it."""
    RANK: tl.constexpr = len(shape_m)
    N = even(N, ALIGN)
    m, n, valid = long_tile(M, N, WIDE, BLOCK_M, BLOCK_N)
    at = offsets(m, shape_m, stride_m, 2 * RANK)
    top = tl.load(top_ptr + at, mask=m < M, other=0)
    total = tl.load(total_ptr + at, mask=m < M, other=1) + (top - top)               # a row that has an infinity is nan
    x_rows = x_ptr + offsets(m, shape_m, stride_m, RANK, ALIGN)
    x = tl.load(x_rows + offsets(n, shape_n, stride_n, len(shape_n)), mask=valid, other=0).to(ACC)
    y = x - top - tl.log(total) if LOG else tl.exp(x - top) * (1 / total)
    tl.store(out_ptr + offsets(m, shape_m, stride_m, 0, ALIGN) + offsets(n, shape_n, stride_n), y, mask=valid)


@triton.jit
def softmax_backward_long_kernel(
    gx_ptr, g_ptr, y_ptr, total_ptr, shape_m, stride_m, shape_n, stride_n, M, N,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALIGN: tl.constexpr,
):
    """A tile, from Σ g·y, or Σ g, of every row."""
    N = even(N, ALIGN)
    m, n, valid = long_tile(M, N, WIDE, BLOCK_M, BLOCK_N)
    total = tl.load(total_ptr + offsets(m, shape_m, stride_m, 3 * len(shape_m)), mask=m < M, other=0)
    g, y = gradient_tiles(g_ptr, y_ptr, m, n, m < M, N, shape_m, stride_m, shape_n, stride_n, "", 1, ALIGN)
    gx = softmax_slope(g.to(ACC), y.to(ACC), total, LOG)
    tl.store(gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN) + offsets(n, shape_n, stride_n), gx, mask=valid)


@triton.jit
def long_tile(M, N, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows, columns, which are there) of program (columns, rows)."""
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.program_id(0) * BLOCK_N + lanes(BLOCK_N, WIDE)
    return m, n, (m < M) & (n < N)


@triton.jit
def softmax_tiles(x, LOG: tl.constexpr):
    """Of rows in tiles: values leave their thread once for the largest and once for the sum, not at every tile."""
    high = x[0]
    for k in tl.static_range(1, len(x)):
        high = tl.maximum(high, x[k])
    high = tl.max(high, 1, keep_dims=True)
    total = tl.exp(x[0] - high)
    e = (total,)
    for k in tl.static_range(1, len(x)):
        e = e + (tl.exp(x[k] - high),)
        total += e[k]
    total = tl.sum(total, 1, keep_dims=True)
    scale, shift = 1 / total, tl.log(total)
    y = ()
    for k in tl.static_range(len(x)):
        y = y + (x[k] - high - shift if LOG else e[k] * scale,)
    return y


@triton.jit
def softmax_slope(g, y, total, LOG: tl.constexpr):
    return g - tl.exp(y) * total if LOG else (g - total) * y


@triton.jit
def slope_tiles(g, y, LOG: tl.constexpr):
    """Slopes of rows in tiles, from a sum for which values leave their thread once."""
    total = g[0] if LOG else g[0] * y[0]
    for k in tl.static_range(1, len(g)):
        total += g[k] if LOG else g[k] * y[k]
    total = tl.sum(total, 1, keep_dims=True)
    found = ()
    for k in tl.static_range(len(g)):
        found = found + (softmax_slope(g[k], y[k], total, LOG),)
    return found
