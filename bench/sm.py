"""One multiprocessor of an H100 or H200 as a timetable: warps that issue in order, what each instruction waits for and keeps busy.

It is fed with what warps did (tests/ptx/trace.py), so only time is invented here. Rates are NVIDIA's table of arithmetic throughput
for compute capability 9.0 (CUDA C++ programming guide); latencies are what microbenchmarks of Hopper report, rounded.
"""
import heapq
from dataclasses import dataclass

import numpy as np

CLOCK = 1.755e9                                                  # Hz, under load
MULTIPROCESSORS, SCHEDULERS = 132, 4
COPY = 4.18e12                                                   # B/s, read + written: what a large copy reaches on the H200
DRAM = COPY / MULTIPROCESSORS / CLOCK                            # bytes a cycle that one multiprocessor gets when all of them ask
L2 = 40.0                                                        # the same from the second cache
LINE = 4                                                         # sectors that the first cache serves in a cycle: 128 bytes
FIRST_CACHE = 256 << 10                                          # bytes, shared memory among them
LATENCY = {"first": 34, "second": 260, "dram": 620, "shared": 29, "barrier": 22, "start": 300}
_BACKLOG = 2000                                                  # cycles of stores that may wait before the next one has to


@dataclass(slots=True)
class Op:
    """What an instruction costs: an issue slot for `slots` cycles, `pipe` for `busy`; results after `latency`; registers by number."""

    kind: str
    pipe: str
    busy: float
    latency: float
    reads: tuple
    writes: tuple
    barrier: tuple = ()
    slots: float = 1.0


class Multiprocessor:
    """Runs CTAs, each a list of warps, each a list of (Op, touched); `resident` of them at a time, while `active` multiprocessors work."""

    def __init__(self, resident, shared, active=MULTIPROCESSORS):
        self.resident, self.dram = resident, min(DRAM * MULTIPROCESSORS / active, L2)
        self.first = Cache((FIRST_CACHE - resident * (shared + 1024)) // 32)
        self.second, self.written, self.dram_free, self.second_free = set(), set(), 0.0, 0.0
        self.slot, self.pipes, self.busy = [0.0] * SCHEDULERS, {}, {}
        self.dram_bytes = self.second_bytes = self.issued = 0
        self.waited = {}                                         # cycles that warps waited for results, by the kind that made them

    def run(self, ctas, count):
        """Cycles at which each of `count` CTAs ended; `ctas(i)` gives the warps of the i-th. One long loop: an instruction costs
        microseconds, and hundreds of thousands go through it."""
        queue, ends, started, living, arrived = [], [], 0, {}, {}

        def start(now):
            nonlocal started
            if started < count:
                warps = ctas(started)
                living[started] = len(warps)
                for number, warp in enumerate(warps):
                    scheduler = (started * len(warps) + number) % SCHEDULERS
                    heapq.heappush(queue, (now, len(queue) + started * 64, Warp(started, scheduler, warp)))
                started += 1

        for _ in range(self.resident):
            start(0.0)
        order = count * 64
        while queue:
            now, _, warp = heapq.heappop(queue)
            while True:
                op, touched = warp.work[warp.at]
                begin, maker = warp.ready(op)
                if op.kind == "free":
                    warp.set(op, begin, maker)
                    warp.at += 1
                    continue
                pipe = (op.pipe, warp.scheduler) if op.pipe not in ("lsu", "tensor") else op.pipe
                free = max(self.slot[warp.scheduler], self.pipes.get(pipe, 0.0))
                then = max(now, begin, free)
                if queue and then > queue[0][0] and then > now:
                    break                                        # somebody else goes first
                if begin > warp.since:
                    self.waited[maker] = self.waited.get(maker, 0.0) + begin - warp.since
                now = then
                self.slot[warp.scheduler] = now + op.slots
                held = self.execute(op, touched, warp, now)
                self.pipes[pipe] = now + held
                self.busy[op.pipe] = self.busy.get(op.pipe, 0.0) + held
                self.issued += op.slots
                warp.at += 1
                warp.since = now = now + op.slots
                if op.kind == "barrier":
                    place = (warp.cta, op.barrier[0])
                    here = arrived.setdefault(place, [])
                    here.append(warp)
                    if len(here) == (op.barrier[1] or living[warp.cta]):
                        for other in arrived.pop(place):
                            order += 1
                            heapq.heappush(queue, (now + LATENCY["barrier"], order, other))
                    warp = None
                    break
                if warp.at == len(warp.work):
                    living[warp.cta] -= 1
                    if not living[warp.cta]:
                        ends.append(now)
                        start(now + LATENCY["start"])
                    warp = None
                    break
            if warp is not None:
                order += 1
                heapq.heappush(queue, (then, order, warp))
        return ends

    def execute(self, op, touched, warp, now):
        """Set when results are there; the cycles for which the pipe is busy."""
        if op.kind == "load" and touched is not None:
            done, held = self.load(touched, now)
            warp.set(op, done)
            return held
        if op.kind == "store" and touched is not None:
            return self.store(touched, now)
        if op.kind == "shared":
            warp.set(op, now + op.latency + (touched or 1) - 1)
            return touched or 1
        warp.set(op, now + op.latency)
        return op.busy

    def load(self, sectors, now):
        """(when the last sector is there, cycles that the first cache is busy)."""
        done = now + LATENCY["first"]
        for sector in sectors:
            if not self.first.has(sector):
                done = max(done, self.fetch(sector, now))
        return done, max(1, -(-len(sectors) // LINE))

    def fetch(self, sector, now):
        self.second_free = max(self.second_free, now) + 32 / L2
        self.second_bytes += 32
        if sector in self.second:
            return self.second_free + LATENCY["second"]
        self.second.add(sector)
        self.dram_free = max(self.dram_free, now) + 32 / self.dram
        self.dram_bytes += 32
        return max(self.dram_free + LATENCY["dram"], self.second_free + LATENCY["second"])

    def store(self, sectors, now):
        for sector in sectors:
            self.second_free = max(self.second_free, now) + 32 / L2
            self.second_bytes += 32
            self.second.add(sector)
            if sector not in self.written:                       # however often: it goes to memory when the cache needs the room
                self.written.add(sector)
                self.dram_free = max(self.dram_free, now) + 32 / self.dram
                self.dram_bytes += 32
        return max(1, -(-len(sectors) // LINE), self.dram_free - now - _BACKLOG)


class Warp:
    """A warp on its way: what it does next, and when its registers have their values."""

    def __init__(self, cta, scheduler, work):
        self.cta, self.scheduler, self.work, self.at, self.times, self.makers = cta, scheduler, work, 0, {}, {}
        self.since = 0.0                                         # when its last instruction was issued

    def ready(self, op):
        """(when all that an instruction needs is there, the kind of instruction that was last)."""
        latest, maker = 0.0, None
        for register in (*op.reads, *op.writes):
            time = self.times.get(register, 0.0)
            if time > latest:
                latest, maker = time, self.makers[register]
        return latest, maker

    def set(self, op, time, maker=None):
        for register in op.writes:
            self.times[register], self.makers[register] = time, maker or op.kind


class Cache:
    """The sectors used last."""

    def __init__(self, size):
        self.size, self.sectors = max(size, 32), {}

    def has(self, sector):
        """Whether it is there; from now on it is."""
        found = self.sectors.pop(sector, False)
        self.sectors[sector] = True
        if len(self.sectors) > self.size:
            del self.sectors[next(iter(self.sectors))]
        return found


def private(warps_of_blocks):
    """For each CTA a function from its sectors to the sectors of its `turn`-th repetition: those that no other CTA of the sample touches
    are new ones each time."""
    seen, common = set(), set()
    for warps in warps_of_blocks:
        mine = {int(s) for warp in warps for _, touched in warp if isinstance(touched, np.ndarray) for s in touched}
        common |= seen & mine
        seen |= mine
    return common
