"""Constraints: the regions in which parameters and outcomes are valid.

`check(value)` tells element by element, of those with an `event_dim` event by event, whether a value lies inside.

>>> import tritorch as torch
>>> torch.distributions.constraints.positive.check(torch.tensor([-1.0, 0.0, 2.0]))
tensor([False, False,  True])
>>> torch.distributions.constraints.simplex.check(torch.tensor([[0.2, 0.8], [0.7, 0.7]]))
tensor([ True, False])
"""
from tritorch.dtype import finfo, types
from tritorch.errors import check
from tritorch.linalg import cholesky_ex, eigvalsh, vector_norm
from tritorch.ops.compare import isclose
from tritorch.ops.create import full
from tritorch.ops.shaping import cat as concatenate
from tritorch.ops.shaping import stack as stacked

__all__ = ["Constraint", "MixtureSameFamilyConstraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property",
           "greater_than", "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval", "is_dependent",
           "less_than", "lower_cholesky", "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer", "one_hot", "positive",
           "positive_definite", "positive_integer", "positive_semidefinite", "real", "real_vector", "simplex", "square", "stack",
           "symmetric", "unit_interval"]


class Constraint:
    """The base class. `event_dim` is the number of last dims that are valid or not as a whole, `is_discrete` whether values are counted."""

    is_discrete, event_dim = False, 0

    def check(self, value):
        """Whether each value, or each event, is valid: a tensor of bools."""
        raise NotImplementedError(f"{type(self).__name__} has no check")

    def __repr__(self):
        return type(self).__name__[1:] + "()"


class _Dependent(Constraint):
    """A region that depends on other values, so that nothing can be said before they are known."""

    def __init__(self, *, is_discrete=NotImplemented, event_dim=NotImplemented):
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def _known(self, name):
        value = getattr(self, name)
        check(value is not NotImplemented, "constraints.dependent", f"{name[1:]} to be given", "none", error=NotImplementedError)
        return value

    is_discrete = property(lambda self: self._known("_is_discrete"), doc="Whether values are counted.")
    event_dim = property(lambda self: self._known("_event_dim"), doc="The number of dims of one event.")

    def __call__(self, *, is_discrete=NotImplemented, event_dim=NotImplemented):
        """The same with more that is known."""
        return _Dependent(is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
                          event_dim=self._event_dim if event_dim is NotImplemented else event_dim)

    def check(self, value):
        raise ValueError("constraints.dependent: expected a constraint that can be checked, got one that depends on parameters")


class _DependentProperty(property, _Dependent):
    """A property that is a constraint. Asked of the class, it is dependent."""

    def __init__(self, fn=None, *, is_discrete=NotImplemented, event_dim=NotImplemented):
        super().__init__(fn)
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def __call__(self, fn):
        return _DependentProperty(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


def is_dependent(constraint):
    """Whether nothing can be said before parameters are known."""
    return isinstance(constraint, _Dependent)


class _IndependentConstraint(Constraint):
    """An event is valid where all of its last `reinterpreted_batch_ndims` dims are."""

    def __init__(self, base_constraint, reinterpreted_batch_ndims):
        _kinds("independent", [base_constraint])
        ndims = reinterpreted_batch_ndims
        check(isinstance(ndims, int) and ndims >= 0, "constraints.independent", "a number of dims", ndims, error=AssertionError)
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, ndims

    is_discrete = property(lambda self: self.base_constraint.is_discrete, doc="Whether values are counted.")
    event_dim = property(lambda self: self.base_constraint.event_dim + self.reinterpreted_batch_ndims, doc="The dims of one event.")

    def check(self, value):
        valid, ndims = self.base_constraint.check(value), self.reinterpreted_batch_ndims
        check(len(valid.shape) >= ndims, "constraints.independent", f"{self.event_dim} dims or more", value.shape, error=ValueError)
        return valid.all(tuple(range(-ndims, 0))) if ndims else valid

    def __repr__(self):
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """A value that is valid for every component of a mixture, whose dim stands before those of an event."""

    def __init__(self, base_constraint):
        _kinds("MixtureSameFamilyConstraint", [base_constraint])
        self.base_constraint = base_constraint

    is_discrete = property(lambda self: self.base_constraint.is_discrete, doc="Whether values are counted.")
    event_dim = property(lambda self: self.base_constraint.event_dim, doc="The number of dims of one event.")

    def check(self, value):
        own = len(value.shape) - self.event_dim
        check(own >= 0, "MixtureSameFamilyConstraint", f"{self.event_dim} dims or more", value.shape, error=ValueError)
        valid = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return valid.all(tuple(range(own, len(valid.shape))))

    def __repr__(self):
        return f"MixtureSameFamilyConstraint({self.base_constraint!r})"


class _Boolean(Constraint):
    """0 and 1."""

    is_discrete = True

    def check(self, value):
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    """Rows with a single 1 among zeros."""

    is_discrete, event_dim = True, 1

    def check(self, value):
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _Bounded(Constraint):
    """What is told by bounds, which its repr shows."""

    def __repr__(self):
        bounds = [f"{n}={vars(self)[n]}" for n in ("lower_bound", "upper_bound") if n in vars(self)]
        return f"{type(self).__name__[1:]}({', '.join(bounds)})"


class _From(_Bounded):
    def __init__(self, lower_bound):
        self.lower_bound = lower_bound


class _Between(_Bounded):
    def __init__(self, lower_bound, upper_bound):
        self.lower_bound, self.upper_bound = lower_bound, upper_bound


class _IntegerInterval(_Between):
    """Whole numbers from `lower_bound` to `upper_bound`."""

    is_discrete = True

    def check(self, value):
        return (value % 1 == 0) & (self.lower_bound <= value) & (value <= self.upper_bound)


class _IntegerGreaterThan(_From):
    """Whole numbers from `lower_bound` on."""

    is_discrete = True

    def check(self, value):
        return (value % 1 == 0) & (value >= self.lower_bound)


class _Real(Constraint):
    """All numbers."""

    def check(self, value):
        return value == value                                            # all but NaN


class _GreaterThan(_From):
    """Above `lower_bound`."""

    def check(self, value):
        return self.lower_bound < value


class _GreaterThanEq(_From):
    """`lower_bound` and above."""

    def check(self, value):
        return self.lower_bound <= value


class _LessThan(_Bounded):
    """Below `upper_bound`."""

    def __init__(self, upper_bound):
        self.upper_bound = upper_bound

    def check(self, value):
        return value < self.upper_bound


class _Interval(_Between):
    """From `lower_bound` to `upper_bound`, both inside."""

    def check(self, value):
        return (self.lower_bound <= value) & (value <= self.upper_bound)


class _HalfOpenInterval(_Between):
    """From `lower_bound`, which is inside, to `upper_bound`, which is not."""

    def check(self, value):
        return (self.lower_bound <= value) & (value < self.upper_bound)


class _Simplex(Constraint):
    """Vectors of numbers that are not negative, of sum 1."""

    event_dim = 1

    def check(self, value):
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _Multinomial(Constraint):
    """Vectors of counts, of sum `upper_bound` or less."""

    is_discrete, event_dim = True, 1

    def __init__(self, upper_bound):
        self.upper_bound = upper_bound

    def check(self, value):
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _LowerTriangular(Constraint):
    """Matrices with zeros above the diagonal."""

    event_dim = 2

    def check(self, value):
        return (value.tril() == value).all((-2, -1))


class _LowerCholesky(_LowerTriangular):
    """Lower triangular matrices with a positive diagonal."""

    def check(self, value):
        return super().check(value) & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _CorrCholesky(_LowerCholesky):
    """Such with rows of length 1: Cholesky factors of correlations."""

    def check(self, value):
        away = (vector_norm(value, dim=-1) - 1).abs()
        return super().check(value) & (away <= finfo(value.dtype).eps * value.shape[-1] * 10).all(-1)


class _Square(Constraint):
    """Square matrices."""

    event_dim = 2

    def check(self, value):
        return full(value.shape[:-2], value.shape[-2] == value.shape[-1], dtype=types.bool, device=value.device)


class _Symmetric(_Square):
    """Symmetric matrices, up to 1e-6."""

    def check(self, value):
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return isclose(value, value.mT, atol=1e-6).all((-2, -1))


class _PositiveSemidefinite(_Symmetric):
    """Symmetric matrices without negative eigenvalues."""

    def check(self, value):
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return super().check(value) & (eigvalsh(value) >= 0).all(-1)


class _PositiveDefinite(_Symmetric):
    """Symmetric matrices that have a Cholesky factor."""

    def check(self, value):
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return super().check(value) & (cholesky_ex(value)[1] == 0)


class _Cat(Constraint):
    """`cseq[k]` for the next `lengths[k]` slices along `dim`."""

    def __init__(self, cseq, dim=0, lengths=None):
        self.cseq, self.dim = _kinds("cat", cseq), dim
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        check(len(self.lengths) == len(self.cseq), "constraints.cat", f"{len(self.cseq)} lengths", self.lengths, error=AssertionError)

    is_discrete = property(lambda self: any(c.is_discrete for c in self.cseq), doc="Whether some values are counted.")
    event_dim = property(lambda self: max(c.event_dim for c in self.cseq), doc="The number of dims of one event.")

    def check(self, value):
        _dim_of("cat", self.dim, value)
        starts = [sum(self.lengths[:k]) for k in range(len(self.lengths))]
        parts = [c.check(value.narrow(self.dim, at, n)) for c, at, n in zip(self.cseq, starts, self.lengths)]
        return concatenate(parts, self.dim)


class _Stack(Constraint):
    """`cseq[k]` for the k-th slice along `dim`."""

    def __init__(self, cseq, dim=0):
        self.cseq, self.dim = _kinds("stack", cseq), dim

    is_discrete = property(lambda self: any(c.is_discrete for c in self.cseq), doc="Whether some values are counted.")

    @property
    def event_dim(self):
        """The number of dims of one event."""
        dims = max(c.event_dim for c in self.cseq)
        return dims + (self.dim + dims < 0)

    def check(self, value):
        _dim_of("stack", self.dim, value)
        return stacked([c.check(v) for v, c in zip(value.unbind(self.dim), self.cseq)], self.dim)


def _kinds(name, constraints):
    for c in constraints:
        check(isinstance(c, Constraint), f"constraints.{name}", "constraints", type(c).__name__, error=AssertionError)
    return list(constraints)


def _dim_of(name, dim, value):
    n = len(value.shape)
    check(-n <= dim < n, f"constraints.{name}", f"a value with dim {dim}", value.shape, error=AssertionError)


dependent, dependent_property, independent = _Dependent(), _DependentProperty, _IndependentConstraint
boolean, one_hot, multinomial = _Boolean(), _OneHot(), _Multinomial
nonnegative_integer, positive_integer, integer_interval = _IntegerGreaterThan(0), _IntegerGreaterThan(1), _IntegerInterval
real, real_vector = _Real(), _IndependentConstraint(_Real(), 1)
positive, nonnegative, unit_interval = _GreaterThan(0.0), _GreaterThanEq(0.0), _Interval(0.0, 1.0)
greater_than, greater_than_eq, less_than = _GreaterThan, _GreaterThanEq, _LessThan
interval, half_open_interval = _Interval, _HalfOpenInterval
simplex, lower_triangular, lower_cholesky, corr_cholesky = _Simplex(), _LowerTriangular(), _LowerCholesky(), _CorrCholesky()
square, symmetric = _Square(), _Symmetric()
positive_definite, positive_semidefinite = _PositiveDefinite(), _PositiveSemidefinite()
cat, stack = _Cat, _Stack
