"""Losses composed of other operators: likelihoods, margins and embeddings."""
import math

from tritorch.autograd.modes import no_grad
from tritorch.dtype import types
from tritorch.errors import check, explained, switches
from tritorch.nn._reduction import get_enum
from tritorch.nn.functional.distance import pairwise_distance
from tritorch.ops.activation import logsigmoid
from tritorch.ops.bounds import every, within
from tritorch.ops.compare import where
from tritorch.ops.composite import composite
from tritorch.ops.loss import legacy_reduction, reduced
from tritorch.ops.pointwise import minimum
from tritorch.tensor import Tensor


@composite
def poisson_nll_loss(input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"):
    """e^x - y x, or x - y log(x + eps) if not `log_input`; `full` adds Stirling's y log y - y + ½ log(2π y) where y > 1.

    >>> import tritorch as torch
    >>> torch.nn.functional.poisson_nll_loss(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]), reduction="none")
    tensor([1.0000, 0.7183])
    """
    switches("poisson_nll_loss", full=full)
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        large = target.masked_fill(target <= 1, 1)
        loss = loss + (large * large.log() - large + 0.5 * (2 * math.pi * large).log()).masked_fill(target <= 1, 0)
    return reduced(loss, legacy_reduction(size_average, reduce, reduction))


@explained
def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """½ (log v + (x - y)² / v), v = max(var, eps); `full` adds ½ log 2π.

    `var` is a number, or a tensor of the shape of x, of which one dim may be of size 1, and the last may be missing.

    >>> import tritorch as torch
    >>> torch.nn.functional.gaussian_nll_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
    tensor(1.)
    """
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = input.new_full(input.shape, var)
    elif bool(every(var < 0).any()):
        raise ValueError("var has negative entry/entries")
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.ndim != var.ndim or sum(m for n, m in zip(input.shape, var.shape) if n != m) != 1:
            raise ValueError("var is of incorrect size")
    var = var.clone()
    with no_grad():                                                      # the gradient is that of var itself
        var.clamp_(min=eps)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


@composite
def hinge_embedding_loss(input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"):
    """x where y = 1, max(0, margin - x) where y = -1.

    >>> import tritorch as torch
    >>> torch.nn.functional.hinge_embedding_loss(torch.tensor([0.5, 0.25]), torch.tensor([1.0, -1.0]), reduction="none")
    tensor([0.5000, 0.7500])
    """
    check(input.dtype.is_floating_point, "hinge_embedding_loss", "an input of a floating dtype", input.dtype)
    loss = where(target == 1, 0.0, (float(margin) - input).clamp(min=0)) + where(target == -1, 0.0, input)
    return reduced(loss, legacy_reduction(size_average, reduce, reduction))


@composite
def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """log(1 + e^(-y x)) for y = ±1, in the dtype of x."""
    check(input.dtype.is_floating_point, "soft_margin_loss", "an input of a floating dtype", input.dtype)
    return reduced(-logsigmoid(target.to(input.dtype) * input), legacy_reduction(size_average, reduce, reduction))


@composite
def margin_ranking_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """max(0, -y (x1 - x2) + margin) for y = ±1.

    >>> import tritorch as torch
    >>> torch.nn.functional.margin_ranking_loss(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([1.0]))
    tensor(2.)
    """
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError("margin_ranking_loss: expected input1, input2 and target of as many dims, got shapes "
                           f"{tuple(input1.shape)}, {tuple(input2.shape)} and {tuple(target.shape)}")
    return reduced((-target * (input1 - input2) + float(margin)).clamp(min=0), legacy_reduction(size_average, reduce, reduction))


@composite
def cosine_embedding_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """1 - cos(x1, x2) where y = 1, max(0, cos(x1, x2) - margin) where y = -1; x (N, D) and y (N), or x (D) and y a scalar.
    cos(a, b) = a · b / sqrt((|a|² + 1e-12) (|b|² + 1e-12)).

    >>> import tritorch as torch
    >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> torch.nn.functional.cosine_embedding_loss(x, y, torch.tensor([1.0]))
    tensor(1.)
    """
    if target.ndim + 1 != input1.ndim or input1.ndim != input2.ndim or target.ndim > 1:
        raise RuntimeError(f"cosine_embedding_loss: expected inputs of 2 dims with a target of 1, or 1 with 0, got {input1.shape}, "
                           f"{input2.shape} and {target.shape}")
    squares = [(x * x).sum(-1) + 1e-12 for x in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / (squares[0] * squares[1]).sqrt()
    loss = (1 - cosine).masked_fill(target != 1, 0) + (cosine - float(margin)).clamp(min=0).masked_fill(target != -1, 0)
    return reduced(loss, legacy_reduction(size_average, reduce, reduction))


@composite
def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
    """Σ_{i ≠ y} max(0, margin - x[y] + x[i])^p / C, times weight[y], for x (N, C) or (C) and y (N) or a scalar."""
    get_enum(reduction := legacy_reduction(size_average, reduce, reduction))
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.ndim != 1:
        raise ValueError("weight must be one-dimensional")
    if input.ndim < 2:                                                   # one sample; without a dim one class, of which nothing is left
        input = input.reshape(*[1] * target.ndim, -1)
    check(target.dtype is types.int64, "multi_margin_loss", "class indices of int64", target.dtype)
    index = target.unsqueeze(-1)
    loss = (float(margin) - input.gather(-1, index) + input).relu() ** p
    if weight is not None:
        loss = loss * weight[target].unsqueeze(-1)
    return reduced(loss.scatter(-1, index, 0.0).sum(-1) / input.shape[-1], reduction)


@composite
def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Σ max(0, 1 - (x[y_j] - x[i])) / C over the classes y_j before the first -1 and the classes i that are not among them."""
    get_enum(reduction := legacy_reduction(size_average, reduce, reduction))
    if input.shape != target.shape or input.ndim > 2:
        raise RuntimeError(f"multilabel_margin_loss: expected input and target of the same shape and at most 2 dims, got {input.shape} "
                           f"and {target.shape}")
    check(target.dtype is types.int64, "multilabel_margin_loss", "class indices of int64", target.dtype)
    if not input.ndim:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
    target = within(target, -1, input.shape[-1] - 1, "multilabel_margin_loss", "class indices, or -1 after them")
    listed = (target < 0).cumsum(-1) == 0
    classes = where(listed, target, 0)
    is_target = target.new_zeros(target.shape).scatter_add(-1, classes, listed.to(target.dtype)) > 0
    pairs = (1 - input.gather(-1, classes).unsqueeze(-1) + input.unsqueeze(-2)).relu()
    counted = listed.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    return reduced(pairs.masked_fill(~counted, 0).sum((-2, -1)) / input.shape[-1], reduction)


@explained
def multilabel_soft_margin_loss(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """-(y log σ(x) + (1 - y) log σ(-x)), times `weight`, the mean over the classes (the last dim)."""
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    if weight is not None:
        loss = loss * weight
    return reduced(loss.mean(-1), legacy_reduction(size_average, reduce, reduction))


@composite
def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None, reduce=None,
                        reduction="mean"):
    """max(0, d(a, p) - d(a, n) + margin), d the p-norm of the difference; with `swap` d(a, n) is the smaller of itself and d(p, n).

    >>> import tritorch as torch
    >>> anchor, positive, negative = torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[0.3, 0.4]])
    >>> round(torch.nn.functional.triplet_margin_loss(anchor, positive, negative).item(), 4)
    0.5
    """
    switches("triplet_margin_loss", swap=swap)

    def distance(x, y):
        return pairwise_distance(x, y, p, eps)

    return _triplet(anchor, positive, negative, distance, margin, swap, legacy_reduction(size_average, reduce, reduction))


@explained
def triplet_margin_with_distance_loss(anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"):
    """`triplet_margin_loss` with a distance of your own: a function of two tensors."""
    return _triplet(anchor, positive, negative, distance_function or pairwise_distance, margin, swap, reduction)


def _triplet(anchor, positive, negative, distance, margin, swap, reduction):
    if margin <= 0:
        raise ValueError(f"triplet_margin_loss: expected margin > 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError("triplet_margin_loss: expected anchor, positive and negative of as many dims, got "
                           f"{anchor.ndim}, {positive.ndim} and {negative.ndim}")
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return reduced((margin + near - far).clamp(min=0), reduction)
