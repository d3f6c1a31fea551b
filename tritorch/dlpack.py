"""DLPack both ways, with no C of our own: the structures by ctypes, their making and freeing by numpy.

Export: numpy makes a capsule for an array over our memory (device pointers too: it never reads them) and frees it whether or not
it is consumed, at any time; what numpy has no word for, the device and the 8- and 16-bit float types, is then written into it.
Import: `Imported` takes a capsule over and calls its deleter when the last tensor over the memory dies.
https://dmlc.github.io/dlpack/latest/
"""
from __future__ import annotations

import ctypes
import math
import sys

import numpy as np

from tritorch.device import cpu, device
from tritorch.dtype import (
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from tritorch.dtype import bool as bool_
from tritorch.errors import check
from tritorch.shape import contiguous_strides, extent
from tritorch.storage import block_storage, host_storage, written_unseen
from tritorch.tensor import strided

CPU, CUDA, CUDA_HOST = 1, 2, 3
CODES = {float64: (2, 64), float32: (2, 32), float16: (2, 16), bfloat16: (4, 16), int64: (0, 64), int32: (0, 32), int16: (0, 16),
         int8: (0, 8), uint8: (1, 8), bool_: (6, 8), float8_e4m3fn: (10, 8), float8_e5m2: (12, 8), complex64: (5, 64), complex128: (5, 128)}
DTYPES = {code: kind for kind, code in CODES.items()}
READ_ONLY = 1
# numpy 2.0 makes capsules of DLPack 0 alone, read-only memory has none
NUMPY_KNOWS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    names, flags = (b"dltensor", b"used_dltensor"), 0
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned, of DLPack 1."""

    names = b"dltensor_versioned", b"used_dltensor_versioned"
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


def opened(capsule):
    """The structure in a capsule that nobody has consumed, or None."""
    for kind in (ManagedVersioned, Managed):
        if is_valid(capsule, kind.names[0]):
            return kind.from_address(pointer_of(capsule, kind.names[0]))
    return None


class Window:
    """Memory as numpy sees it through the array interface; it keeps `owner` alive for the array made over it."""

    def __init__(self, owner, ptr, shape, strides, itemsize, read_only=False):
        self.owner = owner
        self.__array_interface__ = {"data": (ptr, read_only), "shape": tuple(shape), "strides": tuple(s * itemsize for s in strides),
                                    "typestr": "<c16" if itemsize == 16 else f"<u{itemsize}", "version": 3}


def export(x, max_version):
    """A capsule over the memory of x; versioned if the consumer knows DLPack 1."""
    read_only = x.device is cpu and not x.array.flags.writeable
    somewhere = x.data_ptr() if x.numel() else 64                        # numpy 2.0 takes no NULL, even for no elements
    window = Window(x.storage, somewhere, x.shape, x.strides, x.itemsize, read_only)
    capsule = np.asarray(window).__dlpack__(**({"max_version": max_version} if NUMPY_KNOWS_VERSIONS else {}))
    tensor = opened(capsule).tensor
    tensor.code, tensor.bits = CODES[x.dtype]
    if x.device is not cpu:
        written_unseen(x.storage, math.nan)
        tensor.device_type, tensor.device_id = CUDA, x.device.index
    return capsule


class Imported:
    """A consumed capsule: `ptr` and the layout of its memory. Frees it when the last tensor over it dies."""

    def __init__(self, capsule):
        managed = opened(capsule)
        check(managed is not None, "from_dlpack", "a DLPack capsule that nobody has consumed", type(capsule).__name__, error=ValueError)
        t = managed.tensor
        version = getattr(managed, "major", 1)
        check(version == 1, "from_dlpack", "a capsule of DLPack 1", f"version {version}", error=BufferError)
        check(t.lanes == 1 and (t.code, t.bits) in DTYPES, "from_dlpack", f"elements of {', '.join(k.name for k in DTYPES.values())}",
              f"type code {t.code} of {t.bits} bits and {t.lanes} lanes", error=BufferError)
        check(t.device_type in (CPU, CUDA, CUDA_HOST), "from_dlpack", "memory of the CPU or of CUDA", f"device type {t.device_type}",
              error=BufferError)
        self.dtype, self.shape = DTYPES[t.code, t.bits], tuple(t.shape[:t.ndim])
        self.strides = tuple(t.strides[:t.ndim]) if t.strides else contiguous_strides(self.shape)
        check(min(self.strides, default=0) >= 0, "from_dlpack", "strides that are not negative", self.strides, error=BufferError)
        self.ptr, self.read_only = (t.data or 0) + t.byte_offset, bool(managed.flags & READ_ONLY)
        self.device = device("cuda", t.device_id) if t.device_type == CUDA else cpu
        rename(capsule, managed.names[1])
        self.managed, self.deleter = ctypes.addressof(managed), managed.deleter and Deleter(managed.deleter)

    def __del__(self, finalizing=sys.is_finalizing):
        if getattr(self, "deleter", None) and not finalizing():        # at exit the producer may be gone: leave the memory to the system
            self.deleter(self.managed)

    def tensor(self):
        """A Tensor over the memory."""
        itemsize = self.dtype.itemsize
        if self.device is not cpu:
            nbytes = extent(self.shape, self.strides) * itemsize
            return strided(block_storage(self, nbytes, self.device), self.shape, self.strides, 0, self.dtype)
        window = Window(self, self.ptr, self.shape, self.strides, itemsize, self.read_only)
        if not all(self.shape):
            window.__array_interface__["strides"] = None
        array = np.asarray(window)
        return strided(host_storage(array), self.shape, self.strides, 0, self.dtype)
