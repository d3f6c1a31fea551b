"""Conversions between number types as a GPU makes them, as lines of LLVM IR: those LLVM lacks or leaves undefined.

bf16 is held as its bits in an i16, fp8 as its bits in an i8. What LLVM lacks is made in float32 and in integers of its width.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from .vectors import BITS, Lanes


class Float8(NamedTuple):
    """Bits of the mantissa, the exponent's bias, and what is special: "ieee" has infinities, "finite" none and one NaN of each sign,
    "unsigned_zero" one NaN in the place of -0."""
    mantissa: int
    bias: int
    kind: str


FLOAT8 = {"f8E5M2": Float8(2, 15, "ieee"), "f8E4M3FN": Float8(3, 7, "finite"), "f8E4M3B11FNUZ": Float8(3, 11, "unsigned_zero"),
          "f8E4M3FNUZ": Float8(3, 8, "unsigned_zero"), "f8E5M2FNUZ": Float8(2, 16, "unsigned_zero")}
HALF = {"f16", "bf16"} | set(FLOAT8)


def bits_of(element):
    """The LLVM element type that holds `element`: bf16's and fp8's bits are integers."""
    return "i16" if element == "bf16" else "i8" if element in FLOAT8 else element


def widen(em, register, element, lanes):
    """A narrow floating type in float32, exactly. Gives the new register."""
    x = Lanes(em, register, bits_of(element), lanes)
    if element == "f16":
        return x.convert("fpext", "f32").register
    if element == "bf16":
        return (x.convert("zext", "i32") << 16).as_float().register
    return _widen8(x, FLOAT8[element]).register


def _widen8(x, form):
    """The bits are moved to float16's places, or float32's; a product with a power of two mends the bias, subnormal numbers too."""
    wide = x.convert("zext", "i16")
    if form.kind == "ieee":                                            # float8's bits are the upper half of float16's
        return (wide << 8).as_float().convert("fpext", "f32")
    sign, size = wide & 0x80, wide & 0x7F
    if form.mantissa == 3:
        out = (sign << 8 | size << 7).as_float().convert("fpext", "f32") * 2.0 ** (15 - form.bias)
    else:                                                              # its largest numbers would be float16's infinity
        out = (sign.convert("zext", "i32") << 24 | size.convert("zext", "i32") << 21).as_float() * 2.0 ** (127 - form.bias)
    return (size.equals(0x7F) if form.kind == "finite" else wide.equals(0x80)).where(math.nan, out)


def narrow(em, register, element, lanes, rounding="rtne"):
    """float32 in a narrower floating type, to nearest with ties to even ("rtne") or towards zero ("rtz"). Gives the register of its bits.

    Numbers past the largest become it in f8E4M3FN, infinity in f8E5M2 and NaN in the other float8 types. KeyError: no such rounding.
    """
    x = Lanes(em, register, "f32", lanes)
    if rounding not in ("rtne", "rtz") or (rounding == "rtz" and element in FLOAT8):
        raise KeyError(f"{rounding} to {element}")
    if element == "f16":
        return (_half_towards_zero(x) if rounding == "rtz" else x.convert("fptrunc", "f16")).register
    if element == "bf16":
        return _bfloat16(x, rounding).register
    return _narrow8(x, FLOAT8[element]).register


def _bfloat16(x, rounding):
    bits = x.bits()
    rounded = bits if rounding == "rtz" else bits + (((bits.shifted_right(16)) & 1) + 0x7FFF)
    quiet = bits | 0x400000
    return x.compare("uno", x).where(quiet, rounded).shifted_right(16).convert("trunc", "i16")


def _half_towards_zero(x):
    """To nearest; where that is larger than x, one less in size: infinity becomes the largest number."""
    half = x.convert("fptrunc", "f16")
    larger = abs(half.convert("fpext", "f32")) > abs(x)
    return (half.bits() - larger.convert("zext", "i16")).as_float()


def _narrow8(x, form):
    """In integers: the bits are rounded where the type's mantissa ends; below the normal numbers a sum with a power of two rounds, as its
    last place is the type's smallest number."""
    bits = x.bits()
    size, sign = bits & 0x7FFFFFFF, bits.shifted_right(24) & 0x80
    drop = 23 - form.mantissa
    normal = (size + ((size.shifted_right(drop) & 1) + ((1 << (drop - 1)) - 1))).shifted_right(drop) - ((127 - form.bias) << form.mantissa)
    smallest = 1 - form.bias - form.mantissa
    magic = 2.0 ** (smallest + 23)
    subnormal = (size.as_float() + magic).bits() - (127 + smallest + 23 << 23)
    code = (size < (128 - form.bias << 23)).where(subnormal, normal)
    lost = size > 0x7F800000
    if form.kind == "ieee":
        out = lost.where(0x7E, (code > 0x7C).where(0x7C, code)) | sign
    elif form.kind == "finite":
        out = lost.where(0x7F, (code > 0x7E).where(0x7E, code)) | sign
    else:
        out = (lost | (code > 0x7F)).where(0x80, code.equals(0).where(0, code | sign))
    return out.convert("trunc", "i8")


def to_integer(em, register, source, target, signed, lanes):
    """float32 or float64 to an integer as PTX's cvt.rzi does it: towards zero and saturating, in 32 or 64 bits, of which a narrower
    `target` takes the low ones. NaN is 0 between 32-bit types, else the highest bit alone."""
    x = Lanes(em, register, source, lanes)
    if target == "i1":
        return x.differs(0.0).register
    width = max(32, BITS[target])
    signed = signed or width != BITS[target]
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1)) if signed else (0, 2**width)
    last = float(high) - 2.0 ** (high.bit_length() - 1 - {"f32": 24, "f64": 53}[source]) if width > 32 or source == "f32" else high - 1.0
    held = (x < last).where(x, last)                                   # LLVM leaves a number outside, and NaN, undefined
    held = (held > float(low)).where(held, float(low))
    whole = held.convert("fptosi" if signed else "fptoui", f"i{width}")
    if last != high - 1:
        whole = (x >= float(high)).where(high - 1, whole)
    whole = x.compare("uno", x).where(1 << (width - 1) if 64 in (width, BITS[source]) else 0, whole)
    return (whole.convert("trunc", target) if width != BITS[target] else whole).register


def to_float(em, register, source, target, signed, lanes):
    """An integer to float32 or float64, to nearest with ties to even."""
    x = Lanes(em, register, source, lanes)
    return x.convert("sitofp" if signed and source != "i1" else "uitofp", target).register
