"""Adaptive softmax: a classifier whose rare classes are clusters of smaller features. Grave et al., Efficient softmax approximation for
GPUs, 2017."""
from collections import namedtuple

from tritorch.nn import functional as F
from tritorch.nn.container import ModuleList, Sequential
from tritorch.nn.linear import Linear
from tritorch.nn.module import Module
from tritorch.ops.shaping import cat

_ASMoutput = namedtuple("_ASMoutput", ["output", "loss"])


class AdaptiveLogSoftmaxWithLoss(Module):
    """log p of the target class of each sample, and the mean loss, for classes that are sorted by how often they come.

    The classes below cutoffs[0] and one place for each cluster between further cutoffs are the head; cluster k has in_features /
    div_value^(k + 1) features. Only samples of a cluster go through its layers. input (N, in_features) and target (N,), or without N, give
    output, of the target's shape, and loss.

    >>> import tritorch as torch
    >>> layer = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 20, cutoffs=[5, 10])
    >>> layer(torch.zeros(3, 16), torch.tensor([1, 7, 19])).output.detach().exp()
    tensor([0.1429, 0.0286, 0.0143])
    """

    def __init__(self, in_features, n_classes, cutoffs, div_value=4.0, head_bias=False, device=None, dtype=None):
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("AdaptiveLogSoftmaxWithLoss: expected at least one cutoff")
        right = cutoffs == sorted(set(cutoffs)) and cutoffs[0] > 0 and cutoffs[-1] < n_classes and all(int(c) == c for c in cutoffs)
        if not right:
            raise ValueError(f"AdaptiveLogSoftmaxWithLoss: expected cutoffs that are whole numbers from 1 to {n_classes - 1} and rise, got "
                             f"{cutoffs}")
        self.in_features, self.n_classes, self.cutoffs, self.div_value = in_features, n_classes, [*cutoffs, n_classes], div_value
        self.head_bias, self.shortlist_size, self.n_clusters = head_bias, cutoffs[0], len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, device=device, dtype=dtype)
        self.tail = ModuleList()
        for k in range(self.n_clusters):
            features, size = int(in_features // div_value ** (k + 1)), self.cutoffs[k + 1] - self.cutoffs[k]
            self.tail.append(Sequential(Linear(in_features, features, bias=False, device=device, dtype=dtype),
                                        Linear(features, size, bias=False, device=device, dtype=dtype)))

    def reset_parameters(self):
        """Draw all parameters anew."""
        self.head.reset_parameters()
        for down, up in self.tail:
            down.reset_parameters()
            up.reset_parameters()

    def forward(self, input, target):
        if target.ndim > 1:
            raise RuntimeError(f"AdaptiveLogSoftmaxWithLoss: expected a target of at most 1 dim, got {target.ndim}")
        batched = target.ndim == 1
        if (input.shape[0] != target.shape[0] if batched else input.ndim != 1):
            raise RuntimeError(f"AdaptiveLogSoftmaxWithLoss: expected as many samples in input and target, got {tuple(input.shape)} and "
                               f"{tuple(target.shape)}")
        x, classes = (input, target) if batched else (input.unsqueeze(0), target.unsqueeze(0))
        self._check(classes)
        head, place = F.log_softmax(self.head(x), 1), classes.clamp(max=self.shortlist_size)
        output = x.new_zeros(classes.shape)
        for k in range(self.n_clusters):
            inside = (classes >= self.cutoffs[k]) & (classes < self.cutoffs[k + 1])
            rows = inside.nonzero().squeeze(1)                           # waits for the device, as PyTorch does
            if rows.numel():
                among = F.log_softmax(self.tail[k](x.index_select(0, rows)), 1)
                own = (classes.index_select(0, rows) - self.cutoffs[k]).long()
                output = output.index_add(0, rows, among.gather(1, own.unsqueeze(1)).squeeze(1).to(output.dtype))
                place = place.masked_fill(inside, self.shortlist_size + k)
        output = output + head.gather(1, place.long().unsqueeze(1)).squeeze(1)
        return _ASMoutput(output if batched else output.squeeze(0), (-output).mean())

    def _check(self, classes):
        if classes.numel():
            low, high = classes.min().item(), classes.max().item()
            if low < 0 or high >= self.n_classes:
                raise RuntimeError(f"AdaptiveLogSoftmaxWithLoss: expected target values in [0, {self.n_classes - 1}], got [{low}, {high}]")

    def log_prob(self, input):
        """log p of all classes: (N, n_classes) for input (N, in_features)."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, :self.shortlist_size]]
        for k, layers in enumerate(self.tail):
            parts.append(F.log_softmax(layers(input), 1) + head[:, self.shortlist_size + k].unsqueeze(1))
        return cat(parts, 1)

    def predict(self, input):
        """The most probable class of each sample, (N,). Clusters are computed only for samples whose head prefers one."""
        head = self.head(input)
        found = head.argmax(1)
        rows = (found >= self.shortlist_size).nonzero().squeeze(1)
        if not rows.numel():
            return found
        return found.index_copy(0, rows, self.log_prob(input.index_select(0, rows)).argmax(1))
