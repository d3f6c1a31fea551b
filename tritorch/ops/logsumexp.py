"""The logarithm of a sum of exponentials, and of a running one."""
import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create, scan
from tritorch.ops.arrays import single
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.reduce import bad_dims, dims_of, restore, sweeps
from tritorch.ops.rows import kept
from tritorch.pairs import HOLOMORPHIC
from tritorch.shape import wrap_dim


@op
def logsumexp(input, dim, keepdim=False):
    """Logarithm of a sum of exponentials over `dim`, without overflow.

    out = log Σ exp(x). Integers become the default floating type. Of complex numbers the imaginary part is from -π to π.

    >>> import tritorch as torch; torch.tensor([1000.0, 1000.0]).logsumexp(0)
    tensor(1000.6932)
    """
    return kept(input.shape, dims_of(dim, input.ndim, "logsumexp"), keepdim), types.promote_float(input), input.device


@logsumexp.impl("cpu")
def logsumexp_cpu(out, x, dim, keepdim):
    dims = dims_of(dim, x.ndim, "logsumexp")
    x = single(x) if x.dtype.kind in "fV" else x.astype(out.dtype, copy=False)
    top = np.max(x.real, axis=dims, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=dims, keepdims=True)) + top
    out[...] = total.reshape(out.shape)


@logsumexp.impl("cuda")
def logsumexp_cuda(out, x, dim, keepdim):
    monoid = Monoid("logsumexp", "logsumexp", "logsumexp", (None, None))
    reduce_rows([out], [x], dims_of(dim, x.ndim, "logsumexp"), keepdim, monoid, out.dtype.compute)


logsumexp.complex = HOLOMORPHIC


@logsumexp.grad("input")
def logsumexp_grad(g, input, out, dim, keepdim):
    return restore(g, input.ndim, dim, keepdim) * (input - restore(out, input.ndim, dim, keepdim)).exp()


@logsumexp.samples
def logsumexp_samples(make):
    yield make(3, 5), 1
    yield make(2, 3, 7), (0, -1)
    yield make(4, 9), 0, True
    yield make(37, 43), -1
    yield make(), 0
    yield make(3, 0, 2), 2


bad_dims(logsumexp)
sweeps(logsumexp)


# ------------------------------------------------------------------ of a running sum
@op
def logcumsumexp(input, dim):
    """Logarithm of the running sum of exponentials along `dim`, without overflow.

    out_i = log(exp(x_0) + … + exp(x_i)).

    >>> import tritorch as torch; torch.tensor([1000.0, 1000.0]).logcumsumexp(0)
    tensor([1000.0000, 1000.6932])
    """
    wrap_dim(dim, input.ndim, "logcumsumexp")
    check(input.dtype.has_gradients, "logcumsumexp", "a floating dtype", input.dtype, use="x.float()")
    return input.shape, types.promote_float(input), input.device


@logcumsumexp.impl("cpu")
def logcumsumexp_cpu(out, x, dim):
    if x.dtype.kind == "c" and x.ndim:
        _complex_logcumsumexp(np.moveaxis(out, dim, 0), np.moveaxis(x, dim, 0))
    else:
        out[...] = np.logaddexp.accumulate(single(x), axis=dim) if x.ndim else x


def _complex_logcumsumexp(out, x):
    """Along the first dim: the sums relative to the largest real part so far, which is finite."""
    most = np.finfo(x.dtype).max
    top, total = np.full(x.shape[1:], -most, x.real.dtype), np.zeros(x.shape[1:], x.dtype)
    for k, row in enumerate(x):
        later = np.maximum(top, np.nan_to_num(row.real, nan=-most))
        total = total * np.exp(top - later) + np.where(np.isneginf(row.real), 0, np.exp(row - later))
        top = later
        out[k] = np.where(total == 0, -np.inf, np.log(total) + top)


@logcumsumexp.impl("cuda")
def logcumsumexp_cuda(out, x, dim):
    d, name = wrap_dim(dim, x.ndim, "logcumsumexp"), "logsumexp"
    scan.scan_rows([out], [x], d, name, name, name, (None, None), out.dtype.compute)


logcumsumexp.complex = HOLOMORPHIC


@logcumsumexp.grad("input")
def logcumsumexp_grad(g, input, out, dim):
    # Σ_j≥i g_j · exp(x_i - out_j) = exp(x_i - out_i) · t_i with t_i = g_i + exp(out_i - out_(i+1)) · t_(i+1): out grows, no overflow
    if not input.ndim or not input.shape[dim]:
        return g
    last = input.shape[dim] - 1
    this, following = out.narrow(dim, 0, last), out.narrow(dim, 1, last)
    ratio = (this - following).exp().masked_fill(this == following, 1)                     # also where both are infinite
    return (input - out).exp() * scan.linear_recurrence(scan.shifted(ratio, create.zeros_like(out.narrow(dim, last, 1)), dim), g, dim, True)


logcumsumexp.samples(scan.sample_scans)
scan.bad_dim(logcumsumexp)
scan.sweeps(logcumsumexp)
