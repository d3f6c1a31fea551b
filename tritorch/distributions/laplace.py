"""The Laplace distribution."""
from tritorch.distributions.distribution import Distribution, broadcast_all
from tritorch.dtype import finfo
from tritorch.ops.random import rand


class Laplace(Distribution):
    """exp(-|x - loc| / scale) / (2 scale)."""

    has_rsample, _parameters = True, ("loc", "scale")

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)
        self._require("a positive scale", self.scale, lambda x: x > 0)

    mean = mode = property(lambda self: self.loc, doc="loc.")
    variance = property(lambda self: 2 * self.scale**2, doc="2 scale².")
    stddev = property(lambda self: 2**0.5 * self.scale, doc="√2 scale.")

    def rsample(self, sample_shape=()):
        u = rand(self._extended(sample_shape), dtype=self.loc.dtype, device=self.loc.device) * 2 - 1
        return self.loc - self.scale * u.sign() * (-u.abs().clamp(max=1 - finfo(u.dtype).eps)).log1p()

    def log_prob(self, value):
        self._require("a value that is no NaN", value, lambda x: x == x)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value):
        self._require("a value that is no NaN", value, lambda x: x == x)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value):
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self):
        return 1 + (2 * self.scale).log()
