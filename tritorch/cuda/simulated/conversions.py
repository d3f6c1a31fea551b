"""Triton's number types on numpy: which numpy type carries them, how they convert, which type an operation is computed in.

bfloat16 is carried as float32 and rounded after every operation, fp8 as ml_dtypes arrays, everything else as itself.
"""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import triton.language as tl

INT1, INT8, INT16, INT32, INT64 = tl.int1, tl.int8, tl.int16, tl.int32, tl.int64
UINT8, UINT16, UINT32, UINT64 = tl.uint8, tl.uint16, tl.uint32, tl.uint64
FP16, BF16, FP32, FP64, E4M3, E5M2 = tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e4nv, tl.float8e5

TYPES = {t.name: t for t in (INT1, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FP16, BF16, FP32, FP64, E4M3, E5M2)}
CARRIER = {name: np.dtype(code) for name, code in {
    "int1": "?", "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8",
    "fp16": "f2", "bf16": "f4", "fp32": "f4", "fp64": "f8", "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}.items()}
STORAGE = CARRIER | {"int1": np.dtype("u1"), "bf16": np.dtype("u2"), "fp8e4nv": np.dtype("u1"), "fp8e5": np.dtype("u1")}
KIND = {name: 0 if name == "int1" else 2 if "fp" in name or "bf" in name else 1 for name in TYPES}
SIGNED = {name: name.startswith("int") and name != "int1" for name in TYPES}
FP8 = "fp8e4nv", "fp8e5"
f4, u2, u4 = np.dtype("f4"), np.dtype("u2"), np.dtype("u4")


def round_bf16(x):
    """Nearest bfloat16, ties to even, of a float32 array or scalar; still float32."""
    bits = np.asarray(x, f4).view(u4)
    out = ((bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)).view(f4)
    wrong = np.isnan(x)
    return np.where(wrong, f4.type(np.nan), out)[()] if wrong.any() else out[()]


def round_tf32(x):
    """What TMA makes of float32 numbers that it rounds: nearest TF32, ties to even; still float32."""
    bits = x.view(u4)
    rounded = ((bits + (((bits >> np.uint32(13)) & np.uint32(1)) + np.uint32(0xFFF))) & np.uint32(0xFFFFE000)).view(f4)
    return np.where(np.isfinite(x), rounded, x)


def to_integers(x, target):
    """Float to integer as the hardware does it: towards zero, saturating in 32 or 64 bits, NaN to 0, or the highest bit alone where 64 bits
    are converted from or to."""
    bits, lost = max(32, target.itemsize * 8), np.isnan(x)
    lowest = max(np.asarray(x).itemsize, target.itemsize) == 8
    low, high = (0, 2**bits) if target.kind == "u" and bits == target.itemsize * 8 else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    x = np.trunc(np.asarray(x, "f8"))
    inside = (x >= low) & (x < high)
    wide = np.dtype(f"{'u' if low == 0 else 'i'}{bits // 8}")
    if inside.all():
        return x.astype(wide).astype(target)[()]
    out = np.where(inside, x, 0).astype(wide)
    out = np.where(x >= high, wide.type(high - 1), np.where(x < low, wide.type(low), out))
    if lowest and lost.any():
        out = np.where(lost, np.array(1 << bits - 1, f"u{bits // 8}").view(wide), out)
    return out.astype(target)[()]


def to_fp8(x, name):
    return (np.clip(x, -448, 448) if name == "fp8e4nv" else x).astype(CARRIER[name])       # e5m2 has infinities


def towards_zero(x, target):
    """float32 to a half type, dropping bits instead of rounding."""
    if target is BF16:
        return (np.asarray(x, f4).view(u4) & np.uint32(0xFFFF0000)).view(f4)[()]
    half = x.astype("f2")
    return np.where(np.abs(half.astype(x.dtype)) > np.abs(x), np.nextafter(half, np.float16(0)), half)[()]


def converted(data, source, target, rounding=None):
    """The numbers of `data`, of Triton type `source`, in Triton type `target`."""
    if source is target or source.name == target.name:
        return data
    name, kind = target.name, KIND[target.name]
    if name == "int1":
        return data != 0
    if source.name in FP8:
        data = data.astype(f4)
    if kind == 2:
        if rounding == "rtz":
            return towards_zero(data, target)
        if name == "bf16":
            return round_bf16(data.astype(f4))
        return to_fp8(data.astype(f4), name) if name in FP8 else data.astype(CARRIER[name])
    return to_integers(data, CARRIER[name]) if KIND[source.name] == 2 else data.astype(CARRIER[name])


def number_type(number):
    """The type Triton gives a Python number that stands alone."""
    if isinstance(number, bool):
        return INT1
    if isinstance(number, int):
        for low, high, dtype in ((-(2**31), 2**31, INT32), (0, 2**32, UINT32), (-(2**63), 2**63, INT64), (0, 2**64, UINT64)):
            if low <= number < high:
                return dtype
        raise ValueError(f"Nonrepresentable integer {number}.")
    size = abs(number)
    return FP32 if size in (0.0, math.inf) or number != number or 2**-126 <= size <= (2 - 2**-23) * 2**127 else FP64


def constant(number, dtype):
    if dtype is BF16:
        return round_bf16(np.float32(number))
    return CARRIER[dtype.name].type(number)


def promoted_integers(a, b):
    if SIGNED[a.name] == SIGNED[b.name]:
        return a if a.primitive_bitwidth > b.primitive_bitwidth else b
    unsigned, signed = (b, a) if SIGNED[a.name] else (a, b)
    return unsigned if unsigned.primitive_bitwidth >= signed.primitive_bitwidth else signed


def common_type(a, b, division):
    """The type two tensors are computed in."""
    names = (a.name, b.name)
    for wide in (FP64, FP32):
        if wide.name in names:
            return wide
    if "fp16" in names:
        return FP32 if division else FP16
    if "bf16" in names:
        return BF16 if names == ("bf16", "bf16") and not division else FP32
    if a.name in FP8 and b.name in FP8:
        return a if a.name == b.name else FP16
    if KIND[a.name] == 2 or KIND[b.name] == 2:
        raise TypeError(f"unexpected type {a} and {b}")
    if division and SIGNED[a.name] != SIGNED[b.name]:
        raise TypeError(f"Cannot use /, #, or % with {a} and {b} because they have different signedness; cast them to the same signedness.")
    return promoted_integers(a, b)


def weak_type(number, own, dtype, division):
    """The type a Python number of type `own` and a tensor of type `dtype` are computed in."""
    if KIND[own.name] <= KIND[dtype.name]:
        result = FP32 if division and dtype in (FP16, BF16) else dtype
    else:
        result = common_type(own, dtype, division)
    if KIND[result.name] < 2 and not (result.get_int_min_value() <= number <= result.get_int_max_value()):
        raise ValueError(f"Scalar {number} is out of range for type {result}")
    return result


_common: dict = {}
_weak: dict = {}


def common(a, b, division=False):
    key = (a.name, b.name, division)
    found = _common.get(key)
    if found is None:
        found = _common[key] = common_type(a, b, division)
    return found


def weak(number, dtype, division=False):
    """A Python number beside a tensor of type `dtype`: its numpy scalar and the type of the operation."""
    key = (type(number), number, dtype.name, division)
    found = _weak.get(key)
    if found is None:
        if len(_weak) > 10000:
            _weak.clear()
        result = weak_type(number, number_type(number), dtype, division)
        found = _weak[key] = (constant(number, result), result)
    return found


def to_storage(data, dtype):
    """The bits memory holds for `data`."""
    name = dtype.name
    if name == "bf16":
        return (np.ascontiguousarray(data).view(u4) >> np.uint32(16)).astype(u2).reshape(np.shape(data))
    return np.asarray(data) if STORAGE[name] is CARRIER[name] else np.ascontiguousarray(data).view(STORAGE[name]).reshape(np.shape(data))


def from_storage(raw, dtype):
    name = dtype.name
    if name == "bf16":
        return np.left_shift(raw, np.uint32(16), dtype=u4).view(f4)[()]
    if name == "int1":
        return raw != 0
    return raw[()] if STORAGE[name] is CARRIER[name] else raw.view(CARRIER[name])[()]
