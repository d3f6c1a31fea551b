"""Global memory: one stretch of host memory, addressed by its own addresses, that knows which of its bytes are live.

Kernels gather from and scatter to views of the whole stretch, so an access is one numpy operation however many blocks its lanes touch.
As on a GPU an access is aligned to its size; other than on a GPU it has to lie inside one live block, and what is not written is poison.
"""
import bisect
import mmap

import numpy as np

SIZE, ALIGNMENT, GAP, POISON = 24 << 30, 512, 512, 0xFF
_POISON_LIMIT = 64 << 20                # the first bytes of what is larger are poisoned: touching gigabytes takes seconds
NORESERVE = 0x4000


class Memory:
    """Allocations of one device. Until the allocator above annotates a part of an allocation, all of it is one live block."""

    poison = POISON

    def __init__(self, size=SIZE):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        self._pages = mmap.mmap(-1, size, flags=flags)
        self.bytes = np.frombuffer(self._pages, np.uint8)
        self.base, self.size, self.used = self.bytes.ctypes.data, size, 0
        self.allocations, self.managed = {}, set()
        self.holes = [(self.base + GAP, self.base + size)]
        self.starts, self.ends = [], []
        self.edges = None
        self._views = {}
        self.shadow = None                                      # of races.py

    # ------------------------------------------------------------------ who owns what
    def alloc(self, nbytes):
        """An address, or None when nothing is left."""
        need = max(nbytes, 1) + GAP
        need += -need % ALIGNMENT
        for i, (start, end) in enumerate(self.holes):
            if end - start >= need:
                self.holes[i:i + 1] = [(start + need, end)] if end - start > need else []
                self.allocations[start] = nbytes
                self.used += nbytes
                self._insert(start, nbytes)
                return start
        return None

    def free(self, address):
        nbytes = self.allocations.pop(address)
        need = nbytes + GAP
        self.used -= nbytes
        self.managed.discard(address)
        for start, end in self._within(address, address + nbytes):
            self._remove(start, end)
        bisect.insort(self.holes, (address, address + need + -need % ALIGNMENT))
        merged = self.holes[:1]
        for start, end in self.holes[1:]:
            if start == merged[-1][1]:
                merged[-1] = merged[-1][0], end
            else:
                merged.append((start, end))
        self.holes = merged

    def clear_free(self):
        """Whole pages that nobody has hold zeros, as they did at first."""
        for start, end in self.holes:
            first, last = -(-(start - self.base) // mmap.PAGESIZE), (end - self.base) // mmap.PAGESIZE
            if last > first:
                self._pages.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    def annotate(self, address, nbytes, live):
        """The allocator above hands out, or takes back, a part of an allocation."""
        owner = max((start for start in self.allocations if start <= address), default=None)
        if owner not in self.managed:
            self.managed.add(owner)
            self._remove(owner, owner + self.allocations[owner])
        for start, end in self._within(address, address + nbytes):
            self._remove(start, end)
        if live:
            self._insert(address, nbytes)

    def _within(self, start, end):
        first, last = bisect.bisect_left(self.starts, start), bisect.bisect_left(self.starts, end)
        return list(zip(self.starts[first:last], self.ends[first:last]))

    def _insert(self, start, nbytes):
        i = bisect.bisect_left(self.starts, start)
        self.starts.insert(i, start)
        self.ends.insert(i, start + nbytes)
        self._changed(start, start + nbytes)

    def _remove(self, start, end):
        i = bisect.bisect_left(self.starts, start)
        assert self.starts[i] == start, "a block that is not live is taken back"
        del self.starts[i], self.ends[i]
        self._changed(start, end)

    def _changed(self, start, end):
        self.edges = None
        self.bytes[start - self.base:min(end, start + _POISON_LIMIT) - self.base] = self.poison

    # ------------------------------------------------------------------ what instructions do
    def view(self, dtype):
        """All of memory as numbers of one type; address a is element (a - base) // itemsize."""
        found = self._views.get(dtype)
        if found is None:
            found = self._views[dtype] = self.bytes.view(dtype)
        return found

    def problem(self, addresses, nbytes):
        """None, or (which of the addresses, what is wrong with it) for accesses of `nbytes` each, a power of two."""
        if np.bitwise_or.reduce(addresses) & np.uint64(nbytes - 1):
            i = int((addresses & np.uint64(nbytes - 1)).argmax())
            return i, f"misaligned address {int(addresses[i]):#x} of {nbytes} bytes"
        if self.edges is None:
            self.edges = np.array(self.starts, np.uint64), np.array([0, *self.ends], np.uint64)
        starts, ends = self.edges
        low, high = np.minimum.reduce(addresses), np.maximum.reduce(addresses)
        block = starts.searchsorted(low, "right")
        if ends[block] >= high + np.uint64(nbytes) and high >= low:       # the usual case: all in one block
            return None
        outside = ends[starts.searchsorted(addresses, "right")] < addresses + np.uint64(nbytes)
        if not outside.any():
            return None
        i = int(outside.argmax())
        return i, f"{nbytes} bytes at {int(addresses[i]):#x} are not inside live memory; {self._near(int(addresses[i]))}"

    def _near(self, address):
        i = bisect.bisect_right(self.starts, address) - 1
        if i < 0:
            return "no block lies before"
        return f"the block before is {self.starts[i]:#x} to {self.ends[i]:#x}, {address - self.starts[i]} bytes from its start"

    def load(self, addresses, dtype):
        return self.view(dtype)[(addresses - np.uint64(self.base)) // np.uint64(dtype.itemsize)]

    def store(self, addresses, values):
        self.view(values.dtype)[(addresses - np.uint64(self.base)) // np.uint64(values.itemsize)] = values

    def host(self, address, nbytes):
        """The bytes of a range, as an array that writes through."""
        return self.bytes[address - self.base:][:nbytes]
