"""Rearrangements of images: sliding blocks, shuffles, resizing, sampling."""
import math

from tritorch.dtype import types
from tritorch.errors import check, explained, whole_numbers
from tritorch.memory_format import contiguous_format, suggested
from tritorch.nn.sizes import sizes
from tritorch.ops.avg_pooling import by_dims
from tritorch.ops.compare import where
from tritorch.ops.create import arange
from tritorch.ops.lines import as_lines
from tritorch.ops.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from tritorch.ops.resize import resize
from tritorch.ops.unfold import fold_images, unfold_images
from tritorch.ops.volumes import adaptive_avg_pool3d
from tritorch.tensor import own


@explained
def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """The sliding blocks of (N, C, H, W) or (C, H, W) as columns: (N, C · k_h · k_w, blocks).

    >>> import tritorch as torch
    >>> torch.nn.functional.unfold(torch.arange(4.0).view(1, 1, 2, 2), (1, 2)).tolist()
    [[[0.0, 2.0], [1.0, 3.0]]]
    """
    if input.ndim == 3:
        return unfold(input.unsqueeze(0), kernel_size, dilation, padding, stride).squeeze(0)
    if input.ndim != 4:
        raise RuntimeError(f"unfold: expected an input of 3 or 4 dims, got {input.shape}")
    return unfold_images(input, *_sliding("unfold", kernel_size, dilation, padding, stride))


@explained
def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Sliding blocks, as columns (N, C · k_h · k_w, blocks), added up into (N, C, *output_size): the transpose of `unfold`.

    >>> import tritorch as torch
    >>> torch.nn.functional.fold(torch.ones(1, 2, 2), (1, 3), (1, 2)).tolist()
    [[[[1.0, 2.0, 1.0]]]]
    """
    if input.ndim == 2:
        return fold(input.unsqueeze(0), output_size, kernel_size, dilation, padding, stride).squeeze(0)
    windows = _sliding("fold", kernel_size, dilation, padding, stride)
    return fold_images(input, _two("fold", "output_size", output_size, 1), *windows)


def _sliding(name, kernel_size, dilation, padding, stride):
    return tuple([_two(name, what, value, least) for what, value, least in (
        ("kernel_size", kernel_size, 1), ("dilation", dilation, 1), ("padding", padding, 0), ("stride", stride, 1))])


def _two(name, what, value, least):
    """A number for both spatial dims or one for each, as two."""
    pair = whole_numbers(name, what, sizes(value, 2))
    check(len(pair) == 2 and least <= min(pair) and max(pair) < 1 << 31, name, f"one or two numbers of {least} or more as {what}", value)
    return pair


@explained
def pixel_shuffle(input, upscale_factor):
    """(*, C r², H, W) to (*, C, H r, W r). Shi et al. 2016.

    >>> import tritorch as torch
    >>> torch.nn.functional.pixel_shuffle(torch.arange(4).view(4, 1, 1), 2).tolist()
    [[[0, 1], [2, 3]]]
    """
    r = upscale_factor
    _check_image("pixel_shuffle", input, input.ndim >= 3 and r > 0 and input.shape[-3] % (r * r) == 0, f"(*, C · {r * r}, H, W)")
    *lead, c, h, w = input.shape
    shape = (*lead, c // (r * r), h * r, w * r)
    if not input.numel():
        return input.reshape(shape)
    return _as_given(fold_images(input.reshape(-1, c, h * w), shape[-2:], (r, r), (1, 1), (0, 0), (r, r)).reshape(shape), input)


def _as_given(made, input):
    """An image that is channels last on the CPU where the input is one, as PyTorch's."""
    given = suggested(input.shape, input.strides)
    return made if input.is_cuda or given is contiguous_format else made.contiguous(memory_format=given)


@explained
def pixel_unshuffle(input, downscale_factor):
    """(*, C, H r, W r) to (*, C r², H, W): undoes `pixel_shuffle`.

    >>> import tritorch as torch
    >>> torch.nn.functional.pixel_unshuffle(torch.ones(1, 1, 4, 6), 2).shape
    tritorch.Size([1, 4, 2, 3])
    """
    r = downscale_factor
    fits = input.ndim >= 3 and r > 0 and input.shape[-2] % r == input.shape[-1] % r == 0
    _check_image("pixel_unshuffle", input, fits, f"(*, C, H · {r}, W · {r})")
    *lead, c, h, w = input.shape
    shape = (*lead, c * r * r, h // r, w // r)
    if not input.numel():
        return input.reshape(shape)
    return _as_given(unfold_images(input.reshape(-1, c, h, w), (r, r), (1, 1), (0, 0), (r, r)).reshape(shape), input)


@explained
def channel_shuffle(input, groups):
    """(N, C, *) with the channels, in `groups` rows, read column by column. Zhang et al. 2018.

    >>> import tritorch as torch
    >>> torch.nn.functional.channel_shuffle(torch.arange(4).view(1, 4, 1), 2).flatten()
    tensor([0, 2, 1, 3])
    """
    _check_image("channel_shuffle", input, input.ndim >= 3 and groups > 0 and input.shape[1] % groups == 0, f"(N, C · {groups}, *)")
    n, c, *rest = input.shape
    if suggested(input.shape, input.strides) is not contiguous_format:   # channels last, and stays so
        pixels = input.movedim(1, -1).reshape(n, *rest, groups, c // groups)
        return own(pixels.transpose(-2, -1).reshape(n, *rest, c).movedim(-1, 1))
    return input.reshape(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)


native_channel_shuffle = channel_shuffle


def _check_image(name, input, ok, expected):
    if not ok:
        raise RuntimeError(f"{name}: expected an input {expected}, got {input.shape}")


def _near(d, a=-0.5):
    return ((a + 2) * d - (a + 3)) * d * d + 1


def _far(d, a=-0.5):
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def _window(length, scale, mode, center):
    """Where the window of pixels around each center begins and ends, and their weights: a filter as wide as what an output pixel covers."""
    wide = max(scale, 1.0)
    reach = wide if mode == "linear" else 2 * wide
    first, end = (center - reach + 0.5).trunc().clamp(min=0), (center + reach + 0.5).trunc().clamp(max=length)
    taps = []
    for k in range(2 * math.ceil(reach) + 1):
        d = ((first + k + 0.5 - center) / wide).abs()
        tap = (1 - d).clamp(min=0) if mode == "linear" else where(d < 1, _near(d), where(d < 2, _far(d), 0.0))
        taps.append(where(first + k < end, tap, 0.0))
    total = sum(taps)
    return first.long(), end.long(), [tap / total for tap in taps]


def _smoothed(x, dim, size, scale, mode):
    """One dim of x at `size` places, `scale` input pixels apart, each the mean of all pixels that it covers."""
    length, each = x.shape[dim], (-1, *(1,) * (x.ndim - 1 - dim))
    place = arange(size, dtype=x.dtype, device=x.device)
    first, end, taps = _window(length, scale, mode, (place + 0.5) * scale)
    pixels = (x.index_select(dim, (first + k).clamp(max=length - 1)) for k in range(len(taps)))
    return sum(where((first + k < end).view(each), pixel * tap.view(each), 0.0) for k, (pixel, tap) in enumerate(zip(pixels, taps)))


def _resized(x, size, scales, how, corners, dtype):
    """x of 3 to 5 dims by `resize`: a row as an image of one line, of a volume its layers first."""
    if x.ndim == 3:
        return resize(as_lines(x), (1, *size), (1.0, *scales), ("nearest", *how), corners, dtype).squeeze(2)
    if x.ndim == 4:
        return resize(x, size, scales, how, corners, dtype)
    wide = dtype.compute if "linear" in how else dtype
    return by_dims(x, lambda images: resize(images, size[1:], scales[1:], how[1:], corners, wide),
                   lambda layers: resize(layers, (size[0], size[1] * size[2]), (scales[0], 1.0), (how[0], "nearest"), corners, dtype))


def _scale(length, size, scale, align_corners):
    """Input pixels for each output pixel; the ratio of the sizes where `scale` is None."""
    if align_corners:
        return (length - 1) / (size - 1) if size > 1 else 0.0
    return length / size if scale is None else 1 / scale


_LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5, "bicubic": 4}


@explained
def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False):
    """(N, C, *) with its spatial dims at `size`, or scaled by `scale_factor`.

    Modes: "nearest", "nearest-exact", "linear" (3 dims), "bilinear" and "bicubic" (4), "trilinear" (5), "area". With `align_corners` the
    corner pixels keep their places, else the corners of the image do. Half types are rounded once, at the end, pixels of uint8 after each
    dim (the last first, as in PyTorch). With `antialias` ("bilinear", "bicubic") pixels of a smaller image are means of all they cover.

    >>> import tritorch as torch
    >>> torch.nn.functional.interpolate(torch.tensor([[[1.0, 2.0]]]), scale_factor=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    if align_corners is not None and mode in ("nearest", "area", "nearest-exact"):
        raise ValueError(f"interpolate: expected align_corners=None where mode is {mode!r}, got {align_corners}")
    if antialias and (mode not in ("bilinear", "bicubic") or input.ndim != 4):
        raise ValueError(f"interpolate: expected bilinear or bicubic and 4 dims where antialias=True, got {mode!r} and {input.ndim} dims")
    known = mode in (*_LINEAR, "nearest", "nearest-exact", "area")
    if not known or not 3 <= input.ndim <= 5 or _LINEAR.get(mode, input.ndim) != input.ndim:
        raise NotImplementedError("interpolate: expected linear for 3 dims, bilinear or bicubic for 4, trilinear for 5, nearest, "
                                  f"nearest-exact or area for 3 to 5, got {mode!r} for {input.ndim}")
    size, scales = _output_size(input, size, scale_factor, recompute_scale_factor or mode == "area")
    check(min(*input.shape[2:], *size) > 0, "interpolate", "sizes greater than 0", tuple(input.shape[2:]), size)
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[input.ndim - 3](input, size)
    step = "cubic" if mode == "bicubic" else mode if mode.startswith("nearest") else "linear"
    pixels = input.dtype is types.uint8 and step in ("linear", "cubic")
    if step in ("linear", "cubic") and not input.is_floating_point() and not pixels:
        raise NotImplementedError(f"interpolate: expected a floating dtype or uint8 for mode {mode}, got {input.dtype}")
    kept = [n == length and step != "cubic" and scale is None for n, length, scale in zip(size, input.shape[2:], scales)]
    scales = tuple([1.0 if keep else _scale(length, n, scale, align_corners)
                    for keep, length, n, scale in zip(kept, input.shape[2:], size, scales)])
    how = tuple(["nearest" if keep else step for keep in kept])
    if not antialias and not pixels:
        return _resized(input, size, scales, how, bool(align_corners), input.dtype)
    x = input.to(types.float32 if pixels else input.dtype.compute)
    for d in reversed(range(len(size))) if pixels else range(len(size)):
        if not antialias:
            alone = _one(d, size, x.shape[2:]), _one(d, scales), _one(d, how, ("nearest",) * 3)
            x = _resized(x, *alone, bool(align_corners), x.dtype)
        elif not kept[d]:
            x = _smoothed(x, 2 + d, size[d], scales[d], step)
        x = (x + 0.5).floor().clamp(0, 255) if pixels else x
    return x.to(input.dtype, memory_format=suggested(input.shape, input.strides))


def _one(d, values, others=(1.0, 1.0, 1.0)):
    """Number d of some values, and the others for the other dims."""
    return tuple([value if k == d else other for k, (value, other) in enumerate(zip(values, others))])


def _output_size(input, size, scale_factor, recompute):
    """The output size, and the scale factors where they are to be used as they are."""
    ndim = input.ndim - 2
    if (size is None) == (scale_factor is None):
        raise ValueError(f"{'either' if size is None else 'only one of'} size or scale_factor should be defined")
    given = sizes(scale_factor if size is None else size, ndim)
    if len(given) != ndim:
        raise ValueError(f"interpolate: expected {ndim} numbers as {'scale_factor' if size is None else 'size'} of an input of shape "
                         f"{tuple(input.shape)}, got {given}")
    if size is not None:
        return whole_numbers("interpolate", "size", given), (None,) * ndim
    return tuple(math.floor(n * scale) for n, scale in zip(input.shape[2:], given)), (None,) * ndim if recompute else given


def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """The older name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input, size=None, scale_factor=None):
    """`interpolate` in mode "nearest"."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input, size=None, scale_factor=None):
    """`interpolate` in mode "bilinear" with aligned corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)
