"""The threads that share a grid. Each takes a few neighbouring programs at a time, in their order, until none are left."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

PIECES = 4                          # of a grid for each thread: some take longer than others


def processors() -> int:
    """TRITORCH_NATIVE_THREADS, else the processors that this process may use."""
    return max(int(os.environ.get("TRITORCH_NATIVE_THREADS") or len(os.sched_getaffinity(0))), 1)


class Job:
    """Programs first..last-1 of a launch, in pieces."""

    __slots__ = ("entry", "arguments", "scratches", "bounds", "next", "ended", "places", "done")

    def __init__(self, entry: Callable, arguments: int, scratches: Sequence[int], first: int, last: int):
        pieces = min(last - first, PIECES * len(scratches))
        self.entry, self.arguments, self.scratches = entry, arguments, scratches
        self.bounds = [first + (last - first) * i // pieces for i in range(pieces + 1)]
        self.next, self.ended, self.places = itertools.count(), itertools.count(1), itertools.count()
        self.done = threading.Lock()
        self.done.acquire()

    def work(self) -> int:
        """Take pieces until there are none; whoever ends the last one says so. How many programs they were."""
        bounds, scratch, programs = self.bounds, self.scratches[next(self.places)], 0
        while (i := next(self.next)) < len(bounds) - 1:
            self.entry(self.arguments, scratch, bounds[i], bounds[i + 1])
            programs += bounds[i + 1] - bounds[i]
            if next(self.ended) == len(bounds) - 1:
                self.done.release()
        return programs


class Pool:
    """Threads that wait for work, besides the one that brings it."""

    def __init__(self):
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.size, self.process, self.lock = 0, os.getpid(), threading.Lock()

    def run(self, job: Job) -> float:
        """Do a job with as many threads as it has places for, this one among them. Seconds that a program takes
        this one, which may have come too late for any: infinitely many."""
        helpers = len(job.scratches) - 1
        if self.size < helpers or self.process != os.getpid():
            self.grow(helpers)
        for _ in range(helpers):
            self.jobs.put(job)
        begin = time.perf_counter()
        programs = job.work()
        seconds = time.perf_counter() - begin
        job.done.acquire()
        return seconds / programs if programs else float("inf")

    def grow(self, size: int) -> None:
        """Have so many threads. After a fork there are none."""
        with self.lock:
            if self.process != os.getpid():
                self.jobs, self.size, self.process = queue.SimpleQueue(), 0, os.getpid()
            while self.size < size:
                threading.Thread(target=self.serve, args=(self.jobs,), daemon=True, name="tritorch-native").start()
                self.size += 1

    @staticmethod
    def serve(jobs: queue.SimpleQueue[Job]) -> None:
        while True:
            jobs.get().work()


pool = Pool()
