"""The Bernoulli distribution: 1 or 0."""
import math

from tritorch.distributions.distribution import Distribution, broadcast_all, inside
from tritorch.errors import check
from tritorch.nn.functional import binary_cross_entropy_with_logits
from tritorch.ops.compare import where
from tritorch.ops.random import bernoulli


class Bernoulli(Distribution):
    """1 with probability `probs`, or sigmoid(`logits`), else 0."""

    has_enumerate_support, _parameters = True, ("probs", "logits")

    def __init__(self, probs=None, logits=None, validate_args=None):
        check((probs is None) != (logits is None), "Bernoulli", "probs or logits", "both or none", error=ValueError)
        given, = broadcast_all(logits if probs is None else probs)
        self.__dict__["logits" if probs is None else "probs"] = given
        super().__init__(given.shape, validate_args=validate_args)
        self._require("logits that are no NaN" if probs is None else "probs in [0, 1]", given,
                      lambda x: x == x if probs is None else (x >= 0) & (x <= 1))

    def __getattr__(self, name):                                         # the one of the two that was not given
        if name == "probs" and "logits" in self.__dict__:
            return self.logits.sigmoid()
        if name == "logits" and "probs" in self.__dict__:
            p = inside(self.probs)
            return p.log() - (-p).log1p()
        raise AttributeError(name)

    mean = property(lambda self: self.probs, doc="probs.")
    variance = property(lambda self: self.probs * (1 - self.probs), doc="probs · (1 - probs).")
    mode = property(lambda self: where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype)), doc="The likelier outcome.")
    param_shape = property(lambda self: self._batch_shape, doc="The shape of the parameters.")

    def sample(self, sample_shape=()):
        return bernoulli(self.probs.detach().expand(self._extended(sample_shape)))

    def log_prob(self, value):
        self._require("values 0 and 1", value, lambda x: (x == 0) | (x == 1))
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value.to(logits.dtype), reduction="none")

    def entropy(self):
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand=True):
        """0 and 1, for every batch."""
        values = self.probs.new_tensor([0.0, 1.0]).view(2, *[1] * len(self._batch_shape))
        return values.expand(2, *self._batch_shape) if expand else values
