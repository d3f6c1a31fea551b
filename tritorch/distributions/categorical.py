"""The categorical distribution: one of K classes."""
import math

from tritorch.distributions.distribution import Distribution, inside
from tritorch.dtype import finfo, types
from tritorch.errors import check
from tritorch.ops.methods import surface
from tritorch.ops.random import multinomial
from tritorch.shape import Size


class Categorical(Distribution):
    """Class k of the last dim with probability probs[..., k] / Σ probs, or softmax(logits)[..., k]."""

    has_enumerate_support, _parameters = True, ("probs", "logits")

    def __init__(self, probs=None, logits=None, validate_args=None):
        check((probs is None) != (logits is None), "Categorical", "probs or logits", "both or none", error=ValueError)
        given = logits if probs is None else probs
        check(len(given.shape) > 0, "Categorical", "a parameter of at least one dim", given.shape, error=ValueError)
        super().__init__(given.shape[:-1], validate_args=validate_args)
        if probs is None:
            self._require("logits that are no NaN", logits, lambda x: x == x)
            self.__dict__["logits"] = logits - logits.logsumexp(-1, True)
        else:
            self._require("probs that are not negative, and not all 0", probs, lambda x: (x >= 0) & (x.sum(-1, True) > 0))
            self.__dict__["probs"] = probs / probs.sum(-1, True)

    def __getattr__(self, name):                                         # the one of the two that was not given
        if name == "probs" and "logits" in self.__dict__:
            return self.logits.softmax(-1)
        if name == "logits" and "probs" in self.__dict__:
            return inside(self.probs).log()
        raise AttributeError(name)

    _given = property(lambda self: self.__dict__.get("probs", self.__dict__.get("logits")))
    param_shape = property(lambda self: self._given.shape, doc="The shape of probs.")
    _num_events = property(lambda self: self._given.shape[-1])
    mode = property(lambda self: self.probs.argmax(-1), doc="The likeliest class.")
    mean = variance = property(lambda self: self._given.new_full(self._batch_shape, math.nan), doc="NaN: classes have no order.")

    def sample(self, sample_shape=()):
        shape = self._extended(sample_shape)
        rows = self.probs.detach().reshape(-1, self._num_events)
        return multinomial(rows, Size(sample_shape).numel(), True).t().reshape(shape)

    def log_prob(self, value):
        self._require(f"classes 0 … {self._num_events - 1}", value, lambda x: (x >= 0) & (x < self._num_events) & (x == x.round()))
        value = value.long().unsqueeze(-1)
        shape = surface["broadcast_shapes"](value.shape[:-1], self._batch_shape)
        return self.logits.expand(*shape, self._num_events).gather(-1, value.expand(*shape, 1)).squeeze(-1)

    def entropy(self):
        logits = self.logits.clamp(min=finfo(self.logits.dtype).min)     # 0 · -inf is no NaN here
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand=True):
        """All classes, for every batch."""
        values = surface["arange"](self._num_events, dtype=types.int64, device=self._given.device)
        values = values.view(-1, *[1] * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values
