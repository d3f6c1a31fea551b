"""Distances between vectors."""
from tritorch.nn import functional as F
from tritorch.nn.module import Module


class CosineSimilarity(Module):
    """x1 · x2 / (max(‖x1‖, eps) max(‖x2‖, eps)) over `dim`.

    >>> import tritorch as torch
    >>> torch.nn.CosineSimilarity(dim=0)(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])).item()
    0.0
    """

    def __init__(self, dim=1, eps=1e-8):
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1, x2):
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """‖x1 - x2 + eps‖_p over the last dim.

    >>> import tritorch as torch
    >>> round(torch.nn.PairwiseDistance()(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])).item(), 3)
    5.0
    """

    def __init__(self, p=2.0, eps=1e-6, keepdim=False):
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1, x2):
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
