"""Stable order in numpy: an element becomes a whole number beside its place in 64 bits. All differ, so that any sort of them is stable, in
half the time of a stable argsort, and the first k are found without sorting the others."""
import numpy as np

LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def _numbers(x):
    """Whole numbers below 2³² in the order of x, NaN as the greatest and -0 as 0; None if they need more bits."""
    if x.dtype.kind == "f" and x.dtype.itemsize <= 4:
        x = x.astype(np.float32) + np.float32(0)
        np.copyto(x, np.nan, where=x != x)
        bits = x.view(np.int32)
        x = bits ^ bits >> 31 & 0x7FFFFFFF                               # below zero the greater magnitude comes first
    if not x.size or x.dtype.kind == "f":
        return None
    least, most = int(x.min()), int(x.max())
    if most - least > 0xFFFFFFFF:
        return None
    return x.astype(np.uint64) - np.uint64(least & 0xFFFFFFFFFFFFFFFF)   # the numbers may wrap, their differences do not

def _marked(x, descending):
    """The numbers in the upper halves, reversed if descending, places in the lower ones; along the last dim."""
    made = _numbers(x) if x.shape[-1] <= 1 << 32 else None
    if made is not None:
        np.left_shift(made ^ LOW if descending else made, HALF, out=made)
        made |= np.arange(x.shape[-1], dtype=np.uint64)
    return made


def order_of(x, dim, descending, k=None):
    """The places of the first k elements (default all) in stable order along `dim`, NaN the greatest."""
    x = np.moveaxis(x if x.dtype.kind in "fiub" else x.astype(np.float32), dim, -1)
    n, marked = x.shape[-1], _marked(x, descending)
    k = n if k is None else k
    if marked is None:
        order = n - 1 - np.argsort(x[..., ::-1], kind="stable")[..., ::-1] if descending else np.argsort(x, kind="stable")
        order = order[..., :k]
    else:
        marked = np.partition(marked, k, axis=-1)[..., :k] if k < n // 2 else marked
        marked.sort()
        order = (marked[..., :k] & LOW).astype(np.int64)
    return np.moveaxis(order, -1, dim)


def place_of(x, dim, k):
    """The place of the k-th smallest element (k from 1) in stable order along `dim`, which stays as one of size 1."""
    marked = _marked(np.moveaxis(x if x.dtype.kind in "fiub" else x.astype(np.float32), dim, -1), False)
    if marked is None:
        return np.take(order_of(x, dim, False), [k - 1], axis=dim)
    marked.partition(k - 1)
    return np.moveaxis((marked[..., k - 1:k] & LOW).astype(np.int64), -1, dim)
