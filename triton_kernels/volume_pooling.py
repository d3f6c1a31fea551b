"""Windows of volumes (N, C, D, H, W): their largest elements and their means, and the gradients of both as gathers of one order.

Windows along each of the three dims are those of avg_pooling.py. A thread makes one element of the result, whatever the strides of the
tensors are: neighbouring threads have neighbours in a row or, with LAST, in the channels. Windows of up to UNROLL elements are no loop.
"""
import triton
import triton.language as tl

from .avg_pooling import divided, size_of, widened, window, windows, within
from .max_pooling import first_tap, larger
from .scalar import div


@triton.jit
def element_of(total, C, D, H, W, LAST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Which elements of this program there are, and the five coordinates of each; those behind the last stand for it."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    there = i < total
    i = tl.minimum(i, total - 1)
    if LAST:
        i, c = divided(i, C)
    i, w = divided(i, W)
    i, h = divided(i, H)
    n, d = divided(i, D)
    if not LAST:
        n, c = divided(n, C)
    return there, n, c, d, h, w


@triton.jit
def at(ptr, n, c, d, h, w, strides):
    return ptr + (n * strides[0] + c * strides[1] + d * strides[2] + h * strides[3] + w * strides[4])


@triton.jit
def step_to(d, h, w, strides, WIDE: tl.constexpr):
    """From one element of a volume to another, which is the same for all threads."""
    if WIDE:
        d, h, w = tl.full((), d, tl.int64), tl.full((), h, tl.int64), tl.full((), w, tl.int64)
    return d * strides[2] + h * strides[3] + w * strides[4]


@triton.jit
def first_inside(start, n, DILATION: tl.constexpr):
    """The first element of a window along a dim that is not before the volume; 0 of one whose padding and gaps leave it none."""
    first = start + first_tap(start, DILATION) * DILATION
    return tl.where(first < n, first, 0)


@triton.jit
def largest_of(values_ptr, places_ptr, x_ptr, stride_v, stride_p, stride_x, there, n, c, o, p, q, starts, ends, D, H, W,
               DILATION: tl.constexpr, TAPS: tl.constexpr, LOWEST: tl.constexpr, UNROLL: tl.constexpr, WIDE: tl.constexpr):
    """Store the largest of the windows from `starts` on, as far as they lie before `ends`, and, unless places_ptr is None, its place in the
    volume: the first of equals, the last NaN, in the order of places."""
    d0, h0, w0 = starts
    x_ptrs, place = at(x_ptr, n, c, d0, h0, w0, stride_x), (d0 * H + h0) * W + w0
    best = widened(tl.full(there.shape, LOWEST, x_ptr.dtype.element_ty))
    first = first_inside(d0, D, DILATION[0]) * H + first_inside(h0, H, DILATION[1])
    found = (first * W + first_inside(w0, W, DILATION[2])).to(tl.int32)
    for tap in tl.range(TAPS[0] * TAPS[1] * TAPS[2], loop_unroll_factor=UNROLL):
        d = tap // (TAPS[1] * TAPS[2]) * DILATION[0]
        h = tap // TAPS[2] % TAPS[1] * DILATION[1]
        w = tap % TAPS[2] * DILATION[2]
        inside = within(d0 + d, ends[0]) & within(h0 + h, ends[1]) & within(w0 + w, ends[2])
        x = widened(tl.load(x_ptrs + step_to(d, h, w, stride_x, WIDE), mask=inside, other=LOWEST))
        best, found = larger(best, found, x, (place + ((d * H + h) * W + w)).to(tl.int32))
    tl.store(at(values_ptr, n, c, o, p, q, stride_v), best.to(values_ptr.dtype.element_ty), mask=there)
    if places_ptr is not None:
        tl.store(at(places_ptr, n, c, o, p, q, stride_p), found, mask=there)


@triton.jit
def max_pool_volume_kernel(values_ptr, places_ptr, x_ptr, stride_v, stride_p, stride_x, total, C, O, P, Q, D, H, W,
                           STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, ADAPTIVE: tl.constexpr,
                           TAPS: tl.constexpr, LOWEST: tl.constexpr, UNROLL: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr,
                           BLOCK: tl.constexpr):
    """The largest of each window and, unless places_ptr is None, its place."""
    there, n, c, o, p, q = element_of(total, C, O, P, Q, LAST, WIDE, BLOCK)
    d0, d_end = window(o, D, O, STRIDE[0], PADDING[0], ADAPTIVE)
    h0, h_end = window(p, H, P, STRIDE[1], PADDING[1], ADAPTIVE)
    w0, w_end = window(q, W, Q, STRIDE[2], PADDING[2], ADAPTIVE)
    largest_of(values_ptr, places_ptr, x_ptr, stride_v, stride_p, stride_x, there, n, c, o, p, q, (d0, h0, w0), (d_end, h_end, w_end),
               D, H, W, DILATION, TAPS, LOWEST, UNROLL, WIDE)


@triton.jit
def random_start(samples_ptr, n, c, p, size, count, stride, TAPS: tl.constexpr, DIM: tl.constexpr):
    """Where window p of `count` begins: steps of floor and ceil of `pace`, the first of them up to the sample; the last window ends where
    the dim does."""
    u = widened(tl.load(samples_ptr + (n * stride[0] + c * stride[1] + DIM * stride[2])))
    free = size - TAPS[DIM]
    pace = div(tl.full(u.shape, free, u.dtype), tl.full(u.shape, tl.maximum(count - 1, 1), u.dtype))
    start = ((p.to(u.dtype) + u) * pace).to(tl.int32) - (u * pace).to(tl.int32)
    return tl.where(p == count - 1, free, tl.minimum(tl.maximum(start, 0), free)).to(p.dtype)


@triton.jit
def fractional_max_kernel(values_ptr, places_ptr, x_ptr, samples_ptr, stride_v, stride_p, stride_x, stride_s, total, C, O, P, Q, D, H, W,
                          TAPS: tl.constexpr, LOWEST: tl.constexpr, UNROLL: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr,
                          BLOCK: tl.constexpr):
    """The same for windows of one size that begin where samples of each plane put them."""
    there, n, c, o, p, q = element_of(total, C, O, P, Q, LAST, WIDE, BLOCK)
    d0 = random_start(samples_ptr, n, c, o, D, O, stride_s, TAPS, 0)
    h0 = random_start(samples_ptr, n, c, p, H, P, stride_s, TAPS, 1)
    w0 = random_start(samples_ptr, n, c, q, W, Q, stride_s, TAPS, 2)
    largest_of(values_ptr, places_ptr, x_ptr, stride_v, stride_p, stride_x, there, n, c, o, p, q, (d0, h0, w0), (D, H, W), D, H, W,
               (1, 1, 1), TAPS, LOWEST, UNROLL, WIDE)


@triton.jit
def max_pool_volume_input_kernel(out_ptr, g_ptr, places_ptr, stride_o, stride_g, stride_p, total, C, D, H, W, O, P, Q,
                                 STRIDE: tl.constexpr, PADDING: tl.constexpr, REACH: tl.constexpr, ADAPTIVE: tl.constexpr,
                                 COUNT: tl.constexpr, UNROLL: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Each element of the volume collects the gradients of the windows, at most COUNT along each dim, whose largest it was."""
    there, n, c, d, h, w = element_of(total, C, D, H, W, LAST, WIDE, BLOCK)
    o0, o1 = windows(d, D, O, REACH[0], STRIDE[0], PADDING[0], ADAPTIVE)
    p0, p1 = windows(h, H, P, REACH[1], STRIDE[1], PADDING[1], ADAPTIVE)
    q0, q1 = windows(w, W, Q, REACH[2], STRIDE[2], PADDING[2], ADAPTIVE)
    place, place_ptrs = ((d * H + h) * W + w).to(tl.int32), at(places_ptr, n, c, o0, p0, q0, stride_p)
    g_ptrs, acc = at(g_ptr, n, c, o0, p0, q0, stride_g), widened(tl.zeros(there.shape, g_ptr.dtype.element_ty))
    for step in tl.range(COUNT[0] * COUNT[1] * COUNT[2], loop_unroll_factor=UNROLL):
        o, p, q = step // (COUNT[1] * COUNT[2]), step // COUNT[2] % COUNT[1], step % COUNT[2]
        hit = (o0 + o <= o1) & (p0 + p <= p1) & (q0 + q <= q1)
        hit &= tl.load(place_ptrs + step_to(o, p, q, stride_p, WIDE), mask=hit, other=-1) == place
        acc += widened(tl.load(g_ptrs + step_to(o, p, q, stride_g, WIDE), mask=hit, other=0))
    tl.store(at(out_ptr, n, c, d, h, w, stride_o), acc.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def count_of(o, p, q, D, H, W, O, P, Q, TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, ADAPTIVE: tl.constexpr,
             INCLUDE: tl.constexpr):
    """How many elements a window counts; 1 where there is no such window."""
    count = (size_of(o, D, O, TAPS[0], STRIDE[0], PADDING[0], ADAPTIVE, INCLUDE)
             * size_of(p, H, P, TAPS[1], STRIDE[1], PADDING[1], ADAPTIVE, INCLUDE)
             * size_of(q, W, Q, TAPS[2], STRIDE[2], PADDING[2], ADAPTIVE, INCLUDE))
    return tl.maximum(count, 1)


@triton.jit
def avg_pool_volume_kernel(out_ptr, x_ptr, stride_o, stride_x, total, C, O, P, Q, D, H, W, divisor, STRIDE: tl.constexpr,
                           PADDING: tl.constexpr, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, TAPS: tl.constexpr,
                           UNROLL: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of each window: its sum over the divisor or, where that is None, over how many elements it counts."""
    there, n, c, o, p, q = element_of(total, C, O, P, Q, LAST, WIDE, BLOCK)
    d0, d_end = window(o, D, O, STRIDE[0], PADDING[0], ADAPTIVE)
    h0, h_end = window(p, H, P, STRIDE[1], PADDING[1], ADAPTIVE)
    w0, w_end = window(q, W, Q, STRIDE[2], PADDING[2], ADAPTIVE)
    x_ptrs, acc = at(x_ptr, n, c, d0, h0, w0, stride_x), widened(tl.zeros(there.shape, x_ptr.dtype.element_ty))
    for tap in tl.range(TAPS[0] * TAPS[1] * TAPS[2], loop_unroll_factor=UNROLL):
        d, h, w = tap // (TAPS[1] * TAPS[2]), tap // TAPS[2] % TAPS[1], tap % TAPS[2]
        inside = within(d0 + d, d_end) & within(h0 + h, h_end) & within(w0 + w, w_end)
        acc += widened(tl.load(x_ptrs + step_to(d, h, w, stride_x, WIDE), mask=inside, other=0))
    if divisor is None:
        acc = div(acc, count_of(o, p, q, D, H, W, O, P, Q, TAPS, STRIDE, PADDING, ADAPTIVE, INCLUDE).to(acc.dtype))
    else:
        acc = div(acc, tl.full(acc.shape, divisor, acc.dtype))
    tl.store(at(out_ptr, n, c, o, p, q, stride_o), acc.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def avg_pool_volume_input_kernel(out_ptr, g_ptr, stride_o, stride_g, total, C, D, H, W, O, P, Q, divisor, STRIDE: tl.constexpr,
                                 PADDING: tl.constexpr, REACH: tl.constexpr, ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr,
                                 TAPS: tl.constexpr, COUNT: tl.constexpr, UNROLL: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr,
                                 BLOCK: tl.constexpr):
    """Each element of the volume collects its share of the gradients of the windows, at most COUNT along each dim, that hold it."""
    there, n, c, d, h, w = element_of(total, C, D, H, W, LAST, WIDE, BLOCK)
    o0, o1 = windows(d, D, O, REACH[0], STRIDE[0], PADDING[0], ADAPTIVE)
    p0, p1 = windows(h, H, P, REACH[1], STRIDE[1], PADDING[1], ADAPTIVE)
    q0, q1 = windows(w, W, Q, REACH[2], STRIDE[2], PADDING[2], ADAPTIVE)
    g_ptrs, acc = at(g_ptr, n, c, o0, p0, q0, stride_g), widened(tl.zeros(there.shape, g_ptr.dtype.element_ty))
    for step in tl.range(COUNT[0] * COUNT[1] * COUNT[2], loop_unroll_factor=UNROLL):
        o, p, q = step // (COUNT[1] * COUNT[2]), step // COUNT[2] % COUNT[1], step % COUNT[2]
        hit = (o0 + o <= o1) & (p0 + p <= p1) & (q0 + q <= q1)
        g = widened(tl.load(g_ptrs + step_to(o, p, q, stride_g, WIDE), mask=hit, other=0))
        if divisor is None:
            count = count_of(o0 + o, p0 + p, q0 + q, D, H, W, O, P, Q, TAPS, STRIDE, PADDING, ADAPTIVE, INCLUDE)
            g = div(g, count.to(acc.dtype))
        acc += g
    if divisor is not None:
        acc = div(acc, tl.full(acc.shape, divisor, acc.dtype))
    tl.store(at(out_ptr, n, c, d, h, w, stride_o), acc.to(out_ptr.dtype.element_ty), mask=there)
