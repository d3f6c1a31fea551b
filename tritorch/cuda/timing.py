"""Which of several ways to run a kernel is the fastest, measured on the device.

Every launch finds a cold L2 cache, because a buffer larger than the cache is overwritten before it; the host queues the launch
meanwhile, so its own time is not measured. The candidates take turns, and those that are clearly slower drop out early.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from tritorch.cuda import driver
from tritorch.cuda.device import current_device
from tritorch.errors import OutOfMemoryError

ROUNDS, SECONDS = 15, 0.4           # at most, and after so long
FLUSHES = 5                         # of the cache before a launch, 70 µs each on an H100: a slow host may take longer than two to launch
WARM = 4                            # launches one after the other, of which all find what they read in the cache
WORSE, TIE = (2.0, 1.25, 1.1), 1.01  # a candidate so many times slower drops out after 1, 2, 3 and more rounds; so near is no difference
_flushes: dict[int, tuple[int, int]] = {}
driver.watchers.append(_flushes.clear)


def fastest(name: str, candidates: Sequence[dict], run: Callable[[dict], None], stream: int) -> dict:
    """The candidate whose launch takes the least time; among equals the first, and the first of all where none can run."""
    times = milliseconds(name, candidates, run, stream)
    return pick(candidates, times)


def pick(candidates: Sequence[dict], times: Sequence[float], tie: float = TIE) -> dict:
    """The first candidate that is as good as the best."""
    return next(c for c, t in zip(candidates, times) if t <= tie * min(times))


def milliseconds(name: str, candidates: Sequence[dict], run: Callable[[dict], None], stream: int, warm: bool = False,
                 rounds: int = ROUNDS) -> list[float]:
    """Median time of a launch of each candidate; infinite where it does not compile or fit. Raises where it breaks the device. `warm`: as
    in a graph that is replayed, operands are in the cache, if they fit, and a kernel may begin before the one in front has ended."""
    device, count = driver.current(), WARM if warm else 1
    marks = [(device.event_create(True), device.event_create(True)) for _ in candidates]
    times: list[list[float]] = [[] for _ in candidates]
    alive = [i for i, candidate in enumerate(candidates) if works(name, candidate, run, stream)]
    end = time.perf_counter() + SECONDS
    for turn in range(rounds if len(alive) > 1 else min(3, rounds)):
        for i in alive:
            for _ in range(FLUSHES * count):
                flush(device, stream)
            if warm:
                run(candidates[i])
            device.event_record(marks[i][0], stream)
            for _ in range(count):
                run(candidates[i])
            device.event_record(marks[i][1], stream)
        for i in alive:
            device.event_synchronize(marks[i][1])
            times[i].append(device.event_elapsed(*marks[i]) / count)
        limit = WORSE[min(turn, len(WORSE) - 1)] * min((min(times[i]) for i in alive), default=0.0)
        alive = [i for i in alive if min(times[i]) <= limit]
        if time.perf_counter() > end and turn >= len(WORSE) - 1:
            break
    for event in (e for pair in marks for e in pair):
        device.event_destroy(event)
    return [statistics.median(found) if found else float("inf") for found in times]


def works(name, candidate, run, stream) -> bool:
    """Run it once, which compiles and loads it."""
    from tritorch.cuda import ahead

    try:
        with ahead.staying():
            run(candidate)
    except (driver.DriverError, OutOfMemoryError):               # too much shared memory, too many registers, refused by Triton
        return False
    try:
        driver.current().stream_synchronize(stream)
    except driver.DriverError as error:
        raise driver.DriverError(f"tuning {name}: the candidate {candidate} breaks the device: {error}") from error
    return True


def flush(device: Any, stream: int) -> None:
    """Overwrite the L2 cache of the current device, in stream order."""
    index = current_device()
    if index not in _flushes:
        size = device.device_properties(index).L2_cache_size
        _flushes[index] = device.alloc(4 * size), size
    pointer, count = _flushes[index]
    device.fill(pointer, 0, 4, count, stream)
