"""Reductions and normalizations of what a mask leaves (see masked/__init__.py)."""
import functools
import math

from tritorch.dtype import types
from tritorch.errors import check
from tritorch.linalg import norms
from tritorch.ops import extremes, pointwise, quantile, reduce, scan
from tritorch.ops import logsumexp as sums_of_powers
from tritorch.ops import softmax as chances

__all__ = ["amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean", "median", "norm",
           "normalize", "prod", "softmax", "softmin", "std", "sum", "var"]


def counting(fn):
    """A function of `input` and `mask`, for a MaskedTensor with its own mask, too."""

    @functools.wraps(fn)
    def call(input, *args, mask=None, **named):
        own = getattr(input, "_masked_mask", None)
        if own is not None:
            input, mask = input.get_data(), own if mask is None else own & _whole(input, mask)
        return fn(input, *args, mask=mask, **named)

    return call


def _kept(input, mask, value):
    """The input with `value` in the place of what the mask leaves out."""
    return input if mask is None else input.masked_fill(~_whole(input, mask), value)


def _whole(input, mask):
    check(len(mask.shape) <= len(input.shape), "masked", "a mask that broadcasts to the input", mask.shape, input.shape, error=IndexError)
    return mask.bool().broadcast_to(input.shape)


@counting
def sum(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Σ of the elements that count."""
    return reduce.sum(_kept(input, mask, 0), dim, keepdim, dtype=dtype)


@counting
def prod(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The product of the elements that count."""
    return reduce.prod(_kept(input, mask, 1), dim, keepdim, dtype=dtype)


@counting
def cumsum(input, dim, *, dtype=None, mask=None):
    """Running sums of the elements that count."""
    return scan.cumsum(_kept(input, mask, 0), dim, dtype=dtype or input.dtype)


@counting
def cumprod(input, dim, *, dtype=None, mask=None):
    """Running products of the elements that count."""
    return scan.cumprod(_kept(input, mask, 1), dim, dtype=dtype or input.dtype)


@counting
def amax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The largest of the elements that count."""
    return extremes.amax(_kept(input, mask, extremes.lowest(input.dtype)), () if dim is None else dim, keepdim).to(dtype or input.dtype)


@counting
def amin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The smallest of the elements that count."""
    return extremes.amin(_kept(input, mask, extremes.highest(input.dtype)), () if dim is None else dim, keepdim).to(dtype or input.dtype)


@counting
def argmax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Where the largest of the elements that count is."""
    return extremes.argmax(_kept(input, mask, extremes.lowest(input.dtype)), dim, keepdim).to(dtype or input.dtype)


@counting
def argmin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Where the smallest of the elements that count is."""
    return extremes.argmin(_kept(input, mask, extremes.highest(input.dtype)), dim, keepdim).to(dtype or input.dtype)


@counting
def mean(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The mean of the elements that count, in a floating or complex dtype."""
    kind = dtype or input.dtype
    check(kind.has_gradients, "masked.mean", "a floating or complex dtype", kind, error=ValueError)
    return sum(input, dim, keepdim=keepdim, dtype=kind, mask=mask) / _count(input, dim, keepdim, mask)


def _count(input, dim, keepdim, mask):
    return reduce.sum(input.new_ones(input.shape, dtype=types.bool) if mask is None else _whole(input, mask), dim, keepdim)


@counting
def median(input, dim=-1, *, keepdim=False, dtype=None, mask=None):
    """The median of the elements that count; of nothing NaN, in a floating dtype alone."""
    exact = input.dtype.is_floating_point
    made = quantile.nanmedian(_kept(input if exact else input.float(), mask, math.nan), dim, keepdim).values
    if exact:
        return made
    check(not made.isnan().any().item(), "masked.median", "an element that counts in every row, for whole numbers", "a row of none",
          error=ValueError)
    return made.to(dtype or input.dtype)


@counting
def logsumexp(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """log Σ exp of the elements that count."""
    dims = tuple(range(input.ndim)) if dim is None else dim
    real = input if input.dtype.has_gradients else input.float()
    return sums_of_powers.logsumexp(_kept(real, mask, -math.inf), dims, keepdim).to(dtype or input.dtype)


def logaddexp(input, other, *, dtype=None, input_mask=None, other_mask=None):
    """log(exp(input) + exp(other)), without the operand that its mask leaves out."""
    return pointwise.logaddexp(_kept(input, input_mask, -math.inf), _kept(other, other_mask, -math.inf)).to(dtype or input.dtype)


@counting
def norm(input, ord=2.0, dim=None, *, keepdim=False, dtype=None, mask=None):
    """`linalg.vector_norm` of the elements that count. Of negative orders PyTorch takes those left out for zeros, but for -inf."""
    return norms.vector_norm(_kept(input, mask, math.inf if ord < 0 else 0), ord, dim, keepdim, dtype=dtype)


@counting
def normalize(input, ord, dim, *, eps=1e-12, dtype=None, mask=None):
    """input / max(norm, eps) along dim, 0 where an element does not count."""
    size = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _kept(input, mask, 0) / size.clamp(min=eps)


@counting
def softmax(input, dim, *, dtype=None, mask=None):
    """Softmax over the elements that count, 0 elsewhere."""
    return chances.softmax(_powers(input, mask, dtype), dim)


def _powers(input, mask, dtype):
    made = input if dtype is None else input.to(dtype)
    return _kept(made, mask, extremes.lowest(made.dtype))


@counting
def log_softmax(input, dim, *, dtype=None, mask=None):
    """The logarithm of softmax over the elements that count, -inf elsewhere."""
    return chances.log_softmax(_powers(input, mask, dtype), dim)


@counting
def softmin(input, dim, *, dtype=None, mask=None):
    """softmax(-input) over the elements that count, 0 elsewhere."""
    return chances.softmax(_powers(-input, mask, dtype), dim)


@counting
def var(input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
    """The variance of the elements that count: Σ |x - mean|² / max(count - correction, 0). `unbiased` is a correction of 1 (default) or 0;
    whole numbers give float32."""
    check(unbiased is None or correction is None, "masked.var", "unbiased or correction", "both", error=AssertionError)
    correction = (1 if unbiased is None else int(unbiased)) if correction is None else correction
    kind = dtype or (input.dtype if input.dtype.has_gradients else types.float32)
    wide = kind if kind.has_gradients else types.float32
    apart = input - mean(input, dim, keepdim=True, dtype=wide, mask=mask)
    total = sum(apart * apart.conj(), dim, keepdim=keepdim, dtype=wide, mask=mask)
    count = _count(input, dim, keepdim, mask).to(wide.to_real())
    return (total / (count - correction).clamp(min=0)).to(kind)


@counting
def std(input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
    """The square root of `var`."""
    return var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask).sqrt()
