"""What the CTAs of a launch tell each other through global memory: what one writes and another reads or writes has to be in order.

Here instructions are executed one after the other and everybody sees every store at once. On a GPU CTAs run at any time, and another
one sees a store only after a release by the writer and an acquire by the reader of what was released. So each two bytes of global memory
remember who wrote them in this launch, and who read them. Who meets bytes there that somebody else has written, or writes what somebody
else has read, must have learned of it by then:

- in a kernel without acquire or release (nearly all) CTAs learn nothing of each other: each is a party of its own;
- in others the warps are the parties. Each has a clock, and knows how far the clocks of the others had come when it last heard of them: by
  an acquire of what they released, at a barrier, also of a cluster, or through an mbarrier (vector clocks, as in FastTrack, Flanagan and
  Freund 2009).

Not looked at: accesses of one byte; what several have read, but for the last of them, where warps are the parties; stores that change
nothing. Fences order nothing here: no kernel of ours has one. Where there are too many warps for clocks, nothing is looked at.
"""
import mmap

import numpy as np

from tritorch.testing.ptx.memory import NORESERVE

GRANULE = 2
_ORDERS = {"acquire", "release", "acq_rel"}
_WARP, _MOST_WARPS, _SEGMENTS, _AT_ONCE = 32, 4096, 1 << 31, 1 << 30


class Shadow:
    """For each two bytes of memory the stamps of who wrote and who read them last. Those below `base` are of earlier launches."""

    def __init__(self, nbytes):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        self._pages = [mmap.mmap(-1, nbytes // GRANULE * 4, flags=flags) for _ in range(2)]
        self.writes, self.reads = (np.frombuffer(pages, np.uint32) for pages in self._pages)
        self.base, self.touched = 1, 0

    def begin(self, count):
        """The first of new stamps, at least `count`."""
        if self.base + count > _SEGMENTS or self.touched > _AT_ONCE:
            self.base, self.touched = 1, 0
            for pages in self._pages:
                pages.madvise(mmap.MADV_DONTNEED)
        return self.base


def talks(program):
    """Whether CTAs wait for each other."""
    words = [opcode.split(".") for opcode in program.opcodes]
    return any(word[:2] == ["barrier", "cluster"] or word[0] in ("ld", "atom", "red") and not _ORDERS.isdisjoint(word) for word in words)


def start(program, launch, memory):
    """What watches over a launch; None where it would be too much."""
    ctas, warps = int(np.prod(launch.grid)), launch.threads // _WARP
    if memory.shadow is None:
        memory.shadow = Shadow(memory.size)
    if not talks(program):
        return Races(memory.shadow, ctas)
    return Clocks(memory.shadow, ctas * warps, warps) if ctas * warps <= _MOST_WARPS else None


class Races:
    """A launch whose CTAs are the parties. Its stamps: one for each, one for what several have read, one for what atomics wrote."""

    warps = 0                                               # in a CTA, where they are the parties

    def __init__(self, shadow, parties):
        self.shadow, self.base = shadow, shadow.begin(parties + 2)
        self.stamps = np.arange(self.base, self.base + parties, dtype=np.uint32)
        self.several, self.atomic = (np.uint32(self.base + parties + i) for i in range(2))
        shadow.base += parties + 2

    def parties(self, machine):
        """The party of each lane."""
        return machine.block * self.warps + machine.thread // _WARP if self.warps else machine.block

    def read(self, machine, places, nbytes, lanes, still=False):
        """These lanes have read `nbytes` at each of the places; `still`: in a way that sees nothing that this launch writes."""
        if nbytes < GRANULE or not places.size:
            return
        writes, reads, rows, party = self._find(machine, places, nbytes, lanes)
        written, mine = writes.take(rows, axis=0), self.stamps[party][:, None]
        wrong = written >= self.base
        if np.count_nonzero(wrong):
            wrong &= still | self._apart(written, mine, party)
            self._complain(machine, wrong, written, lanes, "reads what", "has written")
        reads[rows] = self._readers(reads.take(rows, axis=0), mine)

    def write(self, machine, places, nbytes, lanes, changed, atomic=False):
        """These lanes write, and those of them in `changed` another value than is there."""
        if nbytes < GRANULE or not places.size:
            return
        writes, reads, rows, party = self._find(machine, places, nbytes, lanes)
        written, read, mine = writes.take(rows, axis=0), reads.take(rows, axis=0), self.stamps[party][:, None]
        wrong = (written >= self.base) & self._apart(written, mine, party)
        if not changed.all():
            writes[rows[wrong.any(axis=1) & ~changed]] = 0              # it is theirs as well: from now on nobody's
        if atomic:
            wrong &= ~self._by_atomics(written)
        self._complain(machine, wrong & changed[:, None], written, lanes, "writes what", "has written")
        wrong = (read >= self.base) & self._apart(read, mine, party) & changed[:, None]
        self._complain(machine, wrong, read, lanes, "writes what", "has read")
        rows, mine = rows[changed], np.broadcast_to(self._as_atomic(mine) if atomic else mine, (len(rows), 1))[changed]
        writes[rows] = mine
        if not atomic:
            writes[rows[(writes.take(rows, axis=0) != mine).any(axis=1)]] = 0       # several at once, the same value

    def _find(self, machine, places, nbytes, lanes):
        wide, rows = nbytes // GRANULE, places.reshape(-1) // nbytes
        self.shadow.touched += 4 * wide * rows.size
        return self.shadow.writes.reshape(-1, wide), self.shadow.reads.reshape(-1, wide), rows, machine.party[lanes]

    def _apart(self, stamps, mine, party):
        """Which of these stamps, all of this launch, are of parties that one knows nothing of."""
        return stamps != mine

    def _readers(self, before, mine):
        return np.where((before >= self.base) & (before != mine), self.several, mine)

    def _by_atomics(self, stamps):
        return stamps == self.atomic

    def _as_atomic(self, mine):
        return np.full_like(mine, self.atomic)

    def _complain(self, machine, wrong, stamps, lanes, does, did):
        if np.count_nonzero(wrong):
            i, k = np.argwhere(wrong)[0]
            raise machine.fault(f"a race: {does} {self._name(stamps[i, k])} {did} in this launch, in no order with it", int(lanes[i]))

    def _name(self, stamp):
        return {self.several: "another CTA", self.atomic: "an atomic operation"}.get(stamp, f"CTA {stamp - self.base}")

    # ------------------------------------------------------------------ of no use where CTAs do not talk
    def meet(self, machine, groups, lanes):
        pass

    def release(self, machine, lane, where):
        pass

    def acquire(self, machine, lane, where):
        pass


class Clocks(Races):
    """A launch whose warps are the parties. A stamp is the number of a stretch of a warp's time, twice, and one more for atomics."""

    def __init__(self, shadow, parties, warps):
        self.warps, self.shadow, self.base = warps, shadow, shadow.begin(2 * parties)
        self.known = np.zeros((parties, parties), np.int32)                     # how far each knows the clock of each
        self.released, self.count = {}, 0                                       # by place: what those who released there knew
        self.owner, self.since = np.zeros(parties, np.int32), np.zeros(parties, np.int32)
        self.stamps, self.several, self.atomic = np.zeros(parties, np.uint32), None, 0
        self._tick(np.arange(parties))

    def _tick(self, parties):
        """A new stretch of time for each."""
        if self.count + len(parties) > self.owner.size:
            more = np.zeros(self.owner.size + len(parties), np.int32)
            self.owner, self.since = np.concatenate([self.owner, more]), np.concatenate([self.since, more])
        numbers = self.count + np.arange(len(parties))
        self.known[parties, parties] += 1
        self.owner[numbers], self.since[numbers] = parties, self.known[parties, parties]
        self.stamps[parties] = self.base + 2 * numbers
        self.count += len(parties)
        self.shadow.base = self.base + 2 * self.count

    def _apart(self, stamps, mine, party):
        numbers = (stamps.astype(np.int64) - self.base) // 2
        numbers[numbers < 0] = 0                                                # of earlier launches: not asked for
        return self.known[party[:, None], self.owner[numbers]] < self.since[numbers]

    def _readers(self, before, mine):
        return mine

    def _by_atomics(self, stamps):
        return (stamps - self.base) % 2 == 1

    def _as_atomic(self, mine):
        return mine + np.uint32(1)

    def _name(self, stamp):
        warp = self.owner[(int(stamp) - self.base) // 2]
        return f"warp {warp % self.warps} of CTA {warp // self.warps}"

    def meet(self, machine, groups, lanes):
        """The lanes of each group have met at a barrier."""
        for group in np.unique(groups[lanes]):
            parties = np.unique(machine.party[lanes & (groups == group)])
            self.known[parties] = self.known[parties].max(axis=0)
            self._tick(parties)

    def release(self, machine, lane, where):
        party = machine.party[lane]
        before = self.released.get(where)
        self.released[where] = self.known[party].copy() if before is None else np.maximum(before, self.known[party])
        self._tick(np.array([party]))

    def acquire(self, machine, lane, where):
        found = self.released.get(where)
        if found is not None:
            party = machine.party[lane]
            np.maximum(self.known[party], found, out=self.known[party])
