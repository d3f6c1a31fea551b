"""Linear interpolation along one dim: the step of F.interpolate, and its transpose."""
from math import ceil

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.indexing import add_slices, finish, in_order, three
from tritorch.ops.tiling import even_parts
from tritorch.shape import cdiv, next_power_of_2

K = kernels("resize")
ELEMENTS = 1024                                                          # of a program


@op
def resize_linear(input, dim, size, scale, corners, dtype):
    """`input` at `size` places along `dim`, between two neighbours each, in a floating dtype.

        out[i] = (1 - t) input[l] + t input[l + 1],    l + t = max((i + 1/2) scale - 1/2, 0), or i scale with `corners`

    >>> import tritorch as torch
    >>> resize_linear(torch.tensor([0.0, 8.0]), 0, 4, 0.5, False, torch.float32)
    tensor([0., 2., 6., 8.])
    """
    check(input.shape[dim] > 0 and size > 0 and scale >= 0, "resize_linear", "sizes greater than 0", input.shape, size, scale)
    return (*input.shape[:dim], size, *input.shape[dim + 1:]), dtype, input.device


def _between(length, size, scale, corners, kind):
    """The two neighbours of each place, and how near it is to the second."""
    i = np.arange(size, dtype=kind)
    place = i * kind(scale) if corners else np.maximum((i + kind(0.5)) * kind(scale) - kind(0.5), 0)
    low = np.floor(place)
    first = low.astype(np.int64)
    return np.minimum(first, length - 1), np.minimum(first + 1, length - 1), place - low


def _wide(*arrays):
    """The numpy type to compute in."""
    return np.float64 if np.float64 in [a.dtype for a in arrays] else np.float32


@resize_linear.impl("cpu")
def resize_linear_cpu(out, input, dim, size, scale, corners, dtype):
    kind = _wide(out, input)
    low, high, t = _between(input.shape[dim], size, scale, corners, kind)
    t = t.reshape(-1, *(1,) * (input.ndim - 1 - dim))
    x = input.astype(kind)
    out[...] = x.take(low, dim) * (1 - t) + x.take(high, dim) * t


@resize_linear.impl("cuda")
def resize_linear_cuda(out, input, dim, size, scale, corners, dtype):
    _launch(K.resize_kernel, out, input, dim, input.shape[dim], size, scale, corners)


def _launch(kernel, out, x, dim, length, size, scale, corners, *reach):
    if not out.numel():
        return
    made = in_order(out)
    parts, along, inner = three(out.shape, dim)
    rows, cols = (parts * along, inner) if inner >= 32 else (parts, along * inner)
    n = tile(even_parts(cols, 1024), min(1024, next_power_of_2(cols)))
    m = min(max(tile(ELEMENTS, 16384) // n, 1), next_power_of_2(rows))
    acc = K.tl.float64 if types.float64 in (out.dtype, x.dtype) else K.tl.float32
    launch(kernel, (cdiv(rows, m) * cdiv(cols, n),), made, x.contiguous(), parts, length, size, inner, np.float64(scale), *reach,
           CORNERS=bool(corners), ACC=acc, ROWS=inner >= 32, WIDE=max(out.numel(), x.numel()) >= 1 << 30, BLOCK_M=m, BLOCK_N=n)
    finish(out, made)


@op
def resize_linear_back(input, dim, length, scale, corners, dtype):
    """The transpose of `resize_linear`: what its result's places give to each of `length` places, summed in their order."""
    check(length > 0, "resize_linear_back", "a length greater than 0", length)
    return (*input.shape[:dim], length, *input.shape[dim + 1:]), dtype, input.device


@resize_linear_back.impl("cpu")
def resize_linear_back_cpu(out, input, dim, length, scale, corners, dtype):
    kind = _wide(out, input)
    low, high, t = _between(length, input.shape[dim], scale, corners, kind)
    t = t.reshape(-1, *(1,) * (input.ndim - 1 - dim))
    made = np.zeros(out.shape, kind)
    add_slices(made, dim, low, input.astype(kind) * (1 - t))
    add_slices(made, dim, high, input.astype(kind) * t)
    out[...] = made


@resize_linear_back.impl("cuda")
def resize_linear_back_cuda(out, input, dim, length, scale, corners, dtype):
    size = input.shape[dim]
    spare = 1 + (size >> 22)
    count = min(size, ceil(2 / scale) + 1 + 2 * spare) if scale > 0 else size
    _launch(K.resize_back_kernel, out, input, dim, length, size, scale, corners, count, spare)


@resize_linear.grad("input")
def resize_linear_grad(g, input_shape, input_dtype, dim, scale, corners):
    return resize_linear_back(g, dim, input_shape[dim], scale, corners, input_dtype)


@resize_linear_back.grad("input")
def resize_linear_back_grad(g, input_shape, input_dtype, dim, scale, corners):
    return resize_linear(g, dim, input_shape[dim], scale, corners, input_dtype)


@resize_linear.samples
def resize_linear_samples(make):
    for shape, dim, size, corners in (((2, 5, 3), 1, 9, False), ((2, 5, 3), 1, 9, True), ((3, 7), 1, 4, False), ((7, 40), 0, 3, True),
                                      ((2, 1), 1, 6, False), ((2, 6), 1, 1, True), ((0, 3), 1, 6, False)):
        x, length = make(*shape), shape[dim]
        scale = (length - 1) / max(size - 1, 1) * (size > 1) if corners else length / size
        yield x, dim, size, scale, corners, x.dtype


@resize_linear_back.samples
def resize_linear_back_samples(make):
    for shape, dim, length, corners in (((2, 9, 3), 1, 5, False), ((2, 9, 3), 1, 5, True), ((3, 40), 0, 7, False), ((2, 6), 1, 1, True)):
        g, size = make(*shape), shape[dim]
        yield g, dim, length, (length - 1) / (size - 1) if corners else length / size, corners, g.dtype


@resize_linear.errors
def resize_linear_errors(make):
    yield (make(2, 3), 1, 0, 1.0, False, types.float32), {}, RuntimeError, "expected sizes greater than 0"


@resize_linear.workloads
def resize_linear_workloads(make):
    x = make(32, 64, 56, 56, grad=False)
    yield "32x64x56x56 fp32, columns doubled", lambda: (x, 3, 112, 0.5, False, x.dtype), 3 * x.nbytes, 0


@resize_linear_back.workloads
def resize_linear_back_workloads(make):
    g = make(32, 64, 56, 112, grad=False)
    yield "32x64x56x112 fp32, columns halved", lambda: (g, 3, 56, 0.5, False, g.dtype), g.nbytes * 3 // 2, 0
