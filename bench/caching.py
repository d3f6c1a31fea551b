"""PyTorch's rules for device memory (c10/cuda/CUDACachingAllocator.cpp, its defaults), to be played beside ours on the same requests."""
from __future__ import annotations

from bisect import bisect_left, insort

MIN_BLOCK, SMALL, SMALL_BUFFER, LARGE_BUFFER, MIN_LARGE, ROUND_LARGE = 512, 1 << 20, 2 << 20, 20 << 20, 10 << 20, 2 << 20


class Block:
    """A piece of a segment; its neighbours by address are `before` and `after`."""

    __slots__ = ("ptr", "size", "small", "stream", "free", "before", "after")

    def __init__(self, ptr, size, small, stream, before=None, after=None):
        self.ptr, self.size, self.small, self.stream, self.before, self.after, self.free = ptr, size, small, stream, before, after, False


class TorchRules:
    """`allocate(nbytes, stream)` gives a Block, `give_back(block)` takes it. Counts bytes and calls of the driver."""

    def __init__(self, total=1 << 62):
        self.total, self.address = total, 1 << 40
        self.fits = {}                                                   # (small, stream) -> sorted (size, ptr, block): free blocks
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = self.driver_calls = 0

    def reset_peaks(self):
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def allocate(self, nbytes, stream=0):
        size = max(MIN_BLOCK, -(-nbytes // MIN_BLOCK) * MIN_BLOCK)
        small = size <= SMALL
        fits = self.fits.setdefault((small, stream), [])
        found = bisect_left(fits, (size,))
        block = fits.pop(found)[2] if found < len(fits) else self.segment(size, small, stream)
        rest = block.size - size
        if rest >= MIN_BLOCK if small else rest > SMALL:                 # else the rest is handed out too, and counts as allocated
            after = Block(block.ptr + size, rest, small, stream, block, block.after)
            if after.after is not None:
                after.after.before = after
            block.size, block.after = size, after
            self.store(after)
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def give_back(self, block):
        self.allocated -= block.size
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self.unlist(neighbour)
                below, above = sorted((block, neighbour), key=lambda b: b.ptr)
                below.size, below.after = below.size + above.size, above.after
                if below.after is not None:
                    below.after.before = below
                block = below
        self.store(block)

    def segment(self, size, small, stream):
        """A fresh segment; what is cached goes back to the driver first where memory is short."""
        length = SMALL_BUFFER if small else LARGE_BUFFER if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
        if self.reserved + length > self.total:
            self.release()
        if self.reserved + length > self.total:
            raise MemoryError(f"{size} bytes")
        self.driver_calls += 1
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.address += length
        return Block(self.address - length, length, small, stream)

    def release(self):
        for fits in self.fits.values():
            for _, _, block in [entry for entry in fits if entry[2].before is entry[2].after is None]:
                self.unlist(block)
                self.reserved -= block.size
                self.driver_calls += 1

    def store(self, block):
        block.free = True
        insort(self.fits[block.small, block.stream], (block.size, block.ptr, block))

    def unlist(self, block):
        fits = self.fits[block.small, block.stream]
        del fits[bisect_left(fits, (block.size, block.ptr))]
