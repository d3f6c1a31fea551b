"""The choice between ways to run a kernel (block sizes, warps, stages).

What was measured on this machine comes first, then the table shipped for the architecture (`tables/sm_90.json`), then the
first candidate, which is the caller's best guess. With TRITORCH_TUNE=1 the candidates are timed at the first use of a key.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tritorch.cuda import driver
from tritorch.cuda.device import current_device
from tritorch.cuda.stream import current_handle, is_capturing

ROUNDS, LAUNCHES = 3, 10
_chosen: dict[tuple, dict] = {}
_lock = threading.RLock()


def _forget() -> None:
    _chosen.clear()
    _tables.cache_clear()


driver.watchers.append(_forget)


def choose(family: str, key: Hashable, candidates: Sequence[dict], kernel: Any = None, run: Callable[[dict], None] | None = None) -> dict:
    """One of `candidates` (keywords of `launch`) for a problem.

    `key` is what the best choice depends on: sizes, dtypes. `kernel` is the kernel, so that a change of its source voids
    what was measured. `run(candidate)` launches it; it may be called many times, so it must not accumulate into its output.
    """
    place = current_device(), family, key
    found = _chosen.get(place)
    if found is None:
        found = _choose(family, key, candidates, kernel, run)
        if found is None:                                       # nothing may be timed while a graph is recorded: ask again later
            return candidates[0]
        _chosen[place] = found
    return found


def _choose(family, key, candidates, kernel, run) -> dict | None:
    properties = driver.current().device_properties(current_device())
    name = f"{family} {key!r}"
    measured_name = f"{name} {getattr(kernel, 'cache_key', '')[:16]}"
    measured = _tables(_measured_path(properties)).get(measured_name)
    shipped = _tables(Path(__file__).parent / "tables" / f"sm_{properties.major}{properties.minor}.json").get(name)
    for known in (measured, shipped):
        if known in candidates:                                 # a table may be older than the candidates
            return known
    if run is None or len(candidates) == 1 or os.environ.get("TRITORCH_TUNE", "0") == "0":
        return candidates[0]
    stream = current_handle(current_device())
    if is_capturing(current_device(), stream):
        return None
    with _lock:
        best = min(candidates, key=lambda candidate: _milliseconds(run, candidate, stream))
        _remember(_measured_path(properties), measured_name, best)
    return best


def _milliseconds(run, candidate, stream) -> float:
    """Time of one launch, the least of a few rounds; infinite where the candidate does not compile or fit."""
    device = driver.current()
    start, end = device.event_create(True), device.event_create(True)
    times = []
    try:
        run(candidate)                                          # compiles and loads
        for _ in range(ROUNDS):
            device.event_record(start, stream)
            for _ in range(LAUNCHES):
                run(candidate)
            device.event_record(end, stream)
            device.event_synchronize(end)
            times.append(device.event_elapsed(start, end) / LAUNCHES)
    except driver.DriverError:
        return float("inf")
    finally:
        device.event_destroy(start)
        device.event_destroy(end)
    return min(times)


def _measured_path(properties) -> Path:
    from tritorch.cuda.compiler import cache_folder

    machine = f"{properties.name}-{properties.driver_version}".replace(" ", "_").replace("/", "_")
    return cache_folder() / "tuned" / f"{machine}.json"


@cache
def _tables(path: Path) -> dict[str, dict]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):                               # absent or damaged: nothing is known
        return {}


def _remember(path: Path, name: str, candidate: dict) -> None:
    from tritorch.cuda.compiler import write_atomically

    _tables.cache_clear()                                       # another process may have written meanwhile
    table = {**_tables(path), name: candidate}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=1, sort_keys=True).encode())
    except OSError:                                             # a read-only home: measured again by the next process
        pass
    _tables.cache_clear()
