"""Block pointers of a running kernel: `tl.make_block_ptr` and `tl.advance`."""
from __future__ import annotations

import copy

import numpy as np

from .accesses import POISON, Descriptor, as_int, in_type
from .conversions import CARRIER, from_storage, to_storage
from .values import Value


class BlockPointer(Descriptor):
    """A block of a tensor in memory, by its offsets: `tl.load` and `tl.store` hold the dims in `boundary_check` against the bounds."""

    def __init__(self, base, shape, strides, offsets, block_shape, order):
        ranks = {len(part) for part in (shape, strides, offsets, block_shape, order)}
        if len(ranks) != 1:
            raise ValueError("Expected shape/strides/offsets/block_shape to have the same length")
        if sorted(int(o) for o in order) != list(range(len(order))):
            raise ValueError("Expected a permutation of (0, 1, ..., len(order)-1) in order")
        self.base, self.dtype, self.element = base, base.dtype, base.dtype.element_ty
        self.sizes, self.steps, self.offsets = [[int(as_int(n)) for n in part] for part in (shape, strides, offsets)]
        self.block_shape = [int(b) for b in block_shape]

    def advance(self, offsets):
        moved = copy.copy(self)
        moved.offsets = [at + int(as_int(by)) for at, by in zip(self.offsets, offsets, strict=True)]
        return moved

    def part(self, verb, boundary_check):
        checked = [int(d) % len(self.sizes) for d in boundary_check]
        return self.box(self.offsets, verb, [d for d in range(len(self.sizes)) if d not in checked])

    def load_block(self, mask, other, boundary_check, padding_option):
        """Outside of the bounds is the padding, or poison: without one Triton leaves it undefined."""
        if mask is not None or other is not None:
            raise ValueError("`mask` and `other` arguments cannot be specified for loading block pointers")
        name = self.element.name
        out = np.zeros(self.block_shape, CARRIER[name])
        if padding_option != "zero":
            out[...] = np.nan if padding_option == "nan" else from_storage(POISON[name], self.element)
        part, place = self.part("load", boundary_check)
        if part is not None:
            out[place] = from_storage(np.ascontiguousarray(part), self.element)
        return Value(out, self.element)

    def store_block(self, value, mask, boundary_check):
        if mask is not None:
            raise ValueError("`mask` and `other` arguments cannot be specified for loading block pointers")
        data = np.broadcast_to(in_type(value, self.element), self.block_shape)
        part, place = self.part("store", boundary_check)
        if part is not None:
            part[...] = to_storage(data[place], self.element)


def advance(base, offsets):
    return base.advance(offsets)
