"""What one operator call queues on the device, noted so that it can be queued again (tritorch/repeat.py does that)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from tritorch.cuda import faults

traces: dict[int, Trace] = {}                   # thread -> the call that is being watched there


def current() -> Trace | None:
    """The call of this thread that is being watched."""
    return traces.get(get_ident())


def spoil() -> None:
    """What happens now cannot be repeated without running the implementation again."""
    trace = traces.get(get_ident())
    if trace is not None:
        trace.whole = False


class unseen:
    """Context manager: what this thread queues inside is no part of the call that is being watched."""

    def __enter__(self):
        self.trace = traces.pop(get_ident(), None)

    def __exit__(self, *exception):
        if self.trace is not None:
            traces[get_ident()] = self.trace


class PassedFloat(float):
    """A number that a call only hands to its kernels, the `nth` of these, while the call is being watched."""


class PassedInt(int):
    """A whole one."""


class PassedDouble(np.float64):
    """A number of double precision."""


class PassedParts(int):
    """A whole number that a call hands to its kernels as `parts`, marked numbers."""

    def __new__(cls, number: int, parts: Sequence[float], nth: int) -> PassedParts:
        made = super().__new__(cls, number)
        made.parts = tuple([passed(part, nth + k) for k, part in enumerate(parts)])
        return made


def passed(number: float, nth: int) -> PassedFloat | PassedInt | PassedDouble:
    """A number, marked for the Trace."""
    kind = PassedInt if isinstance(number, int) else PassedDouble if isinstance(number, np.float64) else PassedFloat
    made = kind(number)
    made.nth = nth
    return made


def _range(storage) -> tuple[int, int]:
    """Its addresses, at least one."""
    return storage.ptr, storage.ptr + max(storage.nbytes, 1)


class Trace:
    """Watches what this thread queues inside its `with` block. `storages` are those of the arguments, `pointers` the addresses of
    the arguments' first elements.

    Afterwards `steps` are the launches: (start, x, y, z, values, patches, numbers), a patch being (place in `values`, which argument or
    temporary, distance from its first element, None or what makes a descriptor of the pointer), `numbers` telling by place which of the
    marked numbers is there; `temporaries` are the sizes of the memory that the call made for itself, or None for the stream's counters,
    `passed` has the marked numbers seen.
    """

    def __init__(self, storages: Sequence[Any], pointers: Sequence[int], device):
        self.storages, self.pointers, self.device = [*storages], [*pointers], device
        self.ranges = [_range(storage) for storage in storages]
        self.steps: list[tuple] = []
        self.temporaries: list[int | None] = []
        self.passed: set[int] = set()
        self.whole, self.reports = True, False

    def __enter__(self):
        traces[get_ident()] = self
        return self

    def __exit__(self, *exception):
        traces.pop(get_ident(), None)                                    # an interrupt may have left it unseen

    def made(self, storage) -> None:
        """Memory that the call made for itself. It is kept until the call is over, so that each piece has an address of its own."""
        self.storages.append(storage)
        self.ranges.append(_range(storage))
        self.pointers.append(storage.ptr)
        self.temporaries.append(storage.nbytes)
        self.whole = self.whole and storage.device is self.device

    def counts(self, storage) -> None:
        """The counters that tritorch/cuda/counters.py has for the current stream; a later call may be on another one."""
        self.made(storage)
        self.temporaries[-1] = None

    def launched(self, start, grid, leaves: Iterable, values: Sequence) -> None:
        """A launch with `values`; the `leaves` that they came from tell which are pointers (tensors) and descriptors."""
        given, patches, numbers = [*values], [], {}
        for place, leaf in enumerate(leaves):
            if hasattr(leaf, "nth"):
                numbers[place] = leaf.nth
            moved = getattr(leaf, "moved", None)
            if moved is not None or hasattr(leaf, "storage"):
                given[place] = None
                if moved is not None:
                    moved = moved(leaf.ptr).moved                        # of a copy that keeps no tensor alive
                patches.append((place, *self.find(leaf.ptr if moved else values[place]), moved))
        self.passed.update(numbers.values())
        self.steps.append((start, *(*grid, 1, 1)[:3], given, patches, numbers))

    def find(self, pointer: int) -> tuple[int | None, int]:
        """(which storage a pointer lies in, its distance from the argument's first element), or (None, the pointer) for the word of
        bad indices, which stays where it is."""
        for k, (start, end) in enumerate(self.ranges):                   # a factorization makes hundreds
            if start <= pointer < end:
                return k, pointer - self.pointers[k]
        word = faults.words.get(self.device.index)
        self.reports = word is not None and pointer == word.data_ptr()
        self.whole = self.whole and self.reports
        return None, pointer
