"""The Bernoulli distribution relaxed to numbers between 0 and 1, so that gradients flow through its outcomes."""
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import Either, broadcast_all, clamp_probs
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import SigmoidTransform
from tritorch.ops.random import rand


class LogitRelaxedBernoulli(Either, Distribution):
    """The logits of `RelaxedBernoulli`: (logit(u) + logits) / temperature for a uniform u."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support, _parameters = constraints.real, ("probs", "logits")

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        self.temperature = temperature
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new.temperature = self.temperature
        return new

    def rsample(self, sample_shape=()):
        shape = self._extended_shape(sample_shape)
        p = clamp_probs(self.probs.expand(shape))
        u = clamp_probs(rand(shape, dtype=p.dtype, device=p.device))
        return (u.log() - (-u).log1p() + p.log() - (-p).log1p()) / self.temperature

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        z = logits - value * self.temperature
        return self.temperature.log() + z - 2 * z.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """sigmoid((logit(u) + logits) / temperature): near 0 or 1 for a small temperature.

    Binary Concrete (C. Maddison, A. Mnih and Y. W. Teh, arXiv:1611.00712; E. Jang, S. Gu and B. Poole, arXiv:1611.01144).

    >>> import tritorch as torch
    >>> torch.distributions.RelaxedBernoulli(torch.tensor(0.5), logits=torch.zeros(2)).log_prob(torch.tensor([0.1, 0.5]))
    tensor([ 0.0408, -0.6931])
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support, has_rsample, _parameters = constraints.unit_interval, True, ()

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        super().__init__(LogitRelaxedBernoulli(temperature, probs, logits, validate_args), SigmoidTransform(), validate_args)

    def _validate_parameters(self):
        """The base has checked them."""

    temperature = property(lambda self: self.base_dist.temperature, doc="How far from 0 and 1.")
    logits = property(lambda self: self.base_dist.logits, doc="log(p / (1 - p)).")
    probs = property(lambda self: self.base_dist.probs, doc="The chance of what is relaxed to be 1.")
