"""The LKJ distribution of correlation matrices, by their Cholesky factors."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.beta import Beta
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import broadcast_all
from tritorch.dtype import finfo
from tritorch.errors import check, whole_numbers
from tritorch.ops.compare import where
from tritorch.ops.create import arange
from tritorch.ops.gamma_functions import mvlgamma
from tritorch.ops.random import randn
from tritorch.ops.triangles import diag_embed


class LKJCholesky(Distribution):
    """Lower triangular L for which the correlations L Lᵀ have a density proportional to det(L Lᵀ)^(concentration - 1).

    For concentration 1 all matrices of correlations are as likely. Samples by the onion method (D. Lewandowski, D. Kurowicka and H. Joe,
    Generating random correlation matrices based on vines and extended onion method, 2009).

    >>> import tritorch as torch; torch.distributions.LKJCholesky(2, 1.0).log_prob(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor(-0.6931)
    """

    arg_constraints, support = {"concentration": constraints.positive}, constraints.corr_cholesky
    _parameters = "concentration", "_beta"

    def __init__(self, dim, concentration=1.0, validate_args=None):
        dim, = whole_numbers("LKJCholesky", "dim", (dim,))
        check(dim >= 2, "LKJCholesky", "dim ≥ 2", dim, error=ValueError)
        self.dim = dim
        self.concentration, = broadcast_all(concentration)
        row = arange(dim, dtype=self.concentration.dtype, device=self.concentration.device)
        half = 0.5 * row.clamp(min=1)                                    # of the numbers before the diagonal; row 0, with none, is not used
        self._beta = Beta(half, self.concentration.unsqueeze(-1) + 0.5 * (dim - 1) - half, validate_args)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new.dim = self.dim
        return new

    def sample(self, sample_shape=()):
        """Row i has √y times a point of the unit sphere before the diagonal, y a beta number, and √(1 - y) on it."""
        y = self._beta.sample(sample_shape).unsqueeze(-1)
        z = randn(self._extended_shape(sample_shape), dtype=y.dtype, device=y.device).tril(-1)
        length = (z**2).sum(-1, True).sqrt()
        rows = y.sqrt() * z / where(length == 0, 1.0, length)
        return rows + diag_embed((1 - (rows**2).sum(-1)).clamp(min=finfo(y.dtype).tiny).sqrt())

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        n, c = self.dim, self.concentration
        order = 2 * (c - 1).unsqueeze(-1) + n - arange(2, n + 1, dtype=c.dtype, device=c.device)
        powers = (order * value.diagonal(dim1=-2, dim2=-1)[..., 1:].log()).sum(-1)
        half = c + 0.5 * (n - 1)
        return powers - (0.5 * (n - 1) * math.log(math.pi) + mvlgamma(half - 0.5, n - 1) - half.lgamma() * (n - 1))
