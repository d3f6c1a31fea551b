"""The uniform distribution."""
from tritorch.distributions.distribution import Distribution, broadcast_all
from tritorch.ops.random import rand


class Uniform(Distribution):
    """1 / (high - low) in [low, high)."""

    has_rsample, _parameters = True, ("low", "high")

    def __init__(self, low, high, validate_args=None):
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        self._require("low below high", self.high - self.low, lambda x: x > 0)

    mean = property(lambda self: (self.high + self.low) / 2, doc="The middle.")
    variance = property(lambda self: (self.high - self.low) ** 2 / 12, doc="(high - low)² / 12.")

    def rsample(self, sample_shape=()):
        return self.low + rand(self._extended(sample_shape), dtype=self.low.dtype, device=self.low.device) * (self.high - self.low)

    def log_prob(self, value):
        self._require("a value in [low, high]", value, lambda x: (x >= self.low) & (x <= self.high))
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value):
        self._require("a value in [low, high]", value, lambda x: (x >= self.low) & (x <= self.high))
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value):
        return value * (self.high - self.low) + self.low

    def entropy(self):
        return (self.high - self.low).log()
