"""What stands in for a GPU's clock and for a process that is watched, where the tuner and its benches are tested."""
import json

from bench import watch
from tritorch.cuda import driver


class Clock:
    """A device on which nothing runs: its time is what a test adds to `now`."""

    name = "clock"

    def __init__(self):
        self.now, self.marks, self.gone = 0.0, {}, []

    def device_properties(self, index):
        return driver.DeviceProperties("Clock GPU", 9, 0, 1, 1, 32, 1, 1, 1, 1, driver_version=13000)

    def device_count(self):
        return 1

    def alloc(self, nbytes):
        return 0

    def stream_synchronize(self, stream):
        pass

    def synchronize(self, index):
        pass

    def event_create(self, timing):
        self.marks[len(self.marks)] = None
        return len(self.marks) - 1

    def event_destroy(self, event):
        self.gone.append(event)

    def event_record(self, event, stream):
        self.marks[event] = self.now

    def event_synchronize(self, event):
        assert self.marks[event] is not None

    def event_elapsed(self, start, end):
        return self.marks[end] - self.marks[start]


def speak(monkeypatch, *conversations):
    """What watch.watch yields, process after process; what these are asked."""
    remaining, asked = list(conversations), []

    def speaking(arguments, silence, deadline):
        asked.append(json.loads(arguments[1]))
        yield from remaining.pop(0)

    monkeypatch.setattr(watch, "watch", speaking)
    return asked
