"""Two ways to memory: what threads write (the generic proxy) TMA and wgmma (the async proxy) see only behind a fence.proxy.async.

Each 16 bytes of shared memory remember the warp that wrote them last and has not executed a fence since. A fence of the writer clears
that, as does a fence of any other warp that has met the writer at a barrier or through an mbarrier since the write: a fence may stand on
either side. While nobody has written since, there is nothing to look at (`machine.marked`).
"""
import numpy as np

from tritorch.testing.ptx.matrices import WARP
from tritorch.testing.ptx.registry import instruction

CLEAN, PUBLISHED, FIRST = 0, 1, 2                   # FIRST + number of a warp in its CTA
GRANULE = 16


def needed(program):
    """Whether a program has anything that goes the other way."""
    return any(opcode.startswith(("wgmma", "cp.async.bulk")) for opcode in program.opcodes)


def start(machine):
    """The marks of a machine, one for each 16 bytes of its shared memory; None where nothing is asynchronous."""
    return np.zeros(machine.shared.size // GRANULE, np.uint8) if needed(machine.program) else None


def written(machine, places, lanes):
    """Threads have written the bytes at these places."""
    machine.unfenced[places // GRANULE] = FIRST + machine.thread[lanes] // WARP
    machine.marked = True


def cleared(machine, places):
    """These bytes are on their way by a copy that wgmma sees without a fence: TMA, and cp.async after its wait and a barrier. Of cp.async
    the PTX ISA does not say so; CUTLASS and Triton feed wgmma that way."""
    if machine.marked:
        machine.unfenced[places // GRANULE] = CLEAN


def _rows(machine):
    return machine.unfenced.reshape(machine.ctas, -1)


def publish(machine, lanes):
    """These threads release what they wrote: others may acquire it, and fence in their place. `lanes` is a mask."""
    if not machine.marked:
        return
    for cta, warp in _warps(machine, lanes):
        marks = _rows(machine)[cta]
        marks[marks == FIRST + warp] = PUBLISHED


def _warps(machine, lanes):
    per_cta = machine.threads // WARP
    return [divmod(warp, per_cta) for warp in np.flatnonzero(lanes.reshape(-1, WARP).any(axis=1)).tolist()]


@instruction("fence.proxy.async", "fence.proxy.async.shared::cta")
def fence(machine, ins):
    if machine.unfenced is not None and machine.marked:
        for cta, warp in _warps(machine, machine.mask):
            marks = _rows(machine)[cta]
            marks[(marks == FIRST + warp) | (marks == PUBLISHED)] = CLEAN
        machine.marked = bool(np.count_nonzero(machine.unfenced))


def check_async(machine, places, lanes):
    """Raise where an asynchronous operation of these threads meets bytes that threads wrote without a fence since; places (lanes, …)."""
    if not machine.marked:
        return
    stale = machine.unfenced[places // GRANULE]
    if np.count_nonzero(stale):
        i = np.argwhere(stale)[0]
        byte = int(places[tuple(i)]) % machine.shared.shape[1]
        who = "a warp before a barrier" if stale[tuple(i)] == PUBLISHED else f"warp {stale[tuple(i)] - FIRST}"
        raise machine.fault(f"byte {byte} of shared memory was written by {who} and no fence.proxy.async followed", int(lanes[i[0]]))
