"""Pooling in numpy, one dim after the other: each place of a window is one step over whole arrays.

A window is (kernel, stride, padding, dilation); kernel None divides the dim into `count` parts as PyTorch's adaptive pooling does.
"""
import numpy as np

from tritorch.ops.arrays import either
from tritorch.ops.indexing import add_slices
from tritorch.shape import cdiv


def bounds(n, count):
    """Where each of `count` parts of n elements begins, and where it ends (exclusive)."""
    p = np.arange(count)
    return p * n // max(count, 1), -(-(p + 1) * n // max(count, 1))


def taps(n, count, kernel, stride, padding, dilation):
    """For each place in a window: the windows for which it lies in the input, and the elements that they find there."""
    if kernel is None and count and n % count == 0:
        kernel = stride = n // count
    if kernel is None:
        first, end = bounds(n, count)
        for k in range((end - first).max(initial=0)):
            p = np.flatnonzero(first + k < end)
            yield p, (first + k)[p]
        return
    for k in range(max(0, cdiv(padding - (count - 1) * stride, dilation)), min(kernel, (n - 1 + padding) // dilation + 1)):
        shift = k * dilation - padding
        low, high = max(0, cdiv(-shift, stride)), min(count, (n - 1 - shift) // stride + 1)
        if low < high:
            yield slice(low, high), slice(low * stride + shift, (high - 1) * stride + shift + 1, stride)


def counts(n, count, kernel, stride, padding, include):
    """How many elements each window counts, with `include` those in the padding too."""
    if kernel is None:
        first, end = bounds(n, count)
        return end - first
    first = np.arange(count) * stride - padding
    end = np.minimum(first + kernel, n + padding)
    return end - first if include else np.minimum(end, n) - np.maximum(first, 0)


def sum_windows(x, axis, count, *window):
    """Sums over the windows along an axis."""
    shape = list(x.shape)
    shape[axis] = count
    out = np.zeros(shape, x.dtype)
    target, source = np.moveaxis(out, axis, 0), np.moveaxis(x, axis, 0)
    for p, i in taps(x.shape[axis], count, *window):
        target[p] += source[i]
    return out


def spread_windows(g, axis, n, *window):
    """The transpose of `sum_windows`: each element of n along an axis collects the windows that hold it."""
    shape = list(g.shape)
    shape[axis] = n
    out = np.zeros(shape, g.dtype)
    target, source = np.moveaxis(out, axis, 0), np.moveaxis(g, axis, 0)
    for p, i in taps(n, g.shape[axis], *window):
        if isinstance(i, slice):
            target[i] += source[p]
        else:                                                            # more windows than elements share them
            add_slices(target, 0, i, source[p])
    return out


def max_windows(x, marks, axis, count, *window):
    """(largest, its mark) of the windows along an axis: the first of equals, the last NaN; of a window of nothing the lowest, marked as
    the first element.

    Marks are whole numbers that broadcast to x, or None.
    """
    n, steps = x.shape[axis], list(taps(x.shape[axis], count, *window))
    first = np.full(count, -1)                                           # where each window begins
    for p, i in reversed(steps):
        first[p] = np.arange(n)[i]
    nothing, first = first < 0, np.maximum(first, 0)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1:])
    best = np.take(x, first, axis) if n else np.empty(shape, x.dtype)
    target, source = np.moveaxis(best, axis, 0), np.moveaxis(x, axis, 0)
    target[nothing] = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    if marks is not None:
        found = np.empty(shape, marks.dtype)
        places, marks = np.moveaxis(found, axis, 0), np.moveaxis(np.broadcast_to(marks, x.shape), axis, 0)
        places[...] = marks[first] if n else 0
    for p, i in steps[1:]:
        values, now = source[i], target[p]
        if marks is not None:
            better = values > now
            if x.dtype.kind == "f":
                better |= values != values
            places[p] = either(better, marks[i], places[p])
        target[p] = np.maximum(now, values)
    return best, None if marks is None else found
