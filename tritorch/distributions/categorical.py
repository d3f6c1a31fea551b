"""The categorical distribution: one of K classes."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import Either
from tritorch.dtype import finfo, types
from tritorch.errors import check
from tritorch.ops.create import arange
from tritorch.ops.random import multinomial
from tritorch.ops.shaping import broadcast_shapes
from tritorch.shape import Size


class Categorical(Either, Distribution):
    """Class k of the last dim with probability probs[..., k] / Σ probs, or softmax(logits)[..., k].

    >>> import tritorch as torch; torch.distributions.Categorical(torch.tensor([1.0, 1.0, 2.0])).log_prob(torch.tensor([0, 2]))
    tensor([-1.3863, -0.6931])
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support, _parameters, _binary = True, ("probs", "logits"), False

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._take(probs, logits)
        given = self._param
        check(len(given.shape) > 0, "Categorical", "a parameter of at least one dim", given.shape, error=ValueError)
        if probs is None:
            self.logits = given - given.logsumexp(-1, True)
        else:
            self.probs = given / given.sum(-1, True)
        super().__init__(given.shape[:-1], validate_args=validate_args)

    _num_events = property(lambda self: self._param.shape[-1])
    mode = property(lambda self: self.probs.argmax(-1), doc="The likeliest class.")
    mean = variance = property(lambda self: self._param.new_full(self._batch_shape, math.nan), doc="NaN: classes have no order.")

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self):
        """The classes."""
        return constraints.integer_interval(0, self._num_events - 1)

    def sample(self, sample_shape=()):
        rows = self.probs.detach().reshape(-1, self._num_events)
        return multinomial(rows, Size(sample_shape).numel(), True).t().reshape(self._extended_shape(sample_shape))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        value = value.long().unsqueeze(-1)
        shape = broadcast_shapes(value.shape[:-1], self._batch_shape)
        return self.logits.expand(*shape, self._num_events).gather(-1, value.expand(*shape, 1)).squeeze(-1)

    def entropy(self):
        logits = self.logits.clamp(min=finfo(self.logits.dtype).min)     # 0 · -inf is no NaN here
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand=True):
        values = arange(self._num_events, dtype=types.int64, device=self._param.device)
        values = values.view(-1, *[1] * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values


class OfCategorical(Distribution):
    """The base of distributions that stand on a `Categorical`, which has checked the parameters."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(self, probs, logits, validate_args):
        self._categorical = Categorical(probs, logits, validate_args)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    probs = property(lambda self: self._categorical.probs, doc="The probabilities of the classes.")
    logits = property(lambda self: self._categorical.logits, doc="Their logarithms.")
    param_shape = property(lambda self: self._categorical.param_shape, doc="The shape of probs.")
    _param = property(lambda self: self._categorical._param)

    def _validate_parameters(self):
        pass
