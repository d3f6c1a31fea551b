"""Transforms of single numbers."""
import math
from numbers import Number

from tritorch.distributions import constraints
from tritorch.distributions.parameters import broadcast_all, lazy_property, sum_rightmost
from tritorch.distributions.transforms.transform import Transform
from tritorch.dtype import finfo
from tritorch.nn.functional import softplus
from tritorch.ops.create import full_like
from tritorch.ops.shaping import broadcast_shapes


def _same_kind(self, other):
    return isinstance(other, type(self))


class ExpTransform(Transform):
    """y = exp(x).

    >>> import tritorch as torch; torch.distributions.ExpTransform()(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """

    domain, codomain, bijective, sign = constraints.real, constraints.positive, True, +1
    __eq__ = _same_kind

    def _call(self, x):
        return x.exp()

    def _inverse(self, y):
        return y.log()

    def log_abs_det_jacobian(self, x, y):
        return x


class PowerTransform(Transform):
    """y = x^exponent.

    >>> import tritorch as torch; torch.distributions.PowerTransform(2.0).inv(torch.tensor([4.0, 9.0]))
    tensor([2., 3.])
    """

    domain, codomain, bijective = constraints.positive, constraints.positive, True

    def __init__(self, exponent, cache_size=0):
        super().__init__(cache_size)
        self.exponent, = broadcast_all(exponent)

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else PowerTransform(self.exponent, cache_size)

    @lazy_property
    def sign(self):
        """The sign of the exponent."""
        return self.exponent.sign()

    def __eq__(self, other):
        return isinstance(other, PowerTransform) and _equal(self.exponent, other.exponent)

    def _call(self, x):
        return x**self.exponent

    def _inverse(self, y):
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x, y):
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape):
        return broadcast_shapes(shape, self.exponent.shape)

    inverse_shape = forward_shape


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x)), and x = log(y / (1 - y)); y is kept away from 0 and 1.

    >>> import tritorch as torch; torch.distributions.SigmoidTransform()(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.7311])
    """

    domain, codomain, bijective, sign = constraints.real, constraints.unit_interval, True, +1
    __eq__ = _same_kind

    def _call(self, x):
        return clipped_sigmoid(x)

    def _inverse(self, y):
        y = _clipped(y)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x, y):
        return -softplus(-x) - softplus(x)


def _clipped(p):
    kind = finfo(p.dtype)
    return p.clamp(kind.tiny, 1 - kind.eps)


def clipped_sigmoid(x):
    """The sigmoid between the smallest normal number and 1 - eps."""
    return _clipped(x.sigmoid())


class SoftplusTransform(Transform):
    """y = log(1 + exp(x)), which is x above 20.

    >>> import tritorch as torch; torch.distributions.SoftplusTransform()(torch.tensor([0.0, 1.0]))
    tensor([0.6931, 1.3133])
    """

    domain, codomain, bijective, sign = constraints.real, constraints.positive, True, +1
    __eq__ = _same_kind

    def _call(self, x):
        return softplus(x)

    def _inverse(self, y):
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x, y):
        return -softplus(-x)


class TanhTransform(Transform):
    """y = tanh(x). Its log |dy/dx| is exact for large x, where that of a composition of other transforms is not.

    >>> import tritorch as torch; torch.distributions.TanhTransform()(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7616])
    """

    domain, codomain, bijective, sign = constraints.real, constraints.interval(-1.0, 1.0), True, +1
    __eq__ = _same_kind

    def _call(self, x):
        return x.tanh()

    def _inverse(self, y):
        return y.atanh()

    def log_abs_det_jacobian(self, x, y):
        return 2 * (math.log(2) - x - softplus(-2 * x))                  # log(1 - tanh²)


class AbsTransform(Transform):
    """y = |x|, which has no inverse: `inv` chooses the positive x.

    >>> import tritorch as torch; torch.distributions.AbsTransform()(torch.tensor([-1.0, 1.0]))
    tensor([1., 1.])
    """

    domain, codomain = constraints.real, constraints.positive
    __eq__ = _same_kind

    def _call(self, x):
        return x.abs()

    def _inverse(self, y):
        return y


class AffineTransform(Transform):
    """y = loc + scale · x; `event_dim` dims count as one event.

    >>> import tritorch as torch; torch.distributions.AffineTransform(1.0, 2.0)(torch.tensor([0.0, 1.0]))
    tensor([1., 3.])
    """

    bijective = True

    def __init__(self, loc, scale, event_dim=0, cache_size=0):
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    event_dim = property(lambda self: self._event_dim, doc="The number of dims of one event.")

    @constraints.dependent_property(is_discrete=False)
    def domain(self):
        """All numbers."""
        return constraints.independent(constraints.real, self._event_dim) if self._event_dim else constraints.real

    codomain = domain

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else AffineTransform(self.loc, self.scale, self._event_dim, cache_size)

    def __eq__(self, other):
        return isinstance(other, AffineTransform) and _equal(self.loc, other.loc) and _equal(self.scale, other.scale)

    @property
    def sign(self):
        """The sign of the scale."""
        return (self.scale > 0) - (self.scale < 0) if isinstance(self.scale, Number) else self.scale.sign()

    def _call(self, x):
        return self.loc + self.scale * x

    def _inverse(self, y):
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x, y):
        if isinstance(self.scale, Number):
            result = full_like(x, math.log(abs(self.scale)))
        else:
            result = self.scale.abs().log().expand(x.shape)              # before the sum: each number of an event has its share
        return sum_rightmost(result, self._event_dim)

    def forward_shape(self, shape):
        return broadcast_shapes(shape, getattr(self.loc, "shape", ()), getattr(self.scale, "shape", ()))

    inverse_shape = forward_shape


def _equal(a, b):
    equal = a == b
    return equal if isinstance(equal, bool) else bool(equal.all())


class CumulativeDistributionTransform(Transform):
    """y = the distribution's cdf at x, so that its outcomes become uniform.

    >>> import tritorch as torch; d = torch.distributions
    >>> d.CumulativeDistributionTransform(d.Normal(0.0, 1.0))(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.8413])
    """

    bijective, codomain, sign = True, constraints.unit_interval, +1

    def __init__(self, distribution, cache_size=0):
        super().__init__(cache_size)
        self.distribution = distribution

    domain = property(lambda self: self.distribution.support, doc="The distribution's support.")

    def _call(self, x):
        return self.distribution.cdf(x)

    def _inverse(self, y):
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x, y):
        return self.distribution.log_prob(x)

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else CumulativeDistributionTransform(self.distribution, cache_size)
