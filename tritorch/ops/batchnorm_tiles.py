"""In which tiles the kernels of batch norm may walk through channels."""
from tritorch.ops.rows import half, remember
from tritorch.shape import cdiv, next_power_of_2

ALONG = ((2048, 4, 3, 8), (4096, 8, 1, 5), (2048, 4, 1, 9), (4096, 8, 3, 4), (8192, 16, 1, 2), (2048, 4, 4, 8))
"""Ways to walk along channels that lie in one piece, or a few: columns at a time, warps, stages, programs a multiprocessor. The last has
96 KiB of a bfloat16 operand on its way to one, the first 64."""
ACROSS = (128, 16, 4, 3, 7), (64, 32, 4, 1, 7), (256, 16, 8, 1, 3), (64, 64, 8, 3, 3), (256, 32, 8, 1, 2), (256, 16, 8, 4, 3)
"""Ways where channels are next to each other in memory: channels and columns at a time, … Of the first four the four kernels together took
624, 632, 656 and 636 µs on an H100 (bfloat16, 256 channels, 401408 columns). A program of the last reads one piece of memory at a time, and
72 KiB are on their way."""
EACH = ((2048, 4, 1, 0), (4096, 8, 1, 0), (4096, 4, 1, 0)), ((64, 64, 8, 1, 0), (128, 64, 8, 1, 0), (64, 64, 4, 1, 0))
"""More ways along and across, for what adds up nothing: a program for each tile, as a copy has it."""


@remember
def channel_tiles(M, N, across, simulated, sums):
    """Candidates for the kernels of batch norm; `sums`: what a program has of a channel is added up."""
    height, width = next_power_of_2(M), next_power_of_2(N)
    if simulated:
        return [{"BLOCK_M": min(half(M), 64), "BLOCK_N": min(half(cdiv(N, 2)), 1024), "STAGES": 1, "PER_SM": 1, "num_warps": 4}]
    ways = [*(ACROSS if across else ALONG), *(() if sums else EACH[across])]
    ways = [(min(m, height), min(n, width), *rest) for m, n, *rest in (ways if across else [(1, *way) for way in ways])]
    return [dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "STAGES", "PER_SM"), way)) for way in ways]
