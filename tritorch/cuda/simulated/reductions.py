"""Reductions, scans, sorting and counting of a running kernel."""
from __future__ import annotations

import numpy as np

from .conversions import BF16, FP32, INT32, KIND, SIGNED, UINT32, round_bf16
from .values import Value


def _tuple_of(x):
    return x if isinstance(x, tuple) else (x,)


def reduce(input, axis, combine_fn, keep_dims=False):
    """Neighbours are combined pair by pair, so the order of the elements holds for functions that do not commute."""
    several = isinstance(input, tuple)
    parts = _tuple_of(input)
    rank = len(parts[0].shape)
    if axis is None:
        parts, along = tuple(p.like(p.data.reshape(-1)) for p in parts), 0
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
            input = input.like(input.data.reshape(-1))
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
