"""The categorical distribution whose outcomes are rows with a single 1."""
from tritorch.distributions.categorical import Categorical
from tritorch.distributions.distribution import Distribution
from tritorch.nn.functional import one_hot


class OneHotCategorical(Distribution):
    """As `Categorical`; class k is the k-th row of the unit matrix."""

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._categorical = Categorical(probs, logits, validate_args)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    probs = property(lambda self: self._categorical.probs, doc="The probabilities of the classes.")
    logits = property(lambda self: self._categorical.logits, doc="Their logarithms.")
    mean = property(lambda self: self.probs, doc="probs.")
    mode = property(lambda self: one_hot(self._categorical.mode, self._event_shape[0]).to(self.probs.dtype), doc="The likeliest class.")
    variance = property(lambda self: self.probs * (1 - self.probs), doc="probs · (1 - probs).")

    def expand(self, batch_shape, _instance=None):
        made = super().expand(batch_shape)
        made._categorical = self._categorical.expand(batch_shape)
        return made

    def sample(self, sample_shape=()):
        return one_hot(self._categorical.sample(sample_shape), self._event_shape[0]).to(self.probs.dtype)

    def log_prob(self, value):
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self):
        return self._categorical.entropy()
