"""The gamma distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.parameters import broadcast_all
from tritorch.dtype import finfo
from tritorch.interop import as_tensor
from tritorch.ops.gamma import _standard_gamma
from tritorch.ops.gamma_functions import igamma


class Gamma(ExponentialFamily):
    """rate^c x^(c - 1) exp(-rate · x) / Γ(c) for x > 0, with c = `concentration`.

    >>> import tritorch as torch; torch.distributions.Gamma(2.0, 1.0).log_prob(torch.tensor([0.5, 1.0]))
    tensor([-1.1931, -1.0000])
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support, has_rsample, _parameters, _mean_carrier_measure = constraints.nonnegative, True, ("concentration", "rate"), 0

    def __init__(self, concentration, rate, validate_args=None):
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    mean = property(lambda self: self.concentration / self.rate, doc="c / rate.")
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0), doc="(c - 1) / rate, or 0.")
    variance = property(lambda self: self.concentration / self.rate**2, doc="c / rate².")
    _natural_params = property(lambda self: (self.concentration - 1, -self.rate))

    def _log_normalizer(self, x, y):
        return (x + 1).lgamma() + (x + 1) * (-y.reciprocal()).log()

    def rsample(self, sample_shape=()):
        """Outcomes, never 0. Gradients by implicit reparameterization (M. Figurnov et al., arXiv:1805.08498)."""
        shape = self._extended_shape(sample_shape)
        value = _standard_gamma(self.concentration.expand(shape)) / self.rate.expand(shape)
        value.detach().clamp_(min=finfo(value.dtype).tiny)               # without a word to the graph: gradients flow there, too
        return value

    def log_prob(self, value):
        value = as_tensor(value, self.rate.dtype, self.rate.device)
        if self._validate_args:
            self._validate_sample(value)
        c, rate = self.concentration, self.rate
        return c.xlogy(rate) + (c - 1).xlogy(value) - rate * value - c.lgamma()

    def cdf(self, value):
        """The regularized incomplete gamma function. As in PyTorch it has no gradient of the concentration."""
        if self._validate_args:
            self._validate_sample(value)
        return igamma(self.concentration, self.rate * value)

    def entropy(self):
        c = self.concentration
        return c - self.rate.log() + c.lgamma() + (1 - c) * c.digamma()
