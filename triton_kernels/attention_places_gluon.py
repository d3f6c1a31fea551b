"""Where tiles begin and which blocks they meet, and rings of slots that TMA fills, for the kernels of attention in Gluon."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

WARP = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


# ------------------------------------------------------------------ places
@gluon.jit
def pairs_of(sizes, TILE: gl.constexpr):
    """(pairs of row blocks in a head, pairs of all heads). The first block of a head and the last, the second and the last but one, …
    together meet as many keys under a causal mask as any other pair, so programs that take turns get equal shares, and the programs that
    run at one time read the keys of few heads, which stay in the L2 cache."""
    pairs = gl.cdiv(gl.cdiv(sizes[2], TILE), 2)
    return pairs, pairs * sizes[1]


@gluon.jit
def item_of(cycle, PROGRAMS: gl.constexpr):
    """The pair, of those of all heads, that a program takes in a cycle. The place in a cycle moves on: where the pairs of a head divide the
    programs, one would have the same pair of every head otherwise, which may be the one that has but one block."""
    return cycle * PROGRAMS + (gl.program_id(0) + cycle) % PROGRAMS


@gluon.jit
def tiles_in(item, sizes, TILE: gl.constexpr):
    """2, but 1 where a block is its own partner, and 0 where the last cycle has no item for a program."""
    pairs, items = pairs_of(sizes, TILE)
    return gl.where(item < items, 2 - (2 * (item % pairs) + 1 == gl.cdiv(sizes[2], TILE)).to(gl.int32), 0)


@gluon.jit
def first_row(pair, half, sizes, TILE: gl.constexpr):
    """Where a tile begins."""
    return gl.where(half == 0, gl.cdiv(sizes[2], TILE) - 1 - pair, pair) * TILE


@gluon.jit
def keys_of(m, sizes, LEFT: gl.constexpr, RIGHT: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """(first block of keys that ROWS rows from m on meet, how many blocks there are, how many of them cross the edge on the right, how many
    come before those that cross the one on the left)."""
    _, _, L, S, left, right = sizes
    end, whole = S, S // BLOCK_N
    if RIGHT:
        end = gl.minimum(S, m + ROWS + right)
        whole = gl.minimum(whole, (m + right + 1) // BLOCK_N)
    end = gl.cdiv(end, BLOCK_N)
    begin, rest = 0, end
    if LEFT:
        begin = gl.minimum(gl.maximum(m - left, 0) // BLOCK_N, end - 1)                  # rows past the last one meet some key too
        rest = end - gl.cdiv(gl.maximum(m + ROWS - 1 - left, 0), BLOCK_N)
    return begin, end - begin, end - gl.minimum(whole, end), rest


@gluon.jit
def ending(sizes, end):
    """The sizes where keys end earlier."""
    return sizes[0], sizes[1], sizes[2], end, sizes[4], sizes[5]


# ------------------------------------------------------------------ slots
@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.jit
def fill(desc, batch, head, row, ring, empty, ready, slot, phase):
    """Load a block into a slot of a ring as soon as it is empty."""
    mbarrier.wait(empty.index(slot), phase)
    bring(desc, batch, head, row, ring, ready, slot)


@gluon.jit
def bring(desc, batch, head, row, ring, ready, slot):
    """Load a block into an empty slot of a ring."""
    mbarrier.expect(ready.index(slot), desc.block_type.nbytes)
    buf = ring.index(slot)._reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
    tma.async_copy_global_to_shared(desc, [batch, head, row, 0], ready.index(slot), buf)


@gluon.jit
def after(slot, phase, STAGES: gl.constexpr):
    """The next slot of the ring, and its phase."""
    last = slot == STAGES - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)
