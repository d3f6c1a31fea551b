"""Losses. Each is the function of `nn.functional` of the same meaning; `reduction` is "mean", "sum" or "none"."""
import math

from tritorch.errors import check
from tritorch.nn import functional as F
from tritorch.nn.distance import PairwiseDistance
from tritorch.nn.linear import Linear
from tritorch.nn.module import Module
from tritorch.ops.loss import legacy_reduction


class _Loss(Module):
    def __init__(self, size_average=None, reduce=None, reduction="mean"):
        super().__init__()
        self.reduction = legacy_reduction(size_average, reduce, reduction)


class _WeightedLoss(_Loss):
    def __init__(self, weight=None, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class L1Loss(_Loss):
    """|x - y|.

    >>> import tritorch as torch
    >>> torch.nn.L1Loss()(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])).item()
    1.5
    """

    def forward(self, input, target):
        return F.l1_loss(input, target, reduction=self.reduction)


class MSELoss(_Loss):
    """(x - y)².

    >>> import tritorch as torch
    >>> torch.nn.MSELoss()(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])).item()
    2.5
    """

    def forward(self, input, target):
        return F.mse_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """(x - y)² / (2β) where |x - y| < β, else |x - y| - β/2.

    >>> import tritorch as torch
    >>> torch.nn.SmoothL1Loss(reduction="none")(torch.tensor([0.5, 3.0]), torch.zeros(2)).tolist()
    [0.125, 2.5]
    """

    def __init__(self, size_average=None, reduce=None, reduction="mean", beta=1.0):
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input, target):
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """(x - y)² / 2 where |x - y| < δ, else δ (|x - y| - δ/2).

    >>> import tritorch as torch
    >>> torch.nn.HuberLoss(reduction="none")(torch.tensor([0.5, 3.0]), torch.zeros(2)).tolist()
    [0.125, 2.5]
    """

    def __init__(self, reduction="mean", delta=1.0):
        if not isinstance(delta, (float, int)):
            raise TypeError(f"HuberLoss: expected a number as delta, got {type(delta).__name__}")
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input, target):
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class NLLLoss(_WeightedLoss):
    """-weight[y] · x[y] for log probabilities x (N, C, *) and classes y (N, *); classes equal to `ignore_index` do not count.

    >>> import tritorch as torch
    >>> round(torch.nn.NLLLoss()(torch.zeros(3, 5).log_softmax(1), torch.tensor([0, 1, 2])).item(), 4)
    1.6094
    """

    def __init__(self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input, target):
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class CrossEntropyLoss(_WeightedLoss):
    """-Σ y log softmax(x) for logits x (N, C, *) and classes (N, *) or probabilities (N, C, *) y.

    `weight` (C) scales the classes, `label_smoothing` mixes the target with the uniform distribution, and classes equal to
    `ignore_index` do not count.

    >>> import tritorch as torch
    >>> round(torch.nn.CrossEntropyLoss()(torch.zeros(3, 5), torch.tensor([0, 1, 2])).item(), 4)
    1.6094
    """

    def __init__(self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input, target):
        return F.cross_entropy(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
                               label_smoothing=self.label_smoothing)


class LinearCrossEntropyLoss(_WeightedLoss):
    """`CrossEntropyLoss` after a `Linear` of its own, computed without storing the logits: see `F.linear_cross_entropy`.

    input (N, in_features) or (in_features,); target: classes (N, *out_features) or probabilities (N, num_classes, *out_features).
    PyTorch's `options` is accepted and changes nothing.
    Raises RuntimeError where `weight` is not (num_classes,) or `label_smoothing` not in [0, 1].

    >>> import tritorch as torch
    >>> loss = torch.nn.LinearCrossEntropyLoss(8, 5)
    >>> loss(torch.zeros(3, 8), torch.tensor([0, 1, 4])).item() == torch.tensor(5.0).log().item()
    True
    """

    def __init__(self, in_features, num_classes, *, out_features=(), bias=False, device=None, dtype=None, reduction="mean", weight=None,
                 ignore_index=None, label_smoothing=0.0, options=None):                          # PyTorch's signature
        check(weight is None or weight.shape == (num_classes,), "LinearCrossEntropyLoss", f"a weight of shape {(num_classes,)}", weight)
        check(0 <= label_smoothing <= 1, "LinearCrossEntropyLoss", "0 ≤ label_smoothing ≤ 1", label_smoothing)
        super().__init__(weight, None, None, reduction)
        self.num_classes, self.out_features, self.ignore_index = num_classes, tuple(out_features), ignore_index
        self.label_smoothing, self.options = label_smoothing, options
        self.linear = Linear(in_features, math.prod(self.out_features, start=num_classes), bias, device, dtype)

    def forward(self, input, target):
        shape = self.num_classes, *self.out_features
        weight, bias = self.linear.weight.reshape(*shape, -1), self.linear.bias
        return F.linear_cross_entropy(input, weight, target, linear_bias=None if bias is None else bias.reshape(shape), weight=self.weight,
                                      reduction=self.reduction, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing)

    def extra_repr(self):
        return (f"in_features={self.linear.in_features}, num_classes={self.num_classes}, out_features={self.out_features}, "
                f"bias={self.linear.bias is not None}, reduction={self.reduction}, ignore_index={self.ignore_index}, "
                f"label_smoothing={self.label_smoothing}, options={self.options}")


class BCELoss(_WeightedLoss):
    """-(y log x + (1 - y) log(1 - x)) for probabilities x; logarithms are held above -100.

    >>> import tritorch as torch
    >>> round(torch.nn.BCELoss()(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])).item(), 4)
    0.6931
    """

    def forward(self, input, target):
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_WeightedLoss):
    """`BCELoss` of sigmoid(x), computed without overflow; `pos_weight` scales the positive term.

    >>> import tritorch as torch
    >>> round(torch.nn.BCEWithLogitsLoss()(torch.zeros(3), torch.ones(3)).item(), 4)
    0.6931
    """

    def __init__(self, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
        super().__init__(weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input, target):
        return F.binary_cross_entropy_with_logits(input, target, self.weight, pos_weight=self.pos_weight, reduction=self.reduction)


class KLDivLoss(_Loss):
    """y (log y - x) for log probabilities x and probabilities y, or y their logarithms if `log_target`.

    >>> import tritorch as torch
    >>> round(torch.nn.KLDivLoss(reduction="batchmean")(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]])).item(), 4)
    0.3681
    """

    def __init__(self, size_average=None, reduce=None, reduction="mean", log_target=False):
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input, target):
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(_Loss):
    """e^x - y x, or x - y log(x + eps) if not `log_input`; `full` adds Stirling's term for y > 1.

    >>> import tritorch as torch
    >>> round(torch.nn.PoissonNLLLoss()(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).item(), 4)
    0.8591
    """

    def __init__(self, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input, target):
        return F.poisson_nll_loss(log_input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=self.reduction)


class GaussianNLLLoss(_Loss):
    """½ (log max(var, eps) + (x - y)² / max(var, eps)); `full` adds ½ log 2π. Nix and Weigend 1994.

    >>> import tritorch as torch
    >>> x, y, variance = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    >>> torch.nn.GaussianNLLLoss()(x, y, variance).item()
    1.0
    """

    def __init__(self, *, full=False, eps=1e-6, reduction="mean"):
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input, target, var):
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


class HingeEmbeddingLoss(_Loss):
    """x where y = 1, max(0, margin - x) where y = -1.

    >>> import tritorch as torch
    >>> round(torch.nn.HingeEmbeddingLoss()(torch.tensor([0.5, 0.3]), torch.tensor([1.0, -1.0])).item(), 4)
    0.6
    """

    def __init__(self, margin=1.0, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input, target):
        return F.hinge_embedding_loss(input, target, margin=self.margin, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """log(1 + e^(-y x)) for y = ±1.

    >>> import tritorch as torch
    >>> round(torch.nn.SoftMarginLoss()(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -1.0])).item(), 4)
    0.6931
    """

    def forward(self, input, target):
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class MarginRankingLoss(_Loss):
    """max(0, -y (x1 - x2) + margin) for y = ±1.

    >>> import tritorch as torch
    >>> x, y = torch.tensor([1.0]), torch.tensor([3.0])
    >>> torch.nn.MarginRankingLoss()(x, y, torch.tensor([1.0])).item()
    2.0
    """

    def __init__(self, margin=0.0, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1, input2, target):
        return F.margin_ranking_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_Loss):
    """1 - cos(x1, x2) where y = 1, max(0, cos(x1, x2) - margin) where y = -1.

    >>> import tritorch as torch
    >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> torch.nn.CosineEmbeddingLoss()(x, y, torch.tensor([1.0])).item()
    1.0
    """

    def __init__(self, margin=0.0, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1, input2, target):
        return F.cosine_embedding_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class MultiMarginLoss(_WeightedLoss):
    """Σ_{i ≠ y} max(0, margin - x[y] + x[i])^p / C, times weight[y].

    >>> import tritorch as torch
    >>> round(torch.nn.MultiMarginLoss()(torch.tensor([[0.1, 0.2, 0.4]]), torch.tensor([2])).item(), 4)
    0.5
    """

    def __init__(self, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
        super().__init__(weight, size_average, reduce, reduction)
        if p not in (1, 2):
            raise ValueError("only p == 1 and p == 2 supported")
        if weight is not None and weight.ndim != 1:
            raise ValueError(f"MultiMarginLoss: expected a weight of 1 dim, got {weight.ndim}")
        self.p, self.margin = p, margin

    def forward(self, input, target):
        return F.multi_margin_loss(input, target, p=self.p, margin=self.margin, weight=self.weight, reduction=self.reduction)


class MultiLabelMarginLoss(_Loss):
    """Σ max(0, 1 - (x[y_j] - x[i])) / C over the classes y_j before the first -1 and the classes i that are not among them."""

    def forward(self, input, target):
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """-(y log σ(x) + (1 - y) log σ(-x)), the mean over the classes.

    >>> import tritorch as torch
    >>> round(torch.nn.MultiLabelSoftMarginLoss()(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]])).item(), 4)
    0.6931
    """

    def forward(self, input, target):
        return F.multilabel_soft_margin_loss(input, target, weight=self.weight, reduction=self.reduction)


class CTCLoss(_Loss):
    """-log of the probability that log_probs (T, N, C) give the targets when repeats are joined and blanks taken out: see
    `nn.functional.ctc_loss`. "mean" divides each loss by its target's length first.

    >>> import tritorch as torch
    >>> log_probs = torch.full((3, 1, 2), 0.5).log()
    >>> round(torch.nn.CTCLoss()(log_probs, torch.tensor([[1]]), (3,), (1,)).exp().item(), 4)
    1.3333
    """

    def __init__(self, blank=0, reduction="mean", zero_infinity=False):
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs, targets, input_lengths, target_lengths):
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)


class TripletMarginLoss(_Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d the p-norm; with `swap` the nearer of anchor and positive counts.

    >>> import tritorch as torch
    >>> loss = torch.nn.TripletMarginLoss(margin=0.5)
    >>> loss(torch.zeros(2, 4), torch.zeros(2, 4), torch.ones(2, 4)).item()
    0.0
    """

    def __init__(self, margin=1.0, p=2.0, eps=1e-6, swap=False, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: expected margin > 0, got {margin}")
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor, positive, negative):
        return F.triplet_margin_loss(anchor, positive, negative, margin=self.margin, p=self.p, eps=self.eps, swap=self.swap,
                                     reduction=self.reduction)


class TripletMarginWithDistanceLoss(_Loss):
    """`TripletMarginLoss` with a distance of your own."""

    def __init__(self, *, distance_function=None, margin=1.0, swap=False, reduction="mean"):
        super().__init__(reduction=reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginWithDistanceLoss: expected margin > 0, got {margin}")
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.margin, self.swap = margin, swap

    def forward(self, anchor, positive, negative):
        return F.triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=self.distance_function,
                                                   margin=self.margin, swap=self.swap, reduction=self.reduction)
