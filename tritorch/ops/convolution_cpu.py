"""Convolution in numpy: what the taps read is laid out as columns, few enough at a time to stay in the cache, and BLAS multiplies them.

Columns are matrices (N, groups, C / groups · R · S, P · Q): those of a block of images, or of some rows of the result of one. Where an
image has fewer of them than a group has filters, those of all images of a block are joint in one matrix: BLAS reads the filters once.
"""
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tritorch.ops.arrays import single

BLOCK = 1 << 19                                                          # elements of columns at once: 2 MB in float32


def reached(n, count, taps, stride, padding, dilation):
    """Size of a dim with its padding, large enough for every tap of every output."""
    return max(n + padding, (count - 1) * stride + (taps - 1) * dilation + 1)


def frame(shape, size, kernel, stride, padding, dilation):
    """(height and width with padding, the places of the image in them)."""
    dims = list(zip(shape[2:], size, kernel, stride, padding, dilation))
    return tuple([reached(*d) for d in dims]), (..., *[slice(d[4], d[4] + d[0]) for d in dims])


def tap(r, s, size, stride, dilation):
    """What tap (r, s) reads of the padded image."""
    return (..., *[slice(at * d, at * d + (n - 1) * t + 1, t) for at, n, t, d in zip((r, s), size, stride, dilation)])


def pairs(block, image, stride, dilation):
    """Yield (part of columns (N, C, R, S, P, Q), where it belongs in padded images (N, C, H, W)) by taps, or by places of the result if
    those are fewer."""
    kernel, size = block.shape[2:4], block.shape[4:]
    if prod(kernel) <= prod(size):
        for r, s in np.ndindex(*kernel):
            yield block[:, :, r, s], image[tap(r, s, size, stride, dilation)]
    else:
        for p, q in np.ndindex(*size):
            yield block[..., p, q], image[tap(p, q, kernel, dilation, stride)]


def blocks(count, taps, filters, size):
    """Yield (images, rows of the result) that make a BLOCK of columns of so many taps, or as many columns as filters if that is more."""
    most = max(BLOCK // taps, filters) // size[1]                        # rows of the result
    images, rows = max(most // size[0], 1), min(max(most, 1), size[0])
    for first in range(0, count, images):
        for top in range(0, size[0], rows):
            yield slice(first, min(first + images, count)), slice(top, min(top + rows, size[0]))


def matrices(x, groups, joint):
    """(N, C, …, P, Q) as matrices (N or 1, groups, C / groups · …, columns)."""
    n, places = len(x), x.shape[-2] * x.shape[-1]
    return np.moveaxis(x, 0, -3).reshape(1, groups, -1, n * places) if joint else x.reshape(n, groups, -1, places)


def images_of(made, shape, joint):
    """Matrices as (N, C, …, P, Q) again."""
    return np.moveaxis(made.reshape(*shape[1:-2], shape[0], *shape[-2:]), -3, 0) if joint else made.reshape(shape)


def columns(x, filters, size, kernel, stride, padding, dilation, groups):
    """Yield (images, rows of the result, their columns), a block at a time."""
    padded, inside = frame(x.shape, size, kernel, stride, padding, dilation)
    memory = None
    for images, rows in blocks(len(x), x.shape[1] * prod(kernel), filters, size):
        if rows.start == 0:
            image = single(x[images])
            if padded != x.shape[2:]:
                memory = np.zeros((*image.shape[:2], *padded), image.dtype) if memory is None else memory[:len(image)]
                memory[inside] = image
                image = memory
        n, c, h, w = image.strides
        shape = *image.shape[:2], *kernel, rows.stop - rows.start, size[1]
        steps = n, c, h * dilation[0], w * dilation[1], h * stride[0], w * stride[1]
        read = as_strided(image[:, :, rows.start * stride[0]:], shape, steps)
        yield images, rows, matrices(read, groups, prod(size) < filters)


def convolve(out, x, weight, bias, stride, padding, dilation, groups):
    """out = bias + the convolution of x with the weights."""
    if not weight.size or not out.size:                                  # no channels to sum over, or none to write
        out[...] = 0 if bias is None else bias[:, None, None]
        return
    K, size, kernel, weight = weight.shape[0] // groups, out.shape[2:], weight.shape[2:], single(weight)
    filters, bias = weight.reshape(groups, K, -1), None if bias is None else single(bias).reshape(groups, K, 1)
    joint = prod(size) < K
    direct = not joint and out.flags.c_contiguous and out.dtype == weight.dtype
    for images, rows, block in columns(x, K, size, kernel, stride, padding, dilation, groups):
        target = out[images, :, rows]
        made = np.matmul(filters, block, out=matrices(target, groups, joint) if direct else None)
        if bias is not None:
            made += bias
        if not direct:
            target[...] = images_of(made, target.shape, joint)


def phase(first, kernel, stride, padding, dilation):
    """How the pixels first, first + stride, … of a dim of the input are a convolution of the gradient: (taps, padding, dilation).

    Pixel first + stride · m has from tap r what lies at m + (first + padding - r · dilation) / stride, if that is whole: from every
    stride / gcd(stride, dilation)-th tap, the last of which comes first in the gradient.
    """
    taps = [r for r in range(kernel) if (first + padding - r * dilation) % stride == 0]
    step = taps[1] - taps[0] if len(taps) > 1 else stride
    before = (taps[-1] * dilation - padding - first) // stride if taps else 0
    return slice(taps[0], taps[-1] + 1, step) if taps else slice(0), before, step * dilation // stride


def convolve_input(out, gradient, weight, stride, padding, dilation, groups):
    """The gradient of the input: a convolution of the gradient for the pixels that lie a stride apart, or columns made of the gradient,
    added where the taps read, whichever are fewer."""
    if not weight.size or not gradient.size or not out.size:
        out[...] = 0
        return
    K, C = weight.shape[0] // groups, out.shape[1]
    turned = single(weight).reshape(groups, K, -1, *weight.shape[2:]).swapaxes(1, 2)      # (groups, C / groups, K / groups, R, S)
    if K * groups >= 2 * C and weight.shape[2:] != (1, 1):
        return _add_columns(out, gradient, turned, stride, padding, dilation)
    for first in np.ndindex(*stride):
        taps, before, step = zip(*map(phase, first, weight.shape[2:], stride, padding, dilation))
        place, filters = out[:, :, first[0]::stride[0], first[1]::stride[1]], turned[..., taps[0], taps[1]]
        filters = np.ascontiguousarray(filters[..., ::-1, ::-1]).reshape(C, K, *filters.shape[3:])
        read = gradient[:, :, max(-before[0], 0):, max(-before[1], 0):]
        convolve(place, read, filters, None, (1, 1), (max(before[0], 0), max(before[1], 0)), step, groups)


def _add_columns(out, gradient, turned, stride, padding, dilation):
    (groups, _, K), kernel, size = turned.shape[:3], turned.shape[3:], gradient.shape[2:]
    padded, inside = frame(out.shape, size, kernel, stride, padding, dilation)
    filters, joint = np.moveaxis(turned, 2, -1).reshape(groups, -1, K), prod(size) < K
    for images, rows in blocks(len(out), out.shape[1] * prod(kernel), K, size):
        part = single(gradient[images, :, rows])
        made = np.matmul(filters, matrices(part, groups, joint))
        if rows.start == 0:
            image = np.zeros((*part.shape[:1], out.shape[1], *padded), made.dtype)
        made = images_of(made, (*image.shape[:2], *kernel, *part.shape[2:]), joint)
        for column, pixels in pairs(made, image[:, :, rows.start * stride[0]:], stride, dilation):
            pixels += column
        if rows.stop == size[0]:
            out[images] = image[inside]


def convolve_weight(out, gradient, x, stride, padding, dilation, groups):
    """The gradient of the weights: gradients times columns, summed over the images."""
    if not out.size or not gradient.size:
        out[...] = 0
        return
    K, size = len(out) // groups, gradient.shape[2:]
    acc = np.zeros((groups, K, out.size // len(out)), single(x[:0]).dtype)
    for images, rows, block in columns(x, K, size, out.shape[2:], stride, padding, dilation, groups):
        g = matrices(single(gradient[images, :, rows]), groups, prod(size) < K)
        acc += np.matmul(g, block.swapaxes(2, 3)).sum(0)
    out[...] = acc.reshape(out.shape)
