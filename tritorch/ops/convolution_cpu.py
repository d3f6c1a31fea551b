"""Convolution in numpy: the pixels that each tap reads are laid out as columns, a few images at a time, and BLAS multiplies them."""
import numpy as np

from tritorch.ops.reduce import single

BATCH = 1 << 19                                                          # elements of columns at once: they stay in the cache


def reached(n, count, taps, stride, padding, dilation):
    """Size of a dim with its padding, large enough for every tap of every output."""
    return max(n + padding, (count - 1) * stride + (taps - 1) * dilation + 1)


def frame(shape, size, kernel, stride, padding, dilation):
    """(shape with padding, the places of the image in it)."""
    dims = list(zip(shape[2:], size, kernel, stride, padding, dilation))
    return (*shape[:2], *[reached(*d) for d in dims]), (..., *[slice(d[4], d[4] + d[0]) for d in dims])


def tap(r, s, size, stride, dilation):
    """What tap (r, s) reads of the padded image."""
    return (..., *[slice(at * d, at * d + (n - 1) * t + 1, t) for at, n, t, d in zip((r, s), size, stride, dilation)])


def walk(size, kernel, stride, dilation):
    """Yield (which of the columns (…, R, S, P, Q), which of the padded image) by taps, or by places of the result if those are fewer.
    """
    if kernel[0] * kernel[1] <= size[0] * size[1]:
        for r, s in np.ndindex(*kernel):
            yield (..., r, s, slice(None), slice(None)), tap(r, s, size, stride, dilation)
    else:
        for p, q in np.ndindex(*size):
            yield (..., p, q), tap(p, q, kernel, dilation, stride)


def columns(x, size, kernel, stride, padding, dilation, groups):
    """Yield (images, their columns (n, groups, C · R · S, P · Q)), few images at a time."""
    (N, C), (P, Q), (R, S) = x.shape[:2], size, kernel
    padded, inside = frame(x.shape, size, kernel, stride, padding, dilation)
    if padded != x.shape:
        image = np.zeros(padded, x.dtype)
        image[inside] = x
        x = image
    if R == S == 1:
        yield slice(0, N), x[tap(0, 0, size, stride, dilation)].reshape(N, groups, C // groups, P * Q)
        return
    step = max(BATCH // max(C * R * S * P * Q, 1), 1)
    block = np.empty((min(step, N), C, R, S, P, Q), x.dtype)
    for first in range(0, N, step):
        images = slice(first, min(first + step, N))
        made = block[:images.stop - first]
        for of, at in walk(size, kernel, stride, dilation):
            made[of] = x[images][at]
        yield images, made.reshape(-1, groups, C // groups * R * S, P * Q)


def convolve(out, x, weight, bias, stride, padding, dilation, groups):
    """out = bias + the convolution of x with the weights."""
    if not weight.size:                                                  # no channels to sum over, or none to write
        out[...] = 0 if bias is None else bias[:, None, None]
        return
    K, size = weight.shape[0], out.shape[2:]
    x, weight = single(x), single(weight)
    direct = out.flags.c_contiguous and out.dtype == x.dtype
    acc = out if direct else np.empty(out.shape, x.dtype)
    rows = weight.reshape(groups, K // groups, -1)
    for images, block in columns(x, size, weight.shape[2:], stride, padding, dilation, groups):
        np.matmul(rows, block, out=acc[images].reshape(-1, groups, K // groups, size[0] * size[1]))
    if bias is not None:
        acc += single(bias)[:, None, None]
    if not direct:
        out[...] = acc


def convolve_input(out, gradient, weight, stride, padding, dilation, groups):
    """The gradient of the input: columns of gradients, each tap's added where the tap read."""
    if not weight.size or not gradient.size:
        out[...] = 0
        return
    (N, K), size, (R, S) = gradient.shape[:2], gradient.shape[2:], weight.shape[2:]
    g, weight = single(gradient), single(weight)
    padded, inside = frame(out.shape, size, (R, S), stride, padding, dilation)
    rows = weight.reshape(groups, K // groups, -1).swapaxes(1, 2)
    if R == S == 1 and stride == (1, 1) and padded == out.shape == (N, out.shape[1], *size):
        out[...] = np.matmul(rows, g.reshape(N, groups, K // groups, -1)).reshape(out.shape)
        return
    image = np.zeros(padded, g.dtype)
    step = max(BATCH // max(out.shape[1] * R * S * size[0] * size[1], 1), 1)
    for first in range(0, N, step):
        block = np.matmul(rows, g[first:first + step].reshape(-1, groups, K // groups, size[0] * size[1]))
        block = block.reshape(-1, out.shape[1], R, S, *size)
        for of, at in walk(size, (R, S), stride, dilation):
            image[first:first + step][at] += block[of]
    out[...] = image[inside]


def convolve_weight(out, gradient, x, stride, padding, dilation, groups):
    """The gradient of the weights: gradients times columns, summed over the images."""
    if not out.size:
        return
    K, size = gradient.shape[1], gradient.shape[2:]
    g, x = single(gradient), single(x)
    acc = np.zeros((groups, K // groups, out.size // max(K, 1)), g.dtype)
    for images, block in columns(x, size, out.shape[2:], stride, padding, dilation, groups):
        acc += np.matmul(g[images].reshape(-1, groups, K // groups, size[0] * size[1]), block.swapaxes(2, 3)).sum(0)
    out[...] = acc.reshape(out.shape)
