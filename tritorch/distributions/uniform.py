"""The uniform distribution."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.random import rand


class Uniform(Distribution):
    """1 / (high - low) in [low, high).

    >>> import tritorch as torch; torch.distributions.Uniform(1.0, torch.tensor([2.0, 5.0])).entropy()
    tensor([0.0000, 1.3863])
    """

    has_rsample, _parameters = True, ("low", "high")

    def __init__(self, low, high, validate_args=None):
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)

    arg_constraints = property(lambda self: {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)},
                               doc="low < high.")
    mean = property(lambda self: (self.high + self.low) / 2, doc="The middle.")
    mode = property(lambda self: math.nan * self.high, doc="NaN: no outcome is likelier than another.")
    stddev = property(lambda self: (self.high - self.low) / 12**0.5, doc="(high - low) / √12.")
    variance = property(lambda self: (self.high - self.low) ** 2 / 12, doc="(high - low)² / 12.")

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        """[low, high]."""
        return constraints.interval(self.low, self.high)

    def rsample(self, sample_shape=()):
        u = rand(self._extended_shape(sample_shape), dtype=self.low.dtype, device=self.low.device)
        return self.low + u * (self.high - self.low)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value):
        return value * (self.high - self.low) + self.low

    def entropy(self):
        return (self.high - self.low).log()
