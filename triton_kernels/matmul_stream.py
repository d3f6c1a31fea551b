"""Products of fewer tiles than fill the multiprocessors: the blocks of K are dealt out to all programs, and their parts of a tile added up.

All programs take one block of K in each round. As many as there are for every tile have it to themselves and take its blocks in turn; the
others help: each takes a block of one tile in every round, until it had as many as are too many for that tile's own programs, then of the
next tile. What help a tile needs may begin with the end of one helper's rounds and end with the beginning of the next one's, never at the
same time (McNaughton's rule). Which blocks a tile is at depends on the round alone, so all tiles are at nearly the same place of K at the
same time, and what they share of it comes from the second cache: dealt out one tile after the other, blocks of 3072 x 768 x 32768 came
from memory for each tile anew, which on an H100 took 381 µs.

A line is STREAM tiles one after the other, which share one operand and have the same number of helpers at the same time: they read the
same of it in every round. A program has the same tile of every line it helps.
"""
import triton
import triton.language as tl

from .matmul import activated, epilogue, tile_of


@triton.jit
def dealt_out(tiles, steps, PROGRAMS: tl.constexpr):
    """(programs that each tile has to itself, rounds, blocks of each of its tiles that are left for helpers)."""
    each = PROGRAMS // tiles
    rounds = tl.cdiv(steps.to(tl.int64) * tiles, PROGRAMS)
    return each, rounds, tl.maximum(steps - each * rounds, 0)


@triton.jit
def share_of(pid, tiles, steps, PROGRAMS: tl.constexpr, STREAM: tl.constexpr):
    """The lines in which a program has a tile: the first, and the end of them."""
    each, rounds, left = dealt_out(tiles, steps, PROGRAMS)
    line, some = pid % tiles // STREAM, tl.maximum(left, 1)
    begin = line * rounds                                # all helpers' rounds one after the other
    end = tl.minimum(begin + rounds, tiles // STREAM * left)
    helps = pid // tiles == each
    return tl.where(helps, begin // some, line).to(tl.int32), tl.where(helps, tl.cdiv(end, some), line + 1).to(tl.int32)


@triton.jit
def turn_of(line, pid, tiles, steps, PROGRAMS: tl.constexpr, STREAM: tl.constexpr):
    """A program's tile of a line, from and to which round it takes a block of it, where its part goes, and what `block_at` takes."""
    each, rounds, left = dealt_out(tiles, steps, PROGRAMS)
    lane, at = pid // tiles, pid % tiles
    helps = lane == each
    before = line * left - at // STREAM * rounds
    begin = tl.where(helps, tl.maximum(before, 0), 0).to(tl.int32)
    end = tl.where(helps, tl.minimum(before + left, rounds), tl.minimum(rounds, tl.cdiv(steps - lane, tl.maximum(each, 1)))).to(tl.int32)
    later = line * left % rounds
    early = tl.maximum(later + left - rounds, 0)
    part = pid + tl.where(helps, line * STREAM, 0)
    return line * STREAM + at % STREAM, begin, end, part, (each, lane, early.to(tl.int32), later.to(tl.int32), left.to(tl.int32))


@triton.jit
def block_at(i, turn):
    """The block of K that a program takes in round i. Its tile has help in the first `early` rounds and `later`, of `left` blocks."""
    each, lane, early, later, left = turn
    return each * i + tl.minimum(i, early) + tl.minimum(tl.maximum(i - later, 0), left) + lane


@triton.jit
def rounds_until(bound, begin, end, turn):
    """The first round from `begin` to `end` in which a program's block of K is not below a bound."""
    while begin < end:
        middle = (begin + end) // 2
        below = block_at(middle, turn) < bound
        begin, end = tl.where(below, middle + 1, begin), tl.where(below, end, middle)
    return begin


@triton.jit
def added_up(part_ptrs, first, end, acc, step, AHEAD: tl.constexpr):
    """acc and what is at part_ptrs + p · step for p from `first` to `end`, in this order; AHEAD of them are on their way at a time."""
    for p in range(first, end, AHEAD):
        for i in tl.static_range(AHEAD):
            acc += tl.load(part_ptrs + (p + i) * step, mask=p + i < end, other=0)
    return acc


@triton.jit
def helpers_of(tile, tiles, steps, PROGRAMS: tl.constexpr, STREAM: tl.constexpr):
    """(programs that a tile has to itself, where its first helper's part goes, how many helpers it has: two at most)."""
    each, rounds, left = dealt_out(tiles, steps, PROGRAMS)
    line = tile // STREAM
    first, end = (line * left // rounds).to(tl.int32), tl.cdiv((line + 1) * left, rounds).to(tl.int32)
    return each, each * tiles + (line + first) * STREAM + tile % STREAM, end - first


@triton.jit
def tile_added_up(part_ptrs, tile, tiles, steps, acc, step, PROGRAMS: tl.constexpr, STREAM: tl.constexpr, AHEAD: tl.constexpr):
    """acc and all parts of a tile: its own programs', then its helpers'. `step` is from part to part."""
    each, first, count = helpers_of(tile, tiles, steps, PROGRAMS, STREAM)
    far = step.to(tl.int64)
    acc = added_up(part_ptrs + tile * far, 0, each, acc, tiles * far, AHEAD)
    return added_up(part_ptrs + first * far, 0, count, acc, STREAM * far, 2)


@triton.jit
def stream_sum_kernel(out_ptr, pre_ptr, sums_ptr, part_ptr, part_sums_ptr, c_ptr, stride_ob, stride_om, stride_on, stride_cb, stride_cm,
                      stride_cn, M, N, steps, tiles, alpha, beta, FORM: tl.constexpr, SLOPE: tl.constexpr, ACTIVATION: tl.constexpr,
                      PROGRAMS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, STREAM: tl.constexpr,
                      ROWS: tl.constexpr, AHEAD: tl.constexpr):
    """Second stage: add up the parts of tiles, each (BLOCK_M, BLOCK_N), always in the same order; then the epilogue. With sums_ptr the same
    for the sums of a's rows, of which each tile of a row has those of a share of K, with c_ptr added to what is there. Grid: tiles of all
    batches · BLOCK_M / ROWS."""
    PARTS: tl.constexpr = BLOCK_M // ROWS
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    rows = part * ROWS + tl.arange(0, ROWS)
    places = rows[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    acc = tl.zeros((ROWS, BLOCK_N), part_ptr.dtype.element_ty)
    acc = tile_added_up(part_ptr + places, tile, tiles, steps, acc, tl.full((), BLOCK_M * BLOCK_N, tl.int32), PROGRAMS, STREAM, AHEAD)
    in_batch = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tile_of(tile % in_batch, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    batch = (tile // in_batch).to(tl.int64)
    rm, rn = pid_m * BLOCK_M + rows, pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    value = epilogue(acc, c_ptr, batch * stride_cb, rm, rn, stride_cm, stride_cn, M, N, alpha, beta, out_ptr.dtype.element_ty, FORM, SLOPE)
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    offsets = batch * stride_ob + (rm.to(tl.int64)[:, None] * stride_om + rn.to(tl.int64)[None, :] * stride_on)
    if pre_ptr is not None:
        tl.store(pre_ptr + offsets, value, mask=mask)
    tl.store(out_ptr + offsets, activated(value, ACTIVATION), mask=mask)
    if sums_ptr is not None:
        if pid_n == 0:
            sums = tl.zeros((ROWS,), tl.float32)
            across = 1 if GROUP_M == 1 else tl.cdiv(M, BLOCK_M)          # from one tile of a row to the next
            for n in range(tl.cdiv(N, BLOCK_N)):
                sums = tile_added_up(part_sums_ptr + rows, tile + n * across, tiles, steps, sums, tl.full((), BLOCK_M, tl.int32), PROGRAMS,
                                     STREAM, AHEAD)
            if c_ptr is not None:
                sums += tl.load(sums_ptr + rm, mask=rm < M, other=0)
            tl.store(sums_ptr + rm, sums, mask=rm < M)
