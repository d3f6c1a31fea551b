"""What transforms share: the call, the inverse, the cache and the shapes."""
import weakref

from tritorch.distributions import constraints
from tritorch.errors import check


class Transform:
    """y = t(x), and x = t.inv(y), for x in `domain` and y in `codomain`.

    With `cache_size=1` the last pair is kept: the inverse of the last y is the last x itself, exact and free, but then x does not depend on
    y. A transform defines `_call`, `_inverse`, or both; one that is `bijective` also `log_abs_det_jacobian`, and a monotone function of
    numbers its `sign`, +1 or -1.
    """

    bijective = False

    def __init__(self, cache_size=0):
        check(cache_size in (0, 1), type(self).__name__, "cache_size 0 or 1", cache_size, error=ValueError)
        self._cache_size, self._inv = cache_size, None
        if cache_size:
            self._cached_x_y = None, None
        super().__init__()

    def __getstate__(self):
        return {**self.__dict__, "_inv": None}                           # a weak reference cannot be pickled

    @property
    def event_dim(self):
        """The number of last dims that depend on each other, where it is the same on both sides."""
        here, there = self.domain.event_dim, self.codomain.event_dim
        check(here == there, type(self).__name__, "one event_dim", (here, there), use=".domain.event_dim or .codomain.event_dim",
              error=ValueError)
        return here

    @property
    def inv(self):
        """The inverse transform; `t.inv.inv is t`."""
        found = self._inv and self._inv()                                # weak: it holds this one, and memory dies by reference count
        if found is None:
            found = self._inverted()
            self._inv = weakref.ref(found)
        return found

    def _inverted(self):
        return _InverseTransform(self)

    @property
    def sign(self):
        """+1 where y grows with x, -1 where it falls."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def with_cache(self, cache_size=1):
        """This transform with a cache of another size."""
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is not Transform.__init__:
            raise NotImplementedError(f"{type(self).__name__} has no with_cache")
        return type(self)(cache_size=cache_size)

    def __eq__(self, other):
        return self is other

    def __call__(self, x):
        """y, from the cache if x is the last one."""
        if not self._cache_size:
            return self._call(x)
        known, y = self._cached_x_y
        if x is not known:
            y = self._call(x)
            self._cached_x_y = x, y
        return y

    def _inv_call(self, y):
        if not self._cache_size:
            return self._inverse(y)
        x, known = self._cached_x_y
        if y is not known:
            x = self._inverse(y)
            self._cached_x_y = x, y
        return x

    def _call(self, x):
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    def _inverse(self, y):
        raise NotImplementedError(f"{type(self).__name__} has no _inverse")

    def log_abs_det_jacobian(self, x, y):
        """log |det dy/dx|, without the last `event_dim` dims."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def __repr__(self):
        return f"{type(self).__name__}()"

    def forward_shape(self, shape):
        """The shape of y for x of this shape."""
        return shape

    def inverse_shape(self, shape):
        """The shape of x for y of this shape."""
        return shape


class _InverseTransform(Transform):
    """The inverse of a transform, which has the cache."""

    def __init__(self, transform):
        super().__init__(transform._cache_size)
        self._inv = transform

    def __getstate__(self):
        return self.__dict__

    @constraints.dependent_property(is_discrete=False)
    def domain(self):
        """The codomain of the other."""
        return self._inv.codomain

    @constraints.dependent_property(is_discrete=False)
    def codomain(self):
        """The domain of the other."""
        return self._inv.domain

    bijective = property(lambda self: self._inv.bijective, doc="Whether the other is.")
    sign = property(lambda self: self._inv.sign, doc="That of the other.")
    inv = property(lambda self: self._inv, doc="The other.")

    def with_cache(self, cache_size=1):
        return self._inv.with_cache(cache_size).inv

    def __eq__(self, other):
        return isinstance(other, _InverseTransform) and self._inv == other._inv

    def __repr__(self):
        return f"{type(self).__name__}({self._inv!r})"

    def __call__(self, x):
        return self._inv._inv_call(x)

    def log_abs_det_jacobian(self, x, y):
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape):
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape):
        return self._inv.forward_shape(shape)


def too_few(transform, shape, dims):
    """Raise a ValueError for what has not as many dims as an event."""
    check(len(shape) >= dims, type(transform).__name__, f"{dims} dims or more", tuple(shape), error=ValueError)
