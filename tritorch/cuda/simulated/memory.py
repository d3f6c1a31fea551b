"""Memory of the simulated device: host memory between red zones, poisoned whenever it changes hands, that knows which bytes are live."""
from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import struct

import numpy as np

RED_ZONE, POISON = 512, 0xFF                                    # a page begins where 512 divides, so does what follows a red zone
_FIXED = 0x10                                                   # MAP_FIXED of Linux
TOMBSTONES = 4096
_LARGE = 1 << 25                                                # bytes; the allocator asks for so much only where a tensor needs it
_poison: dict = {}                                              # the file that arenas begin as: its number, and its bytes


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
    """One allocation, or that of another process whose `file` it is. Until the allocator above annotates a part of it, all of it is one
    live block."""

    __slots__ = ("start", "end", "bytes", "views", "device", "starts", "blocks", "managed", "file", "_memory")

    def __init__(self, nbytes, device, file=None):
        size = nbytes + 2 * RED_ZONE
        self._memory = np.frombuffer(mmap.mmap(-1 if file is None else file, size), np.uint8)     # pages of its own: they may be exported
        self.start = self._memory.ctypes.data + RED_ZONE
        self.end = self.start + nbytes
        self.bytes = self._memory[RED_ZONE:][:nbytes]
        if file is None:
            poison(self._memory)
        self.views, self.device, self.managed, self.file = {}, device, False, file
        whole = Block(self.start, self.end, "", self)
        self.starts, self.blocks = [self.start], [whole]

    def __del__(self):
        if self.file is not None:
            os.close(self.file)

    def exported(self):
        """The name of a file that is this memory from now on, for other processes while this one lives: its pages change under it."""
        if self.file is None:
            self.file = os.memfd_create("simulated")
            with open(self.file, "wb", closefd=False) as file:
                file.write(self._memory)
            become(self._memory, self.file, mmap.MAP_SHARED)
        return f"/proc/{os.getpid()}/fd/{self.file}"

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


def poison(memory):
    """Fill new memory: of what nobody touches, which is most of an allocator's piece, no page is made."""
    if memory.size > _LARGE or not hasattr(os, "memfd_create"):
        return memory.fill(POISON)
    if not _poison:
        _poison.update(file=os.memfd_create("poison"), nbytes=0)
    missing = memory.size - _poison["nbytes"]
    if missing > 0:
        _poison["nbytes"] += os.pwrite(_poison["file"], bytes([POISON]) * missing, _poison["nbytes"])
    become(memory, _poison["file"], mmap.MAP_PRIVATE)


def become(memory, file, sharing):
    """Pages of a file, which are all in it, take the place of an array's."""
    move, place = ctypes.CDLL(None, use_errno=True).mmap, memory.ctypes.data
    move.argtypes, move.restype = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong), ctypes.c_void_p
    if move(place, memory.size, mmap.PROT_READ | mmap.PROT_WRITE, sharing | _FIXED, file, 0) != place:
        raise OSError(ctypes.get_errno(), "mmap")


class Memory:
    """Every allocation of every simulated device, in one address space."""

    def __init__(self):
        self.starts, self.arenas, self.dead = [], [], {}
        self.used = {}

    def alloc(self, nbytes, device):
        arena = self.add(Arena(max(nbytes, 1), device))
        self.used[device] = self.used.get(device, 0) + arena.end - arena.start
        return arena.start

    def add(self, arena):
        i = bisect.bisect_left(self.starts, arena.start)
        self.starts.insert(i, arena.start)
        self.arenas.insert(i, arena)
        return arena

    def exported(self, ptr):
        """What another process needs to open the allocation that `ptr` is in, and where in it `ptr` is."""
        arena = self.arena(ptr)
        return struct.pack("q", arena.end - arena.start) + arena.exported().encode(), ptr - arena.start

    def open(self, handle, device):
        """The address of another process's allocation here."""
        file = os.open(handle[8:], os.O_RDWR)
        return self.add(Arena(*struct.unpack("q", handle[:8]), device, file)).start

    def close(self, ptr):
        self.drop(self.arena(ptr))

    def drop(self, arena):
        for block in arena.blocks:
            block.live = False
            self.bury(block)
        i = bisect.bisect_left(self.starts, arena.start)
        del self.starts[i], self.arenas[i]

    def free(self, ptr):
        arena = self.arena(ptr)
        if arena is None or arena.start != ptr:
            raise MemoryFault(f"free: expected a pointer that alloc returned, got {ptr:#x}")
        for block in arena.blocks:                              # what lies between is poison already
            block.bytes().fill(POISON)
        self.drop(arena)
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
