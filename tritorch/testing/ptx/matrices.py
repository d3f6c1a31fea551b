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
LANE = np.arange(WARP)
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


def product(kind, a, b, c, saturate=False):
    """a @ b + c as the matrix units round it: products are exact, sums have at least the precision of the accumulator.

    What hardware keeps beyond that and in which order it adds is not written down anywhere, so results are compared with tolerances.
    """
    if kind == "s32":                                           # up to 32 products below 2^15 are exact in float32
        total = np.matmul(a, b).astype(np.int64) + c
        return (total.clip(-2 ** 31, 2 ** 31 - 1) if saturate else total).astype(np.int32)          # else it wraps around
    if kind == "f16":
        return (np.matmul(a, b) + c.astype(np.float32)).astype(np.float16)
    return np.matmul(a, b) + c


FLOAT8_BITS = 13


def product_of_float8(a, b, c):
    """a @ b + c of float8 as the units of wgmma add it up: c and the products of 32 elements are cut off 13 bits below the leading bit of
    the largest of them, their sum 13 bits below its own (Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", 2025;
    DeepSeek-V3's report, section 3.3.2). Of 16-bit operands' sums they keep as many bits as float32 does, or more."""
    found = np.matmul(a, b) + c
    for out, left, right, start in zip(found, *(x.astype(np.float64) for x in (a, b, c))):      # one after the other: they are large
        products = left[:, :, None] * right
        exponents = np.frexp(left)[1][:, :, None] + np.frexp(right)[1] - 2                       # before they are brought to [1, 2)
        largest = np.maximum(np.where(products == 0, -1000, exponents).max(1), np.where(start == 0, -1000, np.frexp(start)[1] - 1))
        unit = np.ldexp(1.0, largest - FLOAT8_BITS)
        total = _cut((np.trunc(products / unit[:, None]).sum(1) + np.trunc(start / unit)) * unit)
        np.copyto(out, total.astype(np.float32), where=np.isfinite(out))
    return found


def _cut(x):
    """Toward zero, to 13 bits behind the first."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, FLOAT8_BITS + 1)), exponent - FLOAT8_BITS - 1)
