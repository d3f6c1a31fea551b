"""The Weibull distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.parameters import EULER, broadcast_all
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import AffineTransform, PowerTransform
from tritorch.ops.create import ones_like


class Weibull(TransformedDistribution):
    """scale · x^(1/concentration) for x of Exponential(1).

    >>> import tritorch as torch; torch.distributions.Weibull(1.0, torch.tensor([1.0, 2.0])).mean
    tensor([1.0000, 0.8862])
    """

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support, _parameters = constraints.positive, ("scale", "concentration", "concentration_reciprocal")

    def __init__(self, scale, concentration, validate_args=None):
        self.scale, self.concentration = broadcast_all(scale, concentration)
        self.concentration_reciprocal = self.concentration.reciprocal()
        base = Exponential(ones_like(self.scale), validate_args)
        super().__init__(base, [PowerTransform(self.concentration_reciprocal), AffineTransform(0, self.scale)], validate_args)

    mean = property(lambda self: self.scale * (1 + self.concentration_reciprocal).lgamma().exp(), doc="scale · Γ(1 + 1/concentration).")

    @property
    def mode(self):
        """scale · (1 - 1/concentration)^(1/concentration)."""
        return self.scale * ((self.concentration - 1) / self.concentration) ** self.concentration_reciprocal

    @property
    def variance(self):
        """scale² (Γ(1 + 2/concentration) - Γ(1 + 1/concentration)²)."""
        first, second = (1 + self.concentration_reciprocal).lgamma(), (1 + 2 * self.concentration_reciprocal).lgamma()
        return self.scale**2 * (second.exp() - (2 * first).exp())

    def entropy(self):
        return EULER * (1 - self.concentration_reciprocal) + (self.scale * self.concentration_reciprocal).log() + 1
