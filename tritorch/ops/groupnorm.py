"""Group normalization: the channels of a sample in groups, each with its own statistics."""
import math
from math import gcd

import numpy as np

from tritorch.autograd.modes import again
from tritorch.cuda.launch import kernels, launch, sm_count, tile
from tritorch.dispatch import op
from tritorch.dtype import check_beside, types
from tritorch.errors import check, refuse_misuse
from tritorch.memory_format import like_image
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.normalize import (
    affine_sums,
    contiguous,
    moments,
    normalize_rows,
    normalize_rows_backward,
    scalar,
)
from tritorch.ops.normalize_cpu import deliver, gradient_array, matrix, normalize_array, scratch
from tritorch.ops.rows import rows
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty, strided

K = kernels("normalize")
WIDEST = 4096
"""Channels of a group that a tile can hold."""
FEW = 64
"""The same where pixels are next to each other: a tile then has at least 32 of them, or 16 of float64."""


def grouped(t, groups):
    """(N, C, …) seen as (N, groups, C / groups, …), in place."""
    (n, c, *rest), (step_n, step_c, *steps) = t.shape, t.strides
    size = c // groups
    return strided(t.storage, (n, groups, size, *rest), (step_n, step_c * size, step_c, *steps), t.offset, t.dtype)


@op(returns=("out", "mean", "rstd"))
def group_norm_rows(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Group norm and the statistics of every group: (out, mean, 1 / √(var + eps)). Only `out` has a gradient."""
    name = "group_norm"
    check(input.ndim >= 2 and input.dtype.is_floating_point, name, "a floating input of at least 2 dims", input.dtype, input.shape)
    check(num_groups > 0 and input.shape[1] % num_groups == 0, name, "channels that num_groups divides", input.shape[1], num_groups)
    for p in (weight, bias):
        fits = p is None or p.shape == (input.shape[1],)
        check(fits, name, f"weight and bias of shape ({input.shape[1]},)", None if fits else p.shape)
    check_beside(name, "parameters", input.dtype, weight, bias)
    row = (input.shape[0], num_groups), input.dtype.compute, input.device
    return [(input.shape, input.dtype, input.device, like_image(input.shape, input)), row, row]


def channel_rows(p, x, groups):
    """One value a channel, for (N, groups, elements of a group) arrays."""
    return np.repeat(p.astype(x.dtype), x.shape[2] * groups // len(p)).reshape(groups, -1)


@group_norm_rows.impl("cpu")
def group_norm_cpu(out, mean, rstd, x, num_groups, weight, bias, eps):
    size = math.prod(x.shape[1:]) // num_groups
    x = matrix(x, size)
    if not size:                                                         # numpy cannot tell the samples of nothing apart
        mean[...], rstd[...] = 0, 1 / math.sqrt(eps) if eps else math.inf
        return
    work = scratch(out, x)
    normalize_array(work, x, mean, rstd, eps)
    samples = work.reshape(out.shape[0], num_groups, size)
    if weight is not None:
        samples *= channel_rows(weight, samples, num_groups)
    if bias is not None:
        samples += channel_rows(bias, samples, num_groups)
    deliver(out, work)


@group_norm_rows.impl("cuda")
def group_norm_cuda(out, mean, rstd, x, num_groups, weight, bias, eps):
    out, x, inner = grouped(out, num_groups), grouped(x, num_groups), math.prod(x.shape[2:])
    if out.strides[2] == x.strides[2] == 1 < inner and x.shape[2] <= WIDEST:
        return normalize_images(out, mean, rstd, x, weight, bias, eps)
    normalize_rows(out, mean, rstd, x, weight, bias, eps, tuple(range(2, x.ndim)), num_groups, inner)


def normalize_images(out, mean, rstd, x, weight, bias, eps):
    """The same for (N, groups, channels, …) whose channels are next to each other, as in channels_last."""
    (n, groups, size, *rest), acc = x.shape, x.dtype.compute
    strides = [(*t.strides[:2], *t.strides[3:]) for t in (out, x)]
    M, shape_m, stride_m, N, shape_n, stride_n, _, wide, _ = rows(
        (n, groups, *rest), tuple(range(2, x.ndim - 1)), strides[0], mean.strides, rstd.strides, strides[1])
    if M:
        block_n, neighbours, channels, warps = image_tile(n, groups, size, N, x.dtype.itemsize)
        launch(K.image_norm_kernel, (n * cdiv(groups, neighbours),), out, mean, rstd, x, contiguous(weight), contiguous(bias),
               shape_m, stride_m, shape_n, stride_n, N, groups, size, scalar(eps, acc), ACC=getattr(K.tl, acc.name), WIDE=wide,
               ALIGN=gcd(16, size, *strides[0], *strides[1]), BLOCK_N=block_n, GROUPS=neighbours, CHANNELS=channels, num_warps=warps)


def image_tile(n, groups, size, N, itemsize, elements=8192):
    """(pixels, groups, channels, warps) of a tile: 64 bytes of a pixel at least, unless there are too few programs then. 8 warps share
    the `elements`, at most; float64 has half as many."""
    channels, neighbours = next_power_of_2(size), 1
    enough = tile(sm_count() * 3 // 4, 1)
    while neighbours * size * itemsize < 64 and neighbours < groups and n * cdiv(groups, 2 * neighbours) >= enough:
        neighbours *= 2
    most = tile(elements if itemsize < 8 else elements // 2, 4096)       # of 8192: 32 a thread, and twice as many sums
    block_n = min(max(most // (neighbours * channels), 1), next_power_of_2(N))
    return block_n, neighbours, channels, min(max(block_n * neighbours * channels * 8 // elements, 1), 8)


@group_norm_rows.grad("input", "weight", "bias")
def group_norm_grad(g_out, input, num_groups, weight, mean, rstd, eps):
    if again(input):
        mean, rstd = moments(input.reshape(input.shape[0], num_groups, math.prod(input.shape[1:]) // num_groups), 1, eps)
    return group_norm_backward(g_out, input, mean, rstd, weight)


@op(returns=("g_input", "g_weight", "g_bias"))
def group_norm_backward(g, input, mean, rstd, weight=None):
    """The gradients of group norm: of its input, weight and bias; the formulas are those of `layer_norm_backward`, a group a row."""
    channel = (input.shape[1],), (weight if weight is not None else input).dtype, input.device
    return [(input.shape, input.dtype, input.device, like_image(input.shape, input)), channel, channel]


@group_norm_backward.impl("cpu")
def group_norm_backward_cpu(gx, gw, gb, g, x, mean, rstd, weight):
    (n, c, *image), groups = x.shape, mean.shape[1]
    size = math.prod(x.shape[1:]) // groups
    if not size:
        gw[...] = gb[...] = 0
        return
    g, x = matrix(g, size), matrix(x, size)
    w = None if weight is None else np.tile(channel_rows(weight, g.reshape(n, groups, size), groups), (n, 1))
    work = scratch(gx, x)
    xhat = gradient_array(work, g, x, mean, rstd, w)
    deliver(gx, work)
    channels = n, c, math.prod(image)
    gw[...] = (g * xhat).reshape(channels).sum((0, 2))
    gb[...] = g.reshape(channels).sum((0, 2))


@group_norm_backward.impl("cuda")
def group_norm_backward_cuda(gx, gw, gb, g, x, mean, rstd, weight):
    groups, inner = mean.shape[1], math.prod(x.shape[2:])
    size = x.shape[1] // groups
    gx, g, x = [grouped(t, groups) for t in (gx, g, x)]
    parts = [empty((x.shape[0], groups, size), mean.dtype, x.device) for _ in range(2)]     # a sample at a time: there, a row has one mean
    last = gx.strides[2] == g.strides[2] == x.strides[2] == 1 < inner and size <= WIDEST
    if last or pixels_first(gx, g, x):
        images_backward(gx, *parts, g, x, mean, rstd, weight, last)
    else:
        normalize_rows_backward(gx, None, None, g, x, mean, rstd, weight, tuple(range(2, x.ndim)), groups, inner)
        affine_sums(*parts, g, x, mean, rstd, tuple(range(3, x.ndim)))
    for total, part in zip((gw, gb), parts):
        total = strided(total.storage, (groups, size), (total.strides[0] * size, total.strides[0]), total.offset, total.dtype)
        reduce_rows([total], [part], (0,), False, Monoid("sum", "sum"), mean.dtype)


def pixels_first(*tensors):
    """Pixels are next to each other, enough of them in a tile, and there are enough groups for one program each, none of them so small
    that a program should take several."""
    n, groups, size, *rest = tensors[0].shape
    near = all(t.ndim > 3 and t.strides[-1] == 1 for t in tensors)
    fits = size <= FEW and size * math.prod(rest) >= 128
    return near and fits and rest[-1] > 1 and n * groups >= tile(sm_count() * 3 // 4, 1)


def images_backward(gx, gw, gb, g, x, mean, rstd, weight, last):
    """gx, and what each sample adds to gw and gb, of (N, groups, channels, …) whose channels (`last`) or pixels are next to each other."""
    (n, groups, size, *rest), images = x.shape, (gx, g, x)
    strides = [(*t.strides[:2], *t.strides[3:]) for t in images]
    M, shape_m, stride_m, N, shape_n, stride_n, _, wide, align = rows(
        (n, groups, *rest), tuple(range(2, x.ndim - 1)), *strides, mean.strides, rstd.strides)
    if M:
        steps = tuple([t.strides[2] for t in images])
        aligned = (1, gcd(16, size, *[s for t in strides for s in t])) if last else (gcd(align, *steps), 1)
        together, elements = (groups, 8192) if last else (1, 2048)
        block_n, neighbours, channels, warps = image_tile(n, together, size, N, max(g.dtype.itemsize, x.dtype.itemsize), elements)
        launch(K.image_backward_kernel, (n * cdiv(groups, neighbours),), gx, gw, gb, g, x, mean, rstd, contiguous(weight), shape_m,
               stride_m, steps, shape_n, stride_n, N, groups, size, ACC=getattr(K.tl, x.dtype.compute.name), WIDE=wide, ALIGN_C=aligned[0],
               ALIGN_N=aligned[1], BLOCK_N=block_n, GROUPS=neighbours, CHANNELS=channels, num_warps=warps)


@group_norm_backward.formula
def group_norm_backward_formula(g, input, mean, rstd, weight):
    n, c, groups = *input.shape[:2], mean.shape[1]
    shape = (n, groups, math.prod(input.shape[1:]) // groups)
    rstd = rstd.unsqueeze(-1)
    xhat = (input.reshape(shape) - mean.unsqueeze(-1)) * rstd
    gw = (g if weight is None else g * weight.reshape(c, *[1] * (g.ndim - 2))).reshape(shape)
    gx = rstd * (gw - gw.mean(-1, keepdim=True) - xhat * (gw * xhat).mean(-1, keepdim=True))
    rows, channels = (n, c, math.prod(g.shape[2:])), (0, 2)
    g = g.reshape(rows)
    return gx.reshape(input.shape), (g * xhat.reshape(rows)).sum(channels), g.sum(channels)


@group_norm_rows.samples
def group_norm_samples(make):
    yield make(2, 4, 3), 2, make(4), make(4)
    yield make(3, 6), 3, make(6), make(6)
    yield make(2, 6, 3, 5), 2, None, make(6), 1e-2
    yield make(2, 3, 7), 1
    yield make(2, 4, 8, 9), 4, make(4), None
    yield make(2, 3, 5, 6).permute(0, 3, 1, 2), 2, make(6), make(6)


@group_norm_backward.samples
def group_norm_backward_samples(make):
    yield make(2, 4, 3), make(2, 4, 3), make(2, 2), make(2, 2), make(4)
    yield make(3, 6), make(3, 6), make(3, 3), make(3, 3), make(6)
    yield make(2, 6, 3, 5), make(2, 6, 3, 5), make(2, 2), make(2, 2)
    yield make(2, 3, 5, 6).permute(0, 3, 1, 2), make(2, 3, 5, 6).permute(0, 3, 1, 2), make(2, 2), make(2, 2), make(6)


@group_norm_rows.errors
def group_norm_errors(make):
    yield (make(2, 5, 3), 2), {}, RuntimeError, "expected channels that num_groups divides"


SHAPE = 32, 256, 64, 64
group_norm_rows.workloads(lambda make: [("32x256x64x64 in 32", lambda: (
    make(*SHAPE, dtype=types.bfloat16), 32, make(256), make(256)), 4 * math.prod(SHAPE), 8 * math.prod(SHAPE))])
group_norm_backward.workloads(lambda make: [("32x256x64x64 in 32", lambda: (
    make(*SHAPE, dtype=types.bfloat16), make(*SHAPE, dtype=types.bfloat16), make(32, 32), make(32, 32), make(256)),
    10 * math.prod(SHAPE), 16 * math.prod(SHAPE))])


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Normalize every group of channels of every sample of (N, C, …), then scale and shift every channel.

    out = (x - mean) / √(var + eps) · weight + bias. Wu and He, Group Normalization, 2018.

    >>> import tritorch as torch; from tritorch.ops.groupnorm import group_norm
    >>> group_norm(torch.tensor([[1.0, 3.0, 5.0, 5.0]]), 2)
    tensor([[-1.0000,  1.0000,  0.0000,  0.0000]])
    """
    try:
        return group_norm_rows(input, num_groups, weight, bias, eps)[0]
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise
