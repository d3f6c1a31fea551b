"""The watcher of a thread: who compiles a step is told here of whatever no CUDA graph can hold."""

from __future__ import annotations

import threading

VALUE = "a value of a tensor on the CPU"


class _Watched(threading.local):
    watcher = None


watched = _Watched()


def host_work(what: str) -> None:
    """`what` is about to wait for the device, to read host memory or to change numbers on the host: a replay would not do it again."""
    if watched.watcher is not None:
        watched.watcher.blocked(what)
