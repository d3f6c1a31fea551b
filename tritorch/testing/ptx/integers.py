"""Integers and bits. Everything wraps around, as numpy's arithmetic does."""
import numpy as np

from tritorch.testing.ptx.operands import DTYPES, Vector
from tritorch.testing.ptx.registry import instruction

U8, U32, U64 = (DTYPES[f"u{bits}"] for bits in (8, 32, 64))
KINDS = [f"{letter}{bits}" for letter in "us" for bits in (16, 32, 64)]


def typed(name):
    return [f"{name}.{kind}" for kind in KINDS]


def _values(machine, ins, operands=None):
    dtype = DTYPES[ins.types[-1]]
    return [operand.read(machine, dtype) for operand in operands or ins.operands[1:]]


def simple(*opcodes):
    """Register a function of the operands' values."""
    def register(function):
        @instruction(*opcodes)
        def execute(machine, ins):
            machine.write(ins.operands[0], function(*_values(machine, ins)))

        return function

    return register


simple(*typed("add"))(np.add)
simple(*typed("sub"))(np.subtract)
simple("mul.lo")(np.multiply)
simple("mad.lo")(lambda a, b, c: a * b + c)
simple(*typed("min"))(np.minimum)
simple(*typed("max"))(np.maximum)
simple("min.relu.s32")(lambda a, b: np.maximum(np.minimum(a, b), 0))
simple("max.relu.s32")(lambda a, b: np.maximum(np.maximum(a, b), 0))
simple(*typed("neg"))(np.negative)
simple(*typed("abs"))(np.abs)
simple("and")(np.bitwise_and)
simple("or")(np.bitwise_or)
simple("xor")(np.bitwise_xor)
simple("not")(np.invert)
simple("sad")(lambda a, b, c: np.where(a > b, a - b, b - a) + c)


@instruction(*(f"{name}.{kind}x2" for name in ("add", "min", "max") for kind in ("s16", "u16")))
def pairs(machine, ins):
    """Two numbers of 16 bits in one register, each by itself."""
    a, b = (machine.spread(machine.read(operand, U32)).view(DTYPES[ins.types[-1][:3]]) for operand in ins.operands[1:])
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[ins.name]
    machine.write(ins.operands[0], function(a, b).view(U32))


@simple(*typed("div"))
def divide(a, b):
    """Truncated; by zero all bits are set, which PTX leaves open."""
    return np.where(b == 0, np.array(-1).astype(a.dtype), (a - np.fmod(a, b)) // b)


@simple(*typed("rem"))
def remainder(a, b):
    return np.where(b == 0, a, np.fmod(a, b))


# ------------------------------------------------------------------ products of twice the width
def high_u64(a, b):
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    (ah, al), (bh, bl) = ((x >> half, x & low) for x in (a, b))
    middle = (al * bl >> half) + (ah * bl & low) + (al * bh & low)
    return ah * bh + (ah * bl >> half) + (al * bh >> half) + (middle >> half)


def high(a, b):
    """The upper half of a product."""
    if a.itemsize < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.itemsize}")
        return (a.astype(wide) * b.astype(wide) >> wide.type(8 * a.itemsize)).astype(a.dtype)
    found = high_u64(a.view(U64), b.view(U64))
    if a.dtype.kind == "i":                                     # a negative number stands for itself plus 2**64
        found = found - np.where(a < 0, b.view(U64), np.uint64(0)) - np.where(b < 0, a.view(U64), np.uint64(0))
    return found.view(a.dtype)


simple("mul.hi")(high)
simple("mad.hi")(lambda a, b, c: high(a, b) + c)


@instruction("mul.wide", "mad.wide")
def wide(machine, ins):
    dtype = DTYPES[ins.types[0]]
    twice = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
    a, b = (machine.read(operand, dtype).astype(twice) for operand in ins.operands[1:3])
    machine.write(ins.operands[0], a * b + machine.read(ins.operands[3], twice) if ins.name == "mad" else a * b)


@instruction("add.cc", "addc", "mad.lo.cc", "madc.lo", "madc.hi")
def with_carry(machine, ins):
    """32-bit sums whose carry goes to the next one: libdevice multiplies by 2/pi with them."""
    numbers = [machine.spread(machine.read(operand, U32)).astype(U64) for operand in ins.operands[1:]]
    total = numbers[0] + numbers[1] if ins.name.startswith("add") else numbers[0] * numbers[1]
    if ins.name.startswith("mad"):
        total = total >> np.uint64(32) if "hi" in ins.modifiers else total & np.uint64(0xFFFFFFFF)
        total = total + numbers[2]
    if ins.name.endswith("c"):
        total = total + machine.state["carry"]
    if "cc" in ins.modifiers:
        machine.state["carry"] = np.where(machine.mask, total >> np.uint64(32), machine.state.get("carry", np.uint64(0)))
    machine.write(ins.operands[0], total.astype(U32))


@instruction("sub.cc", "subc")
def with_borrow(machine, ins):
    """32-bit differences that hand on what they borrow."""
    a, b = (machine.spread(machine.read(operand, U32)).astype(U64) for operand in ins.operands[1:])
    b = b + machine.state["carry"] if ins.name == "subc" else b
    if "cc" in ins.modifiers:
        machine.state["carry"] = np.where(machine.mask, (a < b).astype(U64), machine.state.get("carry", np.uint64(0)))
    machine.write(ins.operands[0], (a - b).astype(U32))


# ------------------------------------------------------------------ shifts and fields
def shift_left(a, count):
    bits = 8 * a.itemsize
    if not count.ndim and count < bits:                         # nearly always
        return a << a.dtype.type(count)
    return np.where(count < bits, a << np.minimum(count, bits - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a, count):
    bits = 8 * a.itemsize
    if not count.ndim and count < bits:
        return a >> a.dtype.type(count)
    shifted = a >> np.minimum(count, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(count < bits, shifted, a.dtype.type(0))


@instruction("shl", "shr")
def shift(machine, ins):
    value, count = machine.read(ins.operands[1], DTYPES[ins.types[-1]]), machine.read(ins.operands[2], U32)
    machine.write(ins.operands[0], (shift_left if ins.name == "shl" else shift_right)(value, count))


@instruction("shf")
def funnel(machine, ins):
    """Both words as one of 64 bits, shifted; the upper word of a shift to the left, the lower one to the right."""
    low, top, count = (machine.read(operand, U32) for operand in ins.operands[1:])
    count = np.minimum(count, 32) if "clamp" in ins.modifiers else count & np.uint32(31)
    both = top.astype(U64) << np.uint64(32) | low
    left = "l" in ins.modifiers
    machine.write(ins.operands[0], (both << count.astype(U64) >> np.uint64(32) if left else both >> count.astype(U64)).astype(U32))


def ones(count, dtype):
    """So many low bits set."""
    return shift_left(np.ones_like(count, dtype), count) - dtype.type(1)


@instruction("bfe")
def extract_field(machine, ins):
    """`length` bits from `start`; where they end before the field does, and above it, a signed field repeats its highest bit."""
    dtype = DTYPES[ins.types[-1]]
    bits, unsigned = 8 * dtype.itemsize, np.dtype(f"u{dtype.itemsize}")
    value = machine.read(ins.operands[1], unsigned)
    start, length = (machine.read(operand, U32) & np.uint32(255) for operand in ins.operands[2:])
    inside = ones(np.minimum(length, np.maximum(bits - start.astype(np.int64), 0)), unsigned)
    found = shift_right(value, start) & inside
    if dtype.kind == "i":
        last = np.minimum(start.astype(np.int64) + length - 1, bits - 1).clip(0)
        negative = (value >> last.astype(unsigned) & unsigned.type(1)).astype(bool) & (length > 0)
        found = np.where(negative, found | ~inside, found)
    machine.write(ins.operands[0], found)


@instruction("bfi")
def insert_field(machine, ins):
    dtype = DTYPES[ins.types[-1]]
    field, base = (machine.read(operand, dtype) for operand in ins.operands[1:3])
    start, length = (machine.read(operand, U32) & np.uint32(255) for operand in ins.operands[3:])
    place = shift_left(ones(length, dtype), start)
    machine.write(ins.operands[0], base & ~place | shift_left(field, start) & place)


@simple("lop3")
def any_logic(a, b, c, table):
    """Bit i of the table is the answer for a, b, c that read i in binary."""
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), U32)
    for i in range(8):
        if int(table) >> i & 1:
            found |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return found


@instruction("prmt")
def permute_bytes(machine, ins):
    """Four bytes chosen from the eight of two words; bit 3 of a choice spreads the byte's sign instead."""
    a, b, choice = (machine.spread(machine.read(operand, U32)) for operand in ins.operands[1:])
    both = np.ascontiguousarray(np.stack([a, b], axis=-1)).view(U8)
    found = np.empty((machine.lanes, 4), U8)
    for i in range(4):
        pick = choice >> np.uint32(4 * i) & np.uint32(15)
        byte = both[np.arange(machine.lanes), pick & np.uint32(7)]
        found[:, i] = np.where(pick & np.uint32(8), np.where(byte & 128, 255, 0), byte)
    machine.write(ins.operands[0], found.view(U32)[:, 0])


# ------------------------------------------------------------------ counting
def highest(a):
    """The number of the highest bit that is set, -1 for 0."""
    wide = a.astype(U64)
    upper = (wide >> np.uint64(32)).astype(np.float64)          # exact, so the exponent is the answer
    lower = (wide & np.uint64(0xFFFFFFFF)).astype(np.float64)
    return np.where(upper > 0, np.frexp(upper)[1] + 31, np.frexp(lower)[1] - 1).astype(np.int32)


simple("popc")(lambda a: np.bitwise_count(a).astype(U32))
simple("clz")(lambda a: (8 * a.itemsize - 1 - highest(a)).astype(U32))


@simple("bfind")
def find_bit(a):
    """Of a negative number the highest bit that is clear."""
    return highest((np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a).view(f"u{a.itemsize}"))


@simple("brev")
def reverse(a):
    a = np.ascontiguousarray(np.atleast_1d(a))
    bits = np.unpackbits(a.view(U8).reshape(a.size, -1), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(a.dtype)[:, 0]


# ------------------------------------------------------------------ moving
@instruction("mov")
def mov(machine, ins):
    """Between registers, or between one register and the parts of it."""
    target, source = ins.operands
    dtype = DTYPES[ins.types[-1]]
    if source.__class__ is Vector:
        part = np.dtype(f"u{dtype.itemsize // len(source.items)}")
        whole = np.stack([machine.spread(machine.read(item, part)) for item in source.items], axis=-1)
        machine.write(target, whole.view(f"u{dtype.itemsize}")[:, 0])
    elif target.__class__ is Vector:
        part = np.dtype(f"u{dtype.itemsize // len(target.items)}")
        parts = np.ascontiguousarray(machine.spread(machine.read(source, dtype))).view(part).reshape(machine.lanes, -1)
        for k, item in enumerate(target.items):
            machine.write(item, np.ascontiguousarray(parts[:, k]))
    else:
        machine.write(target, machine.read(source, dtype))


@instruction("selp")
def select(machine, ins):
    dtype = DTYPES[ins.types[-1]]
    a, b = (machine.read(operand, dtype) for operand in ins.operands[1:3])
    machine.write(ins.operands[0], np.where(machine.read(ins.operands[3], DTYPES["pred"]), a, b))
