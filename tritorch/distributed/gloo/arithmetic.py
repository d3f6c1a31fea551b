"""How the values of ranks become one, on numpy arrays: in place, and in the order in which they are given."""
import numpy as np

from tritorch.distributed.options import ReduceOp
from tritorch.dtype import bool as truth
from tritorch.errors import check

_NUMBERS = {ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
_BITS = {ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor}
_TRUTH = {ReduceOp.SUM: np.logical_or, ReduceOp.PRODUCT: np.logical_and, ReduceOp.MIN: np.logical_and, ReduceOp.MAX: np.logical_or, **_BITS}


def combiner(name, op, dtype):
    """The numpy function of two arrays for a ReduceOp. RuntimeError for what a dtype has not."""
    check(op is not ReduceOp.PREMUL_SUM, name, "an op of gloo", "PREMUL_SUM, which is of nccl")
    check(op not in _BITS or not dtype.is_floating_point, name, "whole numbers for an op on bits", dtype)
    check(dtype is not truth or op is not ReduceOp.AVG, name, "numbers for an average", dtype, use="SUM, or x.float()")
    return (_TRUTH if dtype is truth else {**_NUMBERS, **_BITS})[op]


def average(a, count):
    """Divide an array by a whole number, towards zero where it has whole numbers."""
    if a.dtype.kind in "iu":
        whole, rest = np.divmod(a, count)
        a[...] = whole + ((rest != 0) & (a < 0))
    else:
        np.divide(a, a.dtype.type(count), out=a)


def combined(arrays, combine, dtype, op):
    """All arrays as one, in their order; half types are added up in float32 and rounded once."""
    wide = dtype.compute is not dtype and combine is not np.minimum and combine is not np.maximum
    total = arrays[0].astype(np.float32) if wide else arrays[0].copy()
    for a in arrays[1:]:
        combine(total, a.astype(np.float32) if wide else a, out=total)
    if op is ReduceOp.AVG:
        average(total, len(arrays))
    return total.astype(arrays[0].dtype) if wide else total
