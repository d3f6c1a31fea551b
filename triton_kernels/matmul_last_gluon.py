"""Streamed products in one kernel: who comes last to a tile keeps its own part in registers and adds those that the others have left.

Of matmul_gluon.py with STREAM and MOST, the most parts that a tile can have. A tile's counter says how many of its programs have summed up
all they have of it, and in its upper half how many of these have left that in memory; both are zero before the launch and behind it. Who is
not the last leaves a part and goes on. The last one waits until all others have left theirs: they are here, have nothing to wait for and
only have to store, so nobody can wait forever, in whatever order programs begin and whether or not all of them run at a time. It adds the
parts in the order in which stream_sum_kernel (matmul_stream.py) does, its own in its place, whoever it is: so the bits are the same each
time, and those of the two kernels. Sums of rows are added up tile by tile, then those of a row of tiles: also always in one order.

A part that is kept takes no memory: of 72 tiles of 3072 x 768 in 201 parts, 129 are stored and read, 17 MB both ways instead of 26.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .matmul import epilogue
from .matmul_joined import place_in_part
from .matmul_leaving import depart, pieces_of, store_sums
from .matmul_stream import helpers_of

STORED = gl.constexpr(1 << 16)                           # in a counter: a part that is in memory
AT_ONCE = gl.constexpr(4)                                # sums of rows that are on their way at a time


@gluon.jit
def slot_of(j, tile, tiles, having, STREAM: gl.constexpr):
    """Where the jth part of a tile goes; `having`: what `helpers_of` says of it."""
    each, first, count = having
    return gl.where(j < each, tile + j * tiles, first + (j - each) * STREAM)


@gluon.jit
def places_of(piece, WIDTH: gl.constexpr):
    """Where the numbers of a piece of a tile lie among those of its part."""
    rows = gl.arange(0, piece.shape[0], gl.SliceLayout(1, piece.type.layout))
    columns = gl.arange(0, WIDTH, gl.SliceLayout(0, piece.type.layout))
    return place_in_part(rows[:, None], columns[None, :], WIDTH)


@gluon.jit
def parts_ahead(part_ptr, own, i, mine, tile, tiles, having, MOST: gl.constexpr, STREAM: gl.constexpr, PIECES: gl.constexpr):
    """Piece i of all parts of a tile in their order: zero beyond the last one, `own` of this program's, the others on their way."""
    WIDTH: gl.constexpr = own.shape[1]
    PIECE: gl.constexpr = own.shape[0] * WIDTH
    places = i * PIECE + places_of(own, WIDTH)
    found = ()
    for j in gl.static_range(MOST):
        slot = slot_of(j, tile, tiles, having, STREAM)
        there = (j < having[0] + having[2]) & (slot != mine)
        kept = gl.where(slot == mine, own, 0.0)
        found = found + (gl.load(part_ptr + slot.to(gl.int64) * (PIECES * PIECE) + places, mask=there, other=kept), )
    return found


@gluon.jit
def in_order(parts):
    total = parts[0]
    for j in gl.static_range(1, len(parts)):
        total += parts[j]
    return total


@gluon.jit
def leave_part(part_ptr, acc, mine, PIECES: gl.constexpr, piece: gl.constexpr):
    """Store a part, for the one who comes last."""
    SIZE: gl.constexpr = acc.shape[0] * acc.shape[1]
    pieces = pieces_of(acc, PIECES)
    for i in gl.static_range(PIECES):
        own = gl.convert_layout(pieces[i], piece, assert_trivial=True)
        gl.store(part_ptr + mine.to(gl.int64) * SIZE + (i * (SIZE // PIECES) + places_of(own, own.shape[1])), own)


@gluon.jit
def next_sums(ptrs, step, left):
    """The sum of up to AT_ONCE sums of rows that lie `step` apart, of which `left` are there."""
    found = ()
    for j in gl.static_range(AT_ONCE):
        found = found + (gl.load(ptrs + j * step, mask=j < left, other=0), )
    return in_order(found)


@gluon.jit
def sum_rows(sums_ptr, part_sums_ptr, counter_ptr, c_ptr, place, shape, tile, tiles, having, MOST: gl.constexpr, STREAM: gl.constexpr,
             BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, PROGRAMS: gl.constexpr,
             WARPS: gl.constexpr):
    """Add up what all programs of a tile have of the sums of a's rows; whoever is the last to do so of a row of tiles adds these up too,
    always in the same order, with c_ptr to what is there."""
    m, n = place
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    rows, columns, down = gl.arange(0, BLOCK_M, layout), gl.cdiv(shape[2], BLOCK_N), gl.cdiv(shape[1], BLOCK_M)
    found = ()
    for j in gl.static_range(MOST):
        slot = slot_of(j, tile, tiles, having, STREAM)
        found = found + (gl.load(part_sums_ptr + slot * BLOCK_M + rows, mask=j < having[0] + having[2], other=0), )
    of_tiles = part_sums_ptr + (PROGRAMS + tiles) * BLOCK_M + rows
    gl.store(of_tiles + tile * BLOCK_M, in_order(found))
    gl.thread_barrier()                                  # of all threads, which the counting makes known
    if gl.atomic_add(counter_ptr + (tiles + m // BLOCK_M), 1, sem="acq_rel") == columns - 1:
        across = 1 if GROUP_M == 1 else down             # from one tile of a row to the next
        first, sums = tile - n // BLOCK_N * across, gl.zeros((BLOCK_M, ), gl.float32, layout)
        for at in range(0, columns, AT_ONCE):
            sums += next_sums(of_tiles + (first + at * across) * BLOCK_M, across * BLOCK_M, columns - at)
        if c_ptr is not None:
            sums += gl.load(sums_ptr + m + rows, mask=m + rows < shape[1], other=0)
            gl.thread_barrier()                          # several threads have read the same sum, which one of them writes
        gl.store(sums_ptr + m + rows, sums, mask=m + rows < shape[1])
        gl.store(counter_ptr + (tiles + m // BLOCK_M), 0)


@gluon.jit
def meet_at_tile(out_desc, pre_desc, sums_ptr, c_ptr, join, acc, sums, place, mine, tile, tiles, steps, strides, shape, alpha, beta,
                 out_bufs, FORM: gl.constexpr, SLOPE: gl.constexpr, ACTIVATION: gl.constexpr, PROGRAMS: gl.constexpr,
                 GROUP_M: gl.constexpr, STREAM: gl.constexpr, MOST: gl.constexpr, PIECES: gl.constexpr, BUFFERS: gl.constexpr,
                 WARPS: gl.constexpr, piece: gl.constexpr):
    """Leave this program's part of a tile, at `mine`, or if it is the last add up all parts and let the tile leave. join: memory for parts
    and for sums of rows, counters of tiles and rows of tiles. What the next piece needs is asked for before this one leaves. Long, as it
    is all that comes behind the products of a tile."""
    BLOCK_M: gl.constexpr = acc.shape[0]
    BLOCK_N: gl.constexpr = acc.shape[1]
    WIDTH: gl.constexpr = BLOCK_N // PIECES
    part_ptr, part_sums_ptr, counter_ptr = join
    batch, m, n = place
    if sums_ptr is not None:
        store_sums(part_sums_ptr, sums, mine * BLOCK_M, BLOCK_M, n * 0, False)
    having = helpers_of(tile, tiles, steps, PROGRAMS, STREAM)
    others = having[0] + having[2] - 1
    if gl.atomic_add(counter_ptr + tile, 1, sem="relaxed") % STORED < others:
        leave_part(part_ptr, acc, mine, PIECES, piece)
        gl.thread_barrier()                              # of all threads, which the counting makes known
        gl.atomic_add(counter_ptr + tile, STORED, sem="release")
    else:
        while gl.atomic_add(counter_ptr + tile, 0, sem="acquire") < others * STORED:
            pass
        gl.store(counter_ptr + tile, 0)                  # nobody else comes
        pieces = pieces_of(acc, PIECES)
        own = gl.convert_layout(pieces[0], piece, assert_trivial=True)
        ahead = parts_ahead(part_ptr, own, 0, mine, tile, tiles, having, MOST, STREAM, PIECES)
        for i in gl.static_range(PIECES):
            total = in_order(ahead)
            if i + 1 < PIECES:
                own = gl.convert_layout(pieces[i + 1], piece, assert_trivial=True)
                ahead = parts_ahead(part_ptr, own, i + 1, mine, tile, tiles, having, MOST, STREAM, PIECES)
            column = n + i * WIDTH
            rm, rn = m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, piece)), column + gl.arange(0, WIDTH, gl.SliceLayout(0, piece))
            value = epilogue(total, c_ptr, batch.to(gl.int64) * strides[0], rm, rn, strides[1], strides[2], shape[1], shape[2], alpha, beta,
                             out_bufs.dtype, FORM, SLOPE)
            depart(out_desc, pre_desc, batch, m, column, shape, value, out_bufs, 0, i, ACTIVATION, BUFFERS, WARPS)
        if sums_ptr is not None:
            sum_rows(sums_ptr, part_sums_ptr, counter_ptr, c_ptr, (m, n), shape, tile, tiles, having, MOST, STREAM, BLOCK_M, BLOCK_N,
                     GROUP_M, PROGRAMS, WARPS)
