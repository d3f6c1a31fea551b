"""Copies between host and device, fills, and page-locked memory. Everything goes on the current stream.

As torch.cuda.memory does, it also has the allocator's statistics and snapshots (memory_report.py).
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import sys
import threading

import numpy as np

from tritorch.cuda import driver, faults, sync_debug
from tritorch.cuda.device import device as on_device
from tritorch.cuda.measuring import measured
from tritorch.cuda.memory_report import *  # noqa: F403
from tritorch.cuda.memory_report import _dump_snapshot, _record_memory_history, _snapshot  # noqa: F401
from tritorch.cuda.stream import captures, current_handle, is_capturing, lasts, marks, refuse_capture
from tritorch.cuda.trace import spoil, traces
from tritorch.cuda.watching import host_work
from tritorch.errors import check

_COPIES = {"h2d": "Memcpy HtoD", "d2h": "Memcpy DtoH", "d2d": "Memcpy DtoD", "p2p": "Memcpy PtoP"}        # what profilers call them
STAGED = 4 << 20                                           # bytes of pageable memory that go through page-locked memory, and of a piece
_pieces: dict[tuple[int, int], list] = {}                  # (device index, stream) -> [Pinned, bytes of it that are used]
_free: dict[int, list[int]] = {}                           # size -> page-locked addresses
_waiting: collections.deque = collections.deque()          # (driver, address, size, streams, their events or None) of the dead
_lock = threading.RLock()                                  # reentrant: the collector may end an array while this thread is inside


def copy(dst_ptr: int, src_ptr: int, nbytes: int, kind: str, device_index: int, non_blocking: bool = False) -> None:
    """Copy bytes; `kind` is "h2d", "d2h", "d2d" or "p2p". Only a "d2h" copy that is not `non_blocking` waits."""
    if traces:
        spoil()
    if nbytes:
        waits = kind == "d2h" and not non_blocking
        if waits:
            if sync_debug.mode[0]:
                sync_debug.told("copy to the host")
            refuse_capture("copy to the host", device_index, current_handle(device_index))
        stream = current_handle(device_index)                            # now: where a compiled step is captured that has just ended
        with on_device(device_index):
            with measured(_COPIES[kind], device_index, stream):
                driver.current().copy(dst_ptr, src_ptr, nbytes, kind, stream)
            if waits:
                driver.current().stream_synchronize(stream)
        if waits and device_index in faults.unread:
            faults.read(device_index)


def fill(ptr: int, value: int, width: int, count: int, device_index: int) -> None:
    """Write `count` repetitions of an unsigned pattern of `width` bytes (1, 2 or 4)."""
    if traces:
        spoil()
    if count:
        stream = current_handle(device_index)
        with on_device(device_index), measured("Memset (Device)", device_index, stream):
            driver.current().fill(ptr, value, width, count, stream)


def upload(array: np.ndarray, ptr: int, device_index: int, pinned_owner: Pinned | None = None, non_blocking: bool = True) -> None:
    """Copy a contiguous array to the device. Pageable memory may change on return; pinned memory only once the copy ran, for which
    the host waits unless `non_blocking`. In a graph capture the memory must be pinned, and every replay reads it again.

    The driver promises nothing of pageable memory: where the device can read all of the host's (HMM), its copies may run late, too. So
    little of it goes through pinned memory, and the host waits for much.
    """
    if not array.nbytes:
        return
    source, stream = array.__array_interface__["data"][0], current_handle(device_index)
    capturing = is_capturing(device_index, stream)
    waits = not (non_blocking or capturing)
    if pinned_owner is None:
        host_work("copy from pageable host memory")
        check(not capturing, "upload", "pinned host memory in a CUDA graph capture, because replays read it again", "pageable memory",
              use="pin_memory()")
        waits = array.nbytes > STAGED or not lasts(device_index, stream)
        if not waits:
            with _lock:                                                  # until the copy is queued: its piece may be given up afterwards
                copy(ptr, _staged(source, array.nbytes, (device_index, stream)), array.nbytes, "h2d", device_index)
            return
    elif capturing:
        captures[device_index].keep(pinned_owner)
    copy(ptr, source, array.nbytes, "h2d", device_index)
    if pinned_owner is not None:
        pinned_owner.streams.add((device_index, stream))
    if waits:
        with on_device(device_index):
            driver.current().stream_synchronize(stream)


def _staged(source, nbytes, place):
    """The address of a copy in page-locked memory. Pieces are used from end to end and then die: each needs an event, not every copy."""
    piece = _pieces.get(place)
    if piece is None or piece[1] + nbytes > STAGED:
        piece = _pieces[place] = [Pinned(STAGED), 0]
        piece[0].streams.add(place)
    address = piece[0].ptr + piece[1]
    piece[1] += -(-nbytes // 512) * 512
    ctypes.memmove(address, source, nbytes)
    return address


def download(ptr: int, nbytes: int, device_index: int) -> np.ndarray:
    """Bytes of the device as a fresh uint8 array; waits for the current stream."""
    out = np.empty(nbytes, np.uint8)
    copy(out.__array_interface__["data"][0], ptr, nbytes, "d2h", device_index)
    return out


def download_into(array: np.ndarray, ptr: int, device_index: int, pinned_owner: Pinned | None = None, non_blocking: bool = False) -> None:
    """Copy from the device into a contiguous array and wait, unless it is pinned and `non_blocking`: then the bytes are there once
    the current stream is through. In a graph capture only the latter is possible."""
    stream = current_handle(device_index)
    late = non_blocking and pinned_owner is not None
    copy(array.__array_interface__["data"][0], ptr, array.nbytes, "d2h", device_index, non_blocking=late)
    if late:
        pinned_owner.streams.add((device_index, stream))
        if is_capturing(device_index, stream):
            captures[device_index].keep(pinned_owner)


class Pinned:
    """Page-locked host memory: numpy arrays over it keep it alive, `streams` are those that copy from or to it.
    When it dies, the memory is used again after the copies that they have queued."""

    __slots__ = ("ptr", "nbytes", "size", "streams", "driver", "__array_interface__")

    def __init__(self, nbytes):
        self.ptr = 0                                                     # what __del__ asks for, also when there is no driver
        self.driver, self.streams, self.nbytes = driver.current(), set(), nbytes
        self.size = 1 << max(9, (nbytes - 1).bit_length()) if nbytes else 0      # powers of two, so that few sizes serve all
        if nbytes:
            with _lock:
                _collect()
                found = _free.get(self.size)
                self.ptr = found.pop() if found else self.driver.host_alloc(self.size)
        self.__array_interface__ = {"data": (self.ptr, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self, finalizing=sys.is_finalizing):
        if self.ptr and not finalizing():
            events = None if captures or not _in_use(self.driver) else marks(self.driver, self.streams)
            _waiting.append((self.driver, self.ptr, self.size, self.streams, events))


def _in_use(owner) -> bool:
    return driver.chosen() and driver.current() is owner


def _collect() -> None:
    """Make pinned memory whose copies have run available again, the oldest first. A capture must not meet its events: they wait for its
    end."""
    while _waiting and not captures:
        owner, ptr, size, streams, events = _waiting.popleft()
        if not _in_use(owner):                                           # replaced: its devices may not be there any more
            with contextlib.suppress(RuntimeError):
                for index in {index for index, _ in streams}:
                    owner.synchronize(index)
                owner.host_free(ptr)
            continue
        events = marks(owner, streams) if events is None else events
        if events is None:                                               # nobody gets this memory any more
            continue
        if not all(owner.event_query(event) for event in events):
            _waiting.appendleft((owner, ptr, size, streams, events))     # what died later is hardly ready before: to ask for all of many
            return                                                       # would take longer each time
        for event in events:
            owner.event_destroy(event)
        _free.setdefault(size, []).append(ptr)


def pinned_empty(nbytes: int) -> np.ndarray:
    """Uninitialised page-locked memory as a uint8 array; `pinned_owner` finds what to tell of its copies."""
    return np.asarray(Pinned(nbytes)) if nbytes else np.empty(0, np.uint8)


def pinned_owner(array: np.ndarray) -> Pinned | None:
    """The page-locked memory that an array looks at, or None."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Pinned) else None


def empty_pinned_cache() -> None:
    """Give page-locked memory that no array and no copy uses back to the driver."""
    with _lock:
        _pieces.clear()
        _collect()
        for pointers in _free.values():
            while pointers:
                driver.current().host_free(pointers.pop())


def forget() -> None:
    """The driver was replaced: its page-locked memory is never handed out again."""
    _free.clear()
    _pieces.clear()


driver.watchers.insert(0, forget)
