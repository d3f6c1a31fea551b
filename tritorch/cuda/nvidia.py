"""The driver protocol over cuda-python: a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cuda.bindings import driver as cu

from tritorch.cuda.driver import DeviceProperties, Function
from tritorch.cuda.nvidia_call import call, failure, release
from tritorch.cuda.nvidia_function import NvidiaFunction
from tritorch.cuda.sources import load

_NOT_READY = 600
_HANDLE, _LAZY_PEERS = 64, 1                                    # CU_IPC_HANDLE_SIZE, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag
_FILLS = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
_COPIES = {"h2d": "cuMemcpyHtoDAsync", "d2h": "cuMemcpyDtoHAsync", "d2d": "cuMemcpyDtoDAsync", "p2p": "cuMemcpyAsync"}
_ATTRIBUTES = {
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "multi_processor_count": "MULTIPROCESSOR_COUNT",
    "warp_size": "WARP_SIZE",
    "shared_memory_per_block_optin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_memory_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "L2_cache_size": "L2_CACHE_SIZE",
    "max_threads_per_multi_processor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "regs_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "clock_rate": "CLOCK_RATE",
    "memory_clock_rate": "MEMORY_CLOCK_RATE",
    "memory_bus_width": "GLOBAL_MEMORY_BUS_WIDTH",
}


class Here(threading.local):
    """The device whose context is current in this thread; None before the first call."""

    device: int | None = None


def _meanwhile(make: Callable[[], Any]) -> Any:
    """make(), in a thread while this one imports what the first kernel needs. The driver takes some tenths of a second for a context, in
    which Python is free."""
    if "tritorch.cuda.compiler" in sys.modules:
        return make()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(make)
        with contextlib.suppress(ImportError):                          # whoever launches a kernel is told
            load("triton")
            importlib.import_module("tritorch.cuda.compiler")
        return made.result()


class NvidiaDriver:
    """`driver.Driver` on GPUs. The primary context of each device is used, so it is shared with other libraries."""

    name = "nvidia"

    def __init__(self):
        call("cuInit", 0)
        self.here = Here()
        self._count = call("cuDeviceGetCount")
        self._contexts: dict[int, Any] = {}
        self._properties: dict[int, DeviceProperties] = {}
        self._lock = threading.Lock()

    # -------------------------------------------------------------- devices
    def device_count(self) -> int:
        return self._count

    def device_properties(self, index: int) -> DeviceProperties:
        found = self._properties.get(index)
        if found is None:
            device = call("cuDeviceGet", index)
            values = {
                field: call("cuDeviceGetAttribute", getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
                for field, name in _ATTRIBUTES.items()
            }
            name = call("cuDeviceGetName", 256, device).partition(b"\0")[0].decode()
            found = self._properties[index] = DeviceProperties(
                name=name, total_memory=call("cuDeviceTotalMem", device), driver_version=call("cuDriverGetVersion"), **values)
        return found

    def device_uuid(self, index: int) -> str:
        """The name of the board itself, "GPU-…", by which NVML knows it."""
        digits = call("cuDeviceGetUuid", call("cuDeviceGet", index)).bytes.hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def profile(self, recording: bool) -> None:
        """Tell a profiler around the program to begin or to stop recording."""
        self._call("cuProfilerStart" if recording else "cuProfilerStop")

    def can_access_peer(self, index: int, peer: int) -> bool:
        return bool(call("cuDeviceCanAccessPeer", call("cuDeviceGet", index), call("cuDeviceGet", peer)))

    def set_device(self, index: int) -> None:
        call("cuCtxSetCurrent", self._contexts.get(index) or self._retain(index))
        self.here.device = index

    def _retain(self, index: int) -> Any:
        with self._lock:
            if index not in self._contexts:
                device = call("cuDeviceGet", index)
                self._contexts[index] = _meanwhile(lambda: call("cuDevicePrimaryCtxRetain", device))
            return self._contexts[index]

    def enter(self) -> None:
        if self.here.device is None:                            # a new thread starts on device 0
            self.set_device(0)

    def _call(self, name: str, *args: Any) -> Any:
        self.enter()
        return call(name, *args)

    def _release(self, name: str, handle: int) -> None:
        self.enter()
        release(name, handle)

    @contextlib.contextmanager
    def on(self, index: int) -> Iterator[None]:
        """Device `index` is this thread's device inside."""
        before = self.here.device or 0
        if self.here.device != index:
            self.set_device(index)
        try:
            yield
        finally:
            if before != index:
                self.set_device(before)

    def memory_info(self, index: int) -> tuple[int, int]:
        with self.on(index):
            return call("cuMemGetInfo")

    def synchronize(self, index: int) -> None:
        with self.on(index):
            call("cuCtxSynchronize")

    # -------------------------------------------------------------- memory
    def alloc(self, nbytes: int) -> int:
        return int(self._call("cuMemAlloc", max(nbytes, 1)))

    def free(self, ptr: int) -> None:
        self._release("cuMemFree", ptr)

    def host_alloc(self, nbytes: int) -> int:
        return int(self._call("cuMemHostAlloc", max(nbytes, 1), cu.CU_MEMHOSTALLOC_PORTABLE))

    def host_free(self, ptr: int) -> None:
        self._release("cuMemFreeHost", ptr)

    def copy(self, dst: int, src: int, nbytes: int, kind: str, stream: int) -> None:
        if nbytes:
            self._call(_COPIES[kind], dst, src, nbytes, stream)

    def fill(self, ptr: int, value: int, width: int, count: int, stream: int) -> None:
        if count:
            self._call(_FILLS[width], ptr, value, count, stream)

    # -------------------------------------------------------------- memory of other processes
    def ipc_handle(self, ptr: int) -> tuple[bytes, int]:
        base = int(self._call("cuMemGetAddressRange", ptr)[0])
        return ctypes.string_at(int(call("cuIpcGetMemHandle", base).getPtr()), _HANDLE), ptr - base

    def ipc_open(self, handle: bytes) -> int:
        filled = cu.CUipcMemHandle()
        ctypes.memmove(int(filled.getPtr()), handle, _HANDLE)
        return int(self._call("cuIpcOpenMemHandle", filled, _LAZY_PEERS))

    def ipc_close(self, ptr: int) -> None:
        self._release("cuIpcCloseMemHandle", ptr)

    # -------------------------------------------------------------- streams
    def stream_create(self, priority: int) -> int:
        return int(self._call("cuStreamCreateWithPriority", int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), priority))

    def stream_destroy(self, stream: int) -> None:
        self._release("cuStreamDestroy", stream)

    def stream_synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def stream_query(self, stream: int) -> bool:
        return self._ready("cuStreamQuery", stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def _ready(self, name: str, handle: int) -> bool:
        self.enter()
        error = getattr(cu, name)(handle)[0]
        if error and int(error) != _NOT_READY:
            raise failure(name, error)
        return not error

    # -------------------------------------------------------------- events
    def event_create(self, timing: bool) -> int:
        flags = cu.CUevent_flags
        return int(self._call("cuEventCreate", int(flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING)))

    def event_destroy(self, event: int) -> None:
        self._release("cuEventDestroy", event)

    def event_record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def event_query(self, event: int) -> bool:
        return self._ready("cuEventQuery", event)

    def event_synchronize(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def event_elapsed(self, start: int, end: int) -> float:
        return self._call("cuEventElapsedTime", start, end)

    # -------------------------------------------------------------- kernels
    def load(self, kernel, signature: dict, constexprs: dict, attrs: dict, options: dict) -> Function:
        from tritorch.cuda import ahead, compiler_assembler
        from tritorch.cuda.compiler import Specialisation

        self.enter()
        properties = self.device_properties(self.here.device)
        compiler_assembler.choose(properties.driver_version)
        return ahead.load(self, Specialisation(kernel, signature, constexprs, attrs, options), 10 * properties.major + properties.minor,
                          lambda compiled: NvidiaFunction(self, properties, compiled, signature))

    # -------------------------------------------------------------- graphs
    def capture_begin(self, stream: int) -> None:
        # relaxed: the private pool of a graph may call cuMemAlloc, which does not touch the stream, while it is recorded
        self._call("cuStreamBeginCapture", stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)

    def capture_end(self, stream: int) -> int:
        return int(self._call("cuStreamEndCapture", stream))

    def capture_status(self, stream: int) -> bool:
        if stream == 0:                                         # the legacy stream cannot be captured, and asking may be an error
            return False
        return self._call("cuStreamIsCapturing", stream) == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE

    def graph_instantiate(self, graph: int) -> int:
        return int(self._call("cuGraphInstantiate", graph, 0))

    def graph_launch(self, executable: int, stream: int) -> None:
        self._call("cuGraphLaunch", executable, stream)

    def graph_destroy(self, graph: int) -> None:
        self._release("cuGraphDestroy", graph)

    def exec_destroy(self, executable: int) -> None:
        self._release("cuGraphExecDestroy", executable)

    def annotate(self, ptr: int, nbytes: int, stream: int, live: bool, label: str) -> None:
        pass
