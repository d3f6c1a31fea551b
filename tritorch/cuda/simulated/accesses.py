"""Loads, stores, atomics and tensor descriptors of a running kernel. Every lane is held against the live blocks."""
from __future__ import annotations

import functools
import math

import numpy as np

from .conversions import (
    BF16,
    CARRIER,
    FP32,
    INT1,
    INT32,
    KIND,
    STORAGE,
    constant,
    converted,
    from_storage,
    round_bf16,
    round_tf32,
    to_storage,
)
from .memory import MemoryFault, distance
from .values import Pointer, Value, itemsize, to_value


class Program:
    """What the running program is: set by the interpreter, read by the language."""

    memory = None
    index = grid = (0, 0, 0)


class Origin:
    """The kernel argument a pointer came from; its block is what the argument may reach."""

    __slots__ = ("name", "address", "block")

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.block = Program.memory.find(address)


POISON = {name: np.full(1, 0xFF, "u1").repeat(dtype.itemsize).view(dtype)[0] for name, dtype in STORAGE.items()}
POISON["int1"] = np.uint8(1)


def fault(pointer, address, verb, block=None):
    """Raise the sentence that says what is wrong with `address`."""
    through = f"{verb} through {pointer.origin.name}" if pointer.origin else verb
    size = itemsize(pointer.dtype)
    if address % size:
        raise MemoryFault(f"{through} is misaligned: expected a multiple of {size}, got {address:#x}")
    if block is None:
        raise MemoryFault(f"{through} reaches {Program.memory.why_dead(address)}")
    other = Program.memory.find(address)
    where = f", inside the {other}" if other is not None else ""
    raise MemoryFault(f"{through} is out of bounds: {distance(block, address)}{where}")


def window(pointer, verb, address):
    """The block a pointer may reach as (numbers of its whole allocation, index of lane offset 0, first and past-last lane offset)."""
    block = pointer.origin.block if pointer.origin is not None else Program.memory.find(address)
    if block is None or not block.live:
        fault(pointer, address, verb)
    dtype = STORAGE[pointer.dtype.element_ty.name]
    start, rest = divmod(pointer.address - block.arena.start, dtype.itemsize)
    if rest:
        fault(pointer, pointer.address, verb)
    low, high = (pointer.address - block.start) // dtype.itemsize, (block.end - pointer.address) // dtype.itemsize
    return block, block.arena.view(dtype), start, -low, high


def lanes(pointer, mask, verb, regular=True):
    """Where the active lanes of a block of pointers are: (numbers, index, place).

    `numbers[index]` are the numbers behind the active lanes and `place` is their part of the block: None for all of it, else a
    mask or slices. No lane is active: numbers is None. Large blocks of regular pointers become a strided view with the index
    `...` (3 to 10 times faster than indices), unless `regular` is False.
    """
    offsets, place = pointer.data, None
    if mask is not None:
        place = active_part(mask)
        if place is None:
            return None, None, mask
        if place is Ellipsis:
            place = None
        else:
            offsets = offsets[place]
    steps = steps_of(offsets) if regular and offsets.size >= LARGE else None
    if steps is None:
        least, most = int(offsets.min()), int(offsets.max())
    else:
        first = int(offsets[(0,) * offsets.ndim])
        reach = [step * (n - 1) for step, n in zip(steps, offsets.shape)]
        least, most = first + sum(r for r in reach if r < 0), first + sum(r for r in reach if r > 0)
    size = itemsize(pointer.dtype)
    block, numbers, start, low, high = window(pointer, verb, pointer.address + least * size)
    if least < low or most >= high:
        if pointer.origin is None and verb == "load":
            return *scattered(pointer, offsets), place
        fault(pointer, pointer.address + size * (most if most >= high else least), verb, block)
    if steps is None:
        return numbers, np.add(offsets, start, dtype=np.intp), place
    return np.ndarray(offsets.shape, numbers.dtype, numbers, (start + first) * size, [s * size for s in steps]), ..., place


LARGE = 2048


def active_part(mask):
    """The part of a block where a mask holds: ... for all of it, None for nothing, slices where it is a box, else the mask."""
    count = np.count_nonzero(mask)
    if count == mask.size:
        return ...
    if count == 0:
        return None
    if mask.size < LARGE:
        return mask
    box = []
    for axis in range(mask.ndim):
        line = mask.any(tuple(a for a in range(mask.ndim) if a != axis)) if mask.ndim > 1 else mask
        first, n = int(line.argmax()), np.count_nonzero(line)
        if not line[first:first + n].all():
            return mask
        box.append(slice(first, first + n))
    return tuple(box) if math.prod(s.stop - s.start for s in box) == count else mask


def steps_of(offsets):
    """The step along every axis if offsets are regular, else None."""
    steps, expected = [], offsets[(0,) * offsets.ndim]
    for axis, n in enumerate(offsets.shape):
        line = offsets[(0,) * axis + (slice(None),) + (0,) * (offsets.ndim - axis - 1)]
        gaps = line[1:] - line[:-1]
        if n > 1 and (gaps != gaps[0]).any():
            return None
        steps.append(int(gaps[0]) if n > 1 else 0)
        if offsets.ndim > 1:
            expected = expected + (line - line[0]).reshape((-1,) + (1,) * (offsets.ndim - axis - 1))
    return steps if offsets.ndim == 1 or np.array_equal(offsets, expected) else None


def scattered(pointer, offsets):
    """The numbers behind computed pointers that reach several blocks, gathered one block at a time."""
    size = itemsize(pointer.dtype)
    out = np.empty(offsets.shape, STORAGE[pointer.dtype.element_ty.name])
    todo = np.ones(offsets.shape, bool)
    while todo.any():
        address = pointer.address + int(offsets[todo][0]) * size
        _, numbers, start, low, high = window(pointer, "load", address)
        here = todo & (offsets >= low) & (offsets < high)
        out[here] = numbers[start + offsets[here]]
        todo &= ~here
    return out, ...


def shaped(pointer, mask, *values):
    """Pointer, mask and values in the pointer's shape; a wider mask widens the pointer, as in Triton."""
    shape = pointer.data.shape
    if mask is not None:
        mask = mask.data if isinstance(mask, Value) else np.bool_(mask)
        if mask.dtype != np.bool_:
            raise ValueError("Mask must have boolean scalar type")
        if mask.shape != shape:
            if not shape and mask.shape:
                raise ValueError("Mask argument cannot be block type if pointer argument is not a block")
            mask = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, shape))
            if mask.shape != shape:
                shape = mask.shape
                pointer = pointer.like(np.broadcast_to(pointer.data, shape))
    return pointer, mask, *(v if v is None or v.shape == shape else np.broadcast_to(v, shape) for v in values)


def in_type(value, dtype):
    """A number or value as numbers of `dtype`."""
    if isinstance(value, Pointer):
        value = value.cast(INT32 if dtype.primitive_bitwidth < 64 else dtype)
    return converted(value.data, value.dtype, dtype) if isinstance(value, Value) else constant(value, dtype)


def load(pointer, mask=None, other=None, boundary_check=(), padding_option="", cache_modifier="", eviction_policy="", volatile=False):
    if isinstance(pointer, Descriptor):
        return pointer.load_block(mask, other, boundary_check, padding_option)
    element = pointer_element(pointer)
    if not pointer.data.shape and mask is None:
        _, numbers, start, low, high = window_of_scalar(pointer, "load")
        return Value(from_storage(numbers[start], element), element)
    pointer, mask = shaped(pointer, mask)
    if not pointer.data.shape:
        if mask:
            return load(pointer)
        return Value(fill_value(element, other), element)
    numbers, index, place = lanes(pointer, mask, "load")
    if place is None:
        return Value(from_storage(taken(numbers, index), element), element)
    out = np.empty(pointer.data.shape, CARRIER[element.name])
    out[...] = fill_value(element, other)
    if numbers is not None:
        out[place] = from_storage(taken(numbers, index), element)
    return Value(out, element)


def taken(numbers, index):
    return numbers.copy() if index is ... else numbers[index]


def fill_value(element, other):
    """What masked lanes read: `other`, or poison, because Triton leaves them undefined."""
    return from_storage(POISON[element.name], element) if other is None else in_type(other, element)


def pointer_element(pointer):
    if not isinstance(pointer, Pointer):
        raise ValueError(f"Unsupported ptr type {getattr(pointer, 'dtype', type(pointer))} in `tl.load` or `tl.store`")
    return pointer.dtype.element_ty


def window_of_scalar(pointer, verb):
    address = pointer.address
    found = window(pointer, verb, address)
    if found[3] > 0 or found[4] < 1:
        fault(pointer, address, verb, found[0])
    return found


def store(pointer, value, mask=None, boundary_check=(), cache_modifier="", eviction_policy=""):
    if isinstance(pointer, Descriptor):
        return pointer.store_block(value, mask, boundary_check)
    element = pointer_element(pointer)
    data = in_type(value, element)
    shape = pointer.data.shape
    if not shape:
        if data.shape:
            raise ValueError("Value argument cannot be block type if pointer argument is not a block")
        pointer, mask = shaped(pointer, mask)
        if mask is None or mask:
            _, numbers, start, _, _ = window_of_scalar(pointer, "store")
            numbers[start] = to_storage(data, element)
        return
    pointer, mask, data = shaped(pointer, mask, data)
    if pointer.data.shape != shape:
        raise ValueError(f"Expected pointer argument to have shape {pointer.data.shape} but got {shape}")
    numbers, index, place = lanes(pointer, mask, "store")
    if numbers is not None:
        numbers[index] = to_storage(data if place is None else data[place], element)


UPDATES = {
    "add": np.add, "max": np.fmax, "min": np.fmin, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


def atomic(name):
    """tl.atomic_<name>: lanes that meet at one address take turns; the result is what each of them found."""
    update = UPDATES[name]

    def function(pointer, val, mask=None, sem=None, scope=None):
        element = pointer_element(pointer)
        if element.primitive_bitwidth < 32 and not (name == "add" and element.name in ("fp16", "bf16")):
            raise ValueError(f"atomic_{name} does not support {element}")
        data = in_type(val, element)
        if not pointer.data.shape:
            pointer = pointer.like(np.zeros(1, np.int64))
            mask = None if mask is None else to_value(bool(mask))
            return Value(function(pointer, Value(data, element), mask).data[0], element)
        pointer, mask, data = shaped(pointer, mask, data)
        numbers, index, place = lanes(pointer, mask, "atomic", regular=False)
        out = np.zeros(pointer.data.shape, CARRIER[element.name])
        if numbers is not None:
            active = ... if place is None else place
            out[active] = update_lanes(update, numbers, index, data[active], element)
        return Value(out, element)

    return function


def update_lanes(update, numbers, index, data, element):
    flat, values = index.ravel(), data.ravel()
    if np.unique(flat).size == flat.size:
        old = from_storage(numbers[flat], element)
        numbers[flat] = to_storage(after(update, old, values, element), element)
        return old.reshape(index.shape)
    old = np.empty(flat.size, CARRIER[element.name])
    for i, place in enumerate(flat):
        old[i] = from_storage(numbers[place], element)
        numbers[place] = to_storage(after(update, old[i], values[i], element), element)
    return old.reshape(index.shape)


def after(update, old, new, element):
    return round_bf16(update(old, new)) if element is BF16 else update(old, new)


def atomic_cas(pointer, cmp, val, sem=None, scope=None):
    element = pointer_element(pointer)
    cmp, val = in_type(cmp, element), in_type(val, element)
    single = not pointer.data.shape
    pointer = pointer.like(np.zeros(1, np.int64)) if single else pointer
    numbers, index, _ = lanes(pointer, None, "atomic", regular=False)
    flat, cmp, val = index.ravel(), np.broadcast_to(cmp, index.shape).ravel(), np.broadcast_to(val, index.shape).ravel()
    old = np.empty(flat.size, CARRIER[element.name])
    for i, place in enumerate(flat):
        old[i] = from_storage(numbers[place], element)
        if old[i] == cmp[i]:
            numbers[place] = to_storage(val[i], element)
    return Value(old[0] if single else old.reshape(index.shape), element)


class Descriptor:
    """A tensor in memory that is read and written by blocks: out of its bounds reads give zero and writes do nothing."""

    def __init__(self, base, shape, strides, block_shape, padding_option="zero", round_f32_to_tf32=False):
        self.base, self.dtype = base, base.dtype.element_ty
        self.sizes, self.steps = [int(as_int(s)) for s in shape], [int(as_int(s)) for s in strides]
        self.shape, self.strides = tuple(map(to_value, shape)), tuple(map(to_value, strides))
        self.block_shape, self.padding = [int(b) for b in block_shape], padding_option
        self.block_type, self.rounds = None, round_f32_to_tf32 and self.dtype is FP32
        size = itemsize(base.dtype)
        if self.steps[-1] != 1:
            raise ValueError(f"Tensor descriptor last dim must be 1 but got {self.steps[-1]}")
        if self.block_shape[-1] * size < 16:
            raise ValueError(f"expected a descriptor's block of at least 16 bytes in the last dim, got {self.block_shape[-1] * size}")
        if base.address % 16 or any(step * size % 16 for step in self.steps[:-1]):
            raise ValueError(f"expected a descriptor's base and strides to be multiples of 16 bytes, got {base.address:#x}, {self.steps}")

    def box(self, offsets, verb, unchecked=()):
        """The part of the tensor under a block, as a view of memory, and where it lies in the block. Dims that are not checked go on
        beyond the tensor's bounds."""
        offsets = [int(as_int(o)) for o in offsets]
        if len(offsets) != len(self.block_shape):
            raise ValueError(f"expected {len(self.block_shape)} offsets, but got {len(offsets)}")
        first = [min(max(o, 0), n) for o, n in zip(offsets, self.sizes)]
        last = [min(max(o + b, f), n) for o, b, f, n in zip(offsets, self.block_shape, first, self.sizes)]
        for d in unchecked:
            first[d], last[d] = offsets[d], offsets[d] + self.block_shape[d]
        place = tuple(slice(f - o, e - o) for f, e, o in zip(first, last, offsets))
        if any(f >= e for f, e in zip(first, last)):
            return None, place
        lowest = sum(f * s for f, s in zip(first, self.steps))
        highest = sum((e - 1) * s for e, s in zip(last, self.steps))
        size = itemsize(self.base.dtype)
        block, numbers, start, low, high = window(self.base, verb, self.base.address + lowest * size)
        if lowest < low or highest >= high:
            fault(self.base, self.base.address + size * (highest if highest >= high else lowest), verb, block)
        counts = [e - f for f, e in zip(first, last)]
        return np.ndarray(counts, numbers.dtype, numbers, (start + lowest) * size, [s * size for s in self.steps]), place

    def load(self, offsets):
        part, place = self.box(offsets, "load")
        out = np.zeros(self.block_shape, CARRIER[self.dtype.name])
        if self.padding == "nan":
            out.fill(np.nan)
        if part is not None:
            out[place] = from_storage(np.ascontiguousarray(part), self.dtype)
        return Value(round_tf32(out) if self.rounds else out, self.dtype)

    def store(self, offsets, value):
        if list(value.shape) != self.block_shape:
            raise ValueError(f"expected a block of shape {self.block_shape}, got {list(value.shape)}")
        part, place = self.box(offsets, "store")
        if part is not None:
            part[...] = to_storage(in_type(value, self.dtype)[place], self.dtype)

    def gather(self, x_offsets, y_offset):
        rows = [self.load([Value(x, INT32), y_offset]).data for x in x_offsets.data]
        return Value(np.concatenate(rows), self.dtype)

    def scatter(self, value, x_offsets, y_offset):
        for row, x in zip(value.data, x_offsets.data):
            self.store([Value(x, INT32), y_offset], Value(row[None], value.dtype))

    def _update(self, name, offsets, value):
        part, place = self.box(offsets, "atomic")
        if part is not None:
            old, new = from_storage(np.ascontiguousarray(part), self.dtype), in_type(value, self.dtype)[place]
            part[...] = to_storage(after(UPDATES[name], old, new, self.dtype), self.dtype)


for _name in ("add", "min", "max", "and", "or", "xor"):
    setattr(Descriptor, f"atomic_{_name}", functools.partialmethod(Descriptor._update, _name))


def as_int(x):
    if isinstance(x, Value) and (x.data.size != 1 or KIND[x.dtype.name] == 2 or x.dtype is INT1):
        raise ValueError(f"expected an integer scalar, got {x}")
    return x.data if isinstance(x, Value) else x
