"""Transforms one after the other, over whole events, and of shapes."""
from tritorch.distributions import constraints
from tritorch.distributions.parameters import lazy_property, sum_rightmost
from tritorch.distributions.transforms.transform import Transform, too_few
from tritorch.errors import check
from tritorch.ops.create import zeros_like
from tritorch.shape import Size


class ComposeTransform(Transform):
    """`parts`, the first one first. Each has its own cache.

    >>> import tritorch as torch
    >>> d = torch.distributions
    >>> d.ComposeTransform([d.ExpTransform(), d.AffineTransform(1.0, 2.0)])(torch.zeros(2))
    tensor([3., 3.])
    """

    def __init__(self, parts, cache_size=0):
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else parts
        super().__init__(cache_size)

    def __eq__(self, other):
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    @constraints.dependent_property(is_discrete=False)
    def domain(self):
        """That of the first part, with as many dims as all parts together look at."""
        if not self.parts:
            return constraints.real
        dims = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            dims = max(dims + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        return _widened(self.parts[0].domain, dims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self):
        """That of the last part, with as many dims as all parts together look at."""
        if not self.parts:
            return constraints.real
        dims = self.parts[0].domain.event_dim
        for part in self.parts:
            dims = max(dims + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return _widened(self.parts[-1].codomain, dims)

    @lazy_property
    def bijective(self):
        """Whether all parts are."""
        return all(p.bijective for p in self.parts)

    @lazy_property
    def sign(self):
        """The product of the parts' signs."""
        sign = 1
        for p in self.parts:
            sign = sign * p.sign
        return sign

    def _inverted(self):
        made = ComposeTransform([p.inv for p in reversed(self.parts)])
        made._inv = lambda: self                                         # held: the inverse of what goes on living through its inverse
        return made

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size)

    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x, y):
        if not self.parts:
            return zeros_like(x)
        between = [x]                                                    # free where the parts have caches
        for part in self.parts[:-1]:
            between.append(part(between[-1]))
        between.append(y)
        total, dims = 0, self.domain.event_dim
        for part, a, b in zip(self.parts, between, between[1:]):
            total = total + sum_rightmost(part.log_abs_det_jacobian(a, b), dims - part.domain.event_dim)
            dims += part.codomain.event_dim - part.domain.event_dim
        return total

    def forward_shape(self, shape):
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape):
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self):
        return f"{type(self).__name__}(\n    " + ",\n    ".join(map(repr, self.parts)) + "\n)"


def _widened(constraint, dims):
    more = dims - constraint.event_dim
    return constraints.independent(constraint, more) if more else constraint


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """A transform whose last `reinterpreted_batch_ndims` dims count as one event: its log |det| is summed over them.

    >>> import tritorch as torch
    >>> d = torch.distributions
    >>> d.IndependentTransform(d.ExpTransform(), 1).log_abs_det_jacobian(torch.ones(3, 2), None)
    tensor([2., 2., 2.])
    """

    def __init__(self, base_transform, reinterpreted_batch_ndims, cache_size=0):
        super().__init__(cache_size)
        self.base_transform, self.reinterpreted_batch_ndims = base_transform.with_cache(cache_size), reinterpreted_batch_ndims

    def with_cache(self, cache_size=1):
        if self._cache_size == cache_size:
            return self
        return IndependentTransform(self.base_transform, self.reinterpreted_batch_ndims, cache_size)

    @constraints.dependent_property(is_discrete=False)
    def domain(self):
        """That of the base, event by event."""
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self):
        """That of the base, event by event."""
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    bijective = property(lambda self: self.base_transform.bijective, doc="Whether the base is.")
    sign = property(lambda self: self.base_transform.sign, doc="That of the base.")

    def _call(self, x):
        too_few(self, x.shape, self.domain.event_dim)
        return self.base_transform(x)

    def _inverse(self, y):
        too_few(self, y.shape, self.codomain.event_dim)
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x, y):
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape):
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape):
        return self.base_transform.inverse_shape(shape)

    def __repr__(self):
        return f"{type(self).__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


class ReshapeTransform(Transform):
    """The last dims, of `in_shape`, in `out_shape`.

    >>> import tritorch as torch; torch.distributions.ReshapeTransform((4,), (2, 2))(torch.arange(4.0))
    tensor([[0., 1.],
            [2., 3.]])
    """

    bijective = True

    def __init__(self, in_shape, out_shape, cache_size=0):
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        check(self.in_shape.numel() == self.out_shape.numel(), "ReshapeTransform", "shapes of as many elements",
              (tuple(in_shape), tuple(out_shape)), error=ValueError)
        super().__init__(cache_size)

    @constraints.dependent_property
    def domain(self):
        """Numbers in the one shape."""
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self):
        """Numbers in the other shape."""
        return constraints.independent(constraints.real, len(self.out_shape))

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else ReshapeTransform(self.in_shape, self.out_shape, cache_size)

    def _call(self, x):
        return x.reshape(x.shape[:len(x.shape) - len(self.in_shape)] + self.out_shape)

    def _inverse(self, y):
        return y.reshape(y.shape[:len(y.shape) - len(self.out_shape)] + self.in_shape)

    def log_abs_det_jacobian(self, x, y):
        return x.new_zeros(x.shape[:len(x.shape) - len(self.in_shape)])

    def _exchanged(self, shape, ours, theirs):
        too_few(self, shape, len(ours))
        cut = len(shape) - len(ours)
        check(tuple(shape[cut:]) == ours, "ReshapeTransform", f"last dims {tuple(ours)}", tuple(shape[cut:]), error=ValueError)
        return Size((*shape[:cut], *theirs))

    def forward_shape(self, shape):
        return self._exchanged(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape):
        return self._exchanged(shape, self.out_shape, self.in_shape)
