"""One multiprocessor of an H100 or H200 as a timetable: warps that issue in order, what each instruction waits for and keeps busy.

It is fed with what warps did (tritorch.testing.ptx.trace), so only time is invented here. Rates are NVIDIA's table of arithmetic
throughput for compute capability 9.0 (CUDA C++ programming guide); latencies are what microbenchmarks of Hopper report, rounded.

Of the second cache nobody outside knows the rate. NVIDIA gives 5120 bytes a clock for the A100 (whitepaper), 39 for each of 132
multiprocessors; an H100 PCIe was measured at 5.5 to 5.7 TB/s (Chips and Cheese 2023), 28 to 35 by its clock. But products in tiles of
128 x 128 with K = 768 read 11 TB/s on an H200 (bench/results/tune.csv), 48 at least, and shared memory explains their time, not this cache.

Where products fill the units, the limit of 700 W takes clocks away: those of 16 bits reach 790 TFLOP/s on an H200, those in TF32 and of
float32 in six parts as much of the units' time. So products are multiplied at POWERED clocks a second at most.
"""
import heapq
from collections import deque
from dataclasses import dataclass

from bench.warps import Barrier, Cache, Warp
from tritorch.testing.ptx.trace import CACHED

CLOCK = 1.755e9                                                  # Hz, under load; where products fill the units, power allows less
MULTIPROCESSORS, SCHEDULERS = 132, 4
COPY = 4.25e12                                                   # B/s, read + written: what a large copy reaches on the H200
DRAM = COPY / MULTIPROCESSORS / CLOCK                            # bytes a cycle that one multiprocessor gets when all of them ask
L2 = 64.0                                                        # the same from the second cache
POWERED = 790e12 / (4096 * MULTIPROCESSORS)                      # clocks a second in which the units multiply, at most
SECOND_CACHE = 40e6                                              # bytes of its 50 MB that operands may fill and still be there
LINE = 4                                                         # sectors, 128 bytes: the first cache serves one line in a cycle
FIRST_CACHE = 256 << 10                                          # bytes, shared memory among them
LATENCY = {"first": 34, "second": 260, "dram": 620, "shared": 29, "barrier": 22, "start": 300, "mbarrier": 20, "product": 20,
           "copy": 400}                                          # copy: of a load by TMA beyond that of the memory it comes from
_BACKLOG = 2000                                                  # cycles of stores that may wait before the next one has to
_AHEAD = 256                                                     # cycles of shared memory's work that may wait before products have to


@dataclass(slots=True)
class Op:
    """What an instruction costs: an issue slot for `slots` cycles, `pipe` for `busy`; results after `latency`; registers by number. Of a
    product: `shared` cycles of shared memory, `operations`; of a wait: the `number` of groups that may be under way; of a load: 1 if it
    goes past the first cache."""

    kind: str
    pipe: str
    busy: float
    latency: float
    reads: tuple
    writes: tuple
    slots: float = 1.0
    number: int = 0
    shared: float = 0.0
    operations: int = 0


def lines(sectors):
    """How many lines of the first cache a warp's sectors are of."""
    return len({sector // LINE for sector in sectors})


class TensorCore:
    """That of one scheduler: it takes the asynchronous products in the order in which they are issued. A warp's part of a product has a
    quarter of the group's rows, so the four of a group need not be known to each other."""

    def __init__(self, sm):
        self.sm, self.queue, self.current = sm, deque(), None

    def add(self, warp, op, now):
        warp.products += 1
        self.queue.append((warp, op))
        if self.current is None:
            self.start(now)

    def start(self, now):
        self.current = warp, op = self.queue.popleft()
        end = max(now + op.busy, self.sm.use_shared(now, op.shared) - _AHEAD)
        self.sm.busy["tensor"] = self.sm.busy.get("tensor", 0.0) + op.busy
        self.sm.push(end, self.finish)

    def finish(self, now):
        warp, op = self.current
        self.current = None
        self.sm.operations += op.operations
        warp.finished += 1
        if warp.wanted is not None and warp.finished >= warp.wanted[0]:
            self.sm.wake(warp, now + LATENCY["product"], "product", warp.wanted[1])
            warp.wanted = None
        if self.queue:
            self.start(now)


class Multiprocessor:
    """Runs CTAs, each a list of warps, each a list of (Op, touched); `resident` of them at a time, while `active` multiprocessors work.
    `sharers`: for tensors read by TMA, how many multiprocessors get a byte for each time that it comes from memory."""

    def __init__(self, resident, shared, active=MULTIPROCESSORS, sharers=None):
        self.resident, self.dram = resident, min(DRAM * MULTIPROCESSORS / active, L2)
        self.first = Cache((FIRST_CACHE - resident * (shared + 1024)) // 32)
        self.second, self.written, self.dram_free, self.second_free = set(), set(), 0.0, 0.0
        self.slot, self.pipes, self.busy = [0.0] * SCHEDULERS, {}, {}
        self.dram_bytes = self.second_bytes = self.issued = self.operations = 0
        self.waited = {}                                         # cycles that warps waited for results, by the kind that made them
        self.sharers, self.shared_free, self.shared_used = sharers or {}, 0.0, 0.0
        self.queue, self.order, self.now, self.living, self.arrived, self.barriers = [], 0, 0.0, {}, {}, {}
        self.tensor_cores = [TensorCore(self) for _ in range(SCHEDULERS)]

    def push(self, time, thing):
        """At this time a warp goes on, or a function of the time is called."""
        self.order += 1
        heapq.heappush(self.queue, (time, self.order, thing))

    def wake(self, warp, time, kind, since):
        """A warp goes on that has waited for something."""
        self.waited[kind] = self.waited.get(kind, 0.0) + time - since
        warp.since = time
        self.push(time, warp)

    def run(self, ctas, count):
        """Cycles at which each of `count` CTAs ended; `ctas(i)` gives the warps of the i-th. All ends where the record of a warp was cut
        off. One long loop: an instruction costs microseconds, and hundreds of thousands go through it."""
        queue, ends, started = self.queue, [], 0

        def start(now):
            nonlocal started
            if started < count:
                warps = ctas(started)
                self.living[started] = len(warps)
                for number, warp in enumerate(warps):
                    self.push(now, Warp(started, (started * len(warps) + number) % SCHEDULERS, warp))
                started += 1

        for _ in range(self.resident):
            start(0.0)
        while queue:
            now, _, warp = heapq.heappop(queue)
            self.now = max(self.now, now)
            if warp.__class__ is not Warp:
                warp(now)
                continue
            while True:
                if warp.at == len(warp.work):
                    if warp.work[-1][0].kind != "end":
                        return [*ends, now]
                    self.living[warp.cta] -= 1
                    if not self.living[warp.cta]:
                        ends.append(now)
                        start(now + LATENCY["start"])
                    break
                op, touched = warp.work[warp.at]
                begin, maker = warp.ready(op)
                if op.kind == "free":
                    warp.set(op, begin, maker)
                    warp.at += 1
                    continue
                pipe = (op.pipe, warp.scheduler) if op.pipe != "lsu" else op.pipe
                then = max(now, begin, self.slot[warp.scheduler], self.pipes.get(pipe, 0.0))
                if queue and then > queue[0][0] and (then > now or op.pipe == "lsu"):
                    self.push(then, warp)                        # somebody else goes first
                    break
                if begin > warp.since:
                    self.waited[maker] = self.waited.get(maker, 0.0) + begin - warp.since
                now = then
                self.slot[warp.scheduler] = now + op.slots
                self.issued += op.slots
                warp.since = now + op.slots
                if op.kind in _WAITS and _WAITS[op.kind](self, op, touched, warp, now):
                    break
                held = self.execute(op, touched, warp, now)
                self.pipes[pipe] = now + held
                self.busy[op.pipe] = self.busy.get(op.pipe, 0.0) + held
                warp.at += 1
                now = warp.since
        return ends or [self.now]                                # where all that is left of a cut record waits for what was cut off

    def execute(self, op, touched, warp, now):
        """Set when results are there; the cycles for which the pipe is busy."""
        if op.kind in _ACTIONS:
            _ACTIONS[op.kind](self, op, touched, warp, now)
            return op.pipe == "lsu"
        if op.kind == "load" and touched is not None:
            done, held = self.load(touched, now, op.number)
            warp.set(op, done)
            warp.copied = max(warp.copied, done)                 # cp.async has no register to wait for
            return held
        if op.kind in ("store", "add") and touched is not None:
            return self.store(touched, now, op.kind == "store")
        if op.kind == "shared":
            warp.set(op, self.use_shared(now, touched or 1) + op.latency - 1)
            return touched or 1
        self.operations += op.operations
        warp.set(op, now + op.latency)
        return op.busy

    # ------------------------------------------------------------------ memory
    def use_shared(self, now, cycles):
        """Until when shared memory, 128 bytes a cycle, is busy with this too."""
        self.shared_used += cycles
        self.shared_free = max(self.shared_free, now) + cycles
        return self.shared_free

    def load(self, sectors, now, past=False):
        """(when the last sector is there, cycles that the first cache is busy)."""
        done = now + LATENCY["first"]
        for sector in sectors:
            if past or not self.first.has(sector):
                done = max(done, self.fetch(sector, now))
        return done, max(1, lines(sectors))

    def fetch(self, sector, now):
        self.second_free = max(self.second_free, now) + 32 / L2
        self.second_bytes += 32
        if sector >= CACHED or sector in self.second:
            return self.second_free + LATENCY["second"]
        self.second.add(sector)
        self.dram_free = max(self.dram_free, now) + 32 / self.dram
        self.dram_bytes += 32
        return max(self.dram_free + LATENCY["dram"], self.second_free + LATENCY["second"])

    def store(self, sectors, now, leaves):
        """`leaves`: what is stored goes to memory; sums that many add to stay in the second cache meanwhile."""
        for sector in sectors:
            self.second_free = max(self.second_free, now) + 32 / L2
            self.second_bytes += 32
            self.second.add(sector)
            if leaves and sector not in self.written:                       # however often: it goes to memory when the cache needs the room
                self.written.add(sector)
                self.dram_free = max(self.dram_free, now) + 32 / self.dram
                self.dram_bytes += 32
        return max(1, lines(sectors), self.dram_free - now - _BACKLOG)

    # ------------------------------------------------------------------ what goes on by itself
    def multiply(self, op, touched, warp, now):
        self.tensor_cores[warp.scheduler].add(warp, op, now)

    def commit_products(self, op, touched, warp, now):
        warp.groups.append(warp.products)

    def await_products(self, op, touched, warp, now):
        wanted = warp.missing(op.number)
        if wanted is not None:
            warp.wanted = wanted, now
        return wanted is not None

    def commit_copies(self, op, touched, warp, now):
        warp.copies.append(warp.copied)

    def copy(self, op, touched, warp, now):
        """By TMA. A load's bytes come from memory once for all who share them, at about the same time."""
        nbytes, store = touched.nbytes, touched.barrier is None
        self.second_free = max(self.second_free, now) + touched.there / L2
        self.second_bytes += touched.there
        from_memory = touched.there / self.sharers.get(touched.tensor, 1)
        self.dram_free = max(self.dram_free, now) + from_memory / self.dram
        self.dram_bytes += from_memory
        if store:
            warp.copied = self.second_free + LATENCY["second"]
            self.use_shared(now, nbytes / 128)
            return
        barrier = self.barriers[warp.cta, touched.barrier]

        def arrive(then):
            self.use_shared(then, nbytes / 128)
            barrier.expected -= nbytes
            barrier.by_copy = True
            self.settle(barrier, then)

        self.push(max(self.second_free, self.dram_free) + LATENCY["dram"] + LATENCY["copy"], arrive)

    def begin_barrier(self, op, touched, warp, now):
        self.barriers[warp.cta, touched[0]] = Barrier(touched[1])

    def arrive(self, op, touched, warp, now):
        """(address, …, lanes); the number between is of arrivals, or the bytes that one who arrives announces."""
        barrier = self.barriers[warp.cta, touched[0]]
        barrier.missing -= 1 if op.kind == "expect" else touched[-1] * (touched[1] if len(touched) > 2 else 1)
        barrier.expected += touched[1] if op.kind == "expect" else 0
        self.settle(barrier, now)

    def settle(self, barrier, now):
        waiting, by_copy = barrier.settle()
        for warp, since in waiting:
            self.wake(warp, now + LATENCY["mbarrier"], "copy" if by_copy else "other warps", since)

    def await_barrier(self, op, touched, warp, now):
        barrier = self.barriers[warp.cta, touched[0]]
        waits = barrier.phase & 1 == touched[1]
        if waits:
            barrier.waiting.append((warp, now))
        return waits

    def meet(self, op, touched, warp, now):
        """A barrier of the CTA: (number, threads if not all, lanes)."""
        place = warp.cta, touched[0]
        here = self.arrived.setdefault(place, [])
        here.append((warp, now))
        warp.at += 1
        if len(here) == (touched[1] // 32 if len(touched) > 2 else self.living[warp.cta]):
            for other, since in self.arrived.pop(place):
                self.wake(other, now + op.slots + LATENCY["barrier"], "barrier", since)
        return True


_WAITS = {"barrier": Multiprocessor.meet, "await": Multiprocessor.await_barrier, "products": Multiprocessor.await_products}
_ACTIONS = {"product": Multiprocessor.multiply, "commit": Multiprocessor.commit_products, "commit copies": Multiprocessor.commit_copies,
            "copy": Multiprocessor.copy, "init": Multiprocessor.begin_barrier, "arrive": Multiprocessor.arrive,
            "expect": Multiprocessor.arrive}
