"""The Cauchy (Lorentz) distribution."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.create import empty


class Cauchy(Distribution):
    """1 / (π scale (1 + ((x - loc) / scale)²)), of which neither mean nor variance exist.

    >>> import tritorch as torch; torch.distributions.Cauchy(0.0, 1.0).cdf(torch.tensor([-1.0, 0.0]))
    tensor([0.2500, 0.5000])
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, _parameters = constraints.real, True, ("loc", "scale")

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean = property(lambda self: self.loc.new_full(self._batch_shape, math.nan), doc="NaN.")
    mode = property(lambda self: self.loc, doc="loc.")
    variance = property(lambda self: self.loc.new_full(self._batch_shape, math.inf), doc="Infinite.")

    def rsample(self, sample_shape=()):
        return self.loc + empty(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device).cauchy_() * self.scale

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -math.log(math.pi) - self.scale.log() - (((value - self.loc) / self.scale) ** 2).log1p()

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value):
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self):
        return math.log(4 * math.pi) + self.scale.log()
