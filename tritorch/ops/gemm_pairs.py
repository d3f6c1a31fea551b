"""Which candidates of a product run as pairs of programs that share b (triton_kernels/matmul_cluster.py)."""
from tritorch.ops.gemm_choice import tiles_of

# BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, PARTS. Of two tiles of 128 x 128 a pair reads a quarter less from the second cache than two programs
# do, of 64 x 256 two fifths less, of 128 x 256 a third, of 192 x 256 two sevenths.
PAIRED = ((128, 128, 64, 2, 1), (64, 256, 64, 2, 1), (128, 256, 64, 1, 1), (64, 256, 64, 1, 3), (64, 256, 32, 1, 3))
TILE = "BLOCK_M", "BLOCK_N", "BLOCK_K", "CONSUMERS", "PARTS"


def paired(found, M, N, batch, machine):
    """Of the candidates that gemm_choice.gluon found those for pairs, as (cycles, candidate), where the tiles fill the GPU. They count as a
    cycle more than for one program, so that none is taken before a GPU has timed it."""
    pairs = []
    for cost, candidate in found:
        tile = tuple([candidate[name] for name in TILE])
        rows, columns = tile[0] * tile[4], tile[1]
        many = M > rows and tiles_of(M, N, batch, rows, columns) >= machine[0]
        if many and tile in PAIRED and not (candidate["STREAM"] or "WHOLE" in candidate):
            pairs.append((cost + 1, {**candidate, "CLUSTER": 2}))
    return pairs
