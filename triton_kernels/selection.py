"""The first K of a row without sorting it: the row is read once, a threshold between the K and the others is found by bisection."""
import triton
import triton.language as tl

from triton_kernels.sorting import ordered_bits


@triton.jit
def chosen(key, k, GROUPS: tl.constexpr):
    """Which keys of each row are its first k, of equal ones those on the left; for each the number of chosen ones on its left.

    Each of GROUPS >= k interleaved groups has a least key. The greatest of these is not below the k-th key of the row.
    """
    ROWS: tl.constexpr = key.shape[0]
    LEN: tl.constexpr = key.shape[1]
    least = tl.min(tl.reshape(key, [ROWS, LEN // GROUPS, GROUPS]), 1)
    low = tl.min(least, 1, keep_dims=True)
    high = tl.max(least, 1, keep_dims=True)
    while tl.max(tl.ravel((low < high).to(tl.int32)), 0) > 0:
        middle = low + ((high - low) >> 1)
        count = tl.sum((key <= middle).to(tl.int32), 1, keep_dims=True)
        low = tl.where(count > k, low, tl.where(count == k, middle, tl.minimum(middle, high - 1) + 1))
        high = tl.where(count >= k, middle, high)
    below = key < high
    equal = key == high
    missing = k - tl.sum(below.to(tl.int32), 1, keep_dims=True)
    both = tl.where(below, 1 << 16, tl.where(equal, 1, 0))                   # two counts in one scan: a row has fewer than 2^15 elements
    before = tl.cumsum(both, 1) - both
    ties = before & 0xFFFF
    return below | (equal & (ties < missing)), (before >> 16) + tl.minimum(ties, missing)


@triton.jit
def keys(x_ptr, from_ptr, row, i, start, inside, N, stride_xr, FALLING: tl.constexpr):
    """(keys of 32 or 64 bits, where they are in the row); what lies behind the row comes last."""
    at = start + i
    if from_ptr is not None:
        at = tl.load(from_ptr + row * N + at, mask=inside, other=0).to(at.dtype)
    x = tl.load(x_ptr + row * stride_xr + at, mask=inside, other=0)
    key = ordered_bits(x, FALLING)
    if key.dtype != tl.uint64:
        key = key.to(tl.uint32)
    return tl.where(inside, key, 0xFFFFFFFFFFFFFFFF if key.dtype == tl.uint64 else 0xFFFFFFFF).to(key.dtype), at


@triton.jit
def select_kernel(order_ptr, x_ptr, from_ptr, stride_xr, rows, N, K, TOTAL, FALLING: tl.constexpr, ROWS: tl.constexpr, LEN: tl.constexpr,
                  GROUPS: tl.constexpr):
    """Where the first K of each LEN elements of a row are, in rising order; a row of the result has TOTAL. With from_ptr the row is
    x[row, from[row, :]]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    start = tl.program_id(1).to(tl.int64) * LEN
    i = tl.arange(0, LEN)[None, :]
    size = tl.minimum(N - start, LEN).to(tl.int32)
    inside = (row < rows) & (i < size)
    key, at = keys(x_ptr, from_ptr, row, i, start, inside, N, stride_xr, FALLING)
    kept, place = chosen(key, tl.minimum(size, K), GROUPS)
    tl.store(order_ptr + row * TOTAL + tl.program_id(1) * K + place, at.to(order_ptr.dtype.element_ty), mask=kept & inside)


@triton.jit
def kth_kernel(values_ptr, indices_ptr, x_ptr, stride_xr, rows, N, K, FALLING: tl.constexpr, ROWS: tl.constexpr, LEN: tl.constexpr,
               GROUPS: tl.constexpr):
    """The last of the first K elements of each row, and where it is."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, LEN)[None, :]
    inside = (row < rows) & (i < N)
    key, _ = keys(x_ptr, None, row, i, 0, inside, N, stride_xr, FALLING)
    kept, _ = chosen(key, K, GROUPS)
    greatest = tl.max(tl.where(kept, key, 0).to(key.dtype), 1, keep_dims=True)
    at = tl.max(tl.where(kept & (key == greatest), i, -1), 1, keep_dims=True)
    tl.store(values_ptr + row, tl.load(x_ptr + row * stride_xr + at, mask=row < rows), mask=row < rows)
    tl.store(indices_ptr + row, at.to(tl.int64), mask=row < rows)
