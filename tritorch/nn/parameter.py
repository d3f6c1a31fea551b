"""Parameters and buffers: the tensors that a module owns."""
from tritorch.device import as_device
from tritorch.dtype import chosen, get_default_dtype
from tritorch.errors import check, tensors
from tritorch.protocol import disabled
from tritorch.tensor import Tensor, alias, empty, own


def unset(shape, device=None, dtype=None):
    """A tensor whose elements are not set, on the default device and of the default dtype unless told otherwise."""
    return empty(shape, chosen(dtype, get_default_dtype()), as_device(device))


def _alias(cls, data):
    if data is not None:
        tensors(cls.__name__, data=data)
    return alias(unset((0,)) if data is None else data.detach(), cls)


def _trained(cls, data, requires_grad):
    return _alias(cls, data).requires_grad_(requires_grad)


def _is_other(data):
    """Whether it is a tensor of a class of the user's, which keeps its class as a parameter or buffer."""
    return isinstance(data, Tensor) and type(data) is not Tensor and type(data).__torch_function__ is not disabled


def _marked(data, requires_grad):
    """The tensor itself, of a class of the user's, cut off its history, to be told a parameter or buffer by a mark."""
    made = data.detach()
    check(type(made) is type(data), "Parameter", f"a detach() that gives a {type(data).__name__}", type(made).__name__)
    return own(made).requires_grad_(requires_grad)


class Kind(type):
    """The class of `Parameter` and `Buffer`: tensors of classes of the user's can be one, too. `isinstance` asks `has_instance`, at 0.3 µs,
    once there is such a class."""

    def has_instance(cls, x):
        """What `isinstance(x, cls)` says: what is of the class, or bears its mark."""
        mark = cls.__dict__.get("_mark")
        return type.__instancecheck__(cls, x) or mark is not None and isinstance(x, Tensor) and getattr(x, mark, False)


class Parameter(Tensor, metaclass=Kind):
    """A tensor that a `Module` trains: assigned as an attribute it is listed in `Module.parameters()`.

    It shares memory with `data`, and wants a gradient unless `requires_grad` is False.

    >>> import tritorch as torch
    >>> torch.nn.Parameter(torch.zeros(2)).requires_grad
    True
    """

    __torch_function__, _mark = disabled, "_is_param"

    def __new__(cls, data=None, requires_grad=True):
        if _is_other(data):
            made = _marked(data, requires_grad)
            made._is_param = True
            return made
        return _trained(cls, data, requires_grad)

    def __init__(self, data=None, requires_grad=True):
        pass

    def __deepcopy__(self, memo):                                        # without the gradient, as in PyTorch
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __repr__(self):
        text = super().__repr__()
        return "Parameter containing:\n" + (text if text.startswith("tensor(") else f"Parameter({text})")


class Buffer(Tensor, metaclass=Kind):
    """A tensor that belongs to a `Module`'s state without being trained: assigned as an attribute it is registered as a buffer.

    With `persistent=False` it stays out of the state dict.

    >>> import tritorch as torch
    >>> torch.nn.Buffer(torch.zeros(2), persistent=False).persistent
    False
    """

    __torch_function__, _mark = disabled, "_is_buffer"

    def __new__(cls, data=None, *, persistent=True):
        buffer = _marked(data, data.requires_grad) if _is_other(data) else _alias(cls, data)
        if not isinstance(buffer, Buffer):
            buffer._is_buffer = True
        buffer.persistent = persistent
        return buffer

    def __init__(self, data=None, *, persistent=True):
        pass


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet: `materialize(shape)` makes it an ordinary one."""

    def __new__(cls, requires_grad=True, device=None, dtype=None):
        return alias(unset((0,), device, dtype), cls).requires_grad_(requires_grad)

    def __init__(self, requires_grad=True, device=None, dtype=None):
        pass

    def materialize(self, shape, device=None, dtype=None):
        """Get memory for a shape and become a `Parameter`."""
        self.data = unset(shape, device or self.device, dtype or self.dtype)
        self.__class__ = Parameter

    def __repr__(self):
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), type(self)(self.requires_grad, self.device, self.dtype))

    def __reduce_ex__(self, protocol):
        return type(self), (self.requires_grad, self.device, self.dtype)


def is_lazy(param):
    """Whether a parameter's shape is not known yet."""
    return isinstance(param, UninitializedParameter)
