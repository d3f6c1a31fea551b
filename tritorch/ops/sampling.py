"""Images at any places: `grid_sample`, its slopes and its transpose.

All three take how often the weights of pixels are differentiated by the coordinates, so each gradient of one is a call of another.
"""
import itertools
import math

import numpy as np

from tritorch.cuda.launch import kernels, launch, sm_count, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import promote, types
from tritorch.errors import check
from tritorch.ops import create, view
from tritorch.ops.indexing import add_slices, finish, in_order
from tritorch.ops.segments import join_rows
from tritorch.shape import cdiv, extent, next_power_of_2
from tritorch.tensor import empty

K = kernels("sampling")
TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}                           # pixels around a place along each dim
PADDINGS = ("zeros", "border", "reflection")
_CUBIC = {True: (-0.75, 1.5, -0.75, 0.0), False: (1.25, -2.25, 0.0, 1.0)}    # of the outer two and the inner two of four


def _check(name, images, grid, orders):
    """An image with a grid, `images` being its first dims: the common dtype of both."""
    check(images.dtype.is_floating_point and grid.dtype.is_floating_point, name, "floating tensors", images.dtype, grid.dtype)
    check(len(orders) == grid.shape[-1] == grid.ndim - 2, name, "as many coordinates as dims of an image", grid.shape, orders)
    check(images.shape[0] == grid.shape[0], name, "as many grids as images", images.shape, grid.shape)
    check(images.dtype is grid.dtype, name, "an image and a grid of one dtype", images.dtype, grid.dtype)
    return images.dtype


@op
def grid_sample(input, grid, mode, padding, corners, orders):
    """The values of images (N, C, *sizes) at the places of a grid (N, *, k), differentiated `orders` times along each of the k sizes.

        out[n, c, p] = Σ over the pixels s around grid[n, p] of weight(grid[n, p], s) · input[n, c, s]

    >>> import tritorch as torch; from tritorch.ops.sampling import grid_sample
    >>> image, middle = torch.tensor([[[[1.0, 4.0]]]]), torch.zeros(1, 1, 1, 2)
    >>> [grid_sample(image, middle, "bilinear", "zeros", False, (0, n)).item() for n in (0, 1)]
    [2.5, 3.0]
    """
    dtype = _check("grid_sample", input, grid, orders)
    check(input.ndim == grid.ndim and min(input.shape[2:]) > 0, "grid_sample", "an image for the grid", input.shape, grid.shape)
    return (*input.shape[:2], *grid.shape[1:-1]), dtype, common_device("grid_sample", input, grid)


# ------------------------------------------------------------------ on the CPU
def _reflected(x, n, corners):
    low, span = (0, n - 1) if corners else (-0.5, n)
    distance = np.abs(x - low)
    turns = np.floor(distance / span) if span else distance * np.nan
    rest = distance - turns * span
    odd = turns % 2 != 0
    return np.where(odd, span - rest, rest) + low, odd != (x < low)


def _clipped(x, n):
    return np.where(x > 0, np.minimum(x, n - 1), 0).astype(x.dtype)


def _along(x, n, taps, padding, corners):
    """Of coordinates among n pixels: the first of those around, how far behind the middle ones they are, how fast that moves."""
    slope = np.full_like(x, (n - 1) / 2 if corners else n / 2)
    x = (x + 1) * x.dtype.type((n - 1) / 2) if corners else ((x + 1) * n - 1) / 2
    if taps < 4 and padding != "zeros":
        if padding == "reflection":
            x, back = _reflected(x, n, corners)
            slope = np.where(back, -slope, slope)
        slope = np.where((x > 0) & (x < n - 1), slope, 0)
        x = _clipped(x, n)
    if taps == 1:
        return np.rint(x), np.zeros_like(x), slope
    low = np.floor(x)
    return low - (taps // 2 - 1), x - low, slope


def share(t, tap, taps, order=0):
    """The weight of one of the pixels around a place that is t behind the one in the middle, differentiated."""
    if taps == 1:
        return np.ones_like(t)
    if taps == 2:
        return (t if tap else 1 - t) if order == 0 else 0 * t + (order == 1) * (1 if tap else -1)
    line = np.polyder(_CUBIC[tap % 3 == 0], order)
    return np.polyval(line, 1 - t if tap >= 2 else t) * (-1 if tap >= 2 and order % 2 else 1) + 0 * t


def _around(grid, sizes, mode, padding, corners, orders):
    """(pixel, 0 outside; whether it is inside; weight) of the points of a grid, for each of the pixels around them."""
    taps, kind = TAPS[mode], np.promote_types(grid.dtype, np.float32)
    axes = [_along(grid[..., len(sizes) - 1 - d].astype(kind), n, taps, padding, corners) for d, n in enumerate(sizes)]
    for tap in itertools.product(range(taps), repeat=len(sizes)):
        place, inside, weight = 0, True, kind.type(1)
        for (first, t, slope), k, n, order in zip(axes, tap, sizes, orders):
            at = first + k
            if taps == 4 and padding != "zeros":
                at = _clipped(_reflected(at, n, corners)[0] if padding == "reflection" else at, n)
            within = (at >= 0) & (at <= n - 1)
            place, inside = place * n + np.where(within, at, 0).astype(np.int64), inside & within
            weight = weight * (share(t, k, taps, order) * slope ** order).astype(kind)
        yield place, inside, weight


def _flat(x, count):
    """The last `count` dims as one."""
    return x.reshape(*x.shape[:x.ndim - count], math.prod(x.shape[x.ndim - count:]))


def _sampled(input, grid, mode, padding, corners, orders):
    kind, k = np.promote_types(np.promote_types(input.dtype, grid.dtype), np.float32), len(orders)
    pixels, total = _flat(input, k), 0
    with np.errstate(invalid="ignore"):
        for place, inside, weight in _around(grid, input.shape[2:], mode, padding, corners, orders):
            place, inside, weight = [_flat(x, k)[:, None] for x in (place, inside, weight)]
            value = np.take_along_axis(pixels, np.broadcast_to(place, (*pixels.shape[:2], place.shape[2])), 2)
            total = total + np.where(inside, value, 0).astype(kind) * weight
    return total


@grid_sample.impl("cpu")
def grid_sample_cpu(out, input, grid, mode, padding, corners, orders):
    out[...] = _sampled(input, grid, mode, padding, corners, orders).reshape(out.shape)


# ------------------------------------------------------------------ on a GPU
def _shared(grid, sizes, mode, padding, corners, orders, *images):
    """What all kernels are told: the grid as (N, P, k), its strides, sizes, constants."""
    deep = len(sizes) == 3
    grid = view.reshape(grid, grid.shape[0], -1, grid.shape[-1])
    check(grid.shape[0] * grid.shape[1] * TAPS[mode] ** len(sizes) < 1 << 31, "grid_sample", "a grid of fewer places", grid.shape)
    acc = K.tl.float64 if types.float64 in [x.dtype for x in (grid, *images)] else K.tl.float32
    return grid, (1,) * (not deep) + tuple(sizes), {"TAPS": TAPS[mode], "DEEP": deep, "PADDING": PADDINGS.index(padding),
                                                    "CORNERS": bool(corners), "ORDERS": (0,) * (not deep) + tuple(orders), "ACC": acc}


def _strides(x):
    """Of images, with a depth."""
    return x.strides if x.ndim == 5 else (*x.strides[:2], 0, *x.strides[2:])


def _blocks(channels, elements=2048):
    """Places and channels of a tile where channels are contiguous: what a place needs is computed once for the channels of a thread."""
    c = min(next_power_of_2(channels), 64)
    return {"BLOCK_P": tile(elements // c, 1024), "BLOCK_C": c}


def _together(channels, mode, dims):
    """How many channels a place has at a time where places are neighbours: all or a divisor, if there is one, so that 32 are loaded."""
    most = max(min(tile(32, 16) // TAPS[mode] ** (dims - 1), 8, channels), 1)
    return max(k for k in range(1, most + 1) if channels % k == 0 or k == most)


@grid_sample.impl("cuda")
def grid_sample_cuda(out, input, grid, mode, padding, corners, orders):
    if not out.numel():
        return
    made = in_order(out)
    grid, sizes, options = _shared(grid, input.shape[2:], mode, padding, corners, orders, input)
    n, c, p = *input.shape[:2], grid.shape[1]
    wide, tensors = extent(input.shape, input.strides) >= 1 << 31, (made, input, grid, _strides(input), grid.strides, n, c, p, *sizes)
    if input.strides[1] == 1 < c:
        blocks = _blocks(c)
        launch(K.sample_kernel, (cdiv(n * p, blocks["BLOCK_P"]) * cdiv(c, blocks["BLOCK_C"]),), *tensors, WIDE=wide,
               EVEN=c % blocks["BLOCK_C"] == 0, **options, **blocks)
    else:
        block, each = tile(128, 1024), _together(c, mode, len(sizes))
        some = cdiv(n * p, block)
        parts = min(cdiv(tile(16 * sm_count(), 2), some), cdiv(c, each), 65535)         # one where all channels leave programs enough
        chunk = cdiv(cdiv(c, each), parts) * each
        launch(K.sample_planes_kernel, (some, cdiv(c, chunk)), *tensors, chunk, WIDE=wide, EVEN=c % each == 0, BLOCK_P=block, BLOCK_C=each,
               **options)
    finish(out, made)


# ------------------------------------------------------------------ its slopes
@op
def grid_sample_slope(gradient, input, grid, mode, padding, corners, orders):
    """The gradient of `grid_sample` by its grid.

        out[n, p, k - 1 - d] = Σ_c gradient[n, c, p] · grid_sample(input, grid, …, orders with one more along size d)[n, c, p]
    """
    _check("grid_sample", input, grid, orders)
    return grid.shape, promote(gradient, grid), common_device("grid_sample", gradient, input, grid)


def _steeper(orders):
    """(coordinate, orders with one more along its size)."""
    for d in range(len(orders)):
        yield len(orders) - 1 - d, (*orders[:d], orders[d] + 1, *orders[d + 1:])


@grid_sample_slope.impl("cpu")
def grid_sample_slope_cpu(out, gradient, input, grid, mode, padding, corners, orders):
    for coordinate, more in _steeper(orders):
        steep = _sampled(input, grid, mode, padding, corners, more)
        out[..., coordinate] = (_flat(gradient, len(orders)).astype(steep.dtype) * steep).sum(1).reshape(out.shape[:-1])


@grid_sample_slope.impl("cuda")
def grid_sample_slope_cuda(out, gradient, input, grid, mode, padding, corners, orders):
    if not out.numel():
        return
    made = in_order(out)
    grid, sizes, options = _shared(grid, input.shape[2:], mode, padding, corners, orders, input, gradient)
    n, c, p = *input.shape[:2], grid.shape[1]
    gradient, wide = view.reshape(gradient, n, c, p), extent(input.shape, input.strides) >= 1 << 31
    tensors = made, gradient, input, grid, gradient.strides, _strides(input), grid.strides, n, c, p, *sizes
    if input.strides[1] == 1 < c:
        blocks = _blocks(c, 1024)
        launch(K.sample_slope_kernel, (cdiv(n * p, blocks["BLOCK_P"]),), *tensors, WIDE=wide, **options, **blocks)
    else:
        block, each = tile(128, 1024), _together(c, mode, len(sizes))
        launch(K.sample_slope_planes_kernel, (cdiv(n * p, block),), *tensors, WIDE=wide, EVEN=c % each == 0, BLOCK_P=block, BLOCK_C=each,
               **options)
    finish(out, made)


# ------------------------------------------------------------------ its transpose
@op
def grid_sample_back(gradient, grid, sizes, mode, padding, corners, orders):
    """The gradient of `grid_sample` by its images: what places give to the pixels around them, summed in the order of the places.

        out[n, c, s] = Σ over the places p that have pixel s around them of weight(grid[n, p], s) · gradient[n, c, p]
    """
    dtype = _check("grid_sample", gradient, grid, orders)
    return (*gradient.shape[:2], *sizes), dtype, common_device("grid_sample", gradient, grid)


@grid_sample_back.impl("cpu")
def grid_sample_back_cpu(out, gradient, grid, sizes, mode, padding, corners, orders):
    k, (n, c) = len(orders), gradient.shape[:2]
    g = np.moveaxis(_flat(gradient, k), 1, 2)
    made = np.zeros((n * math.prod(sizes), c), np.promote_types(out.dtype, np.float32))
    with np.errstate(invalid="ignore"):
        for place, inside, weight in _around(grid, sizes, mode, padding, corners, orders):
            inside, weight = _flat(inside, k), _flat(weight, k)
            place = _flat(place, k) + np.arange(n)[:, None] * math.prod(sizes)
            add_slices(made, 0, place[inside], (g * weight[..., None]).astype(made.dtype)[inside])
    out[...] = np.moveaxis(made.reshape(n, *sizes, c), -1, 1)


@grid_sample_back.impl("cuda")
def grid_sample_back_cuda(out, gradient, grid, sizes, mode, padding, corners, orders):
    if not out.numel():
        return
    (n, c), k, device = gradient.shape[:2], len(sizes), out.device
    places, full, options = _shared(grid, sizes, mode, padding, corners, orders, gradient)
    count, taps, block = n * places.shape[1], TAPS[mode] ** k, tile(256, 4096)
    pixels = empty((count * taps,), types.int64 if out.numel() // c >= 1 << 31 else types.int32, device)
    weights = empty((count * taps,), types.float64 if types.float64 in (grid.dtype, gradient.dtype) else types.float32, device)
    if count:
        launch(K.taps_kernel, (cdiv(count, block),), pixels, weights, places, places.strides, n, places.shape[1], *full, BLOCK=block,
               **options)
    made = out if out.permute(0, *range(2, k + 2), 1).is_contiguous() else empty((n, *sizes, c), out.dtype, device).movedim(-1, 1)
    rows = view.reshape(made.movedim(1, -1), -1, c)
    join_rows(rows, None, pixels, view.reshape(gradient.movedim(1, -1), count, c), weights=weights, taps=taps)
    finish(out, made)


# ------------------------------------------------------------------ rules
@grid_sample.grad("input")
def grid_sample_grad_input(g, input_shape, grid, mode, padding, corners, orders):
    return grid_sample_back(g, grid, tuple(input_shape[2:]), mode, padding, corners, orders)


@grid_sample.grad("grid")
def grid_sample_grad_grid(g, input, grid, mode, padding, corners, orders):
    return _slope(g, input, grid, mode, padding, corners, orders)


def _slope(g, input, grid, mode, *rest):
    """Nearest pixels do not change with the place."""
    return create.zeros_like(grid) if mode == "nearest" else grid_sample_slope(g, input, grid, mode, *rest)


@grid_sample_slope.grad("gradient")
def grid_sample_slope_grad_gradient(g, input, grid, mode, padding, corners, orders):
    return sum(g[..., k].unsqueeze(1) * grid_sample(input, grid, mode, padding, corners, more) for k, more in _steeper(orders))


@grid_sample_slope.grad("input")
def grid_sample_slope_grad_input(g, gradient, input_shape, grid, mode, padding, corners, orders):
    return sum(grid_sample_back(gradient * g[..., k].unsqueeze(1), grid, tuple(input_shape[2:]), mode, padding, corners, more)
               for k, more in _steeper(orders))


@grid_sample_slope.grad("grid")
def grid_sample_slope_grad_grid(g, gradient, input, grid, mode, padding, corners, orders):
    return sum(grid_sample_slope(gradient * g[..., k].unsqueeze(1), input, grid, mode, padding, corners, more)
               for k, more in _steeper(orders))


@grid_sample_back.grad("gradient")
def grid_sample_back_grad_gradient(g, grid, mode, padding, corners, orders):
    return grid_sample(g, grid, mode, padding, corners, orders)


@grid_sample_back.grad("grid")
def grid_sample_back_grad_grid(g, gradient, grid, mode, padding, corners, orders):
    return _slope(gradient, g, grid, mode, padding, corners, orders)


# ------------------------------------------------------------------ samples
def _cases(make):
    """(image, grid, mode, padding, corners, orders)."""
    for mode, padding, corners, orders in (("bilinear", "zeros", False, (0, 0)), ("bilinear", "border", True, (0, 0)),
                                           ("bilinear", "reflection", False, (0, 1)), ("bicubic", "zeros", True, (0, 0)),
                                           ("bicubic", "reflection", False, (0, 0)), ("bicubic", "border", False, (1, 0))):
        yield make(2, 3, 4, 5), make(2, 3, 7, 2, low=-1.4, high=1.4), mode, padding, corners, orders
    yield make(2, 3, 4, 5), make(2, 3, 7, 2, low=-1.4, high=1.4, grad=False), "nearest", "zeros", True, (0, 0)
    yield make(2, 2, 3, 4, 2), make(2, 2, 1, 5, 3, low=-1.4, high=1.4), "bilinear", "reflection", True, (0, 0, 0)
    yield make(1, 2, 3, 1, 2), make(1, 2, 2, 2, 3, low=-1.4, high=1.4), "bilinear", "zeros", False, (0, 0, 0)
    yield make(1, 20, 2, 2), make(1, 9, 15, 2, low=-0.1, high=1.2), "bilinear", "border", False, (0, 0)             # long segments
    yield make(2, 3, 4, 5), make(2, 0, 7, 2), "bilinear", "zeros", False, (0, 0)
    yield make(0, 3, 4, 5), make(0, 3, 7, 2), "bilinear", "zeros", False, (0, 0)


@grid_sample.samples
def grid_sample_samples(make):
    yield from _cases(make)


@grid_sample_slope.samples
def grid_sample_slope_samples(make):
    for image, grid, mode, *rest in _cases(make):
        if mode != "nearest":
            yield make(*image.shape[:2], *grid.shape[1:-1]), image, grid, mode, *rest


@grid_sample_back.samples
def grid_sample_back_samples(make):
    for image, grid, *rest in _cases(make):
        yield make(*image.shape[:2], *grid.shape[1:-1]), grid, tuple(image.shape[2:]), *rest


@grid_sample.errors
def grid_sample_errors(make):
    yield (make(1, 2, 3, 3), make(2, 3, 3, 2), "bilinear", "zeros", False, (0, 0)), {}, RuntimeError, "as many grids as images"
    yield (make(1, 2, 0, 3), make(1, 3, 3, 2), "bilinear", "zeros", False, (0, 0)), {}, RuntimeError, "an image for the grid"


def _workload(make):
    image = make(16, 64, 128, 128, grad=False)
    return image, make(16, 128, 128, 2, low=-1, high=1, grad=False), "bilinear", "zeros", False, (0, 0)


@grid_sample.workloads
def grid_sample_workloads(make):
    yield "16x64x128x128 fp32", lambda: _workload(make), 4 * 16 * 130 * 128 ** 2, 0


@grid_sample_slope.workloads
def grid_sample_slope_workloads(make):
    def arguments():
        image, *rest = _workload(make)
        return image, image, *rest

    yield "16x64x128x128 fp32", arguments, 4 * 16 * 132 * 128 ** 2, 0


@grid_sample_back.workloads
def grid_sample_back_workloads(make):
    def arguments():
        image, grid, *rest = _workload(make)
        return image, grid, (128, 128), *rest

    yield "16x64x128x128 fp32", arguments, 4 * 16 * 130 * 128 ** 2, 0
