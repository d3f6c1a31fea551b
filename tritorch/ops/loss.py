"""Losses: cross entropy as fused operators, binary cross entropy elementwise, the others composed of operators."""
import warnings

from tritorch.autograd.places import stacklevel
from tritorch.dtype import promote, types
from tritorch.errors import check, refuse_misuse
from tritorch.ops import loss_terms
from tritorch.ops.bounds import every
from tritorch.ops.composite import composite, result_dtype
from tritorch.ops.cross_entropy import class_dim, cross_entropy_rows, unfit, weighted_mean
from tritorch.ops.distances import loss_of_all
from tritorch.ops.elementwise import no_bools
from tritorch.ops.nll import nll_rows
from tritorch.ops.softmax import log_softmax
from tritorch.pairs import refuse


# ------------------------------------------------------------------ how losses are reduced
def legacy_reduction(size_average, reduce, reduction="mean"):
    """The reduction meant by PyTorch's older flags, where one of them is given."""
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is not None and not reduce else "sum" if size_average is not None and not size_average else "mean"


def reduced(loss, reduction):
    """The losses of all elements, their mean or their sum."""
    check(reduction in ("none", "mean", "sum"), "loss", "a reduction among none, mean, sum", repr(reduction), error=ValueError)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def all_terms(kind, x, y, bend, reduction):
    """The terms of a loss in loss_terms.KINDS, reduced: in one pass where they are not to be broadcast."""
    if reduction in ("mean", "sum") and x.shape == y.shape and x.dtype.is_floating_point and y.dtype.is_floating_point:
        return loss_of_all(x, y, kind, float(bend), reduction == "mean")
    return reduced(loss_terms.each(kind, x, y, bend), reduction)


# ------------------------------------------------------------------ against classes
def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
    """Cross entropy of logits (N, C, …) against class indices (N, …) or class probabilities (N, C, …).

    -w_t · log softmax(x)_t, or -Σ w_c · t_c · log softmax(x)_c. The mean over indices is weighted by w_t. Label smoothing mixes
    the target with the uniform distribution (Szegedy et al., Rethinking the Inception Architecture, 2016).

    >>> import tritorch as torch; from tritorch.ops.loss import cross_entropy
    >>> cross_entropy(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.6931)
    """
    try:
        reduction = legacy_reduction(size_average, reduce, reduction)
        if target.dtype.is_floating_point:
            check(ignore_index < 0, "cross_entropy", "no ignore_index with class probabilities", ignore_index)
            return soft_cross_entropy(input, target, weight, reduction, label_smoothing)
        target = of_one_sample(input, target)
        loss, target_weight, _ = cross_entropy_rows(input, target, weight, ignore_index, label_smoothing)
        loss = weighted_mean(loss, target_weight)[0] if reduction == "mean" else reduced(loss, reduction)
        return loss.to(result_dtype("cross_entropy", input))  # half types are read as they are: logits can be the largest tensor
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def of_one_sample(input, target):
    """The class of logits without a batch dim may come in a vector of one."""
    return target.reshape(()) if input.ndim == 1 and target.shape == (1,) else target


@composite
def soft_cross_entropy(input, target, weight, reduction, label_smoothing):
    """Cross entropy against class probabilities."""
    if target.shape != input.shape:
        raise unfit("cross_entropy", input, target, input.shape, "class probabilities")
    dim = class_dim(input)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / max(input.shape[dim], 1)
    terms = log_softmax(input, dim) * target
    if weight is not None:
        terms = terms * weight.reshape([-1 if d == dim else 1 for d in range(input.ndim)])
    loss = -terms.sum(dim)
    count = loss.numel() if input.shape[dim] else 0                      # of no classes PyTorch's mean is NaN
    return loss.sum() / count if reduction == "mean" else reduced(loss, reduction)


@composite
def nll_loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    """Negative log-likelihood: -w_t · x_t for log-probabilities (N, C, …) and class indices (N, …).

    >>> import tritorch as torch; from tritorch.ops.loss import nll_loss
    >>> nll_loss(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([0, 1]))
    tensor(2.5000)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    loss, target_weight = nll_rows(input, of_one_sample(input, target), weight, ignore_index)
    loss = weighted_mean(loss, target_weight)[0] if reduction == "mean" else reduced(loss, reduction)
    return loss.to(result_dtype("nll_loss", input))


# ------------------------------------------------------------------ binary cross entropy
@composite
def binary_cross_entropy(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """-w · (y log x + (1 - y) log(1 - x)) for probabilities x; logarithms stop at -100.

    >>> import tritorch as torch; from tritorch.ops.loss import binary_cross_entropy
    >>> binary_cross_entropy(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    name = "binary_cross_entropy"
    check(input.shape == target.shape, name, f"targets of shape {tuple(input.shape)}", target.shape, error=ValueError)
    check(input.dtype is target.dtype, name, "input and target of one dtype", input.dtype, target.dtype)
    check(input.dtype.is_floating_point, name, "a floating dtype", input.dtype, error=NotImplementedError)
    for x in map(every, (input, target)):
        if x.device.type == "cpu" and x.numel():
            check(0 <= x.array.min() and x.array.max() <= 1, name, "probabilities from 0 to 1", "others")
    return _weighted("chances", input, target, weight, legacy_reduction(size_average, reduce, reduction))


def _weighted(kind, input, target, weight, reduction):
    """Losses times weights; they keep their dtype, as in PyTorch, which multiplies in place."""
    if weight is None:
        return all_terms(kind, input, target, 0.0, reduction)
    loss = loss_terms.each(kind, input, target, 0.0)
    return reduced((loss * weight).to(loss.dtype), reduction)


@composite
def binary_cross_entropy_with_logits(input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
    """Binary cross entropy of σ(x), without overflow: w · ((1 - y) x - (1 + (p - 1) y) log σ(x)), in the dtype of y.

    >>> import tritorch as torch; from tritorch.ops.loss import binary_cross_entropy_with_logits
    >>> binary_cross_entropy_with_logits(torch.zeros(2), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    name = "binary_cross_entropy_with_logits"
    check(input.shape == target.shape, name, f"targets of shape {tuple(input.shape)}", target.shape, error=ValueError)
    check(target.dtype.is_floating_point, name, "targets of a floating dtype", target.dtype)
    reduction = legacy_reduction(size_average, reduce, reduction)
    if weight is None and pos_weight is None:
        return all_terms("logits", input, target, 0.0, reduction).to(target.dtype)
    loss = loss_terms.logit_terms(input, target, 1.0 if pos_weight is None else pos_weight).to(target.dtype)
    return reduced(loss if weight is None else (loss * weight).to(loss.dtype), reduction)


# ------------------------------------------------------------------ distances
def _as_numbers(input, target):
    """Two tensors of different dtypes, of which one may be of bools, as they are subtracted."""
    dtype = promote(input, target)
    return (input.to(dtype), target.to(dtype)) if types.bool in (input.dtype, target.dtype) else (input, target)


def distance(kind, input, target, reduction, size_average, reduce, weight, bend=0.0):
    """A loss by its name in loss_terms.KINDS."""
    if input.shape != target.shape:
        warnings.warn(f"target of shape {tuple(target.shape)} is broadcast with input of shape {tuple(input.shape)}: "
                      "rarely what a loss is meant to do",
                      UserWarning, stacklevel=3)
    reduction = legacy_reduction(size_average, reduce, reduction)
    if kind == "l1" and promote(input, target).is_complex:
        loss = (input - target).abs()
        return reduced(loss, reduction) if weight is None else (
            (loss * weight).sum() / weight.expand_as(loss).sum() if reduction == "mean" else reduced(loss * weight, reduction))
    if weight is None:
        loss = all_terms(kind, input, target, bend, reduction)
        return loss.to(input.dtype) if kind == "huber" else loss
    loss = loss_terms.each(kind, input, target, bend)
    loss = loss.to(input.dtype) if kind == "huber" else loss
    return (loss * weight).sum() / weight.expand_as(loss).sum() if reduction == "mean" else reduced(loss * weight, reduction)


@composite
def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """(x - y)². A weighted mean divides by the sum of the weights.

    >>> import tritorch as torch; from tritorch.ops.loss import mse_loss
    >>> mse_loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]))
    tensor(2.5000)
    """
    if input.dtype is not target.dtype:
        input, target = _as_numbers(input, target)
    if input.dtype.is_complex:
        refuse("mse_loss", input)
    return distance("mse", input, target, reduction, size_average, reduce, weight)


@composite
def l1_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """|x - y|. A weighted mean divides by the sum of the weights.

    >>> import tritorch as torch; from tritorch.ops.loss import l1_loss
    >>> l1_loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]))
    tensor(1.5000)
    """
    no_bools("sub", input, target)
    return distance("l1", input, target, reduction, size_average, reduce, weight)


@composite
def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """½ (x - y)² / β where |x - y| < β, else |x - y| - ½ β.

    >>> import tritorch as torch; from tritorch.ops.loss import smooth_l1_loss
    >>> smooth_l1_loss(torch.tensor([1.5, 0.0]), torch.tensor([0.0, 0.0]), reduction="none")
    tensor([1., 0.])
    """
    check(beta >= 0, "smooth_l1_loss", "beta of at least 0", beta)
    dtype = promote(input, target)
    check(dtype.is_floating_point, "smooth_l1_loss", "a floating dtype", dtype, error=NotImplementedError)
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    return distance("smooth_l1", *_as_numbers(input, target), reduction, size_average, reduce, None, beta)


@composite
def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """½ (x - y)² where |x - y| ≤ δ, else δ (|x - y| - ½ δ), in the dtype of x. Huber, Robust Estimation of a Location Parameter, 1964.

    >>> import tritorch as torch; from tritorch.ops.loss import huber_loss
    >>> huber_loss(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 0.0]), reduction="none", delta=2.0)
    tensor([4.0000, 0.5000])
    """
    check(delta > 0, "huber_loss", "delta above 0", delta)
    check(input.dtype.is_floating_point, "huber_loss", "an input of a floating dtype", input.dtype)
    return distance("huber", *_as_numbers(input, target), reduction, None, None, weight, delta)


@composite
def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    """Kullback-Leibler divergence terms y (log y - x) for log-probabilities x; "batchmean" divides the sum by the batch.

    >>> import tritorch as torch; from tritorch.ops.loss import kl_div
    >>> kl_div(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.0, 1.0]]), reduction="batchmean")
    tensor(0.6931)
    """
    floating = input.dtype.is_floating_point and target.dtype.is_floating_point
    check(floating, "kl_div", "an input and a target of floating dtypes", input.dtype, target.dtype)
    reduction, batch = legacy_reduction(size_average, reduce, reduction), input.shape[0] if input.ndim else 1
    if reduction == "mean":
        warnings.warn("kl_div: reduction='mean' divides by the number of elements; 'batchmean' divides by the batch, as a divergence does",
                      stacklevel=stacklevel())
    plain = "sum" if reduction == "batchmean" else reduction
    if log_target:
        loss = reduced(target.exp() * (target - input), plain)
    else:
        loss = all_terms("divergence", input, target, 0.0, plain)
    return loss / batch if reduction == "batchmean" else loss
