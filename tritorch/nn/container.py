"""Containers: modules and parameters in sequences and dictionaries."""
import operator
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from tritorch.nn.module import Module, _indent
from tritorch.nn.parameter import Parameter
from tritorch.tensor import Tensor


def _place(sequence, index):
    index = operator.index(index)
    if not -len(sequence) <= index < len(sequence):
        raise IndexError(f"expected an index from {-len(sequence)} to {len(sequence) - 1}, got {index}")
    return index % len(sequence)


def _pairs(entries, name):
    """The (key, value) pairs of a mapping or of an iterable of pairs."""
    if not isinstance(entries, Iterable):
        raise TypeError(f"{name}.update: expected a mapping or pairs, got {type(entries).__name__}")
    if isinstance(entries, (Mapping, ModuleDict, ParameterDict)):
        return list(entries.items())
    for j, pair in enumerate(entries := list(entries)):
        if not isinstance(pair, Iterable):
            raise TypeError(f"{name} update sequence element #{j} should be Iterable; is {type(pair).__name__}")
        if len(pair) != 2:
            raise ValueError(f"{name} update sequence element #{j} has length {len(pair)}; 2 is required")
    return entries


class _ModuleSequence(Module):
    """What `Sequential` and `ModuleList` share: children named by their place, or by what an ordered dictionary called them."""

    def _key(self, index):
        return list(self._modules)[_place(self, index)]

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(self._slice(index))
        return self._modules[self._key(index)]

    def __setitem__(self, index, module):
        setattr(self, self._key(index), module)

    def __delitem__(self, index):
        for key in list(self._modules)[index] if isinstance(index, slice) else [self._key(index)]:
            del self._modules[key]
        self._modules = {str(i): module for i, module in enumerate(self)}

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def append(self, module):
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules):
        """Add several modules at the end."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__}.extend: expected modules, got {type(modules).__name__}")
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index, module):
        """Put a module before the one at `index`."""
        if not isinstance(module, Module):
            raise AssertionError(f"{type(self).__name__}.insert: expected a Module, got {type(module).__name__}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        modules = list(self)
        modules.insert(index, module)
        self._modules = {str(i): module for i, module in enumerate(modules)}
        return self

    def pop(self, key):
        """Take a module, or those of a slice, out."""
        found = self[key]
        del self[key]
        return found


class Sequential(_ModuleSequence):
    """Modules one after the other: each gets what the one before returned. Named by their place, or by an `OrderedDict`.

    >>> import tritorch as torch
    >>> torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    Sequential(
      (0): Linear(in_features=3, out_features=2, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *args):
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else enumerate(args)
        for name, module in named:
            self.add_module(str(name), module)

    def _slice(self, index):
        return OrderedDict(list(self._modules.items())[index])

    def forward(self, input):
        for module in self._modules.values():
            input = module(input)
        return input

    def __add__(self, other):
        self._check_other(other)
        return Sequential(*self, *other)

    def __iadd__(self, other):
        self._check_other(other)
        return self.extend(other)

    def _check_other(self, other):
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")

    def __mul__(self, other):
        self._check_times(other)
        return Sequential(*list(self) * other)

    __rmul__ = __mul__

    def __imul__(self, other):
        self._check_times(other)
        return self.extend(list(self) * (other - 1))

    def _check_times(self, other):
        if not isinstance(other, int):
            raise TypeError(f"{type(self).__name__} * n: expected an int, got {type(other).__name__}")
        if other <= 0:
            raise ValueError(f"{type(self).__name__} * n: expected n > 0, got {other}")


class ModuleList(_ModuleSequence):
    """A list of modules; each is registered, none is called by itself.

    >>> import tritorch as torch
    >>> torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))
    ModuleList(
      (0-1): 2 x Linear(in_features=3, out_features=3, bias=True)
    )
    """

    def __init__(self, modules=None):
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _slice(self, index):
        return list(self)[index]

    def __iadd__(self, modules):
        return self.extend(modules)

    def __add__(self, other):
        return ModuleList([*self, *other])

    def __repr__(self):
        runs = []                                                        # (first, last, repr) of equal neighbours
        for i, text in enumerate(map(repr, self)):
            if runs and runs[-1][2] == text:
                runs[-1] = runs[-1][0], i, text
            else:
                runs.append((i, i, text))
        lines = [f"({i}): {text}" if i == j else f"({i}-{j}): {j - i + 1} x {text}" for i, j, text in runs]
        return f"{self._get_name()}(\n" + "\n".join(map(_indent, lines)) + "\n)" if lines else f"{self._get_name()}()"


class ModuleDict(Module):
    """A dictionary of modules; each is registered.

    >>> import tritorch as torch
    >>> list(torch.nn.ModuleDict({"a": torch.nn.ReLU(), "b": torch.nn.Tanh()}))
    ['a', 'b']
    """

    def __init__(self, modules=None):
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key):
        return self._modules[key]

    def __setitem__(self, key, module):
        self.add_module(key, module)

    def __delitem__(self, key):
        del self._modules[key]

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules)

    def __contains__(self, key):
        return key in self._modules

    def clear(self):
        """Take all modules out."""
        self._modules.clear()

    def pop(self, key):
        """Take one module out."""
        return self._modules.pop(key)

    def keys(self):
        """The names, in order."""
        return self._modules.keys()

    def items(self):
        """(name, value) pairs, in order."""
        return self._modules.items()

    def values(self):
        """The values, in order."""
        return self._modules.values()

    def update(self, modules):
        """Add or replace modules from a mapping or from pairs."""
        for key, module in _pairs(modules, "ModuleDict"):
            self[key] = module


def _describe(value):
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    device = f" ({value.device})" if value.is_cuda else ""
    return (f"{'Parameter' if isinstance(value, Parameter) else 'Tensor'} containing: "
            f"[{value.dtype} of size {'x'.join(map(str, value.shape))}{device}]")


def _as_parameter(value):
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters; tensors become parameters, other values are kept as they are.

    >>> import tritorch as torch
    >>> torch.nn.ParameterList([torch.zeros(2, 3)])
    ParameterList(  (0): Parameter containing: [tritorch.float32 of size 2x3])
    """

    def __init__(self, values=None):
        super().__init__()
        self._size = 0
        self.extend(() if values is None else values)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)([self[i] for i in range(len(self))[index]])
        return getattr(self, str(_place(self, index)))

    def __setitem__(self, index, param):
        setattr(self, str(_place(self, index)), _as_parameter(param))

    def __len__(self):
        return self._size

    def __iter__(self):
        return iter([self[i] for i in range(len(self))])

    def append(self, value):
        """Add a value at the end."""
        self._size += 1
        self[len(self) - 1] = value
        return self

    def extend(self, values):
        """Add several values at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(f"ParameterList.extend: expected several values, got {type(values).__name__}")
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def extra_repr(self):
        return "\n".join(f"  ({i}): {_describe(value)}" for i, value in enumerate(self))

    def __call__(self, *args, **kwargs):
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Module):
    """A dictionary of parameters; tensors become parameters, other values are kept as they are.

    >>> import tritorch as torch
    >>> torch.nn.ParameterDict({"scale": torch.ones(2)})["scale"].requires_grad
    True
    """

    def __init__(self, parameters=None):
        super().__init__()
        self._keys = {}
        self.update({} if parameters is None else parameters)

    def __getitem__(self, key):
        return getattr(self, key)

    def __setitem__(self, key, value):
        if not isinstance(key, str):
            raise TypeError(f"ParameterDict: expected a str as key, got {type(key).__name__}")
        setattr(self, key, _as_parameter(value))
        self._keys[key] = None

    def __delitem__(self, key):
        del self._keys[key]
        delattr(self, key)

    def __len__(self):
        return len(self._keys)

    def __iter__(self):
        return iter(self._keys)

    def __reversed__(self):
        return reversed(self._keys)

    def __contains__(self, key):
        return key in self._keys

    def __or__(self, other):
        return ParameterDict([*self.items(), *other.items()])

    def __ror__(self, other):
        return {**other, **self}

    def __ior__(self, other):
        self.update(other)
        return self

    def copy(self):
        """Another dictionary of the same parameters."""
        return ParameterDict(list(self.items()))

    def setdefault(self, key, default=None):
        """The value of `key`, which becomes `default` if there was none."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self):
        """Take all values out."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key):
        """Take one value out."""
        value = self[key]
        del self[key]
        return value

    def popitem(self):
        """Take the last value out, with its key."""
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def get(self, key, default=None):
        """The value under a name, else the default."""
        return self[key] if key in self else default

    def fromkeys(self, keys, default=None):
        """A dictionary of `keys`, all with the same value."""
        return ParameterDict([(key, default) for key in keys])

    def keys(self):
        """The names, in order."""
        return self._keys.keys()

    def items(self):
        """(name, value) pairs, in order."""
        return [(key, self[key]) for key in self._keys]

    def values(self):
        """The values, in order."""
        return [self[key] for key in self._keys]

    def update(self, parameters):
        """Add or replace values from a mapping or from pairs; those of a plain dictionary are sorted by key, as in PyTorch."""
        plain = isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict)
        for key, value in sorted(parameters.items()) if plain else _pairs(parameters, "ParameterDict"):
            self[key] = value

    def extra_repr(self):
        return "\n".join(f"  ({key}): {_describe(value)}" for key, value in self.items())

    def __call__(self, input):
        raise RuntimeError("ParameterDict should not be called.")
