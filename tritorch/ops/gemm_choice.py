"""Which kernel multiplies two matrices, in which tiles: the candidates of a product, the likeliest first.

A candidate names its kernel, that kernel's blocks, stages and warps, and `splits`, the pieces that K is cut into. The order comes from a
count of clock cycles: waves of tiles over the multiprocessors, each as long as its products or its loads take. The tuner has the last word.
"""
from math import gcd

from tritorch.ops.rows import chunk_of
from tritorch.shape import cdiv, next_power_of_2

# BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, and a guess at the share of the units' rate that the tile reaches when it fills the GPU.
# "odd" are 16-bit operands whose rows do not start at multiples of 16 bytes: they cannot be copied asynchronously and need registers, as do
# those of "tf32", which are rounded there. In float32 what warps read of shared memory again and again takes longest, so tiles of one warp
# reach most, where they need not wait for each block of K: 1024 products of 64 x 64 x 64 are predicted to take 27 µs, of four warps 37.
TILES = {
    "half": ((128, 256, 64, 8, 3, 0.8), (128, 128, 64, 4, 3, 0.72), (64, 128, 64, 4, 4, 0.6), (128, 64, 64, 4, 4, 0.6),
             (64, 64, 64, 4, 4, 0.45), (64, 64, 128, 4, 4, 0.45), (64, 32, 128, 4, 4, 0.25), (32, 64, 128, 4, 4, 0.24),
             (16, 64, 128, 4, 4, 0.15), (64, 16, 128, 4, 4, 0.15), (16, 32, 256, 4, 4, 0.1), (64, 64, 32, 4, 3, 0.3),
             (128, 128, 16, 8, 2, 0.3), (32, 32, 32, 1, 2, 0.1), (16, 16, 16, 1, 2, 0.03)),
    "odd": ((128, 128, 32, 8, 3, 0.14), (64, 64, 32, 4, 3, 0.12), (64, 64, 16, 4, 3, 0.1),
            (16, 64, 64, 4, 3, 0.06), (64, 16, 64, 4, 3, 0.06)),
    "tf32": ((128, 128, 32, 8, 3, 0.15), (128, 64, 32, 4, 3, 0.12), (64, 128, 32, 4, 3, 0.12), (64, 64, 32, 4, 4, 0.09),
             (16, 64, 64, 4, 4, 0.03), (64, 16, 64, 4, 4, 0.03)),
    "bf16": ((128, 128, 32, 8, 3, 0.4), (64, 64, 32, 4, 3, 0.25), (16, 64, 64, 4, 3, 0.1), (64, 16, 64, 4, 3, 0.1)),
    "ieee": ((128, 128, 16, 8, 3, 0.4), (64, 128, 16, 8, 3, 0.35), (128, 64, 16, 8, 3, 0.35), (64, 64, 16, 4, 3, 0.3),
             (32, 32, 32, 4, 3, 0.23), (16, 64, 32, 4, 3, 0.12), (64, 16, 32, 4, 3, 0.07), (32, 64, 16, 1, 3, 0.5),
             (64, 16, 32, 1, 2, 0.13), (16, 16, 16, 1, 2, 0.12)),
    "parts": ((128, 64, 32, 8, 3, 0.42), (64, 128, 32, 8, 3, 0.38), (64, 64, 32, 4, 3, 0.36), (64, 32, 32, 4, 3, 0.28),
              (64, 64, 16, 4, 3, 0.28), (32, 64, 32, 2, 3, 0.27), (32, 64, 16, 1, 3, 0.28), (16, 64, 32, 2, 3, 0.19),
              (64, 16, 32, 4, 3, 0.19), (32, 32, 16, 1, 3, 0.2)),
    "fp64": ((64, 64, 16, 4, 3, 0.6), (32, 32, 16, 4, 3, 0.4), (16, 16, 32, 4, 3, 0.2)),
    "int8": ((128, 128, 64, 8, 3, 0.4), (64, 64, 64, 4, 3, 0.25), (16, 64, 64, 4, 3, 0.1), (64, 16, 64, 4, 3, 0.1)),
    "fp8": ((128, 128, 64, 8, 3, 0.4), (64, 64, 64, 4, 3, 0.25), (16, 64, 64, 4, 4, 0.1), (64, 16, 64, 4, 4, 0.1)),
    "sum": ((32, 32, 8, 4, 2, 0.5), (16, 16, 16, 4, 2, 0.3)),
}
# By TMA, for 16-bit types; a 32-bit one takes half of BLOCK_K: BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, PIECES, rate.
PERSISTENT = ((128, 256, 64, 8, 3, 2, 0.9), (256, 128, 64, 8, 3, 1, 0.9), (128, 128, 64, 8, 4, 1, 0.8), (128, 64, 64, 4, 5, 1, 0.6))
# BLOCK_M, BLOCK_N, BLOCK_K, num_warps, STAGES, PIECES, CONSUMERS, PARTS, rate, WHOLE: two consumers hide the storing of tiles, one has
# larger tiles; three that share a tile of three times BLOCK_M rows have the largest. Tiles leave in more PIECES, up to eight, where the
# ring has more stages then: with three instead of four, 2048^3 in TF32 is predicted to take 55.8 µs, not 51.1. Of a ring of three, one
# stage is multiplied and one waits its turn: in six of half of BLOCK_K more is on its way. Where both operands lie along K, half of
# BLOCK_K is half as much of a line: of tiles of 128 x 256, 32768 x 768 x 3072 took 244 µs on an H100, not 210. A tile with room for the
# WHOLE of it leaves while the next one is multiplied, from a ring that is smaller by that.
GLUON = ((64, 256, 32, 4, 6, 4, 1, 3, 0.98, False), (128, 256, 64, 8, 4, 4, 1, 1, 0.97, False), (64, 256, 64, 4, 4, 4, 1, 3, 0.96, False),
         (256, 128, 64, 8, 4, 4, 1, 1, 0.95, False), (128, 256, 32, 8, 8, 4, 1, 1, 0.92, False), (128, 256, 64, 8, 4, 4, 1, 1, 0.82, True),
         (64, 256, 32, 4, 4, 4, 1, 3, 0.8, True), (128, 128, 64, 4, 5, 2, 2, 1, 0.9, False), (64, 256, 64, 4, 4, 4, 2, 1, 0.85, False),
         (128, 128, 64, 8, 6, 2, 1, 1, 0.85, False), (128, 64, 64, 4, 8, 1, 1, 1, 0.6, False), (64, 128, 64, 4, 8, 1, 1, 1, 0.59, False))
EXACT = ((128, 128, 64, 8, 2, 0.8), (128, 128, 32, 8, 4, 0.78), (128, 64, 32, 4, 3, 0.6), (64, 128, 32, 4, 3, 0.6),
         (64, 64, 64, 4, 3, 0.4))
# BLOCK_M, BLOCK_N, BLOCK_K, num_warps, STAGES, rate
EXACT_GLUON = ((128, 128, 64, 4, 2, 0.93), (128, 128, 32, 4, 4, 0.92), (128, 64, 64, 4, 3, 0.85))
# On Hopper, a program for each tile or piece of K of one: BLOCK_M, BLOCK_N, BLOCK_K, num_warps, STAGES, rate. The more stages, the more
# is on its way at once; with fewer, two programs share a multiprocessor.
SMALL = ((64, 32, 128, 4, 8, 0.3), (64, 32, 64, 4, 8, 0.3), (64, 64, 128, 4, 6, 0.5), (64, 64, 64, 4, 8, 0.5),
         (64, 64, 64, 4, 6, 0.5), (64, 128, 64, 4, 8, 0.65), (128, 64, 64, 8, 8, 0.65), (128, 128, 64, 8, 6, 0.75),
         (64, 256, 64, 4, 5, 0.7), (128, 32, 64, 8, 8, 0.35), (64, 16, 128, 4, 8, 0.15))
# The same for few rows, as columns of the transpose: next to nothing in shared memory is theirs. Two programs share a multiprocessor, or
# 512 bytes of each row of the other operand are read at the same time.
FLAT = ((64, 16, 128, 4, 5, 0.15), (64, 16, 256, 4, 5, 0.15), (128, 16, 256, 8, 3, 0.15))
# The same for float32 in parts that the program cuts itself.
PARTS_GLUON = ((128, 128, 32, 8, 4, 0.75), (128, 64, 64, 8, 3, 0.8), (128, 64, 32, 8, 5, 0.7), (64, 128, 32, 4, 5, 0.7),
               (64, 64, 32, 4, 4, 0.7), (64, 64, 64, 4, 3, 0.7), (64, 32, 64, 4, 4, 0.5), (64, 32, 32, 4, 4, 0.5),
               (64, 64, 16, 4, 4, 0.6), (64, 32, 16, 4, 4, 0.4), (128, 64, 16, 8, 4, 0.6))
# The same by groups of warps that share a tile's K, each with its own slots of the ring: BLOCK_M, BLOCK_N, BLOCK_K, num_warps of a group,
# STAGES, GROUPS. Where a tile is all that a multiprocessor gets, most of its K should be on its way at once.
GROUPS = ((64, 32, 32, 4, 12, 4), (64, 32, 64, 4, 6, 3), (64, 32, 64, 4, 8, 2), (128, 64, 32, 8, 6, 2), (128, 64, 32, 4, 6, 2),
          (64, 128, 32, 4, 6, 2), (64, 64, 32, 4, 9, 3), (128, 64, 16, 4, 8, 2), (64, 64, 16, 4, 12, 4),
          (64, 64, 16, 4, 12, 3), (64, 32, 16, 4, 16, 4), (64, 16, 64, 4, 8, 4), (64, 8, 64, 4, 8, 4), (64, 8, 64, 4, 10, 2))
# Elements of K from which sums of parts are at least as accurate as sums of float32: on Hopper in blocks of 16 that are added up carefully;
# without that, and on Ampere, from 128 on. Of larger blocks it takes eight, as more is cut off before it is added up (test_exact.py).
LEAST_EXACT, CAREFUL, EXACT_BLOCKS = 64, 128, 8
FALLBACK = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=16, num_warps=8, num_stages=3)
# BLOCK_N, BLOCK_K, num_warps where K lies together in memory. Small blocks fill the multiprocessors evenly: 4096 x 4096 numbers of 16 bits
# are predicted to take 9.6 µs, in blocks of 4 x 1024 11.1. Rows of few come to one thread each: 1048576 x 64 of 32 bits in 68 µs, not 267.
VECTORS = ((4, 512, 2), (2, 1024, 2), (8, 256, 4), (256, 4, 1), (512, 4, 4))
COLUMNS = ((32, 128, 4), (64, 64, 4), (128, 32, 4), (128, 64, 8), (256, 4, 1))                  # where N does
TILES["fp8 fast"] = TILES["fp8"]                                         # multiplied as float16 there
PEAK = {"half": 2048, "odd": 2048, "tf32": 1024, "bf16": 2048, "ieee": 128, "parts": 2048 / 6, "fp64": 128, "int8": 4096, "fp8": 2048,
        "fp8 fast": 2048, "sum": 128}
LOADS = 48                          # bytes that reach a multiprocessor in a cycle: with less, tiles of 128 x 256 would wait for them
START, SECOND = 2000, 4000          # cycles: filling and draining a tile's pipeline; the second kernel of a split product
ROUND, BEGIN = 600, 200             # cycles until what a program loads at once is there; what a warp of many programs takes to begin
NEARBY = 16 << 20                   # bytes of operands that come from the second cache, if they were just written
STORES = 18                         # bytes that leave a multiprocessor in a cycle, for memory
LARGE = 128 * 128                   # elements of a tile, of which more in two stages do not run ahead: ptxas waits for every product
MOST_EACH = 64                      # elements of K that one thread sums up
ALONE = 32                          # elements of K for each byte of theirs, up to which a tile may be one warp's
MOST_SPLITS = 64                    # the second kernel has a line for each
MOST_STREAMED = 2                   # tiles for each multiprocessor: of more, the last wave is a small part, and the parts much memory
# Where not all multiprocessors have a tile, the others' clocks are faster, or they share what the second cache delivers: 72 tiles of
# 128 x 256 x 32768 took 307 µs on an H100, 102 as fast as 314, 111 as 341, 132 at most 370.
SPARED, LEAST = 0.35, 0.86
MEMORY = 14                         # bytes that a multiprocessor's share of memory delivers in a cycle
HELD = 24 << 20                     # bytes of operands that the second cache keeps, also where each of its halves needs them
APART = 0.15                        # more time streamed products take where no two tiles of a line read the same at the same time
GROUP_M = 8
DOWN = 1 << 16                      # GROUP_M of tiles that run down all rows before the next column
WHOLE_LINES = 32                    # of so many programs one may be left out, so that lines of tiles get the same help at the same time
HOPELESS = 2
# Tiles of split products that a stream's counters tell apart; how many parts, of how many elements together, the last of a tile's programs
# adds up sooner than a second kernel would; the cycles which that takes besides: 64 x 4096 x 4096 in two splits is predicted to take
# 10.7 µs so and 12.1 with a second kernel, 256 x 256 x 8192 in eight 7.5 and 7.0.
COUNTERS, MOST_JOINED, JOINED_ELEMENTS, LAST = 2048, 4, 1 << 15, 700
MOST_WHOLE = 2                      # tiles for each multiprocessor, up to which 16-bit products are small
BEGIN_GROUPS, QUICK = 3800, 16       # the same of float32 by groups, until the sums leave too; in which one of their threads cuts a number
BETWEEN, UNEVEN = 500, 1.2          # cycles for each of a group's blocks in which it does neither; as groups get in each other's way
FEW, NARROW = 1 << 21, 128          # elements of a result of few tiles; rows or columns that few tiles take
LEAST_BOX, STORING = 64, 1 << 22    # elements of K from which TMA loads them; of a result that takes longer to store than to compute
SWAPPED, LINES = 64, 16             # rows of a result, up to which those of its transpose are multiplied: of 32 bits, of 16
ADDRESSES = 150                     # cycles that a tile takes longer to begin whose addresses threads work out, not TMA
BEGIN_WHOLE, CUT = 1200, 38         # cycles until a small product multiplies; in which a thread cuts a number into parts
BEHIND = 0.18                       # cycles for each element of a tile, with an activation or slope, unless another consumer multiplies
SIDE = {"sum": 32}                  # of tiles on the simulated device, elsewhere 1024: it wants few, huge tiles, yet more than one


def tiles_of(M, N, batch, block_m, block_n, cluster=1):
    return cdiv(M, block_m * cluster) * cluster * cdiv(N, block_n) * batch


def size_class(M, N, batch):
    """What a key of the tuner's tables says of sizes that no other size stands for, while otherwise a table speaks for up to four times as
    large ones, too: of few tiles they decide how K is split, and 64 rows are one tile, 128 two."""
    least, most = sorted(max(next_power_of_2(n), 16) for n in (M, N))
    if M * N * batch <= FEW:
        return f" {least}x{most}"
    return f" {least}" if least <= NARROW else ""


def held(stages, machine):
    """Of so many stages those that lie in shared memory: where matrix units take what registers hold, one is on its way there."""
    return stages - 1 if machine[2] in (8, 12) else stages


def plain(kind, M, N, k, batch, itemsize, machine):
    """Candidates of the tiled kernel that takes any layout, as (cycles, candidate)."""
    if machine is None:
        side = SIDE.get(kind, 1024)
        block_m, block_n = [min(max(next_power_of_2(n) // 2, 16), side) for n in (M, N)]
        block_k = min(max(next_power_of_2(k), 32 if itemsize == 1 else 16), side)
        splits = min(4 // max(tiles_of(M, N, batch, block_m, block_n), 1), cdiv(k, block_k))
        return [(0, _plain(block_m, block_n, block_k, 4, 3, max(splits, 1)))]
    found, most_tiles = [], 4 if kind == "parts" else 2
    for block_m, block_n, block_k, warps, most, rate in TILES[kind]:
        tiles, splits = tiles_of(M, N, batch, block_m, block_n), 1       # one warp waits for each of its blocks of K, or others are there
        alone = warps == 1 and (tiles < 4 * machine[0] if kind == "parts" else k > ALONE * itemsize)
        coarse = kind == "parts" and block_k > max(16, k // EXACT_BLOCKS)
        if (block_m + block_n) * block_k * itemsize * held(most, machine) <= machine[1] and not (alone or coarse):
            leaves = min(block_m, M) * min(block_n, N) * itemsize / STORES
            while splits == 1 or (tiles * splits <= most_tiles * machine[0] and k >= 2 * block_k * splits and splits <= MOST_SPLITS):
                steps = cdiv(chunk_of(k, block_k, splits), block_k)
                stages = max(min(most, steps), 3 if block_m * block_n > LARGE else 2)
                resident = max(min(32 // warps, machine[1] // ((block_m + block_n) * block_k * itemsize * stages)), 1)
                cost = cycles(tiles * splits, (block_m, block_n), steps * block_k, PEAK[kind] * rate, itemsize, machine,
                              leaves + START / resident) + START - START / resident
                if kind == "parts":                                      # a program cuts a block into parts, then multiplies them
                    cut = 10 * (block_m + block_n) * block_k / (32 * warps)
                    wait = 800 if (M + N) * k * batch * itemsize > NEARBY else 250
                    cost = max(cost, steps * (wait + 1.7 * (cut + block_m * block_n * block_k / PEAK[kind])) + START)
                elif warps == 1:                                         # a quarter of a multiprocessor, unless others are there too
                    cost = max(cost, 4 * block_m * block_n * steps * block_k / (PEAK[kind] * rate) + START)
                cost += joining(splits, block_m, block_n, M, N, batch, machine)
                found.append((cost, _plain(block_m, block_n, block_k, warps, stages, splits, "parts" if kind == "parts" else "plain")))
                splits *= 2
    return found


def each(M, N, k, batch, machine):
    """The candidate that has a thread for each element of the result, as (cycles, candidate); its operands come from the first
    cache, of narrow results more rows at a time."""
    if machine is None or k > MOST_EACH:
        return []
    cost = max(cdiv(M * N * batch, 32 * machine[0]) * (60 + k * (7 + 8 / N)), 340 * k)       # at least as long as one thread waits
    return [(cost + START, dict(kernel="each", BLOCK=128, num_warps=1))]


def joins(splits, tiles, block):
    """Whether one program of each of the tiles, of `block` elements, adds up what all its splits have, not a second kernel."""
    return 0 < tiles <= COUNTERS and splits <= MOST_JOINED and splits * block <= JOINED_ELEMENTS


def joining(splits, block_m, block_n, M, N, batch, machine):
    """Cycles until the sums of so many splits are added up."""
    if splits == 1:
        return 0
    if joins(splits, tiles_of(M, N, batch, block_m, block_n), block_m * block_n):
        return LAST + splits * min(block_m, M) * min(block_n, N) / 8
    return SECOND + splits * batch * M * N * 8 / (20 * machine[0])


def _plain(block_m, block_n, block_k, warps, stages, splits, kernel="plain"):
    return dict(kernel=kernel, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, num_stages=stages, splits=splits)


def cycles(tiles, blocks, k, rate, itemsize, machine, start=START):
    """Clock cycles of `tiles` tiles that sum over k, dealt to the multiprocessors: cycles of all of them at work."""
    block_m, block_n = blocks[:2]
    step = max(block_m * block_n * k / rate, (block_m + block_n) * k * itemsize / LOADS) * slowed(tiles, machine)
    return cdiv(tiles, machine[0]) * (step + start)


def slowed(tiles, machine):
    """The share of its time that a tile takes where not all multiprocessors have one."""
    return min(max(1 - SPARED * (1 - tiles / machine[0]), LEAST), 1)


def dealt(M, N, tiles, steps, block_m, block_n, multiprocessors):
    """How STREAM deals out blocks of K (see matmul_stream.py), as options of its kernels. A line of tiles shares the operand that is the
    larger one; for whole lines a few programs are left out."""
    line = cdiv(N, block_n) if M >= N else cdiv(M, block_m)
    programs = min(multiprocessors, tiles * steps)
    if programs % line <= programs // WHOLE_LINES:
        programs -= programs % line
    return dict(PROGRAMS=programs, STREAM=gcd(line, programs % tiles), GROUP_M=1 if M >= N else DOWN)


def streamed(M, N, k, batch, blocks, block_k, rate, itemsize, machine):
    """Clock cycles of tiles whose blocks of K are dealt out evenly, and added up by a second kernel; None where that gains nothing. Tiles
    are up to `apart` blocks of K from each other, which is what the second cache must hold, else each line reads all that it needs."""
    tiles, steps = tiles_of(M, N, batch, *blocks), cdiv(k, block_k)
    if tiles % machine[0] == 0 or tiles > MOST_STREAMED * machine[0] or tiles * steps < 2 * machine[0]:
        return None
    how = dealt(M, N, tiles, steps, *blocks, machine[0])
    programs, alike = how["PROGRAMS"], how["STREAM"]
    rounds = cdiv(tiles * steps, programs)
    left = max(steps - programs // tiles * rounds, 0)
    apart = left * (rounds - left) // rounds * block_k * itemsize
    side, line = (blocks[0], cdiv(N, blocks[1])) if M >= N else (blocks[1], cdiv(M, blocks[0]))
    fits = apart * (min(M, N) if alike == line else M + N) <= HELD
    read = (M + N) * batch if fits else tiles // alike * (side + alike * (sum(blocks) - side))
    first = cycles(programs, blocks, rounds * block_k, rate, itemsize, machine, 2 * START)
    first = max(first, read * k * itemsize / (MEMORY * machine[0]))
    return (1 + APART / alike) * (first + SECOND + (programs + tiles) * blocks[0] * blocks[1] * 8 / (20 * programs))


def persistent(M, N, k, batch, machine, itemsize=2, out_size=2, apart=False):
    """Candidates by TMA, for operands and a result of so many bytes a number; `machine` allows it and k is at least 64. `apart`: sums of
    BLOCK_K products need registers of their own."""
    found = []
    for block_m, block_n, depth, warps, stages, pieces, rate in PERSISTENT:
        blocks, block_k, rate = (block_m, block_n), 2 * depth // itemsize, 2 * PEAK["half"] // itemsize * rate
        tiles = tiles_of(M, N, batch, *blocks)
        leaves = min(block_m, M) * min(block_n, N) * out_size / STORES
        count = cycles(tiles, blocks, k, rate, itemsize, machine, START + leaves)
        fits = (block_m + block_n) * 2 * depth * stages + block_m * block_n // pieces * out_size <= machine[1] - 1024
        if fits and not (apart and block_m * block_n > 128 * 128):
            found.append((count, dict(kernel="persistent", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps,
                                      num_stages=stages, PIECES=pieces)))
    return found


def gluon(M, N, k, batch, machine, itemsize=2, out_size=2, across=False, behind=False):
    """Candidates with the schedule written out, for Hopper. `across`: those that compute tiles as their transposes. `behind`: an activation
    or a slope comes after the sums."""
    found = []
    for block_m, block_n, depth, warps, most, pieces, consumers, parts, rate, whole in GLUON:
        if whole and (across or out_size > 2):
            continue
        if across:
            if consumers > 1 or block_m < 128 or depth < 64:             # ptxas has no registers for the operands of several, and waits
                continue
            block_m, block_n = block_n, block_m
        blocks, block_k, tiles = (parts * block_m, block_n), 2 * depth // itemsize, tiles_of(M, N, batch, parts * block_m, block_n)
        rate = 2 * PEAK["half"] // itemsize * rate
        start = consumers * START + min(parts * block_m, M) * min(block_n, N) * out_size / STORES
        if tiles > machine[0]:                                           # the next tile is on its way, half of this one leaves beside it
            start = START / 2 if consumers == 2 or whole else start / 2
        start += BEHIND * parts * block_m * block_n if behind and consumers == 1 else 0
        counts = [(cycles(tiles, blocks, k, rate, itemsize, machine, start), out_size, False)]
        if consumers * parts == 1 and not whole:
            counts.append((streamed(M, N, k, batch, blocks, block_k, rate, itemsize, machine), 4, True))
        for count, size, stream in counts:
            tile = consumers * parts * block_m * block_n * size
            stages, fits = max(_ring((parts * block_m + block_n) * 2 * depth, tile if whole else 2 * tile // cut, most, cut, machine)
                               for cut in (1, 2, 4, 8) if cut >= pieces)
            if count is not None:
                found.append((count, dict(kernel="gluon", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps,
                                          STAGES=stages, PIECES=-fits, CONSUMERS=consumers, PARTS=parts, STREAM=stream,
                                          **dict(ACROSS=True) if across else {}, **dict(WHOLE=True) if whole else {})))
    return found


def _ring(slot, leaving, most, pieces, machine):
    """(stages of so many bytes beside what leaves, less the number of its pieces): the larger is the better."""
    return min(most, (machine[1] - 1024 - leaving) // slot), -pieces


def exact(M, N, k, batch, machine, hopper=False):
    """Candidates that make float32 products of bfloat16 parts; `hopper`: with the schedule written out."""
    found = []
    for *blocks, stages, rate in EXACT_GLUON if hopper else EXACT:
        block_m, block_n, block_k, warps = blocks
        if EXACT_BLOCKS * block_k <= k and (block_m + block_n) * block_k * stages * 6 <= machine[1] - 1024:
            cost = cycles(tiles_of(M, N, batch, block_m, block_n), blocks, k, PEAK["half"] * rate / 6, 6, machine)
            cost += 3 * SECOND + (M + N) * k * batch * 10 / (16 * machine[0])
            found.append((cost, dict(kernel="exact_gluon" if hopper else "exact", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
                                     num_warps=warps, **{"STAGES" if hopper else "num_stages": stages})))
    return found


def whole(M, N, k, batch, machine, parts=False, swapped=False):
    """Candidates for small products on Hopper, of 16 bits or, as `parts`, of float32 that they cut; `swapped`: M, N are the transpose's."""
    found = []
    for block_m, block_n, block_k, warps, most, rate in PARTS_GLUON if parts else FLAT if swapped else SMALL:
        tiles, splits, slot = tiles_of(M, N, batch, block_m, block_n), 1, (block_m + block_n) * block_k * (4 if parts else 2)
        fixed = 2 * 6 * block_n * block_k if parts else 0                # two buffers of b's parts
        if parts and block_k > max(16, k // EXACT_BLOCKS):
            continue
        while tiles * splits <= MOST_WHOLE * machine[0] and (splits == 1 or k >= 2 * block_k * splits) or parts and splits == 1:
            steps = cdiv(chunk_of(k, 2 * block_k if parts else block_k, splits), block_k)
            stages = max(min(most, steps), 2)
            resident = max((machine[1] - 1024) // (slot * stages + fixed), 1)
            loads = (min(block_m, M) + min(block_n, N)) * block_k * (4 if parts else 2) * slowed(tiles * splits, machine) / LOADS
            step, begin = max(block_m * block_n * block_k * (6 if parts else 1) / (PEAK["half"] * rate), loads), BEGIN_WHOLE
            if parts:                                                    # while one program waits for its numbers, another cuts its own
                resident = min(resident, 8 // warps)
                begin += steps * CUT * (block_m + block_n) * block_k / (32 * warps)
            waves = cdiv(tiles * splits, machine[0])
            cost = waves * (steps * step + min(block_m, M) * min(block_n, N) * 4 / STORES) + cdiv(waves, resident) * begin
            cost += joining(splits, block_m, block_n, M, N, batch, machine)
            found.append((cost, dict(kernel="parts_gluon" if parts else "small", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
                                     num_warps=warps, STAGES=stages, splits=splits, **dict(SWAPPED=True) if swapped else {})))
            splits *= 2
    return found


def groups(M, N, k, batch, machine, along_k=True, swapped=False):
    """Candidates for float32 in parts that groups of warps cut and multiply; `along_k`: the right operand lies so, else its tiles have 16
    columns at least; `swapped`: M and N are those of the transpose."""
    found = []
    for block_m, block_n, block_k, warps, stages, count in GROUPS:
        block, tiles, splits = (block_m + block_n) * block_k, tiles_of(M, N, batch, block_m, block_n), 1
        spills = k < CAREFUL and count * warps == 16 and block_m * block_n >= 1024 * warps    # with what is lost 96 registers of sums
        if block_k > max(16, k // EXACT_BLOCKS) or block_n < 16 and not along_k or spills:
            continue
        product = 6 * block_m * block_n * block_k / PEAK["half"]
        alone = block / (32 * warps) * QUICK + product + BETWEEN
        shared = (8 * block + 6 * block_n * block_k) / 128 + product / 2
        step = UNEVEN * max(product, shared, alone / count, 4 * block / LOADS)
        while splits == 1 or tiles * splits <= machine[0] and k >= 2 * count * block_k * splits:
            steps, waves = cdiv(chunk_of(k, count * block_k, splits), count * block_k) * count, cdiv(tiles * splits, machine[0])
            cost = waves * (steps * step + alone + min(block_m, M) * min(block_n, N) * 4 / STORES) + BEGIN_GROUPS
            cost += joining(splits, block_m, block_n, M, N, batch, machine)
            found.append((cost, dict(kernel="groups", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, STAGES=stages,
                                     GROUPS=count, splits=splits, **dict(SWAPPED=True) if swapped else {})))
            splits *= 2
    return found


def vector(N, k, batch, along_k, machine, itemsize=2):
    """Candidates of a matrix of N rows times a vector of k elements, as (cycles, candidate)."""
    if machine is None:
        block_n, block_k = min(max(next_power_of_2(N) // 2, 1), 256), min(next_power_of_2(max(k, 1)), 1024)
        splits = min(4 // max(cdiv(N, block_n) * batch, 1), cdiv(k, block_k))
        return [(0, dict(kernel="vector", BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4, splits=max(splits, 1)))]
    found = []
    for block_n, block_k, warps in VECTORS if along_k or N == 1 else COLUMNS:
        if block_k < 8 and k > MOST_EACH:
            continue
        if N == 1:
            block_n, block_k, warps = 1, 2 * block_n * block_k, 2 * warps
        programs, splits = cdiv(N, block_n) * batch, 1
        while splits == 1 or (programs * splits <= 16 * machine[0] and k >= 2 * block_k * splits and splits <= MOST_SPLITS):
            each, rounds = cdiv(programs * splits, machine[0]), cdiv(chunk_of(k, block_k, splits), block_k)
            cost = each * (rounds * block_k * block_n * itemsize / 16 + warps * BEGIN) + rounds * ROUND + (SECOND if splits > 1 else 0)
            found.append((cost, dict(kernel="vector", BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, splits=splits)))
            splits *= 2
    return found


def leaves_room(candidate, fused="dropout"):
    """Whether the threads of a tile have registers to draw random numbers in, or for the sums of rows: compiled for sm_90, the others spill
    700 bytes and more, or wait for each product before the next. At a slope three consumers are left out because they are slow."""
    if fused.endswith("_backward"):                      # 535 µs on an H100 for 32768 x 3072 x 768, where one consumer took 337
        return candidate.get("PARTS", 1) == 1
    if fused == "sums":
        return candidate.get("CONSUMERS", 1) * candidate.get("PARTS", 1) == 1
    rows, columns = candidate["BLOCK_M"], candidate["BLOCK_N"]
    limit = {"small": 128 * 64,
             "persistent": 128 * 128, "gluon": 128 * 128 - 1 if candidate.get("CONSUMERS") == 2 and rows == 128 else 128 * 256}
    if candidate.get("PARTS", 1) > 1:
        return False
    return rows * columns <= limit.get(candidate["kernel"], rows * columns)


def copying(elements, itemsize, machine):
    """Cycles that a copy of operands takes before a product."""
    return SECOND + 2 * elements * itemsize / (16 * machine[0]) if elements else 0


def later(found, cost, leaving):
    """Candidates that begin `cost` cycles later, and whose result is copied in `leaving` cycles unless a second kernel writes it."""
    return [(cycles + cost + (0 if candidate.get("STREAM") else leaving), candidate) for cycles, candidate in found]


def likeliest(*groups):
    """The best few candidates of each of the groups, given with their numbers; all in the order of their cycles. Of what should take
    HOPELESS times as long as the first, each group keeps one: the count may be wrong about a whole kernel, less so about its tiles."""
    kept = [(rank, found) for group, count in groups for rank, found in enumerate(sorted(group, key=lambda f: f[0])[:count])]
    least = min(found[0] for _, found in kept)
    return [candidate for rank, (cost, candidate) in sorted(kept, key=lambda f: f[1][0]) if rank == 0 or cost <= HOPELESS * least]
