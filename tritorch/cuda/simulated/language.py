"""`triton.language` on numpy: what a kernel's `tl.` means while it runs on the simulated device."""
from __future__ import annotations

import builtins
import math

import numpy as np
import triton.language as tl

from . import reductions, special
from .accesses import Descriptor, Program, as_int
from .conversions import CARRIER, FP32, FP64, INT1, INT32, INT64, KIND, SIGNED, UINT32, UINT64, common, constant, converted
from .values import Pointer, Value, divided, operands, to_value

LIMIT = 1048576


def checked_shape(shape):
    """A block's shape: powers of two known when the kernel is compiled, at most 1048576 elements."""
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for i, d in enumerate(shape):
        if not isinstance(d, int):
            raise TypeError(f"Shape element {i} must have type `constexpr[int]`, got `{type(d).__name__}`")
        if d & (d - 1) or d < 1:
            raise ValueError(f"Shape element {i} must be a power of 2")
    if math.prod(shape) > LIMIT:
        raise ValueError(f"numel ({math.prod(shape)}) exceeds triton maximum tensor numel ({LIMIT})")
    return shape


def unpacked(shape):
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


# programs and blocks

def program_id(axis):
    return Value(np.int32(Program.index[axis]), INT32)


def num_programs(axis):
    return Value(np.int32(Program.grid[axis]), INT32)


_ranges: dict = {}


def arange(start, end):
    if type(start) is not int or type(end) is not int:
        raise ValueError("arange's arguments must be of type tl.constexpr")
    found = _ranges.get((start, end))
    if found is None:
        if end <= start:
            raise ValueError("arange's end argument must be greater than the start argument")
        checked_shape((end - start,))
        found = np.arange(start, end, dtype=np.int32)
        found.flags.writeable = False
        _ranges[start, end] = found
    return Value(found, INT32)


def full(shape, value, dtype):
    shape = checked_shape(unpacked((shape,)))
    data = converted(value.data, value.dtype, dtype) if isinstance(value, Value) else constant(value, dtype)
    out = np.empty(shape, CARRIER[dtype.name])
    out[...] = data.reshape(())
    return Value(out, dtype)


def zeros(shape, dtype):
    return full(shape, 0, dtype)


def zeros_like(input):
    return Value(np.zeros_like(input.data), input.dtype)


def cast(input, dtype, fp_downcast_rounding=None, bitcast=False):
    return to_value(input).cast(dtype, fp_downcast_rounding, bitcast)


# moving elements

def broadcast(input, other):
    shape = np.broadcast_shapes(input.shape, other.shape)
    return input.like(np.broadcast_to(input.data, shape)), other.like(np.broadcast_to(other.data, shape))


def broadcast_to(input, *shape):
    input, shape = to_value(input), checked_shape(unpacked(shape))
    if input.shape and len(input.shape) != len(shape):
        raise ValueError(f"Cannot broadcast, rank mismatch: {input.shape}, {shape}")
    return input.like(np.broadcast_to(input.data, shape))


def trans(input, *dims):
    dims = unpacked(dims)
    if not dims:
        dims = (*range(len(input.shape) - 2), len(input.shape) - 1, len(input.shape) - 2)
    return permute(input, *dims)


def permute(input, *dims):
    return input.like(np.transpose(input.data, unpacked(dims)))


def reshape(input, *shape, can_reorder=False):
    shape = checked_shape(unpacked(shape))
    if input.data.size != math.prod(shape):
        raise ValueError("reshape() cannot change total number of elements in tensor")
    return input.like(input.data.reshape(shape))


def ravel(x, can_reorder=False):
    return x.like(np.reshape(x.data, (x.data.size,)))


def expand_dims(input, axis):
    input = to_value(input)
    return input.like(np.expand_dims(input.data, axis))


def cat(input, other, can_reorder=False, dim=0):
    if not can_reorder and dim == 0:
        raise AssertionError("current implementation of `cat` always may reorder elements")
    x, y, dtype = operands(input, other)
    return Value(np.concatenate([x, y], dim), dtype)


def join(a, b):
    x, y, dtype = operands(a, b)
    return Value(np.stack(np.broadcast_arrays(x, y), -1), dtype)


def split(a):
    if a.shape[-1] != 2:
        raise AssertionError(f"split needs a last dimension of 2, got {a.shape}")
    return a.like(a.data[..., 0]), a.like(a.data[..., 1])


def interleave(a, b):
    joined = join(a, b)
    return joined if len(joined.shape) == 1 else Value(joined.data.reshape(*joined.shape[:-2], -1), joined.dtype)


def flip(x, dim=None):
    return x.like(np.flip(x.data, -1 if dim is None else dim))


def gather(src, index, axis):
    return src.like(np.take_along_axis(src.data, index.data.astype(np.intp), axis))


def item(input):
    return input.like(input.data.reshape(-1)[0])


def where(condition, x, y):
    condition = to_value(condition)
    chosen = condition.data if condition.dtype is INT1 else condition.data != 0
    if isinstance(x, Pointer) or isinstance(y, Pointer):
        origin = x.origin if x.origin is y.origin else None
        return Pointer.of(np.where(chosen, x.addresses(), y.addresses()), x.dtype, origin)
    x, y, dtype = operands(x, y)
    return Value(np.where(chosen, x, y)[()], dtype)


# arithmetic

def add(x, y, sanitize_overflow=True):
    return to_value(x) + y


def sub(x, y, sanitize_overflow=True):
    return to_value(x) - y


def mul(x, y, sanitize_overflow=True):
    return to_value(x) * y


def _extreme(python, ignoring, propagating):
    def function(x, y, propagate_nan=tl.PropagateNan.NONE):
        if not (isinstance(x, Value) or isinstance(y, Value)):
            return python(x, y)
        a, b, dtype = operands(x, y)
        return Value((propagating if propagate_nan == tl.PropagateNan.ALL else ignoring)(a, b), dtype)
    return function


minimum = _extreme(builtins.min, np.fmin, np.minimum)
maximum = _extreme(builtins.max, np.fmax, np.maximum)


def clamp(x, min, max, propagate_nan=tl.PropagateNan.NONE):
    x = to_value(x)
    if KIND[x.dtype.name] < 2:
        raise TypeError(f"Unexpected dtype {x.dtype}. Only floating point clamp is supported")
    return minimum(maximum(x, min, propagate_nan), max, propagate_nan)


def cdiv(x, div):
    return (x + (div - 1)) // div


def umulhi(x, y):
    a, b, dtype = operands(x, y)
    if dtype.primitive_bitwidth == 32:
        wide = np.int64 if SIGNED[dtype.name] else np.uint64
        return Value((np.multiply(a, b, dtype=wide) >> wide(32)).astype(CARRIER[dtype.name]), dtype)
    return Value(special.high_product(a, b).astype(CARRIER[dtype.name]), dtype)


def fma(x, y, z):
    x, y, z = (to_value(v) for v in (x, y, z))
    dtype = common(common(x.dtype, y.dtype), z.dtype)
    a, b, c = (converted(v.data, v.dtype, dtype) for v in (x, y, z))
    if dtype is FP64:
        return Value(a * b + c, dtype)
    out = a.astype("f8") * b + c
    return Value(converted(out, FP64, dtype), dtype)


def abs(x):
    x = to_value(x)
    return Value(np.abs(x.data), x.dtype)


def fdiv(x, y, ieee_rounding=False):
    return divided(x, y)


def div_rn(x, y):
    return divided(x, y)


def _function(numpy):
    def function(x):
        x = to_value(x)
        if x.dtype is not FP32 and x.dtype is not FP64:
            raise ValueError(f"Expected dtype ['fp32', 'fp64'] but got {x.dtype}")
        return Value(numpy(x.data), x.dtype)
    return function


exp, exp2, log, log2, sin, cos, sqrt, sqrt_rn, floor, ceil, rsqrt, erf = map(_function, (
    np.exp, np.exp2, np.log, np.log2, np.sin, np.cos, np.sqrt, np.sqrt, np.floor, np.ceil, special.rsqrt, special.erf))


def sigmoid(x):
    return 1 / (1 + exp(-x))


def softmax(x, dim=None, keep_dims=False, ieee_rounding=False):
    axis = 0 if dim is None else dim
    numerator = exp(x - reductions.max(x, axis, keep_dims=keep_dims))
    return numerator / reductions.sum(numerator, axis, keep_dims=keep_dims)


# random numbers: Philox4x32-10, the rounds of Salmon et al. 2011 done in uint64 at once

def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds=10):
    if c0.dtype is UINT64:
        raise TypeError("philox on 64-bit counters is not simulated; use 32-bit counters")
    words = [np.asarray(v.data, np.uint64) for v in (c0, c1, c2, c3, to_value(k0), to_value(k1))]
    out = special.philox(*words, n_rounds)
    return tuple(Value(np.broadcast_to(v, np.broadcast_shapes(c0.shape, c1.shape, c2.shape, c3.shape))[()], UINT32) for v in out)


# hints, checks and loops

def _same(x, *args):
    return x


multiple_of = max_contiguous = max_constancy = _same


def assume(cond):
    if not np.all(to_value(cond).data):
        raise RuntimeError("tl.assume was told something that is not true")


def device_assert(cond, msg="", mask=None):
    holds = to_value(cond).data | ~mask.data if mask is not None else to_value(cond).data
    if not np.all(holds):
        raise AssertionError(msg or "device_assert failed")


def static_assert(cond, msg=""):
    if not cond:
        raise AssertionError(msg or "static_assert failed")


def nothing(*args, **kwargs):
    return None


def range_(start, stop=None, step=1, num_stages=None, **hints):
    """A loop of the kernel: its variable is a scalar, as in compiled code."""
    if stop is None:
        start, stop = 0, start
    ends = [to_value(v) for v in (start, stop, step)]
    dtype = INT64 if any(v.dtype.primitive_bitwidth == 64 for v in ends) else INT32
    make = CARRIER[dtype.name].type
    for i in builtins.range(*(int(as_int(v)) for v in ends)):
        yield Value(make(i), dtype)


def static_range(start, stop=None, step=1):
    return builtins.range(start, stop, step) if stop is not None else builtins.range(start)


class constexpr:
    """Inside a running kernel constants are plain Python values."""

    def __new__(cls, value):
        return value


def make_tensor_descriptor(base, shape, strides, block_shape, padding_option="zero"):
    return Descriptor(base, shape, strides, block_shape, padding_option)


def load_tensor_descriptor(desc, offsets):
    return desc.load(offsets)


def store_tensor_descriptor(desc, offsets, value):
    return desc.store(offsets, value)


def refused(name):
    def function(*args, **kwargs):
        raise NotImplementedError(f"tl.{name} cannot run on the simulated device")
    return function
