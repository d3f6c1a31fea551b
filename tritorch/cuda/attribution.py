"""Who asked for memory: the user's source line of every block, on demand, and a trace of what happened."""

from __future__ import annotations

import sys
from collections import deque

labels: dict[int, str] = {}                                # address of a live block -> line
trace: deque | None = None                                 # the last events, newest last, while history is recorded


def user_line() -> str:
    """file:line of the nearest caller outside the package, "" when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != "tritorch" and not name.startswith("tritorch."):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def born(span) -> str:
    label = labels[span.ptr] = user_line()
    note("alloc", span, label)
    return label


def died(span) -> str:
    label = labels.pop(span.ptr, "")
    note("free_completed", span, label)
    return label


def note(action: str, span, label: str) -> None:
    if trace is not None:
        trace.append({"action": action, "addr": span.ptr, "size": span.size, "stream": span.pool.stream,
                      "device": span.pool.memory.index, "frames": frames(label)})


def frames(label: str) -> list[dict]:
    """A line in the form of PyTorch's snapshots."""
    if not label:
        return []
    filename, _, line = label.rpartition(":")
    return [{"filename": filename, "line": int(line), "name": ""}]
