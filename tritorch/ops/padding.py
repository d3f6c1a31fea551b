"""Padding the last dims of a tensor: with a number by an operator, with values of the tensor itself by slices, flips and `cat`."""
from math import gcd

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, whole_numbers
from tritorch.memory_format import like_image
from tritorch.ops.copy import transfer
from tritorch.ops.elementwise import as_number
from tritorch.ops.shaping import cat, flip
from tritorch.ops.tiling import even_parts
from tritorch.shape import cdiv, is_dense, next_power_of_2, prod
from tritorch.tensor import strided

K = kernels("padding")



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
    value = int(bool(value)) if out.dtype is types.bool else as_number(value, out.dtype.compute)
    launch(K.pad_kernel, (cdiv(rows, m) * cdiv(cols, n),), out, input, shape, sizes, before, strides, rows, cols, value,
           OUTER=len(shape) - 1, EVEN=1 if even == 16 else even, WIDE=wide, BLOCK_M=m, BLOCK_N=n)


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
def _edges(x, dim, before, after, mode):
    """The pieces that come before and after x along a dim."""
    n = x.shape[dim]
    if mode == "reflect":
        return flip(x.narrow(dim, 1, before), dim), flip(x.narrow(dim, n - 1 - after, after), dim)
    if mode == "circular":
        return x.narrow(dim, n - before, before), x.narrow(dim, 0, after)
    shape = list(x.shape)
    first, last = x.narrow(dim, 0, 1), x.narrow(dim, n - 1, 1)
    return [edge.expand(*shape[:dim], count, *shape[dim + 1:]) for edge, count in ((first, before), (last, after))]


def _extend(x, dim, before, after, mode):
    """x with `before` and `after` of its own values along a dim; negative counts cut off."""
    left = x.shape[dim] + before + after
    check(left > 0 or (left == 0 and mode == "circular"), "pad", f"something left of dim {dim} of size {x.shape[dim]}", (before, after))
    if mode == "circular" and min(before, after) < 0:                    # what is cut off does not come back at the other end
        start = max(-before, 0)
        x = x.narrow(dim, start, max(x.shape[dim] - start - max(-after, 0), 0))
        before, after = max(before, 0), max(after, 0)
    n = x.shape[dim]
    most = max({"reflect": n - 1, "circular": n}.get(mode, max(before, after) if n else 0), 0)
    check(max(before, after) <= most, "pad", f"padding of at most {most} in mode {mode!r} for dim {dim} of size {n}", (before, after))
    pieces = [piece for piece, count in zip(_edges(x, dim, max(before, 0), max(after, 0), mode), (before, after)) if count > 0]
    start = max(-before, 0)
    middle = x.narrow(dim, start, n - start - max(-after, 0)) if min(before, after) < 0 else x
    return cat([*pieces[:before > 0], middle, *pieces[before > 0:]], dim) if pieces else middle


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
        return constant_pad(input, pad, value if input.dtype.is_floating_point else int(value))
    check(len(pad) % 2 == 0, "pad", "an even number of sizes", pad)
    check(mode in ("reflect", "replicate", "circular"), "pad", "mode 'constant', 'reflect', 'replicate' or 'circular'", repr(mode),
          error=NotImplementedError)
    check(value is None or value == 0, "pad", f"no value in mode {mode!r}", value)
    dims = len(pad) // 2
    check(1 <= dims <= 3 and input.ndim - dims in (1, 2), "pad", "1, 2 or 3 pairs of sizes and an input of one or two dims more",
          pad, input.shape, error=NotImplementedError)
    out = input
    for k in range(dims):
        before, after = pad[2 * k:2 * k + 2]
        if before or after:
            out = _extend(out, input.ndim - 1 - k, before, after, mode)
    return out.clone() if out is input else out
