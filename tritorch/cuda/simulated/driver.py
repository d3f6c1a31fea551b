"""The driver protocol spoken to host memory, with kernels in the interpreter. What it does is documented in cuda/driver.py."""
from __future__ import annotations

import functools
import itertools
import random
import threading

import numpy as np

from tritorch.cuda.driver import DeviceProperties, DriverError, OutOfMemory

from .memory import HostMemory, Memory, MemoryFault, host_bytes
from .queues import Queues, Stream

GIB = 2**30
GRID = (2**31 - 1, 65535, 65535)                                # the most programs of a launch


def locked(method):
    @functools.wraps(method)
    def call(self, *args):
        with self.lock:
            return method(self, *args)
    return call


class Function:
    """An interpreted kernel; the interpreter, and with it Triton, is imported by the first one."""

    info: dict = {}

    def __init__(self, driver, kernel):
        self.driver, self.kernel, self.device = driver, kernel, driver.device

    def launch(self, gx, gy, gz, stream, values):
        driver = self.driver
        if not all(0 < size <= most for size, most in zip((gx, gy, gz), GRID)):
            raise DriverError(f"launch {self.kernel.name}: cudaErrorInvalidValue: expected a grid of positive sizes up to {GRID}, got "
                              f"{(gx, gy, gz)}")
        with driver.lock:
            queue = driver.stream(stream) if stream else driver.defaults[self.device]      # the current device may be another one
            driver.queues.push(queue, functools.partial(
                self.kernel.run, (gx, gy, gz), tuple(values), driver.memory, driver.random))


class SimulatedDriver:
    """Devices in host memory. `seed` draws the order of everything whose order is free; `total_memory` is a device's, in bytes.

    Example: `tritorch.cuda.driver.use(SimulatedDriver(seed=3))`.
    """

    name = "simulated"
    wants_annotations = on_host = True

    def __init__(self, seed: int = 0, devices: int = 1, total_memory: int = 8 * GIB):
        self.random, self.lock = random.Random(seed), threading.RLock()
        self.memory, self.host, self.queues = Memory(), HostMemory(), Queues(self.random)
        self.properties = [DeviceProperties(
            name="Simulated H200", major=9, minor=0, total_memory=total_memory, multi_processor_count=132, warp_size=32,
            shared_memory_per_block_optin=232448, L2_cache_size=60 * 2**20, max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536, shared_memory_per_multiprocessor=233472, clock_rate=1980000, memory_clock_rate=3201000,
            memory_bus_width=6144) for _ in range(devices)]
        self.handles = itertools.count(16)               # CUDA gives 0, 1 and 2 meanings of their own
        self.defaults = [self.queues.add(Stream(0, i)) for i in range(devices)]
        self.streams: dict = {}
        self.events: dict = {}
        self.graphs: dict = {}
        self.executables: dict = {}
        self.thread = threading.local()

    # devices

    def device_count(self):
        return len(self.properties)

    def device_properties(self, index):
        return self.properties[index]

    def set_device(self, index):
        if not 0 <= index < len(self.properties):
            raise DriverError(f"set_device: cudaErrorInvalidDevice: expected a device below {len(self.properties)}, got {index}")
        self.thread.device = index

    @property
    def device(self):
        return getattr(self.thread, "device", 0)

    def memory_info(self, index):
        total = self.properties[index].total_memory
        return total - self.memory.used.get(index, 0), total

    def can_access_peer(self, index, peer):
        return True

    @locked
    def synchronize(self, index):
        streams = [s for s in self.queues.streams if s.device == index]
        for stream in streams:
            self.queues.refuse(stream, "synchronize")
        self.queues.until(lambda: not any(s.queue for s in streams))

    # memory

    @locked
    def alloc(self, nbytes):
        free, total = self.memory_info(self.device)
        if nbytes > free:
            raise OutOfMemory(f"alloc: expected at most {free} free bytes of {total} to be asked for, got {nbytes}")
        return self.memory.alloc(nbytes, self.device)

    @locked
    def free(self, ptr):
        arena = self.memory.arena(ptr)
        if arena is not None:
            self.queues.until(lambda: not any(s.queue for s in self.queues.streams if s.device == arena.device))
        self.memory.free(ptr)

    @locked
    def ipc_handle(self, ptr):
        return self.memory.exported(ptr)

    @locked
    def ipc_open(self, handle):
        return self.memory.open(handle, self.device)

    @locked
    def ipc_close(self, ptr):
        self.memory.close(ptr)

    @locked
    def host_alloc(self, nbytes):
        return self.host.alloc(nbytes)

    @locked
    def host_free(self, ptr):
        self.queues.until(lambda: not self.queues.count)
        self.host.free(ptr)

    @locked
    def copy(self, dst, src, nbytes, kind, stream):
        stream = self.stream(stream)
        if not nbytes:
            return
        if kind == "h2d":
            self.queues.push(stream, lambda: self._move(kind, lambda: self.memory.range(dst, nbytes), lambda: host_bytes(src, nbytes)))
        elif kind == "d2h":
            self.queues.push(stream, lambda: self._move(kind, lambda: host_bytes(dst, nbytes), lambda: self.memory.range(src, nbytes)))
        else:
            self.queues.push(stream, lambda: self._move(
                kind, lambda: self.memory.range(dst, nbytes), lambda: self.memory.range(src, nbytes)))

    def _move(self, kind, target, source):
        try:
            target()[...] = source()
        except MemoryFault as fault:
            raise MemoryFault(f"copy {kind}: {fault}") from None

    @locked
    def fill(self, ptr, value, width, count, stream):
        pattern = np.dtype(f"u{width}").type(value)

        def run():
            try:
                self.memory.range(ptr, width * count).view(pattern.dtype)[...] = pattern
            except MemoryFault as fault:
                raise MemoryFault(f"fill: {fault}") from None
        if count:
            self.queues.push(self.stream(stream), run)

    @locked
    def annotate(self, ptr, nbytes, stream, live, label):
        stream = self.stream(stream)
        run = functools.partial(self.memory.annotate, ptr, nbytes, live, label)
        self.memory.manage(ptr)
        if stream.capture is not None:
            run()                                   # a replay does it again; until then the memory is there to be read and filled
            stream.capture.add(stream, run)
        else:
            self.queues.append(stream, (None, run))

    # streams and events

    def stream(self, handle):
        if handle == 0:
            return self.defaults[self.device]
        found = self.streams.get(handle)
        if found is None:
            raise DriverError(f"cudaErrorInvalidResourceHandle: expected a stream, got {handle:#x}")
        return found

    def event(self, handle):
        if handle not in self.events:
            raise DriverError(f"cudaErrorInvalidResourceHandle: expected an event, got {handle:#x}")
        return self.events[handle]

    @locked
    def stream_create(self, priority):
        handle = next(self.handles)
        self.streams[handle] = self.queues.add(Stream(handle, self.device))
        return handle

    @locked
    def stream_destroy(self, stream):
        self.queues.remove(self.stream(stream))
        del self.streams[stream]

    @locked
    def stream_synchronize(self, stream):
        stream = self.stream(stream)
        self.queues.refuse(stream, "stream_synchronize")
        self.queues.finish(stream)

    @locked
    def stream_query(self, stream):
        stream = self.stream(stream)
        self.queues.refuse(stream, "stream_query")
        self.queues.progress()
        return not stream.queue

    @locked
    def stream_wait_event(self, stream, event):
        mark = self.event(event)
        if mark is not None:
            self.queues.wait(self.stream(stream), mark)

    @locked
    def event_create(self, timing):
        handle = next(self.handles)
        self.events[handle] = None
        return handle

    @locked
    def event_destroy(self, event):
        self.events.pop(event, None)

    @locked
    def event_record(self, event, stream):
        self.event(event)
        self.events[event] = self.queues.record(self.stream(stream))

    def _mark(self, event, call):
        """The last record of an event that the host may look at."""
        mark = self.event(event)
        if mark is not None and mark.capture is not None:
            raise DriverError(f"{call}: cudaErrorCapturedEvent: expected an event recorded outside a capture")
        return mark

    @locked
    def event_query(self, event):
        mark = self._mark(event, "event_query")
        self.queues.progress()
        return mark is None or mark.done

    @locked
    def event_synchronize(self, event):
        mark = self._mark(event, "event_synchronize")
        if mark is not None:
            self.queues.until(lambda: mark.done)

    @locked
    def event_elapsed(self, start, end):
        first, last = self._mark(start, "event_elapsed"), self._mark(end, "event_elapsed")
        if first is None or last is None or not (first.done and last.done):
            raise DriverError("event_elapsed: cudaErrorNotReady: expected two events that have happened")
        return (last.time - first.time) * 1e3

    # kernels

    def load(self, kernel, signature, constexprs, attrs, options):
        from .interpreter import Kernel

        return Function(self, Kernel(kernel, signature, constexprs))

    # graphs

    @locked
    def capture_begin(self, stream):
        self.queues.begin(self.stream(stream))

    @locked
    def capture_end(self, stream):
        handle = next(self.handles)
        self.graphs[handle] = self.queues.end(self.stream(stream))
        return handle

    @locked
    def capture_status(self, stream):
        return self.stream(stream).capture is not None

    @locked
    def graph_instantiate(self, graph):
        handle = next(self.handles)
        self.executables[handle] = list(self.graphs[graph])
        return handle

    @locked
    def graph_launch(self, executable, stream):
        self.queues.push(self.stream(stream), functools.partial(self.queues.replay, self.executables[executable]))

    @locked
    def graph_destroy(self, graph):
        del self.graphs[graph]

    @locked
    def exec_destroy(self, executable):
        del self.executables[executable]
