"""The Poisson distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.random import poisson


class Poisson(ExponentialFamily):
    """rate^k exp(-rate) / k! for k = 0, 1, …

    >>> import tritorch as torch; torch.distributions.Poisson(2.0).log_prob(torch.tensor([0.0, 2.0]))
    tensor([-2.0000, -1.3069])
    """

    arg_constraints = {"rate": constraints.nonnegative}
    support, _parameters = constraints.nonnegative_integer, ("rate",)

    def __init__(self, rate, validate_args=None):
        self.rate, = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    mean = variance = property(lambda self: self.rate, doc="rate.")
    mode = property(lambda self: self.rate.floor(), doc="⌊rate⌋.")
    _natural_params = property(lambda self: (self.rate.log(),))

    def _log_normalizer(self, x):
        return x.exp()

    def sample(self, sample_shape=()):
        return poisson(self.rate.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        rate, value = broadcast_all(self.rate, value)
        return value.xlogy(rate) - rate - (value + 1).lgamma()
