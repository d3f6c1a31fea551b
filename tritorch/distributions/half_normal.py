"""The half-normal distribution."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.normal import Normal
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import AbsTransform
from tritorch.ops.compare import where
from tritorch.ops.create import zeros_like


class HalfNormal(TransformedDistribution):
    """|x| for x of Normal(0, scale).

    >>> import tritorch as torch; torch.distributions.HalfNormal(2.0).mean
    tensor(1.5958)
    """

    arg_constraints = {"scale": constraints.positive}
    support, has_rsample, _parameters = constraints.nonnegative, True, ()

    def __init__(self, scale, validate_args=None):
        super().__init__(Normal(0, scale, validate_args=False), AbsTransform(), validate_args)

    scale = property(lambda self: self.base_dist.scale, doc="The standard deviation of x.")
    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi), doc="scale √(2/π).")
    mode = property(lambda self: zeros_like(self.scale), doc="0.")
    variance = property(lambda self: self.scale**2 * (1 - 2 / math.pi), doc="scale² (1 - 2/π).")

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, prob):
        return self.base_dist.icdf((prob + 1) / 2)

    def entropy(self):
        return self.base_dist.entropy() - math.log(2)
