"""tl.dot: sums of products with the precision of the tensor core that would compute them."""
from __future__ import annotations

import numpy as np

from .conversions import CARRIER, FP8, FP16, FP32, FP64, INT1, INT8, INT32, round_bf16
from .values import Value


def _cut_to_tf32(x):
    """Tensor cores do not look at the last 13 bits of float32 operands."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


def _product(a, b, dtype, precision):
    """The sum of products of two blocks as the tensor cores of that precision see it."""
    if dtype.is_int():
        return np.matmul(a.astype("f8"), b.astype("f8")).astype("i4")
    if dtype is FP64:
        return np.matmul(a, b)
    a, b = a.astype("f4"), b.astype("f4")
    if dtype is FP32 and precision == "tf32":
        return np.matmul(_cut_to_tf32(a), _cut_to_tf32(b))
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
    if input.dtype is not other.dtype and not (input.dtype.name in FP8 and other.dtype.name in FP8):
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
