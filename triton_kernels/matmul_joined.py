"""Split-K in one kernel: every program of a tile leaves its part in memory, and who comes last adds them up, always in the same order.

Who that is a counter tells, one for each tile, zero before the launch and behind it. What others have left is there once their counting,
a release, was met by the last one's, an acquire. Nobody waits for anybody: programs that do not run yet are no matter. The last reads its
own part again, too: so it needs registers for some columns of the tile at a time alone, and the epilogue may use the others.
"""
import triton
import triton.language as tl


@triton.jit
def place_in_part(rows, columns, BLOCK_N: tl.constexpr):
    """Where a number of a tile lies in its part: in squares of 8 x 8, of which a warp of matrix units' sums stores one after the other, 256
    bytes at once."""
    return (rows // 8 * (BLOCK_N // 8) + columns // 8) * 64 + rows % 8 * 8 + columns % 8


@triton.jit
def comes_last(part_ptrs, acc, mask, counter_ptr, PARTS: tl.constexpr):
    """Leave a part; whether all PARTS are there now."""
    tl.store(part_ptrs, acc, mask=mask)
    tl.debug_barrier()                                   # of all threads
    return tl.atomic_add(counter_ptr, 1, sem="acq_rel") >= PARTS - 1


@triton.jit
def joined(part_ptrs, mask, SIZE: tl.constexpr, PARTS: tl.constexpr):
    """The sum of parts, each of a tile of SIZE numbers, for who came last."""
    acc = tl.load(part_ptrs, mask=mask, other=0)
    for i in tl.static_range(1, PARTS):
        acc += tl.load(part_ptrs + i * SIZE, mask=mask, other=0)
    return acc
