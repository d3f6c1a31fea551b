"""Any tensor as rows × columns: the geometry that the kernels of reduce, scan, normalize and loss take.

Rows are what stays, columns are what a row is reduced (scanned, normalized) over. Both keep the tensor's own strides, so no
layout is copied. The geometry depends on shapes and strides alone and is remembered.
"""
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from tritorch.cuda import driver
from tritorch.cuda.launch import compiled_for_host, kernels, launch, shared_memory, sm_count, tile
from tritorch.cuda.tuner import choose
from tritorch.shape import cdiv, extent, next_power_of_2
from tritorch.tensor import Tensor, empty

LINES = kernels("rows")
remember = lru_cache(maxsize=4096)


class Rows(NamedTuple):
    """M rows of N columns. `stride_m` and `stride_n` hold the strides of every operand, one operand after the other."""

    M: int
    shape_m: tuple
    stride_m: tuple
    N: int
    shape_n: tuple
    stride_n: tuple
    across: bool
    """In the first operand that has columns, rows, not columns, are next to each other in memory."""
    wide: bool
    """Columns, or offsets along them, may pass 2^31."""
    align: int
    """The largest power of two up to 16 that divides the length of a row and all steps but those to the next column; 1 where those are
    not 1."""


def coalesce(shape, *strides):
    """Merge neighbouring dims that every operand steps through as one; dims of size 1 vanish. At least one dim is left.

    >>> coalesce((2, 3, 1, 4), (12, 4, 4, 1))
    ((24,), ((1,),))
    """
    dims = []
    for n, *steps in zip(shape, *strides):
        if n == 1:
            continue
        if dims and all(outer == step * n for outer, step in zip(dims[-1][1], steps)):
            dims[-1] = (dims[-1][0] * n, steps)
        else:
            dims.append((n, steps))
    dims = dims or [(1, [0] * len(strides))]                             # 0 keeps the alignment of the pointer, which 1 would not
    return tuple([n for n, _ in dims]), tuple([tuple([steps[k] for _, steps in dims]) for k in range(len(strides))])


@remember
def rows(shape, dims, *strides):
    """The rows of operands of one shape over `dims`. An operand that has no columns gives strides for the rows alone."""
    rest = tuple([d for d in range(len(shape)) if d not in dims])
    full = [len(s) == len(shape) for s in strides]
    sizes_m, sizes_n = [shape[d] for d in rest], [shape[d] for d in dims]
    shape_m, stride_m = coalesce(sizes_m, *[[s[d] for d in rest] if whole else s for s, whole in zip(strides, full)])
    shape_n, stride_n = coalesce(sizes_n, *[[s[d] for d in dims] for s, whole in zip(strides, full) if whole])
    across = stride_n[0][-1] > stride_m[full.index(True)][-1] > 0
    wide = max(prod(sizes_n), *[extent(shape_n, s) for s in stride_n]) > 0x7F000000         # with room for the end of a last piece
    steps = [step for s, whole in zip(stride_m, full) if whole for step in s] + [step for s in stride_n for step in s[:-1]]
    align = gcd(16, shape_n[-1], *steps) if all(s[-1] == 1 for s in stride_n) else 1
    return Rows(prod(sizes_m), shape_m, flat(stride_m), prod(sizes_n), shape_n, flat(stride_n), across, wide, align)


def flat(tuples):
    return tuple([value for values in tuples for value in values])


def forms(geometry, count):
    """What each of the last `count` operands varies along: "row", "column" or both, "tile". The first is always a tile."""
    rank_m, rank_n = len(geometry.shape_m), len(geometry.shape_n)
    found = ["tile"]
    for k in range(1 - count, 0):
        along_m = geometry.stride_m[len(geometry.stride_m) + k * rank_m:][:rank_m]
        along_n = geometry.stride_n[len(geometry.stride_n) + k * rank_n:][:rank_n]
        found.append("row" if not any(along_n) else "column" if not any(along_m) else "tile")
    return tuple(found)


@remember
def kept(shape, dims, keepdim):
    """The shape that a reduction over `dims` leaves."""
    if keepdim:
        return tuple([1 if d in dims else n for d, n in enumerate(shape)])
    return tuple([n for d, n in enumerate(shape) if d not in dims])


def row_strides(out, dims, keepdim):
    """The strides of a result of a reduction over `dims` along the dims that stay."""
    return tuple([s for d, s in enumerate(out.strides) if d not in dims]) if keepdim else out.strides


def half(n):
    """The power of two that covers n in two steps (1 in one): the simulated device wants few large blocks, but more than one."""
    return max(next_power_of_2(n) // 2, 1)


def blocks(M, N, across, limit=4096):
    """(BLOCK_M, BLOCK_N) of a kernel that walks along its columns."""
    rows = min(next_power_of_2(M), 128) if across else 1
    columns = min(next_power_of_2(N), limit // rows)
    rows = min(next_power_of_2(M), limit // columns) if not across else rows
    return tile(rows, min(half(M), 1024)), tile(columns, min(half(N), 1024))


def splits(programs, steps):
    """Into how many pieces (a power of two) to cut rows of `steps` tiles so that every multiprocessor has work."""
    wanted = tile(4 * sm_count() // max(programs, 1), 2)
    return max(1, min(1 << max(wanted.bit_length() - 1, 0), 1 << max(steps.bit_length() - 1, 0), 1024))


def chunk_of(N, block, pieces):
    """Columns of a piece, whole tiles."""
    return cdiv(cdiv(N, block), pieces) * block


# ------------------------------------------------------------------ kernels that keep whole rows in registers
IN_REGISTERS = 32768
"""Columns up to which a program can keep a row in registers; longer rows are read twice."""
WHOLE = 8192
"""Columns up to which it surely shall; at 16384 it depends on the kernel: on an H100 softmax took 180 µs so, its gradient 270, not the 212
and 338 of a walk, but a norm in one wide tile 253, not 208 (8192 rows in bfloat16)."""
ROOM = 32_000
"""Bytes of shared memory that are left for sums where rows are loaded ahead."""
SHORT = ((2048, 16, 1, 0), (4096, 16, 1, 0), (4096, 32, 1, 0), (1024, 32, 1, 0), (2048, 8, 1, 0), (4096, 16, 3, 2), (2048, 16, 2, 4))
"""Ways to take rows that fit: elements of a program at least, elements of a thread, stages, programs a multiprocessor (0: one a block). Of
rows of 2048 and 4096 the third comes first: half as many warps wait at each sum, and more rows are under way."""
ONE_WARP = ((1024, 32, 1, 0),)
"""The first way where a warp can hold a row: sums need no shared memory and no barrier."""
HOST_ROW = 4096
"""Elements of a tile on the host, which keeps it in memory: of the first cache."""
LONG = ((8192, 16, 1), (4096, 8, 1), (16384, 32, 1), (4096, 8, 3), (8192, 16, 3), (4096, 4, 1))
"""Ways to walk along those that do not: columns at a time, warps, stages."""
ACROSS = ((64, 64, 8), (32, 128, 8), (128, 32, 8), (64, 32, 4), (64, 128, 16))
"""Ways where rows, not columns, are next to each other in memory: rows and columns at a time, warps. 64 rows fill sectors of any dtype."""


@remember
def row_tiles(M, N, across, simulated, limit=IN_REGISTERS, held=WHOLE):
    """Candidates for a kernel over rows: BLOCK_M, BLOCK_N (below N: the kernel walks along the row), STAGES, PER_SM, num_warps. Rows of
    more than `limit` columns do not fit in registers; up to `held` they are better kept there than walked along."""
    width, height = next_power_of_2(N), next_power_of_2(M)
    if simulated:
        return [_row_tile(min(half(M), 1024), width if N < 300 else 256, 4)]
    if across:
        whole = [(m, width, min(max(m * width // 512, 1), 32)) for m in (64, 32, 16) if m * width <= 8192]
        return [_row_tile(min(m, height), min(n, width), w) for m, n, w in (*whole, *ACROSS)]
    ways = (*ONE_WARP, *SHORT) if 256 <= width <= 1024 else (SHORT[2], *SHORT[:2], *SHORT[3:]) if 1024 < width <= 4096 else SHORT
    short = ways if width < 16384 else ((0, 32, 1, 0), (0, 16, 1, 0), (0, 16, 2, 1), (0, 32, 2, 1), (0, 32, 2, 2))
    tiles = [(min(max(size // width, 1), height), each, stages, per_sm) for size, each, stages, per_sm in short]
    tiles = [_row_tile(m, width, min(max(m * width // (32 * each), 1), 32), stages, per_sm) for m, each, stages, per_sm in tiles]
    # Two stages are one buffer: the next row is asked for when this one is stored, and nothing else runs beside it. So loops, unless they
    # compute everything twice.
    loops = [_row_tile(1, n, w, stages) for n, w, stages in LONG if n < N]
    if width > limit:
        return loops
    if width < 16384:
        return tiles
    return tiles + loops[:2] if width <= held else loops[1::-1] + tiles if width == 16384 else loops + tiles[:1]


FEW = 576
"""Columns up to which a thread can hold its part of a row in narrow tiles, so that few threads exchange what they found of it."""
WHOLE_ACROSS, FEW_ACROSS = 64, 256
"""The same where rows are next to each other in memory: a thread has whole ones; above that every eighth column of some."""
HELD = ((1, 1, 4), (2, 1, 4), (2, 2, 4), (1, 2, 4), (1, 1, 8))
"""Ways to do it: threads of a row, as a multiple of as few as have 33 elements each (a column more than a power of two, for all the rest,
is common), rows of a thread, warps."""


@remember
def few_tiles(M, N, across, vector, least=1, most=FEW_ACROSS, column=8):
    """Candidates where rows are short enough for narrow tiles, HELD of which are a row, of at least so many columns; rows that are next to
    each other, of at most so many. Of such, where a `column` has two bytes to hold, eight threads or sixteen have eight: softmax of 65
    classes takes 65 µs, not 100, of 150 classes 77 µs, not 119 (predicted, 2^20 and 2^19 rows in bfloat16)."""
    if across:
        blocks = (512, 256, 128) if N <= 4 else (256, 512, 128) if N <= 32 else (256, 128)
        ways = [(m, 1, 4) for m in blocks] if N <= WHOLE_ACROSS else [(64, 8, 4), (128, 4, 4)]
        if column <= 2 and N > WHOLE_ACROSS:                             # eight rows, 16 bytes, a thread
            ways = ([(32, 8, 1), (64, 8, 2)] if N <= 128 else [(32, 16, 2)]) + ways
        ways = ways if N <= most else []
    else:
        few = max(next_power_of_2(cdiv(N, 33)), least // vector)
        ways = [(32 * warps // (few * more) * each, few * more * vector, warps) for more, each, warps in HELD if few * more <= 32]
        ways = ways if N <= FEW else []
    return [{"BLOCK_M": min(m, next_power_of_2(M)), "BLOCK_N": n, "num_warps": warps, "STAGES": 1, "HELD": cdiv(N, n)}
            for m, n, warps in ways]


@remember
def norm_tiles(M, N, itemsize, simulated):
    """Candidates for norms, that hold rows in tiles of 16 bytes a thread, five where a warp or two have a row, up to ten where eight have:
    without padding to a power of two, a forward layer norm of 1280 columns takes 21 µs, not 29 (predicted for 16384 rows in bfloat16).
    A program a row comes first: one that loads the next row meanwhile took 195 µs, not 184, of 4096 columns and 225 µs, not 184, of 16384
    on an H100 (268 MB in bfloat16), where other programs fill the time anyway.
    Of the longest rows these are two: a layer norm, which waits for two sums of each, took 146 µs on an H200, an RMS norm 134. With fewer
    registers for a thread there is room for three of eight warps, or two of sixteen."""
    vector = 16 // itemsize
    if simulated:
        n = max(half(N), 8)
        return [_row_tile(min(half(M), 1024), n, 4) | {"HELD": cdiv(N, n)}] if 0 < N < 300 else []
    few, found = min(next_power_of_2(cdiv(N, 5 * vector)), 256), []
    for more, ahead in ((1, 0), (2, 0), (1, 1)):
        n, warps = max(few * more * vector, 8), max(few * more // 32, 1)
        m, per_sm = max(min(32 // (few * more), next_power_of_2(M)), 1), max((32 << 10) // (N * itemsize), 1)
        found.append(_row_tile(m, n, warps, 1 + ahead, ahead and per_sm) | {"HELD": cdiv(N, n)})
    if found[0]["HELD"] > 5:
        found += [found[0] | {"maxnreg": 80}, found[1] | {"maxnreg": 64}]
    return [way for way in found if way["HELD"] <= 10]


def _host_tile(M, N):
    """What the host holds a row in: the fewest tiles that have no more than an eighth of nothing; of short rows several."""
    width = next_power_of_2(N)
    block = next((n for n in (width, width // 4, width // 8) if n >= 16 and 8 * cdiv(N, n) * n <= 9 * N), width)
    return _row_tile(max(min(512 // width, next_power_of_2(M)), 1), block, 4) | {"HELD": cdiv(N, block)}


def _row_tile(block_m, block_n, warps, stages=1, per_sm=0):
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "STAGES": stages, "PER_SM": per_sm, "num_warps": warps}


def start_rows(kernel, family, geometry, dtype, args, limit=IN_REGISTERS, held=WHOLE, lanes=False, lines=False, few=False, **constexprs):
    """Start `kernel` on all blocks of rows, by the tile that is best for their size. What it reads is of `dtype` or narrower. `lanes`: it
    asks how many threads have a part of a row; `lines`: how many copies of a line of weights; `few`: it can hold rows in narrow tiles."""
    M, N, across = geometry.M, geometry.N, geometry.across
    if compiled_for_host():
        limit = held = HOST_ROW
    limit = limit // 4 if dtype.itemsize == 8 else limit                 # twice the registers, and few instructions work on them
    vector, tiles = vector_of(geometry, dtype.itemsize), row_tiles(M, N, across, bool(tile(0, 1)), limit, held)
    tensors = [(a.numel(), a.dtype.itemsize) for a in args if isinstance(a, Tensor)]
    read = sum(size for n, size in tensors if n == M * N) - dtype.itemsize            # of a column, at most: one at least is written
    if few and not tile(0, 1):
        least = 8 if N > 16 else 4 if N > 4 else 1                       # of what is written narrower the second cache gets too many pieces
        tiles = few_tiles(M, N, across, vector, least, column=read) + tiles
    if compiled_for_host():
        tiles = [t for t in tiles if t["BLOCK_M"] * t["BLOCK_N"] <= HOST_ROW] or tiles
    if lines and compiled_for_host() and N <= held:
        tiles = [_host_tile(M, N)]
    elif lines:
        tiles = (norm_tiles(M, N, dtype.itemsize, bool(tile(0, 1))) if N <= held else []) + tiles
    vectors = sum(size for n, size in tensors if n not in (M * N, M))    # which are loaded ahead like rows

    def run(t):
        block_m, block_n, per_sm, held = t["BLOCK_M"], t["BLOCK_N"], t.get("PER_SM", 0), t.get("HELD", int(lines))
        ahead = max(t["STAGES"] * read * block_m, (t["STAGES"] - 1) * (read * block_m + vectors)) * block_n * max(held, 1)
        blocks, vec = cdiv(M, block_m), min(vector, block_n)
        if lanes:
            constexprs["LANES"] = lanes_of(block_m, block_n, t["num_warps"], across, vec)
        if few or lines:
            constexprs["HELD"] = held
        if lines:
            constexprs["COPIES"] = copies_of(block_m, block_n, t["num_warps"], vec)
        launch(kernel, (min(per_sm * sm_count(), blocks) if per_sm else blocks,), *args, **constexprs, BLOCK_M=block_m, BLOCK_N=block_n,
               LOOP=block_n * max(held, 1) < N, VEC=vec, ALIGN=geometry.align, num_warps=t["num_warps"],
               STAGES=t["STAGES"] if ahead <= shared_memory() - ROOM else 1, **{name: t[name] for name in ("maxnreg",) if name in t})

    run(tiles[0] if len(tiles) == 1 else choose(family, (dtype.name, across, vector > 1, M, N), tiles, kernel, run))


def lanes_of(block_m, block_n, warps, across, vector):
    """How many threads have a part of a row of a tile: they follow each other along it before there are any in the next."""
    return min(max(32 * warps // cdiv(block_m, 8), 1) if across else 32 * warps, block_n // vector)


def copies_of(block_m, block_n, warps, vector):
    """Rows of a tile that each want a copy of the weights: all, where a row lies on a part of the threads, else one for all."""
    return block_m if block_n < 32 * warps * vector else 1


def widest(*operands):
    """The dtype of the largest elements."""
    return max((x.dtype for x in operands), key=lambda dtype: dtype.itemsize)


def vector_of(geometry, itemsize):
    """Elements of a row that a thread can load at once: up to 16 bytes, where rows of all operands lie without gaps."""
    return min(16 // itemsize, geometry.align) if len(geometry.shape_n) == 1 else 1


# ------------------------------------------------------------------ and sum over the rows as they go
WIDEST_SUMS = 16384
"""Columns (of float64 half as many) up to which a program can add up gradients of parameters in registers, beside the row."""
SUMS = ((1, 3, 1), (1, 2, 1), (1, 1, 1), (2, 3, 1), (1, 3, 8), (1, 3, 4), (1, 2, 8), (1, 4, 1))
"""Ways to do it: threads of a row, as a multiple of as few as hold it in five tiles of 16 bytes, stages, warps of a program at least. Few
threads exchange what they found of a row, and tiles need no padding to a power of two: of 768 columns a warp has three tiles of 256, and a
layer norm's gradient takes 61 µs, not 80, of 1280 38 µs, not 56 (predicted in bfloat16, for 50000 and 16384 rows). Eight warps a
multiprocessor, that load ahead, keep memory busy, and more would have more sums to store; where two rows ahead are few, 61 KiB a
multiprocessor, the last has three. Where the warps are one program, with several rows at a time, its lines of sums are all that its
multiprocessor stores: to add up 528 lines of 768 takes 6.5 µs on an H100."""
TWICE = ((16, 1), (8, 1), (8, 0))
"""Ways for the widest rows: warps, and whether tiles are read a second time, which the first cache still has. Held, beside the sums of two
parameters, 16384 columns spill: a layer norm's gradient took 383 µs on an H100. With one an RMS norm's took 285 µs held and not loaded
ahead, 292 loaded ahead."""
WAITING = (4096, 16), (2048, 8)
"""Columns of a tile, and warps, where such rows wait in shared memory and are read from there twice. Eight warps have fewer addresses to
work out and fewer to wait for at a barrier, but less to do while one waits."""


@remember
def sum_tiles(M, N, itemsize, column, line, room, simulated, twice=0, waiting=False):
    """Candidates for a kernel that reads operands, of `itemsize` bytes an element at most and `column` bytes in a column, keeps their rows
    in HELD tiles and also sums over the rows; `line`: bytes in a column of what all rows share, `room` is for what is loaded ahead.
    `twice`: of how many parameters a kernel that can read wide rows a second time has sums, else 0; `waiting`: there is one whose rows
    wait in shared memory."""
    height, vector, tiles = next_power_of_2(M), 16 // itemsize, []
    if simulated:
        n = max(half(N), 8)
        return [_row_tile(min(half(cdiv(M, 2)), 64), n, 4, per_sm=2) | {"HELD": max(cdiv(N, n), 1), "TWICE": 0}]
    wide, reads = twice and N > WIDEST_SUMS // 2, []
    for warps, again in TWICE if wide else ():
        n = 32 * warps * vector
        reads.append(_row_tile(1, n, warps, per_sm=1) | {"HELD": cdiv(N, n), "TWICE": again})
    for n, warps in reversed(WAITING) if wide and waiting else ():
        whole = cdiv(N, n) * n
        stages = min((room + ROOM - 2048 - line * whole) // (column * whole), 3)
        if stages > 1:
            reads.insert(0, _row_tile(1, n, warps, stages, 1) | {"HELD": cdiv(N, n), "TWICE": 1, "kernel": "gluon"})
    few = min(next_power_of_2(cdiv(N, 5 * vector)), 512)
    for more, stages, least in SUMS:
        threads = min(few * more, 1024)
        warps, n = max(threads // 32, least), max(threads * vector, 8)   # dropout draws for 8 at a time
        m, held, per_sm = max(min(32 * warps // threads, height), 1), cdiv(N, n), max(8 // warps, 1)
        ahead = max(stages * column, (stages - 1) * (column + line)) * m * n * held
        if ahead * per_sm <= room or stages == 1:
            tiles.append(_row_tile(m, n, warps, stages, per_sm) | {"HELD": held, "TWICE": 0})
    return reads + tiles if twice > 1 else sorted(tiles, key=lambda t: t["STAGES"] > 1) + reads if wide else tiles


def sum_lines(sums, parts):
    """Each of `sums` becomes the sum of the lines of its part."""
    lines, N = parts[0].shape
    targets = [s if s.is_contiguous() else empty(s.shape, s.dtype, s.device) for s in sums]
    block_n = 8 if N < 4096 else 32                                      # a sector, or a few: enough programs, that load all lines at once
    block_p = min(65536 // (block_n * parts[0].dtype.itemsize), next_power_of_2(lines))              # 64 registers of a thread
    block_n = tile(block_n, min(1024, next_power_of_2(N)))
    launch(LINES.sum_lines_kernel, (cdiv(N, block_n), len(parts)), tuple(targets), tuple(parts), lines, N, BLOCK_P=tile(block_p, 4),
           BLOCK_N=block_n, num_warps=8)
    for s, target in zip(sums, targets):
        if target is not s:
            s.copy_(target)


def start_sums(kernel, family, geometry, operands, outs, sums, args, twice=0, waiting=None, **constexprs):
    """Start a kernel that reads `operands`, fills `outs` row by row and, line by line of (programs, N), parts of `sums` (None for one that
    is not wanted): then add the lines up. Arguments are outs, parts, args. `twice`: see sum_tiles; `waiting`: starts the kernel whose
    rows wait in shared memory, by a candidate and so many programs, into outs and parts, in vectors of 16 bytes."""
    dtype, home, itemsize = operands[0].dtype, outs[0].device, widest(*operands).itemsize
    M, N, vector, column = geometry.M, geometry.N, vector_of(geometry, itemsize), sum(x.dtype.itemsize for x in operands)
    line = sum(a.dtype.itemsize for a in args if isinstance(a, Tensor) and a.numel() == N)
    can_wait = waiting is not None and vector * itemsize == 16 and not driver.on_host()
    tiles = sum_tiles(M, N, itemsize, column, line, shared_memory() - ROOM, bool(tile(0, 1)), twice, can_wait)
    if compiled_for_host() and N <= HOST_ROW:
        tiles = [_host_tile(M, N) | {"PER_SM": 2, "TWICE": 0}]

    def run(t):
        block_m, block_n = t["BLOCK_M"], t["BLOCK_N"]
        programs = min(cdiv(M, block_m), tile(t["PER_SM"] * sm_count(), 2))
        parts = [None if s is None else empty((programs, N), dtype.compute, home) for s in sums]
        if twice:
            constexprs["TWICE"] = t["TWICE"]
        if "kernel" in t:
            waiting(t, programs, *outs, *parts)
        else:
            launch(kernel, (programs,), *outs, *parts, *args, **constexprs, BLOCK_M=block_m, BLOCK_N=block_n, LOOP=False, VEC=vector,
                   ALIGN=geometry.align, COPIES=copies_of(block_m, block_n, t["num_warps"], vector), STAGES=t["STAGES"],
                   HELD=t["HELD"], num_warps=t["num_warps"])
        sum_lines([s for s in sums if s is not None], [part for part in parts if part is not None])

    key = dtype.name, column, len(operands) + len(sums) - sums.count(None), M, N
    run(tiles[0] if len(tiles) == 1 else choose(family, key, tiles, kernel, run))
