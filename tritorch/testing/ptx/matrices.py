"""What a warp holds of a matrix: number formats, and which element lies in which register of which lane.

Lane l of a warp belongs to row g = l // 4 of an 8-row group, and is number t = l % 4 in it. All fragments of mma.sync and wgmma
(PTX ISA, "Matrix Fragments for mma.m16n8k16" and its neighbours) are one pattern. With r elements in a 32-bit register (1 of float64):

    A, register i, element e:   row g + 8 · (i mod 2),   column r · t + e + 4r · (i div 2)
    B, register i, element e:   row r · t + e + 4r · i,  column g
    D, value i:                 row g + 8 · (i div 2 mod 2),  column 2t + i mod 2 + 8 · (i div 4)
"""
import functools

import numpy as np

WARP = 32
BITS = {"f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


@functools.cache
def _small_floats(exponent_bits, bias, with_infinity):
    """The value of each byte as an 8-bit float: e5m2 has infinities as IEEE does, e4m3 has a single NaN instead and goes on to 448."""
    byte = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    exponent, mantissa = byte >> mantissa_bits & (1 << exponent_bits) - 1, byte & (1 << mantissa_bits) - 1
    value = np.where(exponent == 0, np.ldexp(mantissa.astype(float), 1 - bias - mantissa_bits),
                     np.ldexp(1 + mantissa / (1 << mantissa_bits), exponent - bias))
    last = exponent == (1 << exponent_bits) - 1
    if with_infinity:
        value[last] = np.where(mantissa[last] == 0, np.inf, np.nan)
    else:
        value[byte & 127 == 127] = np.nan
    return np.where(byte & 128, -value, value).astype(np.float32)


def decode(kind, bits):
    """Unsigned integers as the numbers that the matrix units see in them: float32, or float64 where the kind is."""
    if kind == "f64":
        return bits.view(np.float64)
    if kind == "f32":
        return bits.view(np.float32)
    if kind == "tf32":                                          # the low 13 bits are not looked at: values are cut, not rounded
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if kind == "s8":
        return bits.view(np.int8).astype(np.float32)
    if kind == "u8":
        return bits.astype(np.float32)
    return _small_floats(4, 7, False)[bits] if kind == "e4m3" else _small_floats(5, 15, True)[bits]


def unpack(kind, registers):
    """(..., registers, lanes) of 32 or 64 bits -> (..., registers, lanes, elements): the numbers in them."""
    width = BITS[kind] // 8
    return decode(kind, np.ascontiguousarray(registers)[..., None].view(f"u{width}"))


@functools.cache
def a_places(registers, per_register):
    """Row and column of each (register, lane, element) of an A fragment."""
    i, lane, e = np.ogrid[:registers, :WARP, :per_register]
    return np.broadcast_arrays(lane // 4 + 8 * (i % 2), per_register * (lane % 4) + e + 4 * per_register * (i // 2))


@functools.cache
def b_places(registers, per_register):
    """Row and column of each (register, lane, element) of a B fragment."""
    i, lane, e = np.ogrid[:registers, :WARP, :per_register]
    return np.broadcast_arrays(per_register * (lane % 4) + e + 4 * per_register * i, lane // 4)


@functools.cache
def d_places(values):
    """Row and column of each (value, lane) of an accumulator."""
    i, lane = np.ogrid[:values, :WARP]
    return np.broadcast_arrays(lane // 4 + 8 * (i // 2 % 2), 2 * (lane % 4) + i % 2 + 8 * (i // 4))


def gathered(places, fragment):
    """The matrices (…, rows, columns) whose elements lie in fragments (…, registers, lanes, elements)."""
    rows, columns = places
    matrix = np.empty((*fragment.shape[:-rows.ndim], rows.max() + 1, columns.max() + 1), fragment.dtype)
    matrix[..., rows, columns] = fragment
    return matrix


# ------------------------------------------------------------------ sums
def units_of(kind, arch, warp_group):
    """How matrix units add up products of `kind`: (how many at once, to how many bits behind the first of the largest addend, and how many
    of these bits the sum keeps). mma.sync of float8 on Hopper is one of float16: it has no other."""
    if kind in ("e4m3", "e5m2") and warp_group:
        return 32, 13, 13
    at_once = 8 if kind == "tf32" else 16
    return (at_once, 25, 23) if arch >= 90 else (at_once // 2, 24, 23)


def product(kind, to, a, b, c, units, saturate=False):
    """a @ b + c of `kind` as matrix units with a result of type `to` round it: products are exact, sums see `units`.

    Both bit-accurate models of A100 and H100 agree in this (Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", 2025; Xie et
    al., "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores", 2025; first seen by Fasi et al., "Numerical behavior of
    NVIDIA tensor cores", 2021)."""
    if to == "s32":                                             # up to 32 products below 2^15 are exact in float32
        total = np.matmul(a, b).astype(np.int64) + c
        return (total.clip(-2 ** 31, 2 ** 31 - 1) if saturate else total).astype(np.int32)          # else it wraps around
    if to == "f64":
        return np.matmul(a, b) + c
    at_once, bits, kept = units
    out, some = c.copy(), max(1, (1 << 14) // c[0].size)        # what fits a cache
    for i in range(0, len(c), some):
        for k in range(0, a.shape[2], at_once):
            total = _sum_of_block(kind, a[i:i + some, :, k:k + at_once], b[i:i + some, k:k + at_once], out[i:i + some], bits)
            out[i:i + some] = total.astype(np.float16) if to == "f16" else _cut(total, kept)
    return out


LAST_NORMAL = {"f16": -14, "e5m2": -14, "e4m3": -6}             # exponents do not go below; of the others: -126


def _sum_of_block(kind, a, b, c, bits):
    """c + a @ b in float64: c and each product cut off, toward zero, `bits` bits below the largest exponent among them. The exponent of a
    product is the sum of its factors', so that its number may be nearly 4 times as large; zeros have none."""
    of_a, of_b = (_exponents(x, LAST_NORMAL.get(kind, -126)) for x in (a, b))
    largest = _exponents(c.astype(np.float32), LAST_NORMAL["f16"] if c.dtype == np.float16 else -126)
    for k in range(b.shape[1]):
        np.maximum(largest, of_a[:, :, k, None] + of_b[:, k, None], out=largest)
    exponents = np.maximum(largest, -133).astype(np.int64) - bits
    unit, per_unit = ((1023 + sign * exponents << 52).view(np.float64) for sign in (1, -1))        # np.ldexp takes ten times as long
    total = np.trunc(c * per_unit)
    a, b, scaled = a.astype(np.float64), b.astype(np.float64), np.empty_like(total)
    for k in range(b.shape[1]):
        np.multiply(a[:, :, k, None], b[:, k, None], out=scaled)
        scaled *= per_unit
        total += np.trunc(scaled, out=scaled)
    return total * unit


def _exponents(x, last_normal):
    """Of float32 numbers; of zero: far below every other."""
    of_bits = (x.view(np.int32) >> 23 & 255).astype(np.int16) - np.int16(127)
    return np.where(x == 0, np.int16(-2000), np.maximum(of_bits, np.int16(last_normal)))


def _cut(x, kept):
    """Toward zero, to float32 with `kept` bits behind the first."""
    found = (x.view(np.int64) & np.int64(-1 << 52 - kept)).view(np.float64).astype(np.float32)
    denormal = (found.view(np.uint32) & np.uint32(0x7FFFFFFF)) - np.uint32(1) < np.uint32(0x800000)
    if np.count_nonzero(denormal):                                          # they have fewer bits
        found.view(np.int32)[denormal & (np.abs(found) > np.abs(x))] -= 1
    return found
