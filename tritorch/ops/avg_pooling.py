"""The mean of windows of images, its gradient, and what it shares with the largest (max_pooling.py). PyTorch's functions: pooling.py.

They take (N, C, H, W) and pairs (height, width), with the size of the result given: `kernel=None` is adaptive pooling, where window
p of P covers the elements from floor(p · H / P) to ceil((p + 1) · H / P).
"""
import numpy as np

from tritorch.cuda import tuner
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.memory_format import contiguous_format, like_image, suggested
from tritorch.ops.arrays import single
from tritorch.ops.pooling_cpu import counts, spread_windows, sum_windows
from tritorch.shape import cdiv, extent, next_power_of_2

K = kernels("avg_pooling")
UNROLLED = 9                                                             # elements of the largest window whose loop is unrolled
CELL = 16                                                                # elements of the largest cell that has the same windows around it
MOST = 25                                                                # the same where windows overlap, so that sums of rows are shared
SEVERAL = ((128, 4, 4), (64, 8, 4), (64, 4, 2), (32, 8, 2), (32, 16, 4), (256, 2, 4), (128, 8, 8))
MEANS = ((32, 16, 2), (64, 8, 2), (64, 16, 4), (64, 8, 4), (32, 8, 2), (128, 8, 8))
"""Channels and places of a tile, and warps, where a place is several results: of maxima, of which a thread remembers where they were, and
of means, where it can have 16 bytes of each: 3 × 3 of neighbours take 51 µs, not 81 (predicted, 64 × 64 × 112 × 112 in bfloat16)."""


def along_dim(dim, kernel, stride, padding, dilation=(1, 1)):
    """The window along one dim."""
    return None if kernel is None else kernel[dim], stride[dim], padding[dim], dilation[dim]


def adaptive(kernel, shape, size):
    """What the kernels are told of windows that divide `shape` into `size` parts: 2 where products of both pass 2³¹."""
    return kernel is None and (2 if any((n + 1) * (count + 1) >> 31 for n, count in zip(shape, size)) else True)


def launch_places(kernel, outs, ins, shape, *attributes, each=1, forms=None, by_channels=None, **options):
    """Start a kernel on tiles of the planes and places of a tensor (N, C, H, W) of `shape`; a place is `each` results. `forms` of places
    to be tried have options of the kernel by which they are known: [(these, how many rows of places, `each`, other options)].
    `by_channels`: tiles (channels, places, warps) where channels are next to each other and places are several results."""
    n, c, h, w = shape
    check(h * w < 0x7FF00000, "pooling", "planes of fewer than 2³¹ places", (h, w))
    tensors = [x for x in (*outs, *ins) if x is not None]
    together = all(n == 1 or x.strides[0] == c * x.strides[1] for x in tensors)
    wide = max(extent(x.shape, x.strides) for x in tensors) > 0x7FF00000
    strides = [None if x is None else x.strides for x in (*outs, *ins)]
    forms = forms or [({}, h, each, {})]
    about = max(x.dtype.itemsize for x in ins), ins[0].strides[1] == 1 < c, c, h * w, each
    key = *about, " ".join(f"{name}={value}" for known, *_ in forms for name, value in known.items())   # others have other candidates

    def run(blocks):
        rows, more = next((rows, more) for known, rows, _, more in forms if known.items() <= blocks.items())
        flat, places = blocks["FLAT"], n * c * rows * w if blocks["FLAT"] else rows * w
        programs = cdiv(places, blocks["BLOCK_P"]) * (1 if flat else cdiv(n * c, blocks["BLOCK_C"]))
        even = places % blocks["BLOCK_P"] == 0 if flat else n * c % blocks["BLOCK_C"] == 0
        launch(kernel, (programs,), *outs, *ins, *strides, n * c, None if together else c, *attributes, WIDE=wide, EVEN=even, **options,
               **more, **blocks)

    tiles = _blocks(*about, by_channels or SEVERAL)
    one_each = [{"BLOCK_C": 1, "BLOCK_P": tile(32 * warps, 1024), "FLAT": True, "num_warps": warps} for warps in (4, 8, 2)]
    ways = [{**known, **blocks} for k, (known, *_) in enumerate(forms) for blocks in (one_each if k else tiles)]
    run(tuner.choose(kernel.__name__, key, ways, kernel, run))


def _blocks(size, channels_first, channels, places, each, several):
    """Tiles of planes × places: along the channels where they are next to each other in memory, else along the places. Of 3 × 3 the first
    are the quickest on an H100: the gradient of their maxima takes 111 µs, not 119, by channels 97 µs, not 100."""
    if channels_first:
        wanted = [(64, 16, 4), (64, 8, 4), (32, 32, 4), (128, 16, 8), (64, 32, 8)]
        wanted = wanted if each == 1 else several
    elif each >= 4:                                                      # what a place needs is computed once for so many results
        wanted = [(1, max(total // each, 32 * warps), warps) for total, warps in ((2048, 8), (1024, 4), (2048, 4), (1024, 2), (512, 2))]
    else:                                                                # or for all planes of a thread
        along = min((256, 128, 64), key=lambda n: cdiv(places, n) * n)
        wanted = [(max(total // each // along, 1), along, warps) for total, warps in ((1024, 4), (2048, 4), (512, 4), (2048, 8), (1024, 8))]
    flat, most = each >= 4 and not channels_first, next_power_of_2(places)
    return [{"BLOCK_C": 1 if flat else tile(min(m, next_power_of_2(channels) if channels_first else m), 16),
             "BLOCK_P": tile(k, 1024) if flat else tile(min(k, most), min(4096, most)), "FLAT": flat, "num_warps": w} for m, k, w in wanted]


def taps_of(shape, size, kernel):
    """Most elements of a window along each dim."""
    return kernel or tuple([cdiv(n, count) + (n % count > 0) for n, count in zip(shape, size)])


def beside(step, images, *windows):
    """How many windows, `step` elements apart, are read from `images` and stored to `windows` (or the other way round) as one word of at
    most 16 bytes; 0: no words at all, not even of one window's elements."""
    for span in (8, 4, 2, 1):
        fits = [t.strides[3] == 1 and not any(n % each for n in (t.shape[3], *t.strides[:3]))
                for t, each in ((images, span * step), *[(t, span) for t in windows])]
        if step & (step - 1) == 0 and span * step * images.dtype.itemsize <= 16 and all(fits):
            return span
    return 0


def _inside(there, read):
    """How many of so many that a program may read are there in any case."""
    return min(max(there, 0), read)


def forms_of(shape, size, kernel, stride, padding, lengths, span, ways):
    """Forms, for launch_places, of a kernel over windows of an image of `shape`, `lengths` from their first to their last element: places
    of so many ROWS of windows (0: one, in a loop) and `span` beside each other."""
    found = []
    for way in ways:
        count = way["ROWS"] or 1, span
        groups = cdiv(size[0], count[0]), size[1] // span
        there = [0 if kernel is None else _inside(shape[d] + padding[d] - (groups[d] - 1) * count[d] * stride[d],
                                                  (count[d] - 1) * stride[d] + lengths[d]) for d in (0, 1)]
        found.append((way, groups[0], count[0] * span, {"INSIDE": tuple(there)}))
    return found


def cells_of(out, windows, stride, padding, lengths, ways):
    """(forms, how many cells there are, how many places in a row of cells, options) of a kernel in which cells of `stride` elements of
    `out` collect from the windows around them: places of so many ROWS of cells, or of one row of each of these (PHASES)."""
    size, there = out.shape[2:], windows[0].shape[2:]
    first = tuple([-((lengths[d] - 1 - padding[d]) // stride[d]) for d in (0, 1)])
    count = tuple([(stride[d] - 1 + padding[d]) // stride[d] - first[d] + 1 for d in (0, 1)])
    cells, span = tuple([cdiv(n, step) for n, step in zip(size, stride)]), beside(stride[1], out, *windows) or 1
    columns, forms = cdiv(cells[1], span), []
    right = _inside(there[1] - first[1] - (columns - 1) * span, count[1] + span - 1)
    for way in ways:
        rows, phases = way["ROWS"], way.get("PHASES", 1)
        groups = cdiv(cells[0], rows)
        down = _inside(there[0] - first[0] - (groups - 1) * rows, count[0] + rows - 1)
        forms.append((way, groups * phases, rows * span // phases, {"INSIDE": (down, right), "WHOLE": size[0] % (rows * stride[0]) == 0}))
    return forms, cells, columns, {
        "STRIDE": stride, "PADDING": padding, "FIRST": first, "COUNT": count, "SPAN": span, "LOG": span.bit_length() - 1,
        "WORDS": (span * stride[1]).bit_length() - 1 if beside(stride[1], out) else 0}


def collect(kernel, outs, ins, window, reach, stride, padding, *attributes, **options):
    """Start a kernel in which each element of the input visits the windows that can hold it; `reach` is how far a window stretches;
    `window` is None where they divide the input."""
    size, count = outs[0].shape[2:], ins[0].shape[2:]
    most = [min(cdiv(count[d], size[d]) + 1 if window is None else reach[d] // stride[d] + 1, count[d]) for d in (0, 1)]
    launch_places(kernel, outs, ins, outs[0].shape, *size, *count, reach, *attributes, STRIDE=stride, PADDING=padding,
            ADAPTIVE=adaptive(window, size, count), WINDOWS_H=most[0], WINDOWS_W=most[1], **options)


def check_images(name, x):
    check(x.ndim == 4, name, "an input (N, C, H, W)", x.shape)
    check(x.dtype is not types.bool, name, "a dtype of numbers", x.dtype, error=NotImplementedError)


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
    check_images("avg_pool", input)
    check(input.dtype.is_floating_point, "avg_pool", "a floating dtype", input.dtype, error=NotImplementedError)
    return image_promise((*input.shape[:2], *size), input.dtype, input)


def image_promise(shape, dtype, *images):
    """The promise of an image, channels last if one of the `images` is."""
    return shape, dtype, images[0].device, like_image(shape, *images)


def by_dims(x, images, layers):
    """A volume (N, C, D, H, W) through a function of images of its layers, and one of images whose rows are layers."""
    if suggested(x.shape, x.strides) is contiguous_format:
        flat = images(x.flatten(1, 2)).unflatten(1, x.shape[1:3])
    else:                                                                # what is channels last stays so
        x = x.transpose(1, 2)
        flat = images(x.flatten(0, 1)).unflatten(0, x.shape[:2]).transpose(1, 2)
    return layers(flat.flatten(3)).unflatten(3, flat.shape[3:])


def _shares(shape, size, kernel, stride, padding, include, divisor):
    """What each window's sum is divided by."""
    if divisor is not None:
        return divisor
    rows, columns = [counts(shape[d], size[d], *along_dim(d, kernel, stride, padding)[:3], include) for d in (0, 1)]
    return rows[:, None] * columns


@avg_pool.impl("cpu")
def avg_pool_cpu(out, input, size, kernel, stride, padding, include, divisor):
    acc = single(input)
    for d in (0, 1):
        acc = sum_windows(acc, 2 + d, size[d], *along_dim(d, kernel, stride, padding))
    acc /= np.asarray(_shares(input.shape[2:], size, kernel, stride, padding, include, divisor), acc.dtype)
    out[...] = acc


def _share(shape, size, kernel, stride, padding, include, divisor, dtype):
    """What the sums of all windows are multiplied by; None where windows count different numbers of elements."""
    if divisor is None:
        for d in (0, 1):
            whole = kernel is not None and (size[d] - 1) * stride[d] - padding[d] + kernel[d] <= shape[d] + padding[d] * include
            if not whole or padding[d] and not include:
                return None
        divisor = kernel[0] * kernel[1]
    return np.float64(1 / divisor) if dtype is types.float64 else 1 / divisor


@avg_pool.impl("cuda")
def avg_pool_cuda(out, input, size, kernel, stride, padding, include, divisor):
    if not out.numel():
        return
    n = input.shape[2:]
    most, share = taps_of(n, size, kernel), _share(n, size, kernel, stride, padding, include, divisor, input.dtype)
    shared = kernel is not None and stride[0] < kernel[0] and size[0] >= 4                  # windows share rows of the input
    unroll = most[0] * most[1] <= (MOST if shared else UNROLLED)
    words = unroll and kernel is not None and beside(stride[1], input, out)
    span = words or 1
    ways = [{"ROWS": rows} for rows in (((2, 4) if words and input.strides[1] > 1 else (4,)) if shared and unroll else (int(unroll),))]
    forms = forms_of(n, size, kernel, stride, padding, most, span, ways)
    launch_places(K.avg_pool_kernel, (out,), (input,), (*out.shape[:2], forms[0][1], size[1] // span), *n, *size, share,
                  STRIDE=stride, PADDING=padding, ADAPTIVE=adaptive(kernel, n, size), INCLUDE=include, TAPS=most, SPAN=span,
                  LOG=(words * stride[1]).bit_length() - 1 if words else 0, each=forms[0][2], forms=forms, by_channels=MEANS)


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

    >>> import tritorch as torch; from tritorch.ops.avg_pooling import avg_pool_input
    >>> avg_pool_input(torch.ones(1, 1, 1, 1), (1, 2)).tolist()
    [[[[0.5, 0.5]]]]
    """
    check_images("avg_pool_input", gradient)
    return image_promise((*gradient.shape[:2], *size), gradient.dtype, gradient)


@avg_pool_input.impl("cpu")
def avg_pool_input_cpu(out, gradient, size, kernel, stride, padding, include, divisor):
    acc = single(gradient)
    acc = acc / np.asarray(_shares(size, gradient.shape[2:], kernel, stride, padding, include, divisor), acc.dtype)
    for d in (0, 1):
        acc = spread_windows(acc, 2 + d, size[d], *along_dim(d, kernel, stride, padding))
    out[...] = acc


@avg_pool_input.impl("cuda")
def avg_pool_input_cuda(out, gradient, size, kernel, stride, padding, include, divisor):
    if not out.numel():
        return
    n = gradient.shape[2:]
    share = _share(size, n, kernel, stride, padding, include, divisor, gradient.dtype)
    if kernel is None or kernel[0] * kernel[1] > MOST or stride[0] * stride[1] > CELL:
        reach = (0, 0) if kernel is None else (kernel[0] - 1, kernel[1] - 1)
        collect(K.avg_pool_input_kernel, (out,), (gradient,), kernel, reach, stride, padding, share, INCLUDE=include)
        return
    ways = [{"ROWS": rows} for rows in ((1,) if stride[0] > 2 else (4,) if out.strides[1] == 1 else (2, 4))]
    forms, cells, columns, options = cells_of(out, (gradient,), stride, padding, kernel, ways)
    launch_places(K.avg_pool_cells_kernel, (out,), (gradient,), (*out.shape[:2], forms[0][1], columns), *size, *n, *cells, share,
                  INCLUDE=include, TAPS=kernel, each=forms[0][2], forms=forms, by_channels=MEANS, **options)


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
