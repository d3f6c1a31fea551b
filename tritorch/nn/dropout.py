"""Dropout layers: they change their input in training mode only."""
from tritorch.nn import functional as F
from tritorch.nn.module import Module


class _DropoutNd(Module):
    def __init__(self, p=0.5, inplace=False):
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: expected a probability p from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input):
        return self._drop(input, self.p, self.training, self.inplace)

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_DropoutNd):
    """Zeros each element with probability p and multiplies the rest by 1 / (1 - p). Srivastava et al. 2014.

    >>> import tritorch as torch
    >>> torch.nn.Dropout(0.2).eval()(torch.ones(2)).tolist()
    [1.0, 1.0]
    """

    _drop = staticmethod(F.dropout)


class Dropout1d(_DropoutNd):
    """Dropout of whole channels of (N, C, L) or (C, L).

    >>> import tritorch as torch
    >>> y = torch.nn.Dropout1d(0.5)(torch.ones(4, 6, 2))
    >>> set(y.sum(2).flatten().tolist()) <= {0.0, 4.0}
    True
    """

    _drop = staticmethod(F.dropout1d)


class Dropout2d(_DropoutNd):
    """Dropout of whole channels of (N, C, H, W) or (C, H, W).

    >>> import tritorch as torch
    >>> y = torch.nn.Dropout2d(0.5)(torch.ones(4, 6, 2, 2))
    >>> set(y.sum((2, 3)).flatten().tolist()) <= {0.0, 8.0}
    True
    """

    _drop = staticmethod(F.dropout2d)


class Dropout3d(_DropoutNd):
    """Dropout of whole channels of (N, C, D, H, W) or (C, D, H, W)."""

    _drop = staticmethod(F.dropout3d)


class AlphaDropout(_DropoutNd):
    """Dropout that keeps mean 0 and variance 1, for use with SELU. Klambauer et al. 2017."""

    _drop = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_DropoutNd):
    """Alpha dropout of whole channels."""

    _drop = staticmethod(F.feature_alpha_dropout)
