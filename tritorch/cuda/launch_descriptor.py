"""What a launch tells TMA of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritorch.errors import check


class TensorDescriptor:
    """A tile of a tensor for TMA: `block` is loaded or stored at once, out of bounds reads give zero.

    `shape` and `strides` (elements) default to the tensor's; the last stride is 1, the others multiples of 16 bytes.
    `round_f32_to_tf32`: float32 numbers are rounded to TF32 when they are loaded, which matrix units do not do. `padding`: "zero", or
    "nan" for out of bounds reads of floating types. `layout`: how a tile lies in shared memory, where a Gluon kernel says so.
    Raises ValueError where TMA cannot do it. In the kernel: `desc.load([i, j])`.
    """

    __slots__ = ("tensor", "ptr", "dtype", "shape", "strides", "block", "padding", "layout", "round_f32_to_tf32")

    def __init__(self, tensor, block: Sequence[int], shape: Sequence[int] | None = None, strides: Sequence[int] | None = None,
                 round_f32_to_tf32: bool = False, padding: str = "zero", layout: Any = None):
        self.tensor, self.ptr, self.dtype, self.block = tensor, tensor.data_ptr(), tensor.dtype, tuple(block)
        self.padding, self.layout = padding, layout
        self.shape = tuple(tensor.shape if shape is None else shape)
        self.strides = tuple(tensor.strides if strides is None else strides)
        self.round_f32_to_tf32 = round_f32_to_tf32
        size = self.dtype.itemsize
        check(len(self.shape) == len(self.strides) == len(self.block) and 1 <= len(self.shape) <= 5, "TensorDescriptor",
              "1 to 5 dims, the same in shape, strides and block", self.shape, self.strides, self.block, error=ValueError)
        check(self.strides[-1] == 1 and all(s * size % 16 == 0 for s in self.strides[:-1]) and self.ptr % 16 == 0, "TensorDescriptor",
              "a 16-byte aligned tensor whose last stride is 1 and whose other strides are multiples of 16 bytes", self.strides,
              self.dtype, error=ValueError)
        check(min(self.shape) > 0, "TensorDescriptor", "no empty dim", self.shape, error=ValueError)

    def moved(self, pointer: int) -> TensorDescriptor:
        """The same description of other memory."""
        other = object.__new__(TensorDescriptor)
        other.tensor, other.ptr, other.dtype, other.block = None, pointer, self.dtype, self.block
        other.padding, other.layout = self.padding, self.layout
        other.shape, other.strides, other.round_f32_to_tf32 = self.shape, self.strides, self.round_f32_to_tf32
        return other

    def __repr__(self):
        return f"TensorDescriptor({self.dtype}, shape={self.shape}, strides={self.strides}, block={self.block})"


def shared_layout(a) -> str:
    """How a tile lies in shared memory; Gluon's kernels are told, Triton's find out by themselves."""
    if a.layout is not None:
        return f",{a.layout!r}"
    size = a.dtype.itemsize
    swizzle = next((n for n in (128, 64, 32) if a.block[-1] * size % n == 0), 0)
    return (f",NVMMASharedLayout(swizzle_byte_width={swizzle}, element_bitwidth={8 * size}, rank={len(a.block)}, transposed=False, "
            "fp4_padded=False, cga_layout=[])")
