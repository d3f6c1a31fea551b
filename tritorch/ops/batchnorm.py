"""Batch and instance normalization of (N, C, …): statistics over channels.

On the GPU a channel is a row, whatever the layout: (N, C, H, W) in either memory format is read where it lies.
"""
import math

import numpy as np

from tritorch.autograd.modes import no_grad, state
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.normalize import contiguous, scalar
from tritorch.ops.reduce import Monoid, reduce_rows, single
from tritorch.ops.rows import half, rows
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import strided

K = kernels("normalize")


# ------------------------------------------------------------------ common ground
def channels_check(name, input, *parameters):
    """Inputs are floating, of at least two dims; parameters have one value a channel."""
    check(input.ndim >= 2 and input.dtype.is_floating_point, name, "a floating input of at least 2 dims", input.dtype, input.shape)
    for p in parameters:
        fits = p is None or p.shape == (input.shape[1],)
        check(fits, name, f"parameters of shape ({input.shape[1]},)", None if fits else p.shape)


def others(x):
    """All dims but the channels."""
    return (0, *range(2, x.ndim))


def broad(p, ndim):
    """One value a channel, in a shape that broadcasts against the input."""
    return None if p is None else p.reshape(-1, *[1] * (ndim - 2))


def launch_channels(kernel, tensors, vectors, eps, **constexprs):
    """Start an elementwise kernel over channels: `tensors` of the input's shape, outputs first, then one value a channel each."""
    x = tensors[0]
    M, shape_m, stride_m, N, shape_n, stride_n, across, wide = rows(x.shape, others(x), *[t.strides for t in tensors])
    if not M * N:
        return
    height = min(next_power_of_2(M), 64) if across else 1
    width = min(next_power_of_2(N), 2048 // height)
    BLOCK_M, BLOCK_N = tile(height, min(half(M), 1024)), tile(width, min(half(N), 1024))
    launch(kernel, (cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),), *tensors, *[contiguous(v) for v in vectors], shape_m, stride_m,
           shape_n, stride_n, M, N, scalar(eps, x.dtype.compute), **constexprs, ACC=getattr(K.tl, x.dtype.compute.name), WIDE=wide,
           BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N)


# ------------------------------------------------------------------ batch norm with given statistics
@op
def batch_norm_apply(input, mean, var, weight=None, bias=None, eps=1e-5):
    """(x - mean) / √(var + eps) · weight + bias with one value of each a channel: batch norm outside of training."""
    channels_check("batch_norm", input, mean, var, weight, bias)
    return input.shape, input.dtype, input.device


@batch_norm_apply.impl("cpu")
def batch_norm_apply_cpu(out, x, mean, var, weight, bias, eps):
    x = single(x)
    scale = 1 / np.sqrt(single(var).astype(x.dtype) + x.dtype.type(eps))
    if weight is not None:
        scale *= weight.astype(x.dtype)
    work = x - broad(mean.astype(x.dtype), x.ndim)
    work *= broad(scale, x.ndim)
    if bias is not None:
        work += broad(bias.astype(x.dtype), x.ndim)
    out[...] = work


@batch_norm_apply.impl("cuda")
def batch_norm_apply_cuda(out, x, mean, var, weight, bias, eps):
    launch_channels(K.channel_kernel, (out, x), (mean, var, weight, bias), eps)


@batch_norm_apply.grad("input", "weight", "bias")
def batch_norm_apply_grad(g, input, mean, var, weight, eps):
    return batch_norm_backward(g, input, mean, var, weight, eps, False)


@batch_norm_apply.formula
def batch_norm_formula(input, mean, var, weight, bias, eps):
    mean, weight, bias = [broad(p, input.ndim) for p in (mean, weight, bias)]
    out = (input - mean) * (broad(var, input.ndim) + eps).rsqrt()
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


# ------------------------------------------------------------------ batch norm in training
@op(returns=("out", "mean", "var"))
def batch_norm_train(input, weight=None, bias=None, eps=1e-5):
    """Batch norm by the statistics of the batch, and these: (out, mean, biased variance). Only `out` has a gradient."""
    channels_check("batch_norm", input, weight, bias)
    channel = (input.shape[1],), input.dtype.compute, input.device
    return [(input.shape, input.dtype, input.device), channel, channel]


@batch_norm_train.impl("cpu")
def batch_norm_train_cpu(out, mean, var, x, weight, bias, eps):
    x, dims = single(x), others(x)
    n = x.dtype.type(x.size // max(x.shape[1], 1))
    mean[...] = x.sum(axis=dims) / n
    work = x - broad(mean, x.ndim)
    var[...] = np.square(work).sum(axis=dims) / n
    scale = 1 / np.sqrt(var + x.dtype.type(eps))
    if weight is not None:
        scale *= weight.astype(x.dtype)
    work *= broad(scale, x.ndim)
    if bias is not None:
        work += broad(bias.astype(x.dtype), x.ndim)
    out[...] = work


@batch_norm_train.impl("cuda")
def batch_norm_train_cuda(out, mean, var, x, weight, bias, eps):
    monoid = Monoid("moments", "moments", "mean_var", (None, None, None))
    reduce_rows([mean, var], [x], others(x), False, monoid, x.dtype.compute)
    launch_channels(K.channel_kernel, (out, x), (mean, var, weight, bias), eps)


@batch_norm_train.grad("input", "weight", "bias")
def batch_norm_grad(g_out, input, weight, mean, var, eps):
    if state.grad:
        dims = others(input)
        mean = input.mean(dims)
        var = (input - broad(mean, input.ndim)).square().mean(dims)
    return batch_norm_backward(g_out, input, mean, var, weight, eps, True)


@op(returns=("g_input", "g_weight", "g_bias"))
def batch_norm_backward(g, input, mean, var, weight=None, eps=1e-5, training=True):
    """The gradients of batch norm: of its input, weight and bias. With x̂ = (x - mean) / √(var + eps) and w the weight,

    gw = Σ g·x̂, gb = Σ g, gx = w / √(var + eps) · (g - gb / n - x̂ · gw / n); outside of training the last two terms are not there.
    """
    channel = (input.shape[1],), (weight if weight is not None else input).dtype, input.device
    return [(input.shape, input.dtype, input.device), channel, channel]


@batch_norm_backward.impl("cpu")
def batch_norm_backward_cpu(gx, gw, gb, g, x, mean, var, weight, eps, training):
    g, x, dims = single(g), single(x), others(x)
    n = x.dtype.type(max(x.size // max(x.shape[1], 1), 1))
    rstd = 1 / np.sqrt(single(var).astype(x.dtype) + x.dtype.type(eps))
    xhat = x - broad(mean.astype(x.dtype), x.ndim)
    xhat *= broad(rstd, x.ndim)
    slope, shift = (g * xhat).sum(axis=dims), g.sum(axis=dims)
    gw[...], gb[...] = slope, shift
    scale = rstd if weight is None else rstd * weight.astype(x.dtype)
    if training:
        xhat *= -broad(slope / n, x.ndim)
        xhat += g
        xhat -= broad(shift / n, x.ndim)
        g = xhat
    gx[...] = g * broad(scale, x.ndim)


@batch_norm_backward.impl("cuda")
def batch_norm_backward_cuda(gx, gw, gb, g, x, mean, var, weight, eps, training):
    acc = x.dtype.compute
    mean_x, var_x = [strided(t.storage, x.shape, (0, t.strides[0], *[0] * (x.ndim - 2)), t.offset, t.dtype) for t in (mean, var)]
    monoid = Monoid("affine_var", "affine", "both", (None, None))
    reduce_rows([gw, gb], [g, x, mean_x, var_x], others(x), False, monoid, acc, param=eps)
    launch_channels(K.channel_backward_kernel, (gx, g, x), (mean, var, weight, gw, gb), eps, TRAINING=training)


@batch_norm_backward.formula
def batch_norm_backward_formula(g, input, mean, var, weight, eps, training):
    dims, ndim = others(input), input.ndim
    rstd = broad((var + eps).rsqrt(), ndim)
    xhat = (input - broad(mean, ndim)) * rstd
    gw, gb = (g * xhat).sum(dims), g.sum(dims)
    gx = g
    if training:
        n = max(input.numel() // max(input.shape[1], 1), 1)
        gx = g - broad(gb / n, ndim) - xhat * broad(gw / n, ndim)
    return gx * (rstd if weight is None else rstd * broad(weight, ndim)), gw, gb


@batch_norm_apply.samples
def batch_norm_apply_samples(make):
    yield make(4, 3), make(3), make(3, positive=True), make(3), make(3)
    yield make(2, 3, 5), make(3), make(3, positive=True), None, make(3), 1e-2
    yield make(2, 5, 3, 4), make(5), make(5, positive=True)
    yield make(0, 3, 2), make(3), make(3, positive=True), make(3), make(3)


@batch_norm_train.samples
def batch_norm_train_samples(make):
    yield make(4, 3), make(3), make(3)
    yield make(2, 3, 5), None, make(3), 1e-2
    yield make(2, 5, 3, 4), make(5)
    yield make(3, 17, 7, 5),


@batch_norm_backward.samples
def batch_norm_backward_samples(make):
    yield make(4, 3), make(4, 3), make(3), make(3, positive=True), make(3)
    yield make(2, 3, 5), make(2, 3, 5), make(3), make(3, positive=True), None, 1e-2, False
    yield make(2, 5, 3, 4), make(2, 5, 3, 4), make(5), make(5, positive=True), make(5)


batch_norm_apply.errors(lambda make: [((make(3), make(3), make(3)), {}, RuntimeError, "expected a floating input of at least 2 dims")])
batch_norm_train.errors(lambda make: [((make(2, 3), make(2)), {}, RuntimeError, "expected parameters of shape (3,)")])


def image_sizes(f, arguments, units):
    """Timed calls on activations of a ResNet, in bfloat16."""
    n = 256 * 64 * 112 * 112
    f.workloads(lambda make: [("256x64x112x112", lambda: arguments(
        make(256, 64, 112, 112, dtype=types.bfloat16), *[make(64, positive=True) for _ in range(4)]), 2 * units * n, 4 * n)])


image_sizes(batch_norm_apply, lambda x, *p: (x, *p), 2)
image_sizes(batch_norm_train, lambda x, w, b, *_: (x, w, b), 3)
image_sizes(batch_norm_backward, lambda x, mean, var, w, _: (x, x, mean, var, w), 5)


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Normalize every channel of (N, C, …), then scale and shift.

    out = (x - mean) / √(var + eps) · weight + bias. In training mean and (biased) var are those of the batch, and
    running = (1 - momentum) · running + momentum · batch, with the unbiased variance; else they are the running ones.
    Ioffe and Szegedy, Batch Normalization, 2015.

    >>> import tritorch as torch; from tritorch.ops.normalize import batch_norm
    >>> batch_norm(torch.tensor([[1.0], [3.0]]), None, None, training=True)
    tensor([[-1.0000],
            [ 1.0000]])
    """
    if not training:
        check(running_mean is not None and running_var is not None, "batch_norm", "running statistics, or training=True", running_mean)
        return batch_norm_apply(input, running_mean, running_var, weight, bias, eps)
    channels_check("batch_norm", input, running_mean, running_var)
    n = input.numel() // max(input.shape[1], 1)
    check(n != 1, "batch_norm", "more than 1 value per channel when training", tuple(input.shape), error=ValueError)
    out, mean, var = batch_norm_train(input, weight, bias, eps)
    with no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_((var * (n / (n - 1)) if n else var).to(running_var.dtype), momentum)
    return out


def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    """batch_norm of every sample by itself: each channel of each sample has statistics of its own.

    Ulyanov, Vedaldi and Lempitsky, Instance Normalization, 2016.

    >>> import tritorch as torch; from tritorch.ops.normalize import instance_norm
    >>> instance_norm(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[-1.0000,  1.0000]]])
    """
    n, c = input.shape[:2]
    if use_input_stats:
        elements = math.prod(input.shape[2:])
        check(elements != 1, "instance_norm", "more than 1 spatial element when training", tuple(input.shape), error=ValueError)
    repeated = [None if p is None else p.repeat(n) for p in (running_mean, running_var, weight, bias)]
    out = batch_norm(input.reshape(1, n * c, *input.shape[2:]), *repeated, use_input_stats, momentum, eps)
    with no_grad():
        for running, new in zip((running_mean, running_var), repeated):
            if use_input_stats and running is not None:
                running.copy_(new.reshape(n, c).mean(0))
    return out.reshape(input.shape)
