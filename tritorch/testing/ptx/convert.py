"""cvt: between integers, floats and the narrow kinds. Integers saturate, as PTX promises for every conversion from a float."""
import numpy as np

from tritorch.testing.ptx import floats
from tritorch.testing.ptx.arithmetic import mode, read, write
from tritorch.testing.ptx.floats import F32, F64, U16, U32
from tritorch.testing.ptx.operands import DTYPES
from tritorch.testing.ptx.registry import instruction

_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
U8 = np.dtype("u1")


def is_integer(kind):
    return kind[0] in "sub" and kind[:2] != "bf"


@instruction("cvt")
def convert(machine, ins):
    target, source = ins.types[-2:]
    if is_integer(source):
        found = machine.read(ins.operands[1], DTYPES[source])
        return integer_to_integer(machine, ins, found) if is_integer(target) else integer_to_float(machine, ins, found)
    value = read(machine, ins, ins.operands[1])
    step = next((_TO_INTEGER[w] for w in ins.modifiers if w in _TO_INTEGER), None)
    if is_integer(target):
        machine.write(ins.operands[0], to_integer(step(value), DTYPES[target], wide=source == "f64" or target.endswith("64")))
    else:
        write(machine, ins, to_float(step(value) if step else value, target, mode(ins)))


def integer_to_integer(machine, ins, value):
    dtype = DTYPES[ins.types[0]]
    if "sat" in ins.modifiers:
        limits = np.iinfo(dtype)
        value = np.clip(value, max(limits.min, np.iinfo(value.dtype).min), min(limits.max, np.iinfo(value.dtype).max))
    machine.write(ins.operands[0], value.astype(dtype))


def integer_to_float(machine, ins, value):
    """Through halves of 32 bits, each of which is exact in float64."""
    kind = ins.types[0]
    if kind == "f64":
        return write(machine, ins, value.astype(F64))
    whole = value.astype(f"{value.dtype.kind}8")
    top, low = whole >> whole.dtype.type(32), whole & whole.dtype.type(0xFFFFFFFF)
    write(machine, ins, to_float(floats.odd_sum(top.astype(F64) * 2.0 ** 32, low.astype(F64)), kind, mode(ins)))


def to_integer(value, dtype, wide):
    """NaN is 0, or the lowest number where 64 bits are involved."""
    limits, value = np.iinfo(dtype), value.astype(F64)
    above = value >= float(limits.max) + (0 if dtype.itemsize == 8 else 1)
    found = np.where(above | (value < limits.min) | np.isnan(value), 0.0, value).astype(dtype)
    found = np.where(above, dtype.type(limits.max), np.where(value < limits.min, dtype.type(limits.min), found))
    nan = dtype.type(0) if not wide else np.array(1 << 8 * dtype.itemsize - 1, f"u{dtype.itemsize}").view(dtype)
    return np.where(np.isnan(value), nan, found)


def to_float(value, kind, way):
    """To what arithmetic.write takes: the type itself, or for the narrow kinds float64, of which bfloat16 is as well made of float32."""
    if kind == "f64":
        return value.astype(F64)
    if kind == "f32":
        return value if value.dtype == F32 else floats.narrow(value, F32, way)
    if kind == "bf16" and way == "rn" and value.dtype == F32:
        return value
    value = value.astype(F64)
    if way != "rn":
        value = floats.from_bf16(floats.to_bf16(value, way)) if kind == "bf16" else floats.narrow(value, floats.F16, way)
    return value.astype(F64)


@instruction("cvt.rn.bf16x2", "cvt.rn.f16x2", "cvt.rz.bf16x2", "cvt.rz.f16x2", "cvt.rn.relu.bf16x2", "cvt.rn.relu.f16x2")
def convert_pair(machine, ins):
    """The first operand becomes the upper half."""
    if ins.types[-1] in _FORMATS:
        return from_fp8(machine, ins)
    kind = ins.types[0]
    high, low = (machine.spread(to_float(read(machine, ins, operand), kind[:-2], mode(ins))) for operand in ins.operands[1:])
    write(machine, ins, np.stack([low, high], axis=-1).reshape(-1))


@instruction("cvt.rna.tf32", "cvt.rn.tf32", "cvt.rz.tf32", "cvt.rna.satfinite.tf32")
def to_tf32(machine, ins):
    """float32 with the last 13 bits gone; .rna rounds half away from zero."""
    machine.write(ins.operands[0], tf32_bits(machine.read(ins.operands[1], U32), ins.modifiers[0]))


def tf32_bits(bits, way):
    add = {"rna": 0x1000, "rz": 0}.get(way)
    up = 0xFFF + (bits >> np.uint32(13) & np.uint32(1)) if add is None else np.uint32(add)
    return np.where(np.isfinite(bits.view(F32)), bits + up & np.uint32(0xFFFFE000), bits)


# ------------------------------------------------------------------ float8
def _numbers(mantissas, bias, count):
    """The first `count` codes' values: subnormal numbers, then the others."""
    code = np.arange(count)
    exponent, fraction = code >> mantissas, code & (1 << mantissas) - 1
    whole = np.where(exponent == 0, fraction, fraction + (1 << mantissas))
    return np.ldexp(whole.astype(F64), np.maximum(exponent, 1) - bias - mantissas)


_FORMATS = {"e4m3x2": _numbers(3, 7, 0x7F), "e5m2x2": _numbers(2, 15, 0x7C)}      # finite, from 0 up


def fp8_bits(values, kind):
    """float64 -> codes: to nearest even, too large ones become the largest number."""
    numbers, size = _FORMATS[kind], np.minimum(np.abs(values), _FORMATS[kind][-1])
    low = np.minimum(np.searchsorted(numbers, size, "right") - 1, numbers.size - 2).clip(0)
    middle = (numbers[low] + numbers[low + 1]) / 2
    code = low + ((size > middle) | (size == middle) & (low & 1 == 1))
    code = np.where(np.isnan(values), 0x7F, code | np.signbit(values) * 0x80)
    return code.astype(U8)


@instruction("cvt.rn.satfinite.e4m3x2", "cvt.rn.satfinite.e5m2x2", "cvt.rn.satfinite.relu.e4m3x2", "cvt.rn.satfinite.relu.e5m2x2")
def to_fp8(machine, ins):
    """From two float32, the first of which becomes the upper byte, or from a pair of float16."""
    if ins.types[-1] == "f16x2":
        codes = fp8_bits(read(machine, ins, ins.operands[1]), ins.types[0]).reshape(-1, 2)
    else:
        high, low = (machine.spread(read(machine, ins, operand)) for operand in ins.operands[1:])
        codes = np.stack([fp8_bits(low.astype(F64), ins.types[0]), fp8_bits(high.astype(F64), ins.types[0])], axis=-1)
    machine.write(ins.operands[0], np.ascontiguousarray(codes).view(U16)[:, 0])


def from_fp8(machine, ins):
    kind = ins.types[-1]
    numbers = np.full(128, np.nan)
    numbers[:_FORMATS[kind].size] = _FORMATS[kind]
    if kind == "e5m2x2":
        numbers[0x7C] = np.inf
    codes = np.ascontiguousarray(machine.spread(machine.read(ins.operands[1], U16))).view(U8)
    write(machine, ins, np.where(codes & 0x80, -numbers[codes & 0x7F], numbers[codes & 0x7F]))
