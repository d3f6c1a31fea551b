"""The clock of a GPU at its power limit: candidates are timed between heavy products, as they run in a training step.

A GPU that multiplies matrices for long takes all the power that it may, and its clock falls: on an H200 (700 W) from 1.98 to 1.6 GHz. The
products of GPT-2 take 8 to 15 % longer then than behind copies, attention 25 %, and others win (bench/results/tune.csv, "hot").

What the hot clock does not see is what a candidate's own power costs the rest of a step, of which every kernel has the clock that all of
them together leave: `bench tune gpt2 --in-step` does.
"""
import statistics
import time

import tritorch
from tritorch.cuda import driver
from tritorch.errors import OutOfMemoryError

SIDE, LEAST = 8192, 1024          # of the heavy product: three matrices of 134 MB, behind which the L2 cache has nothing of the candidate's
SECONDS, BATCH = 0.5, 16          # of heavy products before the first launch that counts, and how many are queued at once meanwhile
SCREEN = 3                        # rounds of the cold clock that tell which candidates are worth the hot one
WITHIN = 1.15                     # times the best of these: what an H200 found best hot took 1.13 at most by an H100's cold one (tune.csv)
ROUNDS, FEWEST, LIMIT = 25, 5, 2.0                       # of the hot clock; within so many seconds, but not fewer
TIE = 1.003                       # so near is no difference: about the error of a median of 25 launches that scatter by 1 %


class Heat:
    """What keeps the GPU at its power limit: called, it queues 8192³ multiplications of bfloat16 numbers, 1.5 ms on an H200.

    Where memory is short they are several smaller products. The operands are random: zeros switch little and take little power. It is a
    graph, because the host then queues it in microseconds, and because the tuner, which is measuring meanwhile, is not asked about it.
    """

    def __init__(self, side=SIDE, seconds=SECONDS):
        self.seconds, self.first, self.ms = seconds, 0.0, 0.0
        operands, again = self.operands(side)
        tritorch.mm(*operands[:2], out=operands[2])                      # compiles and loads it
        self.graph, self.kept = tritorch.cuda.CUDAGraph(), operands
        with tritorch.cuda.graph(self.graph):
            for _ in range(again):
                tritorch.mm(*operands[:2], out=operands[2])

    @staticmethod
    def operands(side):
        """(three matrices, how many products of them are as much work as one of `side`)."""
        for half in range(side.bit_length()):
            size = side >> half
            try:
                return [tritorch.randn(size, size, device="cuda", dtype=tritorch.bfloat16) for _ in range(3)], 8**half
            except OutOfMemoryError:
                if size <= LEAST:
                    raise

    def __call__(self):
        self.graph.replay()

    def bring(self, stream):
        """Work until the clock has fallen. `first` and `ms` are then the milliseconds of a heavy product before and after: the same where
        power is not what limits it."""
        device, end, batches = driver.current(), time.perf_counter() + self.seconds, []
        marks = [device.event_create(True) for _ in range(2)]
        while not batches or time.perf_counter() < end:
            device.event_record(marks[0], stream)
            for _ in range(BATCH):
                self()
            device.event_record(marks[1], stream)
            device.event_synchronize(marks[1])
            batches.append(device.event_elapsed(*marks) / BATCH)
        for event in marks:
            device.event_destroy(event)
        self.first, self.ms = self.first or batches[0], batches[-1]


def finalists(times):
    """Places of the candidates that the hot clock is for, by their times of the cold one. The first stays: gains are told from it."""
    best = min(times, default=0.0)
    return [i for i, t in enumerate(times) if t < float("inf") and (t <= WITHIN * best or not i)]


def plan(times, heat):
    """(rounds, seconds that they will take, with the heat before them) for candidates of these milliseconds. An odd number of rounds has a
    median of its own."""
    one = sum(t + heat.ms for t in times) / 1e3
    rounds = min(max(int(LIMIT / one) if one else ROUNDS, FEWEST), ROUNDS) - 1 | 1
    return rounds, heat.seconds + rounds * one


def milliseconds(candidates, run, stream, heat, rounds):
    """Median time of a launch of each candidate, at the power limit.

    They take turns, each round beginning with the next, so that what drifts (temperature, the limit's own control) meets all alike. In
    front of every launch is a heavy product: it keeps the GPU busy while the host queues the launch, and leaves nothing of the operands in
    the L2 cache, as kernels of a step find theirs; to clear it by copies, as the cold clock does, would let the GPU rest. While the
    last one of a round runs, the host reads the times and queues the next round.
    """
    device, count = driver.current(), len(candidates)
    marks = [(device.event_create(True), device.event_create(True)) for _ in candidates]
    times = [[] for _ in candidates]
    heat()
    for turn in range(rounds):
        order = [(turn + k) % count for k in range(count)]
        for i in order:
            device.event_record(marks[i][0], stream)
            run(candidates[i])
            device.event_record(marks[i][1], stream)
            heat()
        for i in order:
            device.event_synchronize(marks[i][1])
            times[i].append(device.event_elapsed(*marks[i]))
    device.stream_synchronize(stream)
    for event in (e for pair in marks for e in pair):
        device.event_destroy(event)
    return [statistics.median(found) for found in times]
