"""A GPU on which nothing runs: kernels and copies are taken and forgotten, device memory is addresses alone.

Real shapes cost nothing here, so a program tells which kernels it needs (`compiler.recording`) without a GPU. What is copied
to the host is zeros.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

from tritorch.cuda.driver import DeviceProperties, OutOfMemory

_SIZES = {  # by architecture: name, bytes of memory, multiprocessors, shared bytes of a block and of a multiprocessor, L2 bytes
    80: ("A100", 80 << 30, 108, 166912, 167936, 40 << 20),
    86: ("RTX 3090", 24 << 30, 82, 101376, 102400, 6 << 20),
    89: ("RTX 4090", 24 << 30, 128, 101376, 102400, 72 << 20),
    90: ("H200", 141 << 30, 132, 232448, 233472, 60 << 20),
    100: ("B200", 180 << 30, 148, 232448, 233472, 126 << 20),
    120: ("RTX 5090", 32 << 30, 170, 101376, 102400, 96 << 20),
}


class DryFunction:
    """A kernel that was loaded and does nothing."""

    info: dict[str, Any] = {}

    def launch(self, gx, gy, gz, stream, values):
        pass


class DryDriver:
    """Speaks the driver protocol for a GPU of an architecture (90 is sm_90), or with the `properties` of a real one, or for one `on_host`.

    Calls that it does not spell out do nothing. Example: `tritorch.cuda.driver.use(DryDriver(90))`.
    """

    name, wants_annotations, hidden = "dry", False, False

    def __init__(self, arch: int = 90, properties: DeviceProperties | None = None, on_host: bool = False):
        if properties is None:
            name, total, sms, shared, shared_sm, cache = _SIZES[arch]
            properties = DeviceProperties(f"dry {name}", arch // 10, arch % 10, total, sms, 32, shared, cache, 2048, 65536, shared_sm)
        self.properties, self.used, self.on_host = properties, 0, on_host
        self.sizes: dict[int, int] = {}
        self.host: dict[int, Any] = {}
        self.capturing: set[int] = set()
        self.handles, self.address = itertools.count(100), 1 << 40

    def __getattr__(self, call):
        if call.startswith("_"):
            raise AttributeError(call)
        return _nothing

    def handle(self, *args):
        return next(self.handles)

    stream_create = event_create = graph_instantiate = handle

    def device_count(self):
        return 1

    def device_properties(self, index):
        return self.properties

    def memory_info(self, index):
        return self.properties.total_memory - self.used, self.properties.total_memory

    def alloc(self, nbytes):
        if self.used + nbytes > self.properties.total_memory:
            raise OutOfMemory(f"alloc: {nbytes} bytes, {self.used} of {self.properties.total_memory} in use")
        pointer, self.address = self.address, self.address + -(-nbytes // 512) * 512
        self.sizes[pointer] = nbytes
        self.used += nbytes
        return pointer

    def free(self, pointer):
        self.used -= self.sizes.pop(pointer)

    def host_alloc(self, nbytes):
        memory = np.zeros(nbytes, np.uint8)
        pointer = memory.__array_interface__["data"][0]
        self.host[pointer] = memory
        return pointer

    def host_free(self, pointer):
        del self.host[pointer]

    def copy(self, dst, src, nbytes, kind, stream):
        if kind == "d2h":
            ctypes.memset(dst, 0, nbytes)

    def graph_launch(self, executable, stream):
        pass                                                             # spelled out for its speed: it is measured with what calls it

    def event_query(self, event):
        return True

    stream_query = event_query

    def event_elapsed(self, start, end):
        return 1.0

    def capture_begin(self, stream):
        self.capturing.add(stream)

    def capture_end(self, stream):
        self.capturing.discard(stream)
        return next(self.handles)

    def capture_status(self, stream):
        return stream in self.capturing

    def load(self, kernel, signature, constexprs, attrs, options):
        return DryFunction()


def _nothing(*args):
    return None
