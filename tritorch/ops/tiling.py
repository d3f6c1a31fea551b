"""The geometry of elementwise loops: in which order, and in tiles of which size, a kernel walks through operands of any strides.

The dims are put in the order of the destination's memory and merged where all operands step evenly, so that its innermost dim is the
tile's columns. The tile's rows are the dim in which an operand lies contiguous that does not do so in the columns: such a transposed
operand is then read, as the destination is written, in whole lines of memory, and turned around in registers.
"""
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from tritorch.cuda.launch import tile
from tritorch.shape import cdiv, extent, next_power_of_2

remember = lru_cache(maxsize=4096)
FEW = 512                                                                # elements of rows x columns that are too few for a program


class Walk(NamedTuple):
    """How to walk through operands, the destination first."""

    shape: tuple
    """Sizes of the dims: outer ones, rows, columns."""
    strides: tuple
    """Of each operand along them."""
    forms: tuple
    """Of each operand: bits 1 and 2 where it varies along rows and columns, 4 and 8 where it steps by 1 there, 16 where the outer dims are
    rows too, 32 where all of these lie evenly in it."""
    even: tuple
    """Powers of two that divide the number of rows, and that of columns and all strides but those of 1, where that is news to Triton."""
    wide: bool
    """Offsets in a tile may pass 2^31."""
    transposed: bool
    """Some operand lies contiguous along the rows."""
    rows: int
    """How many rows the tiles are cut from."""


def collapse(shape, *strides, least=2):
    """Fewest dims under which all operands still step evenly; at least two, the innermost last. Returns (shape, strides…)."""
    return _columns(_merged([(n, *steps) for n, *steps in zip(shape, *strides) if n != 1]), len(strides), least)


def _merged(dims):
    merged = []
    for n, *steps in dims:
        if merged and all(p == n * s for p, s in zip(merged[-1][1:], steps)):
            merged[-1] = (merged[-1][0] * n, *steps)
        else:
            merged.append((n, *steps))
    return merged


def _columns(dims, count, least=2):
    dims = [(1, *[0] * count)] * (least - len(dims)) + dims
    return [tuple(column) for column in zip(*dims)]


@remember
def walk(shape, *strides):
    """The Walk through operands of one shape with these strides, the destination first."""
    dims = [(n, *steps) for n, *steps in zip(shape, *strides) if n != 1]
    dims = _merged(sorted(dims, key=lambda d: -d[1]))                    # stable: dims of stride 0 and of size 1 stay in order
    partner = _transposed(dims, len(strides))
    if partner is not None:
        dims.insert(-1, dims.pop(partner))
    shape, *strides = _columns(dims, len(strides))
    forms = tuple([(s[-2] != 0) + 2 * (s[-1] != 0) + 4 * (s[-2] == 1) + 8 * (s[-1] == 1) for s in strides])
    wide = max(extent(shape[-2:], [abs(step) for step in s[-2:]]) for s in strides) > 0x7FFFFFFF         # what is flipped steps back
    rows, lines = shape[-2], prod(shape[:-1])
    if len(shape) > 2 and rows * shape[-1] <= FEW and lines < 1 << 30 and not wide:
        rows = lines
        forms = tuple([form & 10 | any(s[:-1]) | 16 | 32 * _evenly(shape[:-1], s) for form, s in zip(forms, strides)])
    return Walk(shape, tuple(strides), forms, _even(shape, strides, rows), wide, partner is not None and rows == shape[-2], rows)


def _evenly(shape, steps):
    """Whether counting through these dims goes on by the same step."""
    return all(steps[k] == shape[k + 1] * steps[k + 1] for k in range(len(shape) - 1))


def _transposed(dims, count):
    """The dim, not the last, in which an operand steps by less than in the last and by less than in any other; None without one."""
    for k in range(2, count + 1):
        steps = {d: abs(dims[d][k]) for d in range(len(dims) - 1) if dims[d][k]}
        least = min(steps, key=steps.get, default=None)
        if least is not None and steps[least] < abs(dims[-1][k]) and dims[least][0] > 1:
            return least
    return None


def _even(shape, strides, rows):
    last = len(shape) - (1 if rows != shape[-2] else 2)
    steps = [s[k] for s in strides for k in range(len(shape)) if s[k] != 1 or k < last]
    return tuple([common % 16 or 1 for common in (gcd(16, rows), gcd(16, shape[-1], *steps))])


def flat_candidates(size):
    """Ways to walk through contiguous operands whose largest elements have `size` bytes: 32 bytes of it a thread, or other amounts."""
    least = max(4096 // size, 512)
    return [{"BLOCK": tile(block, 4096), "num_warps": warps} for block, warps in ((least, 4), (2 * least, 4), (2 * least, 8), (least, 8))]


def kind(way):
    """What decides about the tiles of a Walk beside its sizes: whether an operand is transposed, whether all rows have one in common,
    and whether all others are contiguous along the columns, so that loads are wide."""
    return way.transposed, _shared(way), all(form & 8 or not form & 2 for form in way.forms)


def _shared(way):
    return any(form & 3 == 2 for form in way.forms)


def tile_candidates(way, size):
    """Tiles for a Walk, the best guess first."""
    rows, cols = way.rows, way.shape[-1]
    if way.transposed:
        side = 128 if size == 1 else 64
        half, twice = side // 2, side * 2
        tiles = [(side, side, 4), (side, side, 8), (half, side, 4), (side, half, 4), (half, half, 4), (side, twice, 8), (twice, side, 8)]
        return [_fitted(m, n, warps, rows, cols) for m, n, warps in tiles]
    budget = max(4096 // size, 512)
    shared = _shared(way)                                                # several rows at a time
    most = [(budget, 2 * budget if shared else budget, 4), (budget // 2, 2 * budget, 4), (budget, budget, 4), (budget, 4 * budget, 8)]
    return [_fitted(cdiv(total, columns), columns, warps, rows, cols) for n, total, warps in most for columns in [even_parts(cols, n)]]


def _fitted(m, n, warps, rows, cols):
    """The tile, no longer than the walk is, but then the wider; on the simulated device, whose cost is by the program, a large one."""
    m, n = tile(m, 64), tile(n, 1024)
    area = m * n
    m = min(m, next_power_of_2(rows))
    n = min(area // m, next_power_of_2(cols))
    return {"BLOCK_M": min(area // n, next_power_of_2(rows)), "BLOCK_N": n, "num_warps": warps}


def even_parts(cols, most):
    """The widest power of two up to `most` that wastes at most an eighth of the lanes, if there is one from 64 on."""
    n = min(most, next_power_of_2(cols))
    while n > 64 and cdiv(cols, n) * n > cols * 1.125:
        n //= 2
    return n if cdiv(cols, n) * n <= cols * 1.125 else min(most, next_power_of_2(cols))


def programs(way, block):
    """How many tiles there are."""
    return cdiv(way.rows, block["BLOCK_M"]) * cdiv(way.shape[-1], block["BLOCK_N"]) * (prod(way.shape[:-1]) // way.rows)
