"""Numbers rounded to what a few integers can stand for, and the range of integers that follows a moving range of numbers."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .division import div


@triton.jit
def fake_quantize_kernel(
    y_ptr, mask_ptr, x_ptr, scale_ptr, zero_ptr, on_ptr, N, C, INNER, scale, zero, low, high,
    ROUND_LAST: tl.constexpr, NARROW: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):
    """y = (clamp(rint(x / scale) + zero, low, high) - zero) · scale; mask where the clamp changed nothing.

    `scale_ptr` and `zero_ptr` have C values, that of element i at i // INNER % C; without them the numbers are those of all. ROUND_LAST:
    zeros that are no integers are added before rint. NARROW: the last product is one of float32, for float64 too. Where there is an
    `on_ptr` with 0 in it, y is x.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK if WIDE else tl.program_id(0) * BLOCK
    i = start + tl.arange(0, BLOCK)
    inside = i < N
    given = tl.load(x_ptr + i, mask=inside, other=0)
    x = given if given.dtype == tl.float64 else given.to(tl.float32)
    if scale_ptr is not None:
        c = i // INNER % C
        scale = tl.load(scale_ptr + c, mask=inside, other=1).to(tl.float32)
        zero = tl.load(zero_ptr + c, mask=inside, other=0).to(x.dtype)
    else:
        scale, zero = tl.full((BLOCK,), scale, tl.float32), tl.full((BLOCK,), zero, x.dtype)
    q = x * div(tl.full((BLOCK,), 1.0, tl.float32), scale).to(x.dtype)
    q = libdevice.rint(q + zero) if ROUND_LAST else libdevice.rint(q) + zero
    kept = (q >= low) & (q <= high)
    q = tl.where(q > low, tl.where(q < high, q, high), low)              # NaN becomes `low`
    steps = q - zero
    y = (steps.to(tl.float32) * scale if NARROW else steps * scale.to(x.dtype)).to(given.dtype)
    if on_ptr is not None:
        on = tl.load(on_ptr) != 0
        y, kept = tl.where(on, y, given), kept | (on == 0)
    tl.store(y_ptr + i, y, mask=inside)
    if mask_ptr is not None:
        tl.store(mask_ptr + i, kept, mask=inside)


@triton.jit
def moving_range_kernel(
    min_ptr, max_ptr, scale_ptr, zero_ptr, old_min_ptr, old_max_ptr, old_scale_ptr, old_zero_ptr, seen_min_ptr, seen_max_ptr, on_ptr,
    used_ptr, M, constant, low, high, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr,
):
    """The moving averages of minimum and maximum where `on`, and where `used` the scale and zero for which `low` … `high` stand for that
    range; in float64."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, on, used = m < M, tl.load(on_ptr) != 0, tl.load(used_ptr) != 0
    old_min, old_max = tl.load(old_min_ptr + m, mask=inside, other=0), tl.load(old_max_ptr + m, mask=inside, other=0)
    new_min = averaged(old_min, tl.load(seen_min_ptr + m, mask=inside, other=0), constant)
    new_max = averaged(old_max, tl.load(seen_max_ptr + m, mask=inside, other=0), constant)
    new_min, new_max = tl.where(on, new_min, old_min.to(new_min.dtype)), tl.where(on, new_max, old_max.to(new_max.dtype))
    scale, zero = parameters(new_min, new_max, low, high, SYMMETRIC)
    old_scale, old_zero = tl.load(old_scale_ptr + m, mask=inside, other=0), tl.load(old_zero_ptr + m, mask=inside, other=0)
    tl.store(min_ptr + m, new_min.to(old_min.dtype), mask=inside)
    tl.store(max_ptr + m, new_max.to(old_max.dtype), mask=inside)
    tl.store(scale_ptr + m, tl.where(used, scale.to(old_scale.dtype), old_scale), mask=inside)
    tl.store(zero_ptr + m, tl.where(used, zero.to(old_zero.dtype), old_zero), mask=inside)


@triton.jit
def averaged(old, seen, constant):
    """The moving average; what was seen first where there is none yet."""
    if old.dtype != tl.float64:
        old, seen = old.to(tl.float32), seen.to(tl.float32)
    return tl.where(tl.abs(old) == float("inf"), seen, old + constant.to(tl.float32).to(old.dtype) * (seen - old))


@triton.jit
def parameters(low, high, first, last, SYMMETRIC: tl.constexpr):
    """(scale, zero) in float64 with which the integers first … last stand for numbers from low to high, 0 being one of them."""
    steps = last - first
    both = (low < 0) & (high > 0)
    if SYMMETRIC:                                                        # as many steps to either side
        below, above = -(tl.floor(steps / 2) + 1), tl.floor(steps / 2)
        below, above = below.to(low.dtype), above.to(low.dtype)
        widest = tl.maximum(tl.abs(div(low, tl.full(low.shape, below, low.dtype))), tl.abs(div(high, tl.full(low.shape, above, low.dtype))))
        low = tl.where(both, (widest * below).to(low.dtype), low)
        high = tl.where(both, (widest * above).to(low.dtype), high)
    low, high = tl.minimum(low, 0.0).to(tl.float64), tl.maximum(high, 0.0).to(tl.float64)
    scale = (high - low) / steps
    narrow = scale.to(tl.float32)
    useless = (narrow == 0) | (div(tl.full(narrow.shape, 1.0, tl.float32), narrow) == float("inf"))
    scale = tl.where(useless, 0.1, scale)
    SMALL: tl.constexpr = 6.1e-5
    small = tl.full(scale.shape, SMALL, tl.float32).to(tl.float64)
    wider = tl.where(scale < small, small / scale.to(tl.float32).to(tl.float64), 1.0)
    scale, low, high = tl.where(scale < small, small, scale), low * wider, high * wider
    from_low, from_high = first - low / scale, last - high / scale
    nearer = tl.abs(first) - tl.abs(low / scale) < tl.abs(last) - tl.abs(high / scale)
    zero = tl.where(nearer, from_low, from_high)
    if SYMMETRIC:
        zero = tl.where(both, (first + last) / 2, zero)
    return scale, libdevice.rint(tl.minimum(tl.maximum(zero, first), last))
