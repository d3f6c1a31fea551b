"""What the half-normal and the half-Cauchy distribution share: |x| of a distribution that is symmetric around 0."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import AbsTransform
from tritorch.ops.compare import where
from tritorch.ops.create import zeros_like


class Folded(TransformedDistribution):
    """|x| for x of a symmetric distribution with a `scale`."""

    arg_constraints = {"scale": constraints.positive}
    support, has_rsample = constraints.nonnegative, True

    def __init__(self, symmetric, validate_args=None):
        super().__init__(symmetric, AbsTransform(), validate_args)

    scale = property(lambda self: self.base_dist.scale, doc="The scale of x.")
    mode = property(lambda self: zeros_like(self.scale), doc="0.")

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
