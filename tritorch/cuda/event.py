"""Events: marks in a stream that the host and other streams can wait for and time."""

from __future__ import annotations

import sys

from tritorch.cuda import driver
from tritorch.cuda.device import device as on_device
from tritorch.cuda.stream import Stream, captures, current_stream
from tritorch.cuda.watching import host_work
from tritorch.errors import check


class Event:
    """A mark in a stream: `record` sets it, `synchronize` and `wait` wait for it, `elapsed_time` measures between two.

    `enable_timing` for elapsed_time (recording costs a little more). `blocking` and `interprocess` are accepted:
    how the host waits is the driver's choice, and handles are not shared between processes.
    """

    __slots__ = ("timing", "device", "handle", "driver", "__weakref__")

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False):
        self.timing, self.device, self.handle = enable_timing, None, None
        check(not (enable_timing and interprocess), "Event", "enable_timing=False when interprocess=True", "both True")

    @property
    def cuda_event(self) -> int:
        """The driver's handle, for other libraries; 0 before the first record."""
        driver.share()
        return self.handle or 0

    def record(self, stream: Stream | None = None) -> None:
        """Happens when the work queued on `stream` (the current one by default) so far is done."""
        stream = current_stream() if stream is None else stream
        if self.handle is None:
            self.driver, self.device = driver.current(), stream.device
            with on_device(stream.device.index):
                self.handle = self.driver.event_create(self.timing)
        check(self.device is stream.device, "Event.record", f"a stream of {self.device}, where the event was recorded first", stream.device)
        with on_device(stream.device.index):
            self.driver.event_record(self.handle, stream.handle)

    def wait(self, stream: Stream | None = None) -> None:
        """Work queued on `stream` from now on waits for the last record; nothing was recorded: nothing to wait for."""
        if self.handle is not None:
            stream = current_stream() if stream is None else stream
            with on_device(stream.device.index):
                self.driver.stream_wait_event(stream.handle, self.handle)

    def query(self) -> bool:
        """True when the last record has happened, or there is none."""
        return self.handle is None or self.driver.event_query(self.handle)

    def synchronize(self) -> None:
        """Wait until the last record has happened."""
        if self.handle is not None:
            host_work("Event.synchronize")
            check(not captures, "Event.synchronize", "no CUDA graph capture, because it waits for the device", "a capture under way",
                  use="it before or after the capture")
            self.driver.event_synchronize(self.handle)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`; both were recorded with enable_timing=True and have happened."""
        check(self.timing and end_event.timing, "Event.elapsed_time", "both events created with enable_timing=True", self.timing,
              end_event.timing, error=ValueError)
        check(self.handle is not None and end_event.handle is not None, "Event.elapsed_time", "both events recorded",
              "an event that was not", use="record()", error=ValueError)
        check(self.query() and end_event.query(), "Event.elapsed_time", "both events completed", "an event still to come",
              use="synchronize()")
        return self.driver.event_elapsed(self.handle, end_event.handle)

    def __repr__(self):
        return f"<tritorch.cuda.Event {self.handle:#x}>" if self.handle else "<tritorch.cuda.Event uninitialized>"

    def __del__(self, finalizing=sys.is_finalizing):
        if self.handle is not None and not finalizing():
            self.driver.event_destroy(self.handle)
