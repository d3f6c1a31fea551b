"""The largest of windows of images, its gradient, and the places that it came from. PyTorch's functions are in pooling.py.

They take (N, C, H, W) and pairs (height, width), as avg_pooling.py says.
"""
import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.arrays import pieces, single
from tritorch.ops.avg_pooling import (
    MOST,
    UNROLLED,
    adaptive,
    along_dim,
    beside,
    cells_of,
    check_images,
    collect,
    forms_of,
    image_promise,
    launch_places,
    taps_of,
)
from tritorch.ops.extremes import lowest
from tritorch.ops.pooling_cpu import bounds, max_windows
from tritorch.shape import cdiv

K = kernels("max_pooling")


def _tap_dtype(taps):
    """What holds a place in a window."""
    return types.uint8 if taps[0] * taps[1] <= 256 else types.int32


def _pair(size, kernel, stride, dilation):
    """How many windows below each other share a byte for their places: two, in four bits each, where both ways go by rows of windows."""
    few = kernel is not None and kernel[0] * kernel[1] <= UNROLLED >= stride[0] * stride[1]
    return 2 if few and dilation[0] == 1 < size[0] else 1


def _tap_shape(shape, *window):
    """The shape of the places of windows (N, C, *size)."""
    return (*shape[:2], cdiv(shape[2], _pair(shape[2:], *window)), shape[3])


@op(returns=("values", "taps"))
def max_pool(input, size, kernel=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The largest element of each window, and its place r · width + s in the window: four or eight bits, where `places_of` takes 64.

        values[n, c, p, q] = max over r, s of input[n, c, p · stride - padding + r · dilation, …]

    (N, C, H, W) gives two of (N, C, *size), of the input's dtype and uint8 (int32 where a window has more than 256 elements). Of small
    windows the second is (N, C, ⌈P / 2⌉, Q): the place of window 2 p in the low half of byte p, that of 2 p + 1 in its high half. Padding
    never wins. Of equal elements the first counts; NaN wins over all. `kernel=None` divides the input into size parts.
    Raises RuntimeError unless the input has 4 dims, NotImplementedError for bool.

    >>> import tritorch as torch
    >>> torch.nn.functional.max_pool2d(torch.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    check_images("max_pool", input)
    shape = (*input.shape[:2], *size)
    taps = _tap_dtype(taps_of(input.shape[2:], size, kernel) if 0 not in size else (1, 1))
    return [image_promise(shape, input.dtype, input), image_promise(_tap_shape(shape, kernel, stride, dilation), taps, input)]


@max_pool.impl("cpu")
def max_pool_cpu(values, taps, input, size, kernel, stride, padding, dilation):
    if values.size:
        for part in pieces(input.shape):
            _largest(values[part], taps[part], input[part], size, kernel, stride, padding, dilation)


def _largest(values, taps, input, size, kernel, stride, padding, dilation):
    H, W = input.shape[2:]
    kind = np.int32 if H * W < 1 << 31 else np.int64
    x, at = max_windows(single(input), np.arange(W, dtype=kind), 3, size[1], *along_dim(1, kernel, stride, padding, dilation))
    at += np.arange(H, dtype=kind)[:, None] * kind(W)
    values[...], at = max_windows(x, at, 2, size[0], *along_dim(0, kernel, stride, padding, dilation))
    starts = [_starts((H, W)[d], size[d], kernel, stride[d], padding[d]).astype(kind) for d in (0, 1)]
    rows = at // kind(max(W, 1))
    at -= rows * kind(W) + starts[1]
    rows -= starts[0][:, None]
    found = rows // kind(dilation[0]) * kind(taps_of((H, W), size, kernel)[1]) + at // kind(dilation[1])
    pair = _pair(size, kernel, stride, dilation)
    taps[...] = found[:, :, ::pair]
    if pair == 2:
        taps[:, :, :size[0] // 2] |= (found[:, :, 1::2] << 4).astype(np.uint8)


def _starts(n, count, kernel, stride, padding):
    """Where the windows along a dim begin."""
    return bounds(n, count)[0] if kernel is None else np.arange(count) * stride - padding


@max_pool.impl("cuda")
def max_pool_cuda(values, taps, input, size, kernel, stride, padding, dilation):
    launch_largest(values, taps, input, size, kernel, stride, padding, dilation)


def launch_largest(values, taps, input, size, kernel, stride, padding, dilation):
    """Largest elements and, unless taps is None, their places."""
    if not values.numel():
        return
    n, most, outs = input.shape[2:], taps_of(input.shape[2:], size, kernel), (values,) if taps is None else (values, taps)
    shared = kernel is not None and stride[0] < kernel[0] and dilation[0] == 1 and size[0] >= 4  # windows share rows of the input
    pair = 1 if taps is None else _pair(size, kernel, stride, dilation)
    rows = 0 if most[0] * most[1] > (MOST if shared else UNROLLED) else pair if not shared else 4 if input.strides[1] == 1 else 2
    words = rows and kernel is not None and dilation[1] == 1 and beside(stride[1], input, *outs)
    span = words or 1
    ways = [{"ROWS": each} for each in ((rows, 4) if rows == 2 and words and shared else (rows,))]
    forms = forms_of(n, size, kernel, stride, padding, [dilation[d] * (most[d] - 1) + 1 for d in (0, 1)], span, ways)
    launch_places(K.max_pool_kernel, (values, taps), (input,), (*values.shape[:2], forms[0][1], size[1] // span), *n, *size, STRIDE=stride,
                  PADDING=padding, DILATION=dilation, ADAPTIVE=adaptive(kernel, n, size), TAPS=most, LOWEST=lowest(input.dtype), SPAN=span,
                  LOG=(words * stride[1]).bit_length() - 1 if words else 0, PAIR=pair, each=forms[0][2], forms=forms)


@max_pool.grad("input")
def max_pool_grad(g_values, taps, input_shape, kernel, stride, padding, dilation):
    return max_pool_input(g_values, taps, tuple(input_shape[2:]), kernel, stride, padding, dilation)


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
    yield make(1, 1, 20, 20), (1, 2), (17, 17), (2, 3)
    yield make(1, 3, 8, 6), (4, 3), (3, 3), (2, 2), (1, 1)


@max_pool.errors
def max_pool_errors(make):
    yield (make(3, 4), (1, 1)), {}, RuntimeError, "an input (N, C, H, W)"
    yield (make(1, 1, 3, 4, integer=True, dtype=types.bool), (1, 1)), {}, NotImplementedError, "a dtype of numbers"


def _image(make, kind, last=False):
    """The image of ResNet's max_pool2d for a batch of 128, 256 channels of it."""
    x = make(128, 56, 56, 256, grad=False).to(kind).permute(0, 3, 1, 2)
    return x if last else x.contiguous()


RESNET = (28, 28), (3, 3), (2, 2), (1, 1)


@max_pool.workloads
def max_pool_workloads(make):
    bf16 = types.bfloat16
    for label, kind, last in ("fp32", types.float32, False), ("bf16", bf16, False), ("bf16 channels last", bf16, True):
        nbytes = 128 * 256 * (56 ** 2 * kind.itemsize + 28 ** 2 * kind.itemsize + 28 ** 2 // 2)
        yield f"128x256x56x56 {label} 3x3 s2", lambda kind=kind, last=last: (_image(make, kind, last), *RESNET), nbytes, 0
    yield "128x256x56x56 bf16 2x2", lambda: (_image(make, bf16), (28, 28), (2, 2), (2, 2)), nbytes, 0


@op
def max_pool_values(input, size, kernel=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The values of `max_pool` alone, for those who will not ask for places; its gradient finds them anew.

    >>> import tritorch as torch; from tritorch.ops.max_pooling import max_pool_values
    >>> max_pool_values(torch.arange(4.0).view(1, 1, 2, 2), (1, 1)).tolist()
    [[[[3.0]]]]
    """
    check_images("max_pool", input)
    return image_promise((*input.shape[:2], *size), input.dtype, input)


@max_pool_values.impl("cpu")
def max_pool_values_cpu(values, input, size, kernel, stride, padding, dilation):
    if values.size:
        for part in pieces(input.shape):
            x = single(input[part])
            for d in (1, 0):
                x, _ = max_windows(x, None, 2 + d, size[d], *along_dim(d, kernel, stride, padding, dilation))
            values[part] = x


@max_pool_values.impl("cuda")
def max_pool_values_cuda(values, input, size, kernel, stride, padding, dilation):
    launch_largest(values, None, input, size, kernel, stride, padding, dilation)


@max_pool_values.grad("input")
def max_pool_values_grad(g, input, size, kernel, stride, padding, dilation):
    return max_pool_input(g, max_pool(input, size, kernel, stride, padding, dilation)[1], tuple(input.shape[2:]), kernel, stride, padding,
                          dilation)


max_pool_values.samples(max_pool_samples)
max_pool_values.errors(max_pool_errors)


@max_pool_values.workloads
def max_pool_values_workloads(make):
    nbytes = 2 * 128 * 256 * (56 ** 2 + 28 ** 2)
    for label, last in ("bf16", False), ("bf16 channels last", True):
        yield f"128x256x56x56 {label} 3x3 s2", lambda last=last: (_image(make, types.bfloat16, last), *RESNET), nbytes, 0


@op
def places_of(taps, windows, size, kernel=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The places h · W + w in an image of (H, W) = size of the places in so many `windows` (P, Q) that `max_pool` gives; int64.

    >>> import tritorch as torch; from tritorch.ops.max_pooling import places_of
    >>> places_of(torch.tensor([[[[3, 3]]]], dtype=torch.uint8), (1, 2), (2, 4), (2, 2), (2, 2)).tolist()
    [[[[5, 7]]]]
    """
    check_images("places_of", taps)
    shape = (*taps.shape[:2], *windows)
    wanted = _tap_shape(shape, kernel, stride, dilation)
    check(taps.shape == wanted, "places_of", f"taps {wanted} of windows {tuple(windows)}", taps.shape)
    return image_promise(shape, types.int64, taps)


@places_of.impl("cpu")
def places_of_cpu(out, taps, windows, size, kernel, stride, padding, dilation):
    if out.size:
        width = taps_of(size, windows, kernel)[1]
        rows, columns = [_starts(size[d], windows[d], kernel, stride[d], padding[d]) for d in (0, 1)]
        if _pair(windows, kernel, stride, dilation) == 2:
            taps = np.stack((taps & 15, taps >> 4), 3).reshape(*taps.shape[:2], -1, windows[1])[:, :, :windows[0]]
        tap = np.arange(int(taps.max()) + 1)                             # where in the image each is, from the window's begin
        np.take(tap // width * dilation[0] * size[1] + tap % width * dilation[1], taps, out=out, mode="clip")
        out += rows[:, None] * size[1] + columns


@places_of.impl("cuda")
def places_of_cuda(out, taps, windows, size, kernel, stride, padding, dilation):
    if out.numel():
        launch_places(K.places_kernel, (out,), (taps,), out.shape, *size, *windows, STRIDE=stride, PADDING=padding, DILATION=dilation,
                      ADAPTIVE=adaptive(kernel, size, windows), TAPS=taps_of(size, windows, kernel),
                      PAIR=_pair(windows, kernel, stride, dilation))


@places_of.samples
def places_of_samples(make):
    for image, *args in list(max_pool_samples(make)):
        yield (max_pool(image.detach(), *args)[1], args[0], tuple(image.shape[2:]), *args[1:])


@places_of.errors
def places_of_errors(make):
    yield (make(3, 4, integer=True), (2, 2), (2, 2)), {}, RuntimeError, "an input (N, C, H, W)"
    yield (make(1, 1, 2, 2, integer=True), (2, 2), (4, 4), (2, 2), (2, 2)), {}, RuntimeError, "taps (1, 1, 1, 2) of windows (2, 2)"


@places_of.workloads
def places_of_workloads(make):
    taps = make(128, 256, 14, 28, integer=True, low=0, high=9).to(types.uint8)
    yield "128x256x28x28", lambda: (taps, RESNET[0], (56, 56), *RESNET[1:]), 17 * taps.numel(), 0


@op
def max_pool_input(gradient, taps, size, kernel=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The gradient of `max_pool`: each element of the input gets the sum over the windows whose `taps` name it.

        out[n, c, h, w] = Σ over p, q with places_of(taps)[n, c, p, q] = h · W + w of gradient[n, c, p, q]

    gradient (N, C, P, Q) and its taps give (N, C, *size). Sums have a fixed order.

    >>> import tritorch as torch; from tritorch.ops.max_pooling import max_pool_input
    >>> max_pool_input(torch.ones(1, 1, 1, 1), torch.tensor([[[[2]]]], dtype=torch.uint8), (2, 2)).tolist()
    [[[[0.0, 0.0], [1.0, 0.0]]]]
    """
    check_images("max_pool_input", gradient)
    wanted = _tap_shape(gradient.shape, kernel, stride, dilation)
    check(taps.shape == wanted, "max_pool_input", f"taps {wanted} of gradients {tuple(gradient.shape)}", taps.shape)
    return image_promise((*gradient.shape[:2], *size), gradient.dtype, gradient, taps)


@max_pool_input.impl("cpu")
def max_pool_input_cpu(out, gradient, taps, size, kernel, stride, padding, dilation):
    area = size[0] * size[1]
    for part in pieces(out.shape) if gradient.size else ():
        g = single(gradient[part])
        places = np.empty(g.shape, np.int64)
        places_of_cpu(places, taps[part], g.shape[2:], size, kernel, stride, padding, dilation)
        places += np.arange(0, g.shape[0] * g.shape[1] * area, area).reshape(*g.shape[:2], 1, 1)
        made = np.zeros(g.shape[0] * g.shape[1] * area, g.dtype)
        np.add.at(made, places.ravel(), g.ravel())
        out[part] = made.reshape(*g.shape[:2], *size)


@max_pool_input.impl("cuda")
def max_pool_input_cuda(out, gradient, taps, size, kernel, stride, padding, dilation):
    if not out.numel():
        return
    most = taps_of(size, gradient.shape[2:], kernel)
    reach = tuple([dilation[d] * (most[d] - 1) for d in (0, 1)])
    if kernel is None or kernel[0] * kernel[1] > MOST or stride[0] * stride[1] > UNROLLED:
        collect(K.max_pool_input_kernel, (out,), (gradient, taps), kernel, (0, 0) if kernel is None else reach, stride, padding,
                DILATION=dilation, TAPS=most)
        return
    pair, last = _pair(gradient.shape[2:], kernel, stride, dilation), out.strides[1] == 1
    ways = [{"ROWS": pair if stride[0] > 2 else 4 if last else 2, "PHASES": 1}]
    if not last and pair == stride[0] == 2 and beside(stride[1], out) * stride[1] > 1:   # rows of images, whose words lie in line
        ways += {"ROWS": 4, "PHASES": 2}, {"ROWS": 2, "PHASES": 2}, {"ROWS": 4, "PHASES": 1}
    forms, cells, columns, options = cells_of(out, (gradient, taps), stride, padding, (reach[0] + 1, reach[1] + 1), ways)
    launch_places(K.max_pool_cells_kernel, (out,), (gradient, taps), (*out.shape[:2], forms[0][1], columns), *size,
                  *gradient.shape[2:], *cells, DILATION=dilation, TAPS=most, PAIR=pair, each=forms[0][2], forms=forms, **options)


@max_pool_input.grad("gradient")
def max_pool_input_grad(g, gradient_shape, taps, size, kernel, stride, padding, dilation):
    places = places_of(taps, tuple(gradient_shape[2:]), size, kernel, stride, padding, dilation)
    return g.flatten(2).gather(2, places.flatten(2)).view(gradient_shape)


@max_pool_input.samples
def max_pool_input_samples(make):
    for image, *args in [*list(max_pool_samples(make))[:7], *list(max_pool_samples(make))[8:]]:
        values, taps = max_pool(image.detach(), *args)
        yield (make(*values.shape), taps, tuple(image.shape[2:]), *args[1:])


@max_pool_input.errors
def max_pool_input_errors(make):
    yield (make(1, 1, 2, 2), make(1, 1, 2, 3, integer=True), (4, 4)), {}, RuntimeError, "taps (1, 1, 2, 2) of gradients (1, 1, 2, 2)"


@max_pool_input.workloads
def max_pool_input_workloads(make):
    for label, kind in ("fp32", types.float32), ("bf16", types.bfloat16):
        nbytes = 128 * 256 * (56 ** 2 * kind.itemsize + 28 ** 2 * kind.itemsize + 28 ** 2 // 2)
        yield f"128x256x56x56 {label} 3x3 s2", lambda kind=kind: (*max_pool(_image(make, kind), *RESNET), (56, 56), *RESNET[1:]), nbytes, 0
