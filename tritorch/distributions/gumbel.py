"""The Gumbel distribution: the largest of many."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.parameters import EULER, broadcast_all
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import AffineTransform, ExpTransform
from tritorch.distributions.uniform import Uniform
from tritorch.dtype import finfo
from tritorch.ops.create import full_like, ones_like


class Gumbel(TransformedDistribution):
    """exp(-z - exp(-z)) / scale with z = (x - loc) / scale.

    >>> import tritorch as torch; torch.distributions.Gumbel(1.0, 2.0).mean
    tensor(2.1544)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support, _parameters = constraints.real, ("loc", "scale")

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        kind = finfo(self.loc.dtype)
        base = Uniform(full_like(self.loc, kind.tiny), full_like(self.loc, 1 - kind.eps), validate_args)
        steps = [ExpTransform().inv, AffineTransform(0, -ones_like(self.scale)), ExpTransform().inv, AffineTransform(loc, -self.scale)]
        super().__init__(base, steps, validate_args)                     # loc - scale · log(-log u)

    mean = property(lambda self: self.loc + self.scale * EULER, doc="loc + 0.5772 scale.")
    mode = property(lambda self: self.loc, doc="loc.")
    stddev = property(lambda self: math.pi / math.sqrt(6) * self.scale, doc="π scale / √6.")
    variance = property(lambda self: self.stddev**2, doc="π² scale² / 6.")

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        z = (self.loc - value) / self.scale
        return z - z.exp() - self.scale.log()

    def entropy(self):
        return self.scale.log() + (1 + EULER)
