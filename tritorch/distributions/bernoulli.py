"""The Bernoulli distribution: 1 or 0."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.parameters import Either, broadcast_all
from tritorch.nn.functional import binary_cross_entropy_with_logits
from tritorch.ops.compare import where
from tritorch.ops.random import bernoulli


class Bernoulli(Either, ExponentialFamily):
    """1 with probability `probs`, or sigmoid(`logits`), else 0.

    >>> import tritorch as torch; torch.distributions.Bernoulli(logits=torch.tensor([0.0, 2.0])).log_prob(torch.tensor([1.0, 0.0]))
    tensor([-0.6931, -2.1269])
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support, has_enumerate_support, _parameters, _mean_carrier_measure = constraints.boolean, True, ("probs", "logits"), 0

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    mean = property(lambda self: self.probs, doc="probs.")
    variance = property(lambda self: self.probs * (1 - self.probs), doc="probs · (1 - probs).")
    mode = property(lambda self: where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype)), doc="The likelier outcome.")
    _natural_params = property(lambda self: (self.probs.logit(),))

    def _log_normalizer(self, x):
        return x.exp().log1p()

    def sample(self, sample_shape=()):
        return bernoulli(self.probs.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value.to(logits.dtype), reduction="none")

    def entropy(self):
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand=True):
        values = self._param.new_tensor([0.0, 1.0]).view(2, *[1] * len(self._batch_shape))
        return values.expand(2, *self._batch_shape) if expand else values
