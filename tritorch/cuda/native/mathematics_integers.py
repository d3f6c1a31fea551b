"""libdevice's functions of integers and of bits, and its conversions with a direction to round in."""
from __future__ import annotations

import re

from . import conversions
from .vectors import BITS, Lanes

KINDS = {"float": ("f32", True), "double": ("f64", True), "int": ("i32", True), "uint": ("i32", False), "ll": ("i64", True),
         "ull": ("i64", False)}
ROUNDING = {"rn": "roundeven", "rz": "trunc", "rd": "floor", "ru": "ceil"}


def high_product(extend):
    """The upper half of the product, of numbers that "sext" or "zext" makes twice as wide."""
    def rule(x, y):
        width = BITS[x.element]
        wide = x.convert(extend, f"i{2 * width}") * y.convert(extend, f"i{2 * width}")
        return wide.shifted_right(width).convert("trunc", x.element)
    return rule


def product24(extend):
    """The low 32 bits of the product of the numbers' low 24 bits; `extend` is >> with or without the sign."""
    return lambda x, y: extend(x << 8, 8) * extend(y << 8, 8)


def signed_shift(x, n):
    return x >> n


def unsigned_shift(x, n):
    return x.shifted_right(n)


def mean(shift):
    """(x + y) / 2 rounded down, without overflow."""
    return lambda x, y: shift(x, 1) + shift(y, 1) + (x & y & 1)


def mean_up(shift):
    return lambda x, y: shift(x, 1) + shift(y, 1) + ((x | y) & 1)


def distance(largest, least):
    """|x - y| + z."""
    return lambda x, y, z: x.intrinsic(largest, y) - x.intrinsic(least, y) + z


def narrowed(x):
    """libdevice counts bits in an i32."""
    return x if x.element == "i32" else x.convert("trunc", "i32")


def first_set(x):
    """The place of the lowest bit that is 1, counted from 1; 0 where there is none."""
    return narrowed(x.equals(0).where(0, x.intrinsic("cttz", False) + 1))


def permuted_bytes(x, y, selector):
    """Four bytes of the eight of (y, x): a nibble of `selector` names each; its high bit means eight times the sign of that byte."""
    both = x.convert("zext", "i64") | (y.convert("zext", "i64") << 32)
    out = None
    for i in range(4):
        nibble = selector.shifted_right(4 * i)
        byte = narrowed(both.shifted_right(((nibble & 7) << 3).convert("zext", "i64"))) & 0xFF
        sign = (0 - byte.shifted_right(7)) & 0xFF
        byte = (nibble & 8).equals(0).where(byte, sign) << (8 * i)
        out = byte if out is None else out | byte
    return out


def joined(high, low):
    """A double of its two halves."""
    return ((high.convert("zext", "i64") << 32) | low.convert("zext", "i64")).as_float()


INTEGERS = {                                        # name: rule, its arguments (s: i32, l: i64)
    "popc": (lambda x: x.intrinsic("ctpop"), "s"), "popcll": (lambda x: narrowed(x.intrinsic("ctpop")), "l"),
    "clz": (lambda x: x.intrinsic("ctlz", False), "s"), "clzll": (lambda x: narrowed(x.intrinsic("ctlz", False)), "l"),
    "ffs": (first_set, "s"), "ffsll": (first_set, "l"),
    "brev": (lambda x: x.intrinsic("bitreverse"), "s"), "brevll": (lambda x: x.intrinsic("bitreverse"), "l"),
    "abs": (abs, "s"), "llabs": (abs, "l"),
    "mulhi": (high_product("sext"), "ss"), "umulhi": (high_product("zext"), "ss"),
    "mul64hi": (high_product("sext"), "ll"), "umul64hi": (high_product("zext"), "ll"),
    "mul24": (product24(signed_shift), "ss"), "umul24": (product24(unsigned_shift), "ss"),
    "hadd": (mean(signed_shift), "ss"), "uhadd": (mean(unsigned_shift), "ss"),
    "rhadd": (mean_up(signed_shift), "ss"), "urhadd": (mean_up(unsigned_shift), "ss"),
    "sad": (distance("smax", "smin"), "sss"), "usad": (distance("umax", "umin"), "sss"),
    "byte_perm": (permuted_bytes, "sss"),
    "int_as_float": (Lanes.as_float, "s"), "uint_as_float": (Lanes.as_float, "s"), "longlong_as_double": (Lanes.as_float, "l"),
    "float_as_int": (Lanes.bits, "f"), "float_as_uint": (Lanes.bits, "f"), "double_as_longlong": (Lanes.bits, "d"),
    "double2hiint": (lambda x: narrowed(x.bits().shifted_right(32)), "d"), "double2loint": (lambda x: narrowed(x.bits()), "d"),
    "hiloint2double": (joined, "ss"),
    "rcp64h": (lambda x: ((1.0 / (x.bits() & -(1 << 32)).as_float()).bits() & -(1 << 32)).as_float(), "d"),
}


def to_integer(x, target, signed):
    return Lanes(x.em, conversions.to_integer(x.em, x.register, x.element, target, signed, x.lanes), target, x.lanes)


def to_float(x, target, signed):
    return Lanes(x.em, conversions.to_float(x.em, x.register, x.element, target, signed, x.lanes), target, x.lanes)


def stepped(nearest, error, mode):
    """The neighbour of `nearest` that rounding in direction `mode` gives, where the exact result is `nearest` + `error`."""
    bits = nearest.bits()
    zero, negative, one = nearest.equals(0.0), nearest.compare("olt", 0.0), bits.constant(1)
    sign = 1 << (BITS[nearest.element] - 1)
    above = zero.where(one, negative.where(bits - 1, bits + 1)).as_float()
    below = zero.where(one | sign, negative.where(bits + 1, bits - 1)).as_float()
    if mode == "rd":
        return (error < 0.0).where(below, nearest)
    if mode == "ru":
        return (error > 0.0).where(above, nearest)
    return (error * nearest < 0.0).where(negative.where(above, below), nearest)


def narrowed_float(x, mode):
    """double to float, rounding in a direction."""
    nearest = x.convert("fptrunc", "f32")
    return nearest if mode == "rn" else stepped(nearest, (x - nearest.convert("fpext", "f64")).convert("fptrunc", "f32"), mode)


def conversion(name):
    """The rule and the arguments of "float2int_rz" and its like, None of another name."""
    match = re.fullmatch(r"(float|double|int|uint|ll|ull)2(float|double|int|uint|ll|ull)_(rn|rz|rd|ru)", name)
    if not match:
        return None
    (source, from_signed), (target, signed), mode = KINDS[match[1]], KINDS[match[2]], match[3]
    letter = {"f32": "f", "f64": "d", "i32": "s", "i64": "l"}[source]
    if source[0] == "f" and target[0] == "i":
        return lambda x: to_integer(x.intrinsic(ROUNDING[mode]), target, signed), letter
    if source == "f64":
        return lambda x: narrowed_float(x, mode), letter
    if source == "i32" and target == "f32":                            # float64 holds every i32
        return lambda x: narrowed_float(to_float(x, "f64", from_signed), mode), letter
    if mode == "rn" or source == "i32":
        return lambda x: to_float(x, target, from_signed), letter
    return lambda x: _long_to_float(x, target, from_signed, mode), letter


def _long_to_float(x, target, signed, mode):
    """An i64 rounded in a direction: the nearest float against the number, both as integers of 128 bits."""
    nearest = to_float(x, target, signed)
    exact = x.convert("sext" if signed else "zext", "i128")
    error = exact - nearest.convert("fptosi", "i128")
    return stepped(nearest, error.convert("sitofp", target), mode)
