"""Lanes, divergence and barriers: which instruction is next, and for which threads.

The threads of several CTAs run together, each with its own program counter. The machine always takes the threads with the smallest one:
those that took the other side of a branch wait for them, and where both arrive at the same instruction they go on together, as on a GPU.
Threads at a barrier wait until enough of their CTA have come.

Threads in lockstep would hide a forgotten barrier. So the warps of a CTA are dealt into two groups by chance, anew at every barrier, and
all of the first group runs before the second: what one warp writes and another reads without a barrier between is seen to be missing, or
overwritten, in half of the draws.
"""
from dataclasses import dataclass

import numpy as np

from tritorch.testing.ptx import clusters, proxies
from tritorch.testing.ptx.memory import POISON
from tritorch.testing.ptx.operands import DTYPES, Address, Register, Sink
from tritorch.testing.ptx.parse import SHARED_BASE

WARP = 32
_GROUP, _LATER = 1 << 32, 1 << 40        # weights in the order of threads; the program counter is below them
_NEVER = np.int64(1 << 62)
U64 = np.dtype("u8")


class Elsewhere(Exception):
    """Not all lanes of a warp are at an instruction that takes them together: those that are wait for the others."""


class Fault(RuntimeError):
    """A kernel did what a GPU would refuse, or what it would not define."""


@dataclass(frozen=True)
class Launch:
    """What a kernel is started with; `parameters` is the packed block as np.uint8, `shared` counts the dynamic bytes. An `early` one may
    begin before the kernel in front of it has ended. `cluster` CTAs that are neighbours along x run together."""

    grid: tuple
    threads: int
    shared: int
    parameters: np.ndarray
    early: bool = False
    cluster: int = 1


class Machine:
    """The CTAs `blocks` of a launch, until they end; those of a cluster follow each other. `seed` deals the warps into groups; None: all in
    lockstep. `watch`, if there is one, is called with the machine and each instruction before it is executed; if it says true, that is left
    out (trace.py)."""

    watch = None

    def __init__(self, program, launch, memory, blocks, seed=0, watcher=None):
        self.program, self.launch, self.memory = program, launch, memory
        self.ctas, self.threads = len(blocks), launch.threads
        self.lanes = self.ctas * self.threads
        self.cta = np.repeat(np.arange(self.ctas), self.threads)
        self.thread = np.tile(np.arange(self.threads, dtype=np.uint32), self.ctas)
        self.block = blocks[self.cta]
        self.races, self.party = watcher, None if watcher is None else watcher.parties(self)
        poison = {kind: np.full(self.lanes, -1).astype(bits_of(kind)) for kind in set(program.registers)}
        self.registers = [poison[kind] for kind in program.registers]
        self.shared_bytes = program.static_shared + -program.static_shared % 1024 + launch.shared
        self.shared = np.full((self.ctas, self.shared_bytes + -self.shared_bytes % 16), POISON, np.uint8)
        self.shared_start = self.cta * self.shared.shape[1]
        self.local = np.full((self.lanes, program.local_bytes), POISON, np.uint8)
        self.everyone = np.arange(self.lanes)
        self.pc = np.zeros(self.lanes, np.int64)
        self.order = np.zeros(self.lanes, np.int64)
        self.alive, self.waiting = np.ones(self.lanes, bool), np.zeros(self.lanes, bool)
        self.barrier_of, self.barrier_size = np.zeros(self.lanes, np.int64), np.zeros(self.lanes, np.int64)
        self.mask, self.chosen, self.full, self.at, self.place = self.alive, self.alive, True, None, 0
        self.random = None if seed is None or self.threads == WARP else np.random.default_rng(seed)
        self.seen = self.seen_warps = None                       # the masks that `active` and `warps` have looked at: none is ever changed
        self.retries, self.steps, self.state = 0, 0, {}
        self.waited = np.zeros(self.ctas, bool) if launch.early else None
        self.at_end = [_all_waited] if launch.early else []      # checks of what may be under way no more
        self.unfenced, self.marked = proxies.start(self), False  # its marks, and whether there may be any
        self.clusters = clusters.Clusters(self)
        self._deal(self.alive)

    # ------------------------------------------------------------------ the order of things
    def run(self):
        """Execute until every thread has ended."""
        with np.errstate(all="ignore"):
            try:
                while self._choose():
                    self._straight()
                for check in self.at_end:
                    check(self)
            except (ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError) as error:
                raise self.fault(f"{type(error).__name__}: {error}") from error

    def _choose(self):
        """Pick the threads that are next; False when all have ended."""
        ready = self.alive & ~self.waiting
        rank = np.where(ready, self.order + self.pc, _NEVER)
        first = rank.min()
        if first == _NEVER:
            if self.waiting.any():
                raise self.fault(f"threads wait at a barrier that the others never reach: {self.standing()}")
            return False
        self.mask = self.chosen = rank == first
        self.full = np.count_nonzero(self.mask) == self.lanes
        self.place = int(first % _GROUP)
        self.meeting = -1                                       # where others wait who are to go on with these
        if not self.full:
            others = rank[~self.mask].min()
            if others // _GROUP == first // _GROUP:
                self.meeting = int(others % _GROUP)
        return True

    def _straight(self):
        """Execute until the chosen threads meet others, or control flow may send them apart."""
        code, chosen, whole, place = self.program.code, self.mask, self.full, self.place
        while True:
            ins = self.at = code[place]
            self.steps += 1
            if ins.guard is None:
                self.mask, self.full, some = chosen, whole, True
            else:
                self.mask = chosen & ins.guard.read(self, DTYPES["pred"])
                some = np.count_nonzero(self.mask)              # a fourth of what all() and any() take
                self.full = some == self.lanes
            place += 1
            if ins.control:
                self.place = place
                self.pc[chosen] = place
            if some:
                if ins.execute is None:
                    raise self.fault("the machine has no such instruction")
                if self.watch is None or not self.watch(self, ins):
                    try:
                        ins.execute(self, ins)
                    except Elsewhere as missing:
                        return self._wait_for(missing, chosen, place - 1)
            if ins.control:
                return
            if place == self.meeting:
                self.pc[chosen] = place
                return

    def _wait_for(self, missing, chosen, place):
        """The chosen threads stay at an instruction until all lanes of their warps are there. Those come with the order that these had, and
        wait in their turn: then all have the same one."""
        self.retries += 1
        if self.retries > 64 + 4 * self.lanes // WARP:
            raise self.fault(f"{missing} of the warp are elsewhere", chosen.argmax())
        self.pc[chosen] = place
        self.order[chosen] += _LATER

    def retry(self, mask=None):
        """The threads come back to this instruction after the others had their turn: a wait that failed."""
        mask = self.mask if mask is None else mask
        self.pc[mask] = self.place - 1
        self.give_way(mask)

    def give_way(self, mask):
        """The threads go on after the others had their turn: they wait for something."""
        self.retries += 1
        if self.retries > 64 + 4 * self.lanes // WARP:
            raise self.fault(f"threads wait for what never happens: {self.standing()}")
        self.order[mask] = self.order[mask] % _LATER + (self.order[self.alive].max() // _LATER + 1) * _LATER     # behind all others

    def meet(self, warps):
        """Groups of `warps` warps of which only a part is here wait for the rest and leave `mask`; False when nobody is left in it."""
        here = self.mask.reshape(-1, warps * WARP)
        partial = here.any(axis=1) & ~here.all(axis=1)
        if not np.count_nonzero(partial):
            return True
        late = partial.repeat(warps * WARP)
        there = late & ~self.mask & ~self.waiting & (self.pc == self.place - 1)
        late &= self.mask
        self.retry(late)
        for group in np.flatnonzero(partial):                   # with those who are there already, or after those who are yet to come
            lanes = np.arange(group * warps * WARP, (group + 1) * warps * WARP)
            first, others = lanes[late[lanes]], lanes[there[lanes]]
            self.order[first] = self.order[others].max() if len(others) else self.order[first] // _LATER * _LATER
        self.mask, self.full = self.mask & ~late, False
        return bool(self.mask.any())

    def standing(self):
        """Where the threads are that have not ended."""
        lines = []
        for place in np.unique(self.pc[self.alive]):
            warps = np.unique((self.thread // WARP)[self.alive & (self.pc == place)]).tolist()
            ins = self.program.code[place - 1 if self.waiting[self.alive & (self.pc == place)].any() else place]
            lines.append(f"warps {warps} are at line {ins.line}, {ins.source}: {ins.text}")
        return "; ".join(lines)

    def progress(self):
        """What somebody may wait for has happened."""
        self.retries = 0

    def barrier(self, number, size):
        """The threads wait at a barrier of their CTA until `size` have come (0: all that live)."""
        self.waiting |= self.mask
        np.copyto(self.barrier_of, number, where=self.mask)
        np.copyto(self.barrier_size, size, where=self.mask)
        self.release()

    def release(self):
        """Open the barriers where enough threads wait. A CTA has sixteen."""
        place = 16 * self.cta + self.barrier_of
        living = np.bincount(self.cta[self.alive], minlength=self.ctas)
        arrived = np.bincount(place[self.waiting], minlength=16 * self.ctas)
        needed = np.where(self.barrier_size, self.barrier_size, living[self.cta])
        opened = self.waiting & (arrived[place] >= needed)
        if (arrived[place] > needed)[opened].any():
            raise self.fault("more threads at a barrier than it is for", (opened & (arrived[place] > needed)).argmax())
        if opened.any():
            self.waiting &= ~opened
            self.progress()
            turns = np.zeros(arrived.size, np.int64)
            np.maximum.at(turns, place[opened], self.order[opened] // _LATER)
            self._deal(opened, turns[place] * _LATER)           # who gave way has given way for all
            if self.unfenced is not None:
                proxies.publish(self, opened)
            if self.races is not None:
                self.races.meet(self, place, opened)

    def _deal(self, lanes, turns=0):
        """These warps are dealt into groups; the threads of a warp stay together."""
        groups = np.zeros(self.lanes, np.int64) if self.random is None else self.random.integers(
            0, 2, self.lanes // WARP).repeat(WARP) * _GROUP
        np.copyto(self.order, groups + turns, where=lanes)

    # ------------------------------------------------------------------ registers
    def read(self, operand, dtype):
        """The value of an operand for every lane, or one number for all."""
        return operand.read(self, dtype)

    def write(self, operand, value):
        """Set a register of the executing lanes. Bits stay as they are; an integer of another width is extended by its own sign, or cut."""
        if operand.__class__ is not Register:
            assert operand.__class__ is Sink, f"{operand} is no destination"
            return
        old = self.registers[operand.index]
        if value.__class__ is not np.ndarray:
            value = np.asarray(value)
        if value.dtype is not old.dtype:
            if value.itemsize == old.itemsize:
                value = value.view(old.dtype)
            else:
                assert value.dtype.kind in "iub", f"{value.dtype} does not fit into {operand.kind}"
                value = value.astype(old.dtype)
        if not self.full:
            value = np.where(self.mask, value, old)
        elif not value.ndim:
            value = value.repeat(self.lanes)
        self.registers[operand.index] = value

    def write_lanes(self, operand, lanes, values):
        """Set a register of the executing lanes, for each of which there is a value."""
        if operand.__class__ is Register and not self.full:
            old = self.registers[operand.index]
            assert values.itemsize == old.itemsize or values.dtype.kind in "iub", f"{values.dtype} does not fit into {operand.kind}"
            new = old.copy()
            new[lanes] = values.view(old.dtype) if values.itemsize == old.itemsize else values
            self.registers[operand.index] = new
        else:
            self.write(operand, values)

    def spread(self, value):
        """One value for each lane."""
        return value if value.ndim else value.repeat(self.lanes)

    def active(self):
        """The numbers of the executing lanes."""
        if self.full:
            return self.everyone
        if self.seen is not self.mask:
            self.seen, self.active_lanes = self.mask, self.mask.nonzero()[0]
        return self.active_lanes

    def warps(self):
        """(The numbers of the warps of which lanes execute, whether all lanes of these do.)"""
        if self.seen_warps is not self.mask:
            here = self.mask.reshape(-1, WARP)
            some = here.any(axis=1)
            self.seen_warps, self.active_warps = self.mask, (np.flatnonzero(some), bool((here.all(axis=1) == some).all()))
        return self.active_warps

    def address(self, operand):
        """base + offset of `[...]`, one for each lane. Addresses of shared and local memory may be held in 32 bits, and wrap there."""
        base, offset = (operand.base, operand.offset) if operand.__class__ is Address else (operand, 0)
        dtype = DTYPES["u32"] if base.__class__ is Register and base.kind.endswith("32") else U64
        value = base.read(self, dtype)
        return self.spread((value + np.array(offset).astype(dtype) if offset else value).astype(U64, copy=False))

    def special(self, name):
        """%tid.x and what else the hardware knows, without the percent sign."""
        name, _, axis = name.partition(".")
        gx, gy, _ = self.launch.grid
        if name == "clusterid":
            return self.special(f"ctaid.{axis}") // (self.launch.cluster if axis == "x" else 1)
        if name == "ctaid":
            return {"x": self.block % gx, "y": self.block // gx % gy, "z": self.block // (gx * gy)}[axis]
        if name == "nclusterid":
            return self.special(f"nctaid.{axis}") // (self.launch.cluster if axis == "x" else 1)
        if name in ("nctaid", "ntid"):
            sizes = self.launch.grid if name == "nctaid" else (self.threads, 1, 1)
            return np.array(sizes["xyz".index(axis)])
        if name == "tid":
            return self.thread if axis == "x" else np.array(0)
        if name.startswith("cluster_"):
            size = self.launch.cluster if axis in ("", "x") else 1
            return np.array(size) if "ncta" in name else self.block % size
        if name.startswith(("clock", "globaltimer")):
            return np.array(self.steps)
        lane = self.thread % WARP
        if name.startswith("lanemask"):
            below = (np.uint64(1) << lane.astype(U64)) - np.uint64(1)
            here = below + np.uint64(1)
            return {"lt": below, "eq": here, "le": below | here, "ge": ~below, "gt": ~(below | here)}[name[-2:]].astype("u4")
        return {"laneid": lane, "warpid": self.thread // WARP, "smid": self.block % 132}[name]

    # ------------------------------------------------------------------ shared memory
    def shared_places(self, addresses, nbytes, lanes):
        """Where `nbytes` at each of the addresses lie in the flat bytes of `shared`."""
        offsets = addresses.astype(np.int64) - SHARED_BASE
        if np.bitwise_or.reduce(offsets) & nbytes - 1:
            i = (offsets & nbytes - 1).argmax()
            raise self.fault(f"misaligned shared address {addresses[i]:#x} of {nbytes} bytes", lanes[i])
        if np.maximum.reduce(offsets.view(U64), initial=0) > self.shared_bytes - nbytes:          # what is negative is large there
            i = offsets.view(U64).argmax()
            raise self.fault(f"byte {offsets[i]} of {self.shared_bytes} bytes of shared memory", lanes[i])
        return (self.shared_start if lanes is self.everyone else self.shared_start[lanes]) + offsets

    def load_shared(self, addresses, dtype, lanes=None):
        """What lies at the addresses, one for each active lane."""
        places = self.shared_places(addresses, dtype.itemsize, self.active() if lanes is None else lanes)
        return self.shared.reshape(-1).view(dtype)[places // dtype.itemsize]

    def store_shared(self, addresses, values, lanes=None):
        lanes = self.active() if lanes is None else lanes
        places = self.shared_places(addresses, values.itemsize, lanes)
        self.shared.reshape(-1).view(values.dtype)[places // values.itemsize] = values
        if self.unfenced is not None:
            proxies.written(self, places, lanes)

    # ------------------------------------------------------------------ warps and errors
    def converged(self, members=None):
        """Go on where every warp of which a lane executes this is here with all the lanes that `members` names, one mask for each lane;
        else these wait, and where the others never come that is a fault."""
        if self.warps()[1]:
            return
        here = self.mask.reshape(-1, WARP)
        if members is None:
            wanted = self.alive.reshape(-1, WARP)
        else:
            bits = self.spread(members).reshape(-1, WARP)
            named = bits[np.arange(len(bits)), here.argmax(axis=1)]                # by the first lane that is here
            wanted = (named[:, None] >> np.arange(WARP, dtype=np.uint32) & 1).astype(bool)
        late = (wanted & ~here).any(axis=1) & here.any(axis=1)
        if late.any():
            warp = late.argmax()
            missing = np.flatnonzero(wanted[warp] & ~here[warp])
            raise Elsewhere(f"lanes {missing.tolist()}")

    def global_problem(self, addresses, nbytes, lanes):
        """(which access, what is wrong with it) of accesses to global memory by lanes, or None."""
        if self.waited is not None and not self.waited[self.cta[lanes]].all():
            return self.waited[self.cta[lanes]].argmin(), "memory is used before the wait for the kernel in front, which may still write it"
        return self.memory.problem(addresses, nbytes)

    def fault(self, message, lane=None):
        """The exception for what goes wrong at the current instruction."""
        ins, where = self.at, ""
        if lane is not None:
            block, (gx, gy, _) = int(self.block[lane]), self.launch.grid
            where = f" in thread {int(self.thread[lane])} of CTA {block % gx, block // gx % gy, block // (gx * gy)}"
        at = f"line {ins.line} of the PTX, {ins.source or 'no source line'}: {ins.text}" if ins else "before the first instruction"
        return Fault(f"{self.program.name}{where}: {message} ({at})")


def _all_waited(machine):
    """Who waits for a kernel that did not wait has not waited for those in front of that one."""
    if not machine.waited.all():
        machine.at = None
        raise machine.fault("ends without a wait for the kernel in front", int(machine.waited.argmin()) * machine.threads)


def bits_of(kind):
    """How a register of a kind is kept."""
    dtype = DTYPES[kind]
    return dtype if dtype.kind == "b" else np.dtype(f"u{dtype.itemsize}")
