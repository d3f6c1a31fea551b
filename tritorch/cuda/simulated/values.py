"""Blocks, scalars and pointers of a running Triton kernel as numpy arrays, with Triton's own rules for types.

A value carries its numbers in numpy: bfloat16 as float32 rounded after every operation, fp8 as ml_dtypes arrays, everything
else as itself. A scalar is a numpy scalar, so that `x.shape == ()` is what distinguishes it from a block.
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
FP8_MAX = {"fp8e4nv": 448.0, "fp8e5": 57344.0}
ON_BITS = {np.add: np.bitwise_xor, np.subtract: np.bitwise_xor, np.multiply: np.bitwise_and}   # arithmetic modulo two, for int1
f4, u2, u4 = np.dtype("f4"), np.dtype("u2"), np.dtype("u4")


def round_bf16(x):
    """Nearest bfloat16, ties to even, of a float32 array or scalar; still float32."""
    bits = np.asarray(x, f4).view(u4)
    out = ((bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)).view(f4)
    wrong = np.isnan(x)
    return np.where(wrong, f4.type(np.nan), out)[()] if wrong.any() else out[()]


def to_integers(x, target):
    """Float to integer as the hardware does it: towards zero, saturating in 32 or 64 bits, NaN to 0."""
    bits = max(32, target.itemsize * 8)
    low, high = (0, 2**bits) if target.kind == "u" and bits == target.itemsize * 8 else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    x = np.trunc(np.asarray(x, "f8"))
    inside = (x >= low) & (x < high)
    wide = np.dtype(f"{'u' if low == 0 else 'i'}{bits // 8}")
    if inside.all():
        return x.astype(wide).astype(target)[()]
    out = np.where(inside, x, 0).astype(wide)
    return np.where(x >= high, wide.type(high - 1), np.where(x < low, wide.type(low), out)).astype(target)[()]


def to_fp8(x, name):
    return np.clip(x, -FP8_MAX[name], FP8_MAX[name]).astype(CARRIER[name])


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
    if source.name in FP8_MAX:
        data = data.astype(f4)
    if kind == 2:
        if rounding == "rtz":
            return towards_zero(data, target)
        if name == "bf16":
            return round_bf16(data.astype(f4))
        return to_fp8(data.astype(f4), name) if name in FP8_MAX else data.astype(CARRIER[name])
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
    if a.name in FP8_MAX and b.name in FP8_MAX:
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


_common, _weak, _alone = {}, {}, {}


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


class Value:
    """A block or scalar of a running kernel: what `tl.tensor` is to a compiled one."""

    __slots__ = ("data", "dtype")
    __hash__ = None

    def __init__(self, data, dtype):
        self.data = data
        self.dtype = dtype

    shape = property(lambda self: self.data.shape)
    numel = property(lambda self: self.data.size)
    T = property(lambda self: self.like(np.swapaxes(self.data, -1, -2)))

    @property
    def type(self):
        return tl.block_type(self.dtype, list(self.data.shape)) if self.data.shape else self.dtype

    def like(self, data):
        """The same type on other numbers: for moves that compute nothing."""
        return Value(data, self.dtype)

    def cast(self, dtype, fp_downcast_rounding=None, bitcast=False):
        if bitcast:
            return self.reinterpreted(dtype)
        if dtype.is_ptr():
            return Pointer.of(self.data, dtype)
        return Value(converted(self.data, self.dtype, dtype, fp_downcast_rounding), dtype)

    to = cast

    def reinterpreted(self, dtype):
        if dtype.is_ptr():
            return Pointer.of(self.data, dtype)
        if self.dtype.primitive_bitwidth != dtype.primitive_bitwidth:
            raise ValueError(f"Cannot bitcast data-type of size {self.dtype.primitive_bitwidth} to data-type of size {dtype.primitive_bitwidth}")
        return Value(from_storage(to_storage(self.data, self.dtype).view(STORAGE[dtype.name]), dtype), dtype)

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        for part in index:
            if part is not None and part != slice(None):
                raise ValueError(f"unsupported tensor index: {part}")
        return self.like(np.asarray(self.data)[index])

    def __bool__(self):
        if self.data.size != 1:
            raise ValueError(f"a block of shape {self.shape} has no single truth value; use tl.where or a reduction")
        return bool(self.data)

    def __neg__(self):
        if self.dtype is INT1:
            return self
        return Value(CARRIER[self.dtype.name].type(0) - self.data, self.dtype)

    def __invert__(self):
        if KIND[self.dtype.name] == 2:
            raise ValueError(f"wrong type argument to unary invert ({self.dtype})")
        return Value(np.invert(self.data), self.dtype)

    def __rshift__(self, other):
        return arithmetic(np.right_shift, *bits(self, other))

    def __rrshift__(self, other):
        return arithmetic(np.right_shift, *bits(other, self))

    def __truediv__(self, other):
        return divided(self, other)

    def __rtruediv__(self, other):
        return divided(other, self)

    def __repr__(self):
        return f"{self.dtype}{list(self.shape)} {self.data}"


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


def to_value(x):
    """A Python number as the scalar Triton makes of it when it stands alone; values pass."""
    if isinstance(x, Value):
        return x
    if not isinstance(x, (bool, int, float)):
        raise TypeError(f"cannot convert {x} of type {type(x)} to tensor")
    key = (type(x), x)
    found = _alone.get(key)
    if found is None:
        if len(_alone) > 10000:
            _alone.clear()
        dtype = number_type(x)
        found = _alone[key] = Value(constant(x, dtype), dtype)
    return found


def operands(a, b, division=False):
    """The numbers of both sides in their common type, and that type."""
    if isinstance(a, Value):
        if isinstance(b, Value):
            if a.dtype is b.dtype and not division:
                return a.data, b.data, a.dtype
            dtype = common(a.dtype, b.dtype, division)
            return converted(a.data, a.dtype, dtype), converted(b.data, b.dtype, dtype), dtype
        number, dtype = weak(b, a.dtype, division)
        return converted(a.data, a.dtype, dtype), number, dtype
    if isinstance(b, Value):
        number, dtype = weak(a, b.dtype, division)
        return number, converted(b.data, b.dtype, dtype), dtype
    return operands(to_value(a), to_value(b), division)


def bits(a, b):
    x, y, dtype = operands(a, b)
    if KIND[dtype.name] == 2:
        raise TypeError(f"invalid operands of type {to_value(a).dtype} and {to_value(b).dtype}")
    return x, y, dtype


def arithmetic(ufunc, x, y, dtype):
    if dtype is INT1:
        ufunc = ON_BITS.get(ufunc, ufunc)
    out = ufunc(x, y)
    return Value(round_bf16(out) if dtype is BF16 else out, dtype)


def divided(a, b):
    x, y, dtype = operands(a, b, division=True)
    if KIND[dtype.name] < 2:
        return Value(np.divide(x.astype(f4), y.astype(f4)), FP32)
    return arithmetic(np.divide, x, y, dtype)


def floor_divided(a, b):
    x, y, dtype = operands(a, b, division=True)
    if KIND[dtype.name] == 2:
        raise TypeError(f"unexpected type {dtype}")
    # C division: towards zero. numpy floors, so the remainder of C goes away first.
    return Value(np.floor_divide(x - np.fmod(x, y), y) if SIGNED[dtype.name] else np.floor_divide(x, y), dtype)


def remainder(a, b):
    x, y, dtype = operands(a, b, division=True)
    return arithmetic(np.fmod, x, y, dtype)


def _define(name, function, reflected=True):
    setattr(Value, f"__{name}__", lambda self, other: function(self, other))
    if reflected:
        setattr(Value, f"__r{name}__", lambda self, other: function(other, self))


def _arithmetic(ufunc, sides=operands):
    def function(a, b):
        if isinstance(b, Pointer) or isinstance(a, Pointer):
            return NotImplemented
        return arithmetic(ufunc, *sides(a, b))
    return function


def _comparison(ufunc):
    def function(a, b):
        x, y, _ = operands(to_value(a), to_value(b))
        return Value(ufunc(x, y), INT1)
    return function


for _name, _ufunc in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items():
    _define(_name, _arithmetic(_ufunc))
for _name, _ufunc in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "lshift": np.left_shift}.items():
    _define(_name, _arithmetic(_ufunc, bits))
_define("floordiv", floor_divided)
_define("mod", remainder)
for _name, _ufunc in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}.items():
    _define(_name, _comparison(_ufunc), reflected=False)


class Pointer(Value):
    """A pointer or block of pointers: lane i points at `address + data[i] * itemsize`. Scalar offsets live in the address.

    `origin` is the kernel argument it came from (None: computed from integers), which is all it may reach.
    """

    __slots__ = ("address", "origin")
    HERE = np.int64(0)

    def __init__(self, address, dtype, origin=None, data=HERE):
        self.data = data
        self.dtype = dtype
        self.address = address
        self.origin = origin

    @staticmethod
    def of(addresses, dtype, origin=None):
        """The pointers of these integer addresses."""
        if not addresses.shape:
            return Pointer(int(addresses), dtype, origin)
        addresses, size = addresses.astype(np.int64), itemsize(dtype)
        base = int(addresses.flat[0])
        steps, rest = np.divmod(addresses - base, size)
        if rest.any():
            raise ValueError(f"expected every pointer in a block to be a multiple of {size} bytes from the others")
        return Pointer(base, dtype, origin, steps)

    def like(self, data):
        return Pointer(self.address, self.dtype, self.origin, data)

    def addresses(self):
        return self.address + self.data.astype(np.int64) * np.int64(itemsize(self.dtype))

    def moved(self, steps):
        if not isinstance(steps, Value):
            steps = to_value(steps)
        if isinstance(steps, Pointer) or KIND[steps.dtype.name] == 2:
            raise TypeError(f"invalid operands of type {self.dtype} and {steps.dtype}")
        if not steps.data.shape:
            return Pointer(self.address + itemsize(self.dtype) * int(steps.data), self.dtype, self.origin, self.data)
        data = steps.data if self.data is Pointer.HERE else np.add(self.data, steps.data, dtype=np.int64)
        return Pointer(self.address, self.dtype, self.origin, data)

    __add__ = __radd__ = moved

    def __sub__(self, steps):
        return self.moved(-steps.cast(INT64) if isinstance(steps, Value) else -steps)

    def cast(self, dtype, fp_downcast_rounding=None, bitcast=False):
        if dtype.is_ptr():
            if self.data is Pointer.HERE or itemsize(dtype) == itemsize(self.dtype):
                return Pointer(self.address, dtype, self.origin, self.data)
            return Pointer.of(self.addresses(), dtype, self.origin)
        return Value(self.addresses()[()], INT64).cast(dtype)

    to = cast

    def __eq__(self, other):
        return Value(self.addresses() == address_of(other), INT1)

    def __ne__(self, other):
        return Value(self.addresses() != address_of(other), INT1)


def address_of(x):
    return x.addresses() if isinstance(x, Pointer) else to_value(x).data


def itemsize(pointer_dtype):
    return STORAGE[pointer_dtype.element_ty.name].itemsize
