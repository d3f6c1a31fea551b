"""In which tiles the host's processors multiply two matrices, where kernels are compiled for them."""
from tritorch.ops.gemm_choice import tiles_of
from tritorch.shape import next_power_of_2

SIDES, DEPTH = (256, 128, 64), 64
"""Rows and columns of a tile, elements of K: the largest has room in the second cache with its operands, of which each piece is copied half
as often as for 128 (1536³: 78 GFLOP/s on a core, not 69)."""


def plain(M, N, k, batch, itemsize, processors):
    """The candidate of the tiled kernel, as (cycles, candidate): smaller tiles where there would not be two for each processor, four of the
    largest, which are not for float64."""
    enough = [side for side in SIDES[itemsize == 8:] if tiles_of(M, N, batch, side, side) >= side // 64 * processors]
    side = enough[0] if enough else SIDES[-1]
    block_m, block_n = [min(max(next_power_of_2(n), 16), side) for n in (M, N)]
    block_k = min(max(next_power_of_2(k), 32 if itemsize == 1 else 16), DEPTH)
    return [(0, dict(kernel="plain", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4, num_stages=1, splits=1))]
