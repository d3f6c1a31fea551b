"""The generalized Pareto distribution: how far beyond a threshold."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.compare import isclose, where
from tritorch.ops.create import ones_like, zeros_like
from tritorch.ops.random import rand


class GeneralizedPareto(Distribution):
    """(1 + k z)^(-1/k - 1) / scale with z = (x - loc) / scale and k = concentration; for k = 0 exp(-z) / scale.

    >>> import tritorch as torch; torch.distributions.GeneralizedPareto(0.0, 1.0, torch.tensor([0.0, 0.5])).mean
    tensor([1., 2.])
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real}
    has_rsample, _parameters = True, ("loc", "scale", "concentration")

    def __init__(self, loc, scale, concentration, validate_args=None):
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def _curved(self):
        """(where k is 0, k with 1 in its place: gradients of both branches are finite)."""
        flat = isclose(self.concentration, zeros_like(self.concentration))
        return flat, where(flat, ones_like(self.concentration), self.concentration)

    def rsample(self, sample_shape=()):
        return self.icdf(rand(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        z, (flat, k) = (value - self.loc) / self.scale, self._curved()
        power = 1 / k + ones_like(z)
        return -self.scale.log() - where(flat, z, where(power == 0, power, power * (k * z).log1p()))

    def log_survival_function(self, value):
        """log(1 - cdf)."""
        if self._validate_args:
            self._validate_sample(value)
        z, (flat, k) = (value - self.loc) / self.scale, self._curved()
        return where(flat, -z, -(k * z).log1p() / k)

    def log_cdf(self, value):
        """log cdf."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value):
        return self.log_cdf(value).exp()

    def icdf(self, value):
        (flat, k), log_rest = self._curved(), (-value).log1p()
        return where(flat, self.loc - self.scale * log_rest, self.loc + self.scale / k * (-k * log_rest).expm1())

    @property
    def mean(self):
        """loc + scale / (1 - k) for k < 1, else NaN."""
        exists = self.concentration < 1
        return where(exists, self.loc + self.scale / (1 - where(exists, self.concentration, 0.5)), math.nan)

    @property
    def variance(self):
        """scale² / ((1 - k)² (1 - 2k)) for k < 1/2, else NaN."""
        exists = self.concentration < 0.5
        k = where(exists, self.concentration, 0.25)
        return where(exists, self.scale**2 / ((1 - k) ** 2 * (1 - 2 * k)), math.nan)

    mode = property(lambda self: self.loc, doc="loc.")

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        """From loc, for k < 0 up to loc - scale / k."""
        end = where(self.concentration < 0, self.loc - self.scale / self.concentration, math.inf)
        return constraints.interval(self.loc, end)

    def entropy(self):
        return self.scale.log() + self.concentration + 1
