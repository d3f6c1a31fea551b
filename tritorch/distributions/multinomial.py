"""The multinomial distribution: how often each class comes in a number of trials."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.binomial import Binomial
from tritorch.distributions.categorical import OfCategorical
from tritorch.distributions.parameters import broadcast_all
from tritorch.errors import check
from tritorch.ops.create import ones_like
from tritorch.shape import Size


class Multinomial(OfCategorical):
    """n! / Π x[k]! · Π p[k]^x[k] for counts x of sum n = `total_count`, with p as in `Categorical`. log_prob takes counts of other sums.

    >>> import tritorch as torch; torch.distributions.Multinomial(3, torch.ones(2)).log_prob(torch.tensor([1.0, 2.0]))
    tensor(-0.9808)
    """

    _parameters = ("_categorical",)

    def __init__(self, total_count=1, probs=None, logits=None, validate_args=None):
        check(isinstance(total_count, int), "Multinomial", "one int as total_count", total_count, error=NotImplementedError)
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    mean = property(lambda self: self.probs * self.total_count, doc="n p.")
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs), doc="n p (1 - p).")

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self):
        """Counts of sum n or less."""
        return constraints.multinomial(self.total_count)

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new.total_count = self.total_count
        return new

    def sample(self, sample_shape=()):
        drawn = self._categorical.sample((self.total_count, *sample_shape)).movedim(0, -1)
        counts = drawn.new_zeros(self._extended_shape(Size(sample_shape)))
        return counts.scatter_add(-1, drawn, ones_like(drawn)).to(self.probs.dtype)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        logits = logits.masked_fill((value == 0) & (logits == -math.inf), 0)
        return (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1) + (logits * value).sum(-1)

    def entropy(self):
        """n H(p) - log n! + Σ E log x[k]!, where the x[k] are binomial."""
        n, each = self.total_count, Binomial(self.total_count, self.probs, validate_args=False)
        counts = each.enumerate_support(False)[1:]
        expected = (each.log_prob(counts).exp() * (counts + 1).lgamma()).sum((0, -1))
        return n * self._categorical.entropy() - math.lgamma(n + 1) + expected
