"""The half-Cauchy distribution."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.cauchy import Cauchy
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import AbsTransform
from tritorch.interop import as_tensor
from tritorch.ops.compare import where
from tritorch.ops.create import zeros_like


class HalfCauchy(TransformedDistribution):
    """|x| for x of Cauchy(0, scale).

    >>> import tritorch as torch; torch.distributions.HalfCauchy(2.0).icdf(torch.tensor(0.5))
    tensor(2.)
    """

    arg_constraints = {"scale": constraints.positive}
    support, has_rsample, _parameters = constraints.nonnegative, True, ()

    def __init__(self, scale, validate_args=None):
        super().__init__(Cauchy(0, scale, validate_args=False), AbsTransform(), validate_args)

    scale = property(lambda self: self.base_dist.scale, doc="The median.")
    mean = property(lambda self: self.scale.new_full(self._batch_shape, math.inf), doc="Infinite.")
    mode = property(lambda self: zeros_like(self.scale), doc="0.")
    variance = property(lambda self: self.base_dist.variance, doc="Infinite.")

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        value = as_tensor(value, self.scale.dtype, self.scale.device)
        return where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, prob):
        return self.base_dist.icdf((prob + 1) / 2)

    def entropy(self):
        return self.base_dist.entropy() - math.log(2)
