"""A compiled kernel on the host: its arguments are packed into slots of 8 bytes, and it runs before the launch returns."""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from tritorch.cuda.driver import DriverError, leaves, waiting

from . import elf
from .threads import pool

GRID = (2**31 - 1, 65535, 65535)    # the most programs of a launch, as on a GPU
SPLIT = 20e-6                       # seconds of work for which it pays to wake another thread
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_FORMATS = {"fp32": "f4x", "f32": "f4x", "fp64": "d", "f64": "d", "fp16": "e6x", "f16": "e6x", "bf16": "H6x", "u64": "Q"}
_LIMITS = {"f4x": 3.4028235677973366e38, "e6x": 65520.0}         # from here on a float is nearer to infinity
_ALIGN = 64


class Layout:
    """Where the values of a launch go: `pack` puts them, the grid and the address of the error cell into slots. `expand` turns the values
    into what is packed, None where they are the same."""

    def __init__(self, name: str, signature: dict, slots: int):
        kinds = list(leaves(signature.values()))
        for flags in (1, 2):                                             # of a descriptor: 1 in Triton 3.6, 2 in 3.9
            self.formats, steps = [], []
            for kind in kinds:
                if kind.startswith("tensordesc"):
                    rank = kind.partition("]")[0].count(",") + 1
                    self.formats += "q" * (1 + flags + 4 * rank)
                    steps.append(functools.partial(_described, flags))
                else:
                    self.formats.append("q" if kind[0] == "*" else _FORMATS.get(kind, "q"))
                    steps.append(_bfloat16 if kind == "bf16" else None)
            if len(self.formats) == slots:
                break
        else:
            raise DriverError(f"kernel {name} with parameters {kinds} takes {slots} arguments, expected {len(self.formats)}")
        self.struct = struct.Struct("<" + "".join(self.formats) + "4q")
        self.pack, self.size = self.struct.pack_into, self.struct.size
        self.expand = functools.partial(_expanded, steps) if any(steps) else None

    def saturate(self, values: Sequence[Any]) -> list:
        """Floats too large for their type become infinite, as in C; `pack` refuses them."""
        return [math.copysign(math.inf, value) if code in _LIMITS and abs(value) >= _LIMITS[code] else value
                for code, value in zip(self.formats, values)]


def _expanded(steps, values):
    out: list[Any] = []
    for step, value in zip(steps, values):
        if step is None:
            out.append(value)
        else:
            out.extend(step(value))
    return out


def _described(flags, d):
    return (d.ptr, *d.shape, *d.strides, *(d.padding == "nan", d.round_f32_to_tf32)[:flags], *d.shape, *d.strides)


def _bfloat16(value):
    if abs(value) >= _LIMITS["f4x"]:
        value = math.copysign(math.inf, value)
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if value == value else 0x7FC0,)


class Space:
    """Memory of one launch at a time: the slots of the arguments, a cell for an error, scratch memory for each thread. A launch of a graph
    keeps its arguments in one and borrows scratch memory of another."""

    __slots__ = ("arguments", "view", "error", "room", "each", "threads", "scratches", "step", "_memory", "_scratch")

    def __init__(self):
        self.room, self.each, self.threads, self.scratches = -1, -1, 0, ()

    def fit(self, size: int, scratch: int, threads: int) -> Space:
        """Have room for so many bytes of arguments, and of scratch memory for each thread."""
        if size > self.room:
            self.room = max(size, 512)
            self._memory, address = _aligned(8 + self.room)
            self.error, self.arguments = ctypes.c_int64.from_address(address), address + 8
            self.view = memoryview(self._memory).cast("B")[self.arguments - ctypes.addressof(self._memory):][:self.room]
        if scratch > self.each or threads > self.threads:
            self.each, self.threads = max(scratch, self.each), max(threads, self.threads)
            self.step = -(-self.each // _ALIGN) * _ALIGN
            self._scratch, address = _aligned(self.step * self.threads)
            self.scratches = tuple(address + self.step * i for i in range(self.threads))
        return self


def _aligned(size):
    memory = (ctypes.c_char * (size + _ALIGN))()
    return memory, -(-ctypes.addressof(memory) // _ALIGN) * _ALIGN


class NativeFunction:
    """`driver.Function` of machine code."""

    __slots__ = ("info", "launch", "loaded")

    def __init__(self, driver: Any, name: str, compiled: Any, signature: dict):
        self.loaded = elf.load(compiled.code)
        self.info = {"scratch": compiled.scratch, "code": len(compiled.code)}
        layout = Layout(name, signature, len(compiled.arguments))
        entry = _ENTRY(self.loaded.address("entry"))
        self.launch = _launching(driver, name, layout, compiled, entry, self.loaded)


def launched_later(*call: Any) -> bool:
    """Whether a launch waits for kernels that compile; if not, it is for the caller to do."""
    from tritorch.cuda.ahead import launches_later

    return launches_later(*call)


def _running(driver: Any, entry: Callable, address: int, compiled: Any) -> Callable:
    """Run programs 0..count-1. How long one takes is learned from launch to launch. A kernel that asserts something is run in order, by one
    thread, because it may assert what other programs have done."""
    clock, alone, known = time.perf_counter, bool(compiled.messages), 0.0

    def learn(seconds):
        """A turn in which the system had something else to do does not count for much."""
        nonlocal known
        known = seconds if seconds < known or not known else known + 0.2 * (min(seconds, 2 * known) - known)

    def run(arguments, space, count):
        if alone or driver.threads == 1:
            entry(arguments, space.scratches[0], 0, count)
            return
        begin, first = clock(), 0
        if not known:
            entry(arguments, space.scratches[0], 0, 1)
            learn(clock() - begin)
            begin, first = clock(), 1
        threads = min(driver.threads, count - first, int(known * (count - first) / SPLIT) + 1 if SPLIT else count)
        if threads <= 1:
            entry(arguments, space.scratches[0], first, count)
            if count > first:
                learn((clock() - begin) / (count - first))
            return
        space.fit(0, compiled.scratch, threads)
        mine = pool.run(address, arguments, space.scratches[0], space.step, first, count, threads)
        if mine is None:
            entry(arguments, space.scratches[0], first, count)
        elif mine:
            learn((clock() - begin) / mine)

    return run


def _launching(driver: Any, name: str, layout: Layout, compiled: Any, entry: Callable, loaded: Any) -> Callable:
    """Long, because it is the path of every launch, 2 µs for one program. `loaded` lives as long as what is returned."""
    pack, expand, size, scratch, messages = layout.pack, layout.expand, layout.size, compiled.scratch, compiled.messages
    spaces, streams, run = driver.spaces, driver.streams, _running(driver, entry, loaded.address("entry"), compiled)
    most_x, most_y, most_z = GRID

    def fitting():
        try:
            space = spaces.pop()
        except IndexError:
            space = Space()
        if space.room < size or space.each < scratch:
            space.fit(size, scratch, 1)
        return space

    def launch(gx, gy, gz, stream, values):
        if waiting and launched_later(launch, gx, gy, gz, stream, values):
            return None
        if not (0 < gx <= most_x and 0 < gy <= most_y and 0 < gz <= most_z):
            raise DriverError(f"launch {name}: cudaErrorInvalidValue: expected a grid of positive sizes up to {GRID}, got {(gx, gy, gz)}")
        recording = driver.recording or stream and stream not in streams
        space = Space().fit(size, -1, 0) if recording else fitting()
        if expand is not None:
            values = expand(values)
        try:
            pack(space.view, 0, *values, gx, gy, gz, space.arguments - 8)
        except OverflowError:
            pack(space.view, 0, *layout.saturate(values), gx, gy, gz, space.arguments - 8)
        count = gx * gy * gz
        if recording:
            return driver.record(stream, functools.partial(again, space, count))
        start(space, space, count)
        spaces.append(space)
        return None

    def again(kept, count):
        """A launch of a graph."""
        space = fitting()
        start(kept, space, count)
        spaces.append(space)

    def start(kept, space, count):
        if count == 1:
            entry(kept.arguments, space.scratches[0], 0, 1)
        else:
            run(kept.arguments, space, count)
        if messages and kept.error.value:
            number, kept.error.value = kept.error.value, 0
            from tritorch.cuda.simulated.interpreter import KernelError

            raise KernelError(f"{name}: AssertionError: {messages[number - 1]}")

    launch.loaded = loaded
    return launch
