"""Pooling of (N, C, H, W): largest and mean of windows, and their gradients as gathers, so that every sum has one order.

A window begins at p · stride - padding and has a fixed kernel, or, adaptive, it is part p of the n elements divided into `count`:
from floor(p · n / count) to ceil((p + 1) · n / count). Pairs of arguments are (height, width); what lies outside the input takes no part.
"""
import triton
import triton.language as tl


@triton.jit
def places(total, C, H, W, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Whether there is one, and image, channel, row and column of this program's elements of a contiguous (N, C, H, W)."""
    program = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    plane = at // W // H
    return at < total, plane // C, plane % C, at // W % H, at % W


@triton.jit
def window(p, n, count, stride, padding, ADAPTIVE: tl.constexpr):
    """Where window p begins, and the end of what it may read."""
    if ADAPTIVE:
        return p * n // count, ((p + 1) * n + count - 1) // count
    else:
        return p * stride - padding, p * 0 + n


@triton.jit
def windows(h, n, count, reach, stride, padding, ADAPTIVE: tl.constexpr):
    """The first and last window that can hold element h; `reach` is from the first to the last element of a window."""
    if ADAPTIVE:
        return h * count // n, ((h + 1) * count + n - 1) // n - 1
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
def offset(n, c, h, w, strides):
    return n.to(tl.int64) * strides[0] + c.to(tl.int64) * strides[1] + h.to(tl.int64) * strides[2] + w * strides[3]


@triton.jit
def widened(x):
    """Half types as float32."""
    return x.to(tl.float32) if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32 else x


@triton.jit
def max_pool_kernel(values_ptr, indices_ptr, x_ptr, stride_v, stride_i, stride_x, total, C, H, W, P, Q, stride, padding, dilation,
                    ADAPTIVE: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The largest of each window, and its place h · W + w: the first of equals, the last NaN."""
    mask, n, c, p, q = places(total, C, P, Q, WIDE, BLOCK)
    h0, h_end = window(p, H, P, stride[0], padding[0], ADAPTIVE)
    w0, w_end = window(q, W, Q, stride[1], padding[1], ADAPTIVE)
    x_ptrs = x_ptr + offset(n, c, h0, w0, stride_x)
    best = widened(tl.zeros((BLOCK,), x_ptr.dtype.element_ty))
    found = tl.full((BLOCK,), -1, tl.int64)
    for r in range(TAPS_H):
        h = h0 + r * dilation[0]
        for s in range(TAPS_W):
            w = w0 + s * dilation[1]
            inside = mask & (h >= 0) & (h < h_end) & (w >= 0) & (w < w_end)
            step = (r * dilation[0]).to(tl.int64) * stride_x[2] + s * dilation[1] * stride_x[3]
            x = widened(tl.load(x_ptrs + step, mask=inside, other=0))
            better = inside & ((x > best) | (x != x) | (found < 0))
            best = tl.where(better, x, best)
            found = tl.where(better, h.to(tl.int64) * W + w, found)
    tl.store(values_ptr + offset(n, c, p, q, stride_v), best.to(values_ptr.dtype.element_ty), mask=mask)
    tl.store(indices_ptr + offset(n, c, p, q, stride_i), found, mask=mask)


@triton.jit
def max_pool_input_kernel(out_ptr, g_ptr, indices_ptr, stride_o, stride_g, stride_i, total, C, H, W, P, Q, reach, stride, padding,
                          ADAPTIVE: tl.constexpr, WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, WIDE: tl.constexpr,
                          BLOCK: tl.constexpr):
    """Each element of the input collects the gradients of the windows whose largest it was."""
    mask, n, c, h, w = places(total, C, H, W, WIDE, BLOCK)
    p0, p1 = windows(h, H, P, reach[0], stride[0], padding[0], ADAPTIVE)
    q0, q1 = windows(w, W, Q, reach[1], stride[1], padding[1], ADAPTIVE)
    own = h.to(tl.int64) * W + w
    acc = widened(tl.zeros((BLOCK,), g_ptr.dtype.element_ty))
    for j in range(WINDOWS_H):
        p = p0 + j
        for k in range(WINDOWS_W):
            q = q0 + k
            inside = mask & (p <= p1) & (q <= q1)
            chosen = inside & (tl.load(indices_ptr + offset(n, c, p, q, stride_i), mask=inside, other=-1) == own)
            acc += widened(tl.load(g_ptr + offset(n, c, p, q, stride_g), mask=chosen, other=0))
    tl.store(out_ptr + offset(n, c, h, w, stride_o), acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def avg_pool_kernel(out_ptr, x_ptr, stride_o, stride_x, total, C, H, W, P, Q, kernel, stride, padding, divisor,
                    ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, WIDE: tl.constexpr,
                    BLOCK: tl.constexpr):
    """The mean of each window, or its sum over `divisor`."""
    mask, n, c, p, q = places(total, C, P, Q, WIDE, BLOCK)
    h0, h_end = window(p, H, P, stride[0], padding[0], ADAPTIVE)
    w0, w_end = window(q, W, Q, stride[1], padding[1], ADAPTIVE)
    x_ptrs = x_ptr + offset(n, c, h0, w0, stride_x)
    acc = widened(tl.zeros((BLOCK,), x_ptr.dtype.element_ty))
    for r in range(TAPS_H):
        h = h0 + r
        for s in range(TAPS_W):
            w = w0 + s
            inside = mask & (h >= 0) & (h < h_end) & (w >= 0) & (w < w_end)
            acc += widened(tl.load(x_ptrs + (r.to(tl.int64) * stride_x[2] + s * stride_x[3]), mask=inside, other=0))
    if divisor is None:
        share = (size_of(p, H, P, kernel[0], stride[0], padding[0], ADAPTIVE, INCLUDE)
                 * size_of(q, W, Q, kernel[1], stride[1], padding[1], ADAPTIVE, INCLUDE))
        acc = acc / share.to(acc.dtype)
    else:
        acc = acc / divisor.to(acc.dtype)
    tl.store(out_ptr + offset(n, c, p, q, stride_o), acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def avg_pool_input_kernel(out_ptr, g_ptr, stride_o, stride_g, total, C, H, W, P, Q, reach, stride, padding, divisor,
                          ADAPTIVE: tl.constexpr, INCLUDE: tl.constexpr, WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr,
                          WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Each element of the input collects its share of the gradients of the windows that hold it."""
    mask, n, c, h, w = places(total, C, H, W, WIDE, BLOCK)
    p0, p1 = windows(h, H, P, reach[0], stride[0], padding[0], ADAPTIVE)
    q0, q1 = windows(w, W, Q, reach[1], stride[1], padding[1], ADAPTIVE)
    acc = widened(tl.zeros((BLOCK,), g_ptr.dtype.element_ty))
    for j in range(WINDOWS_H):
        p = p0 + j
        rows = size_of(p, H, P, reach[0] + 1, stride[0], padding[0], ADAPTIVE, INCLUDE)
        for k in range(WINDOWS_W):
            q = q0 + k
            inside = mask & (p <= p1) & (q <= q1)
            g = widened(tl.load(g_ptr + offset(n, c, p, q, stride_g), mask=inside, other=0))
            if divisor is None:
                share = rows * size_of(q, W, Q, reach[1] + 1, stride[1], padding[1], ADAPTIVE, INCLUDE)
                g = g / tl.where(inside, share, 1).to(acc.dtype)
            acc += g
    if divisor is not None:
        acc = acc / divisor.to(acc.dtype)
    tl.store(out_ptr + offset(n, c, h, w, stride_o), acc.to(out_ptr.dtype.element_ty), mask=mask)
