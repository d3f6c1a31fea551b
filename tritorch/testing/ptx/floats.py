"""IEEE arithmetic that numpy lacks: fused multiply-add, directed rounding, bfloat16, flushing subnormal numbers to zero.

The trick behind all of it is rounding to odd: a result in float64 that is not exact gets an odd last bit. Such a number can be rounded
once more, to anything at least two bits narrower and in any direction, as if it were the exact result (Boldo and Melquiond, "Emulation of
FMA and correctly rounded sums", 2008).
"""
from fractions import Fraction

import numpy as np

F16, F32, F64, U16, U32, U64 = (np.dtype(name) for name in ("f2", "f4", "f8", "u2", "u4", "u8"))
_BEHIND_F32, _HALF_F32 = np.uint64((1 << 29) - 1), np.uint64(1 << 28)       # the bits of a float64 that a float32 has not


# ------------------------------------------------------------------ bfloat16, kept as bits
def from_bf16(bits):
    return (bits.astype(U32) << np.uint32(16)).view(F32)


def to_bf16(values, mode="rn"):
    """float64 (exact or rounded to odd) or float32 -> bits of bfloat16; NaN becomes 0x7fff."""
    values = np.asarray(values)
    narrow = _odd_f32(values) if values.dtype == F64 else values
    bits = np.asarray(narrow).view(U32)
    up = np.uint32(0) if mode == "rz" else np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return np.where(np.isnan(narrow), np.uint32(0x7FFF), bits + up >> np.uint32(16)).astype(U16)


def _odd_f32(values):
    """float64 -> float32 rounded to odd: to nearest, one step back where that went outward, and an odd last bit where it is not exact."""
    near = values.astype(F32)
    back = near.astype(F64)
    inexact = (back != values) & (values == values)
    return (near.view(U32) - (np.abs(back) > np.abs(values)) | inexact).view(F32)


# ------------------------------------------------------------------ rounding
def narrow(values, dtype, mode="rn"):
    """float64 -> float32 or float16 in a direction: rn to nearest even, rz to zero, rm down, rp up."""
    near = values.astype(dtype)
    if mode == "rn":
        return near
    back = near.astype(F64)
    down, up = np.nextafter(near, dtype.type(-np.inf)), np.nextafter(near, dtype.type(np.inf))
    lower = np.where(back > values, down, near)
    upper = np.where(back < values, up, near)
    zero = np.copysign(dtype.type(0), values.astype(dtype))     # -1e-300 towards zero or up is -0
    upper = np.where(upper == 0, np.copysign(upper, zero), upper)
    lower = np.where(lower == 0, np.copysign(lower, zero), lower)
    return {"rm": lower, "rp": upper, "rz": np.where(values < 0, upper, lower)}[mode]


def flush(values):
    """Subnormal float32 numbers become zeros of their sign."""
    return np.where(np.abs(values) < np.float32(2.0 ** -126), np.copysign(np.float32(0), values), values)


def _odd(total, rest):
    """total + rest, where rest is what rounding to nearest left over, rounded to odd."""
    bits = total.view(U64)
    wrong = (rest != 0) & (bits & np.uint64(1) == 0) & np.isfinite(total)
    if not wrong.any():
        return total
    outward = (rest > 0) == (total > 0)
    return np.where(wrong, np.where(outward, bits + np.uint64(1), bits - np.uint64(1)), bits).view(F64)


def two_sum(a, b):
    """a + b as the rounded sum and what is missing, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def odd_sum(a, b):
    """a + b in float64, rounded to odd."""
    return _odd(*two_sum(np.asarray(a), np.asarray(b)))


def odd_fused(a, b, c):
    """a * b + c of float32, float16 or bfloat16 numbers, as float64 rounded to odd; the product is exact."""
    return odd_sum(np.asarray(a, F64) * np.asarray(b, F64), np.asarray(c, F64))


def fused(a, b, c, mode="rn"):
    """fma.f32: one rounding. The float64 sum is already right unless it lies exactly between two float32 numbers, or is subnormal."""
    if mode != "rn":
        return narrow(odd_fused(a, b, c), F32, mode)
    total = np.asarray(a.astype(F64) * b.astype(F64) + c.astype(F64))
    between = total.view(U64) & _BEHIND_F32 == _HALF_F32
    tiny = np.abs(total) < 2.0 ** -125
    if np.count_nonzero(between) or np.count_nonzero(tiny) and np.count_nonzero(tiny & (total != 0)):
        return odd_fused(a, b, c).astype(F32)
    return total.astype(F32)


# ------------------------------------------------------------------ fma of float64
def fused64(a, b, c):
    """fma.f64, by exact sums of two numbers where nothing can overflow or vanish, else number by number in fractions."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    _, left = np.frexp(a)
    _, right = np.frexp(b)
    tame = (left + right < 1000) & (left + right > -900) & (np.abs(left) < 900) & (np.abs(right) < 900) & (np.abs(c) < 2.0 ** 1000)
    tame &= (c == 0) | (np.abs(c) > 2.0 ** -900)
    low = _product_rest(a, b, product)
    high, below = two_sum(c, low)
    top, under = two_sum(product, high)
    result = np.asarray(top + odd_sum(below, under))
    result = np.where((product == 0) | ~np.isfinite(product) | ~np.isfinite(c), product + c, result)
    wild = ~tame & np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    if wild.any():
        result = result.copy()
        result[wild] = [_exact(*three) for three in zip(a[wild].tolist(), b[wild].tolist(), c[wild].tolist())]
    return result


def _product_rest(a, b, product):
    """a * b - product, exactly (Veltkamp and Dekker)."""
    def split(x):
        wide = x * 134217729.0
        high = wide - (wide - x)
        return high, x - high

    (ah, al), (bh, bl) = split(a), split(b)
    return al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def _exact(a, b, c):
    total = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(total)                                     # rounds to nearest even; a sum that cancels is +0
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


# ------------------------------------------------------------------ the numbers in bits
def unpack(bits, kind):
    """Bits of f16, bf16 or of pairs of them -> float64, a pair as two numbers in a row."""
    halves = np.ascontiguousarray(bits).view(U16)
    return (halves.view(F16) if kind.startswith("f16") else from_bf16(halves)).astype(F64)


def pack(values, kind):
    """float64, exact or rounded to odd -> bits of f16, bf16 or of pairs of them; a NaN is 0x7fff."""
    if kind.startswith("bf16"):
        halves = to_bf16(values)
    else:
        halves = np.where(np.isnan(values), U16.type(0x7FFF), values.astype(F16).view(U16))
    return halves.view(U32) if kind.endswith("x2") else halves


def add_bits(old, b, kind):
    """old + b of numbers as memory holds them."""
    if kind in ("bf16", "f16x2", "bf16x2"):
        return pack(odd_sum(unpack(old, kind), unpack(b, kind)), kind)
    return old + b
