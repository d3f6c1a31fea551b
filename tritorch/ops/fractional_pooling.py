"""Fractional max pooling: the largest of windows whose places are drawn. Graham, "Fractional max-pooling", 2014.

The operator takes volumes (N, C, D, H, W); an image is a volume of one layer.
"""
import math

import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, explained, whole_numbers
from tritorch.ops.arrays import single
from tritorch.ops.extremes import lowest
from tritorch.ops.padding import constant_pad
from tritorch.ops.random import rand
from tritorch.ops.volume_pooling import K, check_volumes, launch_volumes


@op(returns=("values", "places"))
def fractional_max_pool(input, samples, kernel, size):
    """The largest element of each of (O, P, Q) = `size` windows of volumes, and its place (d · H + h) · W + w, int32.

    With u = samples[n, c, k], in [0, 1), and a = (length - kernel) / (count - 1), window i of dim k begins at
    floor((i + u) a) - floor(u a), the last one at length - kernel. (N, C, D, H, W) with samples (N, C, 3) gives two of (N, C, *size).
    Of equal elements the first counts; NaN wins over all.
    Raises RuntimeError when the arguments do not fit, NotImplementedError unless the dtype is floating.

    >>> import tritorch as torch; from tritorch.ops.fractional_pooling import fractional_max_pool
    >>> fractional_max_pool(torch.arange(5.0).view(1, 1, 1, 1, 5), torch.zeros(1, 1, 3), (1, 1, 2), (1, 1, 2))[0].flatten().tolist()
    [1.0, 4.0]
    """
    name = "fractional_max_pool"
    check_volumes(name, input)
    check(input.dtype.is_floating_point, name, "a floating dtype", input.dtype, error=NotImplementedError)
    check(samples.dtype is input.dtype, name, f"samples of {input.dtype}", samples.dtype)
    check(samples.shape == (*input.shape[:2], 3), name, f"samples of shape {(*input.shape[:2], 3)}", samples.shape)
    shape = (*input.shape[:2], *size)
    return [(shape, input.dtype, input.device), (shape, types.int32, input.device)]


def _starts(u, length, count, kernel):
    """Where the windows of each plane begin along a dim: (N, C, count)."""
    u = u.astype(np.promote_types(u.dtype, np.float32))[..., None]
    free = length - kernel
    pace = u.dtype.type(free) / u.dtype.type(max(count - 1, 1))
    starts = np.clip(((np.arange(count, dtype=u.dtype) + u) * pace).astype(np.int64) - (u * pace).astype(np.int64), 0, free)
    starts[..., -1:] = free
    return starts


@fractional_max_pool.impl("cpu")
def fractional_max_pool_cpu(values, places, input, samples, kernel, size):
    if not values.size:
        return
    depth, high, wide = [_starts(samples[..., d], input.shape[2 + d], size[d], kernel[d]) for d in range(3)]
    x = single(input).reshape(*input.shape[:2], -1)
    best, found = np.full(values.shape, -np.inf, x.dtype), None
    for r, s, t in np.ndindex(*kernel):
        at = ((depth + r)[..., :, None, None] * input.shape[3] + (high + s)[..., None, :, None]) * input.shape[4]
        at = at + (wide + t)[..., None, None, :]
        now = np.take_along_axis(x, at.reshape(*x.shape[:2], -1), 2).reshape(at.shape)
        better = (now > best) | (now != now)
        best, found = np.where(better, now, best), at if found is None else np.where(better, at, found)
    values[...], places[...] = best, found


@fractional_max_pool.impl("cuda")
def fractional_max_pool_cuda(values, places, input, samples, kernel, size):
    if values.numel():
        launch_volumes(K.fractional_max_kernel, (values, places), (input, samples), *input.shape[2:], TAPS=kernel,
                       LOWEST=lowest(input.dtype), turns=math.prod(kernel))


@fractional_max_pool.grad("input")
def fractional_max_pool_grad(g_values, places, input_shape):
    zeros = g_values.new_zeros((*input_shape[:2], math.prod(input_shape[2:])))
    return zeros.scatter_add(2, places.long().flatten(2), g_values.flatten(2)).view(input_shape)


@fractional_max_pool.samples
def fractional_max_pool_samples(make):
    yield make(2, 2, 4, 5, 3), make(2, 2, 3, low=0, high=0.9, grad=False), (2, 2, 1), (2, 3, 2)
    yield make(1, 2, 1, 7, 6), make(1, 2, 3, low=0, high=0.9, grad=False), (1, 3, 2), (1, 4, 3)
    yield make(0, 2, 2, 2, 2), make(0, 2, 3, grad=False), (1, 1, 1), (1, 1, 1)


@fractional_max_pool.errors
def fractional_max_pool_errors(make):
    yield (make(1, 1, 2, 2, 2), make(1, 1, 2), (1, 1, 1), (1, 1, 1)), {}, RuntimeError, "samples of shape (1, 1, 3)"


@fractional_max_pool.workloads
def fractional_max_pool_workloads(make):
    yield "64x64x1x112x112 fp32 3x3", lambda: (make(64, 64, 1, 112, 112, grad=False), make(64, 64, 3, low=0, high=0.9, grad=False),
                                               (1, 3, 3), (1, 56, 56)), 64 * 64 * 112 ** 2 * 6, 0


# ------------------------------------------------------------------ PyTorch's functions
def _sizes(name, value, what, dims):
    value = value if isinstance(value, (tuple, list)) else (value,) * dims
    check(len(value) == dims, name, f"{what} of one or {dims} numbers", value)
    value = whole_numbers(name, what, value)
    check(min(value) >= (what == "kernel_size"), name, f"{what} of at least {int(what == 'kernel_size')}", value)
    return value


def _fractional(name, dims, input, kernel, size, ratio, samples):
    """The largest of the windows and their places in an image or volume."""
    check(size is not None or ratio is not None, name, "an output_size or an output_ratio", "neither", error=ValueError)
    check(input.ndim in (dims + 1, dims + 2), name, f"{dims + 1} or {dims + 2} dims", input.shape,
          error=IndexError if input.ndim <= dims else RuntimeError)
    check(0 not in input.shape[-dims - 1:], name, "an input that is not empty but for the batch", input.shape)
    if size is None:
        several = isinstance(ratio, (tuple, list))
        check(several or dims == 3, name, "an output_ratio of two numbers", ratio, error=TypeError)       # so says PyTorch
        ratio = ratio if several else (ratio,) * dims
        check(len(ratio) == dims, name, f"an output_ratio of {dims} numbers", ratio, error=ValueError if len(ratio) > dims else IndexError)
        size = tuple([int(n * r) for n, r in zip(input.shape[-dims:], ratio)])
    kernel, size = _sizes(name, kernel, "kernel_size", dims), _sizes(name, size, "output_size", dims)
    fits = all(k + count - 1 <= n - (dims == 3) for n, k, count in zip(input.shape[-dims:], kernel, size))    # so says PyTorch
    check(fits, name, f"{size} windows of {kernel} that fit into the input", input.shape)
    x = input if input.ndim == dims + 2 else input.unsqueeze(0)
    if samples is None:
        samples = rand(*x.shape[:2], dims, dtype=input.dtype, device=input.device)
    check(samples.shape == (*x.shape[:2], dims), name, f"_random_samples of shape {(*x.shape[:2], dims)}", samples.shape)
    if dims == 2:                                                        # their samples are (width, height), those of volumes in order
        x, kernel, size, samples = x.unsqueeze(2), (1, *kernel), (1, *size), constant_pad(samples.flip(2), (1, 0), 0.0)
    return [_as_was(out, dims, input.ndim) for out in fractional_max_pool(x, samples, kernel, size)]


def _as_was(out, dims, ndim):
    out = out.squeeze(2) if dims == 2 else out
    return out if ndim == dims + 2 else out.squeeze(0)


@explained
def fractional_max_pool2d(input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
    """The largest of output_size windows of (N, C, H, W) or (C, H, W), at random steps that cover the image.

    The size is given, or a pair of `output_ratio` of it. Windows of a dim of n elements begin at floor((i + u) a) - floor(u a), with
    a = (n - kernel) / (count - 1) and u drawn for each channel, or given as `_random_samples` (N, C, 2), that of the width first. With
    return_indices also their places h · W + w, int64. Raises ValueError without size and ratio, RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> x, half = torch.arange(25.0).view(1, 5, 5), torch.full((1, 1, 2), 0.5)
    >>> torch.nn.functional.fractional_max_pool2d(x, 2, (2, 3), _random_samples=half).tolist()
    [[[6.0, 8.0, 9.0], [21.0, 23.0, 24.0]]]
    """
    values, places = _fractional("fractional_max_pool2d", 2, input, kernel_size, output_size, output_ratio, _random_samples)
    return (values, places.long()) if return_indices else values


@explained
def fractional_max_pool3d(input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
    """The largest of output_size windows of (N, C, D, H, W) or (C, D, H, W), at random steps that cover the volume.

    As `fractional_max_pool2d`; `_random_samples` (N, C, 3) are those of depth, height and width.

    >>> import tritorch as torch
    >>> torch.nn.functional.fractional_max_pool3d(torch.arange(27.0).view(1, 3, 3, 3), 2, output_ratio=(0.4, 0.4, 0.4)).tolist()
    [[[[26.0]]]]
    """
    values, places = _fractional("fractional_max_pool3d", 3, input, kernel_size, output_size, output_ratio, _random_samples)
    return (values, places.long()) if return_indices else values
