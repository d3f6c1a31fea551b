"""A launch as a machine's batches of CTAs."""
import numpy as np

from tritorch.testing.ptx import races
from tritorch.testing.ptx.machine import Machine, bits_of

_CTAS, _LANES, _REGISTER_BYTES, _SHARED_BYTES = 256, 1 << 14, 1 << 29, 1 << 27
_CUTS = 2                                                        # at most, beside those that memory asks for


def execute(program, launch, memory, seed=0):
    """Run all CTAs of a launch, as many together as memory allows, in an order by chance, as a GPU promises none: dealt out anew, and cut
    here and there. Our kernels wait only for CTAs that began before them, which is what a ticket tells. `seed` None: in their own order."""
    total = int(np.prod(launch.grid))
    lane_bytes = sum(bits_of(kind).itemsize for kind in program.registers) + program.local_bytes + 64
    lanes = min(_LANES, _REGISTER_BYTES // lane_bytes)
    batch = max(1, min(_CTAS, lanes // launch.threads, _SHARED_BYTES // (launch.shared + 1024)) // launch.cluster)
    steps, blocks, total = 0, np.arange(total).reshape(-1, launch.cluster), total // launch.cluster
    cuts = set(range(0, total, batch))
    if seed is not None:
        chance = np.random.default_rng(seed)
        blocks = blocks[chance.permutation(total)]
        blocks = chance.permuted(blocks, axis=1) if launch.cluster > 1 else blocks
        cuts |= set(chance.integers(0, total, chance.integers(_CUTS + 1)).tolist())
    watcher = races.start(program, launch, memory)
    cuts = sorted(cuts)
    for first, last in zip(cuts, [*cuts[1:], total]):
        machine = Machine(program, launch, memory, blocks[first:last].reshape(-1), seed + first if seed is not None else None, watcher)
        machine.run()
        steps += machine.steps
    return steps
