"""The binomial distribution: how many of a number of trials succeed."""
from numbers import Number

from tritorch.autograd import no_grad
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import Either
from tritorch.errors import check
from tritorch.nn.functional import logsigmoid
from tritorch.ops.binomial import binomial
from tritorch.ops.create import arange


class Binomial(Either, Distribution):
    """n! / (k! (n - k)!) · p^k (1 - p)^(n - k) for k = 0 … n, with n = `total_count` and p = `probs` or sigmoid(`logits`).

    >>> import tritorch as torch; torch.distributions.Binomial(4, torch.tensor([0.5, 0.1])).log_prob(torch.tensor(2.0))
    tensor([-0.9808, -3.0241])
    """

    arg_constraints = {"total_count": constraints.nonnegative_integer, "probs": constraints.unit_interval, "logits": constraints.real}
    has_enumerate_support, _parameters = True, ("total_count", "probs", "logits")

    def __init__(self, total_count=1, probs=None, logits=None, validate_args=None):
        count, = self._take(probs, logits, total_count)
        self.total_count = count.to(self._param.dtype)
        self._most = total_count if isinstance(total_count, Number) else None
        super().__init__(self._param.shape, validate_args=validate_args)

    mean = property(lambda self: self.total_count * self.probs, doc="n p.")
    mode = property(lambda self: ((self.total_count + 1) * self.probs).floor().minimum(self.total_count), doc="⌊(n + 1) p⌋, at most n.")
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs), doc="n p (1 - p).")

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self):
        """0 … n."""
        return constraints.integer_interval(0, self.total_count)

    def sample(self, sample_shape=()):
        shape = self._extended_shape(sample_shape)
        with no_grad():
            return binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new._most = self._most
        return new

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        n = self.total_count
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * self.logits + n * logsigmoid(-self.logits)

    def _one_count(self, what):
        if self._most is not None:
            return int(self._most)
        count = int(self.total_count.max())
        check(bool(self.total_count.min() == count), f"Binomial.{what}", "one total_count for the batch", self.total_count.detach(),
              error=NotImplementedError)
        return count

    def entropy(self):
        self._one_count("entropy")
        log_p = self.log_prob(self.enumerate_support(False))
        return -(log_p.exp() * log_p).sum(0)

    def enumerate_support(self, expand=True):
        count = self._one_count("enumerate_support")
        values = arange(count + 1, dtype=self._param.dtype, device=self._param.device).view(-1, *[1] * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values
