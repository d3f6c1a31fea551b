"""The F distribution of Fisher and Snedecor: a ratio of two variances."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.gamma import Gamma
from tritorch.distributions.parameters import broadcast_all
from tritorch.dtype import finfo
from tritorch.ops.compare import where


class FisherSnedecor(Distribution):
    """(c1 / df1) / (c2 / df2) for c1 of Chi2(df1) and c2 of Chi2(df2).

    >>> import tritorch as torch; torch.distributions.FisherSnedecor(3.0, 5.0).mean
    tensor(1.6667)
    """

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support, has_rsample, _parameters = constraints.positive, True, ("df1", "df2", "_gamma1", "_gamma2")

    def __init__(self, df1, df2, validate_args=None):
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._gamma1, self._gamma2 = (Gamma(df * 0.5, df, validate_args) for df in (self.df1, self.df2))
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self):
        """df2 / (df2 - 2) for df2 > 2, else NaN."""
        df2 = where(self.df2 <= 2, math.nan, self.df2)
        return df2 / (df2 - 2)

    @property
    def mode(self):
        """(df1 - 2) / df1 · df2 / (df2 + 2) for df1 > 2, else NaN."""
        return where(self.df1 <= 2, math.nan, (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2))

    @property
    def variance(self):
        """2 df2² (df1 + df2 - 2) / (df1 (df2 - 2)² (df2 - 4)) for df2 > 4, else NaN."""
        df2 = where(self.df2 <= 4, math.nan, self.df2)
        return 2 * df2**2 * (self.df1 + df2 - 2) / (self.df1 * (df2 - 2) ** 2 * (df2 - 4))

    def rsample(self, sample_shape=()):
        ratio = self._gamma1.rsample(sample_shape) / self._gamma2.rsample(sample_shape)
        ratio.detach().clamp_(min=finfo(ratio.dtype).tiny)
        return ratio

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        a, b, ratio = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        norm = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return norm + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()
