"""The steps of batch norm over the batches of several processes, as functions: statistics, their union, the result and the gradients.

Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979. `invstd` is
1 / √(variance + eps); statistics have float32, or float64 for that. They have no gradients of their own.
"""
from tritorch.autograd.modes import no_grad
from tritorch.errors import check, explained
from tritorch.ops.batchnorm import batch_norm_apply
from tritorch.ops.batchnorm_parts import batch_norm_moments, batch_norm_slopes, batch_norm_sums
from tritorch.ops.create import tensor


def _variance(invstd):
    """What √ and 1 / make invstd of."""
    return invstd.square().reciprocal()


@explained
@no_grad()
def batch_norm_stats(input, eps):
    """(mean, invstd) of every channel of (N, C, …).

    >>> import tritorch as torch
    >>> torch.batch_norm_stats(torch.tensor([[1.0], [3.0]]), 0.0)
    (tensor([2.]), tensor([1.]))
    """
    mean, var = batch_norm_moments(input)
    return mean, (var + eps).rsqrt()


@explained
@no_grad()
def batch_norm_elemt(input, weight, bias, mean, invstd, eps, *, out=None):
    """(x - mean) · invstd · weight + bias; `eps` is in invstd already."""
    args = input, mean, _variance(invstd), weight, bias, 0.0
    return batch_norm_apply(*args) if out is None else batch_norm_apply.into(out, *args)


@explained
@no_grad()
def batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """(mean, invstd) of the union of several batches, from those of each, (batches, C), and how many values a channel each of them has.

    The running statistics, where they are given, move by `momentum` towards the mean and the unbiased variance of the union.

    >>> import tritorch as torch
    >>> x = torch.tensor([[1.0], [2.0], [6.0]])
    >>> parts = [torch.batch_norm_stats(x[:2], 0.0), torch.batch_norm_stats(x[2:], 1e-9)]
    >>> mean, invstd = (torch.stack(of) for of in zip(*parts))
    >>> torch.batch_norm_gather_stats_with_counts(x, mean, invstd, None, None, 0.1, 0.0, torch.tensor([2, 1]))[0]
    tensor([3.])
    """
    check(mean.ndim == 2 and mean.shape == invstd.shape and counts.numel() == mean.shape[0], "batch_norm_gather_stats",
          "mean and invstd of (batches, channels), and a count of each batch", mean.shape, invstd.shape, counts.shape)
    count = counts.reshape(-1, 1).to(mean.dtype)
    total = count.sum()
    of_all = (count * mean).sum(0) / total
    squares = (count * (_variance(invstd) - eps + (mean - of_all).square())).sum(0)
    for running, now in ((running_mean, of_all), (running_var, squares / (total - 1))):
        if running is not None:
            running.copy_((1 - momentum) * running + momentum * now.to(running.dtype))
    return of_all, (squares / total + eps).rsqrt()


@explained
def batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, count):
    """`batch_norm_gather_stats_with_counts` of batches that all have `count` values a channel."""
    counts = tensor([count] * mean.shape[0], dtype=mean.dtype, device=mean.device)
    return batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


@explained
@no_grad()
def batch_norm_update_stats(input, running_mean, running_var, momentum):
    """(mean, biased variance) of every channel. The running statistics, where they are given, move by `momentum` towards the mean and the
    unbiased variance."""
    mean, var = batch_norm_moments(input)
    n = input.numel() // max(input.shape[1], 1)
    for running, now in ((running_mean, mean), (running_var, var * (n / max(n - 1, 1)))):
        if running is not None:
            running.copy_((1 - momentum) * running + momentum * now.to(running.dtype))
    return mean, var


@explained
@no_grad()
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    """(Σ g, Σ g · (x - mean), gradient of the weight, gradient of the bias) of this batch; None for what is not asked for: the first two
    with `input_g`, the third with `weight_g`, the last with `bias_g`."""
    slope, shift = batch_norm_sums(grad_out, input, mean, _variance(invstd), 0.0)
    kind = slope.dtype if weight is None else weight.dtype
    return (shift if input_g else None, slope / invstd if input_g else None, slope.to(kind) if weight_g else None,
            shift.to(kind) if bias_g else None)


@explained
@no_grad()
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    """The gradient of the input, from sums over all batches, whose values a channel `count` holds, one number for each batch:
    (g - Σg / n - (x - mean) · invstd² · Σ(g · (x - mean)) / n) · invstd · weight, with n the sum of `count`."""
    share = (input.numel() // max(input.shape[1], 1)) / count.sum().to(mean.dtype)          # the operator divides by the size of this batch
    return batch_norm_slopes(grad_out, input, mean, _variance(invstd), weight, sum_dy_xmu * invstd * share, sum_dy * share, 0.0)
