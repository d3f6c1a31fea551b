"""Images (N, C, H, W) at another size: the step of F.interpolate, and its transpose.

A pair tells how each of the two dims is read: "nearest" (the pixel that begins before the place), "nearest-exact" (whose middle is
nearest), "linear" (between two) or "cubic" (four of them, Keys 1981); places are `scales` pixels apart.
"""
import math

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.dtype import promote_types, types
from tritorch.errors import check
from tritorch.ops.avg_pooling import image_promise, launch_places
from tritorch.ops.indexing import add_slices
from tritorch.ops.sampling import share
from tritorch.tensor import empty

K = kernels("resize")
HOW = ("nearest", "nearest-exact", "linear", "cubic")
REACH = {"nearest": 1, "nearest-exact": 1, "linear": 2, "cubic": 4}          # pixels that a place reads
UNROLLED = 16                                                                # places that read a pixel, whose loop is unrolled


@op
def resize(input, size, scales, how, corners, dtype):
    """`input` (N, C, H, W) at `size` places, in a dtype; with `corners` the first and last pixels are places, else edges stay edges.

        out[…, i] = Σ_k weight(t, k) input[…, l + k],    l + t = (i + 1/2) scale - 1/2, or i scale with `corners` and for "nearest"

    >>> import tritorch as torch; from tritorch.ops.resize import resize
    >>> resize(torch.tensor([[[[0.0, 8.0]]]]), (1, 4), (1.0, 0.5), ("nearest", "linear"), False, torch.float32).tolist()
    [[[[0.0, 2.0, 6.0, 8.0]]]]
    """
    fits = input.ndim == 4 and min(input.shape[2:]) > 0 and min(size) > 0 and min(scales) >= 0
    check(fits, "resize", "images and sizes greater than 0", input.shape, size, scales)
    return image_promise((*input.shape[:2], *size), dtype, input)


def _taps(length, size, scale, how, corners, kind):
    """(pixels, their weights) of all places along a dim, for each of the pixels that a place reads."""
    i, taps = np.arange(size, dtype=kind), REACH[how]
    middle = how != "nearest" and not (corners and taps > 1)
    place = ((i + kind(0.5)) * kind(scale) if middle else i * kind(scale)) - (kind(0.5) if middle and taps > 1 else 0)
    place = np.maximum(place, 0) if how == "linear" else place
    low = np.floor(place)
    for k in range(taps):
        yield np.clip(low.astype(np.int64) + k - (taps == 4), 0, length - 1), share(place - low, k, taps).astype(kind)


def _kind(*arrays):
    """The numpy type to compute in."""
    return np.float64 if np.float64 in [a.dtype for a in arrays] else np.float32


def _along(weight, dim):
    return weight[:, None] if dim == 2 else weight


@resize.impl("cpu")
def resize_cpu(out, input, size, scales, how, corners, dtype):
    kind, x = _kind(out, input), input
    for dim in (3, 2):
        taps = list(_taps(x.shape[dim], size[dim - 2], scales[dim - 2], how[dim - 2], corners, kind))
        x = x.take(taps[0][0], dim) if len(taps) == 1 else sum(x.take(at, dim).astype(kind) * _along(w, dim) for at, w in taps)
    out[...] = x


def _constants(how, corners, *tensors):
    return {"HOW": tuple([HOW.index(name) for name in how]), "TAPS": tuple([REACH[name] for name in how]), "CORNERS": bool(corners),
            "ACC": K.tl.float64 if types.float64 in [x.dtype for x in tensors] else K.tl.float32}


@resize.impl("cuda")
def resize_cuda(out, input, size, scales, how, corners, dtype):
    if not out.numel():
        return
    if how == ("cubic", "cubic"):                                        # doubled: 85 µs, not 144
        rows = _between(input, (size[0], input.shape[3]), dtype)
        resize_cuda(rows, input, rows.shape[2:], (scales[0], 1.0), ("cubic", "nearest"), corners, rows.dtype)
        return resize_cuda(out, rows, size, (1.0, scales[1]), ("nearest", "cubic"), corners, dtype)
    launch_places(K.resize_kernel, (out,), (input,), out.shape, *input.shape[2:], *size, *map(np.float64, scales),
                  **_constants(how, corners, out, input))


def _between(x, size, dtype):
    """Wide images for what one dim of two makes of x."""
    return empty(*image_promise((*x.shape[:2], *size), promote_types(dtype.compute, x.dtype.compute), x))


@op
def resize_back(gradient, size, scales, how, corners, dtype):
    """The transpose of `resize`: what the places of its result give to each pixel of images of `size`, summed in the order of places."""
    check(gradient.ndim == 4 and min(size) > 0, "resize_back", "images and sizes greater than 0", gradient.shape, size)
    return image_promise((*gradient.shape[:2], *size), dtype, gradient)


@resize_back.impl("cpu")
def resize_back_cpu(out, gradient, size, scales, how, corners, dtype):
    kind = _kind(out, gradient)
    x = gradient.astype(kind)
    for dim in (2, 3):
        made = np.zeros((*x.shape[:dim], size[dim - 2], *x.shape[dim + 1:]), kind)
        for at, w in _taps(size[dim - 2], x.shape[dim], scales[dim - 2], how[dim - 2], corners, kind):
            add_slices(made, dim, at, x * _along(w, dim))
        x = made
    out[...] = x


def _readers(size, scale, how):
    """(how many places in a row read one pixel at most, how many more to look at on each side for the sake of rounding)."""
    spare = size >> 22 if REACH[how] > 1 and scale > 0 else 0 if math.frexp(scale)[0] == 0.5 else 1 + (size >> 22)
    return min(size, math.ceil(REACH[how] / scale) + 2 * spare) if scale > 0 else size, spare


@resize_back.impl("cuda")
def resize_back_cuda(out, gradient, size, scales, how, corners, dtype):
    if not out.numel():
        return
    counts, spares = zip(*map(_readers, gradient.shape[2:], scales, how))
    if min(counts) > 1 and counts[0] * counts[1] > UNROLLED:             # cubic, doubled: 88 µs, not 261
        rows = _between(gradient, (gradient.shape[2], size[1]), dtype)
        resize_back_cuda(rows, gradient, rows.shape[2:], (1.0, scales[1]), ("nearest", how[1]), corners, rows.dtype)
        return resize_back_cuda(out, rows, size, (scales[0], 1.0), (how[0], "nearest"), corners, dtype)
    paces = [np.float64(1 / scale if scale > 0 else 0) for scale in scales]
    launch_places(K.resize_back_kernel, (out,), (gradient,), out.shape, *size, *gradient.shape[2:], *map(np.float64, scales), *paces,
                  SPARE=spares, COUNT=counts, UNROLL=counts[0] * counts[1] <= UNROLLED, **_constants(how, corners, out, gradient))


@resize.grad("input")
def resize_grad(g, input_shape, input_dtype, scales, how, corners):
    return resize_back(g, tuple(input_shape[2:]), scales, how, corners, input_dtype)


@resize_back.grad("gradient")
def resize_back_grad(g, gradient_shape, gradient_dtype, scales, how, corners):
    return resize(g, tuple(gradient_shape[2:]), scales, how, corners, gradient_dtype)


def _cases():
    """(image, size, scales, how, corners)."""
    for image, size, how, corners in (((2, 3, 5, 3), (9, 3), ("linear", "nearest"), False), ((1, 2, 3, 7), (5, 4), ("linear",) * 2, False),
                                      ((2, 1, 4, 5), (7, 3), ("linear",) * 2, True), ((1, 3, 4, 6), (9, 4), ("cubic",) * 2, False),
                                      ((1, 1, 3, 2), (4, 5), ("cubic",) * 2, True), ((2, 2, 3, 4), (6, 8), ("nearest",) * 2, False),
                                      ((1, 2, 5, 7), (3, 9), ("nearest-exact",) * 2, False), ((1, 2, 1, 6), (3, 1), ("linear",) * 2, True),
                                      ((0, 1, 2, 3), (4, 4), ("linear",) * 2, False)):
        scales = [(n - 1) / max(m - 1, 1) * (m > 1) if corners else n / m for n, m in zip(image[2:], size)]
        yield image, size, tuple(scales), how, corners


@resize.samples
def resize_samples(make):
    for image, *rest in _cases():
        x = make(*image)
        yield x, *rest, x.dtype


@resize_back.samples
def resize_back_samples(make):
    for image, size, *rest in _cases():
        g = make(*image[:2], *size)
        yield g, image[2:], *rest, g.dtype


@resize.errors
def resize_errors(make):
    yield (make(1, 1, 2, 3), (1, 0), (1.0, 1.0), ("linear",) * 2, False, types.float32), {}, RuntimeError, "sizes greater than 0"


@resize.workloads
def resize_workloads(make):
    x = make(32, 64, 56, 56, grad=False)
    for how in ("nearest", "linear", "cubic"):
        yield f"32x64x56x56 fp32, {how}, twice as wide and high", lambda how=how: (x, (112, 112), (0.5, 0.5), (how,) * 2, False, x.dtype), \
            5 * x.nbytes, 0


@resize_back.workloads
def resize_back_workloads(make):
    g = make(32, 64, 112, 112, grad=False)
    yield "32x64x112x112 fp32, half as wide and high", lambda: (g, (56, 56), (0.5, 0.5), ("linear",) * 2, False, g.dtype), \
        g.nbytes * 5 // 4, 0
