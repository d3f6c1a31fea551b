"""The largest and the mean of windows of volumes (N, C, D, H, W), and their gradients. PyTorch's functions are in volumes.py.

Sizes come in threes (depth, height, width); the rest is as avg_pooling.py says. Places are those in a volume, (d · H + h) · W + w, as
int32. Tensors may have any strides; as in PyTorch the largest of windows of a given size are channels last where the input is.
"""
import math

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.arrays import single
from tritorch.ops.avg_pooling import adaptive, along_dim, image_promise, taps_of
from tritorch.ops.extremes import lowest
from tritorch.ops.pooling_cpu import counts, max_windows, spread_windows, sum_windows
from tritorch.shape import cdiv, extent

K = kernels("volume_pooling")
ONES, UNROLLED = (1, 1, 1), 27                                           # elements of the largest window whose loop is unrolled


def check_volumes(name, x):
    check(x.ndim == 5, name, "an input (N, C, D, H, W)", x.shape)
    check(math.prod(x.shape[2:]) < 1 << 31, name, "volumes of fewer than 2³¹ places", x.shape)
    check(x.dtype is not types.bool, name, "a dtype of numbers", x.dtype, error=NotImplementedError)


def launch_volumes(kernel, outs, ins, *attributes, turns, **options):
    """Start a kernel with a thread for each element of the first of `outs`, in which a loop has so many turns."""
    total, block, tensors = outs[0].numel(), tile(256, 1024), (*outs, *ins)
    wide = max([total, *[extent(x.shape, x.strides) for x in tensors if x is not None]]) > 0x7FF00000
    strides = [None if x is None else x.strides for x in tensors]
    launch(kernel, (cdiv(total, block),), *tensors, *strides, total, *outs[0].shape[1:], *attributes,
           UNROLL=turns if turns <= UNROLLED else 4, LAST=outs[0].strides[1] == 1 < outs[0].shape[1], WIDE=wide, BLOCK=block, **options)


def _visits(size, count, kernel, stride, reach):
    """How many windows along each dim can hold an element."""
    return tuple([min(cdiv(count[d], size[d]) + 1 if kernel is None else reach[d] // stride[d] + 1, count[d]) for d in range(3)])


# ------------------------------------------------------------------ the largest
@op(returns=("values", "places"))
def max_pool_volume(input, size, kernel=None, stride=ONES, padding=(0, 0, 0), dilation=ONES):
    """The largest element of each window of volumes, and its place (d · H + h) · W + w in the volume, int32.

    (N, C, D, H, W) gives two of (N, C, *size). Padding never wins. Of equal elements the first counts; NaN wins over all.
    `kernel=None` divides the input into size parts. Raises RuntimeError unless the input has 5 dims, NotImplementedError for bool.

    >>> import tritorch as torch; from tritorch.ops.volume_pooling import max_pool_volume
    >>> values, places = max_pool_volume(torch.arange(8.0).view(1, 1, 2, 2, 2), (1, 1, 1))
    >>> values.item(), places.item()
    (7.0, 7)
    """
    check_volumes("max_pool_volume", input)
    shape = (*input.shape[:2], *size)
    if kernel is None:                                                   # as in PyTorch, whatever the input's order
        return [(shape, input.dtype, input.device), (shape, types.int32, input.device)]
    return [image_promise(shape, input.dtype, input), image_promise(shape, types.int32, input)]


@max_pool_volume.impl("cpu")
def max_pool_volume_cpu(values, places, input, size, kernel, stride, padding, dilation):
    if values.size:
        values[...], places[...] = _largest(input, size, kernel, stride, padding, dilation)


def _largest(input, size, kernel, stride, padding, dilation, marked=True):
    """One dim after the other, the last first: what comes first in each layer, row and column comes first in the volume, and so with NaN
    and last."""
    x, marks, n = single(input), np.zeros(1, np.int32) if marked else None, input.shape
    for d in (4, 3, 2):
        if marked:
            marks = marks + np.arange(n[d], dtype=np.int32).reshape(-1, *(1,) * (4 - d)) * np.int32(math.prod(n[d + 1:]))
        x, marks = max_windows(x, marks, d, size[d - 2], *along_dim(d - 2, kernel, stride, padding, dilation))
    return x, marks


@max_pool_volume.impl("cuda")
def max_pool_volume_cuda(values, places, input, size, kernel, stride, padding, dilation):
    """places may be None."""
    if values.numel():
        n = input.shape[2:]
        taps = taps_of(n, size, kernel)
        launch_volumes(K.max_pool_volume_kernel, (values, places), (input,), *n, STRIDE=stride, PADDING=padding, DILATION=dilation,
                       ADAPTIVE=adaptive(kernel, n, size), TAPS=taps, LOWEST=lowest(input.dtype), turns=math.prod(taps))


@max_pool_volume.grad("input")
def max_pool_volume_grad(g_values, places, input_shape, kernel, stride, padding, dilation):
    return max_pool_volume_input(g_values, places, tuple(input_shape[2:]), kernel, stride, padding, dilation)


@max_pool_volume.samples
def max_pool_volume_samples(make):
    yield make(2, 2, 3, 4, 5), (2, 2, 2), (2, 3, 2), (1, 2, 3), (0, 1, 1), ONES
    yield make(1, 2, 4, 3, 3), (2, 1, 3), (2, 2, 1), (2, 1, 1), (1, 0, 0), (2, 2, 1)
    yield make(1, 2, 3, 2, 4), (2, 3, 2)
    yield make(0, 2, 2, 2, 2), (1, 1, 1), (2, 2, 2), (2, 2, 2), (0, 0, 0)
    yield make(1, 1, 3, 4, 3, integer=True, low=-99, high=99), (2, 2, 2), (2, 2, 2), (2, 2, 2), ONES


@max_pool_volume.errors
def max_pool_volume_errors(make):
    yield (make(3, 4), ONES), {}, RuntimeError, "an input (N, C, D, H, W)"
    yield (make(1, 1, 2, 3, 4, integer=True, dtype=types.bool), ONES), {}, NotImplementedError, "a dtype of numbers"


@max_pool_volume.workloads
def max_pool_volume_workloads(make):
    yield "16x64x16x56x56 fp32 2x2x2", lambda: (make(16, 64, 16, 56, 56, grad=False), (8, 28, 28), (2,) * 3, (2,) * 3, (0,) * 3), \
        16 * 64 * 16 * 56 ** 2 * 5, 0


@op
def max_pool_volume_values(input, size, kernel=None, stride=ONES, padding=(0, 0, 0), dilation=ONES):
    """The values of `max_pool_volume` alone, for those who will not ask for places; its gradient finds them anew.

    >>> import tritorch as torch; from tritorch.ops.volume_pooling import max_pool_volume_values
    >>> max_pool_volume_values(torch.arange(4.0).view(1, 1, 1, 2, 2), (1, 1, 1)).item()
    3.0
    """
    return max_pool_volume.body(input, size, kernel, stride, padding, dilation)[0]


@max_pool_volume_values.impl("cpu")
def max_pool_volume_values_cpu(values, input, size, kernel, stride, padding, dilation):
    if values.size:
        values[...], _ = _largest(input, size, kernel, stride, padding, dilation, marked=False)


@max_pool_volume_values.impl("cuda")
def max_pool_volume_values_cuda(values, input, size, kernel, stride, padding, dilation):
    max_pool_volume_cuda(values, None, input, size, kernel, stride, padding, dilation)


@max_pool_volume_values.grad("input")
def max_pool_volume_values_grad(g, input, size, kernel, stride, padding, dilation):
    places = max_pool_volume(input, size, kernel, stride, padding, dilation)[1]
    return max_pool_volume_input(g, places, tuple(input.shape[2:]), kernel, stride, padding, dilation)


@max_pool_volume_values.samples
def max_pool_volume_values_samples(make):
    yield from list(max_pool_volume_samples(make))[1:]


max_pool_volume_values.errors(max_pool_volume_errors)
max_pool_volume_values.workloads(max_pool_volume_workloads)


@op
def max_pool_volume_input(gradient, places, size, kernel=None, stride=ONES, padding=(0, 0, 0), dilation=ONES):
    """The gradient of `max_pool_volume`: each element of the input gets the sum over the windows whose `places` name it.

    gradient (N, C, O, P, Q) and its places give (N, C, *size). Sums have a fixed order.
    """
    check_volumes("max_pool_volume_input", gradient)
    check(places.shape == gradient.shape, "max_pool_volume_input", "places for all gradients", places.shape, gradient.shape)
    return image_promise((*gradient.shape[:2], *size), gradient.dtype, gradient, places)


@max_pool_volume_input.impl("cpu")
def max_pool_volume_input_cpu(out, gradient, places, size, kernel, stride, padding, dilation):
    planes, volume = gradient.shape[0] * gradient.shape[1], math.prod(size)
    if out.size:
        at = places.reshape(planes, -1) + np.arange(planes)[:, None] * volume
        out[...] = np.bincount(at.ravel(), gradient.ravel(), planes * volume).reshape(out.shape)


@max_pool_volume_input.impl("cuda")
def max_pool_volume_input_cuda(out, gradient, places, size, kernel, stride, padding, dilation):
    if not gradient.numel():
        out.fill_(0)
    elif out.numel():
        n = gradient.shape[2:]
        reach = tuple([dilation[d] * (k - 1) for d, k in enumerate(taps_of(size, n, kernel))])
        visits = _visits(size, n, kernel, stride, reach)
        launch_volumes(K.max_pool_volume_input_kernel, (out,), (gradient, places), *n, STRIDE=stride, PADDING=padding, REACH=reach,
                       ADAPTIVE=adaptive(kernel, size, n), COUNT=visits, turns=math.prod(visits))


@max_pool_volume_input.grad("gradient")
def max_pool_volume_input_grad(g, gradient_shape, places):
    return g.flatten(2).gather(2, places.long().flatten(2)).view(gradient_shape)


@max_pool_volume_input.samples
def max_pool_volume_input_samples(make):
    for image, *args in list(max_pool_volume_samples(make))[:4]:
        values, places = max_pool_volume(image.detach(), *args)
        yield (make(*values.shape), places, tuple(image.shape[2:]), *args[1:])


@max_pool_volume_input.errors
def max_pool_volume_input_errors(make):
    yield (make(1, 1, 2, 2, 2), make(1, 1, 2, 2, 3, integer=True), (4, 4, 4)), {}, RuntimeError, "places for all gradients"


@max_pool_volume_input.workloads
def max_pool_volume_input_workloads(make):
    def arguments():
        x, *rest = next(max_pool_volume_workloads(make))[1]()
        return (*max_pool_volume(x, *rest), tuple(x.shape[2:]), *rest[1:])

    yield "16x64x16x56x56 fp32 2x2x2", arguments, 16 * 64 * 16 * 56 ** 2 * 5, 0


# ------------------------------------------------------------------ the mean
@op
def avg_pool_volume(input, size, kernel=None, stride=ONES, padding=(0, 0, 0), include=True, divisor=None):
    """The mean of each window of volumes.

    (N, C, D, H, W) gives (N, C, *size). Padding counts as zeros with `include`, and not at all without; `divisor` stands in for the count.
    `kernel=None` divides the input into size parts. Half types are summed in float32.
    Raises RuntimeError unless the input has 5 dims, NotImplementedError for dtypes that are not floating.

    >>> import tritorch as torch; from tritorch.ops.volume_pooling import avg_pool_volume
    >>> avg_pool_volume(torch.arange(8.0).view(1, 1, 2, 2, 2), (2, 1, 1)).flatten().tolist()
    [1.5, 5.5]
    """
    check_volumes("avg_pool_volume", input)
    check(input.dtype.is_floating_point, "avg_pool_volume", "a floating dtype", input.dtype, error=NotImplementedError)
    return (*input.shape[:2], *size), input.dtype, input.device


def _divisors(shape, size, kernel, stride, padding, include, divisor):
    """What the sum of each window is divided by."""
    if divisor is not None:
        return divisor
    along = [counts(shape[d], size[d], *along_dim(d, kernel, stride, padding, ONES)[:3], include) for d in range(3)]
    return along[0][:, None, None] * along[1][:, None] * along[2]


def _divisor(shape, size, kernel, stride, padding, include, divisor):
    """The same as one number; None where windows count different numbers of elements."""
    whole = kernel is not None and all((size[d] - 1) * stride[d] - padding[d] + kernel[d] <= shape[d] + padding[d] * include
                                       and (include or not padding[d]) for d in range(3))
    return math.prod(kernel) if divisor is None and whole else divisor


@avg_pool_volume.impl("cpu")
def avg_pool_volume_cpu(out, input, size, kernel, stride, padding, include, divisor):
    acc = single(input)
    for d in range(3):
        acc = sum_windows(acc, 2 + d, size[d], *along_dim(d, kernel, stride, padding, ONES))
    out[...] = acc / np.asarray(_divisors(input.shape[2:], size, kernel, stride, padding, include, divisor), acc.dtype)


@avg_pool_volume.impl("cuda")
def avg_pool_volume_cuda(out, input, size, kernel, stride, padding, include, divisor):
    if out.numel():
        n = input.shape[2:]
        taps = taps_of(n, size, kernel)
        launch_volumes(K.avg_pool_volume_kernel, (out,), (input,), *n, _divisor(n, size, kernel, stride, padding, include, divisor),
                       STRIDE=stride, PADDING=padding, ADAPTIVE=adaptive(kernel, n, size), INCLUDE=include, TAPS=taps,
                       turns=math.prod(taps))


@avg_pool_volume.grad("input")
def avg_pool_volume_grad(g, input_shape, kernel, stride, padding, include, divisor):
    return avg_pool_volume_input(g, tuple(input_shape[2:]), kernel, stride, padding, include, divisor)


@avg_pool_volume.samples
def avg_pool_volume_samples(make):
    yield make(2, 2, 3, 4, 5), (2, 2, 2), (2, 3, 2), (1, 2, 3), (0, 1, 1), False
    yield make(1, 2, 4, 3, 3), (3, 2, 2), (2, 2, 1), (2, 1, 2), (1, 0, 0), True
    yield make(1, 2, 4, 3, 3), (3, 2, 2), (2, 2, 2), (1, 1, 1), (0, 0, 0), True, 3
    yield make(1, 2, 3, 2, 4), (2, 3, 2)
    yield make(0, 2, 2, 2, 2), (1, 1, 1), (2, 2, 2), (2, 2, 2)


@avg_pool_volume.errors
def avg_pool_volume_errors(make):
    yield (make(3, 4), ONES), {}, RuntimeError, "an input (N, C, D, H, W)"
    yield (make(1, 1, 2, 3, 4, integer=True), ONES), {}, NotImplementedError, "a floating dtype"


@avg_pool_volume.workloads
def avg_pool_volume_workloads(make):
    yield "16x64x16x56x56 fp32 2x2x2", lambda: (make(16, 64, 16, 56, 56, grad=False), (8, 28, 28), (2,) * 3, (2,) * 3), \
        16 * 64 * 16 * 56 ** 2 * 9 // 2, 16 * 64 * 16 * 56 ** 2


@op
def avg_pool_volume_input(gradient, size, kernel=None, stride=ONES, padding=(0, 0, 0), include=True, divisor=None):
    """The gradient of `avg_pool_volume`: each element of the input gets its share of every window that holds it.

    gradient (N, C, O, P, Q) gives (N, C, *size). Sums have a fixed order.
    """
    check_volumes("avg_pool_volume_input", gradient)
    return (*gradient.shape[:2], *size), gradient.dtype, gradient.device


@avg_pool_volume_input.impl("cpu")
def avg_pool_volume_input_cpu(out, gradient, size, kernel, stride, padding, include, divisor):
    if not gradient.size:
        out[...] = 0
        return
    acc = single(gradient)
    acc = acc / np.asarray(_divisors(size, gradient.shape[2:], kernel, stride, padding, include, divisor), acc.dtype)
    for d in range(3):
        acc = spread_windows(acc, 2 + d, size[d], *along_dim(d, kernel, stride, padding, ONES))
    out[...] = acc


@avg_pool_volume_input.impl("cuda")
def avg_pool_volume_input_cuda(out, gradient, size, kernel, stride, padding, include, divisor):
    if not gradient.numel():
        out.fill_(0)
    elif out.numel():
        n = gradient.shape[2:]
        taps = taps_of(size, n, kernel)
        reach = tuple([k - 1 for k in taps])
        visits = _visits(size, n, kernel, stride, reach)
        divisor = _divisor(size, n, kernel, stride, padding, include, divisor)
        launch_volumes(K.avg_pool_volume_input_kernel, (out,), (gradient,), *n, divisor, STRIDE=stride, PADDING=padding, REACH=reach,
                       ADAPTIVE=adaptive(kernel, size, n), INCLUDE=include, TAPS=taps, COUNT=visits, turns=math.prod(visits))


@avg_pool_volume_input.grad("gradient")
def avg_pool_volume_input_grad(g, gradient_shape, kernel, stride, padding, include, divisor):
    return avg_pool_volume(g, tuple(gradient_shape[2:]), kernel, stride, padding, include, divisor)


@avg_pool_volume_input.samples
def avg_pool_volume_input_samples(make):
    for image, size, *args in avg_pool_volume_samples(make):
        yield (make(*image.shape[:2], *size), tuple(image.shape[2:]), *args)


@avg_pool_volume_input.errors
def avg_pool_volume_input_errors(make):
    yield (make(3, 4), ONES), {}, RuntimeError, "an input (N, C, D, H, W)"


@avg_pool_volume_input.workloads
def avg_pool_volume_input_workloads(make):
    yield "16x64x16x56x56 fp32 2x2x2", lambda: (make(16, 64, 8, 28, 28, grad=False), (16, 56, 56), (2,) * 3, (2,) * 3), \
        16 * 64 * 16 * 56 ** 2 * 9 // 2, 16 * 64 * 16 * 56 ** 2
