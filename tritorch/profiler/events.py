"""What a profiler found: events, their averages, the tables of both, and files for those who look at traces."""
import enum
import gzip
import json
import os
import time
from typing import NamedTuple

from tritorch.errors import sentence

SUMS = ("count", "cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total", "cpu_memory_usage",
        "self_cpu_memory_usage", "device_memory_usage", "self_device_memory_usage", "flops")
STACK_METRICS = ("self_cpu_time_total", "self_device_time_total", "self_cuda_time_total")


class DeviceType(enum.Enum):
    """Where an event happened."""

    CPU = 0
    CUDA = 1


class Interval(NamedTuple):
    """From when to when, in microseconds."""

    start: float
    end: float

    def elapsed_us(self):
        """How long it took."""
        return self.end - self.start


class Figures:
    """The numbers of an event, or of several: times in µs, memory in bytes. The time of a device is that of kernels and copies which the
    event queued, `self_` what is not also counted in an event inside; means are over `count`."""

    cpu_time = property(lambda self: self.cpu_time_total / max(self.count, 1), doc="Mean time of the host.")
    device_time = property(lambda self: self.device_time_total / max(self.count, 1), doc="Mean time of the device.")
    cuda_time = device_time
    cuda_time_total = property(lambda self: self.device_time_total, doc="As device_time_total.")
    self_cuda_time_total = property(lambda self: self.self_device_time_total, doc="As self_device_time_total.")
    cuda_memory_usage = property(lambda self: self.device_memory_usage, doc="As device_memory_usage.")
    self_cuda_memory_usage = property(lambda self: self.self_device_memory_usage, doc="As self_device_memory_usage.")
    key = property(lambda self: self.name, doc="The name.")

    def __repr__(self):
        return (f"<{type(self).__name__} key={self.key} count={self.count} self_cpu_time={microseconds(self.self_cpu_time_total)} "
                f"cpu_time={microseconds(self.cpu_time)} self_device_time={microseconds(self.self_device_time_total)} "
                f"device_time={microseconds(self.device_time)} input_shapes={self.input_shapes}>")


class Event(Figures):
    """Something that happened once: an operator, a node of a backward pass, a marked block, a call that queues work; or that work. `kind`
    is its category in a trace, `cpu_parent` the event around it, `kernels` the work that it queued itself."""

    count, flops, self_cpu_memory_usage, self_device_memory_usage = 1, 0, 0, 0
    device_type, device_index, device_resource_id, launch, note = DeviceType.CPU, 0, None, None, None
    stack: list = []
    input_shapes: list = []
    time_range = property(lambda self: Interval(self.start, self.end), doc="From when to when.")
    is_user_annotation = property(lambda self: self.kind == "user_annotation", doc="Whether record_function marked it.")

    def __init__(self, name, kind, thread, parent):
        self.name, self.kind, self.thread, self.cpu_parent = name, kind, thread, parent
        self.start, self.end, self.cpu_children, self.kernels = 0.0, None, [], []

    @property
    def cpu_time_total(self):
        """Time of the host."""
        return self.end - self.start if self.device_type is DeviceType.CPU else 0.0

    @property
    def self_cpu_time_total(self):
        """Time of the host outside of the events inside."""
        return self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children)

    @property
    def self_device_time_total(self):
        """Time of the work that it queued itself; of work, its own."""
        if self.device_type is DeviceType.CUDA:
            return self.end - self.start
        return sum((kernel.end - kernel.start for kernel in self.kernels), 0.0)

    @property
    def device_time_total(self):
        """Time of all the work that was queued in it."""
        return self.self_device_time_total + sum(child.device_time_total for child in self.cpu_children)

    @property
    def cpu_memory_usage(self):
        """Bytes of host memory made less those freed in it."""
        return self.self_cpu_memory_usage + sum(child.cpu_memory_usage for child in self.cpu_children)

    @property
    def device_memory_usage(self):
        """Bytes of device memory taken less those given back in it."""
        return self.self_device_memory_usage + sum(child.device_memory_usage for child in self.cpu_children)


class Average(Figures):
    """Events of one key: sums of their numbers."""

    device_type, cpu_parent, is_user_annotation = DeviceType.CPU, None, False

    def __init__(self, name, shapes=(), stack=()):
        self.name, self.input_shapes, self.stack = name, [*shapes], [*stack]
        for field in SUMS:
            setattr(self, field, 0)

    def add(self, other):
        """Count another one in."""
        for field in SUMS:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        return self


class EventList(list):
    """Events in the order in which they began, or averages."""

    def __init__(self, events=(), memory=False, facts=None):
        super().__init__(events)
        self.memory, self.facts, self.shaped, self.stacked = memory, {} if facts is None else facts, False, False

    def key_averages(self, group_by_input_shape=False, group_by_stack_n=0):
        """One entry for each name; with `group_by_input_shape` for each name and shapes of the arguments, with `group_by_stack_n` for each
        name and so many innermost calls of the user's."""
        found = {}
        for event in self:
            stack = tuple(event.stack[:group_by_stack_n])
            name = "ProfilerStep*" if event.name.startswith("ProfilerStep#") else event.name
            key = name, event.device_type, event.is_user_annotation, group_by_input_shape and str(event.input_shapes), stack
            if key not in found:
                average = found[key] = Average(name, event.input_shapes if group_by_input_shape else (), stack)
                average.device_type, average.cpu_parent, average.is_user_annotation = key[1], event.cpu_parent, key[2]
            found[key].add(event)
        out = EventList(found.values(), self.memory, self.facts)
        out.shaped, out.stacked = group_by_input_shape, group_by_stack_n > 0
        return out

    def total_average(self):
        """One entry, the sum of all. What devices did is counted once: with their own events, and not with those that queued it."""
        total = Average("Total")
        for entry in self:
            device = total.self_device_time_total + (entry.self_device_time_total if entry.device_type is DeviceType.CUDA else 0.0)
            total.add(entry).self_device_time_total = device
        return total

    @property
    def self_cpu_time_total(self):
        """Time of the host in all of them, in µs."""
        return sum(entry.self_cpu_time_total for entry in self)

    def table(self, sort_by=None, row_limit=100, max_src_column_width=75, max_name_column_width=55, max_shapes_column_width=80, header=None,
              top_level_events_only=False, time_unit=None):
        """A table as text, the greatest `sort_by` first (a number of the entries, such as "cpu_time_total"); -1 rows are all.
        `time_unit`: "s", "ms", "us", or what suits each number."""
        from tritorch.profiler.table import table

        widths = max_name_column_width, max_shapes_column_width, max_src_column_width
        return table(self, sort_by, row_limit, widths, header, top_level_events_only, time_unit)

    def __str__(self):
        return self.table()

    # -------------------------------------------------------------- files
    def export_chrome_trace(self, path):
        """Write a trace for chrome://tracing or ui.perfetto.dev; compressed where the name ends in .gz."""
        path = os.fspath(path)
        with (gzip.open if path.endswith(".gz") else open)(path, "wt", encoding="utf-8") as file:
            json.dump({"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": time.time_ns() - time.perf_counter_ns(),
                       **self.facts, "traceEvents": list(self.trace())}, file)

    def trace(self):
        """The events of a trace: the host's threads, and each device as a process with a lane for each stream."""
        here, lanes = os.getpid(), {}
        for k, event in enumerate(self):
            place = {"pid": here, "tid": event.thread}
            if event.device_type is DeviceType.CUDA:
                streams = lanes.setdefault(event.device_index, {})
                place = {"pid": event.device_index, "tid": streams.setdefault(event.device_resource_id, len(streams))}
            yield {"ph": "X", "cat": event.kind, "name": event.name, "ts": event.start, "dur": event.end - event.start, **place,
                   "args": _facts_of(event)}
            if event.launch is not None:
                arrow = {"id": k, "cat": "ac2g", "name": "ac2g"}
                yield {"ph": "s", "pid": here, "tid": event.launch.thread, "ts": event.launch.start, **arrow}
                yield {"ph": "f", "bp": "e", **place, "ts": event.start, **arrow}
        yield {"ph": "M", "name": "process_name", "pid": here, "tid": 0, "args": {"name": "python"}}
        for index, streams in lanes.items():
            yield {"ph": "M", "name": "process_name", "pid": index, "tid": 0, "args": {"name": f"GPU {index}"}}
            for handle, lane in streams.items():
                name = f"stream {handle:#x}" if handle else "default stream"
                yield {"ph": "M", "name": "thread_name", "pid": index, "tid": lane, "args": {"name": name}}

    def export_stacks(self, path, metric="self_cpu_time_total"):
        """Write a line for each stack of calls, `outermost;…;innermost µs`, as flamegraph.pl reads them; with_stack=True keeps them.
        `metric`: "self_cpu_time_total" or "self_cuda_time_total"."""
        if metric not in STACK_METRICS:
            raise ValueError(sentence("export_stacks", f"a metric among {', '.join(STACK_METRICS)}", repr(metric)))
        with open(path, "w", encoding="utf-8") as file:
            for event in self:
                value = int(getattr(event, metric))
                if event.stack and value > 0:
                    frames = [frame.translate(str.maketrans(" ;\t\n", "____")) for frame in reversed(event.stack)]
                    file.write(f"{';'.join(frames)} {value}\n")


def now():
    """Microseconds of the host's clock."""
    return time.perf_counter_ns() / 1e3


def _facts_of(event):
    """What a trace tells of an event besides its time."""
    facts = {"Input Dims": event.input_shapes, "Call stack": ";".join(event.stack), "FLOPs": event.flops, "Note": event.note,
             "CPU bytes": event.self_cpu_memory_usage, "Device bytes": event.self_device_memory_usage, "stream": event.device_resource_id}
    return {name: value for name, value in facts.items() if value}


def microseconds(value, unit=None):
    """A time in µs as text.

    >>> microseconds(1234.5), microseconds(12.0), microseconds(12.0, "ms")
    ('1.234ms', '12.000us', '0.012ms')
    """
    size = {"us": 1.0, "ms": 1e3, "s": 1e6}
    unit = unit or ("s" if abs(value) >= 1e6 else "ms" if abs(value) >= 1e3 else "us")
    return f"{value / size[unit]:.3f}{unit}"
