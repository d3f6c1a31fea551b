"""The first K of a row without sorting it: the row is read once, a threshold between the K and the others is found by bisection."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .sorting import ordered_bits


@triton.jit
def chosen(key, k, most, GROUPS: tl.constexpr):
    """Which keys of each row are its first, of equal ones those on the left: at least k and at most `most` >= k. And how many.

    Each of GROUPS >= k interleaved groups has a least key. The greatest of these is not below the k-th key of the row.
    """
    ROWS: tl.constexpr = key.shape[0]
    LEN: tl.constexpr = key.shape[1]
    least = tl.min(tl.reshape(key, [ROWS, LEN // GROUPS, GROUPS]), 1)
    low = tl.min(least, 1, keep_dims=True)
    high = tl.max(least, 1, keep_dims=True)
    count = tl.sum((key <= high).to(tl.int32), 1, keep_dims=True)
    while tl.max(tl.ravel(((count > most) & (low < high)).to(tl.int32)), 0) > 0:
        middle = tl.where(count > most, low + ((high - low) >> 1), high)      # a row that is done stays so, whichever are beside it
        found = tl.sum((key <= middle).to(tl.int32), 1, keep_dims=True)
        low = tl.where(found < k, tl.minimum(middle, high - 1) + 1, low)
        high = tl.where(found < k, high, middle)
        count = tl.where(found < k, count, found)
    kept = key <= high
    if tl.max(tl.ravel((count > most).to(tl.int32)), 0) > 0:     # too many equal ones
        below = (key < high).to(tl.int32)
        ties = places(key == high)
        kept = kept & ((below > 0) | (ties < most - tl.sum(below, 1, keep_dims=True)))
    return kept, tl.minimum(count, most)


@triton.jit
def places(kept):
    """How many kept ones each row has to the left of each place: words of 32 bits are scanned, not the elements."""
    ROWS: tl.constexpr = kept.shape[0]
    LEN: tl.constexpr = kept.shape[1]
    lane = tl.arange(0, min(LEN, 32))[None, None, :]
    word = tl.sum(tl.reshape(kept.to(tl.int32), [ROWS, LEN // min(LEN, 32), min(LEN, 32)]) << lane, 2)
    count = libdevice.popc(word)
    before = tl.cumsum(count, 1) - count
    return tl.reshape(before[:, :, None] + libdevice.popc(word[:, :, None] & ((1 << lane) - 1)), [ROWS, LEN])


@triton.jit
def key_of(x, inside, FALLING: tl.constexpr):
    """Keys of 32 or 64 bits; what lies behind the row comes last."""
    key = ordered_bits(x, FALLING)
    if key.dtype != tl.uint64:
        key = key.to(tl.uint32)
    return tl.where(inside, key, 0xFFFFFFFFFFFFFFFF if key.dtype == tl.uint64 else 0xFFFFFFFF).to(key.dtype)


@triton.jit
def select_kernel(order_ptr, x_ptr, from_ptr, stride_xr, rows, N, K, MOST, TOTAL, FALLING: tl.constexpr, ROWS: tl.constexpr,
                  LEN: tl.constexpr, GROUPS: tl.constexpr, FILL: tl.constexpr):
    """Where the first K (and perhaps some more, up to MOST) of each LEN elements of a row are, in rising order, then -1; a row of the
    result has TOTAL. With from_ptr the row is x[row, from[row, :]]."""
    chunks = (N - 1) // LEN + 1                                 # a sum in tl.cdiv would pass 2³¹
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    row = (tl.program_id(0) // chunks).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    start = chunk * LEN
    i = tl.arange(0, LEN)[None, :]
    size = tl.minimum(N - start, LEN).to(tl.int32)
    inside = (row < rows) & (i < size)
    at = start.to(order_ptr.dtype.element_ty) + i
    if from_ptr is not None:
        at = tl.load(from_ptr + (row * N + start) + i, mask=inside, other=0)
    key = key_of(tl.load(x_ptr + row * stride_xr + at, mask=inside, other=0), inside, FALLING)
    most = tl.minimum(size, MOST)
    kept, count = chosen(key, tl.minimum(size, K), most, GROUPS)
    order_ptr += row * TOTAL + chunk * MOST
    kept = kept & inside
    tl.store(order_ptr + places(kept), at, mask=kept)
    if FILL:
        rest = tl.arange(0, FILL)[None, :]
        nothing = tl.full((ROWS, FILL), -1, order_ptr.dtype.element_ty)
        tl.store(order_ptr + rest, nothing, mask=(row < rows) & (rest >= count) & (rest < most))


@triton.jit
def few_kernel(values_ptr, indices_ptr, x_ptr, stride_xr, rows, N, K, KEY_BITS: tl.constexpr, FALLING: tl.constexpr, HELD: tl.constexpr,
               ROWS: tl.constexpr, WIDTH: tl.constexpr, KEPT: tl.constexpr):
    """The first K <= KEPT elements of each row in order and where they are, for K and rows that are short: a row is HELD tiles of WIDTH
    columns, so that few threads have all of it, and each round takes the least of what comes after that of the round before. A key and
    its place are one number: no two are equal, and of equal keys that on the left comes first."""
    UINT: tl.constexpr = tl.uint64 if KEY_BITS > 16 else tl.uint32
    PLACE: tl.constexpr = 32 if KEY_BITS > 16 else 16
    LAST: tl.constexpr = 0xFFFFFFFFFFFFFFFF if KEY_BITS > 16 else 0xFFFFFFFF
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    packed = ()
    for h in tl.static_range(HELD):
        i = h * WIDTH + lane
        inside = (row < rows) & (i < N)
        key = ordered_bits(tl.load(x_ptr + row * stride_xr + i, mask=inside, other=0), FALLING).to(UINT)
        packed = packed + (tl.where(inside, (key << PLACE) | i.to(UINT), LAST).to(UINT),)
    low = tl.zeros((ROWS, 1), UINT)
    column = tl.arange(0, KEPT)[None, :]
    found = tl.zeros((ROWS, KEPT), tl.int32)
    for k in range(K):
        least = tl.where(packed[0] >= low, packed[0], LAST).to(UINT)
        for h in tl.static_range(1, HELD):
            least = tl.minimum(least, tl.where(packed[h] >= low, packed[h], LAST).to(UINT))
        least = tl.min(least, 1, keep_dims=True)
        found = tl.where(column == k, (least & ((1 << PLACE) - 1)).to(tl.int32), found)
        low = least + 1
    kept = (row < rows) & (column < K)
    tl.store(values_ptr + row * K + column, tl.load(x_ptr + row * stride_xr + found, mask=kept), mask=kept)
    tl.store(indices_ptr + row * K + column, found.to(tl.int64), mask=kept)


@triton.jit
def rank_of_median(count, N, MEDIAN: tl.constexpr):
    """Which element in order, from 1, is the median of a row of N with `count` numbers: of all, where NaN is one, or of the numbers."""
    if MEDIAN == "numbers":
        return tl.maximum((count + 1) // 2, 1)
    return tl.where(count < N, count + 1, N - N // 2)


@triton.jit
def kth_kernel(values_ptr, indices_ptr, x_ptr, stride_xr, rows, N, K, FALLING: tl.constexpr, MEDIAN: tl.constexpr, ROWS: tl.constexpr,
               LEN: tl.constexpr, GROUPS: tl.constexpr):
    """The last of the first K elements of each row, and where it is. MEDIAN: not that of K."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, LEN)[None, :]
    inside = (row < rows) & (i < N)
    key = key_of(tl.load(x_ptr + row * stride_xr + i, mask=inside, other=0), inside, FALLING)
    k = K
    if MEDIAN is not None:
        nan = tl.zeros((ROWS, 1), tl.int32)
        if x_ptr.dtype.element_ty.is_floating():
            LAST: tl.constexpr = (1 << x_ptr.dtype.element_ty.primitive_bitwidth) - 1
            nan += tl.sum((inside & (key == LAST)).to(tl.int32), 1, keep_dims=True)
        k = rank_of_median(N - nan, N, MEDIAN)
    kept, _ = chosen(key, k, k, GROUPS)
    greatest = tl.max(tl.where(kept, key, 0).to(key.dtype), 1, keep_dims=True)
    at = tl.max(tl.where(kept & (key == greatest), i, -1), 1, keep_dims=True)
    tl.store(values_ptr + row, tl.load(x_ptr + row * stride_xr + at, mask=row < rows), mask=row < rows)
    tl.store(indices_ptr + row, at.to(tl.int64), mask=row < rows)


@triton.jit
def middle_kernel(values_ptr, indices_ptr, x_ptr, order_ptr, N, STEPS: tl.constexpr, MEDIAN: tl.constexpr):
    """The median of each sorted row of N < 2^STEPS elements, the NaN of which come last, and its index by order."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * N
    count = N - 0
    if x_ptr.dtype.element_ty.is_floating():
        count = N * 0
        for k in tl.static_range(STEPS):
            more = count + (1 << (STEPS - 1 - k))
            x = tl.load(x_ptr + tl.minimum(more, N) - 1)
            count = tl.where((more <= N) & (x == x), more, count)
    place = rank_of_median(count, N, MEDIAN) - 1
    tl.store(values_ptr + row, tl.load(x_ptr + place))
    if indices_ptr is not None:
        tl.store(indices_ptr + row, tl.load(order_ptr + row * N + place))
