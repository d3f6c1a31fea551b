"""What distributions share: shapes, checks of values, and the names that each fills in."""
import warnings

from tritorch.autograd import no_grad
from tritorch.distributions import constraints
from tritorch.distributions.parameters import lazy_property
from tritorch.errors import check, sentence
from tritorch.ops.bounds import every
from tritorch.shape import Size
from tritorch.tensor import Tensor


class Distribution:
    """The base class. `batch_shape` is the shape of the parameters, `event_shape` that of one outcome.

    A family defines `arg_constraints` (by names of parameters), `support`, and of the methods what it can. With `_parameters`, the names
    of what is as large as a batch (tensors and other distributions), it needs no `expand` of its own. Parameters and values on the CPU
    are checked, with a ValueError, unless `validate_args` is False; those on a device are not, as nothing waits for it.
    """

    has_rsample = has_enumerate_support = False
    _validate_args = __debug__

    def __init__(self, batch_shape=(), event_shape=(), validate_args=None):
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._validate_parameters()
        super().__init__()

    @staticmethod
    def set_default_validate_args(value):
        """Whether distributions check their parameters and values unless told otherwise."""
        check(value in (True, False), "set_default_validate_args", "True or False", value, error=ValueError)
        Distribution._validate_args = value

    batch_shape = property(lambda self: self._batch_shape, doc="The shape of the parameters.")
    event_shape = property(lambda self: self._event_shape, doc="The shape of one outcome.")
    stddev = property(lambda self: self.variance.sqrt(), doc="The standard deviation.")
    arg_constraints = property(lambda self: self._lacks("arg_constraints"), doc="By names of parameters, where they are valid.")
    support = property(lambda self: self._lacks("support"), doc="The constraint of outcomes.")
    mean = property(lambda self: self._lacks("mean"), doc="The mean.")
    mode = property(lambda self: self._lacks("mode"), doc="The likeliest outcome.")
    variance = property(lambda self: self._lacks("variance"), doc="The variance.")

    def _lacks(self, name):
        raise NotImplementedError(f"{type(self).__name__} has no {name}")

    def _validate_parameters(self):
        try:
            known = self.arg_constraints
        except NotImplementedError:
            warnings.warn(f"{type(self).__name__} has no arg_constraints; define them, {{}} for none, or pass validate_args=False",
                          stacklevel=4)
            return
        for name, constraint in known.items():
            unasked = name not in self.__dict__ and isinstance(getattr(type(self), name, None), lazy_property)
            if not unasked and not constraints.is_dependent(constraint):
                value = getattr(self, name)
                if not _holds(constraint, value):
                    raise ValueError(sentence(type(self).__name__, f"{name} within {constraint!r}", _shown(value)))

    def _validate_sample(self, value):
        """Raise a ValueError for what cannot be an outcome: by its shape, and, on the CPU, by the support."""
        name = type(self).__name__
        check(isinstance(value, Tensor), name, "a tensor", type(value).__name__, error=ValueError)
        shape, event, whole = value.shape, self._event_shape, self._batch_shape + self._event_shape
        if len(event) > len(shape) or tuple(shape[len(shape) - len(event):]) != event:
            raise ValueError(sentence(name, f"a value whose last dims are {tuple(event)}", tuple(shape)))
        if any(n != m and n != 1 and m != 1 for n, m in zip(reversed(shape), reversed(whole))):
            raise ValueError(sentence(name, f"a value that broadcasts with batch_shape + event_shape = {tuple(whole)}", tuple(shape)))
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(f"{name} has no support; define it, or pass validate_args=False", stacklevel=3)
            return
        if not _holds(support, value):
            raise ValueError(sentence(name, f"a value within the support {support!r}", _shown(value)))

    def _extended_shape(self, sample_shape=()):
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _get_checked_instance(self, cls, _instance=None):
        """An empty instance to fill, in an `expand` that is written for `cls`."""
        check(_instance is not None or type(self).__init__ is cls.__init__, type(self).__name__, "an expand of its own",
              f"that of {cls.__name__}, whose constructor is another", error=NotImplementedError)
        return type(self).__new__(type(self)) if _instance is None else _instance

    def expand(self, batch_shape, _instance=None):
        """The same distribution for a larger batch, without copying."""
        family = next((cls for cls in type(self).__mro__ if "_parameters" in vars(cls)), None)
        if family is None:
            self._lacks("expand")
        new = self._get_checked_instance(family, _instance)
        self._fill(new, batch_shape, family._parameters)
        Distribution.__init__(new, batch_shape, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _fill(self, new, batch_shape, names):
        """Give `new` what is as large as a batch, expanded; each may have dims of its own after it."""
        own = len(self._batch_shape)
        for name in names:
            value = self.__dict__.get(name)
            if isinstance(value, Distribution):
                new.__dict__[name] = value.expand((*batch_shape, *value.batch_shape[own:]))
            elif value is not None:
                new.__dict__[name] = value.expand((*batch_shape, *value.shape[own:]))

    def sample(self, sample_shape=()):
        """Outcomes of shape sample_shape + batch_shape + event_shape, without history."""
        with no_grad():
            return self.rsample(sample_shape)

    def sample_n(self, n):
        """sample((n,)), which is what to write."""
        warnings.warn("sample_n(n) is deprecated; use sample((n,))", FutureWarning, stacklevel=2)
        return self.sample((n,))

    def rsample(self, sample_shape=()):
        """Outcomes through which gradients flow to the parameters, where a distribution has such."""
        self._lacks("rsample")

    def log_prob(self, value):
        """The logarithm of the probability, or of its density, at `value`."""
        self._lacks("log_prob")

    def entropy(self):
        """The entropy, by batch."""
        self._lacks("entropy")

    def cdf(self, value):
        """The probability of an outcome up to `value`."""
        self._lacks("cdf")

    def icdf(self, value):
        """Where cdf is `value`."""
        self._lacks("icdf")

    def enumerate_support(self, expand=True):
        """All outcomes along a new first dim, for every batch; with `expand=False` the dims of the batch are 1."""
        self._lacks("enumerate_support")

    def perplexity(self):
        """exp(entropy)."""
        return self.entropy().exp()

    def __repr__(self):
        shown = [f"{n}: {_brief(self.__dict__[n])}" for n in self.arg_constraints if n in self.__dict__]
        return f"{type(self).__name__}({', '.join(shown)})"


def _holds(constraint, value):
    """Whether a value is valid, if it is on the CPU or no tensor."""
    if not isinstance(value, Tensor):
        return bool(constraint.check(value))
    return value.device.type != "cpu" or bool(every(constraint.check(value.detach())).all())


def _shown(value):
    return value.detach() if isinstance(value, Tensor) else value


def _brief(value):
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"torch.Size({list(value.shape)})"
    return value
