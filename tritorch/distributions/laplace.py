"""The Laplace distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import broadcast_all
from tritorch.dtype import finfo
from tritorch.ops.random import rand


class Laplace(Distribution):
    """exp(-|x - loc| / scale) / (2 scale).

    >>> import tritorch as torch; torch.distributions.Laplace(0.0, 2.0).cdf(torch.tensor([0.0, 2.0]))
    tensor([0.5000, 0.8161])
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, _parameters = constraints.real, True, ("loc", "scale")

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean = mode = property(lambda self: self.loc, doc="loc.")
    variance = property(lambda self: 2 * self.scale**2, doc="2 scale².")
    stddev = property(lambda self: 2**0.5 * self.scale, doc="√2 scale.")

    def rsample(self, sample_shape=()):
        u = rand(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device) * 2 - 1
        return self.loc - self.scale * u.sign() * (-u.abs().clamp(max=1 - finfo(u.dtype).eps)).log1p()

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value):
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self):
        return 1 + (2 * self.scale).log()
