"""Tells profilers of NVIDIA's (nsys, ncu) that began with `--capture-range=cudaProfilerApi` which part of a program to record."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tritorch.cuda import driver

__all__ = ["profile", "start", "stop"]


def start() -> None:
    """Begin to record."""
    _tell(True)


def stop() -> None:
    """Stop recording."""
    _tell(False)


def _tell(recording: bool) -> None:
    tell = getattr(driver.current(), "profile", None)                   # the simulated GPU has no profiler
    if tell is not None:
        tell(recording)


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Record what runs inside.

    >>> import tritorch as torch
    >>> with torch.cuda.profiler.profile():                              # doctest: +SKIP
    ...     train()
    """
    start()
    try:
        yield
    finally:
        stop()
