"""Who measures the device: nobody until a profiler does, and then all that is queued goes through its hands.

While there is a meter, each kernel has a Measured in the place of what starts it; afterwards everything is what it was. So a launch
does not ask whether anybody measures, and only copies, fills and replays do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tritorch.cuda import driver

meter: Callable[[str, int, int], contextlib.AbstractContextManager] | None = None
"""meter(name, device index, stream) is a context manager, in which the work of that name is queued."""

_kernels: dict[Any, str] = {}                              # the names of the kernels in driver.functions, by their keys there
_lock = threading.Lock()
_nothing = contextlib.nullcontext()
driver.watchers.append(_kernels.clear)


class Measured:
    """What starts a kernel, under the eyes of the meter."""

    __slots__ = ("start", "name", "index")

    def __init__(self, start: Callable, name: str, index: int):
        self.start, self.name, self.index = start, name, index

    def __call__(self, x: int, y: int, z: int, stream: int, values: Sequence[Any]) -> None:
        with measured(self.name, self.index, stream):
            self.start(x, y, z, stream, values)


def measured(name: str, index: int, stream: int) -> contextlib.AbstractContextManager:
    """For work that is queued inside, on a stream of device `index`."""
    return _nothing if meter is None else meter(name, index, stream)


def keep(key: Any, start: Callable, name: str) -> Callable:
    """Remember in driver.functions what starts a kernel; what to call for it."""
    with _lock:
        _kernels[key] = name
        found = driver.functions[key] = start if meter is None else Measured(start, name, key[-1])
    return found


def begin(new: Callable[[str, int, int], contextlib.AbstractContextManager]) -> None:
    """From here on the device is measured by `new`."""
    global meter
    with _lock:
        meter = new
        for key, start in list(driver.functions.items()):
            driver.functions[key] = Measured(start, _kernels[key], key[-1])
    driver.forget_calls()                                  # of which the tables have what starts their kernels


def end() -> None:
    """Nobody measures any more."""
    global meter
    if meter is None:
        return
    with _lock:
        meter = None
        for key, start in list(driver.functions.items()):
            if type(start) is Measured:
                driver.functions[key] = start.start
    driver.forget_calls()
