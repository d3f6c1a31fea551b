"""A driver that does nothing but remember: events happen when a test says so, memory is numbers."""

import numpy as np

from tritorch.cuda import driver
from tritorch.cuda.driver import DeviceProperties, OutOfMemory


def installed(**options):
    """A recording driver in use for a while."""
    return driver.using(RecordingDriver(**options))


class RecordingDriver:
    name = "recording"

    def __init__(self, total=1 << 40, devices=2, wants_annotations=False):
        self.total, self.devices, self.wants_annotations = total, devices, wants_annotations
        self.calls, self.segments, self.address = [], {}, 1 << 40
        self.pending, self.handles, self.capturing = set(), 100, set()
        self.host, self.here, self.places = {}, 0, []                    # the current device, and (call, device) of every call

    def note(self, *call):
        self.calls.append(call)
        self.places.append((call[0], self.here))

    def named(self, name):
        return [call for call in self.calls if call[0] == name]

    def handle(self):
        self.handles += 1
        return self.handles

    def device_count(self):
        return self.devices

    def device_properties(self, index):
        return DeviceProperties("recording", 9, 0, self.total, 4, 32, 1 << 17, 1 << 20, 2048, 65536)

    def set_device(self, index):
        self.note("set_device", index)
        self.here = index

    def memory_info(self, index):
        return self.total - sum(self.segments.values()), self.total

    def synchronize(self, index):
        self.note("synchronize", index)
        self.pending.clear()

    def alloc(self, nbytes):
        if nbytes > self.memory_info(0)[0]:
            raise OutOfMemory("recording")
        ptr, self.address = self.address, self.address + nbytes + (1 << 21)
        self.segments[ptr] = nbytes
        self.note("alloc", nbytes)
        return ptr

    def free(self, ptr):
        self.note("free", self.segments.pop(ptr))

    def host_alloc(self, nbytes):
        memory = np.zeros(nbytes, np.uint8)
        ptr = memory.__array_interface__["data"][0]
        self.host[ptr] = memory
        self.note("host_alloc", nbytes)
        return ptr

    def host_free(self, ptr):
        self.note("host_free", len(self.host.pop(ptr)))

    def copy(self, dst, src, nbytes, kind, stream):
        self.note("copy", dst, src, nbytes, kind, stream)

    def fill(self, ptr, value, width, count, stream):
        self.note("fill", ptr, value, width, count, stream)

    def stream_create(self, priority):
        self.note("stream_create", priority)
        return self.handle()

    def stream_synchronize(self, stream):
        self.note("stream_synchronize", stream)

    def stream_query(self, stream):
        self.note("stream_query", stream)
        return True

    def stream_wait_event(self, stream, event):
        self.note("stream_wait_event", stream, event)

    def event_create(self, timing):
        self.note("event_create", timing)
        return self.handle()

    def event_destroy(self, event):
        self.note("event_destroy", event)

    def event_record(self, event, stream):
        self.note("event_record", event, stream)
        self.pending.add(event)

    def event_query(self, event):
        return event not in self.pending

    def event_synchronize(self, event):
        self.pending.discard(event)

    def event_elapsed(self, start, end):
        return float(end - start)

    def capture_begin(self, stream):
        self.capturing.add(stream)

    def capture_end(self, stream):
        self.capturing.discard(stream)
        return self.handle()

    def capture_status(self, stream):
        return stream in self.capturing

    def graph_instantiate(self, graph):
        return self.handle()

    def graph_launch(self, executable, stream):
        self.note("graph_launch", executable, stream)

    def graph_destroy(self, graph):
        self.note("graph_destroy", graph)

    def exec_destroy(self, executable):
        self.note("exec_destroy", executable)

    def annotate(self, ptr, nbytes, stream, live, label):
        self.note("annotate", ptr, nbytes, stream, live, label)
