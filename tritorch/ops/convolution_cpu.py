"""Convolution in numpy: what the taps read is laid out as columns, few enough at a time to stay in the cache, and BLAS multiplies them.

Columns are matrices (N, groups, C / groups · R · S, P · Q): those of a block of images, or of some rows of the result of one. Where an
image has fewer of them than a group has filters, those of all images of a block are joint in one matrix: BLAS reads the filters once.
"""
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tritorch.ops.reduce import single

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


def convolve_input(out, gradient, weight, stride, padding, dilation, groups):
    """The gradient of the input: a convolution of the gradient, or columns made of it, each tap's added where the tap read."""
    if not weight.size or not gradient.size or not out.size:
        out[...] = 0
        return
    K, C, size, kernel = weight.shape[0] // groups, out.shape[1], gradient.shape[2:], weight.shape[2:]
    turned = single(weight).reshape(groups, K, -1, *kernel).swapaxes(1, 2)
    before = tuple([d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding)])
    if stride == (1, 1) and min(before) >= 0 and (K * groups <= 2 * C or kernel == (1, 1)):
        turned = np.ascontiguousarray(turned[..., ::-1, ::-1]).reshape(C, K, *kernel)
        return convolve(out, gradient, turned, None, stride, before, dilation, groups)
    padded, inside = frame(out.shape, size, kernel, stride, padding, dilation)
    filters, joint = np.moveaxis(turned, 2, -1).reshape(groups, -1, K), prod(size) < K
    for images, rows in blocks(len(out), C * prod(kernel), K, size):
        part = single(gradient[images, :, rows])
        made = (np.multiply if K == 1 else np.matmul)(filters, matrices(part, groups, joint))
        if rows.start == 0:
            image = np.zeros((len(part), C, *padded), made.dtype)
        made = images_of(made, (len(part), C, *kernel, *part.shape[2:]), joint)
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
