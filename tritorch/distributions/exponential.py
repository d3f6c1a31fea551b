"""The exponential distribution."""
from tritorch.distributions.distribution import Distribution, broadcast_all
from tritorch.tensor import empty


class Exponential(Distribution):
    """rate · exp(-rate · x) for x ≥ 0."""

    has_rsample, _parameters = True, ("rate",)

    def __init__(self, rate, validate_args=None):
        self.rate, = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)
        self._require("a positive rate", self.rate, lambda x: x > 0)

    mean = stddev = property(lambda self: self.rate.reciprocal(), doc="1 / rate.")
    mode = property(lambda self: self.rate.detach() * 0, doc="0.")
    variance = property(lambda self: self.rate**-2, doc="1 / rate².")

    def rsample(self, sample_shape=()):
        return empty(self._extended(sample_shape), self.rate.dtype, self.rate.device).exponential_() / self.rate

    def log_prob(self, value):
        self._require("a value that is not negative", value, lambda x: x >= 0)
        return self.rate.log() - self.rate * value

    def cdf(self, value):
        self._require("a value that is not negative", value, lambda x: x >= 0)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value):
        return -(-value).log1p() / self.rate

    def entropy(self):
        return 1 - self.rate.log()
