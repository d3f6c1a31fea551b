"""Variable, as old programs call a tensor."""
import warnings

from tritorch.autograd import engine
from tritorch.autograd.places import stacklevel
from tritorch.device import cpu
from tritorch.dtype import get_default_dtype
from tritorch.errors import check
from tritorch.tensor import Tensor, empty


class _Kind(type):
    def __instancecheck__(cls, x):
        return isinstance(x, Tensor)

    def __call__(cls, data=None, requires_grad=False, volatile=None):
        if volatile is not None:
            warnings.warn("Variable: volatile has no effect; use no_grad()", stacklevel=stacklevel())
        data = empty((0,), get_default_dtype(), cpu) if data is None else data
        check(isinstance(data, Tensor), "Variable", "a tensor", type(data).__name__, error=TypeError)
        return data.detach().requires_grad_(requires_grad)


class Variable(metaclass=_Kind):
    """Variable(data, requires_grad=False): a leaf over the memory of a tensor. Every tensor is an instance.

    >>> import tritorch as torch; torch.autograd.Variable(torch.ones(2), requires_grad=True)
    tensor([1., 1.], requires_grad=True)
    """

    _execution_engine = engine
