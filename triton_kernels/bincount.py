"""How many elements fall into each of a row of bins: counted by each program apart where the bins are few, else in memory."""
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def bin_of(x_ptr, i, N, low, high, scale, bins, EVEN: tl.constexpr):
    """(bins of elements i, which of them have one). EVEN: bins share [low, high] evenly, the last has both its ends; else x is its bin."""
    there = i < N
    x = tl.load(x_ptr + i, mask=there, other=0)
    if EVEN:
        x = x.to(tl.float64)
        there = there & (x >= low) & (x <= high)
        found = libdevice.floor(tl.where(there, (x - low) * scale, 0.0)).to(tl.int64)
        found = tl.maximum(tl.minimum(found, bins - 1), 0)
    else:
        found = x.to(tl.int64)
        there = there & (found >= 0) & (found < bins)
    return found, there


@triton.jit
def tally_kernel(count_ptr, x_ptr, N, chunk, low, high, scale, bins, EVEN: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """Counts of a program's `chunk` of elements: (programs, BINS)."""
    start = tl.program_id(0).to(tl.int64) * chunk
    total = tl.zeros((BINS,), tl.int32)
    for first in range(start, tl.minimum(start + chunk, N), BLOCK):
        found, there = bin_of(x_ptr, first + tl.arange(0, BLOCK), N, low, high, scale, bins, EVEN)
        total += tl.histogram(tl.where(there, found, 0).to(tl.int32), BINS, mask=there)
    tl.store(count_ptr + tl.program_id(0).to(tl.int64) * BINS + tl.arange(0, BINS), total)


@triton.jit
def tally_many_kernel(out_ptr, x_ptr, N, low, high, scale, bins, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    """The same added up in out, which holds zeros: whole numbers may come in any order."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    found, there = bin_of(x_ptr, i, N, low, high, scale, bins, EVEN)
    tl.atomic_add(out_ptr + found, tl.full((BLOCK,), 1, tl.int64), mask=there, sem="relaxed")
