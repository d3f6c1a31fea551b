"""What the allocator holds, for people and for tools: statistics, tables, snapshots, and who asked for what."""

from __future__ import annotations

import pickle
import warnings
from collections import OrderedDict, deque

from tritorch.cuda import allocator, attribution, driver
from tritorch.cuda.allocator import empty_cache, ipc_collect
from tritorch.cuda.device import device_count, index_of
from tritorch.cuda.ledger import BYTES, POOLS
from tritorch.errors import check

MOST = 1 << 20                                             # events of a history
FIELDS = ("current", "peak", "allocated", "freed")


def memory_stats_as_nested_dict(device=None) -> dict:
    """memory_stats as dicts in dicts; empty before CUDA is in use."""
    if not driver.chosen():
        return {}
    memory = allocator.memory_of(index_of(device))
    with allocator.lock, allocator.still:
        memory.process()
        memory.ledger.settle()
        _count_inactive(memory)
        ledger = memory.ledger
        nested = {name: {pool: {field: getattr(series, field) for field in FIELDS} for pool, series in pools.items()}
                  for name, pools in ledger.series.items()}
        nothing = dict.fromkeys(FIELDS, 0)
        return {**nested, **ledger.events, "oversize_allocations": nothing, "oversize_segments": dict(nothing), "max_split_size": -1}


def _count_inactive(memory):
    """Free pieces of segments in use. They are counted here and not as they come and go: their peak is that of the moments asked."""
    found = {name: dict.fromkeys(POOLS, 0) for name in ("inactive_split", "inactive_split_bytes")}
    for pool in memory.all_pools():
        pool.clear_shelves()
        for span in pool.spans():
            if span.free and (span.before is not None or span.after is not None):
                for kind in ("all", "small_pool" if span.small else "large_pool"):
                    found["inactive_split"][kind] += 1
                    found["inactive_split_bytes"][kind] += span.size
    for name, counts in found.items():
        for kind, count in counts.items():
            series = memory.ledger.series[name][kind]
            series.move(count - series.current)


def memory_stats(device=None) -> dict:
    """Statistics of the caching allocator under PyTorch's keys, such as "allocated_bytes.all.peak".

    `allocation`, `segment`, `active`, `inactive_split` and the same in bytes (`allocated_bytes`, `reserved_bytes`, `active_bytes`,
    `inactive_split_bytes`, `requested_bytes`) of `all`, `small_pool` and `large_pool`: `current`, `peak`, `allocated` and `freed`
    in total; `num_alloc_retries`, `num_ooms`, `num_sync_all_streams`, `num_device_alloc`, `num_device_free`.
    """
    flat = {}

    def flatten(prefix, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    flatten("", memory_stats_as_nested_dict(device))
    return OrderedDict(sorted(flat.items()))


def _number(name, field, device):
    memory = allocator.memories.get(index_of(device))
    if memory is None:
        return 0
    memory.settle()
    return getattr(memory.ledger.series[name]["all"], field)


def memory_allocated(device=None) -> int:
    """Bytes that live blocks use."""
    return _number("allocated_bytes", "current", device)


def max_memory_allocated(device=None) -> int:
    """Largest memory_allocated since the start or reset_peak_memory_stats."""
    return _number("allocated_bytes", "peak", device)


def memory_reserved(device=None) -> int:
    """Bytes taken from the driver."""
    return _number("reserved_bytes", "current", device)


def max_memory_reserved(device=None) -> int:
    """Largest memory_reserved since the start or reset_peak_memory_stats."""
    return _number("reserved_bytes", "peak", device)


def reset_peak_memory_stats(device=None) -> None:
    """Let every peak start anew from what is current."""
    memory = allocator.memory_of(index_of(device))
    with allocator.lock, allocator.still:
        memory.ledger.settle()
        memory.ledger.reset_peaks()


def reset_accumulated_memory_stats(device=None) -> None:
    """Set the totals of what was allocated and freed, and the counts of events, to zero."""
    memory = allocator.memory_of(index_of(device))
    with allocator.lock, allocator.still:
        memory.ledger.settle()
        memory.ledger.reset_accumulated()


def reset_max_memory_allocated(device=None) -> None:
    """reset_peak_memory_stats, by its old name."""
    reset_peak_memory_stats(device)


def set_per_process_memory_fraction(fraction: float, device=None) -> None:
    """Reserve at most this fraction (0 to 1) of the device's memory; more is out of memory."""
    check(0 <= fraction <= 1, "set_per_process_memory_fraction", "a fraction from 0 to 1", fraction, error=ValueError)
    allocator.memory_of(index_of(device)).fraction = fraction


def get_per_process_memory_fraction(device=None) -> float:
    """The fraction of the device's memory that may be reserved."""
    return allocator.memory_of(index_of(device)).fraction


ROWS = (("allocated_bytes", "Allocated memory"), ("active_bytes", "Active memory"), ("requested_bytes", "Requested memory"),
        ("reserved_bytes", "GPU reserved memory"), ("inactive_split_bytes", "Non-releasable memory"), ("allocation", "Allocations"),
        ("active", "Active allocs"), ("segment", "GPU reserved segments"), ("inactive_split", "Non-releasable allocs"))


def memory_summary(device=None, abbreviated: bool = False) -> str:
    """memory_stats as a table; `abbreviated` leaves the two pools out."""
    stats = memory_stats_as_nested_dict(device)
    check(stats, "memory_summary", "CUDA in use", "nothing allocated yet")
    rule = "|" + "=" * 75 + "|"
    lines = [rule, f"|{f'tritorch CUDA memory summary, device ID {index_of(device)}':^75}|", rule,
             f"|{'CUDA OOMs: ' + str(stats['num_ooms']):^37}|{'cudaMalloc retries: ' + str(stats['num_alloc_retries']):^37}|", rule,
             f"| {'Metric':^21} | {'Cur Usage':^10} | {'Peak Usage':^10} | {'Tot Alloc':^10} | {'Tot Freed':^10} |"]
    for name, title in ROWS:
        lines.append("|" + "-" * 75 + "|")
        for pool in POOLS[:1] if abbreviated else ("all", "large_pool", "small_pool"):
            label = title if pool == "all" else f"      from {pool.replace('_', ' ')}"
            cells = [allocator.readable(n) if name in BYTES else n for n in stats[name][pool].values()]
            lines.append(f"| {label:<21} | " + " | ".join(f"{cell:>10}" for cell in cells) + " |")
    return "\n".join([*lines, rule]) + "\n"


def memory_snapshot(mempool_id=None) -> list[dict]:
    """Every segment of every device with its blocks, in PyTorch's form; with `mempool_id` those of one private pool."""
    segments = []
    with allocator.lock, allocator.still:
        for memory in allocator.memories.values():
            memory.process()
            for pool in memory.all_pools():
                if mempool_id is None or (pool.private is not None and pool.private.id == mempool_id):
                    segments += _segments(memory, pool)
    return sorted(segments, key=lambda segment: (segment["device"], segment["address"]))


def _segments(memory, pool):
    pool.clear_shelves()
    held = {span.ptr for span, _ in memory.held} | {span.ptr for span in memory.postponed}
    for span in pool.spans():
        if span.before is None:
            segment = {"device": memory.index, "address": span.ptr, "total_size": 0, "allocated_size": 0, "active_size": 0,
                       "requested_size": 0, "stream": pool.stream, "segment_type": "small" if span.small else "large",
                       "segment_pool_id": pool.private.id if pool.private else (0, 0), "is_expandable": False, "blocks": []}
        state = "inactive" if span.free else "active_pending_free" if span.ptr in held else "active_allocated"
        segment["total_size"] += span.size
        segment["active_size"] += 0 if span.free else span.size
        segment["allocated_size"] += span.size if state == "active_allocated" else 0
        segment["requested_size"] += span.nbytes if state == "active_allocated" else 0
        segment["blocks"].append({"address": span.ptr, "size": span.size, "requested_size": 0 if span.free else span.nbytes, "state": state,
                                  "frames": [] if span.free else attribution.frames(attribution.labels.get(span.ptr, ""))})
        if span.after is None:
            yield segment


def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=MOST, device=None, clear_history=False, **kwargs):
    """Record the source line of every allocation from here on: in out-of-memory errors, in _snapshot and in memory_lines.

    `enabled`: "all" also keeps the last `max_entries` events, "state" only the lines of live blocks, None stops. Costs about 2 µs
    an allocation.
    """
    check(enabled in (None, "state", "all"), "_record_memory_history", "enabled None, 'state' or 'all'", repr(enabled))
    old = () if clear_history or attribution.trace is None else attribution.trace
    attribution.trace = None if enabled is None else deque(old, maxlen=0 if enabled == "state" else min(max_entries, MOST))
    if enabled is None:
        attribution.labels.clear()
    allocator.watch()


def memory_lines(device=None) -> list[tuple[str, int, int]]:
    """(file:line, bytes, blocks) of all live blocks whose line was recorded, most bytes first."""
    found: dict[str, list[int]] = {}
    memory = allocator.memory_of(index_of(device))
    with allocator.lock, allocator.still:
        for span in memory.live():
            entry = found.setdefault(attribution.labels.get(span.ptr, ""), [0, 0])
            entry[0] += span.size
            entry[1] += 1
    return sorted(((line, nbytes, count) for line, (nbytes, count) in found.items() if line), key=lambda entry: -entry[1])


def _snapshot(device=None) -> dict:
    """{"segments": memory_snapshot(), "device_traces": recorded events of every device}."""
    events = list(attribution.trace or ())
    traces = [[event for event in events if event["device"] == index] for index in range(device_count())]
    return {"segments": memory_snapshot(), "device_traces": traces, "allocator_settings": {}}


def get_allocator_backend() -> str:
    """"native": the caching allocator of this package, which goes by the name of PyTorch's own."""
    return "native"


def memory_cached(device=None) -> int:
    """`memory_reserved`, as it was called before."""
    warnings.warn("memory_cached is now called memory_reserved", FutureWarning, stacklevel=2)
    return memory_reserved(device)


def max_memory_cached(device=None) -> int:
    """`max_memory_reserved`, as it was called before."""
    warnings.warn("max_memory_cached is now called max_memory_reserved", FutureWarning, stacklevel=2)
    return max_memory_reserved(device)


def reset_max_memory_cached(device=None) -> None:
    """`reset_peak_memory_stats`, as it was called before."""
    warnings.warn("reset_max_memory_cached is now called reset_peak_memory_stats", FutureWarning, stacklevel=2)
    reset_peak_memory_stats(device)


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Write _snapshot() to a file that pytorch.org/memory_viz shows."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


__all__ = [
    "empty_cache", "get_allocator_backend", "get_per_process_memory_fraction", "ipc_collect", "max_memory_allocated", "max_memory_cached",
    "max_memory_reserved", "memory_allocated", "memory_cached", "memory_lines", "memory_reserved", "memory_snapshot", "memory_stats",
    "memory_stats_as_nested_dict", "memory_summary", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "reset_max_memory_cached", "reset_peak_memory_stats", "set_per_process_memory_fraction",
]
