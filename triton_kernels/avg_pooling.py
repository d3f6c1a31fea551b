"""Means of windows of (N, C, H, W), and their gradients as gathers, so that every sum has one order. max_pooling.py has the largest.

A window begins at p · stride - padding and has a fixed kernel, or, adaptive, it is part p of the n elements divided into `count`:
from floor(p · n / count) to ceil((p + 1) · n / count). Pairs are (height, width); what lies outside the input takes no part.
A program works on a tile of planes (n · C + c) × places (h · W + w, or p · Q + q). `TAPS` is the size of the largest window.
"""
import triton
import triton.language as tl


@triton.jit
def divided(i, n):
    """i // n and i % n of what is not negative: a sign costs five instructions more."""
    if i.dtype == tl.int64:
        return i // n, i % n
    else:
        quotient = (i.to(tl.uint32) // tl.cast(n, tl.uint32)).to(tl.int32)
        return quotient, i - quotient * n


@triton.jit
def tile_of(planes, C, H, W, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr,
            BLOCK_C: tl.constexpr):
    """Which elements of this program's tile there are, and which places; image and channel of the planes, row and column of the places.

    Places are the tile's first dim: where neither is contiguous for Triton to see, it lays neighbouring threads along that one. Places and
    planes past the last (if EVEN there are none) stand for the last, so that loads need no mask for them. C is None where images are as far
    apart as C planes. FLAT: the places of all planes are in one line, so that tiles are full; BLOCK_C is 1.
    """
    if FLAT:
        start = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK_P
        before, first = divided(start, H * W)
        more, place = divided(first.to(tl.int32) + tl.arange(0, BLOCK_P), H * W)
        plane = before.to(tl.int32) + more
        there = tl.full((BLOCK_P, 1), 1, tl.int1) if EVEN else (plane < planes)[:, None]
        some = there
        plane = tl.minimum(plane, planes - 1)[:, None]
    else:
        tiles = tl.cdiv(H * W, BLOCK_P)
        plane = tl.program_id(0) // tiles * BLOCK_C + tl.arange(0, BLOCK_C)
        place = tl.program_id(0) % tiles * BLOCK_P + tl.arange(0, BLOCK_P)
        there = (place < H * W)[:, None]
        place = tl.minimum(place, H * W - 1)
        if EVEN:
            some = tl.broadcast_to(there, (BLOCK_P, BLOCK_C))
        else:
            some = there & (plane < planes)[None, :]
            plane = tl.minimum(plane, planes - 1)
        plane = plane[None, :]
    row, column = divided(place, W)
    if C is None:
        return some, there, plane * 0, plane, row, column
    else:
        image, channel = divided(plane, C)
        return some, there, image, channel, row, column


@triton.jit
def plane_pointers(ptr, n, c, strides, MULTIPLE: tl.constexpr = 1):
    """Where planes begin; MULTIPLE divides all of their offsets."""
    n, c = n.to(tl.int64) * strides[0], c.to(tl.int64) * strides[1]
    if MULTIPLE > 1:                                                     # each by itself: what adds zero disappears, and with it the word
        n, c = tl.multiple_of(n, (MULTIPLE, MULTIPLE)), tl.multiple_of(c, (MULTIPLE, MULTIPLE))
    return ptr + n + c


@triton.jit
def place_offsets(h, w, strides, WIDE: tl.constexpr, MULTIPLE: tl.constexpr = 1):
    """Where places lie in a plane; MULTIPLE divides all of it."""
    if WIDE:
        h, w = h.to(tl.int64), w.to(tl.int64)
    places = h * strides[2] + w * strides[3]
    if MULTIPLE > 1:
        places = tl.multiple_of(places, MULTIPLE)
    return places[:, None]


@triton.jit
def pointers(ptr, n, c, h, w, strides, WIDE: tl.constexpr, MULTIPLE: tl.constexpr = 1):
    """Where (n, c, h, w) lie: a row of planes and a column of places."""
    return plane_pointers(ptr, n, c, strides, MULTIPLE) + place_offsets(h, w, strides, WIDE, MULTIPLE)


@triton.jit
def step_of(r, stride, WIDE: tl.constexpr):
    if WIDE:
        return tl.full((), r, tl.int64) * stride
    else:
        return r * stride


@triton.jit
def within(h, n):
    return (h >= 0) & (h < n)


@triton.jit
def window(p, n, count, stride, padding, ADAPTIVE: tl.constexpr):
    """Where window p begins, and the end of what it may read. ADAPTIVE is 2 where count · n passes 2³¹."""
    if ADAPTIVE:
        i = p.to(tl.int64) if ADAPTIVE == 2 else p
        return (i * n // count).to(p.dtype), (((i + 1) * n + count - 1) // count).to(p.dtype)
    else:
        return p * stride - padding, p * 0 + n


@triton.jit
def windows(h, n, count, reach, stride, padding, ADAPTIVE: tl.constexpr):
    """The first and last window that can hold element h; `reach` is from the first to the last element of a window."""
    if ADAPTIVE:
        i = h.to(tl.int64) if ADAPTIVE == 2 else h
        return (i * count // n).to(h.dtype), (((i + 1) * count + n - 1) // n - 1).to(h.dtype)
    else:
        return (tl.maximum(h + padding - reach, 0) + stride - 1) // stride, tl.minimum((h + padding) // stride, count - 1)


@triton.jit
def size_of(p, n, count, kernel, stride, padding, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr):
    """How many elements window p counts, with INCLUDE those in the padding too."""
    start, end = window(p, n, count, stride, padding, ADAPTIVE)
    if not ADAPTIVE:
        end = tl.minimum(start + kernel, n + padding)
        if not INCLUDE:
            start, end = tl.maximum(start, 0), tl.minimum(end, n)
    return end - start


@triton.jit
def widened(x):
    """Half types as float32."""
    return x.to(tl.float32) if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32 else x


@triton.jit
def mean_of(acc, p, q, H, W, P, Q, divisor, TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, ADAPTIVE: tl.constexpr,
            INCLUDE: tl.constexpr):
    """Sums of windows p, q over how many elements they count, or over `divisor`."""
    if divisor is None:
        share = (size_of(p, H, P, TAPS[0], STRIDE[0], PADDING[0], ADAPTIVE, INCLUDE)
                 * size_of(q, W, Q, TAPS[1], STRIDE[1], PADDING[1], ADAPTIVE, INCLUDE))
        return acc / share.to(acc.dtype)[:, None]
    else:
        return acc / divisor.to(acc.dtype)


@triton.jit(do_not_specialize=["divisor"])
def avg_pool_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, divisor, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                    ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, TAPS: tl.constexpr, UNROLL: tl.constexpr, ROWS: tl.constexpr,
                    WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The mean of each window, or its sum over `divisor`. A place is ROWS windows below each other, which share rows of the input."""
    some, there, n, c, p, q = tile_of(planes, C, tl.cdiv(P, ROWS), Q, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    p = p * ROWS
    h0, h_end = window(p, H, P, STRIDE[0], PADDING[0], ADAPTIVE)
    w0, w_end = window(q, W, Q, STRIDE[1], PADDING[1], ADAPTIVE)
    x_ptrs = pointers(x_ptr, n, c, h0, w0, stride_x, WIDE)
    HEIGHT: tl.constexpr = TAPS[0]
    WIDTH: tl.constexpr = TAPS[1]
    STEP: tl.constexpr = STRIDE[0]
    if UNROLL:
        rows = ()
        for r in tl.static_range((ROWS - 1) * STEP + HEIGHT):
            row = there & within(h0 + r, h_end)[:, None]
            row_ptrs = x_ptrs + step_of(r, stride_x[2], WIDE)
            acc = widened(tl.zeros((BLOCK_P, BLOCK_C), x_ptr.dtype.element_ty))
            for s in tl.static_range(WIDTH):
                inside = row & within(w0 + s, w_end)[:, None]
                acc += widened(tl.load(row_ptrs + step_of(s, stride_x[3], WIDE), mask=inside, other=0))
            rows = rows + (acc,)
        for k in tl.static_range(ROWS):
            acc = rows[k * STEP]
            for r in tl.static_range(1, HEIGHT):
                acc += rows[k * STEP + r]
            acc = mean_of(acc, p + k, q, H, W, P, Q, divisor, TAPS, STRIDE, PADDING, ADAPTIVE, INCLUDE)
            kept = some if ROWS == 1 else some & (p + k < P)[:, None]
            tl.store(pointers(out_ptr, n, c, p + k, q, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=kept)
    else:
        acc = widened(tl.zeros((BLOCK_P, BLOCK_C), x_ptr.dtype.element_ty))
        for tap in tl.range(HEIGHT * WIDTH, loop_unroll_factor=8):         # so many loads at a time: parts of 8 × 8 in 6 µs, not 27
            r, s = tap // WIDTH, tap % WIDTH
            inside = there & (within(h0 + r, h_end) & within(w0 + s, w_end))[:, None]
            acc += widened(tl.load(x_ptrs + (step_of(r, stride_x[2], WIDE) + step_of(s, stride_x[3], WIDE)), mask=inside, other=0))
        acc = mean_of(acc, p, q, H, W, P, Q, divisor, TAPS, STRIDE, PADDING, ADAPTIVE, INCLUDE)
        tl.store(pointers(out_ptr, n, c, p, q, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=some)


@triton.jit(do_not_specialize=["divisor"])
def avg_pool_input_kernel(out_ptr, g_ptr, stride_o, stride_g, planes, C, H, W, P, Q, reach, divisor, STRIDE: tl.constexpr,
                          PADDING: tl.constexpr, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, WINDOWS_H: tl.constexpr,
                          WINDOWS_W: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr,
                          BLOCK_C: tl.constexpr):
    """Each element of the input collects its share of the gradients of the windows that hold it."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    p0, p1 = windows(h, H, P, reach[0], STRIDE[0], PADDING[0], ADAPTIVE)
    q0, q1 = windows(w, W, Q, reach[1], STRIDE[1], PADDING[1], ADAPTIVE)
    g_ptrs = plane_pointers(g_ptr, n, c, stride_g)
    acc = widened(tl.zeros((BLOCK_P, BLOCK_C), g_ptr.dtype.element_ty))
    for step in tl.range(WINDOWS_H * WINDOWS_W, loop_unroll_factor=WINDOWS_H * WINDOWS_W if WINDOWS_H * WINDOWS_W <= 9 else 1):
        p, q = p0 + step // WINDOWS_W, q0 + step % WINDOWS_W
        hit = (p <= p1) & (q <= q1)
        g = widened(tl.load(g_ptrs + place_offsets(p, q, stride_g, WIDE), mask=hit[:, None], other=0))
        if divisor is None:
            share = (size_of(p, H, P, reach[0] + 1, STRIDE[0], PADDING[0], ADAPTIVE, INCLUDE)
                     * size_of(q, W, Q, reach[1] + 1, STRIDE[1], PADDING[1], ADAPTIVE, INCLUDE))
            g = g * (1 / tl.where(hit, share, 1).to(acc.dtype))[:, None]                      # a division of places, not of elements
        acc += g
    if divisor is not None:
        acc = acc / divisor.to(acc.dtype)
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), acc.to(out_ptr.dtype.element_ty), mask=some)
