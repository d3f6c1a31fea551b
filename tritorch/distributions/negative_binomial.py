"""The negative binomial distribution: how many trials succeed before a number of them has failed."""
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.gamma import Gamma
from tritorch.distributions.parameters import Either, lazy_property
from tritorch.nn.functional import logsigmoid
from tritorch.ops.random import poisson


class NegativeBinomial(Either, Distribution):
    """Γ(n + k) / (k! Γ(n)) · (1 - p)^n p^k for k = 0, 1, …, with n = `total_count` failures, p = `probs` or sigmoid(`logits`).

    >>> import tritorch as torch; torch.distributions.NegativeBinomial(3.0, 0.5).log_prob(torch.tensor([0.0, 2.0]))
    tensor([-2.0794, -1.6740])
    """

    arg_constraints = {"total_count": constraints.greater_than_eq(0), "probs": constraints.half_open_interval(0.0, 1.0),
                       "logits": constraints.real}
    support, _parameters = constraints.nonnegative_integer, ("total_count", "probs", "logits")

    def __init__(self, total_count, probs=None, logits=None, validate_args=None):
        count, = self._take(probs, logits, total_count)
        self.total_count = count.to(self._param.dtype)
        super().__init__(self._param.shape, validate_args=validate_args)

    mean = property(lambda self: self.total_count * self.logits.exp(), doc="n p / (1 - p).")
    mode = property(lambda self: ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0), doc="⌊(n - 1) p / (1 - p)⌋.")
    variance = property(lambda self: self.mean / (-self.logits).sigmoid(), doc="n p / (1 - p)².")

    @lazy_property
    def _gamma(self):
        return Gamma(self.total_count, (-self.logits).exp(), validate_args=False)

    def sample(self, sample_shape=()):
        return poisson(self._gamma.sample(sample_shape))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        n = self.total_count
        powers = n * logsigmoid(-self.logits) + value * logsigmoid(self.logits)
        ways = (n + value).lgamma() - (1 + value).lgamma() - n.lgamma()
        return powers + ways.masked_fill(n + value == 0, 0)
