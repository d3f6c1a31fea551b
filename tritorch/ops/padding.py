"""Padding the last dims of a tensor: with a number, or with values of the tensor itself."""
from math import gcd

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, explained, whole_numbers
from tritorch.memory_format import like_image
from tritorch.ops.avg_pooling import by_dims, image_promise, launch_places
from tritorch.ops.copy import transfer
from tritorch.ops.indexing import add_slices
from tritorch.ops.lines import as_lines
from tritorch.ops.loops import as_number
from tritorch.ops.tiling import even_parts
from tritorch.pairs import Parts, as_word, check_number
from tritorch.shape import cdiv, is_dense, next_power_of_2, prod
from tritorch.tensor import strided

K = kernels("padding")
MODES = ("constant", "reflect", "replicate", "circular")


# ------------------------------------------------------------------ with a number
@op
def constant_pad(input, pad, value=0.0):
    """A tensor with `value` around it.

        out[…, i, j] = input[…, i - top, j - left] inside, value outside

    `pad` is (left, right, top, bottom, …): the last dim first, as many pairs as there are dims to pad. A negative number cuts off.
    Raises RuntimeError when there are more pairs than dims, or when less than nothing would be left of a dim.

    >>> import tritorch as torch
    >>> torch.nn.functional.pad(torch.ones(2), (1, 2))
    tensor([0., 1., 1., 0., 0.])
    """
    check(len(pad) % 2 == 0, "pad", "an even number of sizes", pad)
    check_number("pad", input.dtype, value)
    check(len(pad) // 2 <= input.ndim, "pad", f"at most {input.ndim} pairs of sizes for an input of shape {input.shape}", pad)
    shape = list(input.shape)
    for k in range(0, len(pad), 2):
        shape[-1 - k // 2] += pad[k] + pad[k + 1]
    check(min(shape, default=0) >= 0, "pad", "sizes that are not negative", tuple(shape))
    return tuple(shape), input.dtype, input.device, like_image(tuple(shape), input)


@constant_pad.impl("cpu", raw=True)
def constant_pad_any(out, input, pad, value):
    inner, source, shape = out.offset, input.offset, list(input.shape)
    for k in range(0, len(pad), 2):
        d, before, after = input.ndim - 1 - k // 2, pad[k], pad[k + 1]
        inner += max(before, 0) * out.strides[d]
        source += max(-before, 0) * input.strides[d]
        shape[d] = max(shape[d] + min(before, 0) + min(after, 0), 0)
    if shape != list(out.shape):
        out.fill_(value)
    if 0 not in shape:
        shape = tuple(shape)
        target = strided(out.storage, shape, out.strides, inner, out.dtype)
        transfer(target, strided(input.storage, shape, input.strides, source, input.dtype))


def _around(out, input, pad):
    """The dims in the order of a dense out's memory, one without edges as part of the one around it: their sizes in out and input, what
    comes before the input, its strides."""
    before = [0] * input.ndim
    before[::-1] = [*pad[::2], *[0] * (input.ndim - len(pad) // 2)]
    merged = []
    dims = zip(out.strides, out.shape, input.shape, before, input.strides)
    for _, n, size, first, stride in sorted([(-d[0], *d[1:]) for d in dims if d[1:4] != (1, 1, 0)]):
        if merged and (n, first) == (size, 0) and merged[-1][3] == n * stride:
            n, size, first = [value * n for value in merged.pop()[:3]]
        merged.append((n, size, first, stride))
    return tuple(zip(*merged))


def as_element(value, dtype):
    """A number as kernels that only move elements of a dtype take it."""
    return int(bool(value)) if dtype is types.bool else as_word(value) if dtype.is_complex else as_number(value, dtype.compute)


@constant_pad.impl("cuda")
def constant_pad_cuda(out, input, pad, value):
    """One pass, unless nothing is added or `out` has gaps, or its rows are so short that their divisions take longer than filling it."""
    dense = out.numel() and max(pad, default=0) > 0 and is_dense(out.shape, out.strides)
    shape, sizes, before, strides = _around(out, input, pad) if dense else ((0,),) * 4
    rows, cols = prod(shape[:-1]), shape[-1]
    if cols * out.dtype.itemsize < 128:                                  # 58 columns: float32 19.1 µs, not 23.5, bfloat16 15.5, not 13.9
        return constant_pad_any(out, input, pad, value)
    n = tile(even_parts(cols, 1024), min(1024, next_power_of_2(cols)))
    m = min(max(tile(4096 // max(out.dtype.itemsize, 2), 16384) // n, 1), next_power_of_2(rows))
    even = gcd(16, cols)
    wide = rows >= 1 << 30 or cols * max(abs(strides[-1]), 1) >= 1 << 30
    value = as_element(value, out.dtype)
    launch(K.pad_kernel, (cdiv(rows, m) * cdiv(cols, n),), out, input, shape, sizes, before, strides, rows, cols, value,
           OUTER=len(shape) - 1, EVEN=1 if even == 16 else even, WIDE=wide, BLOCK_M=m, BLOCK_N=n)


constant_pad.complex = Parts(words=True, values=("value",))


@constant_pad.grad("input")
def constant_pad_grad(g, pad):
    return constant_pad(g, tuple([-n for n in pad]))


@constant_pad.samples
def constant_pad_samples(make):
    yield make(5), (1, 2)
    yield make(2, 3, 4), (0, 1, 2, 0), 1.5
    yield make(2, 3, 4), (-1, 2, 1, -2), -1.0
    yield make(2, 1, 3, 2), (1, 1, 0, 2, 3, 0)
    yield make(3, 4), (), 7.0
    yield make(2, 3), (-5, 3), 2.0
    yield make(0, 3), (1, 1)
    yield make(3, 2, integer=True), (1, 0), 4


@constant_pad.errors
def constant_pad_errors(make):
    yield (make(3), (1, 1, 1, 1)), {}, RuntimeError, "at most 1 pairs"
    yield (make(3), (1,)), {}, RuntimeError, "an even number of sizes"
    yield (make(3), (-2, -2)), {}, RuntimeError, "sizes that are not negative"


@constant_pad.workloads
def constant_pad_workloads(make):
    x = make(64, 64, 112, 112, grad=False)
    yield "64x64x112x112 fp32, 1 around", lambda: (x, (1, 1, 1, 1)), 4 * 64 * 64 * (112 ** 2 + 114 ** 2), 0


# ------------------------------------------------------------------ with values of the tensor
@op
def edge_pad(input, pad, mode):
    """Images (N, C, H, W) with values of their own around them; `pad` is (left, right, top, bottom).

        out[…, i, j] = input[…, f(i - top), f(j - left)],    f(i) = i inside

    Outside f is the mirror image ("reflect"), the edge ("replicate") or the other end ("circular").

    >>> import tritorch as torch; from tritorch.ops.padding import edge_pad
    >>> edge_pad(torch.tensor([[[[1.0, 2.0, 3.0]]]]), (1, 2, 0, 0), "circular").tolist()
    [[[[3.0, 1.0, 2.0, 3.0, 1.0, 2.0]]]]
    """
    check(input.ndim == 4 and len(pad) == 4, "pad", "images with an edge on 4 sides", input.shape, pad)
    shape = (*input.shape[:2], input.shape[2] + pad[2] + pad[3], input.shape[3] + pad[0] + pad[1])
    return image_promise(shape, input.dtype, input)[:3 if mode == "circular" else 4]    # composed in PyTorch, of contiguous parts


def _sources(n, before, after, mode):
    """Which of n elements stands at each place."""
    i = np.arange(-before, n + after)
    return abs(n - 1 - abs(n - 1 - i)) if mode == "reflect" else i % max(n, 1) if mode == "circular" else np.clip(i, 0, n - 1)


@edge_pad.impl("cpu")
def edge_pad_cpu(out, input, pad, mode):
    rows, columns = _sources(input.shape[2], *pad[2:], mode), _sources(input.shape[3], *pad[:2], mode)
    out[...] = input.take(rows, 2).take(columns, 3)


@edge_pad.impl("cuda")
def edge_pad_cuda(out, input, pad, mode):
    if out.numel():
        launch_places(K.edge_pad_kernel, (out,), (input,), out.shape, *input.shape[2:], *out.shape[2:], pad[2], pad[0],
                      MODE=MODES.index(mode))


def roll_images(out, x, shifts, dims):
    """Fill out with x of 4 dims rolled along two of them: images whose rows and columns begin elsewhere and go round."""
    order = [d for d in range(4) if d not in dims] + dims
    image, size = x.permute(order), [x.shape[d] for d in dims]
    launch_places(K.edge_pad_kernel, (out.permute(order),), (image,), image.shape, *size, *size,
                  *[shift % n for shift, n in zip(shifts, size)], MODE=MODES.index("circular"))


@op
def edge_pad_back(gradient, size, pad, mode):
    """The transpose of `edge_pad`: what the elements of its result give to those of images of `size` that they came from."""
    check(gradient.ndim == 4 and len(pad) == 4, "pad", "images with an edge on 4 sides", gradient.shape, pad)
    return image_promise((*gradient.shape[:2], *size), gradient.dtype, gradient)


@edge_pad_back.impl("cpu")
def edge_pad_back_cpu(out, gradient, size, pad, mode):
    wide = gradient.astype(np.promote_types(gradient.dtype, np.float32))
    rows, made = np.zeros((*out.shape[:3], wide.shape[3]), wide.dtype), np.zeros(out.shape, wide.dtype)
    add_slices(rows, 2, _sources(size[0], *pad[2:], mode), wide)
    add_slices(made, 3, _sources(size[1], *pad[:2], mode), rows)
    out[...] = made


@edge_pad_back.impl("cuda")
def edge_pad_back_cuda(out, gradient, size, pad, mode):
    if out.numel():
        columns, rows = [max(*edges, 0) if mode == "replicate" else int(max(edges) > 0) for edges in (pad[:2], pad[2:])]
        launch_places(K.edge_pad_back_kernel, (out,), (gradient,), out.shape, *size, *gradient.shape[2:], pad[2], pad[0], ROWS=rows,
                      COLUMNS=columns, MODE=MODES.index(mode))


edge_pad.complex, edge_pad_back.complex = Parts(words=True), Parts()


@edge_pad.grad("input")
def edge_pad_grad(g, input_shape, pad, mode):
    return edge_pad_back(g, tuple(input_shape[2:]), pad, mode)


@edge_pad_back.grad("gradient")
def edge_pad_back_grad(g, pad, mode):
    return edge_pad(g, pad, mode)


def _edge_cases():
    for mode in MODES[1:]:
        yield (2, 3, 4, 5), (2, 0, 1, 3), mode
        yield (1, 2, 1, 4), (3, 3, 0, 0), mode
    yield (2, 1, 3, 5), (-1, 3, 2, -1), "reflect"
    yield (1, 3, 4, 2), (6, -1, 1, 4), "replicate"
    yield (0, 3, 4, 4), (1, 1, 1, 1), "replicate"


@edge_pad.samples
def edge_pad_samples(make):
    for shape, *rest in _edge_cases():
        yield make(*shape), *rest


@edge_pad_back.samples
def edge_pad_back_samples(make):
    for (n, c, h, w), pad, mode in _edge_cases():
        yield make(n, c, h + pad[2] + pad[3], w + pad[0] + pad[1]), (h, w), pad, mode


@edge_pad.errors
def edge_pad_errors(make):
    yield (make(2, 3), (1, 0), "reflect"), {}, RuntimeError, "images with an edge on 4 sides"


@edge_pad.workloads
def edge_pad_workloads(make):
    x = make(64, 64, 112, 112, grad=False)
    yield "64x64x112x112 fp32, 1 reflected", lambda: (x, (1, 1, 1, 1), "reflect"), 4 * 64 * 64 * (112 ** 2 + 114 ** 2), 0


@edge_pad_back.workloads
def edge_pad_back_workloads(make):
    g = make(64, 64, 114, 114, grad=False)
    yield "64x64x112x112 fp32, 1 reflected", lambda: (g, (112, 112), (1, 1, 1, 1), "reflect"), 4 * 64 * 64 * (112 ** 2 + 114 ** 2), 0


def _check_edges(dim, n, before, after, mode):
    """Whether a dim of n elements has enough of them for its edges; negative ones cut off."""
    left = n + before + after
    check(left > 0 or (left == 0 and mode == "circular"), "pad", f"something left of dim {dim} of size {n}", (before, after))
    n = n if mode != "circular" else max(n + min(before, 0) + min(after, 0), 0)
    most = max({"reflect": n - 1, "circular": n}.get(mode, max(before, after) if n else 0), 0)
    check(max(before, after) <= most, "pad", f"padding of at most {most} in mode {mode!r} for dim {dim} of size {n}", (before, after))


def _edged(x, pad, mode):
    """x with 1 to 3 dims behind one or two others by `edge_pad`: a row as an image of one line, of a volume its layers first."""
    dims = len(pad) // 2
    if x.ndim == dims + 1:
        return _edged(x.unsqueeze(0), pad, mode).squeeze(0)
    if dims == 1:
        return edge_pad(as_lines(x), (*pad, 0, 0), mode).squeeze(2)
    if dims == 2:
        return edge_pad(x, pad, mode)
    return by_dims(x, lambda images: edge_pad(images, pad[:4], mode), lambda layers: edge_pad(layers, (0, 0, *pad[4:]), mode))


@explained
def pad(input, pad, mode="constant", value=None):
    """`input` made larger on the sides of its last dims.

    pad is (left, right, top, bottom, front, back), as far as needed: the last dim first. Modes: "constant" (the number `value`, 0 by
    default; any dims; negative sizes cut off), "reflect" (the mirror image without the edge), "replicate" (the edge) and "circular"
    (the other end), which pad the last 1, 2 or 3 dims of an input with one or two dims before them.
    Raises RuntimeError when pad does not fit the shape, NotImplementedError for other modes and numbers of dims.

    >>> import tritorch as torch
    >>> torch.nn.functional.pad(torch.tensor([[1.0, 2.0, 3.0]]), (1, 2), mode="reflect")
    tensor([[2., 1., 2., 3., 2., 1.]])
    """
    pad = whole_numbers("pad", "sizes", pad)
    if mode == "constant":
        value = 0.0 if value is None else value
        return constant_pad(input, pad, value if input.dtype.has_gradients else int(value))
    check(len(pad) % 2 == 0, "pad", "an even number of sizes", pad)
    check(mode in MODES, "pad", "mode 'constant', 'reflect', 'replicate' or 'circular'", repr(mode),
          error=NotImplementedError if isinstance(mode, str) else TypeError)
    check(value is None or value == 0, "pad", f"no value in mode {mode!r}", value)
    dims = len(pad) // 2
    check(1 <= dims <= 3 and input.ndim - dims in (1, 2), "pad", "1, 2 or 3 pairs of sizes and an input of one or two dims more",
          pad, input.shape, error=NotImplementedError)
    for k in range(dims):
        before, after = pad[2 * k:2 * k + 2]
        dim = input.ndim - 1 - k
        _check_edges(dim, input.shape[dim], before, after, mode)
        if mode == "circular" and min(before, after) < 0:                # what is cut off does not come back at the other end
            input = input.narrow(dim, max(-before, 0), max(input.shape[dim] + min(before, 0) + min(after, 0), 0))
    return _edged(input, tuple([max(n, 0) for n in pad]) if mode == "circular" else pad, mode)
