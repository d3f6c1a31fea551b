"""The distribution of a function of what another distribution draws."""
from tritorch.autograd import no_grad
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.independent import Independent
from tritorch.distributions.parameters import sum_rightmost
from tritorch.distributions.transforms import ComposeTransform, Transform
from tritorch.errors import check
from tritorch.shape import Size


class TransformedDistribution(Distribution):
    """y = t(x) for x of `base_distribution`: log p(y) = log p(x) - log |det dy/dx|, for one transform or a list of them, first to last.

    >>> import tritorch as torch; d = torch.distributions
    >>> logistic = d.TransformedDistribution(d.Uniform(0.0, 1.0), [d.SigmoidTransform().inv, d.AffineTransform(1.0, 2.0)])
    >>> logistic.log_prob(torch.tensor([1.0, 3.0])), logistic.icdf(torch.tensor(0.5))
    (tensor([-2.0794, -2.3197]), tensor(1.))
    """

    arg_constraints, _parameters = {}, ()

    def __init__(self, base_distribution, transforms, validate_args=None):
        self.transforms = [transforms] if isinstance(transforms, Transform) else transforms
        ok = isinstance(self.transforms, list) and all(isinstance(t, Transform) for t in self.transforms)
        check(ok, "TransformedDistribution", "a Transform or a list of them", transforms, error=ValueError)
        base = base_distribution
        shape, own = Size((*base.batch_shape, *base.event_shape)), len(base.event_shape)
        whole = ComposeTransform(self.transforms)
        inner, outer = whole.domain.event_dim, whole.codomain.event_dim
        check(len(shape) >= inner, "TransformedDistribution", f"a base of {inner} dims or more", shape, error=ValueError)
        made = tuple(whole.forward_shape(shape))
        expanded = tuple(whole.inverse_shape(made))
        if shape != expanded:
            base = base.expand(expanded[:len(expanded) - own])
        if inner > own:
            base = Independent(base, inner - own)
        self.base_dist = base
        event_dim = max(outer, own + outer - inner)                      # either side may make numbers depend on each other
        at = len(made) - event_dim
        super().__init__(made[:at], made[at:], validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        family = next(cls for cls in type(self).__mro__ if "_parameters" in vars(cls))
        new = self._get_checked_instance(family, _instance)
        self._fill(new, batch_shape, family._parameters)
        shape = (*batch_shape, *self._event_shape)
        for t in reversed(self.transforms):
            shape = t.inverse_shape(shape)
        new.base_dist = self.base_dist.expand(shape[:len(shape) - len(self.base_dist.event_shape)])
        new.transforms = self.transforms
        Distribution.__init__(new, batch_shape, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    has_rsample = property(lambda self: self.base_dist.has_rsample, doc="Whether gradients flow through outcomes.")

    @constraints.dependent_property(is_discrete=False)
    def support(self):
        """The codomain of the last transform."""
        if not self.transforms:
            return self.base_dist.support
        last = self.transforms[-1].codomain
        more = len(self._event_shape) - last.event_dim
        return constraints.independent(last, more) if more > 0 else last

    def sample(self, sample_shape=()):
        with no_grad():
            x = self.base_dist.sample(sample_shape)
            for t in self.transforms:
                x = t(x)
            return x

    def rsample(self, sample_shape=()):
        x = self.base_dist.rsample(sample_shape)
        for t in self.transforms:
            x = t(x)
        return x

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        dims, total, y = len(self._event_shape), 0.0, value
        for t in reversed(self.transforms):
            x = t.inv(y)
            inner = t.domain.event_dim
            dims += inner - t.codomain.event_dim
            total = total - sum_rightmost(t.log_abs_det_jacobian(x, y), dims - inner)
            y = x
        return total + sum_rightmost(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape))

    def _mirrored(self, value):
        """p, or 1 - p where y falls while x grows."""
        sign = 1
        for t in self.transforms:
            sign = sign * t.sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value):
        for t in reversed(self.transforms):
            value = t.inv(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._mirrored(self.base_dist.cdf(value))

    def icdf(self, value):
        value = self.base_dist.icdf(self._mirrored(value))
        for t in self.transforms:
            value = t(value)
        return value
