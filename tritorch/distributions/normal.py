"""The normal distribution."""
import math

from tritorch.distributions.distribution import Distribution, broadcast_all
from tritorch.ops.random import normal, randn


class Normal(Distribution):
    """exp(-(x - loc)² / (2 scale²)) / (scale √(2π))."""

    has_rsample, _parameters = True, ("loc", "scale")

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)
        self._require("a loc that is no NaN", self.loc, lambda x: x == x)
        self._require("a positive scale", self.scale, lambda x: x > 0)

    mean = mode = property(lambda self: self.loc, doc="loc.")
    stddev = property(lambda self: self.scale, doc="scale.")
    variance = property(lambda self: self.scale**2, doc="scale².")

    def sample(self, sample_shape=()):
        shape = self._extended(sample_shape)
        return normal(self.loc.detach().expand(shape), self.scale.detach().expand(shape))

    def rsample(self, sample_shape=()):
        return self.loc + randn(self._extended(sample_shape), dtype=self.loc.dtype, device=self.loc.device) * self.scale

    def log_prob(self, value):
        self._require("a value that is no NaN", value, lambda x: x == x)
        return -((value - self.loc) ** 2) / (2 * self.scale**2) - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value):
        self._require("a value that is no NaN", value, lambda x: x == x)
        return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value):
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self):
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
