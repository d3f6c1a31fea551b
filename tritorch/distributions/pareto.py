"""The Pareto distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.parameters import broadcast_all
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import AffineTransform, ExpTransform


class Pareto(TransformedDistribution):
    """alpha · scale^alpha / x^(alpha + 1) for x ≥ scale.

    >>> import tritorch as torch; torch.distributions.Pareto(1.0, torch.tensor([1.0, 3.0])).mean
    tensor([   inf, 1.5000])
    """

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}
    _parameters = "scale", "alpha"

    def __init__(self, scale, alpha, validate_args=None):
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args)
        super().__init__(base, [ExpTransform(), AffineTransform(0, self.scale)], validate_args)

    @property
    def mean(self):
        """scale · alpha / (alpha - 1), infinite for alpha ≤ 1."""
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def variance(self):
        """scale² alpha / ((alpha - 1)² (alpha - 2)), infinite for alpha ≤ 2."""
        a = self.alpha.clamp(min=2)
        return self.scale**2 * a / ((a - 1) ** 2 * (a - 2))

    mode = property(lambda self: self.scale, doc="scale.")

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        """Above scale."""
        return constraints.greater_than_eq(self.scale)

    def entropy(self):
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())
