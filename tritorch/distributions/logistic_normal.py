"""The logistic-normal distribution on the simplex."""
from tritorch.distributions import constraints
from tritorch.distributions.normal import Normal
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import StickBreakingTransform


class LogisticNormal(TransformedDistribution):
    """A stick broken by K - 1 numbers of Normal(loc, scale) into K probabilities.

    >>> import tritorch as torch
    >>> torch.distributions.LogisticNormal(torch.zeros(2), torch.ones(2)).log_prob(torch.tensor([0.2, 0.3, 0.5]))
    tensor(1.2980)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, _parameters = constraints.simplex, True, ()

    def __init__(self, loc, scale, validate_args=None):
        base = Normal(loc, scale, validate_args)
        super().__init__(base if base.batch_shape else base.expand((1,)), StickBreakingTransform(), validate_args)

    loc = property(lambda self: self.base_dist.base_dist.loc, doc="The means of the numbers.")
    scale = property(lambda self: self.base_dist.base_dist.scale, doc="Their standard deviations.")
