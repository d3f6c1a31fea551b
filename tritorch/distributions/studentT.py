"""Student's t distribution: heavier tails than the normal distribution."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.chi2 import Chi2
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.compare import where
from tritorch.ops.random import randn


class StudentT(Distribution):
    """loc + scale · z √(df / c) for a standard normal z and c of Chi2(df).

    >>> import tritorch as torch; torch.distributions.StudentT(torch.tensor([1.0, 3.0])).variance
    tensor([nan, 3.])
    """

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, _parameters = constraints.real, True, ("df", "loc", "scale", "_chi2")

    def __init__(self, df, loc=0.0, scale=1.0, validate_args=None):
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df, validate_args)
        super().__init__(self.df.shape, validate_args=validate_args)

    mean = property(lambda self: where(self.df <= 1, math.nan, self.loc), doc="loc for df > 1, else NaN.")
    mode = property(lambda self: self.loc, doc="loc.")

    @property
    def variance(self):
        """scale² df / (df - 2) for df > 2, infinite for df > 1, else NaN."""
        exists = self.df > 2
        df = where(exists, self.df, 3.0)                                 # gradients stay finite where there is no variance
        return where(exists, self.scale**2 * df / (df - 2), where(self.df > 1, math.inf, math.nan))

    def rsample(self, sample_shape=()):
        z = randn(self._extended_shape(sample_shape), dtype=self.df.dtype, device=self.df.device)
        return self.loc + self.scale * (z * (self._chi2.rsample(sample_shape) / self.df).rsqrt())

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        y, half = (value - self.loc) / self.scale, 0.5 * (self.df + 1)
        norm = self.scale.log() + 0.5 * (self.df.log() + math.log(math.pi)) + (0.5 * self.df).lgamma() - half.lgamma()
        return -half * (y**2 / self.df).log1p() - norm

    def entropy(self):
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        log_beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        return self.scale.log() + more * (more.digamma() - half.digamma()) + 0.5 * self.df.log() + log_beta
