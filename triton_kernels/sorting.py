"""Stable sorting. Short rows are sorted by one program each, long ones digit by digit (radix sort, the lowest digit first)."""
import triton
import triton.language as tl

from .bitonic import sort_block


# ------------------------------------------------------------------ keys
@triton.jit
def ordered_bits(x, FALLING: tl.constexpr):
    """An unsigned number of the size of x in the order of x: NaN above all, -0 equal to 0."""
    WIDTH: tl.constexpr = x.dtype.primitive_bitwidth
    if WIDTH == 1:
        return (x == 0).to(tl.uint8) if FALLING else x.to(tl.uint8)
    else:
        UINT: tl.constexpr = tl.uint8 if WIDTH == 8 else tl.uint16 if WIDTH == 16 else tl.uint32 if WIDTH == 32 else tl.uint64
        key = x.to(UINT, bitcast=True)
        TOP: tl.constexpr = 1 << (WIDTH - 1)
        if x.dtype.is_floating():
            INF: tl.constexpr = (0x7FF << 52 if WIDTH == 64 else 0x7F800000 if WIDTH == 32
                                 else 0x7F80 if x.dtype == tl.bfloat16 else 0x7C00)
            size = key & (TOP - 1)
            key = tl.where(size == 0, TOP, tl.where(key == size, key | TOP, ~key))
            key = tl.where(size > INF, 2 * TOP - 1, key).to(UINT)
        elif x.dtype.is_int_signed():
            key = key ^ TOP
        return ~key if FALLING else key


@triton.jit
def digit_of(x, shift, BITS: tl.constexpr, FALLING: tl.constexpr, RAW: tl.constexpr):
    """BITS bits of the key of x from bit `shift` on; RAW: x is a number that is not negative, or -1, which comes last."""
    key = x if RAW else ordered_bits(x, FALLING)
    return ((key >> shift.to(key.dtype)) & ((1 << BITS) - 1)).to(tl.uint32)


# ------------------------------------------------------------------ rows that fit a program
@triton.jit
def sorted_places(key, i, low, BITS: tl.constexpr, M: tl.constexpr, L: tl.constexpr, RB: tl.constexpr):
    """Which of each 2^L keys comes first, second, ... by its BITS bits from bit `low` on, of equal ones that on the left."""
    part = ((key >> low) & ((1 << BITS) - 1)).to(tl.uint32)
    return (sort_block((part << L) | i.to(tl.uint32), M, L, RB) & ((1 << L) - 1)).to(tl.int32)


@triton.jit
def sort_rows_kernel(values_ptr, indices_ptr, x_ptr, order_ptr, stride_xr, rows, N, K, KEY_BITS: tl.constexpr, FALLING: tl.constexpr,
                     RAW: tl.constexpr, M: tl.constexpr, L: tl.constexpr, RB: tl.constexpr):
    """The first K of each row of N <= 2^L elements in order and where they are, 2^(M - L) rows a program.

    With an order the row consists of x[row, order[row, :]], up to an order of -1. Keys of more than 32 - L bits are sorted in several
    rounds, from the lowest bits on.
    """
    ROUND: tl.constexpr = min(32 - L, KEY_BITS)
    row = tl.program_id(0).to(tl.int64) << (M - L)
    e = tl.arange(0, 1 << M)
    i = e & ((1 << L) - 1)
    first = 0 if M == L else e - i                              # of the row in the tile
    inside = i < N if M == L else (row + (e >> L) < rows) & (i < N)
    x_ptr += row * stride_xr
    at_x = 0 if M == L else (e >> L).to(tl.int64) * stride_xr
    at = i
    if order_ptr is not None:
        order_ptr += row * N
        at = tl.load(order_ptr + (e >> L) * N + i, mask=inside, other=-1)
        inside = at >= 0
    x = tl.load(x_ptr + (at_x + at), mask=inside, other=0)
    key = x & ((1 << KEY_BITS) - 1) if RAW else ordered_bits(x, FALLING)
    key = tl.where(inside, key, (1 << KEY_BITS) - 1).to(key.dtype)           # behind the row: as great as any and later
    order = sorted_places(key, i, 0, ROUND, M, L, RB)
    for k in range(1, (KEY_BITS + ROUND - 1) // ROUND):
        place = sorted_places(tl.gather(key, first + order, 0), i, k * ROUND, ROUND, M, L, RB)
        order = tl.gather(order, first + place, 0)
    kept = (i < K) & inside
    if order_ptr is not None:
        order = tl.load(order_ptr + (e >> L) * N + order, mask=kept, other=0)
    to = row * K + ((e >> L) * K + i)
    tl.store(values_ptr + to, tl.load(x_ptr + (at_x + order), mask=kept), mask=kept)
    tl.store(indices_ptr + to, order.to(indices_ptr.dtype.element_ty), mask=kept)


# ------------------------------------------------------------------ long rows: one pass for each digit
@triton.jit(do_not_specialize=["digit_shift"])
def rank_kernel(place_ptr, first_ptr, last_ptr, x_ptr, N, digit_shift, BITS: tl.constexpr, FALLING: tl.constexpr,
                RAW: tl.constexpr, LOG: tl.constexpr, RB: tl.constexpr, FLOAT: tl.constexpr):
    """Each tile of a row in the order of its digits: where its elements come from, where each digit begins and where it ends. FLOAT: sorted
    as float32, for which LOG + BITS < 23."""
    TILE: tl.constexpr = 1 << LOG
    tiles = (N - 1) // TILE + 1                                # a sum in tl.cdiv would pass 2³¹
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles).to(tl.int64)
    i = tl.arange(0, TILE)
    count = tl.minimum(N - tile * TILE, TILE).to(tl.int32)
    x = tl.load(x_ptr + (row * N + tile * TILE) + i, mask=i < count, other=0)
    digit = tl.where(i < count, digit_of(x, digit_shift, BITS, FALLING, RAW).to(tl.int32), 1 << BITS)
    packed = (digit << LOG) | i
    packed = sort_block(packed.to(tl.float32 if FLOAT else tl.uint32), LOG, LOG, RB).to(tl.int32)
    number = row * tiles + tile
    tl.store(place_ptr + number * TILE + i, (packed & (TILE - 1)).to(tl.int16))
    digit = packed >> LOG
    before = tl.gather(digit, tl.where(i == 0, count, i) - 1, 0)  # the last digit ends where the first one begins
    bins = tl.arange(0, 1 << BITS)
    tl.store(first_ptr + (number << BITS) + bins, bins.to(tl.int16) * 0)
    tl.store(last_ptr + (number << BITS) + bins, bins.to(tl.int16) * 0)
    tl.debug_barrier()                                          # digits that the tile lacks keep the zeros
    begins = (i < count) & ((i == 0) | (digit != before))
    tl.store(first_ptr + (number << BITS) + digit, i.to(tl.int16), mask=begins)
    tl.store(last_ptr + (number << BITS) + before, tl.where(i == 0, count, i).to(tl.int16), mask=begins)


@triton.jit(do_not_specialize=["digit_shift"])
def count_rank_kernel(place_ptr, first_ptr, last_ptr, x_ptr, N, digit_shift, BITS: tl.constexpr, FALLING: tl.constexpr,
                      RAW: tl.constexpr, LOG: tl.constexpr):
    """The same by counting, an element at a time: for a program that is one thread, as those of the host are."""
    TILE: tl.constexpr = 1 << LOG
    tiles = (N - 1) // TILE + 1
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles).to(tl.int64)
    count = tl.minimum(N - tile * TILE, TILE).to(tl.int32)
    number = row * tiles + tile
    x_ptr += row * N + tile * TILE
    place_ptr += number * TILE
    last_ptr += number << BITS
    bins = tl.arange(0, 1 << BITS)
    tl.store(last_ptr + bins, bins.to(tl.int16) * 0)
    tl.debug_barrier()
    for i in range(count):
        at = last_ptr + digit_of(tl.load(x_ptr + i), digit_shift, BITS, FALLING, RAW)
        tl.store(at, tl.load(at) + 1)
    tl.debug_barrier()
    counts = tl.load(last_ptr + bins).to(tl.int32)
    first = (tl.cumsum(counts, 0) - counts).to(tl.int16)
    tl.store(first_ptr + (number << BITS) + bins, first)
    tl.store(last_ptr + bins, first)
    tl.debug_barrier()
    for i in range(count):                                      # what ends where the digit begins is moved on by each of its elements
        at = last_ptr + digit_of(tl.load(x_ptr + i), digit_shift, BITS, FALLING, RAW)
        place = tl.load(at)
        tl.store(place_ptr + place.to(tl.int32), i.to(tl.int16))
        tl.store(at, place + 1)


@triton.jit
def spread_kernel(shift_ptr, total_ptr, first_ptr, last_ptr, tiles, PIECE: tl.constexpr, BITS: tl.constexpr, AHEAD: tl.constexpr,
                  BLOCK_D: tl.constexpr):
    """For each digit the way of a tile's elements from their place in the tile to that in the piece of PIECE tiles; totals of pieces. A
    thread has a digit and goes from tile to tile, AHEAD of which are loaded at once: nothing is added up through shared memory."""
    BLOCKS: tl.constexpr = (1 << BITS) // BLOCK_D
    pieces = tl.cdiv(tiles, PIECE)
    row, piece = (tl.program_id(0) // BLOCKS // pieces).to(tl.int64), tl.program_id(0) // BLOCKS % pieces
    d = tl.program_id(0) % BLOCKS * BLOCK_D + tl.arange(0, BLOCK_D)
    before = tl.zeros((BLOCK_D,), shift_ptr.dtype.element_ty)
    end = tl.minimum(piece * PIECE + PIECE, tiles)
    for start in range(piece * PIECE, end, AHEAD):
        at = ((row * tiles + start) << BITS) + d
        firsts, lasts = (), ()
        for t in tl.static_range(AHEAD):
            firsts = firsts + (tl.load(first_ptr + at + (t << BITS), mask=start + t < end, other=0),)
            lasts = lasts + (tl.load(last_ptr + at + (t << BITS), mask=start + t < end, other=0),)
        for t in tl.static_range(AHEAD):
            first = firsts[t].to(before.dtype)
            tl.store(shift_ptr + at + (t << BITS), before - first, mask=start + t < end)
            before += lasts[t].to(before.dtype) - first
    tl.store(total_ptr + ((row * pieces + piece) << BITS) + d, before)


@triton.jit
def base_kernel(total_ptr, pieces, BITS: tl.constexpr):
    """Totals of (row, piece, digit) become the place where each digit of each piece begins in the row."""
    AHEAD: tl.constexpr = 16                                    # pieces whose totals are under way together
    total_ptr += ((tl.program_id(0).to(tl.int64) * pieces) << BITS) + tl.arange(0, 1 << BITS)
    total = tl.zeros((1 << BITS,), total_ptr.dtype.element_ty)
    for start in range(0, pieces, AHEAD):
        for p in tl.static_range(AHEAD):
            total += tl.load(total_ptr + ((start + p) << BITS), mask=start + p < pieces, other=0)
    base = tl.cumsum(total, 0) - total
    for start in range(0, pieces, AHEAD):
        counts = ()
        for p in tl.static_range(AHEAD):
            counts = counts + (tl.load(total_ptr + ((start + p) << BITS), mask=start + p < pieces, other=0),)
        for p in tl.static_range(AHEAD):
            tl.store(total_ptr + ((start + p) << BITS), base, mask=start + p < pieces)
            base += counts[p]


@triton.jit
def ways(first_ptr, last_ptr, tiles, tile, BITS: tl.constexpr):
    """For each digit the way of a tile's elements from their place in the tile to that in a row of few tiles."""
    digit = tl.arange(0, 1 << BITS)
    total = tl.zeros((1 << BITS,), tl.int32)
    way = tl.zeros((1 << BITS,), tl.int32)
    for start in range(0, tiles, 16):
        for t in tl.static_range(16):                           # unlike those of a block: no sums through shared memory
            at = ((start + t) << BITS) + digit
            first = tl.load(first_ptr + at, mask=start + t < tiles, other=0).to(tl.int32)
            count = tl.load(last_ptr + at, mask=start + t < tiles, other=0).to(tl.int32) - first
            total += count
            way += tl.where(start + t < tile, count, tl.where(start + t == tile, -first, 0))
    return tl.cumsum(total, 0) - total + way


@triton.jit(do_not_specialize=["digit_shift"])
def scatter_kernel(values_ptr, indices_ptr, x_ptr, from_ptr, place_ptr, first_ptr, last_ptr, shift_ptr, base_ptr, N, K, digit_shift,
                   PIECE: tl.constexpr, BITS: tl.constexpr, FALLING: tl.constexpr, RAW: tl.constexpr, LOG: tl.constexpr):
    """Elements and their indices (without from_ptr: their places) to where they are after this digit; the last pass keeps K of them.
    Without shift_ptr there are few tiles, and each program adds up their counts itself."""
    TILE: tl.constexpr = 1 << LOG
    tiles = (N - 1) // TILE + 1                                # a sum in tl.cdiv would pass 2³¹
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles).to(tl.int64)
    number = row * tiles + tile
    piece = row * tl.cdiv(tiles, PIECE) + tile // PIECE
    # one element a thread at a time: neighbours in the order go to neighbouring places, which is what the stores want
    i = tl.max_contiguous(tl.arange(0, TILE), 1)
    inside = i < tl.minimum(N - tile * TILE, TILE).to(tl.int32)
    start = row * N + tile * TILE
    # elements come in their order and are gathered from shared memory: from the first cache each would take a cycle of its own
    x = tl.load(x_ptr + start + i, mask=inside, other=0)
    at = tl.load(place_ptr + number * TILE + i, mask=inside, other=0).to(tl.int32)
    x = tl.gather(x, at, 0)
    index = tile * TILE + at if from_ptr is None else tl.gather(tl.load(from_ptr + start + i, mask=inside, other=0), at, 0)
    digit = digit_of(x, digit_shift, BITS, FALLING, RAW).to(tl.int32)
    if shift_ptr is None:
        counts = (row * tiles) << BITS
        to = i + tl.gather(ways(first_ptr + counts, last_ptr + counts, tiles, tile, BITS), digit, 0)
    else:
        to = i + tl.load(shift_ptr + (number << BITS) + digit, mask=inside, other=0)
        to += tl.load(base_ptr + (piece << BITS) + digit, mask=inside, other=0)
    tl.store(values_ptr + row * K + to, x, mask=inside & (to < K))
    tl.store(indices_ptr + row * K + to, index.to(indices_ptr.dtype.element_ty), mask=inside & (to < K))


# ------------------------------------------------------------------ places in sorted sequences
@triton.jit
def less(a, b):
    """a < b where NaN is above all."""
    return (a < b) | ((b != b) & (a == a))


@triton.jit
def search_kernel(out_ptr, sorted_ptr, x_ptr, N, K, count, STEPS: tl.constexpr, RIGHT: tl.constexpr, ONE: tl.constexpr,
                  WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """How many elements of its sorted row are below each x (RIGHT: below or equal). ONE: one sorted row for all. It may be 2^STEPS numbers,
    of which each step leaves a half; they have 32 bits where these suffice."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    x = tl.load(x_ptr + i, mask=mask, other=0)
    row_ptrs = sorted_ptr if ONE else sorted_ptr + tl.where(mask, i // K, 0).to(tl.int64) * N
    below = tl.zeros((BLOCK,), tl.int32 if STEPS < 32 else tl.int64)
    for k in tl.static_range(STEPS):
        more = below + (1 << (STEPS - 1 - k))
        probe = tl.load(row_ptrs + (tl.minimum(more, N) - 1))
        ahead = (less(x, probe) == 0) if RIGHT else less(probe, x)
        below = tl.where(ahead & (more <= N), more, below)
    tl.store(out_ptr + i, below.to(out_ptr.dtype.element_ty), mask=mask)
