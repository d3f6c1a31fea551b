"""The Dirichlet distribution on the simplex."""
from tritorch.distributions import constraints
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.errors import check
from tritorch.nn.functional import one_hot
from tritorch.ops.compare import where
from tritorch.ops.gamma import _sample_dirichlet


class Dirichlet(ExponentialFamily):
    """Γ(Σ c) / Π Γ(c[k]) · Π x[k]^(c[k] - 1), with c = `concentration` along the last dim.

    >>> import tritorch as torch; torch.distributions.Dirichlet(torch.tensor([1.0, 2.0, 1.0])).mean
    tensor([0.2500, 0.5000, 0.2500])
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support, has_rsample, _parameters = constraints.simplex, True, ("concentration",)

    def __init__(self, concentration, validate_args=None):
        shape = concentration.shape
        check(len(shape) > 0, "Dirichlet", "concentrations of at least one dim", shape, error=ValueError)
        self.concentration = concentration
        super().__init__(shape[:-1], shape[-1:], validate_args)

    mean = property(lambda self: self.concentration / self.concentration.sum(-1, True), doc="c / Σ c.")
    _natural_params = property(lambda self: (self.concentration,))

    @property
    def mode(self):
        """(c - 1) / Σ (c - 1), negative numbers counted as 0; where all c < 1, a corner."""
        above = (self.concentration - 1).clamp(min=0)
        mode = above / above.sum(-1, True)
        corner = one_hot(mode.argmax(-1), mode.shape[-1]).to(mode.dtype)
        return where((self.concentration < 1).all(-1, True), corner, mode)

    @property
    def variance(self):
        """c (Σ c - c) / ((Σ c)² (Σ c + 1))."""
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def _log_normalizer(self, x):
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()

    def rsample(self, sample_shape=()):
        """Outcomes. Gradients by implicit reparameterization (M. Figurnov et al., arXiv:1805.08498)."""
        return _sample_dirichlet(self.concentration.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return (self.concentration - 1).xlogy(value).sum(-1) - self._log_normalizer(self.concentration)

    def entropy(self):
        c, total = self.concentration, self.concentration.sum(-1)
        rest = (c.shape[-1] - total) * total.digamma() + ((c - 1) * c.digamma()).sum(-1)
        return self._log_normalizer(c) - rest
