"""Batch norm in parts, between which processes exchange what they have found of a channel: see `nn.SyncBatchNorm`.

forward: moments, then `batch_norm_apply` with those of all; backward: sums, then slopes with those of all.
"""
import numpy as np

from tritorch.cuda.launch import launch
from tritorch.dispatch import op
from tritorch.memory_format import like_image
from tritorch.ops.arrays import single
from tritorch.ops.batchnorm import (
    K,
    broad,
    channels_check,
    image_sizes,
    launch_channels,
    moments_array,
    moments_channels,
    others,
    train_promises,
)
from tritorch.ops.normalize import contiguous, scalar
from tritorch.ops.rows import sum_lines
from tritorch.tensor import empty


# ------------------------------------------------------------------ forward
@op(returns=("mean", "var"))
def batch_norm_moments(input):
    """Mean and biased variance of every channel of (N, C, …)."""
    channels_check("batch_norm", input)
    return train_promises(input)[1:]


@batch_norm_moments.impl("cpu")
def batch_norm_moments_cpu(mean, var, x):
    if x.size:
        moments_array(mean, var, x)
    else:
        mean[...] = var[...] = np.nan


batch_norm_moments.impl("cuda")(moments_channels)


@batch_norm_moments.formula
def batch_norm_moments_formula(input):
    dims, x = others(input), input.to(input.dtype.compute)
    mean = x.mean(dims)
    return mean, (x - broad(mean, input.ndim)).square().mean(dims)


# ------------------------------------------------------------------ backward
@op(returns=("slope", "shift"))
def batch_norm_sums(g, input, mean, var, eps=1e-5):
    """Σ g·x̂ and Σ g of every channel, with x̂ = (x - mean) / √(var + eps)."""
    channels_check("batch_norm", input, mean, var)
    return train_promises(input)[1:]


def xhat_of(x, mean, var, eps):
    """x̂ as an array."""
    xhat = x - broad(mean.astype(x.dtype), x.ndim)
    xhat *= broad(1 / np.sqrt(single(var).astype(x.dtype) + x.dtype.type(eps)), x.ndim)
    return xhat


@batch_norm_sums.impl("cpu")
def batch_norm_sums_cpu(slope, shift, g, x, mean, var, eps):
    g, x = single(g), single(x)
    slope[...], shift[...] = (g * xhat_of(x, mean, var, eps)).sum(axis=others(x)), g.sum(axis=others(x))


@batch_norm_sums.impl("cuda")
def batch_norm_sums_cuda(slope, shift, g, x, mean, var, eps):
    def start(geometry, grid, constexprs):
        parts = [empty((grid[1], geometry[-2]), mean.dtype, x.device) for _ in range(2)]
        launch(K.sums_kernel, grid, *parts, None, g, x, None, contiguous(mean), contiguous(var), None, None, *geometry, eps, RELU=False,
               **constexprs)
        sum_lines([slope, shift], parts)

    eps = scalar(eps, x.dtype.compute)
    if x.numel():
        launch_channels("batch_norm_sums", (g, x), start, sums=True)
    else:
        slope.zero_(), shift.zero_()


@batch_norm_sums.formula
def batch_norm_sums_formula(g, input, mean, var, eps):
    dims, kind = others(input), input.dtype.compute
    xhat = (input.to(kind) - broad(mean, input.ndim)) * broad((var + eps).rsqrt(), input.ndim)
    return (g.to(kind) * xhat).sum(dims), g.to(kind).sum(dims)


@op
def batch_norm_slopes(grad, input, mean, var, weight, slope, shift, eps=1e-5):
    """w / √(var + eps) · (grad - shift / n - x̂ · slope / n), the gradient of the input, for n values a channel and a weight w."""
    channels_check("batch_norm", input, mean, var, weight, slope, shift)
    return input.shape, input.dtype, input.device, like_image(input.shape, input)


@batch_norm_slopes.impl("cpu")
def batch_norm_slopes_cpu(gx, g, x, mean, var, weight, slope, shift, eps):
    g, x = single(g), single(x)
    n = x.dtype.type(max(x.size // max(x.shape[1], 1), 1))
    work = g - xhat_of(x, mean, var, eps) * broad(slope.astype(x.dtype) / n, x.ndim) - broad(shift.astype(x.dtype) / n, x.ndim)
    scale = 1 / np.sqrt(single(var).astype(x.dtype) + x.dtype.type(eps))
    gx[...] = work * broad(scale if weight is None else scale * weight.astype(x.dtype), x.ndim)


@batch_norm_slopes.impl("cuda")
def batch_norm_slopes_cuda(gx, g, x, mean, var, weight, slope, shift, eps):
    eps, vectors = scalar(eps, x.dtype.compute), [contiguous(v) for v in (mean, var, weight, None, slope, shift)]
    launch_channels("batch_norm_slopes", (gx, g, x), lambda geometry, grid, constexprs: launch(
        K.slope_kernel, grid, gx, g, x, *vectors, *geometry, eps, TRAINING=True, RELU=False, **constexprs))


@batch_norm_slopes.formula
def batch_norm_slopes_formula(grad, input, mean, var, weight, slope, shift, eps):
    ndim, n = input.ndim, max(input.numel() // max(input.shape[1], 1), 1)
    rstd = broad((var + eps).rsqrt(), ndim)
    gx = grad - broad(shift / n, ndim) - (input - broad(mean, ndim)) * rstd * broad(slope / n, ndim)
    return gx * (rstd if weight is None else rstd * broad(weight, ndim))


@batch_norm_moments.samples
def batch_norm_moments_samples(make):
    yield make(4, 3),
    yield make(2, 5, 3, 4),


@batch_norm_sums.samples
def batch_norm_sums_samples(make):
    yield make(4, 3), make(4, 3), make(3), make(3, positive=True)
    yield make(2, 5, 3, 4), make(2, 5, 3, 4), make(5), make(5, positive=True), 1e-2


@batch_norm_slopes.samples
def batch_norm_slopes_samples(make):
    yield make(4, 3), make(4, 3), make(3), make(3, positive=True), None, make(3), make(3)
    yield make(2, 5, 3, 4), make(2, 5, 3, 4), make(5), make(5, positive=True), make(5), make(5), make(5), 1e-2


FLAT = "expected a floating input of at least 2 dims"
batch_norm_moments.errors(lambda make: [((make(3),), {}, RuntimeError, FLAT)])
batch_norm_sums.errors(lambda make: [(tuple([make(3) for _ in range(4)]), {}, RuntimeError, FLAT)])
batch_norm_slopes.errors(lambda make: [(tuple([make(3) for _ in range(7)]), {}, RuntimeError, FLAT)])
image_sizes(batch_norm_moments, lambda image, *_: (image(),), 1)
image_sizes(batch_norm_sums, lambda image, mean, var, *_: (image(), image(), mean, var), 2)
image_sizes(batch_norm_slopes, lambda image, mean, var, w, s: (image(), image(), mean, var, w, s, s), 3)
