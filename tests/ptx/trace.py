"""What a launch does, seen in a few of its CTAs: every instruction of every warp, the memory that it touches.

    with tracing(device, blocks=8) as launches:         # device: what device.simulate() gives; eight CTAs of each launch run
        program()
    launches[0].warps[0]                                # one warp: [(place in program.code, touched)], in the order of execution

`touched` is None; for global memory the numbers of the sectors of 32 bytes that the warp's lanes reach; for shared memory the passes
that its banks need.
"""
import contextlib
from dataclasses import dataclass

import numpy as np

from ptx import access
from ptx.machine import WARP, Machine
from ptx.operands import DTYPES
from tritorch.cuda import ahead

SECTOR, BANKS = 32, 32
SPARSE = 132                                                     # of so many CTAs one is run: about what one multiprocessor gets


@dataclass
class Traced:
    """A launch: its kernel, its grid, the CTAs that were run, and for each of their warps what it did."""

    kernel: object
    launch: object
    blocks: np.ndarray
    warps: list

    def of_block(self, i):
        """The warps of the CTA blocks[i]."""
        count = self.launch.threads // WARP
        return self.warps[i * count:(i + 1) * count]


@contextlib.contextmanager
def tracing(device, blocks=8):
    """Inside, only some CTAs of every launch run, `blocks` of them, from all of its grid. Gives a list of Traced."""
    found = []

    def traced(kernel, launch):
        found.append(trace(kernel, launch, device.memory, sample(int(np.prod(launch.grid)), blocks)))

    with _running(device, traced):
        yield found


@contextlib.contextmanager
def skipping(device):
    """Inside, launches do nothing: what they would write keeps what was there."""
    with _running(device, lambda kernel, launch: None):
        yield


@contextlib.contextmanager
def _running(device, run):
    before = device._run
    with ahead.staying():                                        # or a launch may wait for its kernel until later
        device._run = run
        try:
            yield
        finally:
            device._run = before


def sample(total, count):
    """Numbers of CTAs: about the middles of equal parts of the grid, so that what lies at its edges has its share and no more, nor have the
    even ones."""
    count = max(1, min(count, total // SPARSE))
    return (2 * np.arange(count) + 1) * total // (2 * count) + np.arange(count)


def trace(kernel, launch, memory, blocks):
    """Run these CTAs."""
    machine = Machine(kernel.program, launch, memory, blocks, seed=None)
    machine.watch = Recorder(machine)
    machine.run()
    return Traced(kernel, launch, blocks, machine.watch.warps)


class Recorder:
    """Called before every instruction with the machine and the instruction."""

    def __init__(self, machine):
        self.warps = [[] for _ in range(machine.lanes // WARP)]
        self.places = {id(ins): place for place, ins in enumerate(machine.program.code)}

    def __call__(self, machine, ins):
        place = self.places[id(ins)]
        warps = range(len(self.warps)) if machine.full else np.flatnonzero(machine.mask.reshape(-1, WARP).any(axis=1))
        look = _global if touches(ins, "global") else _shared if touches(ins, "shared") else None
        if look is None:
            for warp in warps:
                self.warps[warp].append((place, None))
        else:
            addresses, nbytes = where(machine, ins)
            for warp in warps:
                lanes = slice(warp * WARP, (warp + 1) * WARP)
                self.warps[warp].append((place, look(addresses[lanes][machine.mask[lanes]], nbytes)))


def touches(ins, space):
    """Whether an instruction loads from, stores to or changes a space by addresses of its lanes."""
    return ins.name in ("ld", "st", "atom", "red", "cp") and "bulk" not in ins.modifiers and any(
        w.partition("::")[0] == space for w in ins.modifiers) and not (space == "shared" and ins.name == "cp")


def where(machine, ins):
    """(addresses of all lanes, bytes of each)."""
    if ins.name == "cp":
        return machine.address(ins.operands[1]), int(ins.operands[2].value)
    address, value = (ins.operands[0], ins.operands[1]) if ins.name in ("st", "red") else (ins.operands[1], ins.operands[0])
    return machine.address(address), len(access._items(value)) * DTYPES[ins.types[-1]].itemsize


def _global(addresses, nbytes):
    return np.unique(addresses // np.uint64(SECTOR)).astype(np.int64)


def _shared(addresses, nbytes):
    """Lanes are served in groups that ask for 128 bytes together; a bank gives one word of four bytes at a time, to all who want it."""
    group = max(1, min(WARP, 128 // max(nbytes, 4)))
    passes = 0
    for first in range(0, len(addresses), group):
        start = addresses[first:first + group].astype(np.int64) // 4
        words = np.unique(start[:, None] + np.arange(max(1, nbytes // 4)))
        passes += int(np.bincount(words % BANKS).max())
    return passes
