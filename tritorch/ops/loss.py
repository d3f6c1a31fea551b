"""Losses: cross entropy as fused operators, binary cross entropy elementwise, the others composed of operators."""
import warnings

import numpy as np

from tritorch.autograd.modes import state
from tritorch.autograd.snapshot import expendable
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.activation import log_sigmoid
from tritorch.ops.compare import where
from tritorch.ops.composite import composite, result_dtype
from tritorch.ops.create import arange
from tritorch.ops.elementwise import binary
from tritorch.ops.normalize import contiguous, scalar
from tritorch.ops.pointwise import xlogy
from tritorch.ops.reduce import single, sums_along
from tritorch.ops.rows import chunk_of, half, rows, splits
from tritorch.ops.softmax import log_softmax
from tritorch.shape import cdiv, next_power_of_2

K = kernels("loss")


# ------------------------------------------------------------------ how losses are reduced
def legacy_reduction(size_average, reduce, reduction="mean"):
    """The reduction meant by PyTorch's older flags, where one of them is given."""
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is False else "sum" if size_average is False else "mean"


def reduced(loss, reduction):
    """The losses of all elements, their mean or their sum."""
    check(reduction in ("none", "mean", "sum"), "loss", "a reduction among none, mean, sum", repr(reduction), error=ValueError)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


# ------------------------------------------------------------------ cross entropy against class indices
def class_dim(x):
    """Classes are dim 1, or dim 0 of a single sample."""
    return min(x.ndim, 2) - 1


@op(returns=("loss", "target_weight", "lse"))
def cross_entropy_rows(input, target, weight=None, ignore_index=-100, label_smoothing=0.0):
    """Cross entropy of every sample, the weight of its target (0 where ignored), and the log-sum-exp of its logits.

    loss = (1 - s) · w_t · (lse - x_t) + s / C · Σ w_c · (lse - x_c). Only `loss` has a gradient. Half types give float32.
    """
    name, dim = "cross_entropy", class_dim(input)
    check(input.ndim > 0 and input.dtype.is_floating_point, name, "floating logits of at least one dim", input.dtype, input.shape)
    rest = (*input.shape[:dim], *input.shape[dim + 1:])
    check(target.shape == rest, name, f"targets of shape {rest}", target.shape)
    check(target.dtype in (types.int64, types.int32, types.uint8), name, "class indices or probabilities", target.dtype)
    fits = weight is None or weight.shape == (input.shape[dim],)
    check(fits, name, f"a weight for each of {input.shape[dim]} classes", None if fits else weight.shape)
    check(0 <= label_smoothing <= 1, name, "label_smoothing in [0, 1]", label_smoothing)
    row = rest, input.dtype.compute, input.device
    return [row, row, row]


@cross_entropy_rows.impl("cpu")
def cross_entropy_cpu(loss, target_weight, lse, x, target, weight, ignore_index, label_smoothing):
    dim, x = class_dim(x), single(x)
    counts = target != ignore_index
    if not (counts & (target >= 0) & (target < x.shape[dim]) == counts).all():
        wrong = target[counts & ((target < 0) | (target >= x.shape[dim]))].flat[0]
        raise IndexError(f"cross_entropy: expected class indices in [0, {x.shape[dim] - 1}], got {wrong}")
    at = np.where(counts, target, 0).astype(np.int64)
    top = x.max(axis=dim, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    e = np.subtract(x, top)
    np.exp(e, out=e)
    total = np.log(sums_along(e, dim))
    lse[...] = (total + top).reshape(lse.shape)
    target_weight[...] = counts if weight is None else np.where(counts, weight[at], 0)
    picked = np.take_along_axis(x, np.expand_dims(at, dim), dim)
    loss[...] = np.where(counts, target_weight * (total + (top - picked)).reshape(loss.shape), 0)
    if label_smoothing:
        w = along(weight, x, dim) if weight is not None else x.dtype.type(1)
        smooth = ((np.expand_dims(lse, dim) - x) * w).sum(axis=dim)
        loss[...] = np.where(counts, (1 - label_smoothing) * loss + label_smoothing / x.shape[dim] * smooth, 0)


def along(weight, x, dim):
    """Class weights in the shape of x."""
    return weight.astype(x.dtype).reshape([-1 if d == dim else 1 for d in range(x.ndim)])


def loss_blocks(M, N, across):
    """(BLOCK_M, BLOCK_N): long rows alone, short ones together; neighbouring rows side by side where those are contiguous."""
    width = min(next_power_of_2(N), 32 if across else 4096)
    height = min(next_power_of_2(M), 64) if across else max(min(next_power_of_2(M), 2048 // width), 1)
    return tile(height, min(half(M), 512)), tile(width, min(half(N), 2048))


@cross_entropy_rows.impl("cuda")
def cross_entropy_cuda(loss, target_weight, lse, x, target, weight, ignore_index, label_smoothing):
    strides = [t.strides for t in (loss, target_weight, lse, x, target)]
    M, shape_m, stride_m, N, _, (stride_xn,), across, _ = rows(x.shape, (class_dim(x),), *strides)
    BLOCK_M, BLOCK_N = loss_blocks(M, N, across)
    acc = x.dtype.compute
    launch(K.cross_entropy_kernel, (cdiv(M, BLOCK_M),), loss, target_weight, lse, x, target, contiguous(weight), shape_m, stride_m,
           stride_xn, M, N, ignore_index, scalar(label_smoothing, acc), SMOOTH=label_smoothing > 0, ACC=getattr(K.tl, acc.name),
           BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=8 if BLOCK_N == 4096 else 4)


@cross_entropy_rows.grad("input")
def cross_entropy_grad(g_loss, input, target, weight, lse, ignore_index, label_smoothing):
    if state.grad:
        lse = input.logsumexp(class_dim(input)).to(lse.dtype)
    values = g_loss, input, target, lse, weight, ignore_index, label_smoothing
    return cross_entropy_backward.into(input.detach(), *values) if expendable(input) else cross_entropy_backward(*values)


@op(aliasable=True)                                                      # so that the gradient can take the place of the logits
def cross_entropy_backward(gradient, input, target, lse, weight=None, ignore_index=-100, label_smoothing=0.0):
    """The gradient of cross entropy with respect to the logits, from that of every sample's loss.

    gx_c = g · (exp(x_c - lse) · ((1 - s) · w_t + s / C · Σ w) - (1 - s) · w_t · [c = t] - s / C · w_c)
    """
    return input.shape, input.dtype, input.device


@cross_entropy_backward.impl("cpu")
def cross_entropy_backward_cpu(gx, g, x, target, lse, weight, ignore_index, label_smoothing):
    dim, x, g = class_dim(x), single(x), single(g)
    counts = target != ignore_index
    at = np.where(counts, target, 0).astype(np.int64)
    scale = np.where(counts, g, 0)
    share = label_smoothing / x.shape[dim]
    hit = (1 - label_smoothing) * (scale if weight is None else scale * weight[at].astype(x.dtype))
    total = x.shape[dim] if weight is None else weight.sum(dtype=x.dtype)
    work = gx if gx.dtype == x.dtype else np.empty_like(x)
    np.subtract(x, np.expand_dims(lse, dim), out=work)
    np.exp(work, out=work)
    work *= np.expand_dims(hit + share * total * scale, dim)
    if label_smoothing:
        work -= np.expand_dims(scale, dim) * (share if weight is None else share * along(weight, x, dim))
    if not counts.all():
        work[np.broadcast_to(np.expand_dims(~counts, dim), x.shape)] = 0
    at = np.expand_dims(at, dim)
    np.put_along_axis(work, at, np.take_along_axis(work, at, dim) - np.expand_dims(hit, dim), dim)
    if work is not gx:
        gx[...] = work


@cross_entropy_backward.impl("cuda")
def cross_entropy_backward_cuda(gx, g, x, target, lse, weight, ignore_index, label_smoothing):
    M, shape_m, stride_m, N, _, stride_n, across, _ = rows(x.shape, (class_dim(x),), *[t.strides for t in (gx, g, x, lse, target)])
    BLOCK_M, BLOCK_N = loss_blocks(M, N, across)
    pieces = splits(cdiv(M, BLOCK_M), cdiv(N, BLOCK_N))
    total = weight.sum() if weight is not None and label_smoothing else None
    acc = x.dtype.compute
    launch(K.cross_entropy_backward_kernel, (cdiv(M, BLOCK_M), pieces), gx, g, x, lse, target, contiguous(weight), total, shape_m, stride_m,
           *stride_n, M, N, chunk_of(N, BLOCK_N, pieces), ignore_index, scalar(label_smoothing, acc), SMOOTH=label_smoothing > 0,
           ACC=getattr(K.tl, acc.name), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=8 if BLOCK_N == 4096 else 4)


@cross_entropy_backward.formula
def cross_entropy_backward_formula(gradient, input, target, lse, weight, ignore_index, label_smoothing):
    dim = class_dim(input)
    n, shape = input.shape[dim], [-1 if d == dim else 1 for d in range(input.ndim)]
    w = (input.new_ones(n) if weight is None else weight).reshape(shape)
    hit = (arange(n, device=input.device).reshape(shape) == target.unsqueeze(dim)).to(input.dtype) * w
    share, hits = label_smoothing / n, (1 - label_smoothing) * hit
    mass = hits.sum(dim, keepdim=True) + share * w.sum()
    rate = (input - lse.unsqueeze(dim)).exp() * mass - hits - share * w
    return rate * (gradient * (target != ignore_index)).unsqueeze(dim)


@cross_entropy_rows.samples
def cross_entropy_samples(make):
    yield make(4, 7), make(4, integer=True, low=0, high=7)
    yield make(5, 3), make(5, integer=True, low=0, high=3), make(3, positive=True, grad=False), 1, 0.1
    yield make(2, 5, 3, 2), make(2, 3, 2, integer=True, low=0, high=5), None, 2
    yield make(3, 301), make(3, integer=True, low=0, high=301), None, -100, 0.2
    yield make(6), make(integer=True, low=0, high=6)
    yield make(0, 4), make(0, integer=True, low=0, high=4)


@cross_entropy_backward.samples
def cross_entropy_backward_samples(make):
    yield make(4), make(4, 7), make(4, integer=True, low=0, high=7), make(4)
    yield make(5), make(5, 3), make(5, integer=True, low=0, high=3), make(5), make(3, positive=True, grad=False), 1, 0.1
    yield make(2, 3, 2), make(2, 5, 3, 2), make(2, 3, 2, integer=True, low=0, high=5), make(2, 3, 2), None, 2
    yield make(3), make(3, 301), make(3, integer=True, low=0, high=301), make(3), None, -100, 0.2


@cross_entropy_rows.errors
def cross_entropy_errors(make):
    yield (make(4, 7), make(5, integer=True, low=0, high=7)), {}, RuntimeError, "expected targets of shape (4,)"
    yield (make(4, 7), make(4, integer=True, low=7, high=8)), {}, IndexError, "expected class indices in [0, 6], got 7"
    yield (make(4, 7), make(4, integer=True, low=0, high=7), make(3)), {}, RuntimeError, "expected a weight for each of 7 classes"


cross_entropy_rows.workloads(lambda make: [
    (f"8192x{n}", lambda n=n: (make(8192, n, dtype=types.bfloat16), make(8192, integer=True, low=0, high=n)), 2 * 8192 * n, 4 * 8192 * n)
    for n in (32768, 50304, 131072)])
cross_entropy_backward.workloads(lambda make: [
    (f"8192x{n}", lambda n=n: (make(8192), make(8192, n, dtype=types.bfloat16), make(8192, integer=True, low=0, high=n), make(8192)),
     4 * 8192 * n, 4 * 8192 * n) for n in (32768, 50304, 131072)])


def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
    """Cross entropy of logits (N, C, …) against class indices (N, …) or class probabilities (N, C, …).

    -w_t · log softmax(x)_t, or -Σ w_c · t_c · log softmax(x)_c. The mean over indices is weighted by w_t. Label smoothing mixes
    the target with the uniform distribution (Szegedy et al., Rethinking the Inception Architecture, 2016).

    >>> import tritorch as torch; from tritorch.ops.loss import cross_entropy
    >>> cross_entropy(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.6931)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if target.dtype.is_floating_point:
        return soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    loss, target_weight, _ = cross_entropy_rows(input, target, weight, ignore_index, label_smoothing)
    loss = loss.sum() / target_weight.sum() if reduction == "mean" else reduced(loss, reduction)
    return loss.to(result_dtype("cross_entropy", input))                 # half types are read as they are: logits can be the largest tensor


@composite
def soft_cross_entropy(input, target, weight, reduction, label_smoothing):
    """Cross entropy against class probabilities."""
    check(target.shape == input.shape, "cross_entropy", f"class probabilities of shape {tuple(input.shape)}", target.shape)
    dim = class_dim(input)
    n = input.shape[dim]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / n
    terms = log_softmax(input, dim) * target
    if weight is not None:
        terms = terms * weight.reshape([-1 if d == dim else 1 for d in range(input.ndim)])
    loss = -terms.sum(dim)
    return loss.sum() / (input.numel() // n) if reduction == "mean" else reduced(loss, reduction)


@composite
def nll_loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    """Negative log-likelihood: -w_t · x_t for log-probabilities (N, C, …) and class indices (N, …).

    >>> import tritorch as torch; from tritorch.ops.loss import nll_loss
    >>> nll_loss(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([0, 1]))
    tensor(2.5000)
    """
    reduction, dim = legacy_reduction(size_average, reduce, reduction), class_dim(input)
    counts = target != ignore_index
    at = where(counts, target, 0)
    w = counts.to(input.dtype) if weight is None else weight.take(at) * counts
    loss = -input.gather(dim, at.unsqueeze(dim)).squeeze(dim) * w
    return loss.sum() / w.sum() if reduction == "mean" else reduced(loss, reduction)


# ------------------------------------------------------------------ binary cross entropy
def _terms(x, y):
    return (y - 1) * np.maximum(np.log1p(-x), -100) - y * np.maximum(np.log(x), -100)


def _slope(x, y):
    return (x - y) / np.maximum((1 - x) * x, 1e-12)


probabilities = {"functions": K, "names": ("x", "y"), "domain": {"low": 0.05, "high": 0.95}}
slope = binary("binary_cross_entropy_slope", "(x - y) / max(x (1 - x), 1e-12): the gradient of binary cross entropy in x.", _slope,
               grad_input=lambda g, x, y: g * (1 - slope(x, y) * (1 - 2 * x)) / (x - x * x), grad_other=lambda g, x: -g / (x - x * x),
               **probabilities)
terms = binary("binary_cross_entropy_terms", "-(y log x + (1 - y) log(1 - x)); logarithms stop at -100.", _terms,
               grad_input=lambda g, x, y: g * slope(x, y), grad_other=lambda g, x: g * ((1 - x).log() - x.log()), **probabilities)


@composite
def binary_cross_entropy(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """-w · (y log x + (1 - y) log(1 - x)) for probabilities x; logarithms stop at -100.

    >>> import tritorch as torch; from tritorch.ops.loss import binary_cross_entropy
    >>> binary_cross_entropy(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    check(input.shape == target.shape, "binary_cross_entropy", f"targets of shape {tuple(input.shape)}", target.shape, error=ValueError)
    loss = terms(input, target)
    return reduced(loss if weight is None else loss * weight, legacy_reduction(size_average, reduce, reduction))


@composite
def binary_cross_entropy_with_logits(input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
    """Binary cross entropy of σ(x), without overflow: w · ((1 - y) x - (1 + (p - 1) y) log σ(x)).

    >>> import tritorch as torch; from tritorch.ops.loss import binary_cross_entropy_with_logits
    >>> binary_cross_entropy_with_logits(torch.zeros(2), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    name = "binary_cross_entropy_with_logits"
    check(input.shape == target.shape, name, f"targets of shape {tuple(input.shape)}", target.shape, error=ValueError)
    logarithm = log_sigmoid(input)
    if pos_weight is not None:
        logarithm = ((pos_weight - 1) * target + 1) * logarithm
    loss = (1 - target) * input - logarithm
    return reduced(loss if weight is None else loss * weight, legacy_reduction(size_average, reduce, reduction))


# ------------------------------------------------------------------ distances
def distance(input, target, reduction, size_average, reduce, weight, of):
    """A loss of x - y."""
    if input.shape != target.shape:
        warnings.warn(f"Using a target size ({tuple(target.shape)}) that is different to the input size ({tuple(input.shape)}). "
                      "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
                      UserWarning, stacklevel=3)
    loss, reduction = of(input - target), legacy_reduction(size_average, reduce, reduction)
    if weight is None:
        return reduced(loss, reduction)
    return (loss * weight).sum() / weight.expand_as(loss).sum() if reduction == "mean" else reduced(loss * weight, reduction)


@composite
def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """(x - y)². A weighted mean divides by the sum of the weights.

    >>> import tritorch as torch; from tritorch.ops.loss import mse_loss
    >>> mse_loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]))
    tensor(2.5000)
    """
    return distance(input, target, reduction, size_average, reduce, weight, lambda d: d.square())


@composite
def l1_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """|x - y|. A weighted mean divides by the sum of the weights.

    >>> import tritorch as torch; from tritorch.ops.loss import l1_loss
    >>> l1_loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]))
    tensor(1.5000)
    """
    return distance(input, target, reduction, size_average, reduce, weight, lambda d: d.abs())


@composite
def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """½ (x - y)² / β where |x - y| < β, else |x - y| - ½ β.

    >>> import tritorch as torch; from tritorch.ops.loss import smooth_l1_loss
    >>> smooth_l1_loss(torch.tensor([1.5, 0.0]), torch.tensor([0.0, 0.0]), reduction="none")
    tensor([1., 0.])
    """
    check(beta >= 0, "smooth_l1_loss", "beta of at least 0", beta)
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    return distance(input, target, reduction, size_average, reduce, None,
                    lambda d: where(d.abs() < beta, d.square() * (0.5 / beta), d.abs() - 0.5 * beta))


@composite
def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """½ (x - y)² where |x - y| ≤ δ, else δ (|x - y| - ½ δ). Huber, Robust Estimation of a Location Parameter, 1964.

    >>> import tritorch as torch; from tritorch.ops.loss import huber_loss
    >>> huber_loss(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 0.0]), reduction="none", delta=2.0)
    tensor([4.0000, 0.5000])
    """
    check(delta > 0, "huber_loss", "delta above 0", delta)
    return distance(input, target, reduction, None, None, weight,
                    lambda d: where(d.abs() <= delta, d.square() * 0.5, (d.abs() - 0.5 * delta) * delta))


@composite
def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    """Kullback-Leibler divergence terms y (log y - x) for log-probabilities x; "batchmean" divides the sum by the batch.

    >>> import tritorch as torch; from tritorch.ops.loss import kl_div
    >>> kl_div(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.0, 1.0]]), reduction="batchmean")
    tensor(0.6931)
    """
    loss = target.exp() * (target - input) if log_target else xlogy(target, target) - target * input
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction == "batchmean":
        return loss.sum() / (input.shape[0] if input.ndim else 1)
    return reduced(loss, reduction)
