"""A radix pass whose tiles need not be sorted first, in Gluon. It reads keys twice: to count the digits of each tile, and to send them.

A warp goes through its part of a tile, 32 neighbours at a time. For each bit of the digit they vote, which leaves every lane with those
whose digit is the same; how often it came before is counted in shared memory, in a row of numbers for each warp. On sm_90 a key takes 26
instructions to be counted and 101 to be sent. Where a network sorts a tile of 4096 first, as in sorting.py, that takes 150 and the sending
56, and what it has found is written and read.

Gluon does not name addresses in shared memory: these are those of an array that the kernel's assembly declares.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import sorting

ordered_bits = gluon.jit(sorting.ordered_bits.fn)


@gluon.constexpr_function
def in_warps(LOG, WARPS):
    """2^LOG numbers, a part of them for each warp, of which 32 neighbours are a register."""
    own = LOG - (WARPS.bit_length() - 1)
    return gl.DistributedLinearLayout([[1 << k] for k in range(5, own)], [[1 << k] for k in range(5)], [[1 << k] for k in range(own, LOG)],
                                      [], [1 << LOG])


@gluon.constexpr_function
def declaration(nbytes):
    return f".shared .align 16 .b8 counts[{nbytes}]; mov.u32 $0, counts;"


@gluon.constexpr_function
def votes(BITS):
    """How often the digit $1, whose number of the warp is at $2, came before, above the 16 bits of that address; its lanes are counted.
    Three masks are joined at once."""
    text = "{.reg .pred yes; .reg .b32 same, old, a, b; mov.b32 same, 0xffffffff; "
    for k in range(BITS):
        mask = "ab"[k % 2]
        text += f"and.b32 old, $1, {1 << k}; setp.ne.u32 yes, old, 0; vote.sync.ballot.b32 {mask}, yes, 0xffffffff; "
        text += f"@!yes not.b32 {mask}, {mask}; "
        text += "lop3.b32 same, same, a, b, 0x80; " if k % 2 else "and.b32 same, same, a; " if k == BITS - 1 else ""
    return text + ("ld.shared.u32 old, [$2]; mov.u32 a, %lanemask_lt; and.b32 a, a, same; popc.b32 a, a; setp.eq.u32 yes, a, 0; "
                   "popc.b32 b, same; add.u32 b, b, old; bar.warp.sync 0xffffffff; @yes st.shared.u32 [$2], b; "
                   "bar.warp.sync 0xffffffff; add.u32 old, old, a; mad.lo.u32 $0, old, 65536, $2;}")


# ------------------------------------------------------------------ the array
@gluon.jit
def get(address):
    return gl.inline_asm_elementwise("ld.shared.u32 $0, [$1];", "=r,r", [address], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def put(address, x):
    gl.inline_asm_elementwise("st.shared.u32 [$1], $2; mov.b32 $0, $2;", "=r,r,r", [address, x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def count_one(address):
    gl.inline_asm_elementwise("red.shared.add.u32 [$1], 1; mov.b32 $0, 0;", "=r,r", [address], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def permuted(array, place, x, ordered):
    """Each x where its place is among `ordered` numbers."""
    gl.thread_barrier()                                         # what was in the array has been read
    put(array + place * 4, x)
    gl.thread_barrier()
    return get(array + ordered * 4)


# ------------------------------------------------------------------ the pass
@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit
def digit_of(x, shift, BITS: gl.constexpr, FALLING: gl.constexpr):
    return ((ordered_bits(x, FALLING) >> shift.to(gl.uint32)) & ((1 << BITS) - 1)).to(gl.int32)


@gluon.jit(do_not_specialize=["digit_shift"])
def count_kernel(first_ptr, last_ptr, x_ptr, N, digit_shift, BITS: gl.constexpr, FALLING: gl.constexpr, LOG: gl.constexpr):
    """Where each digit begins and ends in the order of a tile of a row."""
    TILE: gl.constexpr = 1 << LOG
    WARPS: gl.constexpr = gl.num_warps()
    tiles = (N - 1) // TILE + 1                                # a sum in gl.cdiv would pass 2³¹
    row, tile = (gl.program_id(0) // tiles).to(gl.int64), (gl.program_id(0) % tiles).to(gl.int64)
    line: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    i = gl.arange(0, TILE, line)
    count = gl.minimum(N - tile * TILE, TILE).to(gl.int32)
    x = gl.load(x_ptr + (row * N + tile * TILE) + i, mask=i < count, other=0)
    counts = gl.inline_asm_elementwise(declaration((4 << BITS) + 16), "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    digits = gl.arange(0, 1 << BITS, line)
    put(counts + digits * 4, digits * 0)
    gl.thread_barrier()
    count_one(counts + gl.where(i < count, digit_of(x, digit_shift, BITS, FALLING), 1 << BITS) * 4)       # behind the row: not looked at
    gl.thread_barrier()
    total = get(counts + digits * 4)
    last = gl.associative_scan(total, 0, plus)
    at = ((gl.program_id(0).to(gl.int64)) << BITS) + digits
    gl.store(first_ptr + at, (last - total).to(gl.int16))
    gl.store(last_ptr + at, last.to(gl.int16))


@gluon.jit
def counts_to_places(counts, digits, first, BITS: gl.constexpr):
    """What each warp counted of a digit becomes the place of its first one in the tile."""
    before = ()
    for w in gl.static_range(gl.num_warps()):
        before = before + (first,)
        first += get(counts + ((w << BITS) + digits) * 4)
    gl.thread_barrier()                                         # a digit may have several threads
    for w in gl.static_range(gl.num_warps()):
        put(counts + ((w << BITS) + digits) * 4, before[w])


@gluon.jit(do_not_specialize=["digit_shift"])
def send_kernel(values_ptr, indices_ptr, x_ptr, from_ptr, first_ptr, shift_ptr, base_ptr, N, K, digit_shift, PIECE: gl.constexpr,
                BITS: gl.constexpr, FALLING: gl.constexpr, LOG: gl.constexpr):
    """Elements and their indices (without from_ptr: their places) to where they are after this digit; the last pass keeps K of them. In
    shared memory they are put into the order of the tile, so that neighbours in it are stored together."""
    TILE: gl.constexpr = 1 << LOG
    WARPS: gl.constexpr = gl.num_warps()
    PART: gl.constexpr = TILE // WARPS
    line: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    tiles = (N - 1) // TILE + 1
    row, tile = (gl.program_id(0) // tiles).to(gl.int64), (gl.program_id(0) % tiles).to(gl.int64)
    number, start = row * tiles + tile, row * N + tile * TILE
    i = gl.arange(0, TILE, in_warps(LOG, WARPS))
    count = gl.minimum(N - tile * TILE, TILE).to(gl.int32)
    x = gl.load(x_ptr + start + i, mask=i < count, other=0)
    digits = gl.arange(0, 1 << BITS, line)
    first = gl.load(first_ptr + (number << BITS) + digits).to(gl.int32)
    way = gl.load(shift_ptr + (number << BITS) + digits)
    way += gl.load(base_ptr + ((row * gl.cdiv(tiles, PIECE) + tile // PIECE) << BITS) + digits)
    SIZE: gl.constexpr = max(4 * WARPS << BITS, 4 * TILE)
    counts = gl.inline_asm_elementwise(declaration(SIZE + (4 << BITS)), "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    counter = gl.arange(0, WARPS << BITS, line)
    put(counts + counter * 4, counter * 0)
    put(counts + SIZE + digits * 4, way)
    digit = gl.where(i < count, digit_of(x, digit_shift, BITS, FALLING), (1 << BITS) - 1)      # behind the row: after all of the last digit
    at = counts + ((i // PART << BITS) + digit) * 4
    gl.thread_barrier()
    found = gl.inline_asm_elementwise(votes(BITS), "=r,r,r", [digit, at], dtype=gl.uint32, is_pure=False, pack=1)
    gl.thread_barrier()
    counts_to_places(counts, digits, first, BITS)
    index = (tile * TILE).to(gl.int32) + i
    if from_ptr is not None:                                    # not earlier: 64 registers hold no more
        index = gl.load(from_ptr + start + i, mask=i < count, other=0)
    gl.thread_barrier()
    place = get((found & 0xFFFF).to(gl.int32)) + (found >> 16).to(gl.int32)
    j = gl.arange(0, TILE, line)
    x = permuted(counts, place, x.to(gl.int32, bitcast=True), j).to(x.dtype, bitcast=True)
    index = permuted(counts, place, index, j)
    to = j + get(counts + SIZE + digit_of(x, digit_shift, BITS, FALLING) * 4)
    kept = (j < count) & (to < K)
    gl.store(values_ptr + row * K + to, x, mask=kept)
    gl.store(indices_ptr + row * K + to, index.to(indices_ptr.dtype.element_ty), mask=kept)
