"""What a launch does, seen in a few of its CTAs: every instruction of every warp, the memory that it touches.

    with tracing(device, blocks=8) as launches:         # device: what device.simulate() gives; eight CTAs of each launch run
        program()
    launches[0].warps[0]                                # one warp: [(place in program.code, touched)], in the order of execution

`touched` is None; for global memory the numbers of the sectors of 32 bytes that the warp's lanes reach; for shared memory the passes
that its banks need; for a copy by TMA a Copy; for mbarriers and named barriers the numbers that _numbers gives.

What matrices hold decides nothing about time, and to compute it takes most of it: products and copies by TMA are only recorded, bytes
arrive as soon as they are asked for, and results are zeros, as those of inputs that are. So the real size of a persistent kernel can be
traced. An atomic operation that acquires and releases is taken for that of the last who counts.
"""
import contextlib
import itertools
from dataclasses import dataclass

import numpy as np

from tritorch.cuda import ahead
from tritorch.testing.ptx import access, mbarrier, tma
from tritorch.testing.ptx.clusters import WINDOW
from tritorch.testing.ptx.machine import WARP, Machine
from tritorch.testing.ptx.memory import POISON
from tritorch.testing.ptx.mma import U32, active_warps, write_registers
from tritorch.testing.ptx.operands import DTYPES, Address

SECTOR, BANKS = 32, 32
SPARSE = 132                                                     # of so many CTAs one is run: about what one multiprocessor gets
MANY = 1 << 16                                                   # more than there are programs that count how many they are
CACHED = 1 << 60                                                 # added to the number of a sector that is in the second cache
NEAR = 8                                                         # CTAs before each of the sample that are run to see what both read


@dataclass
class Traced:
    """A launch: its kernel, its grid, the CTAs that were run, and for each of their warps what it did; `whole`: to its end; `near`: for
    each CTA the sectors that those just before it touch, which run at about the same time."""

    kernel: object
    launch: object
    blocks: np.ndarray
    warps: list
    whole: bool = True
    near: tuple = ()

    def of_block(self, i):
        """The warps of the CTA blocks[i]."""
        count = self.launch.threads // WARP
        return self.warps[i * count:(i + 1) * count]


@contextlib.contextmanager
def tracing(device, blocks=8, limit=0, near=0, whole=(), few=0):
    """Inside, only some CTAs of every launch run, `blocks` of them, from all of its grid, for at most `limit` instructions of the machine
    (0: to the end), and `near` before each. Kernels of the names in `whole` run before they are traced, all of them, as what they write
    decides what others do; so do, once they are traced, launches of at most `few` instructions of warps. Gives a list of Traced."""
    found = []

    def traced(kernel, launch):
        if kernel.program.name in whole:
            type(device)._run(device, kernel, launch)            # also where launches are skipped
        total = int(np.prod(launch.grid))
        one = trace(kernel, launch, device.memory, sample(total, blocks), limit, near)
        found.append(one)
        if len(one.blocks) < total and one.whole and sum(map(len, one.warps)) * total <= few * len(one.blocks):
            type(device)._run(device, kernel, launch)            # one whose CTAs all ran, perhaps in place, has done it

    with running(device, traced):
        yield found


@contextlib.contextmanager
def skipping(device):
    """Inside, launches do nothing: what they would write keeps what was there."""
    with running(device, lambda kernel, launch: None):
        yield


@contextlib.contextmanager
def running(device, run):
    before, memory = device._run, device.memory
    with ahead.staying():                                        # or a launch may wait for its kernel until later
        device._run, memory.poison = run, 0                      # where the CTAs left out set counters, nearly always to zero
        try:
            yield
        finally:
            device._run, memory.poison = before, POISON


def sample(total, count):
    """Numbers of CTAs: one of each of equal parts of the grid, elsewhere in each by the golden ratio, so that neither what lies at the
    edges of the grid nor CTAs at equal distances, such as the first few of every image, have more than their share. Of a grid of at most
    one CTA for each multiprocessor the first: where work is dealt out, nobody gets more."""
    count = max(1, min(count, total // SPARSE))
    if total <= SPARSE:
        return np.zeros(1, np.int64)
    part = np.arange(count)
    return ((part + (0.5 + part * 0.6180339887) % 1) * total / count).astype(np.int64)


def trace(kernel, launch, memory, blocks, limit=0, near=0):
    """Run these CTAs, and so many before each, all with the rest of their clusters."""
    before = [[i for i in range(block - near, block) if i >= 0 and i not in blocks] for block in blocks.tolist()]
    first, size = np.array([*blocks.tolist(), *itertools.chain(*before)])[:, None], launch.cluster
    rows = first // size * size + (first + np.arange(size)) % size       # the grid's width is a multiple of the size
    machine = Machine(kernel.program, launch, memory, rows.reshape(-1), seed=None)
    machine.unfenced = None                                      # proxies.py watches bytes, which are not copied here
    machine.shared[:] = 0                                        # nor do tiles come: a kernel would find its poison in them
    machine.watch, whole = Recorder(machine, limit), True
    try:
        machine.run()
    except Enough:
        whole = False
    count = launch.threads // WARP
    warps = iter([warp for i, warp in enumerate(machine.watch.warps) if i // count % size == 0])
    own = list(itertools.islice(warps, count * len(blocks)))
    touched = [[seen for _ in range(count * len(others)) for _, seen in next(warps)] for others in before]
    return Traced(kernel, launch, blocks, own, whole, tuple([
        {sector for seen in of_block if isinstance(seen, np.ndarray) for sector in seen.tolist()} for of_block in touched]))


@dataclass(frozen=True, slots=True)
class Copy:
    """What one instruction copies by TMA: bytes, the address of the mbarrier that counts them (None: a store), and of the tensor its place
    in the launch's parameters and its bytes; and the bytes of those columns that the tensor has, as nobody reads others. Where the CTAs
    of a cluster load parts for all of them, `nbytes` are those of all parts: each CTA records one load, and gets as many as there are."""

    nbytes: int
    barrier: int | None
    tensor: int
    whole: int
    there: int


class Recorder:
    """Called before every instruction with the machine and the instruction; true for what the machine need not execute. After `limit`
    instructions it ends the run."""

    def __init__(self, machine, limit):
        self.warps = [[] for _ in range(machine.lanes // WARP)]
        self.places = {id(ins): (place, _look(ins), ins.opcode.startswith(_RECORDED)) for place, ins in enumerate(machine.program.code)}
        self.left, self.mask, self.polls, self.counted = limit, None, {}, False

    def __call__(self, machine, ins):
        place, look, skip = self.places[id(ins)]
        self.left -= 1
        if not self.left:
            raise Enough
        if machine.mask is not self.mask:
            self.mask = machine.mask
            self.here = np.flatnonzero(machine.mask.reshape(-1, WARP).any(axis=1)).tolist()
            self.records = [self.warps[warp] for warp in self.here]
        entry, polls = (place, None), "acquire" in ins.modifiers and ins.name != "barrier"
        seen = look(machine, ins, self.here) if look else None
        if self.counted and ins.name == "ld" and look:           # what others have just left
            seen = [touched + CACHED if isinstance(touched, np.ndarray) else touched for touched in seen]
        for i, record in enumerate(self.records):
            if record and record[-1][0] == place:                # it came back to wait
                record.pop()
            if polls and (place, self.here[i]) in self.polls:    # how often somebody looks until another has come says nothing of time
                begin, before = self.polls[place, self.here[i]]
                if np.array_equal(before, seen[i]) and not any(touched.__class__ is tuple for _, touched in record[begin:]):
                    self.left += len(record) - begin
                    del record[begin:]
            if polls:
                self.polls[place, self.here[i]] = len(record), seen[i]
            record.append((place, seen[i]) if look else entry)
        if "acq_rel" in ins.modifiers and ins.name == "atom":    # who counts is the last: its way is the longest
            machine.write(ins.operands[0], np.full(machine.lanes, MANY, DTYPES[ins.types[-1]]))
            self.counted = True
            return True
        return skip


class Enough(Exception):
    """The trace is as long as it should be."""


_RECORDED = ("wgmma", "mma.sync", "cp.async.bulk")               # and not executed


def _look(ins):
    """The function of (machine, instruction, warps) that gives what each of the warps touches."""
    if touches(ins, "global") or touches(ins, "shared"):
        space = _global if touches(ins, "global") else _shared

        def look(machine, ins, warps):
            addresses, nbytes = where(machine, ins)
            active = machine.mask & _reads(machine, ins)
            return [space(addresses[lanes][active[lanes]], nbytes) for lanes in map(_lanes, warps)]

        return look
    if ins.opcode.startswith("cp.async.bulk.tensor"):
        return _copies
    if ins.opcode.startswith(("wgmma.mma", "mma.sync")):
        return _product
    if ins.name == "mbarrier" or ins.opcode.startswith(("bar.sync", "barrier")) and "cluster" not in ins.modifiers:
        return _numbers


def _product(machine, ins, warps):
    """Zeros, as the product of zeros: what was in the registers could lead a kernel astray that looks for infinities."""
    registers, here = ins.operands[0].items, active_warps(machine)
    write_registers(machine, registers, here, np.zeros((len(here), len(registers), WARP), U32))
    return [None] * len(warps)


def _lanes(warp):
    return slice(warp * WARP, (warp + 1) * WARP)


def _copies(machine, ins, warps):
    """Copies by TMA; the bytes of a load arrive at its barrier at once."""
    found = dict.fromkeys(warps)
    load = ins.operands[0].rest == ()
    for lane in machine.active().tolist():
        where = ins.operands[1] if load else ins.operands[0]
        tensor_map, corner = tma.operands_of(machine, where, lane)
        width = min(max(tensor_map.shape[0] - corner[0], 0), tensor_map.box[0])
        barrier = int(machine.address(ins.operands[2])[lane]) if load else None
        rows = tma.targets(machine, ins, lane) if load else [0]
        for cta in rows if load else ():
            counter = mbarrier.find(machine, (cta, mbarrier.place_of(machine, ins.operands[2], lane)[1]), lane)
            counter.expected -= tensor_map.box_bytes
            counter.settle(machine)
        found[lane // WARP] = Copy(len(rows) * tensor_map.box_bytes, barrier, int(machine.address(where)[lane]),
                                   int(np.prod(tensor_map.shape)) * tensor_map.itemsize, tensor_map.box_bytes * width // tensor_map.box[0])
    return [found[warp] for warp in warps]


def _numbers(machine, ins, warps):
    """All operands that are numbers, and how many lanes there are: mbarrier.init [address], count; .arrive _, [address], count or bytes;
    .try_wait _, [address], parity; bar.sync number, threads. An arrival at another CTA's barrier stands for that one's at this CTA's."""
    values = [machine.spread(machine.address(o) % np.uint64(WINDOW) if o.__class__ is Address else machine.read(o, DTYPES["u32"]))
              for o in ins.operands[ins.name == "mbarrier" and "init" not in ins.modifiers and "inval" not in ins.modifiers:]]
    lanes = [np.flatnonzero(machine.mask[_lanes(warp)]) + warp * WARP for warp in warps]
    return [(*[int(value[here[0]]) for value in values], len(here)) for here in lanes]


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


def _reads(machine, ins):
    """The lanes that reach memory: a masked cp.async has a fourth operand, 0 for those that only fill shared memory with zeros."""
    if ins.name != "cp" or len(ins.operands) < 4:
        return True
    return machine.spread(machine.read(ins.operands[3], DTYPES["u32"])) > 0


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
