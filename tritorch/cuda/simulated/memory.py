"""Memory of the simulated device: host memory between red zones, poisoned whenever it changes hands, that knows which bytes are live."""
from __future__ import annotations

import bisect
import ctypes

import numpy as np

ALIGNMENT, RED_ZONE, POISON = 512, 512, 0xFF
TOMBSTONES = 4096


class MemoryFault(RuntimeError):
    """A kernel or a copy touched memory that is not live, or not its own."""


class Block:
    """A live range of bytes, `start` to `end`, inside an allocation."""

    __slots__ = ("start", "end", "label", "arena", "live")

    def __init__(self, start, end, label, arena):
        self.start, self.end, self.label, self.arena, self.live = start, end, label, arena, True

    @property
    def nbytes(self):
        return self.end - self.start

    def __str__(self):
        return f"{self.nbytes}-byte block" + (f" '{self.label}'" if self.label else "")

    def bytes(self):
        return self.arena.bytes[self.start - self.arena.start:self.end - self.arena.start]


class Arena:
    """One allocation. Until the allocator above annotates a part of it, all of it is one live block."""

    __slots__ = ("start", "end", "bytes", "views", "device", "starts", "blocks", "managed", "_memory")

    def __init__(self, nbytes, device):
        self._memory = np.empty(nbytes + 2 * RED_ZONE + ALIGNMENT, np.uint8)
        base = self._memory.ctypes.data + RED_ZONE
        self.start = base + -base % ALIGNMENT
        self.end = self.start + nbytes
        self.bytes = self._memory[self.start - self._memory.ctypes.data:][:nbytes]
        self.bytes.fill(POISON)
        self.views, self.device, self.managed = {}, device, False
        whole = Block(self.start, self.end, "", self)
        self.starts, self.blocks = [self.start], [whole]

    def view(self, dtype):
        """The whole allocation as numbers of one type; what does not fill a number at the end is left out."""
        found = self.views.get(dtype)
        if found is None:
            found = self.views[dtype] = self.bytes[:self.bytes.size // dtype.itemsize * dtype.itemsize].view(dtype)
        return found

    def find(self, address):
        i = bisect.bisect_right(self.starts, address) - 1
        if i >= 0 and address < self.blocks[i].end:
            return self.blocks[i]
        return None

    def near(self, address):
        """The live block that begins at or before `address`, else the first one."""
        return self.blocks[max(bisect.bisect_right(self.starts, address) - 1, 0)] if self.blocks else None

    def within(self, start, end):
        """The live blocks that share a byte with a range."""
        first = max(bisect.bisect_right(self.starts, start) - 1, 0)
        return [b for b in self.blocks[first:bisect.bisect_left(self.starts, end)] if start < b.end]

    def take_over(self):
        """From now on only what is annotated is live."""
        self.managed = True
        self.starts.clear()
        self.blocks.clear()

    def insert(self, block):
        i = bisect.bisect_left(self.starts, block.start)
        self.starts.insert(i, block.start)
        self.blocks.insert(i, block)
        block.bytes().fill(POISON)

    def remove(self, block):
        i = bisect.bisect_left(self.starts, block.start)
        del self.starts[i], self.blocks[i]
        block.live = False
        block.bytes().fill(POISON)


class Memory:
    """Every allocation of every simulated device, in one address space."""

    def __init__(self):
        self.starts, self.arenas, self.dead = [], [], {}
        self.used = {}

    def alloc(self, nbytes, device):
        arena = Arena(max(nbytes, 1), device)
        i = bisect.bisect_left(self.starts, arena.start)
        self.starts.insert(i, arena.start)
        self.arenas.insert(i, arena)
        self.used[device] = self.used.get(device, 0) + arena.end - arena.start
        return arena.start

    def free(self, ptr):
        arena = self.arena(ptr)
        if arena is None or arena.start != ptr:
            raise MemoryFault(f"free: expected a pointer that alloc returned, got {ptr:#x}")
        for block in list(arena.blocks):
            arena.remove(block)
            self.bury(block)
        i = bisect.bisect_left(self.starts, ptr)
        del self.starts[i], self.arenas[i]
        self.used[arena.device] -= arena.end - arena.start

    def arena(self, address):
        i = bisect.bisect_right(self.starts, address) - 1
        if i >= 0 and address < self.arenas[i].end:
            return self.arenas[i]
        return None

    def find(self, address):
        """The live block that holds `address`, or None."""
        arena = self.arena(address)
        return arena and arena.find(address)

    def manage(self, ptr):
        """The allocation that `ptr` is in is divided by an allocator: from now on only what is annotated is live."""
        arena = self.arena(ptr)
        if arena is not None and not arena.managed:
            arena.take_over()

    def annotate(self, ptr, nbytes, live, label):
        """A range becomes live or dead, now; either way its bytes are poison afterwards."""
        arena = self.arena(ptr)
        if arena is None:
            return
        for block in arena.within(ptr, ptr + nbytes):
            arena.remove(block)
            self.bury(block)
        if live:
            arena.insert(Block(ptr, ptr + nbytes, label, arena))

    def bury(self, block):
        self.dead[block.start] = (block.end, str(block))
        if len(self.dead) > TOMBSTONES:
            del self.dead[next(iter(self.dead))]

    def why_dead(self, address):
        """What is wrong with an address that is in no live block."""
        for start, (end, name) in reversed(self.dead.items()):
            if start <= address < end:
                return f"memory after it was freed: byte {address - start} of the {name}"
        arena = self.arena(address)
        if arena is None:
            return f"{address:#x}, which is not device memory"
        near = arena.near(address)
        if near is None:
            return f"{address:#x}, which no tensor owns"
        return f"{address:#x}, which no tensor owns, {distance(near, address)}"

    def range(self, ptr, nbytes):
        """The bytes of a range as an array; raises MemoryFault unless all of them are live and in one block."""
        block = self.find(ptr)
        if block is None:
            raise MemoryFault(f"expected live device memory, got {self.why_dead(ptr)}")
        if ptr + nbytes > block.end:
            raise MemoryFault(f"expected a range inside one block, got {nbytes} bytes from byte {ptr - block.start} of the {block}")
        offset = ptr - block.arena.start
        return block.arena.bytes[offset:offset + nbytes]


def distance(block, address):
    """Where `address` lies relative to a block it is not in."""
    if address >= block.end:
        return f"{address - block.end} bytes past the end of the {block}"
    return f"{block.start - address} bytes before the start of the {block}"


class HostMemory:
    """Page-locked host memory."""

    def __init__(self):
        self.blocks = {}

    def alloc(self, nbytes):
        array = np.empty(max(nbytes, 1) + 64, np.uint8)
        ptr = array.ctypes.data + -array.ctypes.data % 64
        self.blocks[ptr] = array
        return ptr

    def free(self, ptr):
        del self.blocks[ptr]


def host_bytes(ptr, nbytes):
    """Host memory as an array."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(ptr), np.uint8) if nbytes else np.empty(0, np.uint8)
