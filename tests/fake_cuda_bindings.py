"""A stand-in for the module cuda.bindings.driver that records what is called and answers with small numbers."""

import ctypes
import re
import types
from enum import IntEnum

VALUES = {  # what a call returns beside its error code; the others return nothing
    "cuDeviceGetCount": 2, "cuDeviceCanAccessPeer": 1, "cuDeviceGet": 5, "cuDeviceGetName": b"Fake GPU\0\0", "cuDeviceTotalMem": 1 << 34,
    "cuDeviceGetAttribute": 9, "cuDriverGetVersion": 13000, "cuDevicePrimaryCtxRetain": 77, "cuMemAlloc": 0x7000, "cuMemHostAlloc": 0x8000,
    "cuStreamCreateWithPriority": 0x51, "cuEventCreate": 0xE1, "cuEventElapsedTime": 1.5, "cuStreamEndCapture": 0x61,
    "cuGraphInstantiate": 0x62, "cuStreamIsCapturing": 1, "cuModuleLoadData": 0x90, "cuModuleGetFunction": 0x91,
    "cuFuncGetAttribute": 40, "cuOccupancyMaxActiveBlocksPerMultiprocessor": 4,
}


class Code(IntEnum):
    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    INVALID_IMAGE = 200
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    OUT_OF_RESOURCES = 701


class AnyName:
    """Stands for an enumeration: every member is its own name."""

    def __getattr__(self, name):
        return 1 if name in ("CU_STREAM_NON_BLOCKING", "CU_STREAM_CAPTURE_STATUS_ACTIVE") else 2 if "DISABLE" in name else (
            0 if name == "CU_EVENT_DEFAULT" else name)


class Fake(types.ModuleType):
    def __init__(self):
        super().__init__("cuda.bindings.driver")
        self.calls, self.errors, self.parameters, self.maps = [], {}, [], []
        self.CUresult, self.CUstream, self.CU_MEMHOSTALLOC_PORTABLE = Code, lambda handle: ("stream", handle), 1
        self.CUlaunchConfig = types.SimpleNamespace
        self.CUlaunchAttribute = lambda: types.SimpleNamespace(value=types.SimpleNamespace(clusterDim=types.SimpleNamespace()))
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, *[ctypes.c_void_p] * 5,
                                     *[ctypes.c_uint32] * 4)
        self.encode = prototype(self.encode_map)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if not re.match("cu[A-Z]", name):
            return AnyName()

        def function(*args):
            self.calls.append((name, *args))
            if "LaunchKernel" in name:
                self.parameters.append(args[-2])
            error = self.errors.get(name, Code.SUCCESS)
            return (error, VALUES[name]) if name in VALUES else (error,)

        return function

    def cuMemGetInfo(self):
        return Code.SUCCESS, 3, 4

    def cuGetErrorName(self, error):
        return Code.SUCCESS, f"CUDA_ERROR_{error.name}".encode()

    def cuGetErrorString(self, error):
        return Code.SUCCESS, b"what it means"

    def cuGetProcAddress(self, symbol, version, flags):
        assert symbol == b"cuTensorMapEncodeTiled"
        return Code.SUCCESS, ctypes.cast(self.encode, ctypes.c_void_p).value, 0

    def encode_map(self, out, kind, rank, address, shape, strides, box, ones, *rest):
        u64, u32 = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
        self.maps.append({
            "aligned": out % 64 == 0, "kind": kind, "address": address, "rest": rest,
            "shape": ctypes.cast(shape, u64)[:rank], "strides": ctypes.cast(strides, u64)[:rank - 1],
            "box": ctypes.cast(box, u32)[:rank], "ones": ctypes.cast(ones, u32)[:rank],
        })
        ctypes.memset(out, 0xAB, 128)
        return 0

    def named(self, *names):
        return [call for call in self.calls if call[0] in names]
