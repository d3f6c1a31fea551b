"""What samples that share a call of layer or RMS norm give to their own weights and biases: sums over the rows of each."""
import math

import numpy as np

from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.ops.arrays import single
from tritorch.ops.normalize import affine_sums, norm_sizes


@op(returns=("g_weight", "g_bias"))
def norm_sums(g, input, mean, rstd, lead):
    """Σ g·x̂ and Σ g over the rows of every sample, x̂ = (x - mean) · rstd, in the dtype computed in.

    g and input are (samples…, rows…, features…), mean and rstd (samples…, rows…); the first `lead` dims are those of samples. Without a
    mean it is RMS norm: x̂ = x · rstd and no bias, whose sum is 0. Raises RuntimeError where there are no dims of rows.

    >>> import tritorch as torch
    >>> x = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])               # 2 samples of 2 rows
    >>> norm_sums(torch.ones(2, 2, 1), x, torch.zeros(2, 2), torch.ones(2, 2), 1)[0]
    tensor([[3.],
            [7.]])
    """
    rows = len(rstd.shape)
    check(0 <= lead < rows, "norm_sums", f"fewer than {rows} dims of samples", lead)
    fits = g.shape == input.shape and input.shape[:rows] == rstd.shape and (mean is None or mean.shape == rstd.shape)
    check(fits, "norm_sums", "g of the shape of the input, and statistics of its rows", g.shape, input.shape, rstd.shape)
    promise = (*input.shape[:lead], *input.shape[rows:]), input.dtype.compute, input.device
    return [promise, promise]


@norm_sums.impl("cpu")
def norm_sums_cpu(gw, gb, g, x, mean, rstd, lead):
    form = math.prod(x.shape[:lead]), math.prod(x.shape[lead:rstd.ndim]), math.prod(x.shape[rstd.ndim:])
    g, xhat, rstd = [single(a).reshape(sizes) for a, sizes in ((g, form), (x, form), (rstd, (*form[:2], 1)))]
    xhat = (xhat if mean is None else xhat - mean.reshape(rstd.shape)) * rstd
    gw[...] = np.einsum("srf,srf->sf", g, xhat).reshape(gw.shape)
    gb[...] = 0 if mean is None else g.sum(1).reshape(gb.shape)


@norm_sums.impl("cuda")
def norm_sums_cuda(gw, gb, g, x, mean, rstd, lead):
    affine_sums(gw, gb, g, x, mean, rstd, tuple(range(lead, rstd.ndim)))
    if mean is None:
        gb.zero_()


@norm_sums.formula
def norm_sums_formula(g, input, mean, rstd, lead):
    dims, rest = tuple(range(lead, rstd.ndim)), (1,) * (input.ndim - rstd.ndim)
    xhat = (input if mean is None else input - mean.reshape(*mean.shape, *rest)) * rstd.reshape(*rstd.shape, *rest)
    return (g * xhat).sum(dims), g.sum(dims) * (mean is not None)


@norm_sums.samples
def norm_sums_samples(make):
    yield make(2, 3, 7), make(2, 3, 7), make(2, 3), make(2, 3), 1
    yield make(2, 3, 4, 5), make(2, 3, 4, 5), make(2, 3), make(2, 3), 1
    yield make(2, 3, 4, 5), make(2, 3, 4, 5), None, make(2, 3, 4), 2
    yield make(37, 9), make(37, 9), make(37), make(37), 0
    yield make(2, 0, 3), make(2, 0, 3), make(2, 0), make(2, 0), 1


@norm_sums.errors
def norm_sums_errors(make):
    yield (make(2, 3), make(2, 3), None, make(2), 1), {}, RuntimeError, "expected fewer than 1 dims of samples"
    yield (make(2, 3, 4), make(2, 3), None, make(2), 0), {}, RuntimeError, "expected g of the shape of the input"


norm_sums.workloads(lambda make: norm_sizes(make, lambda make, m, n: (
    make(64, m // 64, n), make(64, m // 64, n), make(64, m // 64).float(), make(64, m // 64).float(), 1), 2))
