"""The exponential distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.create import empty, zeros_like


class Exponential(ExponentialFamily):
    """rate · exp(-rate · x) for x ≥ 0.

    >>> import tritorch as torch; torch.distributions.Exponential(2.0).icdf(torch.tensor([0.5, 0.9]))
    tensor([0.3466, 1.1513])
    """

    arg_constraints = {"rate": constraints.positive}
    support, has_rsample, _parameters, _mean_carrier_measure = constraints.nonnegative, True, ("rate",), 0

    def __init__(self, rate, validate_args=None):
        self.rate, = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    mean = stddev = property(lambda self: self.rate.reciprocal(), doc="1 / rate.")
    mode = property(lambda self: zeros_like(self.rate), doc="0.")
    variance = property(lambda self: self.rate**-2, doc="1 / rate².")
    _natural_params = property(lambda self: (-self.rate,))

    def _log_normalizer(self, x):
        return -(-x).log()

    def rsample(self, sample_shape=()):
        return empty(self._extended_shape(sample_shape), dtype=self.rate.dtype, device=self.rate.device).exponential_() / self.rate

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value):
        return -(-value).log1p() / self.rate

    def entropy(self):
        return 1 - self.rate.log()
