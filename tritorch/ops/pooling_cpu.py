"""Pooling in numpy, one dim after the other: each place of a window is one step over whole arrays.

A window is (kernel, stride, padding, dilation); kernel None divides the dim into `count` parts as PyTorch's adaptive pooling does.
"""
import numpy as np

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
            np.add.at(target, i, source[p])
    return out


def max_windows(x, axis, count, *window):
    """(largest, its place along the axis) of the windows: the first of equals, the last NaN; of a window of nothing the lowest and 0."""
    shape, steps = list(x.shape), list(taps(x.shape[axis], count, *window))
    shape[axis] = count
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    best, found = np.full(shape, lowest, x.dtype), np.zeros(shape, np.int64)
    target, places, source = np.moveaxis(best, axis, 0), np.moveaxis(found, axis, 0), np.moveaxis(x, axis, 0)
    index = np.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1))
    for p, i in reversed(steps):
        target[p], places[p] = source[i], index[i]
    for p, i in steps[1:]:
        values, now = source[i], target[p]
        better = values > now
        if x.dtype.kind == "f":
            better |= values != values
        target[p] = np.where(better, values, now)
        places[p] = np.where(better, index[i], places[p])
    return best, found
