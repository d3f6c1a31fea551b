"""A stand-in for the module cuda.bindings.driver whose GPU is the machine: memory, streams, events, graphs, modules and launches.

Work is done when it is queued, which is an order that every stream and event allows; graphs are in streams.py. What a real driver refuses
is refused with its code: calls before cuInit, of a thread without a context, of a forked process; void handles; too many threads, too much
shared memory, too many registers. What a kernel does wrong raises Fault where the kernel is launched.
"""
import ctypes
import dataclasses
import functools
import inspect
import os
import re
import threading
import types

import numpy as np

from tritorch.testing.ptx import access, arithmetic, control, convert, copies, integers, mbarrier, mma, tma, warp, wgmma  # noqa: F401  they register instructions
from tritorch.testing.ptx.batches import execute
from tritorch.testing.ptx.codes import Code
from tritorch.testing.ptx.cubin import describe
from tritorch.testing.ptx.machine import Fault, Launch
from tritorch.testing.ptx.memory import Memory
from tritorch.testing.ptx.parse import parse
from tritorch.testing.ptx.streams import Streams
from tritorch.testing.ptx.tensor_map import encode

_GPUS = {
    80: {"NAME": "A100 made of PTX", "MULTIPROCESSOR_COUNT": 108, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 166912,
         "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 167936, "L2_CACHE_SIZE": 40 << 20},
    90: {"NAME": "H200 made of PTX", "MULTIPROCESSOR_COUNT": 132, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
         "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472, "L2_CACHE_SIZE": 60 << 20},
}
_ALL = {"WARP_SIZE": 32, "MAX_THREADS_PER_MULTIPROCESSOR": 2048, "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "CLOCK_RATE": 1980000,
        "MEMORY_CLOCK_RATE": 3201000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}
_STATIC_SHARED, _THREADS, _REGISTERS, _GRID, _CLUSTER = 48 << 10, 1024, 65536, (2 ** 31 - 1, 65535, 65535), 8
_CONTEXT = 0x77                                     # the handle of the device's primary context
_ANYWHERE = re.compile("cu(Init|Device|Driver|CtxSetCurrent|Get)")      # calls that need no context


class Names:
    """Stands for an enumeration: every member is its own name, but for the flags that are combined or compared as numbers."""

    def __getattr__(self, name):
        return {"CU_STREAM_NON_BLOCKING": 1, "CU_STREAM_CAPTURE_STATUS_ACTIVE": 1, "CU_EVENT_DEFAULT": 0,
                "CU_EVENT_DISABLE_TIMING": 2}.get(name, name)


@functools.lru_cache(256)
def _parsed(ptx):
    """A kernel that is loaded again, by another device, is parsed once."""
    return parse(ptx)


class Kernel:
    """A loaded module with its one kernel."""

    def __init__(self, compiled, memory):
        program = _parsed(compiled.ptx)
        self.program, self.cubin = dataclasses.replace(program, symbols=dict(program.symbols)), compiled.cubin
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


class Bindings(types.ModuleType, Streams):
    """The functions of the driver's API that tritorch calls, for one device of compute capability `arch`. `seed` deals the warps into
    groups (machine.py); None runs them in lockstep, twice as fast."""

    CUresult, CUstream, CU_MEMHOSTALLOC_PORTABLE = Code, staticmethod(int), 1
    CUlaunchConfig = types.SimpleNamespace

    def __init__(self, arch, seed=0):
        types.ModuleType.__init__(self, "cuda.bindings.driver")
        self.arch, self.seed, self.memory, self.compiled = arch, seed, Memory(), {}
        self.process, self.here, self.pinned = None, threading.local(), {}
        self.launches, self.steps = 0, 0
        Streams.__init__(self)
        pointer, number = ctypes.c_void_p, ctypes.c_uint32
        self.encode = ctypes.CFUNCTYPE(ctypes.c_int, pointer, number, number, *[pointer] * 5, *[number] * 4)(self.cuTensorMapEncodeTiled)

    def __getattr__(self, name):
        if re.match("CU[a-z]", name):
            return Names()
        raise AttributeError(name)

    @staticmethod
    def CUlaunchAttribute():
        return types.SimpleNamespace(value=types.SimpleNamespace(clusterDim=types.SimpleNamespace()))

    # ------------------------------------------------------------------ the device
    def _state(self, name):
        """What stands in the way of a call."""
        if self.process != os.getpid() and name != "cuInit":                        # a forked process has no driver
            return Code.NOT_INITIALIZED
        if not _ANYWHERE.match(name) and not getattr(self.here, "context", 0):
            return Code.INVALID_CONTEXT
        return None

    def cuInit(self, flags):
        self.process = os.getpid()
        return (Code.SUCCESS,)

    def cuDeviceGetCount(self):
        return Code.SUCCESS, 1

    def cuDeviceGet(self, index):
        return (Code.INVALID_DEVICE, 0) if index else (Code.SUCCESS, 0)

    def cuDevicePrimaryCtxRetain(self, device):
        return Code.SUCCESS, _CONTEXT

    def cuCtxSetCurrent(self, context):
        if context not in (0, _CONTEXT):
            return (Code.INVALID_CONTEXT,)
        self.here.context = context
        return (Code.SUCCESS,)

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
        address = self.memory.alloc(nbytes) if nbytes else 0
        return (Code.OUT_OF_MEMORY if address is None else Code.SUCCESS if nbytes else Code.INVALID_VALUE), address or 0

    def cuMemHostAlloc(self, nbytes, flags):
        code, address = self.cuMemAlloc(nbytes)
        if not code:
            self.pinned[address] = nbytes
        return code, address

    def cuMemFree(self, address):
        if address in self.pinned or address not in self.memory.allocations:
            return (Code.INVALID_VALUE,)
        self.memory.free(address)
        return (Code.SUCCESS,)

    def cuMemFreeHost(self, address):
        if self.pinned.pop(address, None) is None:
            return (Code.INVALID_VALUE,)
        return self.cuMemFree(address)

    def _copy(self, target, source, nbytes, stream, ours):
        for address in ours:
            self._live(address, nbytes)
        for address in {target, source}.difference(ours):
            if int(stream) in self.captures and not any(start <= address < start + size for start, size in self.pinned.items()):
                raise Fault(f"a captured copy of {nbytes} bytes of pageable memory, which a replay may find gone")
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
        if address % dtype.itemsize or not 0 <= value < 1 << 8 * dtype.itemsize:
            return (Code.INVALID_VALUE,)
        self._live(address, count * dtype.itemsize)
        return self._do(stream, lambda: self.memory.host(address, count * dtype.itemsize).view(dtype).fill(value))

    def cuMemsetD8Async(self, address, value, count, stream):
        return self._fill(address, value, count, stream, np.dtype("u1"))

    def cuMemsetD16Async(self, address, value, count, stream):
        return self._fill(address, value, count, stream, np.dtype("u2"))

    def cuMemsetD32Async(self, address, value, count, stream):
        return self._fill(address, value, count, stream, np.dtype("u4"))

    # ------------------------------------------------------------------ kernels
    def cuModuleLoadData(self, cubin):
        if cubin not in self.compiled or self.compiled[cubin].arch != self.arch:
            return Code.INVALID_IMAGE, 0
        return self._new(Kernel(self.compiled[cubin], self.memory))

    def cuModuleGetFunction(self, module, name):
        assert self.objects[module].program.name == name.decode()
        return Code.SUCCESS, module

    def cuFuncSetCacheConfig(self, function, config):
        return (Code.SUCCESS if self._is(function, Kernel) else Code.INVALID_HANDLE,)

    def cuFuncSetAttribute(self, function, attribute, value):
        if attribute == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES":
            kernel = self.objects[function]
            if value + kernel.program.static_shared > _GPUS[self.arch]["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]:
                return (Code.INVALID_VALUE,)
            kernel.shared_limit = value + kernel.program.static_shared
        return (Code.SUCCESS,)

    def cuFuncGetAttribute(self, attribute, function):
        kernel = self.objects[function]
        return Code.SUCCESS, kernel.registers if attribute.endswith("NUM_REGS") else kernel.program.local_bytes

    def _resident(self, kernel, threads, shared):
        """How many CTAs a multiprocessor holds; registers are dealt to warps by 256."""
        registers = threads // 32 * (-(-32 * kernel.registers // 256) * 256)
        by_shared = _GPUS[self.arch]["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"] // (shared + kernel.program.static_shared + 1024)
        return min(_REGISTERS // max(registers, 1), by_shared, _ALL["MAX_THREADS_PER_MULTIPROCESSOR"] // threads, 32)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, shared):
        return Code.SUCCESS, self._resident(self.objects[function], threads, shared)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, addresses, extra, cooperative=False, early=False,
                       cluster=None):
        if not self._is(function, Kernel):
            return (Code.INVALID_HANDLE,)
        kernel, grid = self.objects[int(function)], (gx, gy, gz)
        if not all(0 < size <= most for size, most in zip(grid, _GRID)) or bx != kernel.program.threads or by * bz != 1:
            return (Code.INVALID_VALUE,)
        if shared + kernel.program.static_shared > kernel.shared_limit or bx > _THREADS:
            return (Code.INVALID_VALUE,)
        wanted = kernel.program.cluster
        cluster = cluster or (wanted or 1, 1, 1)
        if cluster[0] != (wanted or cluster[0]) or not 1 <= cluster[0] <= _CLUSTER or cluster[0] > 1 and self.arch < 90 or gx % cluster[0]:
            return (Code.INVALID_CLUSTER_SIZE,)
        if cluster[1:] != (1, 1):
            raise Fault("the machine has clusters along x alone")
        resident = self._resident(kernel, bx, shared)
        if not resident:
            return (Code.LAUNCH_OUT_OF_RESOURCES,)
        if cooperative and gx * gy * gz > resident * _GPUS[self.arch]["MULTIPROCESSOR_COUNT"]:
            return (Code.COOPERATIVE_LAUNCH_TOO_LARGE,)
        launch = Launch(grid, bx, shared, kernel.parameters(addresses), early, cluster[0])
        return self._do(stream, lambda: self._run(kernel, launch))

    def cuLaunchKernelEx(self, config, function, addresses, extra):
        kinds = {attribute.id.removeprefix("CU_LAUNCH_ATTRIBUTE_"): attribute.value for attribute in config.attrs}
        cluster = None
        if "CLUSTER_DIMENSION" in kinds:
            cluster = kinds["CLUSTER_DIMENSION"].clusterDim
            cluster = cluster.x, cluster.y, cluster.z
        if config.numAttrs != len(config.attrs):
            return (Code.INVALID_VALUE,)
        return self.cuLaunchKernel(function, config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY,
                                   config.blockDimZ, config.sharedMemBytes, config.hStream, addresses, extra, "COOPERATIVE" in kinds,
                                   "PROGRAMMATIC_STREAM_SERIALIZATION" in kinds, cluster)

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


def _checked(name, function):
    """What tritorch calls: refused where the process or the thread cannot call the driver."""
    @functools.wraps(function)
    def checked(self, *args):
        code = self._state(name)
        return function(self, *args) if code is None else (code, 0, 0)

    return checked


for _name in dir(Bindings):
    if re.match("cu[A-Z]", _name) and not isinstance(inspect.getattr_static(Bindings, _name), staticmethod):
        setattr(Bindings, _name, _checked(_name, getattr(Bindings, _name)))
