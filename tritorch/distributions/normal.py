"""The normal distribution."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.random import normal, randn


class Normal(ExponentialFamily):
    """exp(-(x - loc)² / (2 scale²)) / (scale √(2π)).

    >>> import tritorch as torch; torch.distributions.Normal(0.0, 2.0).log_prob(torch.tensor([0.0, 2.0]))
    tensor([-1.6121, -2.1121])
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, _parameters, _mean_carrier_measure = constraints.real, True, ("loc", "scale"), 0

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean = mode = property(lambda self: self.loc, doc="loc.")
    stddev = property(lambda self: self.scale, doc="scale.")
    variance = property(lambda self: self.scale**2, doc="scale².")
    _natural_params = property(lambda self: (self.loc / self.scale**2, -0.5 / self.scale**2))

    def _log_normalizer(self, x, y):
        return -0.25 * x**2 / y + 0.5 * (-math.pi / y).log()

    def sample(self, sample_shape=()):
        shape = self._extended_shape(sample_shape)
        return normal(self.loc.detach().expand(shape), self.scale.detach().expand(shape))

    def rsample(self, sample_shape=()):
        return self.loc + randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device) * self.scale

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -((value - self.loc) ** 2) / (2 * self.scale**2) - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 0.5 * (1 + ((value - self.loc) / self.scale * math.sqrt(0.5)).erf())

    def icdf(self, value):
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self):
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
