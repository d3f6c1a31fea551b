"""Stable sorting: keys become unique 64-bit numbers (32 key bits, then the position), blocks are sorted, runs are merged by rank."""
import triton
import triton.language as tl


@triton.jit
def key_bits(x, DESCENDING: tl.constexpr, HIGH: tl.constexpr):
    """32 bits of an order-preserving unsigned image of x, in an int64: NaN above all, -0 equal to 0."""
    if x.dtype == tl.float64:
        x = tl.where(x == 0, 0.0, x)
        bits = x.to(tl.int64, bitcast=True)
        bits = tl.where(x != x, 0x7FFFFFFFFFFFFFFF, tl.where(bits < 0, ~bits, bits | (-0x7FFFFFFFFFFFFFFF - 1)))
        bits = tl.where(x != x, -1, bits)
        wide = (bits >> 32) & 0xFFFFFFFF if HIGH else bits & 0xFFFFFFFF
    elif x.dtype.is_floating():
        x = x.to(tl.float32)
        x = tl.where(x == 0, 0.0, x)
        bits = x.to(tl.int32, bitcast=True).to(tl.int64)
        wide = tl.where(bits < 0, ~bits, bits + 0x80000000) & 0xFFFFFFFF
        wide = tl.where(x != x, 0xFFFFFFFF, wide)
    else:
        whole = x.to(tl.int64)
        if x.dtype == tl.int64:
            wide = ((whole >> 32) + 0x80000000) & 0xFFFFFFFF if HIGH else whole & 0xFFFFFFFF
        else:
            wide = whole + 0x80000000
    return 0xFFFFFFFF - wide if DESCENDING else wide


@triton.jit
def encode_kernel(key_ptr, x_ptr, order_ptr, stride_xr, stride_xn, N, DESCENDING: tl.constexpr, HIGH: tl.constexpr, ORDERED: tl.constexpr,
                  BLOCK: tl.constexpr):
    """key[r, i] = 32 bits of x[r, order[r, i]] above the number i."""
    row = tl.program_id(1).to(tl.int64)
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    at = tl.load(order_ptr + row * N + i, mask=i < N, other=0) if ORDERED else i
    x = tl.load(x_ptr + row * stride_xr + at * stride_xn, mask=i < N, other=0)
    bits = key_bits(x, DESCENDING, HIGH)
    tl.store(key_ptr + row * N + i, ((bits - 0x80000000) << 32) | i, mask=i < N)


@triton.jit
def sort_blocks_kernel(key_ptr, N, BLOCK: tl.constexpr):
    """Each block of each row sorted by itself, in place."""
    row = tl.program_id(1).to(tl.int64)
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    key = tl.load(key_ptr + row * N + i, mask=i < N, other=0x7FFFFFFFFFFFFFFF)
    tl.store(key_ptr + row * N + i, tl.sort(key, 0), mask=i < N)


@triton.jit
def merge_kernel(out_ptr, key_ptr, N, run, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Pairs of sorted runs merged: the place of a key is its own rank plus its rank in the other run. Keys are unique."""
    row = tl.program_id(1).to(tl.int64)
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = i < N
    key = tl.load(key_ptr + row * N + i, mask=mask, other=0)
    mine = i // run
    other = mine + 1 - 2 * (mine % 2)
    start = tl.minimum(other * run, N)
    low = start
    high = tl.minimum(start + run, N)
    for _ in range(STEPS):
        middle = (low + high) // 2
        probe = tl.load(key_ptr + row * N + middle, mask=mask & (low < high), other=0)
        below = (probe < key) & (low < high)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, tl.minimum(middle, high))
    place = tl.minimum(mine, other) * run + (i - mine * run) + (low - start)
    tl.store(out_ptr + row * N + place, key, mask=mask)


@triton.jit
def decode_kernel(order_ptr, key_ptr, before_ptr, N, CHAINED: tl.constexpr, BLOCK: tl.constexpr):
    """The positions that sorted keys carry; after a second pass those of the first pass that they point to."""
    row = tl.program_id(1).to(tl.int64)
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    position = tl.load(key_ptr + row * N + i, mask=i < N, other=0) & 0xFFFFFFFF
    if CHAINED:
        position = tl.load(before_ptr + row * N + position, mask=i < N, other=0)
    tl.store(order_ptr + row * N + i, position, mask=i < N)


@triton.jit
def pick_kernel(values_ptr, indices_ptr, x_ptr, order_ptr, stride_xr, stride_xn, N, K, BLOCK: tl.constexpr):
    """The first K of each row in its order, with their indices."""
    row = tl.program_id(1).to(tl.int64)
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    order = tl.load(order_ptr + row * N + i, mask=i < K, other=0)
    tl.store(values_ptr + row * K + i, tl.load(x_ptr + row * stride_xr + order * stride_xn, mask=i < K), mask=i < K)
    tl.store(indices_ptr + row * K + i, order, mask=i < K)


@triton.jit
def less(a, b):
    """a < b where NaN is above all."""
    return (a < b) | ((b != b) & (a == a))


@triton.jit
def search_kernel(out_ptr, sorted_ptr, x_ptr, N, K, count, STEPS: tl.constexpr, RIGHT: tl.constexpr, ONE: tl.constexpr,
                  BLOCK: tl.constexpr):
    """How many elements of its sorted row are below each x (RIGHT: below or equal). ONE: one sorted row for all."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    x = tl.load(x_ptr + i, mask=mask, other=0)
    base = tl.zeros_like(i) if ONE else i // K * N
    low = tl.zeros_like(i)
    high = tl.zeros_like(i) + N
    for _ in range(STEPS):
        middle = (low + high) // 2
        probe = tl.load(sorted_ptr + base + middle, mask=mask & (low < high), other=0)
        ahead = ((less(x, probe) == 0) if RIGHT else less(probe, x)) & (low < high)
        low = tl.where(ahead, middle + 1, low)
        high = tl.where(ahead, high, tl.minimum(middle, high))
    tl.store(out_ptr + i, low.to(out_ptr.dtype.element_ty), mask=mask)
