"""Images read at any places, and what places give back to the pixels around them.

A place has TAPS pixels around it along each dim: the nearest (1), two between which the value is linear (2), or four under Keys' cubic
with a = -3/4 (4). ORDERS are how often weights are differentiated by the coordinates of depth, height and width: the slope of a sampled
image is the same sum with other weights. Images of two dims have a depth of 1, and coordinates x and y alone.
"""
import triton
import triton.language as tl

from .avg_pooling import divided
from .scalar import round_even


@triton.jit
def reflected(x, n, CORNERS: tl.constexpr):
    """x mirrored into the image, at the middles of the outer pixels with CORNERS, else at their edges; whether it runs backwards there."""
    low = 0.0 if CORNERS else -0.5
    span = n - 1 if CORNERS else n
    distance = tl.abs(x - low)
    turns = tl.floor(distance / span)
    rest = distance - turns * span
    odd = turns - 2 * tl.floor(turns * 0.5) != 0
    return tl.where(odd, span - rest, rest) + low, odd != (x < low)


@triton.jit
def clipped(x, n):
    """x from 0 to n - 1; what is not a number becomes 0."""
    return tl.where(x > 0, tl.where(x < n - 1, x, n - 1), 0.0)


@triton.jit
def along(x, n, TAPS: tl.constexpr, PADDING: tl.constexpr, CORNERS: tl.constexpr):
    """Of a coordinate from -1 to 1 among n pixels: the first of the pixels around it, how far it is behind the last of those that are not
    behind it, and how fast that moves with the coordinate."""
    scale = (n - 1) * 0.5 if CORNERS else n * 0.5
    x = (x + 1) * scale if CORNERS else ((x + 1) * n - 1) * 0.5
    slope = x * 0 + scale
    if TAPS < 4 and PADDING > 0:
        if PADDING == 2:
            x, back = reflected(x, n, CORNERS)
            slope = tl.where(back, -slope, slope)
        slope = tl.where((x > 0) & (x < n - 1), slope, 0.0)
        x = clipped(x, n)
    if TAPS == 1:
        return round_even(x), tl.zeros_like(x), slope
    else:
        low = tl.floor(x)
        return low - (TAPS // 2 - 1), x - low, slope


@triton.jit
def pixel(first, n, TAP: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr, CORNERS: tl.constexpr):
    """One of the pixels around a place, 0 where it is outside of the image, and whether it is inside."""
    at = first + TAP
    if TAPS == 4 and PADDING > 0:
        if PADDING == 2:
            at, _ = reflected(at, n, CORNERS)
        at = clipped(at, n)
    inside = (at >= 0) & (at <= n - 1)
    return tl.where(inside, at, 0.0).to(tl.int32), inside


@triton.jit
def share(t, TAP: tl.constexpr, TAPS: tl.constexpr, ORDER: tl.constexpr):
    """The weight of a pixel around a place that is t behind the one in the middle, differentiated ORDER times by t."""
    if TAPS == 1:
        return tl.zeros_like(t) + 1
    elif TAPS == 2:
        if ORDER == 0:
            return t if TAP == 1 else 1 - t
        else:
            return t * 0 + (0.0 if ORDER > 1 else 1.0 if TAP == 1 else -1.0)
    else:
        OUTER: tl.constexpr = TAP % 3 == 0
        a: tl.constexpr = -0.75 if OUTER else 1.25
        b: tl.constexpr = 1.5 if OUTER else -2.25
        c: tl.constexpr = -0.75 if OUTER else 0.0
        u = 1 - t if TAP >= 2 else t
        if ORDER == 0:
            w = ((a * u + b) * u + c) * u + (0.0 if OUTER else 1.0)
        elif ORDER == 1:
            w = (3 * a * u + 2 * b) * u + c
        elif ORDER == 2:
            w = 6 * a * u + 2 * b
        else:
            w = u * 0 + (6 * a if ORDER == 3 else 0.0)
        return -w if TAP >= 2 and ORDER % 2 == 1 else w


@triton.jit
def places_at(grid_ptr, i, mask, P, stride_n, stride_p, stride_k, D, H, W, TAPS: tl.constexpr, DEEP: tl.constexpr, PADDING: tl.constexpr,
              CORNERS: tl.constexpr, ACC: tl.constexpr):
    """`along` of depth, height and width, of point i of the grid (N, P, 2 or 3)."""
    at = grid_ptr + (i // P).to(tl.int64) * stride_n + (i % P).to(tl.int64) * stride_p
    w = along(tl.load(at, mask=mask, other=0).to(ACC), W, TAPS, PADDING, CORNERS)
    h = along(tl.load(at + stride_k, mask=mask, other=0).to(ACC), H, TAPS, PADDING, CORNERS)
    if DEEP:
        d = along(tl.load(at + 2 * stride_k, mask=mask, other=0).to(ACC), D, TAPS, PADDING, CORNERS)
    else:
        zero = tl.zeros(i.shape, ACC)
        d = zero, zero, zero
    return d, h, w


@triton.jit
def tap_of(places, D, H, W, strides, K: tl.constexpr, TAPS: tl.constexpr, DEEP: tl.constexpr, PADDING: tl.constexpr,
           CORNERS: tl.constexpr, WIDE: tl.constexpr):
    """Where the K-th pixel around each place lies in an image, whether it is inside, and which pixel of a dim it is for `share`."""
    d, h, w = places
    row, row_inside = pixel(h[0], H, K // TAPS % TAPS, TAPS, PADDING, CORNERS)
    column, inside = pixel(w[0], W, K % TAPS, TAPS, PADDING, CORNERS)
    if WIDE:
        row, column = row.to(tl.int64), column.to(tl.int64)
    at, inside = row * strides[1] + column * strides[2], inside & row_inside
    if DEEP:
        layer, there = pixel(d[0], D, K // (TAPS * TAPS), TAPS, PADDING, CORNERS)
        at, inside = at + (layer.to(tl.int64) if WIDE else layer) * strides[0], inside & there
    return at, inside


@triton.jit
def weight_of(places, K: tl.constexpr, D_ORDER: tl.constexpr, H_ORDER: tl.constexpr, W_ORDER: tl.constexpr, TAPS: tl.constexpr,
              DEEP: tl.constexpr):
    """The weight of the K-th pixel around each place, differentiated by the coordinates."""
    d, h, w = places
    weight = share(h[1], K // TAPS % TAPS, TAPS, H_ORDER) * share(w[1], K % TAPS, TAPS, W_ORDER)
    if DEEP:
        weight *= share(d[1], K // (TAPS * TAPS), TAPS, D_ORDER)
        for _ in tl.static_range(D_ORDER):
            weight *= d[2]
    for _ in tl.static_range(H_ORDER):
        weight *= h[2]
    for _ in tl.static_range(W_ORDER):
        weight *= w[2]
    return weight


@triton.jit
def sample_kernel(out_ptr, x_ptr, grid_ptr, stride_x, stride_g, N, C, P, D, H, W, TAPS: tl.constexpr, DEEP: tl.constexpr,
                  PADDING: tl.constexpr, CORNERS: tl.constexpr, ORDERS: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
                  EVEN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """out (N, C, P): the images x (N, C, D, H, W) at the places of a grid (N, P, 2 or 3), where channels are contiguous. EVEN: BLOCK_C
    divides C."""
    tiles = tl.cdiv(C, BLOCK_C)
    i = tl.program_id(0) // tiles * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(0) % tiles * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = i < N * P
    i = tl.where(mask, i, 0)
    n, p = i // P, i % P
    places = places_at(grid_ptr, i, mask, P, stride_g[0], stride_g[1], stride_g[2], D, H, W, TAPS, DEEP, PADDING, CORNERS, ACC)
    there = mask[:, None] if EVEN else mask[:, None] & (c < C)[None, :]
    plane_ptrs = x_ptr + c.to(tl.int64)[None, :] * stride_x[1]
    image = n.to(tl.int64) * stride_x[0]
    total = tl.zeros((BLOCK_P, BLOCK_C), ACC)
    for k in tl.static_range(TAPS * TAPS * (TAPS if DEEP else 1)):
        at, inside = tap_of(places, D, H, W, (stride_x[2], stride_x[3], stride_x[4]), k, TAPS, DEEP, PADDING, CORNERS, WIDE)
        weight = weight_of(places, k, ORDERS[0], ORDERS[1], ORDERS[2], TAPS, DEEP)
        x = tl.load(plane_ptrs + (image + at)[:, None], mask=there & inside[:, None], other=0)
        total += x.to(ACC) * weight[:, None]
    out_ptrs = out_ptr + (n.to(tl.int64) * C * P + p)[:, None] + (c.to(tl.int64) * P)[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def sample_planes_kernel(out_ptr, x_ptr, grid_ptr, stride_x, stride_g, N, C, P, D, H, W, chunk, TAPS: tl.constexpr, DEEP: tl.constexpr,
                         PADDING: tl.constexpr, CORNERS: tl.constexpr, ORDERS: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
                         EVEN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The same where places are neighbours. Program (places, part) has a `chunk` of the channels, BLOCK_C at a time: what a place needs is
    worked out once for all of them, and they are as far apart for all threads. EVEN: BLOCK_C divides C."""
    i = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    mask = i < N * P
    i = tl.where(mask, i, 0)                                             # so that one thread has one place, not a vector of them
    n, p = divided(i, P)
    places = places_at(grid_ptr, i, mask, P, stride_g[0], stride_g[1], stride_g[2], D, H, W, TAPS, DEEP, PADDING, CORNERS, ACC)
    first, step = tl.program_id(1) * chunk, tl.cast(stride_x[1], tl.int64)
    images = x_ptr + n.to(tl.int64) * stride_x[0] + first * step
    out_ptrs = out_ptr + (n.to(tl.int64) * C * P + p + first.to(tl.int64) * P)
    COUNT: tl.constexpr = TAPS * TAPS * (TAPS if DEEP else 1)
    ptrs, inside, weights = (), (), ()
    for k in tl.static_range(COUNT):                                     # what is outside has the address of a pixel that is there
        at, there = tap_of(places, D, H, W, (stride_x[2], stride_x[3], stride_x[4]), k, TAPS, DEEP, PADDING, CORNERS, WIDE)
        ptrs, inside = ptrs + (images + tl.where(there, at, 0),), inside + (there,)
        weights = weights + (weight_of(places, k, ORDERS[0], ORDERS[1], ORDERS[2], TAPS, DEEP),)
    for start in range(first, tl.minimum(first + chunk, C), BLOCK_C):
        totals = ()
        for b in tl.static_range(BLOCK_C):
            channel = (b if EVEN else tl.minimum(b, C - 1 - start)) * step
            total = tl.zeros((BLOCK_P,), ACC)
            for k in tl.static_range(COUNT):
                x = tl.where(inside[k], tl.load(ptrs[k] + channel).to(ACC), 0.0)     # its weight may be NaN
                total = tl.fma(x, weights[k], total)
            totals = totals + (total,)
        for b in tl.static_range(BLOCK_C):                               # a store between the loads would hold them up
            kept = mask if EVEN else mask & (start + b < C)
            tl.store(out_ptrs + tl.cast(P, tl.int64) * b, totals[b].to(out_ptr.dtype.element_ty), mask=kept)
        further = ()
        for k in tl.static_range(COUNT):
            further = further + (ptrs[k] + step * BLOCK_C,)
        ptrs, out_ptrs = further, out_ptrs + tl.cast(P, tl.int64) * BLOCK_C


@triton.jit
def sample_slope_kernel(out_ptr, g_ptr, x_ptr, grid_ptr, stride_y, stride_x, stride_g, N, C, P, D, H, W, TAPS: tl.constexpr,
                        DEEP: tl.constexpr, PADDING: tl.constexpr, CORNERS: tl.constexpr, ORDERS: tl.constexpr, ACC: tl.constexpr,
                        WIDE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """out (N, P, 2 or 3): the slopes of the sampled images along each coordinate, times g (N, C, P), summed over the channels, which are
    contiguous."""
    i = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    mask = i < N * P
    i = tl.where(mask, i, 0)
    n, p = (i // P).to(tl.int64), (i % P).to(tl.int64)
    places = places_at(grid_ptr, i, mask, P, stride_g[0], stride_g[1], stride_g[2], D, H, W, TAPS, DEEP, PADDING, CORNERS, ACC)
    by_d, by_h, by_w = (tl.zeros((BLOCK_P, BLOCK_C), ACC), tl.zeros((BLOCK_P, BLOCK_C), ACC), tl.zeros((BLOCK_P, BLOCK_C), ACC))
    for first in range(0, C, BLOCK_C):
        c = (first + tl.arange(0, BLOCK_C)).to(tl.int64)[None, :]
        there = mask[:, None] & (c < C)
        g = tl.load(g_ptr + (n * stride_y[0] + p * stride_y[2])[:, None] + c * stride_y[1], mask=there, other=0).to(ACC)
        for k in tl.static_range(TAPS * TAPS * (TAPS if DEEP else 1)):
            at, inside = tap_of(places, D, H, W, (stride_x[2], stride_x[3], stride_x[4]), k, TAPS, DEEP, PADDING, CORNERS, WIDE)
            x = tl.load(x_ptr + (n * stride_x[0] + at)[:, None] + c * stride_x[1], mask=there & inside[:, None], other=0).to(ACC) * g
            by_w += x * weight_of(places, k, ORDERS[0], ORDERS[1], ORDERS[2] + 1, TAPS, DEEP)[:, None]
            by_h += x * weight_of(places, k, ORDERS[0], ORDERS[1] + 1, ORDERS[2], TAPS, DEEP)[:, None]
            if DEEP:
                by_d += x * weight_of(places, k, ORDERS[0] + 1, ORDERS[1], ORDERS[2], TAPS, DEEP)[:, None]
    out_ptrs = out_ptr + i.to(tl.int64) * (3 if DEEP else 2)
    tl.store(out_ptrs, tl.sum(by_w, 1).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptrs + 1, tl.sum(by_h, 1).to(out_ptr.dtype.element_ty), mask=mask)
    if DEEP:
        tl.store(out_ptrs + 2, tl.sum(by_d, 1).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def sample_slope_planes_kernel(out_ptr, g_ptr, x_ptr, grid_ptr, stride_y, stride_x, stride_g, N, C, P, D, H, W, TAPS: tl.constexpr,
                               DEEP: tl.constexpr, PADDING: tl.constexpr, CORNERS: tl.constexpr, ORDERS: tl.constexpr,
                               ACC: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The same where places are neighbours, BLOCK_C channels at a time: first, for each pixel around a place, the sum over the channels of
    what it has times g, which weights of any slope are then for. EVEN: BLOCK_C divides C."""
    i = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    mask = i < N * P
    i = tl.where(mask, i, 0)
    n, p = divided(i, P)
    places = places_at(grid_ptr, i, mask, P, stride_g[0], stride_g[1], stride_g[2], D, H, W, TAPS, DEEP, PADDING, CORNERS, ACC)
    images, step = x_ptr + n.to(tl.int64) * stride_x[0], tl.cast(stride_x[1], tl.int64)
    g_ptrs, step_g = g_ptr + n.to(tl.int64) * stride_y[0] + p.to(tl.int64) * stride_y[2], tl.cast(stride_y[1], tl.int64)
    COUNT: tl.constexpr = TAPS * TAPS * (TAPS if DEEP else 1)
    ptrs, inside, totals = (), (), ()
    for k in tl.static_range(COUNT):                                     # what is outside has the address of a pixel that is there
        at, there = tap_of(places, D, H, W, (stride_x[2], stride_x[3], stride_x[4]), k, TAPS, DEEP, PADDING, CORNERS, WIDE)
        ptrs, inside = ptrs + (images + tl.where(there, at, 0),), inside + (there,)
        totals = totals + (tl.zeros((BLOCK_P,), ACC),)
    for start in range(0, C, BLOCK_C):
        for b in tl.static_range(BLOCK_C):
            channel = b if EVEN else tl.minimum(b, C - 1 - start)
            g, sums = tl.load(g_ptrs + channel * step_g).to(ACC), ()
            for k in tl.static_range(COUNT):
                x = tl.load(ptrs[k] + channel * step).to(ACC)
                sums = sums + (tl.fma(x, g, totals[k]) if EVEN else tl.where(start + b < C, tl.fma(x, g, totals[k]), totals[k]),)
            totals = sums
        further = ()
        for k in tl.static_range(COUNT):
            further = further + (ptrs[k] + step * BLOCK_C,)
        ptrs, g_ptrs = further, g_ptrs + step_g * BLOCK_C
    out_ptrs = out_ptr + i.to(tl.int64) * (3 if DEEP else 2)
    for d in tl.static_range(3 if DEEP else 2):
        total = tl.zeros((BLOCK_P,), ACC)
        for k in tl.static_range(COUNT):
            weight = weight_of(places, k, ORDERS[0] + (d == 2), ORDERS[1] + (d == 1), ORDERS[2] + (d == 0), TAPS, DEEP)
            total = tl.fma(tl.where(inside[k], totals[k], 0.0), weight, total)
        tl.store(out_ptrs + d, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def taps_kernel(pixel_ptr, weight_ptr, grid_ptr, stride_g, N, P, D, H, W, TAPS: tl.constexpr, DEEP: tl.constexpr, PADDING: tl.constexpr,
                CORNERS: tl.constexpr, ORDERS: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Of each point of a grid (N, P, 2 or 3) the pixels around it, counted through all images, -1 outside, and their weights."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < N * P
    places = places_at(grid_ptr, i, mask, P, stride_g[0], stride_g[1], stride_g[2], D, H, W, TAPS, DEEP, PADDING, CORNERS, ACC)
    COUNT: tl.constexpr = TAPS * TAPS * (TAPS if DEEP else 1)
    image, first = (i // P).to(pixel_ptr.dtype.element_ty) * (D * H * W), i.to(tl.int64) * COUNT
    for k in tl.static_range(COUNT):
        at, inside = tap_of(places, D, H, W, (H * W, W, 1), k, TAPS, DEEP, PADDING, CORNERS, False)
        tl.store(pixel_ptr + first + k, tl.where(inside, image + at, -1), mask=mask)
        tl.store(weight_ptr + first + k, weight_of(places, k, ORDERS[0], ORDERS[1], ORDERS[2], TAPS, DEEP), mask=mask)


@triton.jit
def middle(i, n, CORNERS: tl.constexpr, ACC: tl.constexpr):
    """The coordinate of pixel i of n: its middle, from -1 to 1 with CORNERS, else where the edges of the image are at -1 and 1."""
    if CORNERS:
        return tl.where(n > 1, (2 * i - (n - 1)).to(ACC) / tl.maximum(n - 1, 1), 0.0)
    else:
        return (2 * i + 1 - n).to(ACC) / n


@triton.jit
def affine_kernel(out_ptr, theta_ptr, strides, N, D, H, W, M: tl.constexpr, DEEP: tl.constexpr, CORNERS: tl.constexpr, ACC: tl.constexpr,
                  BLOCK: tl.constexpr):
    """out (N, D · H · W, M): theta (N, M, 3 or 4) times (x, y, 1) or (x, y, z, 1) of each pixel."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    point, m = i // M, i % M
    mask = i < N * D * H * W * M
    column, row, layer, n = point % W, point // W % H, point // (H * W) % D, point // (D * H * W)
    at = theta_ptr + n.to(tl.int64) * strides[0] + m.to(tl.int64) * strides[1]
    total = tl.load(at + (3 if DEEP else 2) * strides[2], mask=mask, other=0).to(ACC)
    total += middle(column, W, CORNERS, ACC) * tl.load(at, mask=mask, other=0).to(ACC)
    total += middle(row, H, CORNERS, ACC) * tl.load(at + strides[2], mask=mask, other=0).to(ACC)
    if DEEP:
        total += middle(layer, D, CORNERS, ACC) * tl.load(at + 2 * strides[2], mask=mask, other=0).to(ACC)
    tl.store(out_ptr + i, total.to(out_ptr.dtype.element_ty), mask=mask)
