"""A stand-in for the module cuda.bindings.driver whose GPU is the machine: memory, streams, events, graphs, modules and launches.

Work is done when it is queued, which is an order that every stream and event allows. While a stream is captured its work goes into a list,
and a launch of the graph runs the list. What a real driver refuses (too many threads, too much shared memory, sizes of parameters that do
not fit) is refused; what a kernel does wrong raises Fault where the kernel is launched.
"""
import ctypes
import itertools
import re
import time
import types
from enum import IntEnum

import numpy as np

from ptx import access, arithmetic, control, convert, copies, integers, mbarrier, mma, tma, warp, wgmma  # noqa: F401  they register instructions
from ptx.cubin import describe
from ptx.machine import Fault, Launch, execute
from ptx.memory import Memory
from ptx.parse import parse
from ptx.tensor_map import encode


class Code(IntEnum):
    """CUresult."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901


_GPUS = {
    80: {"NAME": "A100 made of PTX", "MULTIPROCESSOR_COUNT": 108, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 166912,
         "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 167936, "L2_CACHE_SIZE": 40 << 20},
    90: {"NAME": "H200 made of PTX", "MULTIPROCESSOR_COUNT": 132, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
         "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472, "L2_CACHE_SIZE": 60 << 20},
}
_ALL = {"WARP_SIZE": 32, "MAX_THREADS_PER_MULTIPROCESSOR": 2048, "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "CLOCK_RATE": 1980000,
        "MEMORY_CLOCK_RATE": 3201000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}
_STATIC_SHARED, _THREADS, _REGISTERS, _GRID = 48 << 10, 1024, 65536, (2 ** 31 - 1, 65535, 65535)


class Names:
    """Stands for an enumeration: every member is its own name, but for the flags that are combined or compared as numbers."""

    def __getattr__(self, name):
        return {"CU_STREAM_NON_BLOCKING": 1, "CU_STREAM_CAPTURE_STATUS_ACTIVE": 1, "CU_EVENT_DEFAULT": 0,
                "CU_EVENT_DISABLE_TIMING": 2}.get(name, name)


class Kernel:
    """A loaded module with its one kernel."""

    def __init__(self, compiled, memory):
        self.program = parse(compiled.ptx)
        table, self.registers = describe(compiled.cubin, self.program.name)
        expected = [(p.offset, p.size) for p in self.program.parameters]
        assert table == expected, f"{self.program.name}: the cubin has parameters {table}, its PTX {expected}"
        for name, (_, data) in self.program.constants.items():
            self.program.symbols[name] = address = memory.alloc(len(data))
            memory.host(address, len(data))[:] = np.frombuffer(data, np.uint8)
        self.shared_limit = _STATIC_SHARED

    def parameters(self, addresses):
        """The packed block that `addresses`, an array of pointers, leads to."""
        pointers = ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p))
        last = self.program.parameters[-1]
        block = np.zeros(last.offset + last.size + 8, np.uint8)
        for parameter, pointer in zip(self.program.parameters, pointers):
            ctypes.memmove(block.ctypes.data + parameter.offset, pointer, parameter.size)
        return block


class Bindings(types.ModuleType):
    """The functions of the driver's API that tritorch calls, for one device of compute capability `arch`. `seed` deals the warps into
    groups (machine.py); None runs them in lockstep, twice as fast."""

    CUresult, CUstream, CU_MEMHOSTALLOC_PORTABLE = Code, staticmethod(int), 1
    CUlaunchConfig = types.SimpleNamespace

    def __init__(self, arch, seed=0):
        super().__init__("cuda.bindings.driver")
        self.arch, self.seed, self.memory, self.compiled = arch, seed, Memory(), {}
        self.objects, self.handles, self.captures, self.events = {}, itertools.count(0x5001), {}, {}
        self.launches, self.steps, self.seen = 0, 0, set()
        pointer, number = ctypes.c_void_p, ctypes.c_uint32
        self.encode = ctypes.CFUNCTYPE(ctypes.c_int, pointer, number, number, *[pointer] * 5, *[number] * 4)(self.cuTensorMapEncodeTiled)

    def __getattr__(self, name):
        if re.match("CU[a-z]", name):
            return Names()
        raise AttributeError(name)

    @staticmethod
    def CUlaunchAttribute():
        return types.SimpleNamespace(value=types.SimpleNamespace(clusterDim=types.SimpleNamespace()))

    def _new(self, thing):
        handle = next(self.handles)
        self.objects[handle] = thing
        return Code.SUCCESS, handle

    def _forget(self, handle):
        del self.objects[handle]
        return (Code.SUCCESS,)

    cuStreamDestroy = cuGraphDestroy = cuGraphExecDestroy = _forget

    def _nothing(self, *args):
        return (Code.SUCCESS,)

    cuInit = cuCtxSetCurrent = cuCtxSynchronize = cuStreamSynchronize = cuStreamQuery = cuEventQuery = cuEventSynchronize = _nothing
    cuFuncSetCacheConfig = _nothing

    # ------------------------------------------------------------------ the device
    def cuDeviceGetCount(self):
        return Code.SUCCESS, 1

    def cuDeviceGet(self, index):
        return Code.SUCCESS, index

    cuDevicePrimaryCtxRetain = cuDeviceGet

    def cuDeviceGetName(self, length, device):
        return Code.SUCCESS, _GPUS[self.arch]["NAME"].encode() + b"\0"

    def cuDeviceTotalMem(self, device):
        return Code.SUCCESS, self.memory.size

    def cuDeviceGetAttribute(self, attribute, device):
        name = attribute.removeprefix("CU_DEVICE_ATTRIBUTE_")
        capability = {"COMPUTE_CAPABILITY_MAJOR": self.arch // 10, "COMPUTE_CAPABILITY_MINOR": self.arch % 10}
        return Code.SUCCESS, {**_ALL, **_GPUS[self.arch], **capability}[name]

    def cuDriverGetVersion(self):
        return Code.SUCCESS, 13000

    def cuGetErrorName(self, error):
        return Code.SUCCESS, f"CUDA_ERROR_{Code(error).name}".encode()

    def cuGetErrorString(self, error):
        return Code.SUCCESS, Code(error).name.lower().replace("_", " ").encode()

    # ------------------------------------------------------------------ memory
    def cuMemGetInfo(self):
        return Code.SUCCESS, self.memory.size - self.memory.used, self.memory.size

    def cuMemAlloc(self, nbytes):
        address = self.memory.alloc(nbytes)
        return (Code.OUT_OF_MEMORY, 0) if address is None else (Code.SUCCESS, address)

    def cuMemHostAlloc(self, nbytes, flags):
        return self.cuMemAlloc(nbytes)

    def cuMemFree(self, address):
        self.memory.free(address)
        return (Code.SUCCESS,)

    cuMemFreeHost = cuMemFree

    def _copy(self, target, source, nbytes, stream, ours):
        for address in ours:
            self._live(address, nbytes)
        return self._do(stream, lambda: ctypes.memmove(target, source, nbytes))

    def _live(self, address, nbytes):
        if problem := self.memory.problem(np.array([address, address + nbytes - 1], np.uint64), 1):
            raise Fault(f"a copy of {nbytes} bytes: {problem[1]}")

    def cuMemcpyHtoDAsync(self, target, source, nbytes, stream):
        return self._copy(target, source, nbytes, stream, [target])

    def cuMemcpyDtoHAsync(self, target, source, nbytes, stream):
        return self._copy(target, source, nbytes, stream, [source])

    def cuMemcpyDtoDAsync(self, target, source, nbytes, stream):
        return self._copy(target, source, nbytes, stream, [target, source])

    cuMemcpyAsync = cuMemcpyDtoDAsync

    def _fill(self, address, value, count, stream, dtype):
        self._live(address, count * dtype.itemsize)
        return self._do(stream, lambda: self.memory.host(address, count * dtype.itemsize).view(dtype).fill(value))

    def cuMemsetD8Async(self, address, value, count, stream):
        return self._fill(address, value, count, stream, np.dtype("u1"))

    def cuMemsetD16Async(self, address, value, count, stream):
        return self._fill(address, value, count, stream, np.dtype("u2"))

    def cuMemsetD32Async(self, address, value, count, stream):
        return self._fill(address, value, count, stream, np.dtype("u4"))

    # ------------------------------------------------------------------ streams, events, graphs
    def _do(self, stream, work):
        """Now, or when the graph is launched that the stream is captured into."""
        graph = self.captures.get(int(stream))
        if graph is None:
            work()
        else:
            graph.append(work)
        return (Code.SUCCESS,)

    def cuStreamCreateWithPriority(self, flags, priority):
        return self._new("stream")

    def cuStreamWaitEvent(self, stream, event, flags):
        """A stream that waits for an event of a capture belongs to the capture from then on."""
        if (graph := self.events[event][1]) is not None and any(graph is other for other in self.captures.values()):
            self.captures[int(stream)] = graph
        return (Code.SUCCESS,)

    def cuEventCreate(self, flags):
        _, handle = self._new("event")
        self.events[handle] = 0.0, None
        return Code.SUCCESS, handle

    def cuEventDestroy(self, event):
        del self.events[event]
        return self._forget(event)

    def cuEventRecord(self, event, stream):
        self.events[event] = time.perf_counter(), self.captures.get(int(stream))
        return (Code.SUCCESS,)

    def cuEventElapsedTime(self, start, end):
        return Code.SUCCESS, 1e3 * (self.events[end][0] - self.events[start][0])

    def cuStreamBeginCapture(self, stream, mode):
        if not int(stream) or int(stream) in self.captures:
            return (Code.STREAM_CAPTURE_UNSUPPORTED,)
        self.captures[int(stream)] = []
        return (Code.SUCCESS,)

    def cuStreamEndCapture(self, stream):
        if int(stream) not in self.captures:
            return Code.STREAM_CAPTURE_INVALIDATED, 0
        graph = self.captures[int(stream)]
        self.captures = {handle: other for handle, other in self.captures.items() if other is not graph}
        return self._new(graph)

    def cuStreamIsCapturing(self, stream):
        return Code.SUCCESS, int(int(stream) in self.captures)

    def cuGraphInstantiate(self, graph, flags):
        return self._new(list(self.objects[graph]))

    def cuGraphLaunch(self, executable, stream):
        work = self.objects[executable]
        return self._do(stream, lambda: [step() for step in work])

    # ------------------------------------------------------------------ kernels
    def cuModuleLoadData(self, cubin):
        return self._new(Kernel(self.compiled[cubin], self.memory))

    def cuModuleGetFunction(self, module, name):
        assert self.objects[module].program.name == name.decode()
        return Code.SUCCESS, module

    def cuFuncSetAttribute(self, function, attribute, value):
        if attribute == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES":
            if value > _GPUS[self.arch]["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]:
                return (Code.INVALID_VALUE,)
            self.objects[function].shared_limit = value
        return (Code.SUCCESS,)

    def cuFuncGetAttribute(self, attribute, function):
        kernel = self.objects[function]
        return Code.SUCCESS, kernel.registers if attribute.endswith("NUM_REGS") else kernel.program.local_bytes

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, shared):
        by_registers = _REGISTERS // (max(self.objects[function].registers, 16) * threads)
        by_shared = _GPUS[self.arch]["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"] // (shared + 1024)
        return Code.SUCCESS, min(by_registers, by_shared, 2048 // threads, 32)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, addresses, extra):
        kernel, grid = self.objects[int(function)], (gx, gy, gz)
        if not all(0 < size <= most for size, most in zip(grid, _GRID)) or bx != kernel.program.threads or by * bz != 1:
            return (Code.INVALID_VALUE,)
        if shared > kernel.shared_limit or bx > _THREADS or kernel.registers * bx > _REGISTERS:
            return (Code.INVALID_VALUE,)
        launch = Launch(grid, bx, shared, kernel.parameters(addresses))
        return self._do(stream, lambda: self._run(kernel, launch))

    def cuLaunchKernelEx(self, config, function, addresses, extra):
        if any(attribute.id.endswith("CLUSTER_DIMENSION") for attribute in config.attrs):
            raise Fault("the machine has no clusters")
        return self.cuLaunchKernel(function, config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY,
                                   config.blockDimZ, config.sharedMemBytes, config.hStream, addresses, extra)

    def _run(self, kernel, launch):
        self.launches += 1
        seed = None if self.seed is None else self.seed + 1000003 * self.launches
        self.steps += execute(kernel.program, launch, self.memory, seed)

    def cuGetProcAddress(self, symbol, version, flags):
        assert symbol == b"cuTensorMapEncodeTiled"
        return Code.SUCCESS, ctypes.cast(self.encode, ctypes.c_void_p).value, 0

    @staticmethod
    def cuTensorMapEncodeTiled(*args):
        return encode(*args)
