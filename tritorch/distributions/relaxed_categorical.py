"""The categorical distribution relaxed to points of the simplex, so that gradients flow through its outcomes."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.categorical import OfCategorical
from tritorch.distributions.parameters import broadcast_all, clamp_probs
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import ExpTransform
from tritorch.ops.random import rand


class ExpRelaxedCategorical(OfCategorical):
    """The logarithms of `RelaxedOneHotCategorical`: log_softmax((logits + g) / temperature) for Gumbel numbers g."""

    support, has_rsample, _parameters = constraints.real_vector, True, ("_categorical",)

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new.temperature = self.temperature
        return new

    def rsample(self, sample_shape=()):
        logits = self.logits
        u = clamp_probs(rand(self._extended_shape(sample_shape), dtype=logits.dtype, device=logits.device))
        return ((logits - (-u.log()).log()) / self.temperature).log_softmax(-1)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        classes = self._event_shape[0]
        logits, value = broadcast_all(self.logits, value)
        score = (logits - value * self.temperature).log_softmax(-1).sum(-1)
        return score + math.lgamma(classes) + (classes - 1) * self.temperature.log()


class RelaxedOneHotCategorical(TransformedDistribution):
    """softmax((logits + g) / temperature) for Gumbel numbers g: near a row with a single 1 for a small temperature.

    Concrete (C. Maddison, A. Mnih and Y. W. Teh, arXiv:1611.00712), or Gumbel-softmax (E. Jang, S. Gu and B. Poole, arXiv:1611.01144).

    >>> import tritorch as torch
    >>> torch.distributions.RelaxedOneHotCategorical(torch.tensor(0.5), torch.ones(2)).log_prob(torch.tensor([0.1, 0.9]))
    tensor(0.0408)
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support, has_rsample, _parameters = constraints.simplex, True, ()

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        super().__init__(ExpRelaxedCategorical(temperature, probs, logits, validate_args), ExpTransform(), validate_args)

    def _validate_parameters(self):
        """The base has checked them."""

    temperature = property(lambda self: self.base_dist.temperature, doc="How far from a single 1.")
    logits = property(lambda self: self.base_dist.logits, doc="The logarithms of probs.")
    probs = property(lambda self: self.base_dist.probs, doc="The chances of the classes.")
