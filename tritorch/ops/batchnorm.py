"""Batch and instance normalization of (N, C, …): statistics over channels.

On the GPU a channel is a row, whatever the layout: (N, C, H, W) in either memory format is read where it lies, and so are results written.
"""
import math

import numpy as np

from tritorch.autograd.modes import again, no_grad
from tritorch.cuda.launch import kernels, launch, sm_count, tile
from tritorch.cuda.tuner import choose
from tritorch.dispatch import op
from tritorch.dtype import check_beside, types
from tritorch.errors import check, explained, refuse_misuse
from tritorch.memory_format import like_image
from tritorch.ops.activation import relu_backward
from tritorch.ops.arrays import either, single
from tritorch.ops.batchnorm_tiles import channel_tiles
from tritorch.ops.normalize import contiguous, scalar
from tritorch.ops.rows import half, rows, sum_lines
from tritorch.ops.running_statistics import running_statistics
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty

K = kernels("batchnorm")


# ------------------------------------------------------------------ common ground
def channels_check(name, input, *parameters):
    """Inputs are floating, of at least two dims; parameters have one value a channel."""
    check(input.ndim >= 2 and input.dtype.is_floating_point, name, "a floating input of at least 2 dims", input.dtype, input.shape)
    for p in parameters:
        if p is not None and p.shape != input.shape[1:2]:
            raise RuntimeError(f"{name}: expected parameters of shape ({input.shape[1]},), got {p.shape}")
    check_beside(name, "parameters", input.dtype, *parameters)


def others(x):
    """All dims but the channels."""
    return (0, *range(2, x.ndim))


def broad(p, ndim):
    """One value a channel, in a shape that broadcasts against the input."""
    return None if p is None else p.reshape(-1, *[1] * (ndim - 2))


def launch_channels(family, tensors, start, sums=False):
    """Call `start(geometry, grid, constexprs)` with the best tile for tensors of one shape, outputs first; the constexprs are those of
    all kernels here."""
    x = tensors[0]
    geometry = rows(x.shape, others(x), *[t.strides for t in tensors])
    M, shape_m, stride_m, N, shape_n, stride_n, across, wide, align = geometry
    more = {"ACC": getattr(K.tl, x.dtype.compute.name), "WIDE": wide,
            "QUICK": align if len(shape_n) == 2 and shape_n[1] > 1 and N * shape_n[1] < 1 << 32 and not wide else 0}
    tiles = channel_tiles(M, N, across, bool(tile(0, 1)), sums)

    def run(t):
        blocks = cdiv(M, t["BLOCK_M"])
        wanted = min(max(tile(t["PER_SM"] * sm_count(), 2 * blocks) // blocks, 1), 512) if t["PER_SM"] else 0xFFFF
        start((shape_m, stride_m, shape_n, stride_n, M, N), (blocks, min(wanted, cdiv(N, t["BLOCK_N"]))),
              more | {name: value for name, value in t.items() if name != "PER_SM"})

    if M * N:
        run(tiles[0] if len(tiles) == 1 else choose(family, (x.dtype.name, across, M, N), tiles, K.apply_kernel, run))


def apply_channels(out, x, mean, var, weight, bias, eps, relu=False, residual=None):
    """out = the norm of x with these statistics, with a residual and rectified where that is asked for."""
    vectors, eps = [contiguous(v) for v in (mean, var, weight, bias)], scalar(eps, x.dtype.compute)
    tensors = (out, x) if residual is None else (out, x, residual)
    launch_channels("batch_norm", tensors, lambda geometry, grid, constexprs: launch(
        K.apply_kernel, grid, out, x, residual, *vectors, *geometry, eps, RELU=relu, **constexprs))


def apply_array(out, x, mean, var, weight, bias, eps, relu=False, residual=None):
    """The same for arrays."""
    x = single(x)
    scale = 1 / np.sqrt(single(var).astype(x.dtype) + x.dtype.type(eps))
    if weight is not None:
        scale *= weight.astype(x.dtype)
    work = x - broad(mean.astype(x.dtype), x.ndim)
    work *= broad(scale, x.ndim)
    if bias is not None:
        work += broad(bias.astype(x.dtype), x.ndim)
    if residual is not None:
        work = work.astype(out.dtype).astype(x.dtype) + residual.astype(x.dtype)
    out[...] = np.maximum(work, 0) if relu else work


# ------------------------------------------------------------------ batch norm with given statistics
@op
def batch_norm_apply(input, mean, var, weight=None, bias=None, eps=1e-5, relu=False):
    """(x - mean) / √(var + eps) · weight + bias with one value of each a channel, rectified with `relu`: batch norm outside of training."""
    channels_check("batch_norm", input, mean, var, weight, bias)
    return input.shape, input.dtype, input.device, like_image(input.shape, input)


batch_norm_apply.impl("cpu")(apply_array)
batch_norm_apply.impl("cuda")(apply_channels)


@batch_norm_apply.grad("input", "weight", "bias")
def batch_norm_apply_grad(g, input, mean, var, weight, bias, eps, relu):
    return batch_norm_backward(g, input, mean, var, weight, bias, eps, False, relu)


@batch_norm_apply.formula
def batch_norm_formula(input, mean, var, weight, bias, eps, relu=False):
    mean, weight, bias = [broad(p, input.ndim) for p in (mean, weight, bias)]
    out = (input - mean) * (broad(var, input.ndim) + eps).rsqrt()
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return out.relu() if relu else out


# ------------------------------------------------------------------ batch norm in training
@op(returns=("out", "mean", "var"))
def batch_norm_train(input, weight=None, bias=None, eps=1e-5, relu=False):
    """Batch norm by the statistics of the batch, rectified with `relu`, and these: (out, mean, biased variance). Only `out` has a
    gradient."""
    channels_check("batch_norm", input, weight, bias)
    return train_promises(input)


def train_promises(x):
    channel = (x.shape[1],), x.dtype.compute, x.device
    return [(x.shape, x.dtype, x.device, like_image(x.shape, x)), channel, channel]


def moments_array(mean, var, x):
    x, dims = single(x), others(x)
    n = x.dtype.type(x.size // max(x.shape[1], 1))
    mean[...] = x.sum(axis=dims) / n
    var[...] = np.square(x - broad(mean, x.ndim)).sum(axis=dims) / n


@batch_norm_train.impl("cpu")
def batch_norm_train_cpu(out, mean, var, x, weight, bias, eps, relu):
    moments_array(mean, var, x)
    apply_array(out, x, mean, var, weight, bias, eps, relu)


def moments_channels(mean, var, x):
    """Mean and biased variance of every channel."""
    def start(geometry, grid, constexprs):
        M, N = geometry[-2:]
        means, squares = [empty((grid[1], M), mean.dtype, x.device) for _ in range(2)]
        n = constexprs["BLOCK_N"]
        launch(K.moments_kernel, grid, means, squares, x, *geometry, EVEN=N % n == 0, **constexprs)
        pieces = next_power_of_2(grid[1])
        block = tile(max(2048 // pieces, 1), half(M))
        launch(K.merge_moments_kernel, (cdiv(M, block),), *targets, means, squares, M, N, grid[1], BLOCK_M=block, BLOCK_N=n,
               PIECES=pieces)

    targets = [t if t.is_contiguous() else empty(t.shape, t.dtype, t.device) for t in (mean, var)]
    if x.numel():
        launch_channels("batch_norm_moments", (x,), start, sums=True)
    else:
        for t in targets:
            t.fill_(math.nan)
    for t, target in zip((mean, var), targets):
        if t is not target:
            t.copy_(target)


@batch_norm_train.impl("cuda")
def batch_norm_train_cuda(out, mean, var, x, weight, bias, eps, relu):
    moments_channels(mean, var, x)
    apply_channels(out, x, mean, var, weight, bias, eps, relu)


@batch_norm_train.grad("input", "weight", "bias")
def batch_norm_grad(g_out, input, weight, bias, mean, var, eps, relu):
    return batch_norm_backward(g_out, input, *followed(input, mean, var), weight, bias, eps, True, relu)


def followed(x, mean, var):
    """The statistics of the batch, with their place in the graph where gradients are differentiated again."""
    if again(x):
        dims = others(x)
        mean = x.mean(dims)
        var = (x - broad(mean, x.ndim)).square().mean(dims)
    return mean, var


@op(returns=("g_input", "g_weight", "g_bias"))
def batch_norm_backward(g, input, mean, var, weight=None, bias=None, eps=1e-5, training=True, relu=False):
    """The gradients of batch norm: of its input, weight and bias. With x̂ = (x - mean) / √(var + eps) and w the weight,

    gw = Σ g·x̂, gb = Σ g, gx = w / √(var + eps) · (g - gb / n - x̂ · gw / n); outside of training the last two terms are not there. With
    `relu` the result was rectified, and g counts where x̂ · w + bias is above 0: made again, it costs no pass over memory.
    """
    return gradient_promises(input, weight)


def gradient_promises(x, weight):
    channel = (x.shape[1],), weight.dtype if weight is not None else x.dtype.compute, x.device       # of sums that float16 may not hold
    return [(x.shape, x.dtype, x.device, like_image(x.shape, x)), channel, channel]


@batch_norm_backward.impl("cpu")
def batch_norm_backward_cpu(gx, gw, gb, g, x, mean, var, weight, bias, eps, training, relu):
    if relu:
        y = np.empty_like(x)
        apply_array(y, x, mean, var, weight, bias, eps)
        g = either(y <= 0, g.dtype.type(0), g)
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
def batch_norm_backward_cuda(gx, gw, gb, g, x, mean, var, weight, bias, eps, training, relu):
    gradients_channels(gx, gw, gb, g, x, mean, var, weight, bias, eps, training, relu)


def gradients_channels(gx, gw, gb, g, x, mean, var, weight, bias, eps, training, relu, result=None, masked=None):
    """Two passes: sums, then slopes. With a `result` the first one leaves g where that is above 0 in `masked`, which the second reads."""
    def sums(geometry, grid, constexprs):
        parts = [empty((grid[1], geometry[-2]), mean.dtype, x.device) for _ in range(2)]
        launch(K.sums_kernel, grid, *parts, masked, g, x, result, *vectors, *geometry, eps, RELU=relu, **constexprs)
        sum_lines([gw, gb], parts)

    def slopes(geometry, grid, constexprs):
        launch(K.slope_kernel, grid, gx, slope, x, *vectors, contiguous(gw), contiguous(gb), *geometry, eps, TRAINING=training, RELU=relu,
               **constexprs)

    eps, vectors = scalar(eps, x.dtype.compute), [contiguous(v) for v in (mean, var, weight, bias)]
    slope = g if masked is None else masked
    if x.numel():
        launch_channels("batch_norm_sums", (g, x) if masked is None else (g, x, result, masked), sums, sums=True)
        launch_channels("batch_norm_slopes", (gx, slope, x), slopes)
    else:
        gw.zero_(), gb.zero_()


@batch_norm_backward.formula
def batch_norm_backward_formula(g, input, mean, var, weight, bias, eps, training, relu):
    if relu:
        g = relu_backward(g, batch_norm_formula(input, mean, var, weight, bias, eps))
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
    yield make(3, 2, 4, 3), make(2), make(2, positive=True), make(2), make(2), 1e-2, True
    yield make(0, 3, 2), make(3), make(3, positive=True), make(3), make(3)


@batch_norm_train.samples
def batch_norm_train_samples(make):
    yield make(4, 3), make(3), make(3)
    yield make(2, 3, 5), None, make(3), 1e-2
    yield make(2, 5, 3, 4), make(5)
    yield make(3, 17, 7, 5),
    yield make(3, 2, 4, 3), make(2), make(2), 1e-2, True


@batch_norm_backward.samples
def batch_norm_backward_samples(make):
    yield make(4, 3), make(4, 3), make(3), make(3, positive=True), make(3)
    yield make(2, 3, 5), make(2, 3, 5), make(3), make(3, positive=True), None, None, 1e-2, False
    yield make(2, 5, 3, 4), make(2, 5, 3, 4), make(5), make(5, positive=True), make(5)
    yield make(3, 2, 4, 3), make(3, 2, 4, 3), make(2), make(2, positive=True), make(2), make(2), 1e-2, True, True
    yield make(2, 3, 5), make(2, 3, 5), make(3), make(3, positive=True), None, make(3), 1e-2, False, True


batch_norm_apply.errors(lambda make: [((make(3), make(3), make(3)), {}, RuntimeError, "expected a floating input of at least 2 dims")])
batch_norm_train.errors(lambda make: [((make(2, 3), make(2)), {}, RuntimeError, "expected parameters of shape (3,)")])


def image_sizes(f, arguments, units):
    """Timed calls on activations of a ResNet in both layouts, in bfloat16; `units` are the passes over them."""
    def workloads(make):
        for n, c, side in (128, 256, 56), (256, 64, 112):
            shapes = {"": (n, c, side, side), " channels last": (n, side, side, c)}
            for layout, shape in shapes.items():
                def image(shape=shape, last=bool(layout)):
                    x = make(*shape, dtype=types.bfloat16)
                    return x.permute(0, 3, 1, 2) if last else x

                size = n * c * side * side
                yield (f"{n}x{c}x{side}x{side}{layout}", lambda image=image, c=c: arguments(
                    image, *[make(c, positive=True) for _ in range(4)]), 2 * units * size, 4 * size)
    f.workloads(workloads)


image_sizes(batch_norm_apply, lambda image, *p: (image(), *p), 2)
image_sizes(batch_norm_train, lambda image, w, b, *_: (image(), w, b), 3)
image_sizes(batch_norm_backward, lambda image, mean, var, w, _: (image(), image(), mean, var, w), 5)


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Normalize every channel of (N, C, …), then scale and shift.

    out = (x - mean) / √(var + eps) · weight + bias. In training mean and (biased) var are those of the batch, and
    running = (1 - momentum) · running + momentum · batch, with the unbiased variance; else they are the running ones.
    Ioffe and Szegedy, Batch Normalization, 2015.

    >>> import tritorch as torch; from tritorch.ops.batchnorm import batch_norm
    >>> batch_norm(torch.tensor([[1.0], [3.0]]), None, None, training=True)
    tensor([[-1.0000],
            [ 1.0000]])
    """
    try:
        check_statistics(input, running_mean, running_var, training)
        check(not (eps < 0 or training and eps == 0), "batch_norm", "eps >= 0, and eps > 0 in training", eps, error=ValueError)
        if not training:
            return batch_norm_apply(input, running_mean, running_var, weight, bias, eps)
        out, *batch = batch_norm_train(input, weight, bias, eps)
        follow(running_mean, running_var, batch, input, momentum)
        return out
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def check_statistics(input, running_mean, running_var, training):
    """Outside of training there are running statistics; in training there is more than one value a channel."""
    if not training:
        check(running_mean is not None and running_var is not None, "batch_norm", "running statistics, or training=True", running_mean)
        return
    channels_check("batch_norm", input, running_mean, running_var)
    check((running_mean is None) == (running_var is None), "batch_norm", "running_mean and running_var, or neither", "one of them",
          error=ValueError)
    alone = input.numel() == input.shape[1] > 0
    check(not alone, "batch_norm", "more than 1 value per channel when training", tuple(input.shape), error=ValueError)


def follow(running_mean, running_var, batch, input, momentum):
    """The running statistics, if there are any, go towards those of the batch; an empty one has none."""
    if running_mean is not None and input.numel():
        n = input.numel() // input.shape[1]
        with no_grad():
            running = running_mean, running_var
            running_statistics.into(running, *running, *batch, momentum, n / (n - 1))


@explained
def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    """batch_norm of every sample by itself: each channel of each sample has statistics of its own.

    Ulyanov, Vedaldi and Lempitsky, Instance Normalization, 2016.

    >>> import tritorch as torch; from tritorch.ops.batchnorm import instance_norm
    >>> instance_norm(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[-1.0000,  1.0000]]])
    """
    check(input.ndim > 1, "instance_norm", "an input of 2 dims or more", input.shape, error=ValueError)
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
