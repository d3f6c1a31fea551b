"""The choice between ways to run a kernel (block sizes, warps, stages).

What was measured on this machine comes first, then the table shipped for the architecture (`tables/sm_90.json`: this very
problem, or the nearest of its kind), then the first candidate, which is the caller's best guess. With TRITORCH_TUNE=1 the
candidates are timed at the first use of a key. `python -m bench tune` writes the tables.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tritorch.cuda import driver
from tritorch.cuda.cache import cache_folder, write_atomically
from tritorch.cuda.device import current_device
from tritorch.cuda.stream import current_handle, is_capturing
from tritorch.cuda.trace import spoil, unseen

NEAR = 2.0                          # a size in a table speaks for sizes up to 4 times smaller or larger
changed: list[Callable[[], None]] = []
"""Called when `choose` may answer otherwise than before: whoever remembers its answers forgets them here."""

_chosen: dict[tuple, dict] = {}
_forced: dict[str, dict] = {}
_met: list[list] = []               # what trying_all() hands out
_measurers: list[Callable] = []     # of measuring()
_lock = threading.RLock()


def forget() -> None:
    """Ask the tables anew, here and in `changed`."""
    _chosen.clear()
    _entries.cache_clear()
    driver.forget_calls()
    for let_go in changed:
        let_go()


driver.watchers.append(forget)


def choose(family: str, key: Hashable, candidates: Sequence[dict], kernel: Any = None, run: Callable[[dict], None] | None = None) -> dict:
    """One of `candidates` (keywords of `launch`) for a problem.

    `key` is what the best choice depends on: sizes, dtypes. `kernel` is the kernel, so that a change of its source voids
    what was measured. `run(candidate)` launches it; it may be called many times, so it must not accumulate into its output.
    TRITORCH_AVOID=gluon,persistent leaves out candidates whose "kernel" is named there, if others remain: a way around a kernel
    that a GPU or a version of Triton does not get along with.
    """
    if _forced and family in _forced:
        return _forced[family]
    place = current_device(), family, key
    found = _chosen.get(place)
    if found is None:
        avoided = os.environ.get("TRITORCH_AVOID", "").split(",")
        candidates = [c for c in candidates if c.get("kernel") not in avoided] or candidates
        candidates = [c for k, c in enumerate(candidates) if c not in candidates[:k]]              # a small problem makes tiles alike
        with unseen():                                          # launches that only try are no part of the operator's call
            if _met:
                _chosen[place] = candidates[0]                  # for the launches below
                _look_at(family, key, candidates, run)
            found, settled = _choose(family, key, candidates, kernel, run)
        if not settled:                                         # ask again at the next call
            spoil()
            return found
        _chosen[place] = found
    return found


def _choose(family, key, candidates, kernel, run) -> tuple[dict, bool]:
    """(the choice, whether it is settled)."""
    properties = driver.current().device_properties(current_device())
    found = _known(family, key, candidates, kernel, properties)
    best = candidates[0] if found is None else found
    unknown = found is None and os.environ.get("TRITORCH_TUNE", "0") != "0"
    if len(candidates) == 1 or _met or not (unknown or _measurers):
        return best, True
    stream = current_handle(current_device())
    if run is None or is_capturing(current_device(), stream):   # nothing may be timed while a graph is recorded
        return best, found is not None
    if _measurers:
        measured = _measurers[-1](family, key, candidates, run, found)
        return (best, False) if measured is None else (measured, True)
    from tritorch.cuda import timing

    with _lock:
        best = timing.fastest(f"{family} {key}", candidates, run, stream)
        _remember(_measured_path(properties), _measured_name(family, key, kernel), best)
    return best, True


# ------------------------------------------------------------------ for tests, benches and compilation ahead of time
@contextlib.contextmanager
def forcing(family: str, candidate: dict) -> Iterator[None]:
    """Inside, `choose` answers `candidate` for every problem of a family."""
    before = dict(_forced)
    _forced[family] = candidate
    forget()
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)
        forget()


@contextlib.contextmanager
def trying_all() -> Iterator[list[tuple[str, Hashable, list[dict]]]]:
    """Inside, `choose` launches every candidate of a problem that it meets for the first time, so that `compiler.recording` sees
    all of their kernels; none of these launches runs. Yields the list of (family, key, candidates) that were met."""
    met: list[tuple[str, Hashable, list[dict]]] = []
    forget()
    _met.append(met)
    try:
        yield met
    finally:
        _met[:] = [m for m in _met if m is not met]
        forget()


@contextlib.contextmanager
def measuring(measure: Callable[[str, Hashable, Sequence[dict], Callable[[dict], None], dict | None], dict | None]) -> Iterator[None]:
    """Inside, `measure(family, key, candidates, run, what tables say or None)` answers for `choose`, once for every problem; None:
    what `choose` would say without it, until it is asked again."""
    forget()
    _measurers.append(measure)
    try:
        yield
    finally:
        _measurers.remove(measure)
        forget()


class _Unstarted:
    """What a driver loads while candidates are only looked at."""

    def launch(self, gx, gy, gz, stream, values):
        pass


def _look_at(family, key, candidates, run) -> None:
    for met in _met:
        met.append((family, key, list(candidates)))
    if run is None:
        return
    device: Any = driver.current()
    loaded, outermost = dict(driver.functions), "load" not in vars(device)       # launches of a candidate may choose again
    device.load = lambda *spec: _Unstarted()
    try:
        for candidate in candidates:
            driver.functions.clear()
            run(candidate)
    finally:
        driver.functions.clear()
        driver.forget_calls()
        if outermost:
            del device.load
            driver.functions.update(loaded)


# ------------------------------------------------------------------ tables
def plain(value: Any) -> Any:
    """A key or a candidate as JSON keeps it."""
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else getattr(value, "name", None) or str(value)


def _known(family, key, candidates, kernel, properties) -> dict | None:
    """What the tables say, if it is still a candidate."""
    options = {json.dumps(plain(c), sort_keys=True): c for c in candidates}
    here = _entries(_measured_path(properties))
    measured = here.get(_measured_name(family, key, kernel)) if here else None
    if measured is not None:
        found = options.get(json.dumps(measured, sort_keys=True))
        if found is not None:
            return found
    wanted, nearest = plain(key), []
    for place, entry in enumerate(_entries(shipped_path(properties)).get(family, ())):
        away = distance(entry["key"], wanted)
        if away is not None:
            nearest.append((away, place, entry["use"]))
    for _, _, use in sorted(nearest):
        found = options.get(json.dumps(use, sort_keys=True))
        if found is not None:
            return found
    return None


def distance(a: Any, b: Any) -> float | None:
    """How far apart two plain keys are: the root of the summed squares of the binary logarithms of their sizes' ratios; None where
    anything but a size differs, or a size by more than 2 ** NEAR."""
    total = _squares(a, b)
    return None if total is None else math.sqrt(total)


def _squares(a, b) -> float | None:
    if type(a) is list and type(b) is list and len(a) == len(b):
        total = 0.0
        for x, y in zip(a, b):
            if (part := _squares(x, y)) is None:                         # as of most, by the first of their parts
                return None
            total += part
        return total
    if a == b and type(a) is type(b):
        return 0.0
    if type(a) is int and type(b) is int and a > 0 and b > 0 and abs(away := math.log2(a / b)) <= NEAR:
        return away * away
    return None


def shipped_path(properties) -> Path:
    """The table of a device's architecture."""
    return Path(__file__).parent / "tables" / f"sm_{properties.major}{properties.minor}.json"


def _measured_path(properties) -> Path:
    machine = f"{properties.name}-{properties.driver_version}".replace(" ", "_").replace("/", "_")
    return cache_folder() / "tuned" / f"{machine}.json"


def _measured_name(family, key, kernel) -> str:
    from tritorch.cuda.compiler_keys import key_of

    return f"{family} {json.dumps(plain(key))} {'' if kernel is None else key_of(kernel)[:16]}"


@cache
def _entries(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):                               # absent or damaged: nothing is known
        return {}


def _remember(path: Path, name: str, candidate: dict) -> None:
    _entries.cache_clear()                                      # another process may have written meanwhile
    table = {**_entries(path), name: plain(candidate)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=1, sort_keys=True).encode())
    except OSError:                                             # a read-only home: measured again by the next process
        pass
    _entries.cache_clear()


def hot_entries(path: Path) -> Iterator[tuple[str, Any, dict]]:
    """(family, key, choice) of the entries of a table that are marked so, see `ship`."""
    for family, entries in _entries(path).items():
        yield from ((family, entry["key"], entry["use"]) for entry in entries if entry.get("hot"))


def ship(path: Path, found: dict[str, list[dict]]) -> None:
    """Write entries {"key", "use"} of families into a table, one line each, sorted; what it says of other problems stays. "hot": true in an
    entry says that the GPU was at its power limit; "predicted": true that it is not timed, but predicted far ahead."""
    _entries.cache_clear()
    families = {name: {json.dumps(e["key"]): e for e in entries} for name, entries in _entries(path).items()}
    for name, entries in found.items():
        families.setdefault(name, {}).update({json.dumps(e["key"]): e for e in plain(entries)})
    blocks = [f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(entries[k]) for k in sorted(entries)) + "\n]"
              for name, entries in sorted(families.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, ("{\n" + ",\n".join(blocks) + "\n}\n").encode())
    forget()
