"""A mixture: one of several distributions of a family is chosen, which then draws."""
from tritorch.autograd import no_grad
from tritorch.distributions import constraints
from tritorch.distributions.categorical import Categorical
from tritorch.distributions.distribution import Distribution
from tritorch.errors import check


class MixtureSameFamily(Distribution):
    """Σ w[k] p_k(x), with the weights of a Categorical, and the components along the last batch dim of `component_distribution`.

    >>> import tritorch as torch; d = torch.distributions
    >>> mixture = d.MixtureSameFamily(d.Categorical(torch.ones(2)), d.Normal(torch.tensor([-1.0, 1.0]), torch.ones(2)))
    >>> mixture.mean, mixture.variance, mixture.log_prob(torch.tensor(0.0))
    (tensor(0.), tensor(2.), tensor(-1.4189))
    """

    arg_constraints, _parameters = {}, ()

    def __init__(self, mixture_distribution, component_distribution, validate_args=None):
        mixture, component = mixture_distribution, component_distribution
        check(isinstance(mixture, Categorical), "MixtureSameFamily", "a Categorical as mixture", type(mixture).__name__, error=ValueError)
        check(isinstance(component, Distribution), "MixtureSameFamily", "a Distribution as component", type(component).__name__,
              error=ValueError)
        batch = component.batch_shape[:-1]
        fit = all(n == m or n == 1 or m == 1 for n, m in zip(reversed(mixture.batch_shape), reversed(batch)))
        fit = fit and mixture._num_events == component.batch_shape[-1]
        check(fit, "MixtureSameFamily", "components by the weights' shape", (tuple(mixture.param_shape), tuple(component.batch_shape)),
              error=ValueError)
        self._mixture_distribution, self._component_distribution = mixture, component
        super().__init__(batch, component.event_shape, validate_args)

    mixture_distribution = property(lambda self: self._mixture_distribution, doc="The weights.")
    component_distribution = property(lambda self: self._component_distribution, doc="The components.")
    _at = property(lambda self: -1 - len(self._event_shape))             # the dim of the components in what they draw

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(MixtureSameFamily, _instance)
        new._mixture_distribution = self._mixture_distribution.expand(batch_shape)
        new._component_distribution = self._component_distribution.expand((*batch_shape, self._mixture_distribution._num_events))
        Distribution.__init__(new, batch_shape, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property
    def support(self):
        """Where all components are defined."""
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    def _weights(self):
        p = self._mixture_distribution.probs
        return p.reshape(*p.shape, *[1] * len(self._event_shape))

    @property
    def mean(self):
        """Σ w[k] mean[k]."""
        return (self._weights() * self._component_distribution.mean).sum(self._at)

    @property
    def variance(self):
        """Σ w[k] (variance[k] + (mean[k] - mean)²)."""
        part, w = self._component_distribution, self._weights()
        between = (part.mean - self.mean.unsqueeze(self._at)) ** 2
        return (w * part.variance).sum(self._at) + (w * between).sum(self._at)

    def cdf(self, x):
        return (self._component_distribution.cdf(x.unsqueeze(self._at)) * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, x):
        if self._validate_args:
            self._validate_sample(x)
        parts = self._component_distribution.log_prob(x.unsqueeze(self._at))
        return (parts + self._mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def sample(self, sample_shape=()):
        weights = self._mixture_distribution
        with no_grad():
            weights = weights if weights.batch_shape == self._batch_shape else weights.expand(self._batch_shape)
            drawn = self._component_distribution.sample(sample_shape)
            at = len(drawn.shape) + self._at
            chosen = weights.sample(sample_shape).reshape(*drawn.shape[:at], *[1] * (len(drawn.shape) - at))
            return drawn.gather(at, chosen.expand(*drawn.shape[:at], 1, *self._event_shape)).squeeze(at)

    def __repr__(self):
        return f"MixtureSameFamily(\n  {self._mixture_distribution},\n  {self._component_distribution})"
