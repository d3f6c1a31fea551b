"""What stands behind an opcode. `read(machine, dtype)` gives a value for every lane: an array, or one number that stands for all."""
from dataclasses import dataclass, field

import numpy as np

DTYPES = {"pred": np.dtype(bool), "f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8"), "bf16": np.dtype("u2"),
          "tf32": np.dtype("u4"), "e4m3x2": np.dtype("u2"), "e5m2x2": np.dtype("u2"),
          **{f"{kind}x2": np.dtype("u4") for kind in ("f16", "bf16", "u16", "s16")},
          **{f"{letter}{bits}": np.dtype(f"{kind}{bits // 8}")
             for letter, kind in (("b", "u"), ("u", "u"), ("s", "i")) for bits in (8, 16, 32, 64)}}
"""How numpy sees the values of a PTX type; what it lacks (bfloat16, pairs) it sees as bits."""


@dataclass(frozen=True, slots=True)
class Register:
    """One value of each lane; the machine keeps it at `index`."""

    name: str
    index: int
    kind: str

    def read(self, machine, dtype):
        array = machine.registers[self.index]
        if array.dtype is dtype:
            return array
        if array.itemsize != dtype.itemsize:                    # the low bits
            array = array.astype(f"u{dtype.itemsize}")
        return array.view(dtype)


@dataclass(frozen=True, slots=True)
class Block:
    """What a function that is called takes or gives in several words: a register of 32 bits for each."""

    words: tuple


@dataclass(frozen=True, slots=True)
class Not:
    """!%p"""

    register: Register

    def read(self, machine, dtype):
        return ~self.register.read(machine, dtype)


@dataclass(frozen=True, slots=True)
class Number:
    """An integer, the bits of a float behind 0f and 0d, or a decimal float."""

    value: int | float
    bits: int = 0
    cache: dict = field(default_factory=dict, compare=False)

    @classmethod
    def parse(cls, text):
        if text[:2] in ("0f", "0F", "0d", "0D"):
            return cls(int(text[2:], 16), 4 * len(text[2:]))
        return cls(float(text) if "." in text else int(text.rstrip("U"), 0))

    def read(self, machine, dtype):
        found = self.cache.get(dtype)
        if found is None:
            found = self.cache[dtype] = self._as(dtype)
        return found

    def _as(self, dtype):
        if isinstance(self.value, float):
            return np.array(self.value, dtype)
        if self.bits and self.bits != 8 * dtype.itemsize:
            raise ValueError(f"a constant of {self.bits} bits is read as {dtype}")
        low = self.value & (1 << 8 * dtype.itemsize) - 1
        return np.array(bool(low)) if dtype.kind == "b" else np.array(low, f"u{dtype.itemsize}").view(dtype)


@dataclass(frozen=True, slots=True)
class Special:
    """%tid.x and its like: what the hardware knows."""

    name: str

    def read(self, machine, dtype):
        return machine.special(self.name).astype(dtype)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of something declared: a parameter, global_smem, a constant array, the depot of local memory."""

    name: str

    def read(self, machine, dtype):
        return np.array(machine.program.symbols[self.name], dtype)


@dataclass(slots=True)
class Label:
    """A place in the program, found after parsing; or the table of such places that brx.idx uses."""

    name: str
    scope: tuple
    target: int | list = -1


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset]; `rest` is what follows a comma inside, such as the coordinates of a tile."""

    base: Register | Symbol | Number
    offset: int = 0
    rest: tuple = ()

    def read(self, machine, dtype):
        return self.base.read(machine, dtype) + np.array(self.offset).astype(dtype)


@dataclass(frozen=True, slots=True)
class Vector:
    """{a, b}"""

    items: tuple


@dataclass(frozen=True, slots=True)
class Pair:
    """%p|%q, two results."""

    first: object
    second: object


@dataclass(frozen=True, slots=True)
class Sink:
    """_, a result that nobody wants."""
