"""CUtensorMap: what cuTensorMapEncodeTiled is told, and the driver's rules about it, in 128 bytes of our own layout."""
import ctypes
import struct
from dataclasses import dataclass

SUCCESS, INVALID_VALUE = 0, 1
SIZES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)     # bytes of CU_TENSOR_MAP_DATA_TYPE_*: UINT8, UINT16, …, FLOAT16 (6), …, BFLOAT16 (9), …
SPANS = {0: None, 1: 32, 2: 64, 3: 128}             # CU_TENSOR_MAP_SWIZZLE_*
FLOATS = {6: 0x7FFF, 7: 0x7FFFFFFF, 8: 0x7FF8 << 48, 9: 0x7FFF, **dict.fromkeys((10, 11, 12), 0x7FFFFFFF)}       # NaN of the floating ones
TFLOAT32 = 11                                       # float32 in memory, TF32 when loaded
_LAYOUT = struct.Struct("<4sBBBBQ5Q4Q5H")
_MAGIC = b"tmap"


@dataclass(frozen=True)
class TensorMap:
    """A tensor of `rank` dimensions, the innermost first; `strides` in bytes, of all but the innermost."""

    rank: int
    kind: int
    swizzle: int
    address: int
    shape: tuple
    strides: tuple
    box: tuple
    fill: int = 0                                   # 1: what lies outside is not zero but NaN

    @property
    def itemsize(self):
        return SIZES[self.kind]

    @property
    def box_bytes(self):
        size = self.itemsize
        for n in self.box:
            size *= n
        return size

    def problem(self):
        """What the driver refuses, as its manual says; None if nothing."""
        inner, span = self.box[0] * self.itemsize, SPANS[self.swizzle]
        if self.address % 16:
            return "the address is a multiple of 16"
        if self.fill not in (0, 1) or self.fill and self.kind not in FLOATS:
            return "what is filled with NaN has a floating dtype"
        if any(s % 16 or not 0 <= s < 1 << 40 for s in self.strides):
            return "strides are multiples of 16 below 2^40"
        if any(not 0 < n <= 1 << 32 for n in self.shape):
            return "sizes are 1 to 2^32"
        if any(not 0 < n <= 256 for n in self.box):
            return "a box has 1 to 256 elements along each dimension"
        if inner % 16:
            return "rows of a box are multiples of 16 bytes"
        if span and inner > span:
            return "rows of a box fit into the span of the swizzle"
        return None

    def pack(self):
        def padded(values, count):
            return [*values, *[0] * (count - len(values))]

        return _LAYOUT.pack(_MAGIC, self.rank, self.kind, self.swizzle, self.fill, self.address, *padded(self.shape, 5),
                            *padded(self.strides, 4), *padded(self.box, 5)).ljust(128, b"\0")

    @classmethod
    def unpack(cls, data):
        """The map in 128 bytes; None where they are something else."""
        magic, rank, kind, swizzle, fill, address, *rest = _LAYOUT.unpack(bytes(data[:_LAYOUT.size]))
        if magic != _MAGIC:
            return None
        return cls(rank, kind, swizzle, address, tuple(rest[:rank]), tuple(rest[5:4 + rank]), tuple(rest[9:9 + rank]), fill)


def encode(out, kind, rank, address, shape, strides, box, ones, interleave, swizzle, promotion, fill):
    """cuTensorMapEncodeTiled; all pointers are integers. `promotion` does not change what arrives."""
    def array(kind, at, count):
        return tuple(ctypes.cast(at, ctypes.POINTER(kind))[:count])

    if out % 64 or not 3 <= rank + 2 * (not interleave) or not 1 <= rank <= 5 or interleave or not 0 <= kind < len(SIZES):
        return INVALID_VALUE
    if any(step != 1 for step in array(ctypes.c_uint32, ones, rank)) or swizzle not in SPANS:
        return INVALID_VALUE
    found = TensorMap(rank, kind, swizzle, address or 0, array(ctypes.c_uint64, shape, rank), array(ctypes.c_uint64, strides, rank - 1),
                      array(ctypes.c_uint32, box, rank), fill)
    if found.problem():
        return INVALID_VALUE
    ctypes.memmove(out, found.pack(), 128)
    return SUCCESS
