"""The averages of mean and variance that batch norm keeps of the batches it has seen."""
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.ops.arrays import single
from tritorch.ops.normalize import contiguous, scalar
from tritorch.ops.rows import half
from tritorch.shape import cdiv
from tritorch.tensor import empty

K = kernels("batchnorm")


@op(returns=("mean", "var"), aliasable=True)
def running_statistics(old_mean, old_var, new_mean, new_var, momentum=0.1, correction=1.0):
    """(1 - momentum) · old + momentum · new, of the mean and of the variance, the new one times `correction`: one kernel for both."""
    channels = old_mean.shape
    for p in (old_var, new_mean, new_var):
        fits = len(channels) == 1 and p.shape == channels
        check(fits, "batch_norm", f"statistics of shape {tuple(channels)}", None if fits else p.shape)
    return [(channels, old_mean.dtype, old_mean.device), (channels, old_var.dtype, old_var.device)]


@running_statistics.impl("cpu")
def running_statistics_cpu(mean, var, old_mean, old_var, new_mean, new_var, momentum, correction):
    old_mean, old_var, new_mean, new_var = [single(p) for p in (old_mean, old_var, new_mean, new_var)]
    mean[...] = old_mean + momentum * (new_mean - old_mean)
    var[...] = old_var + momentum * (new_var * correction - old_var)


@running_statistics.impl("cuda")
def running_statistics_cuda(mean, var, *statistics):
    *statistics, momentum, correction = statistics
    M, acc = mean.numel(), mean.dtype.compute
    targets = [t if t.is_contiguous() else empty(t.shape, t.dtype, t.device) for t in (mean, var)]
    block = tile(256, half(M))
    launch(K.running_kernel, (cdiv(M, block),), *targets, *[contiguous(v) for v in statistics], M, scalar(momentum, acc),
           scalar(correction, acc), ACC=getattr(K.tl, acc.name), BLOCK=block)
    for t, target in zip((mean, var), targets):
        if t is not target:
            t.copy_(target)


@running_statistics.formula
def running_statistics_formula(old_mean, old_var, new_mean, new_var, momentum, correction):
    return old_mean + momentum * (new_mean - old_mean), old_var + momentum * (new_var * correction - old_var)


@running_statistics.samples
def running_statistics_samples(make):
    yield make(5), make(5), make(5), make(5), 0.3, 1.25
    yield make(33), make(33), make(33), make(33)
    yield make(0), make(0), make(0), make(0)


running_statistics.errors(lambda make: [((make(3), make(2), make(3), make(3)), {}, RuntimeError, "expected statistics of shape (3,)")])
running_statistics.workloads(lambda make: [("256 channels", lambda: tuple([make(256) for _ in range(4)]), 6 * 4 * 256, 6 * 256)])
