"""The watcher of a thread: who compiles a step is told here of whatever no CUDA graph can hold. And its reader: who exports a program is
told of the tensors whose elements Python looks at."""

from __future__ import annotations

import threading
from typing import Any

VALUE = "a value of a tensor on the CPU"


class _Watched(threading.local):
    watcher = reader = None


watched = _Watched()


def host_work(what: str) -> None:
    """`what` is about to wait for the device, to read host memory or to change numbers on the host: a replay would not do it again."""
    if watched.watcher is not None:
        watched.watcher.blocked(what)


def elements_read(x: Any) -> None:
    """Python looks at the elements of x."""
    if watched.reader is not None:
        watched.reader(x)
