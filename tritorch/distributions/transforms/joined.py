"""Transforms side by side, each for its slices along a dim."""
from tritorch.distributions import constraints
from tritorch.distributions.parameters import lazy_property, sum_rightmost
from tritorch.distributions.transforms.transform import Transform
from tritorch.errors import check
from tritorch.ops.shaping import cat, stack


class _Joined(Transform):
    """What those that are next to each other and those that are stacked share."""

    def __init__(self, tseq, dim, cache_size):
        for t in tseq:
            check(isinstance(t, Transform), type(self).__name__, "transforms", type(t).__name__, error=AssertionError)
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) if cache_size else t for t in tseq], dim

    bijective = property(lambda self: all(t.bijective for t in self.transforms), doc="Whether all are.")

    def _fits(self, x, length):
        dims = len(x.shape)
        ok = -dims <= self.dim < dims and x.shape[self.dim] == length
        check(ok, type(self).__name__, f"{length} slices along dim {self.dim}", x.shape, error=AssertionError)


class CatTransform(_Joined):
    """tseq[k] for the next lengths[k] slices along `dim`, put together as by `cat`. Without lengths each has one.

    >>> import tritorch as torch
    >>> d = torch.distributions
    >>> d.CatTransform([d.ExpTransform(), d.identity_transform], lengths=[1, 2])(torch.zeros(3))
    tensor([1., 0., 0.])
    """

    def __init__(self, tseq, dim=0, lengths=None, cache_size=0):
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        check(len(self.lengths) == len(self.transforms), "CatTransform", f"{len(self.transforms)} lengths", self.lengths,
              error=AssertionError)

    @lazy_property
    def event_dim(self):
        """The largest of the transforms'."""
        return max(t.event_dim for t in self.transforms)

    @lazy_property
    def length(self):
        """The number of slices."""
        return sum(self.lengths)

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    def _parts(self, x):
        self._fits(x, self.length)
        return x.split(self.lengths, self.dim)

    def _call(self, x):
        return cat([t(part) for t, part in zip(self.transforms, self._parts(x))], self.dim)

    def _inverse(self, y):
        return cat([t.inv(part) for t, part in zip(self.transforms, self._parts(y))], self.dim)

    def log_abs_det_jacobian(self, x, y):
        parts = [sum_rightmost(t.log_abs_det_jacobian(a, b), self.event_dim - t.event_dim)
                 for t, a, b in zip(self.transforms, self._parts(x), self._parts(y))]
        dim = (self.dim - len(x.shape) if self.dim >= 0 else self.dim) + self.event_dim
        return cat(parts, dim) if dim < 0 else sum(parts)                # within an event the slices are one

    @constraints.dependent_property
    def domain(self):
        """Those of the transforms, side by side."""
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self):
        """Those of the transforms, side by side."""
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)


class StackTransform(_Joined):
    """tseq[k] for the k-th slice along `dim`, put together as by `stack`.

    >>> import tritorch as torch; d = torch.distributions; d.StackTransform([d.ExpTransform(), d.TanhTransform()])(torch.zeros(2))
    tensor([1., 0.])
    """

    def __init__(self, tseq, dim=0, cache_size=0):
        super().__init__(tseq, dim, cache_size)

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else StackTransform(self.transforms, self.dim, cache_size)

    def _parts(self, x):
        self._fits(x, len(self.transforms))
        return x.unbind(self.dim)

    def _call(self, x):
        return stack([t(part) for t, part in zip(self.transforms, self._parts(x))], self.dim)

    def _inverse(self, y):
        return stack([t.inv(part) for t, part in zip(self.transforms, self._parts(y))], self.dim)

    def log_abs_det_jacobian(self, x, y):
        return stack([t.log_abs_det_jacobian(a, b) for t, a, b in zip(self.transforms, self._parts(x), self._parts(y))], self.dim)

    @constraints.dependent_property
    def domain(self):
        """Those of the transforms, slice by slice."""
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self):
        """Those of the transforms, slice by slice."""
        return constraints.stack([t.codomain for t in self.transforms], self.dim)
