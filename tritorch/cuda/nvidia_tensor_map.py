"""CUtensorMap, the 128 bytes that describe a tile to TMA.

The object of cuda.bindings is not 64-byte aligned as the driver wants it, so the driver's function is called through ctypes
into a buffer of our own.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

from cuda.bindings import driver as cu

from tritorch.cuda.driver import DriverError
from tritorch.cuda.nvidia_call import call, failure

_SIZE, _ALIGNMENT, _MOST = 128, 64, 4096
_HOST_TYPE = {8: 10, 9: 8, 10: 9}   # Triton's metadata holds the numbers that the device uses; the host's differ in these
_FLOAT32, _TFLOAT32 = 7, 11
_L2_128B = 2
_SMALL, _WORD, _BIT = 128 << 10, 1, 1 << 21
_WORDS = struct.Struct("<16Q")
_maps: dict[tuple, bytes] = {}
_lock = threading.Lock()
_encode: Any = None


def tensor_map(descriptor: Any, meta: dict, blackwell: bool = False) -> bytes:
    """The map of a `launch.TensorDescriptor` for a kernel whose compilation says `meta` (swizzle, element type, box)."""
    key = (descriptor.ptr, descriptor.shape, descriptor.strides, descriptor.round_f32_to_tf32, descriptor.padding, meta["elem_type"],
           meta["swizzle"], blackwell, *meta["block_size"])
    found = _maps.get(key)
    if found is None:
        with _lock:
            if len(_maps) >= _MOST:
                _maps.clear()
            found = _maps[key] = _encoded(descriptor, meta)
            if blackwell and _last_byte(descriptor, meta) < _SMALL:
                found = _maps[key] = _without_a_wrong_bit(found)
    return found


def _last_byte(descriptor: Any, meta: dict) -> int:
    return sum((n - 1) * stride for n, stride in zip(descriptor.shape, descriptor.strides)) * meta["elem_size"] + meta["elem_size"] - 1


def _without_a_wrong_bit(found: bytes) -> bytes:
    """Drivers set one in the maps of small tensors with gaps on Blackwell, where TMA then may reach for memory that is not there: a known
    issue of NVIDIA's release notes (595.71.05), which say to clear it, as CUTLASS and Triton from 3.7 on do for all small ones."""
    words = list(_WORDS.unpack(found))
    words[_WORD] &= ~_BIT
    return _WORDS.pack(*words)


def _encoded(descriptor: Any, meta: dict) -> bytes:
    rank = len(descriptor.shape)
    memory = ctypes.create_string_buffer(_SIZE + _ALIGNMENT)
    start = -ctypes.addressof(memory) % _ALIGNMENT
    # the driver counts dims from the innermost, and leaves out its stride, which is 1
    shape = (ctypes.c_uint64 * rank)(*descriptor.shape[::-1])
    strides = (ctypes.c_uint64 * rank)(*(s * meta["elem_size"] for s in descriptor.strides[-2::-1]))
    box = (ctypes.c_uint32 * rank)(*meta["block_size"][::-1])
    ones = (ctypes.c_uint32 * rank)(*[1] * rank)
    kind = _HOST_TYPE.get(meta["elem_type"], meta["elem_type"])
    if descriptor.round_f32_to_tf32 and kind == _FLOAT32:
        kind = _TFLOAT32
    error = _function()(
        ctypes.addressof(memory) + start, kind, rank, descriptor.ptr, shape, strides, box, ones, 0, meta["swizzle"], _L2_128B,
        descriptor.padding == "nan")
    if error:
        raise failure(f"cuTensorMapEncodeTiled of {descriptor!r} with {meta}", cu.CUresult(error))
    return memory.raw[start:start + _SIZE]


def _function() -> Any:
    global _encode
    if _encode is None:
        address = int(call("cuGetProcAddress", b"cuTensorMapEncodeTiled", 12000, 0)[0])
        if not address:
            raise DriverError("TMA needs an NVIDIA driver for CUDA 12 or newer")
        number, pointer = ctypes.c_uint32, ctypes.c_void_p
        _encode = ctypes.CFUNCTYPE(ctypes.c_int, pointer, number, number, *[pointer] * 5, *[number] * 4)(address)
    return _encode
