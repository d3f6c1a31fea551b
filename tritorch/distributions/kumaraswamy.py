"""The Kumaraswamy distribution: nearly a beta distribution, but with a cdf that has an inverse."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.parameters import EULER, broadcast_all
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import AffineTransform, PowerTransform
from tritorch.distributions.uniform import Uniform
from tritorch.ops.compare import where
from tritorch.ops.create import ones_like, zeros_like


class Kumaraswamy(TransformedDistribution):
    """a b x^(a - 1) (1 - x^a)^(b - 1) in [0, 1]: (1 - u^(1/b))^(1/a) for a uniform u, with a = concentration1 and b = concentration0.

    >>> import tritorch as torch; torch.distributions.Kumaraswamy(2.0, 3.0).mode
    tensor(0.4472)
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support, has_rsample, _parameters = constraints.unit_interval, True, ("concentration1", "concentration0")

    def __init__(self, concentration1, concentration0, validate_args=None):
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        base = Uniform(zeros_like(self.concentration0), ones_like(self.concentration0), validate_args)
        a, b = self.concentration1.reciprocal(), self.concentration0.reciprocal()
        super().__init__(base, [PowerTransform(b), AffineTransform(1.0, -1.0), PowerTransform(a)], validate_args)

    def _moment(self, n):
        """E x^n = b B(1 + n/a, b)."""
        at, b = 1 + n / self.concentration1, self.concentration0
        return b * (at.lgamma() + b.lgamma() - (at + b).lgamma()).exp()

    mean = property(lambda self: self._moment(1), doc="b B(1 + 1/a, b).")
    variance = property(lambda self: self._moment(2) - self.mean**2, doc="b B(1 + 2/a, b) - mean².")

    @property
    def mode(self):
        """((a - 1) / (a b - 1))^(1/a) for a, b ≥ 1, else NaN."""
        a, b = self.concentration1, self.concentration0
        return where((b < 1) | (a < 1), math.nan, ((a - 1) / (a * b - 1)) ** a.reciprocal())

    def entropy(self):
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()
