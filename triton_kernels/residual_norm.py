"""Dropout, addition to the residual stream and its layer or RMS norm in one kernel, forward and backward.

    s = residual + (x + v) · keep / (1 - p)    y = (s - mean) · rstd · w + b
    gs = g_s + rstd · (g·w - mean(g·w) - x̂ · mean(g·w·x̂))        gx = gs · keep / (1 - p)
    gw = Σ g·x̂        gb = Σ g        gv = Σ gx

The norm is that of s as it is stored, rounded to its dtype. Element i keeps by word i of the Philox stream, as in `dropout_kernel`.
"""

import triton
import triton.language as tl

from .monoids import affine_combine
from .normalize import moments_from, norm_slope, squares, total_of
from .random import in_order, philox_words, words_of
from .reduce import even, offsets
from .rows import again, lanes, line, lines, side_by_side, store_lines, zeros


@triton.jit
def dropped(
    m, start, N, threshold, scale, seed, offset, base_ptr, EVEN: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, VEC: tl.constexpr,
):
    """What the columns from `start` on of rows m are multiplied with: 0 or `scale`. EVEN: 4 divides N, so that four neighbours share a
    counter; else every element draws for itself."""
    if EVEN:
        first = (m * N + start) // 4
        w0, w1, w2, w3 = words_of(seed, offset, first, base_ptr, BLOCK_N // 4, VEC == 8)
        bits = in_order(w0, w1, w2, w3)
    else:
        i = m * N + start + tl.arange(0, BLOCK_N)[None, :]
        w0, w1, w2, w3 = philox_words(seed, offset, i // 4, 0, base_ptr)
        bits = tl.where(i % 4 < 2, tl.where(i % 4 == 0, w0, w1), tl.where(i % 4 == 2, w2, w3))
    return tl.where(bits >= threshold.to(tl.uint32), scale.to(ACC), 0.0)


@triton.jit
def stream_tile(
    x_ptr, residual_ptr, v_ptr, base_ptr, m, start, lane, inside, shape_m, stride_m, shape_n, stride_n, N, threshold, scale, seed, offset,
    DROP: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, VEC: tl.constexpr,
    ALIGN: tl.constexpr, COPIES: tl.constexpr,
):
    """residual + (x + v) · keep / (1 - p), as ACC."""
    RANK_M: tl.constexpr = len(shape_m)
    RANK_N: tl.constexpr = len(shape_n)
    n = start + lane
    valid = inside & (n < N)
    x_ptrs = side_by_side(x_ptr + offsets(m, shape_m, stride_m, 2 * RANK_M, ALIGN), offsets(n, shape_n, stride_n, 2 * RANK_N), VEC)
    residual_rows = residual_ptr + offsets(m, shape_m, stride_m, 3 * RANK_M, ALIGN)
    residual_ptrs = side_by_side(residual_rows, offsets(n, shape_n, stride_n, 3 * RANK_N), VEC)
    x, residual = tl.load(x_ptrs, mask=valid, other=0).to(ACC), tl.load(residual_ptrs, mask=valid, other=0)
    if v_ptr is not None:
        x += line(v_ptr, start, N, BLOCK_N, VEC, COPIES).to(ACC)
    if DROP:
        return residual.to(ACC) + x * dropped(m, start, N, threshold, scale, seed, offset, base_ptr, EVEN, ACC, BLOCK_N, VEC)
    else:
        return residual.to(ACC) + x


@triton.jit
def normed(s, mean, rstd, w_ptr, b_ptr, start, N, ACC: tl.constexpr, VEC: tl.constexpr, COPIES: tl.constexpr):
    y = (s - mean) * rstd
    if w_ptr is not None:
        y *= line(w_ptr, start, N, s.shape[1], VEC, COPIES).to(ACC)
    if b_ptr is not None:
        y += line(b_ptr, start, N, s.shape[1], VEC, COPIES).to(ACC)
    return y


@triton.jit
def residual_norm_long(
    out_rows, sum_rows, x_ptr, residual_ptr, v_ptr, w_ptr, b_ptr, base_ptr, m, lane, inside, shape_m, stride_m, shape_n, stride_n, N, eps,
    threshold, scale, seed, offset, CENTER: tl.constexpr, DROP: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Mean and rstd of rows whose sums are stored and read once more. Squares are summed relative to the mean of the first tile, as in
    `row_moments`."""
    RANK_N: tl.constexpr = len(shape_n)
    near = tl.zeros((BLOCK_M, 1), ACC)
    if CENTER:
        tile = stream_tile(x_ptr, residual_ptr, v_ptr, base_ptr, m, 0, lane, inside, shape_m, stride_m, shape_n, stride_n, N, threshold,
                           scale, seed, offset, DROP, EVEN, ACC, BLOCK_N, VEC, ALIGN, COPIES).to(sum_rows.dtype.element_ty)
        near = tl.sum(tl.where(lane < N, tile.to(ACC), 0), 1, keep_dims=True) / tl.minimum(N, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    square = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        s = stream_tile(x_ptr, residual_ptr, v_ptr, base_ptr, m, j, lane, inside, shape_m, stride_m, shape_n, stride_n, N, threshold,
                        scale, seed, offset, DROP, EVEN, ACC, BLOCK_N, VEC, ALIGN, COPIES).to(sum_rows.dtype.element_ty)
        tl.store(side_by_side(sum_rows, offsets(j + lane, shape_n, stride_n, RANK_N), VEC), s, mask=inside & (j + lane < N))
        away = tl.where(inside & (j + lane < N), s.to(ACC) - near, 0)
        total += away
        square += away * away
    tl.debug_barrier()                                           # what other threads stored is read below
    mean, rstd = moments_from(near, total, square, N, eps, CENTER)
    for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        n = j + lane
        s = tl.load(sum_rows + offsets(n, shape_n, stride_n, RANK_N), mask=inside & (n < N), other=0).to(ACC)
        y = normed(s, mean, rstd, w_ptr, b_ptr, j, N, ACC, VEC, COPIES)
        tl.store(side_by_side(out_rows, offsets(n, shape_n, stride_n), VEC), y, mask=inside & (n < N))
    return mean, rstd


@triton.jit(do_not_specialize=["threshold", "scale", "seed", "offset"])
def residual_norm_kernel(
    out_ptr, sum_ptr, mean_ptr, rstd_ptr, x_ptr, residual_ptr, v_ptr, w_ptr, b_ptr, base_ptr, shape_m, stride_m, shape_n, stride_n,
    M, N, eps, threshold: tl.int64, scale, seed: tl.int64, offset: tl.int64,
    CENTER: tl.constexpr, DROP: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr,
    STAGES: tl.constexpr, HELD: tl.constexpr,
):
    """A row that fits in registers is read once; of a longer one the sum comes back from the cache. Operands are out, sum, x, residual,
    then mean and rstd, which have rows only."""
    RANK: tl.constexpr = len(shape_m)
    RANK_N: tl.constexpr = len(shape_n)
    N = even(N, ALIGN)
    lane = lanes(BLOCK_N, WIDE)
    for i in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.num_programs(0), num_stages=1 if LOOP else STAGES):
        m = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        inside = m < M
        out_rows, sum_rows = out_ptr + offsets(m, shape_m, stride_m, 0, ALIGN), sum_ptr + offsets(m, shape_m, stride_m, RANK, ALIGN)
        if LOOP:
            mean, rstd = residual_norm_long(
                out_rows, sum_rows, x_ptr, residual_ptr, v_ptr, w_ptr, b_ptr, base_ptr, m, lane, inside, shape_m, stride_m, shape_n,
                stride_n, N, eps, threshold, scale, seed, offset, CENTER, DROP, EVEN, ACC, BLOCK_M, BLOCK_N, VEC, ALIGN, COPIES, STAGES)
        else:
            held = ()
            for k in tl.static_range(HELD):
                s = stream_tile(x_ptr, residual_ptr, v_ptr, base_ptr, m, k * BLOCK_N, lane, inside, shape_m, stride_m, shape_n, stride_n, N,
                                threshold, scale, seed, offset, DROP, EVEN, ACC, BLOCK_N, VEC, ALIGN, COPIES)
                held = held + (s.to(sum_ptr.dtype.element_ty),)
            for k in tl.static_range(HELD):
                n = k * BLOCK_N + lane
                tl.store(side_by_side(sum_rows, offsets(n, shape_n, stride_n, RANK_N), VEC), held[k], mask=inside & (n < N))
            mean = tl.zeros((BLOCK_M, 1), ACC)
            if CENTER:
                mean = tl.sum(total_of(held, ACC), 1, keep_dims=True) / N
            rstd = 1 / tl.sqrt(tl.sum(squares(held, mean, lane, N, ACC), 1, keep_dims=True) / N + eps)
            for k in tl.static_range(HELD):
                n = k * BLOCK_N + lane
                y = normed(again(held[k], ACC), mean, rstd, w_ptr, b_ptr, k * BLOCK_N, N, ACC, VEC, COPIES)
                tl.store(side_by_side(out_rows, offsets(n, shape_n, stride_n), VEC), y, mask=inside & (n < N))
        tl.store(mean_ptr + offsets(m, shape_m, stride_m, 4 * RANK), mean, mask=inside)
        tl.store(rstd_ptr + offsets(m, shape_m, stride_m, 5 * RANK), rstd, mask=inside)


@triton.jit
def slope_tiles(
    g_ptr, g_sum_ptr, sum_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, FIRST: tl.constexpr, VEC: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Tiles of g, s and, if there is one, g_s, operands FIRST, FIRST + 2 and FIRST + 1; 0 outside."""
    RANK_M: tl.constexpr = len(shape_m)
    RANK_N: tl.constexpr = len(shape_n)
    valid = inside & (n < N)
    g_rows = g_ptr + offsets(m, shape_m, stride_m, FIRST * RANK_M, ALIGN)
    g_ptrs = side_by_side(g_rows, offsets(n, shape_n, stride_n, FIRST * RANK_N), VEC)
    s_rows = sum_ptr + offsets(m, shape_m, stride_m, (FIRST + 2) * RANK_M, ALIGN)
    s_ptrs = side_by_side(s_rows, offsets(n, shape_n, stride_n, (FIRST + 2) * RANK_N), VEC)
    g, s = tl.load(g_ptrs, mask=valid, other=0), tl.load(s_ptrs, mask=valid, other=0)
    if g_sum_ptr is None:
        return g, s
    else:
        g_sum_rows = g_sum_ptr + offsets(m, shape_m, stride_m, (FIRST + 1) * RANK_M, ALIGN)
        g_sum_ptrs = side_by_side(g_sum_rows, offsets(n, shape_n, stride_n, (FIRST + 1) * RANK_N), VEC)
        return g, s, tl.load(g_sum_ptrs, mask=valid, other=0)


@triton.jit
def onto(tiles, slope, ACC: tl.constexpr):
    """What the sum's own gradient, if there is one among the tiles, and the norm's slope add up to."""
    if len(tiles) == 2:
        return slope
    else:
        return tiles[2].to(ACC) + slope


@triton.jit
def weighted(g, w, k, w_ptr, start, N, ACC: tl.constexpr, VEC: tl.constexpr, COPIES: tl.constexpr):
    """g times the weights: the k-th of `w`, if they were kept."""
    if w is not None:
        g *= w[k].to(ACC)
    elif w_ptr is not None:
        g *= line(w_ptr, start, N, g.shape[1], VEC, COPIES).to(ACC)
    return g


@triton.jit
def residual_norm_backward_long(
    gs_rows, gx_rows, g_ptr, g_sum_ptr, sum_ptr, w_ptr, base_ptr, m, lane, inside, mean, rstd, shape_m, stride_m, shape_n, stride_n, N,
    threshold, scale, seed, offset, FIRST: tl.constexpr, CENTER: tl.constexpr, DROP: tl.constexpr, EVEN: tl.constexpr,
    ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gradients of rows that are read twice."""
    RANK_N: tl.constexpr = len(shape_n)
    sum_g = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    sum_gx = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        tiles = slope_tiles(g_ptr, g_sum_ptr, sum_ptr, m, j + lane, inside, N, shape_m, stride_m, shape_n, stride_n, FIRST, VEC, ALIGN)
        g = weighted(tiles[0].to(ACC), None, 0, w_ptr, j, N, ACC, VEC, COPIES)
        sum_g += g
        sum_gx += g * ((tiles[1].to(ACC) - mean) * rstd)
    shift, slope = tl.sum(sum_g, 1, keep_dims=True) / N, tl.sum(sum_gx, 1, keep_dims=True) / N
    for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        n = j + lane
        valid = inside & (n < N)
        tiles = slope_tiles(g_ptr, g_sum_ptr, sum_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, FIRST, VEC, ALIGN)
        g = weighted(tiles[0].to(ACC), None, 0, w_ptr, j, N, ACC, VEC, COPIES)
        gs = onto(tiles, norm_slope(g, (tiles[1].to(ACC) - mean) * rstd, rstd, shift, slope, CENTER), ACC)
        tl.store(side_by_side(gs_rows, offsets(n, shape_n, stride_n), VEC), gs, mask=valid)
        if gx_rows is not None:
            gx = gs
            if DROP:
                gx *= dropped(m, j, N, threshold, scale, seed, offset, base_ptr, EVEN, ACC, BLOCK_N, VEC)
            tl.store(side_by_side(gx_rows, offsets(n, shape_n, stride_n, RANK_N), VEC), gx, mask=valid)


@triton.jit
def residual_norm_backward_short(
    gs_rows, gx_rows, g_ptr, g_sum_ptr, sum_ptr, w_ptr, w, base_ptr, m, lane, inside, mean, rstd, sums, shape_m, stride_m, shape_n,
    stride_n, N, threshold, scale, seed, offset, FIRST: tl.constexpr, CENTER: tl.constexpr, DROP: tl.constexpr, EVEN: tl.constexpr,
    PARTIAL: tl.constexpr, BIASED: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr,
    COPIES: tl.constexpr, HELD: tl.constexpr,
):
    """Gradients of rows that are held in HELD tiles; returns `sums`, of gw, of gb and of gv, with what they add."""
    RANK_N: tl.constexpr = len(shape_n)
    tiles = ()
    for k in tl.static_range(HELD):
        tiles = tiles + (slope_tiles(g_ptr, g_sum_ptr, sum_ptr, m, k * BLOCK_N + lane, inside, N, shape_m, stride_m, shape_n, stride_n,
                                     FIRST, VEC, ALIGN),)
    shift_terms = None
    slope_terms = None
    for k in tl.static_range(HELD):
        first = weighted(tiles[k][0].to(ACC), w, k, w_ptr, k * BLOCK_N, N, ACC, VEC, COPIES)
        second = first * ((tiles[k][1].to(ACC) - mean) * rstd)
        shift_terms = first if shift_terms is None else shift_terms + first
        slope_terms = second if slope_terms is None else slope_terms + second
    if CENTER:
        shift, slope = tl.reduce((shift_terms, slope_terms), 1, affine_combine, keep_dims=True)
    else:
        shift, slope = mean, tl.sum(slope_terms, 1, keep_dims=True)
    gw, gb, gv = (), (), ()
    for k in tl.static_range(HELD):
        n = k * BLOCK_N + lane
        valid = inside & (n < N)
        g, x = again(tiles[k][0], ACC), (again(tiles[k][1], ACC) - mean) * rstd
        if PARTIAL:
            gw = gw + (sums[0][k] + g * x,)
            if CENTER:
                gb = gb + (sums[1][k] + g,)
        g = weighted(g, w, k, w_ptr, k * BLOCK_N, N, ACC, VEC, COPIES)
        gs = onto(tiles[k], norm_slope(g, x, rstd, shift / N, slope / N, CENTER), ACC)
        tl.store(side_by_side(gs_rows, offsets(n, shape_n, stride_n), VEC), gs, mask=valid)
        if gx_rows is not None:
            gx = gs
            if DROP:
                gx *= dropped(m, k * BLOCK_N, N, threshold, scale, seed, offset, base_ptr, EVEN, ACC, BLOCK_N, VEC)
            if PARTIAL and BIASED:
                gv = gv + (sums[2][k] + gx,)
            tl.store(side_by_side(gx_rows, offsets(n, shape_n, stride_n, RANK_N), VEC), gx, mask=valid)
    return gw, gb, gv


@triton.jit(do_not_specialize=["threshold", "scale", "seed", "offset"])
def residual_norm_backward_kernel(
    gs_ptr, gx_ptr, gw_ptr, gb_ptr, gv_ptr, g_ptr, g_sum_ptr, sum_ptr, mean_ptr, rstd_ptr, w_ptr, base_ptr,
    shape_m, stride_m, shape_n, stride_n, M, N, threshold: tl.int64, scale, seed: tl.int64, offset: tl.int64,
    CENTER: tl.constexpr, DROP: tl.constexpr, EVEN: tl.constexpr, PARTIAL: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr, VEC: tl.constexpr, ALIGN: tl.constexpr, COPIES: tl.constexpr,
    STAGES: tl.constexpr, HELD: tl.constexpr,
):
    """Gradient of the residual and, unless gx_ptr is None, of x; with PARTIAL every program also adds gw, gb and,
    unless gv_ptr is None, gv of all its rows. Operands are gs, gx (if there is one), g, g_s, s; g_sum_ptr may be None; mean and rstd are
    contiguous.
    Long because those three sums, of rows that fit in registers, are carried from row to row in registers."""
    RANK: tl.constexpr = len(shape_m)
    FIRST: tl.constexpr = 2 if gx_ptr is not None else 1
    N = even(N, ALIGN)
    lane = lanes(BLOCK_N, WIDE)
    gw, gb, gv = (), (), ()
    if PARTIAL:
        gw = zeros(BLOCK_M, BLOCK_N, HELD, ACC)
        if CENTER:
            gb = zeros(BLOCK_M, BLOCK_N, HELD, ACC)
        if gv_ptr is not None:
            gv = zeros(BLOCK_M, BLOCK_N, HELD, ACC)
    w = None
    if STAGES > 1 and not LOOP:
        if w_ptr is not None:
            w = lines(w_ptr, N, BLOCK_N, HELD, VEC, COPIES)
    for i in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.num_programs(0), num_stages=1 if LOOP else STAGES):
        m = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        rstd = tl.load(rstd_ptr + m, mask=m < M, other=0).to(ACC)[:, None]
        mean = rstd * 0
        if CENTER:
            mean = tl.load(mean_ptr + m, mask=m < M, other=0).to(ACC)[:, None]
        m = m[:, None]
        inside = m < M
        gs_rows = gs_ptr + offsets(m, shape_m, stride_m, 0, ALIGN)
        gx_rows = None if gx_ptr is None else gx_ptr + offsets(m, shape_m, stride_m, RANK, ALIGN)
        if LOOP:
            residual_norm_backward_long(
                gs_rows, gx_rows, g_ptr, g_sum_ptr, sum_ptr, w_ptr, base_ptr, m, lane, inside, mean, rstd, shape_m, stride_m, shape_n,
                stride_n, N, threshold, scale, seed, offset, FIRST, CENTER, DROP, EVEN, ACC, BLOCK_M, BLOCK_N, VEC, ALIGN, COPIES, STAGES)
        else:
            gw, gb, gv = residual_norm_backward_short(
                gs_rows, gx_rows, g_ptr, g_sum_ptr, sum_ptr, w_ptr, w, base_ptr, m, lane, inside, mean, rstd, (gw, gb, gv), shape_m,
                stride_m, shape_n, stride_n, N, threshold, scale, seed, offset, FIRST, CENTER, DROP, EVEN, PARTIAL, gv_ptr is not None, ACC,
                BLOCK_N, VEC, ALIGN, COPIES, HELD)
    store_lines(gw_ptr, gw, N, VEC)
    store_lines(gb_ptr, gb, N, VEC)
    store_lines(gv_ptr, gv, N, VEC)
