"""The operators of pooling: the largest and the mean of windows of images, and their gradients. PyTorch's functions are in pooling.py.

They take (N, C, H, W) and pairs (height, width), with the size of the result given: `kernel=None` is adaptive pooling, where window
p of P covers the elements from floor(p · H / P) to ceil((p + 1) · H / P).
"""
import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.windows_cpu import counts, max_windows, spread_windows, sum_windows
from tritorch.shape import cdiv, extent

K = kernels("pooling")
HALVES = (types.float16.numpy, types.bfloat16.numpy)


def _along(dim, kernel, stride, padding, dilation=(1, 1)):
    """The window along one dim."""
    return None if kernel is None else kernel[dim], stride[dim], padding[dim], dilation[dim]


def _launch(kernel, outs, ins, *attributes, **options):
    """Start a kernel with one lane for each element of the first output."""
    total, block = outs[0].numel(), tile(256, 4096)
    wide = max(extent(x.shape, x.strides) for x in (*outs, *ins)) > 0x7FF00000
    strides = [x.strides for x in (*outs, *ins)]
    launch(kernel, (cdiv(total, block),), *outs, *ins, *strides, total, *attributes, WIDE=wide, BLOCK=block, **options)


def _taps(n, count, kernel):
    """Most elements of a window along a dim."""
    return kernel if kernel is not None else cdiv(n, count) + (n % count > 0)


def _collect(kernel, outs, ins, reach, stride, padding, *attributes, adaptive, **options):
    """Start a kernel in which each element of the input visits the windows that can hold it; `reach` is how far a window stretches."""
    size, count = outs[0].shape[2:], ins[0].shape[2:]
    most = [min(cdiv(count[d], size[d]) + 1 if adaptive else reach[d] // stride[d] + 1, count[d]) for d in (0, 1)]
    _launch(kernel, outs, ins, *outs[0].shape[1:], *count, reach, stride, padding, *attributes, ADAPTIVE=adaptive,
            WINDOWS_H=most[0], WINDOWS_W=most[1], **options)


def _check_images(name, x):
    check(x.ndim == 4, name, "an input (N, C, H, W)", x.shape)
    check(x.dtype is not types.bool, name, "a dtype of numbers", x.dtype, error=NotImplementedError)


# ------------------------------------------------------------------ the largest
@op(returns=("values", "indices"))
def max_pool(input, size, kernel=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The largest element of each window, and its place h · W + w in its channel.

        values[n, c, p, q] = max over r, s of input[n, c, p · stride - padding + r · dilation, …]

    (N, C, H, W) gives two of (N, C, *size), of the input's dtype and int64. Padding never wins. Of equal elements the first counts; NaN
    wins over all. `kernel=None` divides the input into size parts.
    Raises RuntimeError unless the input has 4 dims, NotImplementedError for bool.

    >>> import tritorch as torch
    >>> torch.nn.functional.max_pool2d(torch.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    _check_images("max_pool", input)
    shape = (*input.shape[:2], *size)
    return [(shape, input.dtype, input.device), (shape, types.int64, input.device)]


@max_pool.impl("cpu")
def max_pool_cpu(values, indices, input, size, kernel, stride, padding, dilation):
    if not values.size:
        return
    x = input.astype(np.float32) if input.dtype in HALVES else input
    across, columns = max_windows(x, 3, size[1], *_along(1, kernel, stride, padding, dilation))
    values[...], rows = max_windows(across, 2, size[0], *_along(0, kernel, stride, padding, dilation))
    indices[...] = rows * input.shape[3] + np.take_along_axis(columns, rows, 2)


@max_pool.impl("cuda")
def max_pool_cuda(values, indices, input, size, kernel, stride, padding, dilation):
    if values.numel():
        taps = [_taps(n, count, kernel and kernel[d]) for d, (n, count) in enumerate(zip(input.shape[2:], size))]
        _launch(K.max_pool_kernel, (values, indices), (input,), *input.shape[1:], *size, stride, padding, dilation, ADAPTIVE=kernel is None,
                TAPS_H=taps[0], TAPS_W=taps[1])


@max_pool.grad("input")
def max_pool_grad(g_values, indices, input_shape, kernel, stride, padding, dilation):
    return max_pool_input(g_values, indices, tuple(input_shape[2:]), kernel, stride, padding, dilation)


@max_pool.samples
def max_pool_samples(make):
    yield make(2, 3, 5, 7), (2, 3), (2, 2), (2, 2)
    yield make(1, 2, 6, 5), (4, 3), (3, 3), (2, 2), (1, 1)
    yield make(1, 2, 7, 6), (4, 3), (2, 3), (2, 1), (1, 1), (2, 2)
    yield make(2, 1, 7, 5), (3, 2)
    yield make(1, 2, 3, 2), (4, 2)
    yield make(2, 2, 4, 6), (2, 3)
    yield make(0, 3, 4, 4), (2, 2), (2, 2), (2, 2)
    yield make(1, 2, 5, 5, integer=True, low=-99, high=99), (3, 3), (3, 3), (2, 2), (1, 1)


@max_pool.errors
def max_pool_errors(make):
    yield (make(3, 4), (1, 1)), {}, RuntimeError, "an input (N, C, H, W)"
    yield (make(1, 1, 3, 4, integer=True, dtype=types.bool), (1, 1)), {}, NotImplementedError, "a dtype of numbers"


@max_pool.workloads
def max_pool_workloads(make):
    x = make(64, 64, 112, 112, grad=False)
    yield "64x64x112x112 fp32 3x3 s2", lambda: (x, (56, 56), (3, 3), (2, 2), (1, 1)), 4 * 64 * 64 * (112 ** 2 + 3 * 56 ** 2), 0
    yield "64x64x112x112 fp32 2x2", lambda: (x, (56, 56), (2, 2), (2, 2)), 4 * 64 * 64 * (112 ** 2 + 3 * 56 ** 2), 0


@op
def max_pool_input(gradient, indices, size, kernel=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The gradient of `max_pool`: each element of the input gets the sum over the windows whose `indices` name it.

        out[n, c, h, w] = Σ over p, q with indices[n, c, p, q] = h · W + w of gradient[n, c, p, q]

    gradient and indices (N, C, P, Q) give (N, C, *size). Sums have a fixed order.

    >>> import tritorch as torch; from tritorch.ops.windows import max_pool_input
    >>> max_pool_input(torch.ones(1, 1, 1, 1), torch.tensor([[[[2]]]]), (2, 2)).tolist()
    [[[[0.0, 0.0], [1.0, 0.0]]]]
    """
    _check_images("max_pool_input", gradient)
    check(gradient.shape == indices.shape, "max_pool_input", "gradient and indices of one shape", gradient.shape, indices.shape)
    return (*gradient.shape[:2], *size), gradient.dtype, gradient.device


@max_pool_input.impl("cpu")
def max_pool_input_cpu(out, gradient, indices, size, kernel, stride, padding, dilation):
    planes, area = gradient.shape[0] * gradient.shape[1], size[0] * size[1]
    if out.size:
        at = indices.reshape(planes, -1) + np.arange(planes)[:, None] * area
        out[...] = np.bincount(at.ravel(), gradient.ravel(), planes * area).reshape(out.shape)


@max_pool_input.impl("cuda")
def max_pool_input_cuda(out, gradient, indices, size, kernel, stride, padding, dilation):
    if out.numel():
        reach = (0, 0) if kernel is None else tuple([dilation[d] * (kernel[d] - 1) for d in (0, 1)])
        _collect(K.max_pool_input_kernel, (out,), (gradient, indices), reach, stride, padding, adaptive=kernel is None)


@max_pool_input.grad("gradient")
def max_pool_input_grad(g, indices):
    return g.flatten(2).gather(2, indices.flatten(2)).view(indices.shape)


@max_pool_input.samples
def max_pool_input_samples(make):
    for image, *args in list(max_pool_samples(make))[:7]:
        values, indices = max_pool(image.detach(), *args)
        yield (make(*values.shape), indices, tuple(image.shape[2:]), *args[1:])


@max_pool_input.errors
def max_pool_input_errors(make):
    yield (make(1, 1, 2, 2), make(1, 1, 2, 3, integer=True), (4, 4)), {}, RuntimeError, "gradient and indices of one shape"


@max_pool_input.workloads
def max_pool_input_workloads(make):
    x = make(64, 64, 112, 112, grad=False)
    values, indices = max_pool(x, (56, 56), (3, 3), (2, 2), (1, 1))
    yield ("64x64x112x112 fp32 3x3 s2", lambda: (values, indices, (112, 112), (3, 3), (2, 2), (1, 1)),
           4 * 64 * 64 * (112 ** 2 + 3 * 56 ** 2), 0)


# ------------------------------------------------------------------ the mean
@op
def avg_pool(input, size, kernel=None, stride=(1, 1), padding=(0, 0), include=True, divisor=None):
    """The mean of each window.

        out[n, c, p, q] = 1 / count · Σ over r, s of input[n, c, p · stride - padding + r, …]

    (N, C, H, W) gives (N, C, *size). Padding counts as zeros with `include`, and not at all without; `divisor` stands in for the count.
    `kernel=None` divides the input into size parts. Half types are summed in float32.
    Raises RuntimeError unless the input has 4 dims, NotImplementedError for dtypes that are not floating.

    >>> import tritorch as torch
    >>> torch.nn.functional.avg_pool2d(torch.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 2.5000,  4.5000],
              [10.5000, 12.5000]]]])
    """
    _check_images("avg_pool", input)
    check(input.dtype.is_floating_point, "avg_pool", "a floating dtype", input.dtype, error=NotImplementedError)
    return (*input.shape[:2], *size), input.dtype, input.device


def _shares(shape, size, kernel, stride, padding, include, divisor):
    """What each window's sum is divided by."""
    if divisor is not None:
        return divisor
    rows, columns = [counts(shape[d], size[d], *_along(d, kernel, stride, padding)[:3], include) for d in (0, 1)]
    return rows[:, None] * columns


@avg_pool.impl("cpu")
def avg_pool_cpu(out, input, size, kernel, stride, padding, include, divisor):
    acc = input.astype(np.float32) if input.dtype in HALVES else input
    for d in (0, 1):
        acc = sum_windows(acc, 2 + d, size[d], *_along(d, kernel, stride, padding))
    acc /= np.asarray(_shares(input.shape[2:], size, kernel, stride, padding, include, divisor), acc.dtype)
    out[...] = acc


@avg_pool.impl("cuda")
def avg_pool_cuda(out, input, size, kernel, stride, padding, include, divisor):
    if out.numel():
        taps = [_taps(input.shape[2 + d], size[d], kernel and kernel[d]) for d in (0, 1)]
        _launch(K.avg_pool_kernel, (out,), (input,), *input.shape[1:], *size, kernel or (1, 1), stride, padding, divisor,
                ADAPTIVE=kernel is None, INCLUDE=include, TAPS_H=taps[0], TAPS_W=taps[1])


@avg_pool.grad("input")
def avg_pool_grad(g, input_shape, kernel, stride, padding, include, divisor):
    return avg_pool_input(g, tuple(input_shape[2:]), kernel, stride, padding, include, divisor)


@avg_pool.samples
def avg_pool_samples(make):
    yield make(2, 3, 5, 7), (2, 3), (2, 2), (2, 2)
    yield make(1, 2, 6, 5), (4, 3), (3, 3), (2, 2), (1, 1)
    yield make(1, 2, 6, 5), (4, 3), (3, 3), (2, 2), (1, 1), False
    yield make(1, 2, 7, 4), (4, 5), (4, 2), (2, 1), (2, 1), True, 3
    yield make(2, 1, 7, 5), (3, 2)
    yield make(1, 2, 3, 2), (4, 5)
    yield make(2, 2, 4, 6), (2, 3)
    yield make(0, 3, 4, 4), (2, 2), (2, 2), (2, 2)


@avg_pool.errors
def avg_pool_errors(make):
    yield (make(3, 4), (1, 1)), {}, RuntimeError, "an input (N, C, H, W)"
    yield (make(1, 1, 3, 4, integer=True), (1, 1)), {}, NotImplementedError, "a floating dtype"


@avg_pool.workloads
def avg_pool_workloads(make):
    x = make(64, 64, 112, 112, grad=False)
    yield "64x64x112x112 fp32 2x2", lambda: (x, (56, 56), (2, 2), (2, 2)), 4 * 64 * 64 * (112 ** 2 + 56 ** 2), 64 * 64 * 112 ** 2


@op
def avg_pool_input(gradient, size, kernel=None, stride=(1, 1), padding=(0, 0), include=True, divisor=None):
    """The gradient of `avg_pool`: each element of the input gets its share of every window that holds it.

        out[n, c, h, w] = Σ over the windows p, q that hold h, w of gradient[n, c, p, q] / count[p, q]

    gradient (N, C, P, Q) gives (N, C, *size). Sums have a fixed order.

    >>> import tritorch as torch; from tritorch.ops.windows import avg_pool_input
    >>> avg_pool_input(torch.ones(1, 1, 1, 1), (1, 2)).tolist()
    [[[[0.5, 0.5]]]]
    """
    _check_images("avg_pool_input", gradient)
    return (*gradient.shape[:2], *size), gradient.dtype, gradient.device


@avg_pool_input.impl("cpu")
def avg_pool_input_cpu(out, gradient, size, kernel, stride, padding, include, divisor):
    acc = gradient.astype(np.float32) if gradient.dtype in HALVES else gradient
    acc = acc / np.asarray(_shares(size, gradient.shape[2:], kernel, stride, padding, include, divisor), acc.dtype)
    for d in (0, 1):
        acc = spread_windows(acc, 2 + d, size[d], *_along(d, kernel, stride, padding))
    out[...] = acc


@avg_pool_input.impl("cuda")
def avg_pool_input_cuda(out, gradient, size, kernel, stride, padding, include, divisor):
    if out.numel():
        reach = (0, 0) if kernel is None else (kernel[0] - 1, kernel[1] - 1)
        _collect(K.avg_pool_input_kernel, (out,), (gradient,), reach, stride, padding, divisor, adaptive=kernel is None, INCLUDE=include)


@avg_pool_input.grad("gradient")
def avg_pool_input_grad(g, gradient_shape, kernel, stride, padding, include, divisor):
    return avg_pool(g, tuple(gradient_shape[2:]), kernel, stride, padding, include, divisor)


@avg_pool_input.samples
def avg_pool_input_samples(make):
    for image, size, *args in list(avg_pool_samples(make)):
        yield (make(*image.shape[:2], *size), tuple(image.shape[2:]), *args)


@avg_pool_input.errors
def avg_pool_input_errors(make):
    yield (make(3, 4), (1, 1)), {}, RuntimeError, "an input (N, C, H, W)"


@avg_pool_input.workloads
def avg_pool_input_workloads(make):
    g = make(64, 64, 56, 56, grad=False)
    yield "64x64x112x112 fp32 2x2", lambda: (g, (112, 112), (2, 2), (2, 2)), 4 * 64 * 64 * (112 ** 2 + 56 ** 2), 64 * 64 * 112 ** 2
