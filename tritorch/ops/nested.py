"""Nested lists, numbers and arrays as numpy arrays of the dtype that PyTorch would infer: the data that `tritorch.tensor` takes."""
import numbers
from collections.abc import Sequence

import numpy as np

from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.arrays import store_rounded
from tritorch.ops.copy import check_fits
from tritorch.quiet import quietly
from tritorch.tensor import Tensor

NUMBERS = {bool, int, float, complex}


def to_array(data, dtype):
    """A fresh numpy array of the dtype that PyTorch would infer."""
    if isinstance(data, (np.ndarray, np.generic)):
        kind = types.from_numpy_dtype(data.dtype) if dtype is None else types.as_dtype(dtype)
        return _rounded(np.asarray(data), kind.numpy)
    if dtype is None:
        dtype = _inferred(data)
    kind = types.as_dtype(dtype).numpy
    plain = _plain(data)
    try:
        out = np.array(plain)
    except ValueError as error:
        raise ValueError(f"tensor: expected nested sequences of equal lengths, got {error}") from None
    if out.dtype == kind:
        return out
    check(out.dtype.kind in "iufbc", "tensor", "numbers in nested sequences", out.dtype, error=TypeError)
    if out.dtype.kind == "c" and kind.kind != "c":
        raise TypeError(f"tensor: expected real numbers for {dtype}, got complex ones; use .real")
    if kind.kind in "iu" and out.size and out.dtype.kind != "b":
        for value in (out.min(), out.max()):
            check_fits("tensor", value.item(), types.as_dtype(dtype))
    return _rounded(out, kind)


def _rounded(array, kind):
    out = np.empty(array.shape, kind)
    quietly(store_rounded, out, array)
    return out


def _plain(data):
    """Nested data with tensors as lists."""
    if data.__class__ in NUMBERS:
        return data
    if isinstance(data, Tensor):
        return data.item() if data.numel() == 1 else data.tolist()       # one element is a number, whatever its dims, as in PyTorch
    return [_plain(v) for v in data] if isinstance(data, (list, tuple, Sequence)) and not isinstance(data, str) else data


def _inferred(data):
    """The dtype of nested data: that of its tensors or arrays, else by the highest category of its numbers."""
    found = None
    stack = [data]
    while stack:
        value = stack.pop()
        if value.__class__ in NUMBERS:                                   # to ask for abstract classes costs 1 µs each
            kind = number_dtype(value)
        elif isinstance(value, (list, tuple, Sequence)) and not isinstance(value, (str, bytes)):
            stack += value
            continue
        elif isinstance(value, Tensor):
            kind = value.dtype
        elif isinstance(value, (np.ndarray, np.generic)):
            kind = types.from_numpy_dtype(value.dtype)
        elif isinstance(value, numbers.Number):
            kind = number_dtype(value)
        else:
            error = TypeError if isinstance(value, str) else RuntimeError
            raise error(f"tensor: expected numbers in nested sequences, got {type(value).__name__}")
        found = kind if found is None or found is kind else types.promote_types(found, kind)
    return types.get_default_dtype() if found is None else found


def number_dtype(value):
    """The dtype of a Python number."""
    if isinstance(value, (bool, np.bool_)):
        return types.bool
    if isinstance(value, (complex, np.complexfloating)):
        return types.get_default_dtype().to_complex()
    return types.int64 if isinstance(value, (int, np.integer)) else types.get_default_dtype()
