"""The categorical distribution whose outcomes are rows with a single 1."""
from tritorch.distributions import constraints
from tritorch.distributions.categorical import OfCategorical
from tritorch.nn.functional import one_hot
from tritorch.ops.create import eye


class OneHotCategorical(OfCategorical):
    """As `Categorical`; class k is the k-th row of the unit matrix.

    >>> import tritorch as torch; torch.distributions.OneHotCategorical(torch.tensor([1.0, 1.0, 2.0])).mode
    tensor([0., 0., 1.])
    """

    support, has_enumerate_support, _parameters = constraints.one_hot, True, ("_categorical",)

    def __init__(self, probs=None, logits=None, validate_args=None):
        super().__init__(probs, logits, validate_args)

    mean = property(lambda self: self.probs, doc="probs.")
    mode = property(lambda self: one_hot(self._categorical.mode, self._event_shape[0]).to(self.probs.dtype), doc="The likeliest class.")
    variance = property(lambda self: self.probs * (1 - self.probs), doc="probs · (1 - probs).")

    def sample(self, sample_shape=()):
        return one_hot(self._categorical.sample(sample_shape), self._event_shape[0]).to(self.probs.dtype)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self):
        return self._categorical.entropy()

    def enumerate_support(self, expand=True):
        n = self._event_shape[0]
        values = eye(n, dtype=self._param.dtype, device=self._param.device).view(n, *[1] * len(self._batch_shape), n)
        return values.expand(n, *self._batch_shape, n) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """Its outcomes pass gradients on as if they were `probs` (Y. Bengio et al., arXiv:1308.3432).

    >>> import tritorch as torch
    >>> p = torch.tensor([0.3, 0.7], requires_grad=True)
    >>> torch.distributions.OneHotCategoricalStraightThrough(p).rsample().requires_grad
    True
    """

    has_rsample, _parameters = True, ("_categorical",)

    def rsample(self, sample_shape=()):
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
