"""Which candidates of a product have another form that no GPU has timed yet: pairs of programs that share b (triton_kernels/
matmul_cluster.py), streams whose programs add up their parts themselves (triton_kernels/matmul_last_gluon.py). They count as a cycle more
than the other form, so that none is taken before a GPU has timed it."""
from tritorch.ops.gemm_choice import dealt, tiles_of
from tritorch.shape import cdiv

# BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, PARTS. Of two tiles of 128 x 128 a pair reads a quarter less from the second cache than two programs
# do, of 64 x 256 two fifths less, of 128 x 256 a third, of 192 x 256 two sevenths.
PAIRED = ((128, 128, 64, 2, 1), (64, 256, 64, 2, 1), (128, 256, 64, 1, 1), (64, 256, 64, 1, 3), (64, 256, 32, 1, 3))
ROOM = 208                          # registers of a thread, of 232, for sums and what is added to them
TILE = "BLOCK_M", "BLOCK_N", "BLOCK_K", "CONSUMERS", "PARTS"


def paired(found, M, N, batch, machine):
    """Of the candidates that gemm_choice.gluon found those for pairs, as (cycles, candidate), where the tiles fill the GPU."""
    pairs = []
    for cost, candidate in found:
        tile = tuple([candidate[name] for name in TILE])
        rows, columns = tile[0] * tile[4], tile[1]
        many = M > rows and tiles_of(M, N, batch, rows, columns) >= machine[0]
        if many and tile in PAIRED and not (candidate["STREAM"] or "WHOLE" in candidate):
            pairs.append((cost + 1, {**candidate, "CLUSTER": 2}))
    return pairs


def joined(found, M, N, k, batch, machine):
    """Of the candidates that gemm_choice.gluon found the streams whose programs add up their parts themselves, as (cycles, candidate),
    where the one that does has registers for them."""
    streams = []
    for cost, candidate in found:
        block_m, block_n, block_k, warps = [candidate[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps")]
        if candidate["STREAM"] and "ACROSS" not in candidate and block_m <= 128:           # others would have pieces of few columns
            tiles = tiles_of(M, N, batch, block_m, block_n)
            programs = dealt(M, N, tiles, cdiv(k, block_k), block_m, block_n, machine[0])["PROGRAMS"]
            each = block_m * block_n // (32 * warps)                     # sums of a thread, of which a piece of every part comes besides
            if each + each // candidate["PIECES"] * (most_parts(programs, tiles) + 1) <= ROOM:
                streams.append((cost + 1, {**candidate, "JOINED": True}))
    return streams


def most_parts(programs, tiles):
    """How many parts a tile has at most, if its blocks of K are dealt out (triton_kernels/matmul_stream.py)."""
    return programs // tiles + 2
