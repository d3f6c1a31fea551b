"""`triton.language` on numpy: what a kernel's `tl.` means while it runs on the simulated device."""
from __future__ import annotations

import builtins
import math

import numpy as np
import triton.language as tl

from . import accesses, special
from .accesses import Descriptor, Program, as_int
from .values import (
    BF16, CARRIER, FP8_MAX, FP16, FP32, FP64, INT1, INT8, INT32, INT64, KIND, SIGNED, UINT32, UINT64, Pointer, Value, arithmetic, common,
    constant, converted, divided, operands, round_bf16, to_value,
)

LIMIT = 1048576
SLOTS = {0: "program_id", 1: "num_programs"}


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


_ranges = {}


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
    return Value(np.full(shape, np.reshape(data, ()), CARRIER[dtype.name]), dtype)


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
    return input.like(np.reshape(input.data, shape))


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
    out = minimum(maximum(x, min, propagate_nan), max, propagate_nan)
    return out


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
    numerator = exp(x - max(x, axis, keep_dims=keep_dims))
    return numerator / sum(numerator, axis, keep_dims=keep_dims)


# dot products

def _tf32(x):
    raw = np.ascontiguousarray(x).view(np.uint32)
    return ((raw + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


def _product(a, b, dtype, precision):
    """The sum of products of two blocks as the tensor cores of that precision see it."""
    if dtype.is_int():
        return np.matmul(a.astype("f8"), b.astype("f8")).astype("i4")
    if dtype is FP64:
        return np.matmul(a, b)
    a, b = a.astype("f4"), b.astype("f4")
    if dtype is FP32 and precision == "tf32":
        return np.matmul(_tf32(a), _tf32(b))
    if dtype is FP32 and precision == "bf16x3":
        high_a, high_b = round_bf16(a), round_bf16(b)
        low_a, low_b = round_bf16(a - high_a), round_bf16(b - high_b)
        return np.matmul(high_a, low_b) + np.matmul(low_a, high_b) + np.matmul(high_a, high_b)
    return np.matmul(a, b)


def dot(input, other, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=FP32):
    if input_precision is None:
        input_precision = "tf32" if allow_tf32 is None or allow_tf32 else "ieee"
    if input_precision.lower() not in PRECISIONS:
        raise AssertionError(f"input_precision must be one of {PRECISIONS}. Got {input_precision}")
    if input.dtype is not other.dtype and not (input.dtype.name in FP8_MAX and other.dtype.name in FP8_MAX):
        raise AssertionError(f"Both operands must be same dtype. Got {input.dtype} and {other.dtype}")
    if input.dtype.is_int() and input.dtype is not INT8 or input.dtype is INT1:
        raise AssertionError(f"Unsupported lhs dtype {input.dtype}")
    least = 32 if input.dtype.primitive_bitwidth == 8 else 16
    if len(input.shape) != len(other.shape) or len(input.shape) < 2 or input.shape[-1] != other.shape[-2] or input.shape[-1] < least:
        raise AssertionError(f"expected blocks of shape (M, K) and (K, N) with K >= {least}, got {input.shape} and {other.shape}")
    out_type = INT32 if input.dtype.is_int() else FP64 if input.dtype is FP64 else out_dtype if input.dtype is FP16 else FP32
    product = _product(input.data, other.data, input.dtype, input_precision.lower())
    if acc is not None:
        if acc.dtype is not out_type or acc.shape != product.shape:
            raise AssertionError(f"expected an accumulator of {out_type} and shape {product.shape}, got {acc.dtype} and {acc.shape}")
        product = product + acc.data
    return Value(product.astype(CARRIER[out_type.name]), out_type)


# reductions and scans

def _tuple_of(x):
    return x if isinstance(x, tuple) else (x,)


def reduce(input, axis, combine_fn, keep_dims=False):
    """Neighbours are combined pair by pair, so the order of the elements holds for functions that do not commute."""
    several = isinstance(input, tuple)
    parts = _tuple_of(input)
    rank = len(parts[0].shape)
    if axis is None:
        parts, along = tuple(ravel(p) for p in parts), 0
    else:
        along = axis
    parts = tuple(p.like(np.moveaxis(p.data, along, -1)) for p in parts)
    while parts[0].shape[-1] > 1:
        even, odd = ([p.like(p.data[..., i::2]) for p in parts] for i in (0, 1))
        parts = _tuple_of(combine_fn(*even, *odd))
    out = tuple(_reduced(p.data[..., 0], p.dtype, axis, keep_dims, rank) for p in parts)
    return out if several else out[0]


def _reduced(data, dtype, axis, keep_dims, rank):
    if keep_dims:
        data = np.expand_dims(data, axis if axis is not None else tuple(range(rank)))
    return Value(data if data.shape else data[()], dtype)


def associative_scan(input, axis, combine_fn, reverse=False):
    several = isinstance(input, tuple)
    parts = [np.moveaxis(p.data, axis, -1) for p in _tuple_of(input)]
    types = [p.dtype for p in _tuple_of(input)]
    if reverse:
        parts = [p[..., ::-1] for p in parts]
    step, n = 1, parts[0].shape[-1]
    while step < n:
        older = [Value(p[..., :-step], t) for p, t in zip(parts, types)]
        newer = [Value(p[..., step:], t) for p, t in zip(parts, types)]
        combined = _tuple_of(combine_fn(*older, *newer))
        parts = [np.concatenate([p[..., :step], c.data.astype(p.dtype, copy=False)], -1) for p, c in zip(parts, combined)]
        step *= 2
    if reverse:
        parts = [p[..., ::-1] for p in parts]
    out = tuple(Value(np.moveaxis(p, -1, axis), t) for p, t in zip(parts, types))
    return out if several else out[0]


def _reduce_by(ufunc, input, axis, keep_dims):
    data = ufunc.reduce(input.data, axis=axis if axis is not None else None, keepdims=keep_dims, dtype=input.data.dtype)
    return Value(round_bf16(data) if input.dtype is BF16 else data, input.dtype)


def _sum_type(input, dtype):
    name = input.dtype.name
    if dtype is None and KIND[name] < 2 and input.dtype.primitive_bitwidth < 32:
        dtype = INT32 if SIGNED[name] else UINT32
    return input if dtype is None else input.cast(dtype)


def sum(input, axis=None, keep_dims=False, dtype=None):
    return _reduce_by(np.add, _sum_type(input, dtype), axis, keep_dims)


def xor_sum(input, axis=None, keep_dims=False):
    return _reduce_by(np.bitwise_xor, input, axis, keep_dims)


def reduce_or(input, axis, keep_dims=False):
    return _reduce_by(np.bitwise_or, input, axis, keep_dims)


def _at_least_32_bits(input):
    if input.dtype.primitive_bitwidth >= 32:
        return input
    return input.cast(FP32 if KIND[input.dtype.name] == 2 else INT32)


def _better(compare, left):
    """Triton's own combination of (value, index) pairs; where NaN is among the values it decides as the GPU would."""
    def combine(value1, index1, value2, index2):
        first = compare(value1.data, value2.data)
        if left:
            first = first | ((value1.data == value2.data) & (index1.data < index2.data))
        return value1.like(np.where(first, value1.data, value2.data)), index1.like(np.where(first, index1.data, index2.data))
    return combine


def _selection(ufunc, compare, arg):
    def with_indices(input, axis, left, keep_dims):
        input = input.cast(FP32) if input.dtype is BF16 else input
        if axis is None:
            input = ravel(input)
        along = 0 if axis is None else axis
        data = input.data
        if left and not (KIND[input.dtype.name] == 2 and np.isnan(data).any()):
            index = arg(data, along, keepdims=True)
            value = np.take_along_axis(data, index, along)
            index = index.astype(np.int32)
            if not keep_dims:
                value, index = value.squeeze(along)[()], index.squeeze(along)[()]
            return Value(value, input.dtype), Value(index, INT32)
        shape = [1] * data.ndim
        shape[along] = -1
        index = Value(np.broadcast_to(np.arange(data.shape[along], dtype=np.int32).reshape(shape), data.shape), INT32)
        return reduce((input, index), along, _better(compare, left), keep_dims)

    def function(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
        if return_indices:
            return with_indices(input, axis, return_indices_tie_break_left, keep_dims)
        return _reduce_by(ufunc, _at_least_32_bits(input), axis, keep_dims)

    def index(input, axis, tie_break_left=True, keep_dims=False):
        return with_indices(input, axis, tie_break_left, keep_dims)[1]

    return function, index


max, argmax = _selection(np.fmax, np.greater, np.argmax)
min, argmin = _selection(np.fmin, np.less, np.argmin)


def _accumulated(ufunc, input, axis, reverse):
    input = input.cast(FP32) if input.dtype is BF16 else input
    data = np.flip(input.data, axis) if reverse else input.data
    out = ufunc.accumulate(data, axis=axis, dtype=data.dtype)
    return Value(np.flip(out, axis) if reverse else out, input.dtype)


def cumsum(input, axis=0, reverse=False, dtype=None):
    return _accumulated(np.add, _sum_type(input, dtype), axis, reverse)


def cumprod(input, axis=0, reverse=False):
    return _accumulated(np.multiply, input, axis, reverse)


def sort(x, dim=None, descending=False):
    if dim is not None and dim % len(x.shape) != len(x.shape) - 1:
        raise AssertionError("only minor dimension is currently supported")
    out = np.sort(x.data, -1)
    return x.like(out[..., ::-1] if descending else out)


def topk(x, k, dim=None):
    return x.like(sort(x, dim, descending=True).data[..., :k])


def histogram(input, num_bins, mask=None):
    data = input.data if mask is None else input.data[np.broadcast_to(mask.data, input.shape)]
    data = data[(data >= 0) & (data < num_bins)]
    return Value(np.bincount(data, minlength=num_bins).astype(np.int32), INT32)


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


NAMES = {name: value for name, value in globals().items() if callable(value) and not name.startswith("_") and name not in (
    "checked_shape", "unpacked", "range_", "nothing", "refused", "arithmetic", "common", "constant", "converted", "divided", "operands",
    "round_bf16", "to_value", "as_int", "Program", "Descriptor", "Value", "Pointer")}
NAMES |= {f"atomic_{name}": accesses.atomic(name) for name in accesses.UPDATES}
NAMES |= {
    "range": range_, "load": accesses.load, "store": accesses.store, "atomic_cas": accesses.atomic_cas, "view": reshape,
    "to_tensor": to_value, "tensor": Value, "tensor_descriptor": Descriptor, "tensor_descriptor_base": Descriptor, "debug_barrier": nothing,
    "device_print": print, "static_print": print, "tuple": tuple, "gdc_wait": nothing, "gdc_launch_dependents": nothing,
}
NAMES |= {name: refused(name) for name in ("inline_asm_elementwise", "dot_scaled", "map_elementwise", "make_block_ptr", "advance")}

for _name in ("broadcast_to trans permute split view reshape expand_dims item exp log cos sin sqrt rsqrt exp2 log2 abs floor ceil erf reduce"
              " associative_scan gather histogram cdiv sigmoid softmax ravel max min argmax argmin sum xor_sum reduce_or cumsum cumprod flip"
              " store atomic_cas atomic_xchg atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor").split():
    setattr(Value, _name, NAMES[_name])
