"""From constraints to transforms: which function of all numbers has values in a region.

`biject_to(constraint)` is a bijection with a log |det Jacobian|, as samplers need it; `transform_to(constraint)` may be any function, as it
is cheap and good for optimizers. They differ for the simplex, for example.

>>> import tritorch as torch; d = torch.distributions
>>> d.transform_to(d.constraints.greater_than(2.0))(torch.tensor([-100.0, 0.0]))
tensor([2., 3.])
>>> d.biject_to(d.constraints.simplex)(torch.zeros(2)), d.transform_to(d.constraints.simplex)(torch.zeros(3))
(tensor([0.3333, 0.3333, 0.3333]), tensor([0.3333, 0.3333, 0.3333]))
"""
from numbers import Number

from tritorch.distributions import constraints, transforms
from tritorch.errors import check

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]


class ConstraintRegistry:
    """A table of functions that make a transform of a constraint, by the constraint's class."""

    def __init__(self):
        self._registry = {}

    def register(self, constraint, factory=None):
        """Enter a factory for a class of constraints, or for that of an instance; without a factory, a decorator."""
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        kind = type(constraint) if isinstance(constraint, constraints.Constraint) else constraint
        ok = isinstance(kind, type) and issubclass(kind, constraints.Constraint)
        check(ok, "ConstraintRegistry.register", "a constraint or a class of them", constraint, error=TypeError)
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint):
        """The transform whose values are valid. Raises NotImplementedError for a class without a factory."""
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"ConstraintRegistry: no transform for {type(constraint).__name__}; use register")
        return factory(constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _both(*kinds):
    """A decorator: the same transform in both tables."""
    def register(factory):
        for kind in kinds:
            biject_to.register(kind, factory)
            transform_to.register(kind, factory)
        return factory

    return register


@_both(constraints.real)
def _real(constraint):
    return transforms.identity_transform


@_both(constraints.positive, constraints.nonnegative)
@_both(constraints.greater_than, constraints.greater_than_eq)
def _above(constraint):
    at = constraint.lower_bound
    above_0 = isinstance(at, Number) and at == 0
    exp = transforms.ExpTransform()
    return exp if above_0 else transforms.ComposeTransform([exp, transforms.AffineTransform(at, 1)])


@_both(constraints.less_than)
def _below(constraint):
    return transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(constraint.upper_bound, -1)])


@_both(constraints.interval, constraints.half_open_interval)
def _between(constraint):
    low, high = constraint.lower_bound, constraint.upper_bound
    sigmoid = transforms.SigmoidTransform()
    if isinstance(low, Number) and isinstance(high, Number) and (low, high) == (0, 1):
        return sigmoid
    return transforms.ComposeTransform([sigmoid, transforms.AffineTransform(low, high - low)])


@_both(constraints.corr_cholesky)
def _correlations(constraint):
    return transforms.CorrCholeskyTransform()


@biject_to.register(constraints.simplex)
def _pieces_of_a_stick(constraint):
    return transforms.StickBreakingTransform()


@transform_to.register(constraints.simplex)
def _softmax(constraint):
    return transforms.SoftmaxTransform()


@transform_to.register(constraints.lower_cholesky)
def _lower_cholesky(constraint):
    return transforms.LowerCholeskyTransform()


@transform_to.register(constraints.positive_definite)
@transform_to.register(constraints.positive_semidefinite)
def _positive_definite(constraint):
    return transforms.PositiveDefiniteTransform()


def _of_others(table):
    """What stands on other constraints, in one of the tables."""
    @table.register(constraints.independent)
    def _independent(constraint):
        return transforms.IndependentTransform(table(constraint.base_constraint), constraint.reinterpreted_batch_ndims)

    @table.register(constraints.cat)
    def _cat(constraint):
        return transforms.CatTransform([table(c) for c in constraint.cseq], constraint.dim, constraint.lengths)

    @table.register(constraints.stack)
    def _stack(constraint):
        return transforms.StackTransform([table(c) for c in constraint.cseq], constraint.dim)


_of_others(biject_to)
_of_others(transform_to)
