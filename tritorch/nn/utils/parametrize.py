"""Parameters that are computed from others whenever they are read: `module.weight = f(original)`.

>>> import tritorch as torch
>>> from tritorch.nn.utils import parametrize
>>> class Symmetric(torch.nn.Module):
...     def forward(self, x):
...         return x.triu() + x.triu(1).T
>>> net = parametrize.register_parametrization(torch.nn.Linear(3, 3), "weight", Symmetric())
>>> torch.equal(net.weight, net.weight.T), [name for name, _ in net.named_parameters()]
(True, ['bias', 'parametrizations.weight.original'])
"""
import copy
from collections.abc import Sequence
from contextlib import contextmanager

from tritorch.autograd import no_grad
from tritorch.nn.container import ModuleDict, ModuleList
from tritorch.nn.parameter import Parameter
from tritorch.tensor import Tensor

__all__ = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
           "transfer_parametrizations_and_params", "type_before_parametrizations"]

_depth = [0]                                                             # of `with cached()`
_values: dict[tuple[int, str], Tensor] = {}                              # what was computed inside


@contextmanager
def cached():
    """Compute each parametrized tensor once in this block, however often it is read."""
    _depth[0] += 1
    try:
        yield
    finally:
        _depth[0] -= 1
        if not _depth[0]:
            _values.clear()


def _keep(module, name, tensor):
    (module.register_parameter if isinstance(tensor, Parameter) else module.register_buffer)(name, tensor)


def _expect_same(what, got, like):
    if not isinstance(got, Tensor):
        raise ValueError(f"{what}: expected a tensor as its result, got {type(got).__name__}")
    for attribute in ("dtype", "shape"):
        if getattr(got, attribute) != getattr(like, attribute):
            raise ValueError(f"{what}: expected a result of {attribute} {getattr(like, attribute)} as before, got "
                             f"{getattr(got, attribute)}; use unsafe=True to change it")


def _inverse(parametrization, value):
    try:
        return parametrization.right_inverse(value)
    except NotImplementedError:
        return value


class ParametrizationList(ModuleList):
    """The functions of one tensor, applied in turn, and what the first is applied to: `original`, or `original0`, `original1`, …

    `register_parametrization` makes it; it is `module.parametrizations.weight`.
    """

    def __init__(self, modules, original, unsafe=False):
        if len(modules) == 0:
            raise ValueError("ParametrizationList: expected at least one module, got none")
        super().__init__(modules)
        self.unsafe = unsafe
        with no_grad():
            new = original
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    new = _inverse(module, new)
        if not isinstance(new, (Tensor, Sequence)):
            raise ValueError(f"right_inverse: expected a tensor or a sequence of tensors as its result, got {type(new).__name__}")
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        like = Tensor.detach(original)
        if self.is_tensor:
            for attribute in ("dtype", "device"):
                if getattr(new, attribute) != getattr(original, attribute):
                    raise ValueError(f"right_inverse: expected a single tensor to keep its {attribute} {getattr(original, attribute)}, got "
                                     f"{getattr(new, attribute)}")
            original.data = new.detach()                                 # the same object: an optimizer that has it goes on
            _keep(self, "original", original)
        else:
            for i, part in enumerate(new):
                if not isinstance(part, Tensor):
                    raise ValueError(f"right_inverse: expected tensors in its result, got {type(part).__name__} as element {i}")
                part = part.detach()
                if isinstance(original, Parameter):
                    part = Parameter(part, original.requires_grad)
                _keep(self, f"original{i}", part.requires_grad_(original.requires_grad))
        if not unsafe:
            _expect_same("A parametrization", self(), like)

    def _originals(self):
        return [self.original] if self.is_tensor else [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def forward(self):
        first, *others = self
        x = first(*self._originals())
        for module in others:
            x = module(x)
        return x

    def right_inverse(self, value):
        """What `module.weight = value` does: the originals become those that give this value."""
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"assignment needs right_inverse: expected {type(module).__name__} to have one, got none")
                value = module.right_inverse(value)
        if self.is_tensor:
            value = [value]
        elif not isinstance(value, Sequence):
            raise ValueError(f"right_inverse: expected a sequence of tensors as its result, got {type(value).__name__}")
        if len(value) != self.ntensors:
            raise ValueError(f"right_inverse: expected {self.ntensors} tensors as its result, got {len(value)}")
        for original, part in zip(self._originals(), value, strict=True):
            if not isinstance(part, Tensor):
                raise ValueError(f"right_inverse: expected a tensor, got {type(part).__name__}")
            if part.dtype != original.dtype:
                raise ValueError(f"right_inverse: expected {original.dtype} as the original has, got {part.dtype}")
        for original, part in zip(self._originals(), value, strict=True):
            original.data = part.detach()


def _property(name):
    def read(module):
        if not _depth[0]:
            return module.parametrizations[name]()
        key = id(module), name
        if key not in _values:
            _values[key] = module.parametrizations[name]()
        return _values[key]

    def write(module, value):
        module.parametrizations[name].right_inverse(value)

    return property(read, write)


def _refuse_pickle(module):
    raise RuntimeError(f"pickle: expected a module without parametrizations, got {type(module).__name__} with; use its state_dict()")


def _deepcopy(module, memo):
    replica = memo[id(module)] = object.__new__(type(module))
    plain = type_before_parametrizations(module)
    replica.__setstate__(copy.deepcopy(plain.__getstate__(module), memo))
    return replica


def _show(module, names):
    """Give the module a class with a property for each of these names, or its own again if there is none."""
    plain = type_before_parametrizations(module)
    members = {"_plain": plain, "__module__": plain.__module__, "__getstate__": _refuse_pickle, **{n: _property(n) for n in names}}
    if not hasattr(plain, "__deepcopy__"):
        members["__deepcopy__"] = _deepcopy
    module.__class__ = type(f"Parametrized{plain.__name__}", (plain,), members) if names else plain


def register_parametrization(module, tensor_name, parametrization, *, unsafe=False):
    """Let `module.tensor_name` be `parametrization(original)` from now on, or if it is parametrized, apply this one after the others.

    The parametrization may have a `right_inverse`: it makes the original from the tensor that is there, and from one that is assigned
    later, and may return several for `parametrization.forward` to take. `unsafe` permits a change of dtype or shape and checks nothing.

    Errors: ValueError if there is no such parameter or buffer.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            y = getattr(module, tensor_name)
            x = parametrization(y)
            _expect_same("A parametrization", x, y)
            if hasattr(parametrization, "right_inverse"):
                _expect_same("parametrization.right_inverse", _inverse(parametrization, x), y)
        parametrizations = module.parametrizations[tensor_name]
        parametrizations.append(parametrization)
        parametrizations.unsafe |= unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        parametrizations = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe=unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            module.parametrizations = ModuleDict()
        module.parametrizations[tensor_name] = parametrizations
        _show(module, list(module.parametrizations))
    else:
        raise ValueError(f"register_parametrization: expected a parameter or buffer of {type(module).__name__}, got '{tensor_name}'")
    return module


def is_parametrized(module, tensor_name=None):
    """Whether the module has a parametrization, of this tensor if one is named."""
    found = vars(module).get("parametrizations")
    return isinstance(found, ModuleDict) and (len(found) > 0 if tensor_name is None else tensor_name in found)


def remove_parametrizations(module, tensor_name, leave_parametrized=True):
    """Make `module.tensor_name` a plain parameter or buffer again: with the value it has now, or that of its original.

    Errors: ValueError if it is not parametrized, or if the original is to be left and there are several.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"remove_parametrizations: expected a parametrized tensor of {type(module).__name__}, got '{tensor_name}'")
    parametrizations = module.parametrizations[tensor_name]
    if not parametrizations.is_tensor and not leave_parametrized:
        raise ValueError(f"remove_parametrizations: '{tensor_name}' is computed from {parametrizations.ntensors} tensors, "
                         "none of which can stay; use leave_parametrized=True")
    originals = parametrizations._originals()
    with no_grad():
        value = getattr(module, tensor_name).detach() if leave_parametrized else None
    if parametrizations.is_tensor:
        kept = originals[0]
        if value is not None:
            kept.data = value
    else:
        kept = Parameter(value, originals[0].requires_grad) if isinstance(originals[0], Parameter) else value
    del module.parametrizations[tensor_name]
    _show(module, list(module.parametrizations))
    if not is_parametrized(module):
        del module.parametrizations
    _keep(module, tensor_name, kept)
    return module


def type_before_parametrizations(module):
    """The class that the module had before it was parametrized."""
    return vars(type(module)).get("_plain", type(module))


def transfer_parametrizations_and_params(from_module, to_module, tensor_name=None):
    """Put the parametrizations of a module, or of one of its tensors, on another one, with copies of what they are computed from."""
    if not is_parametrized(from_module):
        return to_module
    if tensor_name is not None and not is_parametrized(from_module, tensor_name):
        return to_module
    for name in [tensor_name] if tensor_name is not None else list(from_module.parametrizations):
        source = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            value = getattr(from_module, name).detach().clone()
            _keep(to_module, name, Parameter(value) if isinstance(source._originals()[0], Parameter) else value)
        for parametrization in source:
            register_parametrization(to_module, name, parametrization, unsafe=source.unsafe)
        for mine, theirs in zip(to_module.parametrizations[name]._originals(), source._originals(), strict=True):
            mine.data = theirs.detach().clone()
    return to_module
