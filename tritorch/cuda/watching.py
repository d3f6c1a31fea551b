"""The watcher of a thread: who compiles a step is told here of whatever no CUDA graph can hold. And its tracer: who exports a program is
told of what operators do not show."""

from __future__ import annotations

import threading
from typing import Any

VALUE = "a value of a tensor on the CPU"


class _Watched(threading.local):
    watcher = tracer = None


watched = _Watched()


def host_work(what: str) -> None:
    """`what` is about to wait for the device, to read host memory or to change numbers on the host: a replay would not do it again."""
    if watched.watcher is not None:
        watched.watcher.blocked(what)


def elements_read(x: Any) -> None:
    """Python looks at the elements of x."""
    if watched.tracer is not None:
        watched.tracer.read(x)


def unset(x: Any) -> Any:
    """x, whose elements nobody has set."""
    if watched.tracer is not None:
        watched.tracer.unset(x)
    return x
