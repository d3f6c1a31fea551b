"""What distributions share: shapes, checks of values, and the names that each fills in."""
import copy
from numbers import Number

from tritorch.autograd import no_grad
from tritorch.dtype import finfo, get_default_dtype
from tritorch.errors import check
from tritorch.ops.create import tensor
from tritorch.ops.methods import surface
from tritorch.shape import Size
from tritorch.tensor import Tensor


def broadcast_all(*values):
    """Numbers and tensors as tensors of one shape; numbers follow the dtype and device of the first tensor."""
    for v in values:
        check(isinstance(v, (Tensor, Number)), "broadcast_all", "tensors and numbers", type(v).__name__, error=ValueError)
    like = next((v for v in values if isinstance(v, Tensor)), None)
    options = {"dtype": get_default_dtype()} if like is None else {"dtype": like.dtype, "device": like.device}
    return surface["broadcast_tensors"](*[v if isinstance(v, Tensor) else tensor(v, **options) for v in values])


def inside(probs):
    """Probabilities kept away from 0 and 1 by as much as 1 + eps can tell."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


class Distribution:
    """The base class. `batch_shape` is the shape of the parameters, `event_shape` that of one outcome."""

    has_rsample = has_enumerate_support = False
    _parameters = ()                                                     # names of the tensors that say which distribution it is
    _validate_args = __debug__

    def __init__(self, batch_shape=(), event_shape=(), validate_args=None):
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args

    @staticmethod
    def set_default_validate_args(value):
        """Whether distributions check their parameters and values unless told otherwise."""
        check(value in (True, False), "set_default_validate_args", "True or False", value, error=ValueError)
        Distribution._validate_args = value

    batch_shape = property(lambda self: self._batch_shape, doc="The shape of the parameters.")
    event_shape = property(lambda self: self._event_shape, doc="The shape of one outcome.")
    stddev = property(lambda self: self.variance.sqrt(), doc="The standard deviation.")

    def _require(self, what, x, holds):
        """Raise ValueError where `holds(x)` is not true everywhere, of tensors on the CPU."""
        if not self._validate_args:
            return
        check(isinstance(x, Tensor), type(self).__name__, "a tensor", type(x).__name__, error=ValueError)
        if x.device.type == "cpu":
            check(bool(holds(x.detach()).all()), type(self).__name__, what, x.detach(), error=ValueError)

    def _extended(self, sample_shape):
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def expand(self, batch_shape, _instance=None):
        """The same distribution for a larger batch, without copying."""
        made = copy.copy(self)
        made._batch_shape = Size(batch_shape)
        for name in self._parameters:
            value = self.__dict__.get(name)
            if value is not None:
                own = len(value.shape) - len(self._batch_shape)          # dims of one outcome's parameters
                setattr(made, name, value.expand((*batch_shape, *value.shape[len(value.shape) - own:])))
        return made

    def sample(self, sample_shape=()):
        """Outcomes of shape sample_shape + batch_shape + event_shape, without history."""
        with no_grad():
            return self.rsample(sample_shape)

    def sample_n(self, n):
        """sample((n,))."""
        return self.sample((n,))

    def rsample(self, sample_shape=()):
        """Outcomes through which gradients flow to the parameters, where a distribution has such."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample")

    def log_prob(self, value):
        """The logarithm of the probability, or of its density, at `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self):
        """The entropy, by batch."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def cdf(self, value):
        """The probability of an outcome up to `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value):
        """Where cdf is `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def perplexity(self):
        """exp(entropy)."""
        return self.entropy().exp()

    def __repr__(self):
        shown = [(n, self.__dict__[n]) for n in self._parameters if self.__dict__.get(n) is not None]
        shown = [f"{n}: {v if v.numel() == 1 else 'torch.' + repr(v.shape).removeprefix('tritorch.')}" for n, v in shown]
        return f"{type(self).__name__}({', '.join(shown)})"
