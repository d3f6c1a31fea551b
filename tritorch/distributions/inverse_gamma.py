"""The inverse gamma distribution."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.gamma import Gamma
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import PowerTransform
from tritorch.ops.compare import where


class InverseGamma(TransformedDistribution):
    """1 / x for x of Gamma(concentration, rate).

    >>> import tritorch as torch; torch.distributions.InverseGamma(3.0, 4.0).mean
    tensor(2.)
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support, has_rsample, _parameters = constraints.positive, True, ()

    def __init__(self, concentration, rate, validate_args=None):
        base = Gamma(concentration, rate, validate_args)
        super().__init__(base, PowerTransform(-base.rate.new_ones(())), validate_args)

    concentration = property(lambda self: self.base_dist.concentration, doc="That of x.")
    rate = property(lambda self: self.base_dist.rate, doc="That of x.")
    mode = property(lambda self: self.rate / (self.concentration + 1), doc="rate / (concentration + 1).")

    @property
    def mean(self):
        """rate / (concentration - 1) for concentration > 1, else infinite."""
        return where(self.concentration > 1, self.rate / (self.concentration - 1), math.inf)

    @property
    def variance(self):
        """rate² / ((concentration - 1)² (concentration - 2)) for concentration > 2, else infinite."""
        c = self.concentration
        return where(c > 2, self.rate**2 / ((c - 1) ** 2 * (c - 2)), math.inf)

    def entropy(self):
        c = self.concentration
        return c + self.rate.log() + c.lgamma() - (1 + c) * c.digamma()
