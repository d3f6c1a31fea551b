"""Jacobi's method on a GPU: symmetric matrices made diagonal, and columns orthogonal, by rotations."""
import numpy as np

from tritorch.cuda.launch import kernels, launch
from tritorch.ops import create, slicing
from tritorch.ops.copy import broadcast_view, transfer
from tritorch.ops.extremes import amax
from tritorch.ops.matrices import block, scratch, turned
from tritorch.shape import cdiv, next_power_of_2

K = kernels("jacobi")
PAIR = 32                                                                # columns of each of two blocks that meet: of a kernel's half
SWEEPS = 40                                                              # at most; equal eigenvalues took 23, others 8 to 14
REPEATS = 3                                                              # of small matrices whose columns become orthogonal


def stop_at(dtype, gram):
    """What may be left off the diagonal: of products of columns more, whose sums are not exact."""
    return (16 if gram else 2) * 2.0 ** (-23 if dtype.itemsize == 4 else -52)


def number(value, dtype):
    """A number as kernels get one of a dtype."""
    return np.float64(value) if dtype.itemsize == 8 else float(value)


def rotations(g, norm=None, gram=False, sweeps=SWEEPS, rounds=None, worst=None):
    """(diagonals, rotations) of symmetric matrices (count, n, n) of at most 2 · PAIR rows. norm: one
    number for each of the matrices, or for several that follow each other; `rounds` of a sweep: as many as the rows ask for.
    worst, (count,), takes what was off the diagonals at first."""
    count, rows = g.shape[:2]
    d, q = scratch(g, count, rows), scratch(g, count, rows, rows)
    worst = scratch(g, count) if worst is None else worst
    size = next_power_of_2(max(rows, 2))
    launch(K.jacobi_kernel, (count,), d, q, worst, g, norm, rows, rounds or size - 1, sweeps,
           1 if norm is None else count // norm.shape[0], number(stop_at(g.dtype, gram), g.dtype), GRAM=gram, N=size,
           num_warps=2 * g.dtype.itemsize if size > 32 else max(1, size * size * g.dtype.itemsize // 4096))
    return d, q


def diagonalize(x, norm):
    """Make the upper n rows of x (batch, 2n, n), symmetric matrices, diagonal in place; the lower ones, identities at first, become their
    eigenvectors. Waits for the device after every sweep."""
    n = x.shape[-1]
    upper = block(x, (0, n), (0, n))

    def turn(k, blocks, worst):
        q = meet(upper, norm, k, blocks, worst, False)
        rotate(x, q, k, blocks)
        rotate(turned(upper), q, k, blocks)

    tournament(x, n, turn, False)


def orthogonalize(x, rows, norm):
    """Make the columns of the upper rows of x (batch, rows + n, n) orthogonal in place; the lower ones, identities at first, become the
    rotations that do it. (M. Hestenes 1958; W. Boukaram et al., "Batched QR and SVD algorithms on GPUs", 2018.) Waits for the device after
    every sweep if there are more than 2 · PAIR columns."""
    n = x.shape[-1]
    upper = block(x, (0, rows), (0, n))
    tournament(x, n, lambda k, blocks, worst: rotate(x, meet(upper, norm, k, blocks, worst, True), k, blocks), True)


def tournament(x, n, turn, gram):
    """Sweeps, in each of which every two blocks of columns meet, until nothing is left to do."""
    blocks = max(2 * cdiv(n, 2 * pair_of(n)), 2)
    worst = scratch(x, blocks - 1, x.shape[0] * (blocks // 2))
    for _ in range(REPEATS if blocks == 2 else SWEEPS):
        for k in range(blocks - 1):
            turn(k, blocks, slicing.select(worst, 0, k))
        if blocks > 2 and not amax(worst).item() > stop_at(x.dtype, gram):
            break


def meet(x, norm, turn, blocks, worst, gram):
    """The rotations of the pairs of blocks that meet in a turn."""
    count, n, pair = x.shape[0] * (blocks // 2), x.shape[-1], pair_of(x.shape[-1])
    g = scratch(x, count, 2 * pair, 2 * pair)
    launch(K.pairs_kernel, (count,), g, x, *x.strides, x.shape[-2], n, blocks, turn, GRAM=gram, B=pair, BLOCK_M=32)
    one = blocks == 2
    rounds = max(next_power_of_2(n) - 1, 1) if one else None
    return rotations(g, None if one else norm, gram, SWEEPS if one else 1, rounds, worst)[1]


def rotate(x, q, turn, blocks):
    """Each pair's columns of x times its rotations."""
    rows = x.shape[-2]
    tile = min(32, max(16, next_power_of_2(rows)))                       # with 4 warps, or of 64 rows, ptxas spills
    launch(K.rotate_kernel, (x.shape[0] * (blocks // 2) * cdiv(rows, tile),), x, q, *x.strides, rows, x.shape[-1], blocks, turn,
           B=pair_of(x.shape[-1]), BLOCK_M=tile, num_warps=8)


def pair_of(n):
    """Columns of a block: few columns make one pair of the smallest blocks that there is a product for."""
    return min(PAIR, 16) if n <= 32 else PAIR


def stacked(a):
    """a (batch, m, n) above identities, (batch, m + n, n)."""
    batch, m, n = a.shape
    x = scratch(a, batch, m + n, n)
    transfer(block(x, (0, m), (0, n)), a)
    transfer(block(x, (m, m + n), (0, n)), broadcast_view(create.eye(n, dtype=a.dtype, device=a.device), a.shape[:1] + (n, n)))
    return x
