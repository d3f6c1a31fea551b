"""Slices of a tensor held within a norm."""
import operator

from tritorch.errors import check, explained
from tritorch.memory_format import contiguous_format
from tritorch.ops import compare, copy
from tritorch.ops.statistics import vector_norm
from tritorch.shape import wrap_dim


@explained
def renorm(input, p, dim, maxnorm, *, out=None):
    """Every slice along `dim` whose p-norm is above maxnorm, scaled down to it: x · maxnorm / (‖x‖ + 1e-7).

    The input has at least 2 dims and a floating dtype, p is above 0 and maxnorm not below. Raises RuntimeError where it is not so.

    >>> import tritorch as torch; torch.renorm(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 2, 0, 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    check(p > 0, "renorm", "a norm of order p above 0", p)
    check(maxnorm >= 0, "renorm", "maxnorm of at least 0", maxnorm)
    check(input.ndim >= 2, "renorm", "an input of at least 2 dims", input.ndim)
    kept = wrap_dim(operator.index(dim), input.ndim, "renorm")
    wide = input.dtype.compute
    norms = vector_norm(input, p, tuple(d for d in range(input.ndim) if d != kept), True, dtype=wide if wide is not input.dtype else None)
    scale = compare.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1.0)
    return copy.deliver((input * scale).to(input.dtype, memory_format=contiguous_format).contiguous(), out)


def renorm_(input, p, dim, maxnorm):
    """`renorm` written into the tensor itself."""
    return input.copy_(renorm(copy.clone(input), p, dim, maxnorm))
