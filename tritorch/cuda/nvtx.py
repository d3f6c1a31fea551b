"""Marks in the timelines of Nsight: ranges and moments, by the package `nvtx` (`pip install 'tritorch[monitoring]'`).

>>> from tritorch.cuda import nvtx
>>> with nvtx.range("step {}", 3):                                       # doctest: +SKIP
...     train()
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

_depth = [0]                                               # ranges that are open: the package does not say


def _library() -> ModuleType:
    try:
        import nvtx
    except ImportError as error:
        raise RuntimeError("nvtx: expected the package nvtx, got none; use pip install 'tritorch[monitoring]'") from error
    return nvtx


def range_push(msg: str) -> int:
    """Open a range within those that are open; returns how many were."""
    _library().push_range(msg)
    _depth[0] += 1
    return _depth[0] - 1


def range_pop() -> int:
    """Close the innermost range; returns how many are left open."""
    _library().pop_range()
    _depth[0] -= 1
    return _depth[0]


def range_start(msg: str) -> Any:
    """Open a range that any thread may close, by what this returns."""
    return _library().start_range(msg)


def range_end(range_id: Any) -> None:
    """Close a range that `range_start` opened."""
    _library().end_range(range_id)


def mark(msg: str) -> None:
    """Mark this moment."""
    _library().mark(msg)


@contextlib.contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A range around what runs inside, named msg.format(*args, **kwargs)."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
