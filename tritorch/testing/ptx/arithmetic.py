"""Floating point. What PTX calls approximate errs here by up to the error that PTX allows, the same one for the same operands: a program
that hopes for more than the manual promises fails here as it may fail on hardware. Results that are exact numbers stay exact.
"""
import functools

import numpy as np

from tritorch.testing.ptx import floats
from tritorch.testing.ptx.floats import F32, F64, U32, U64
from tritorch.testing.ptx.operands import DTYPES, Pair, Sink
from tritorch.testing.ptx.registry import instruction

_NAN32 = np.uint32(0x7FFFFFFF).view(F32)        # the NaN that float32 instructions make


def read(machine, ins, operand, kind=None):
    """float32 and float64 as they are, the narrow kinds as float64; .ftz flushes subnormal numbers."""
    kind = kind or ins.types[-1]
    if kind in ("f32", "f64"):
        value = machine.read(operand, DTYPES[kind])
        return floats.flush(value) if "ftz" in ins.modifiers and kind == "f32" else value
    return floats.unpack(machine.spread(machine.read(operand, DTYPES["b32" if kind.endswith("x2") else "b16"])), kind)


def write(machine, ins, value, kind=None):
    """Round to the type, flush and clamp as the modifiers say."""
    kind = kind or ins.types[0]
    if "sat" in ins.modifiers:
        value = np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1))
    if "relu" in ins.modifiers:
        value = np.where(value < 0, value.dtype.type(0), value)
    if kind == "f32":
        if "ftz" in ins.modifiers:
            value = floats.flush(value)
        squares = value.dot(value) if value.ndim else value
        if squares != squares:                                  # a NaN is among them: no other square is one, nor a sum of such
            value = np.where(np.isnan(value), _NAN32, value)
    elif kind != "f64":
        value = floats.pack(value, kind)
    machine.write(ins.operands[0], value)


def mode(ins, default="rn"):
    return _mode(ins.modifiers) or default


@functools.cache
def _mode(modifiers):
    return next((w for w in modifiers if w in ("rn", "rz", "rm", "rp")), None)


# ------------------------------------------------------------------ + - * and fma
_RING = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@instruction("add", "sub", "mul")
def ring(machine, ins):
    kind, way = ins.types[-1], mode(ins)
    a, b = (read(machine, ins, operand) for operand in ins.operands[1:])
    if way == "rn" and kind in ("f32", "f64"):
        return write(machine, ins, _RING[ins.name](a, b))
    if kind == "f64":
        raise machine.fault("float64 in this direction of rounding")
    a, b = np.asarray(a, F64), np.asarray(b, F64)
    exact = a * b if ins.name == "mul" else floats.odd_sum(a, b if ins.name == "add" else -b)
    write(machine, ins, floats.narrow(exact, F32, way) if kind == "f32" else exact)


@instruction("fma", "mad.f32", "mad.rn", "mad.ftz")
def fma(machine, ins):
    kind = ins.types[-1]
    a, b, c = (read(machine, ins, operand) for operand in ins.operands[1:])
    if kind == "f32":
        found = floats.fused(a, b, c, mode(ins))
    elif mode(ins) != "rn":
        raise machine.fault("fma of this type in this direction of rounding")
    else:
        found = floats.fused64(a, b, c) if kind == "f64" else floats.odd_fused(a, b, c)
    write(machine, ins, found)


# ------------------------------------------------------------------ what is approximate
def astray(exact, error, *operands):
    """Exact float64 results, each moved by a part of `error` that its float32 operands decide: a hash of their bits, from -1 to 1."""
    bits = sum(np.asarray(x, F32).view(U32) * np.uint32(0x9E3779B1 + 2 * i) for i, x in enumerate(operands))
    bits = (bits ^ bits >> np.uint32(15)) * np.uint32(0x85EBCA6B)
    share = (bits >> np.uint32(8)).astype(F64) / (1 << 23) - 1
    moved = exact + error * share
    return np.where((exact.astype(F32) == exact) | ~np.isfinite(moved), exact, moved)


@instruction("div")
def divide(machine, ins):
    """div.approx and div.full err by two units; div.approx returns 0 where the divisor's reciprocal is subnormal."""
    a, b = (read(machine, ins, operand) for operand in ins.operands[1:])
    if mode(ins, None):
        return write(machine, ins, a / b)
    exact = a.astype(F64) / b.astype(F64)
    found = astray(exact, 2.0 ** -22 * np.abs(exact), a, b).astype(F32)
    if "approx" in ins.modifiers:
        huge = (np.abs(b) > 2.0 ** 126) & np.isfinite(b)
        found = np.where(huge, np.where(np.isinf(a), np.float32(np.nan), np.copysign(np.float32(0), found)), found)
    write(machine, ins, found)


def function(opcode, relative, absolute=lambda x: 0):
    """Register an approximate function by its errors; with a mode of rounding it is exact."""
    def register(compute):
        @instruction(opcode)
        def execute(machine, ins):
            kind = ins.types[-1]
            x = read(machine, ins, ins.operands[1])
            found = np.asarray(compute(x.astype(F64)))
            if kind == "f32" and mode(ins, None) is None:
                found = astray(found, np.maximum(np.abs(found) * relative, absolute(x)), x)
            write(machine, ins, found.astype(F32) if kind == "f32" else found)

        return compute

    return register


function("rcp", 2.0 ** -23)(lambda x: 1 / x)
function("sqrt", 2.0 ** -23)(np.sqrt)
function("rsqrt", 2.0 ** -22.9)(lambda x: 1 / np.sqrt(x))
function("ex2", 2.0 ** -22)(np.exp2)
function("lg2", 2.0 ** -22, lambda x: np.where((x > 0.5) & (x < 2), 2.0 ** -22, 0))(np.log2)
function("sin", 0, lambda x: np.where(np.abs(x) < 2 * np.pi, 2.0 ** -20.5, 2.0 ** -14.7))(np.sin)
function("cos", 0, lambda x: np.where(np.abs(x) < 2 * np.pi, 2.0 ** -20.5, 2.0 ** -14.7))(np.cos)
function("tanh", 2.0 ** -11)(np.tanh)


@instruction("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64")
def coarse(machine, ins):
    """Only the upper words of argument and result count; programs refine them."""
    upper = np.uint64(0xFFFFFFFF << 32)
    x = (machine.read(ins.operands[1], U64) & upper).view(F64)
    x = np.where(np.abs(x) < 2.0 ** -1022, np.copysign(0.0, x), x)
    found = 1 / x if ins.name == "rcp" else 1 / np.sqrt(x)
    found = np.where(np.abs(found) < 2.0 ** -1022, np.copysign(0.0, found), found)
    machine.write(ins.operands[0], np.asarray(found).view(U64) & upper)


# ------------------------------------------------------------------ signs and order
_SIGNS = {"f32": 0x80000000, "f64": 1 << 63, "f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000}


@instruction("abs", "neg")
def sign(machine, ins):
    """Of the bits, so a NaN keeps its own."""
    kind = ins.types[-1]
    dtype = np.dtype(f"u{DTYPES[kind].itemsize}")
    bit, value = dtype.type(_SIGNS[kind]), machine.read(ins.operands[1], dtype)
    if "ftz" in ins.modifiers:
        value = floats.flush(value.view(F32)).view(U32)
    machine.write(ins.operands[0], value & ~bit if ins.name == "abs" else value ^ bit)


@instruction("copysign")
def copy_sign(machine, ins):
    """The sign of the first, the magnitude of the second operand."""
    dtype = DTYPES[ins.types[-1]]
    signs, values = (machine.read(operand, dtype) for operand in ins.operands[1:])
    machine.write(ins.operands[0], np.copysign(values, signs))


@instruction("min", "max")
def extreme(machine, ins):
    """The number where one operand is NaN (with .NaN: NaN); -0 is below +0. With .xorsign.abs of the magnitudes, under both signs."""
    a, b = (read(machine, ins, operand) for operand in ins.operands[1:])
    negative = np.signbit(a) ^ np.signbit(b)
    if "abs" in ins.modifiers:
        a, b = np.abs(a), np.abs(b)
    first = a < b if ins.name == "min" else a > b
    first = np.where(a == b, np.signbit(a) == (ins.name == "min"), first)
    found = np.where(first | np.isnan(b), a, b)
    if "NaN" in ins.modifiers:
        found = np.where(np.isnan(a) | np.isnan(b), found.dtype.type(np.nan), found)
    if "xorsign" in ins.modifiers:
        found = np.where(negative, -found, found)
    write(machine, ins, found)


_KINDS = {
    "finite": np.isfinite, "infinite": np.isinf, "number": lambda x: x == x, "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}


@instruction("testp")
def is_of_kind(machine, ins):
    machine.write(ins.operands[0], _KINDS[ins.modifiers[0]](read(machine, ins, ins.operands[1])))


_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "num": lambda a, b: (a == a) & (b == b), "nan": lambda a, b: (a != a) | (b != b),
    "equ": lambda a, b: ~((a < b) | (a > b)), "neu": lambda a, b: ~(a == b), "ltu": lambda a, b: ~(a >= b),
    "ordered ne": lambda a, b: (a < b) | (a > b), "leu": lambda a, b: ~(a > b), "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b),
}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@instruction("setp")
def compare(machine, ins):
    """p = (a ? b) combined with c, q = its opposite combined with c; of pairs p is the first number's answer, q the second's.
    The comparisons that end in u are true where an operand is NaN, the others, but for ne of integers, false."""
    target, a, b, *rest = ins.operands
    kind, test = ins.types[-1], ins.modifiers[0]
    if kind[0] in "sub" and kind[:2] != "bf":
        a, b = (machine.read(operand, DTYPES[kind]) for operand in (a, b))
    else:
        a, b = (read(machine, ins, operand, kind) for operand in (a, b))
        test = {"ne": "ordered ne"}.get(test, test)
    found = _COMPARE[test](a, b)
    if target.__class__ is not Pair and not rest and not kind.endswith("x2"):
        return machine.write(target, found)
    p, q = (target.first, target.second) if target.__class__ is Pair else (target, Sink())
    yes, no = (found[0::2], found[1::2]) if kind.endswith("x2") else (found, ~found)
    if rest:
        combine = next(_COMBINE[w] for w in ins.modifiers if w in _COMBINE)
        third = machine.read(rest[0], DTYPES["pred"])
        yes, no = combine(yes, third), combine(no, third)
    machine.write(p, yes)
    machine.write(q, no)
