"""The beta distribution."""
from tritorch.distributions import constraints
from tritorch.distributions.dirichlet import Dirichlet
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.parameters import broadcast_all
from tritorch.ops.shaping import stack


class Beta(ExponentialFamily):
    """x^(a - 1) (1 - x)^(b - 1) / B(a, b) in [0, 1], with a = concentration1 and b = concentration0.

    >>> import tritorch as torch; torch.distributions.Beta(2.0, 3.0).log_prob(torch.tensor([0.2, 0.5]))
    tensor([0.4292, 0.4055])
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support, has_rsample, _parameters = constraints.unit_interval, True, ("_dirichlet",)

    def __init__(self, concentration1, concentration0, validate_args=None):
        self._dirichlet = Dirichlet(stack(broadcast_all(concentration1, concentration0), -1), validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    concentration1 = property(lambda self: self._dirichlet.concentration[..., 0], doc="a.")
    concentration0 = property(lambda self: self._dirichlet.concentration[..., 1], doc="b.")
    mean = property(lambda self: self._dirichlet.mean[..., 0], doc="a / (a + b).")
    mode = property(lambda self: self._dirichlet.mode[..., 0], doc="(a - 1) / (a + b - 2) for a, b > 1.")
    variance = property(lambda self: self._dirichlet.variance[..., 0], doc="a b / ((a + b)² (a + b + 1)).")
    _natural_params = property(lambda self: (self.concentration1, self.concentration0))

    def _log_normalizer(self, x, y):
        return x.lgamma() + y.lgamma() - (x + y).lgamma()

    def rsample(self, sample_shape=()):
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return self._dirichlet.log_prob(stack([value, 1 - value], -1))

    def entropy(self):
        return self._dirichlet.entropy()
