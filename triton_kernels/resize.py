"""Images at other sizes, and what comes back to their pixels. Tiles of planes × places are those of avg_pooling.py.

HOW is, for each of the two dims, 0 for the pixel that begins nearest, 1 for the nearest one, 2 for a line between two and 3 for a cubic
through four; place i of the result lies `scale` pixels behind the one before it.
"""
import triton
import triton.language as tl

from .avg_pooling import place_offsets, plane_pointers, pointers, tile_of
from .sampling import share


@triton.jit
def around(i, scale, HOW: tl.constexpr, CORNERS: tl.constexpr, ACC: tl.constexpr):
    """Of place i of the result: the first of the pixels around it, and how far it is behind the last of those that are not behind it."""
    if HOW == 0 or (HOW > 1 and CORNERS):
        place = i.to(ACC) * scale.to(ACC)
    elif HOW == 1:
        place = (i.to(ACC) + 0.5) * scale.to(ACC)
    else:
        place = (i.to(ACC) + 0.5) * scale.to(ACC) - 0.5
    if HOW == 2:
        place = tl.maximum(place, 0.0)
    low = tl.floor(place)
    return low.to(i.dtype) - (1 if HOW == 3 else 0), place - low


@triton.jit
def inside(i, n):
    return tl.minimum(tl.maximum(i, 0), n - 1)


@triton.jit
def resize_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, scale_h, scale_w, HOW: tl.constexpr, TAPS: tl.constexpr,
                  CORNERS: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr,
                  BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """out (N, C, P, Q) from x (N, C, H, W)."""
    some, there, n, c, p, q = tile_of(planes, C, P, Q, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    HIGH: tl.constexpr = TAPS[0]
    LONG: tl.constexpr = TAPS[1]
    h, down = around(p, scale_h, HOW[0], CORNERS, ACC)
    w, right = around(q, scale_w, HOW[1], CORNERS, ACC)
    plane_ptrs, out_ptrs = plane_pointers(x_ptr, n, c, stride_x), pointers(out_ptr, n, c, p, q, stride_o, WIDE)
    if HIGH * LONG == 1:                                                 # any dtype
        x = tl.load(plane_ptrs + place_offsets(inside(h, H), inside(w, W), stride_x, WIDE))
        tl.store(out_ptrs, x, mask=some)
    else:
        total = tl.zeros((BLOCK_P, BLOCK_C), ACC)
        for r in tl.static_range(HIGH):
            row = tl.zeros((BLOCK_P, BLOCK_C), ACC)
            for s in tl.static_range(LONG):
                x = tl.load(plane_ptrs + place_offsets(inside(h + r, H), inside(w + s, W), stride_x, WIDE))
                row += x.to(ACC) * share(right, s, LONG, 0)[:, None]
            total += row * share(down, r, HIGH, 0)[:, None]
        tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=some)


@triton.jit
def earliest(j, pace, SPARE: tl.constexpr, HOW: tl.constexpr, CORNERS: tl.constexpr):
    """The first place that may read pixel j, or one up to 2 · SPARE before it, as places are rounded; `pace` are places to a pixel."""
    half: tl.constexpr = 0.0 if HOW == 0 or (HOW > 1 and CORNERS) else 0.5
    if HOW < 2:
        first = -tl.floor(half - j.to(tl.float64) * pace)
    else:
        first = tl.floor((j.to(tl.float64) - (HOW - 1) + half) * pace - half) + 1
    return tl.maximum(first.to(j.dtype) - SPARE, 0)


@triton.jit
def given(i, j, L, size, scale, HOW: tl.constexpr, TAPS: tl.constexpr, CORNERS: tl.constexpr, ACC: tl.constexpr):
    """With which weight place i of `size` reads pixel j of L, and whether it does."""
    first, t = around(i, scale, HOW, CORNERS, ACC)
    weight, reads = tl.zeros(j.shape, ACC), j < 0
    for k in tl.static_range(TAPS):
        this = (inside(first + k, L) == j) & (i < size)
        weight, reads = weight + tl.where(this, share(t, k, TAPS, 0), 0.0), reads | this
    return weight, reads


@triton.jit
def resize_back_kernel(out_ptr, g_ptr, stride_o, stride_g, planes, C, H, W, P, Q, scale_h, scale_w, pace_h, pace_w, SPARE: tl.constexpr,
                       COUNT: tl.constexpr, UNROLL: tl.constexpr, HOW: tl.constexpr, TAPS: tl.constexpr, CORNERS: tl.constexpr,
                       ACC: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr,
                       BLOCK_C: tl.constexpr):
    """out (N, C, H, W): what g (N, C, P, Q) gives to each pixel, row by row. At most COUNT places in a row read one, along each dim."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    p0, q0 = earliest(h, pace_h, SPARE[0], HOW[0], CORNERS), earliest(w, pace_w, SPARE[1], HOW[1], CORNERS)
    g_ptrs = plane_pointers(g_ptr, n, c, stride_g)
    total = tl.zeros((BLOCK_P, BLOCK_C), ACC)
    ROWS: tl.constexpr = COUNT[0]
    COLUMNS: tl.constexpr = COUNT[1]
    if UNROLL:
        for a in tl.static_range(ROWS):
            down, row = given(p0 + a, h, H, P, scale_h, HOW[0], TAPS[0], CORNERS, ACC)
            for b in tl.static_range(COLUMNS):
                right, reads = given(q0 + b, w, W, Q, scale_w, HOW[1], TAPS[1], CORNERS, ACC)
                g = tl.load(g_ptrs + place_offsets(p0 + a, q0 + b, stride_g, WIDE), mask=there & (row & reads)[:, None], other=0)
                total += g.to(ACC) * (down * right)[:, None]
    else:
        for a in range(ROWS):
            down, row = given(p0 + a, h, H, P, scale_h, HOW[0], TAPS[0], CORNERS, ACC)
            for b in range(COLUMNS):
                right, reads = given(q0 + b, w, W, Q, scale_w, HOW[1], TAPS[1], CORNERS, ACC)
                g = tl.load(g_ptrs + place_offsets(p0 + a, q0 + b, stride_g, WIDE), mask=there & (row & reads)[:, None], other=0)
                total += g.to(ACC) * (down * right)[:, None]
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), total.to(out_ptr.dtype.element_ty), mask=some)
