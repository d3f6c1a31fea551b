"""Any tensor as rows × columns: the geometry that the kernels of reduce, scan, normalize and loss take.

Rows are what stays, columns are what a row is reduced (scanned, normalized) over. Both keep the tensor's own strides, so no
layout is copied. The geometry depends on shapes and strides alone and is remembered.
"""
from functools import lru_cache
from math import prod
from typing import NamedTuple

from tritorch.cuda.launch import sm_count, tile
from tritorch.shape import cdiv, extent, next_power_of_2

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
    """Offsets along the columns pass 2^31 elements."""


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
    wide = max(extent(shape_n, s) for s in stride_n) > 0x7FF00000
    return Rows(prod(sizes_m), shape_m, flat(stride_m), prod(sizes_n), shape_n, flat(stride_n), across, wide)


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
