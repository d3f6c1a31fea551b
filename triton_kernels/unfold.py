"""Sliding blocks of images as columns, and columns added up to images. Tiles of planes × places are those of avg_pooling.py.

Columns are (N, C, taps of the kernel, P · Q places where a block begins); blocks of pairs (height, width) step by STRIDE.
"""
import triton
import triton.language as tl

from .avg_pooling import place_offsets, plane_pointers, pointers, tile_of, widened, within


@triton.jit
def columns_at(ptr, n, c, tap, place, strides, WIDE: tl.constexpr):
    """Where a tap of the blocks that begin at some places lies."""
    tap = tl.full((1,), tap, tl.int64) if WIDE else tl.full((1,), tap, tl.int32)
    return pointers(ptr, n, c, tap, place, strides, WIDE)


@triton.jit
def unfold_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                  DILATION: tl.constexpr, KERNEL: tl.constexpr, UNROLL: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
                  FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """out (N, C, taps, P · Q): the elements of each block of x (N, C, H, W), 0 in the padding."""
    some, there, n, c, p, q = tile_of(planes, C, P, Q, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    x_ptrs = plane_pointers(x_ptr, n, c, stride_x)
    COLUMNS: tl.constexpr = KERNEL[1]
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
    for tap in tl.range(TAPS, loop_unroll_factor=TAPS if UNROLL else 1):
        h = p * STRIDE[0] - PADDING[0] + tap // COLUMNS * DILATION[0]
        w = q * STRIDE[1] - PADDING[1] + tap % COLUMNS * DILATION[1]
        inside = within(h, H) & within(w, W)
        x = tl.load(x_ptrs + place_offsets(h, w, stride_x, WIDE), mask=inside[:, None], other=0)
        tl.store(columns_at(out_ptr, n, c, tap, p * Q + q, stride_o, WIDE), x, mask=some)


@triton.jit
def fold_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                DILATION: tl.constexpr, KERNEL: tl.constexpr, UNROLL: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
                FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """out (N, C, H, W): each element the sum over the taps of the blocks of x (N, C, taps, P · Q) that hold it, in the order of taps."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    COLUMNS: tl.constexpr = KERNEL[1]
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
    total = widened(tl.zeros((BLOCK_P, BLOCK_C), x_ptr.dtype.element_ty))
    for tap in tl.range(TAPS, loop_unroll_factor=TAPS if UNROLL else 1):
        down = h + PADDING[0] - tap // COLUMNS * DILATION[0]
        right = w + PADDING[1] - tap % COLUMNS * DILATION[1]
        inside = (down >= 0) & (down % STRIDE[0] == 0) & (down < P * STRIDE[0])
        inside &= (right >= 0) & (right % STRIDE[1] == 0) & (right < Q * STRIDE[1])
        place = down // STRIDE[0] * Q + right // STRIDE[1]
        total += widened(tl.load(columns_at(x_ptr, n, c, tap, place, stride_x, WIDE), mask=inside[:, None], other=0))
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), total.to(out_ptr.dtype.element_ty), mask=some)


@triton.jit
def tiles_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, KERNEL: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
                 FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The same where blocks lie side by side: each element comes from one of them, or, behind the last, is 0. Of any dtype."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    p, q = h // KERNEL[0], w // KERNEL[1]
    tap, inside = h % KERNEL[0] * KERNEL[1] + w % KERNEL[1], (p < P) & (q < Q)
    x = tl.load(pointers(x_ptr, n, c, tap, p * Q + q, stride_x, WIDE), mask=inside[:, None], other=0)
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), x, mask=some)
