"""The work of devices while a profiler runs: each piece goes between two events on its stream, which are read at the end."""
import contextlib
import threading

from tritorch.cuda import allocator, driver
from tritorch.cuda.device import device as on_device
from tritorch.cuda.stream import captures, is_capturing
from tritorch.profiler.events import DeviceType, Event, now

CALLS = {"Memcpy": ("cudaMemcpyAsync", "gpu_memcpy"), "Memset": ("cudaMemsetAsync", "gpu_memset"),
         "cudaGraphLaunch": ("cudaGraphLaunch", "gpu_graph")}            # by the first word of the work; else it is a kernel
_nothing = contextlib.nullcontext()


class Devices:
    """The work that is queued while `recorder` works: `meter` is told of it (see cuda/measuring.py)."""

    def __init__(self, recorder):
        self.recorder, self.driver, self.works, self.clocks = recorder, driver.current(), [], {}
        if not captures:
            for index in list(allocator.memories):
                self.clock(index)

    def meter(self, name, index, stream):
        """For work that is being queued. What is captured runs later, as part of a graph."""
        if driver.current() is not self.driver or captures and (is_capturing(index, stream) or index not in self.clocks):
            return _nothing
        if index not in self.clocks:
            self.clock(index)
        return Work(self, name, index, stream)

    def clock(self, index):
        """Note which event of a device happens at what time of the host."""
        with on_device(index):
            self.driver.synchronize(index)
            event = self.mark(index, 0)
            self.driver.event_synchronize(event)
        self.clocks[index] = event, now()

    def mark(self, index, stream):
        """A new event, recorded on a stream."""
        with on_device(index):
            event = self.driver.event_create(True)
            self.driver.event_record(event, stream)
        return event

    def collected(self):
        """The work as events. Waits for the devices."""
        if driver.current() is not self.driver:                          # the events of another driver tell nothing
            return
        for index in self.clocks:
            with on_device(index):
                self.driver.synchronize(index)
        elapsed, free = self.driver.event_elapsed, {}                    # free: when a stream is, by what is known so far
        for work in self.works:
            (origin, since), place = self.clocks[work.index], (work.index, work.stream)
            event = Event(work.name, work.kind, None, None)
            event.device_type, event.launch, (event.device_index, event.device_resource_id) = DeviceType.CUDA, work.launch, place
            event.start = max(since + elapsed(origin, work.begin) * 1e3, free.get(place, 0.0))       # of float32's rounding, no overlap
            event.end = free[place] = event.start + elapsed(work.begin, work.end) * 1e3
            if work.launch is not None:
                (work.launch.cpu_parent or work.launch).kernels.append(event)
            yield event
        for handle in [event for event, _ in self.clocks.values()] + [e for work in self.works for e in (work.begin, work.end)]:
            self.driver.event_destroy(handle)


class Work:
    """Something that is queued on a device between two events, and the call that queues it as an event of the host."""

    __slots__ = ("devices", "name", "kind", "index", "stream", "launch", "begin", "end")

    def __init__(self, devices, name, index, stream):
        self.devices, self.name, self.index, self.stream, self.launch = devices, name, index, stream, None

    def __enter__(self):
        recorder = self.devices.recorder
        call, self.kind = CALLS.get(self.name.partition(" ")[0], ("cuLaunchKernel", "kernel"))
        if threading.get_ident() == recorder.thread:
            self.launch = recorder.open(call, "cuda_runtime")            # the marks too: they are no time of the operator's own
        self.begin = self.devices.mark(self.index, self.stream)

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.end = self.devices.mark(self.index, self.stream)
            self.devices.works.append(self)
        else:
            self.devices.driver.event_destroy(self.begin)
        if self.launch is not None:
            self.devices.recorder.close(self.launch)
