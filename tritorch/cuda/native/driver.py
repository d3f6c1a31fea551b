"""The driver protocol spoken to host memory, with compiled kernels. What it does is documented in cuda/driver.py.

Streams, events and graphs are those of the simulated device. But nothing waits: what is queued is done before the call returns, in the
order of the calls, and a graph is what was recorded, in that order.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import mmap
import os
import platform
import random
import re
import struct
import sys
import warnings
from pathlib import Path

import numpy as np

from tritorch.cuda.driver import DeviceProperties, DriverError, OutOfMemory, waiting
from tritorch.cuda.simulated.driver import Function, SimulatedDriver, locked
from tritorch.cuda.simulated.memory import Arena, Block, Memory, host_bytes
from tritorch.cuda.simulated.queues import Queues

from . import threads
from .function import NativeFunction, Space, launched_later

_HUGE = 4 << 20                     # bytes from which on memory is asked for in pages of 2 MiB
_CACHE = 32 << 20                   # bytes of the last cache, where the system does not tell


class Direct(Queues):
    """Queues in which nothing waits."""

    def append(self, stream, item):
        if item[1] is not None:
            item[1]()

    def progress(self):
        pass

    def replay(self, nodes):
        for node in nodes:
            node.run()


class InOrder(random.Random):
    """For the interpreter: programs run in their order."""

    def shuffle(self, x):
        pass


class Pages(Arena):
    """One allocation, or that of another process whose `file` it is: all of it is live, and nobody poisons it."""

    __slots__ = ()

    def __init__(self, nbytes, device, file=None):
        self.views, self.device, self.managed, self.file = {}, device, False, file
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if file is None else {}
        memory = mmap.mmap(-1 if file is None else file, nbytes, **flags)
        if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._memory = self.bytes = np.frombuffer(memory, np.uint8)
        self.start = self._memory.ctypes.data
        self.end = self.start + nbytes
        self.starts, self.blocks = [self.start], [Block(self.start, self.end, "", self)]


class NativeMemory(Memory):
    """Every allocation of every device; the interpreter, for kernels that cannot be compiled, finds its blocks here."""

    def alloc(self, nbytes, device):
        try:
            arena = self.add(Pages(max(nbytes, 1), device))
        except (OSError, OverflowError) as error:
            raise OutOfMemory(f"alloc: the system has no {nbytes} bytes: {error}") from None
        self.used[device] = self.used.get(device, 0) + nbytes
        return arena.start

    def free(self, ptr):
        arena = self.arena(ptr)
        if arena is None or arena.start != ptr:
            raise DriverError(f"free: expected a pointer that alloc returned, got {ptr:#x}")
        self.drop(arena)
        self.used[arena.device] -= arena.end - arena.start

    def open(self, handle, device):
        file = os.open(handle[8:], os.O_RDWR)
        return self.add(Pages(*struct.unpack("q", handle[:8]), device, file)).start


class Interpreted(Function):
    """A kernel that was not compiled."""

    def launch(self, gx, gy, gz, stream, values):
        if not (waiting and launched_later(super().launch, gx, gy, gz, stream, values)):
            super().launch(gx, gy, gz, stream, values)


class NativeDriver(SimulatedDriver):
    """Devices in host memory whose kernels are compiled for the host; `total_memory` is a device's, in bytes, by default the machine's.

    `threads` share the programs of a grid. Raises RuntimeError elsewhere than on Linux on x86-64, and without triton.
    Example: `tritorch.cuda.driver.use(NativeDriver())`.
    """

    name = "native"
    wants_annotations = False
    hidden = False                  # see driver.hidden

    def __init__(self, devices: int = 1, total_memory: int | None = None):
        refuse_elsewhere()
        total = total_memory or _memory_size()
        super().__init__(0, devices, total)
        self.threads = threads.processors()
        self.random, self.memory, self.recording = InOrder(), NativeMemory(), False
        self.queues.__class__ = Direct
        self.spaces: list[Space] = []
        self.properties = [DeviceProperties(
            name=f"Native x86-64 {_processor_name()}", major=8, minor=0, total_memory=total, multi_processor_count=self.threads,
            warp_size=32, shared_memory_per_block_optin=166912, L2_cache_size=_cache_size(), max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536, shared_memory_per_multiprocessor=167936) for _ in range(devices)]

    # work

    @locked
    def record(self, stream, run):
        """Work while something is captured, perhaps on this stream; else, and on streams that do not exist, what the queues make of it."""
        self.queues.push(self.stream(stream), run)

    def copy(self, dst, src, nbytes, kind, stream):
        if self.recording or stream and stream not in self.streams:
            self.record(stream, functools.partial(ctypes.memmove, dst, src, nbytes))
        elif nbytes:
            ctypes.memmove(dst, src, nbytes)

    def fill(self, ptr, value, width, count, stream):
        if self.recording or stream and stream not in self.streams:
            self.record(stream, functools.partial(_fill, ptr, value, width, count))
        elif count:
            _fill(ptr, value, width, count)

    def annotate(self, ptr, nbytes, stream, live, label):
        pass

    def load(self, kernel, signature, constexprs, attrs, options):
        from tritorch.cuda import ahead
        from tritorch.cuda.compiler import HOST, Specialisation, where

        def finish(compiled):
            if not compiled.refusal:
                return NativeFunction(self, where(kernel), compiled, signature)
            from tritorch.cuda.simulated.interpreter import Kernel

            warnings.warn(f"{where(kernel)} runs in the interpreter, because it is not compiled for the host: {compiled.refusal}",
                          stacklevel=3)
            return Interpreted(self, Kernel(kernel, signature, constexprs))

        return ahead.load(self, Specialisation(kernel, signature, constexprs, attrs, options), HOST, finish)

    # captures

    @locked
    def capture_begin(self, stream):
        super().capture_begin(stream)
        self.recording = True

    @locked
    def capture_end(self, stream):
        try:
            return super().capture_end(stream)
        finally:
            self.recording = any(each.capture is not None for each in self.queues.streams)


def refuse_elsewhere() -> None:
    """Raise RuntimeError where no code can be made."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        raise RuntimeError(f"the native device: expected Linux on x86-64, got {platform.system()} on {platform.machine()}; "
                           "use the simulated device")
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("the native device: expected triton to compile with, which is not installed; pip install triton")


def _fill(ptr, value, width, count):
    pattern = value.to_bytes(width, "little")
    if pattern == pattern[:1] * width:
        ctypes.memset(ptr, pattern[0], width * count)
    elif count:
        host_bytes(ptr, width * count).view(f"u{width}")[...] = value


def _memory_size():
    """Bytes of the machine's memory, or what a container is given of it."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError):                       # "max" where there is no limit
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(sizes)


def _processor_name():
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        found = re.search(r"^model name\s*: (.*)$", file.read(), re.M)
    return found[1].strip() if found else "processor"


def _cache_size():
    """Bytes of the largest cache of a processor."""
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes if size[-1:] in ("K", "M")), default=_CACHE)
