"""Rotary position embedding: pairs of features turned by the angle of their position; backward is the turn by the opposite angle.

    y_a = x_a · cos - x_b · sin          y_b = x_b · cos + x_a · sin

A pair is (x_i, x_{i + P}) of the first 2 P features, or (x_{2i}, x_{2i + 1}) where INTERLEAVED; the other features pass through.
"""

import triton
import triton.language as tl

from .reduce import offsets


@triton.jit
def features(COUNT: tl.constexpr, WIDE: tl.constexpr):
    """The numbers of features. WIDE: what they lie apart, all together, may pass 2³¹."""
    n = tl.arange(0, COUNT)[None, None, :]
    return n.to(tl.int64) if WIDE else n


@triton.jit
def rotary_kernel(
    out_ptr, x_ptr, cos_ptr, sin_ptr, shape_m, stride_m, shape_h, stride_h, stride_on, stride_xn, stride_cn, stride_sn, M, H, P, D,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, ALONG_M: tl.constexpr,
    BLOCK_H: tl.constexpr, TURNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, REST: tl.constexpr,
):
    """M rows of cos and sin, of P columns, each for H rows of out and x, of D. stride_m holds the strides of out, x, cos and sin, stride_h
    those of out and x. REST covers the features that pass through, 0 if there are none. A program has BLOCK_H rows for each row of the
    tables that it loads, TURNS times, and reads its rows before it writes them: out may be x. ALONG_M: the next program has the next of the
    M."""
    RANK: tl.constexpr = len(shape_m)
    if ALONG_M:
        tile_m, tile_h = tl.program_id(0) % tl.cdiv(M, BLOCK_M), tl.program_id(0) // tl.cdiv(M, BLOCK_M)
    else:
        tile_m, tile_h = tl.program_id(0) // tl.cdiv(H, BLOCK_H * TURNS), tl.program_id(0) % tl.cdiv(H, BLOCK_H * TURNS)
    m = (tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[None, :, None]
    n = features(BLOCK_P, WIDE)
    table = (m < M) & (n < P)
    cos = tl.load(cos_ptr + offsets(m, shape_m, stride_m, 2 * RANK) + n * stride_cn, mask=table, other=0).to(ACC)
    sin = tl.load(sin_ptr + offsets(m, shape_m, stride_m, 3 * RANK) + n * stride_sn, mask=table, other=0).to(ACC)
    if INVERSE:
        sin = -sin
    for turn in range(TURNS):
        h = ((tile_h.to(tl.int64) * TURNS + turn) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None, None]
        inside = (m < M) & (h < H)
        out_rows = out_ptr + offsets(m, shape_m, stride_m) + offsets(h, shape_h, stride_h)
        x_rows = x_ptr + offsets(m, shape_m, stride_m, RANK) + offsets(h, shape_h, stride_h, len(shape_h))
        if INTERLEAVED:
            both = features(2 * BLOCK_P, WIDE)
            pairs = inside & (both < 2 * P)
            x = tl.load(x_rows + both * stride_xn, mask=pairs, other=0).to(ACC)
            a, b = tl.split(tl.reshape(x, (BLOCK_H, BLOCK_M, BLOCK_P, 2)))
            y = tl.interleave(a * cos - b * sin, b * cos + a * sin)
            tl.store(out_rows + both * stride_on, y, mask=pairs)
        else:
            valid = inside & (n < P)
            a = tl.load(x_rows + n * stride_xn, mask=valid, other=0).to(ACC)
            b = tl.load(x_rows + (n + P) * stride_xn, mask=valid, other=0).to(ACC)
            tl.store(out_rows + n * stride_on, a * cos - b * sin, mask=valid)
            tl.store(out_rows + (n + P) * stride_on, b * cos + a * sin, mask=valid)
        if REST:
            others = 2 * P + features(REST, WIDE)
            rest = inside & (others < D)
            tl.store(out_rows + others * stride_on, tl.load(x_rows + others * stride_xn, mask=rest), mask=rest)
