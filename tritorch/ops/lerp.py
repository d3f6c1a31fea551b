"""Sums with a weight: lerp, addcmul, addcdiv."""
import numpy as np

from tritorch.dtype import promote
from tritorch.errors import check
from tritorch.ops.arrays import number
from tritorch.ops.compare import ternary
from tritorch.ops.elementwise import floats_or_complex
from tritorch.pairs import HOLOMORPHIC
from tritorch.tensor import Tensor


def _three(make):
    for a, b, c in (((3, 4), (3, 4), (3, 4)), ((3, 1), (4,), ()), ((0, 2), (2,), (2,))):
        yield make(*a), make(*b, low=0.5, high=2.0), make(*c, low=0.5, high=2.0)


def _lerp(a, b, w):
    kind = a.dtype if isinstance(a, np.ndarray) else b.dtype
    if isinstance(w, np.ndarray) and w.ndim:
        return np.where(np.abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w)).astype(kind)
    return (a + w * (b - a) if abs(w) < 0.5 else b - (b - a) * (1 - w)).astype(kind, copy=False)


def _lerp_dtype(name, input, end, weight):
    kinds = {v.dtype for v in (input, end) if isinstance(v, Tensor)}
    if isinstance(weight, Tensor) and weight.shape:                      # one of no dims is a number
        kinds.add(weight.dtype)
    check(len(kinds) == 1, name, "tensors of one dtype", *kinds)
    check(not isinstance(weight, complex) or kinds.pop().is_complex, name, "a real weight for real tensors", weight)
    return floats_or_complex(name, input, end)


def _divisible(name, input, tensor1, tensor2):
    floats_or_complex(name, tensor1, tensor2)
    return promote(input, tensor1, tensor2)


lerp = ternary("lerp", "input + weight · (end - input).", _lerp, result=_lerp_dtype, names=("input", "end", "weight"),
               complex=HOLOMORPHIC, samples=lambda make: [*_three(make), (make(4), make(4), 0.3)], grads={
    "input": lambda g, weight: g * (1 - weight), "end": lambda g, weight: g * weight, "weight": lambda g, input, end: g * (end - input)})
addcmul_value = ternary("addcmul_value", "input + value · tensor1 · tensor2.", lambda x, y, z, value: x + y * z * number(x.dtype, value),
                        "addcmul",
                        names=("input", "tensor1", "tensor2"), attrs=(("value", 1),), complex=HOLOMORPHIC,
                        samples=lambda make: [(*t, 0.5) for t in _three(make)], grads={
    "input": lambda g: g, "tensor1": lambda g, tensor2, value: g * (tensor2 * value),
    "tensor2": lambda g, tensor1, value: g * (tensor1 * value)})
addcdiv_value = ternary("addcdiv_value", "input + value · tensor1 / tensor2.", lambda x, y, z, value: x + y / z * number(x.dtype, value),
                        "addcdiv", result=_divisible,
                        names=("input", "tensor1", "tensor2"), attrs=(("value", 1),), complex=HOLOMORPHIC,
                        samples=lambda make: [(*t, 0.5) for t in _three(make)], grads={
    "input": lambda g: g, "tensor1": lambda g, tensor2, value: g * value / tensor2,
    "tensor2": lambda g, tensor1, tensor2, value: -g * (tensor1 / tensor2 / tensor2 * value)})


def _real_value(name, value, *tensors):
    """A complex value would be cut off beside real tensors."""
    check(not isinstance(value, complex) or any(x.dtype.is_complex for x in tensors), name, "a real value for real tensors", value)


def addcmul(input, tensor1, tensor2, last=None, *, value=1, out=None):
    """input + value · tensor1 · tensor2; the old order (input, value, tensor1, tensor2) works too."""
    if last is not None:
        value, tensor1, tensor2 = tensor1, tensor2, last
    _real_value("addcmul", value, input, tensor1, tensor2)
    return addcmul_value(input, tensor1, tensor2, value) if out is None else addcmul_value.into(out, input, tensor1, tensor2, value)


def addcdiv(input, tensor1, tensor2, last=None, *, value=1, out=None):
    """input + value · tensor1 / tensor2; the old order (input, value, tensor1, tensor2) works too."""
    if last is not None:
        value, tensor1, tensor2 = tensor1, tensor2, last
    _real_value("addcdiv", value, input, tensor1, tensor2)
    return addcdiv_value(input, tensor1, tensor2, value) if out is None else addcdiv_value.into(out, input, tensor1, tensor2, value)
