"""The log-normal distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.normal import Normal
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import ExpTransform


class LogNormal(TransformedDistribution):
    """exp(x) for x of Normal(loc, scale).

    >>> import tritorch as torch; torch.distributions.LogNormal(0.0, 1.0).log_prob(torch.tensor([0.5, 1.0]))
    tensor([-0.4660, -0.9189])
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, _parameters = constraints.positive, True, ()

    def __init__(self, loc, scale, validate_args=None):
        super().__init__(Normal(loc, scale, validate_args), ExpTransform(), validate_args)

    loc = property(lambda self: self.base_dist.loc, doc="The mean of log x.")
    scale = property(lambda self: self.base_dist.scale, doc="The standard deviation of log x.")
    mean = property(lambda self: (self.loc + self.scale**2 / 2).exp(), doc="exp(loc + scale² / 2).")
    mode = property(lambda self: (self.loc - self.scale**2).exp(), doc="exp(loc - scale²).")

    @property
    def variance(self):
        """(exp(scale²) - 1) exp(2 loc + scale²)."""
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self):
        return self.base_dist.entropy() + self.loc
