"""Batch norm by the statistics of the batches of all processes: what `SyncBatchNorm` does in training."""
from tritorch import distributed as dist
from tritorch.autograd.engine import grad
from tritorch.autograd.function import Function
from tritorch.autograd.modes import enable_grad, is_grad_enabled, no_grad
from tritorch.ops.batchnorm import batch_norm_apply, batch_norm_formula, broad, others
from tritorch.ops.batchnorm_parts import batch_norm_moments, batch_norm_slopes, batch_norm_sums
from tritorch.ops.create import full, zeros
from tritorch.ops.shaping import cat
from tritorch.tensor import empty


def group_of(group):
    """The group, or that of all processes where there is one."""
    return dist.group.WORLD if group is None and dist.is_initialized() else group


@no_grad()
def statistics_of_all(x, group):
    """Mean and biased variance of every channel over the batches of all ranks, and how many values these are, without a wait.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    kind, channels = x.dtype.compute, x.shape[1]
    if x.numel():
        mine = cat([*batch_norm_moments(x), full((1,), x.numel() // channels, dtype=kind, device=x.device)])
    else:
        mine = zeros(2 * channels + 1, dtype=kind, device=x.device)
    everyones = empty((group.size() * mine.numel(),), kind, x.device)
    dist.all_gather_into_tensor(everyones, mine, group=group)
    mean, var, count = everyones.reshape(group.size(), -1).split([channels, channels, 1], 1)
    share = count / count.sum()
    of_all = (share * mean).sum(0)
    return of_all, (share * (var + (mean - of_all).square())).sum(0), count.sum()


class Normalized(Function):
    """Batch norm with statistics of several batches, which depend on the inputs of all."""

    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, count, eps, group):
        ctx.save_for_backward(x, weight, bias, mean, var, count)
        ctx.eps, ctx.group = eps, group
        return batch_norm_apply(x, mean, var, weight, bias, eps)

    @staticmethod
    def backward(ctx, g):
        x, weight, bias, mean, var, count = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if is_grad_enabled():
            return *differentiable(g, (x, weight, bias), wanted, count, ctx.eps, ctx.group), *[None] * 5
        slope, shift = batch_norm_sums(g, x, mean, var, ctx.eps)
        gx = None
        if wanted[0]:
            sums = cat([slope, shift])
            dist.all_reduce(sums, group=ctx.group)
            sums = sums * ((x.numel() // x.shape[1]) / count)            # the operator divides by the size of this batch alone
            gx = batch_norm_slopes(g, x, mean, var, weight, *sums.chunk(2), ctx.eps)
        return gx, slope if wanted[1] else None, shift if wanted[2] else None, *[None] * 5


def differentiable(g, inputs, wanted, count, eps, group):
    """The gradients with a graph of their own, through collectives that have gradients."""
    all_reduce = dist.nn.functional.all_reduce
    with enable_grad():
        x, weight, bias = inputs
        values, dims = x.to(x.dtype.compute), others(x)
        mean = all_reduce(values.sum(dims), group=group) / count
        var = all_reduce((values - broad(mean, x.ndim)).square().sum(dims), group=group) / count
        out = batch_norm_formula(values, mean, var, weight, bias, eps).to(x.dtype)
        chosen = [v for v, is_wanted in zip(inputs, wanted) if is_wanted]
        found = iter(grad(out, chosen, g, create_graph=True))
    return [next(found) if is_wanted else None for is_wanted in wanted]
