"""Names in graphs: of nodes, which are those of variables in generated code, and of what nodes call."""
import builtins
import functools
import inspect
import keyword
import re
import sys
import types
from importlib import import_module

from tritorch.errors import sentence
from tritorch.ops.namespaces import OpOverload, OpOverloadPacket
from tritorch.tensor import Tensor

HOMES = ("tritorch", "tritorch.nn.functional", "tritorch.linalg", "tritorch.fft", "tritorch.special", "tritorch.nn.init")
reserved = {**dict.fromkeys(keyword.kwlist, keyword), **vars(builtins)}  # what no variable may be called, unless it is that very object
_numbered = re.compile(r"^([a-zA-Z_][0-9a-zA-Z_]*?)(?:_(\d+))?$")


def snake_case(name):
    """`LayerNorm` as `layer_norm`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


class Namespace:
    """Names of objects, each of which has one of its own that shadows no builtin."""

    def __init__(self):
        self.names, self.used, self.last = {}, set(), {}

    def create_name(self, candidate, obj):
        """A name for an object like `candidate`, with the next free number where that is taken; that which it has, if it has one."""
        if obj is not None and obj in self.names:
            return self.names[obj]
        if not _numbered.match(candidate):
            candidate = re.sub("[^0-9a-zA-Z_]+", "_", candidate) or "_unnamed"
            candidate = "_" + candidate if candidate[0].isdigit() else candidate
        base, number = _numbered.match(candidate).groups()
        if number is None or candidate in self.used:
            number = self.last.get(base, 0)
            if reserved.get(candidate, obj) is not obj:
                number += 1
                candidate = f"{base}_{number}"
        number = int(number)
        while candidate in self.used:
            number += 1
            candidate = f"{base}_{number}"
        self.used.add(candidate)
        self.last[base] = number
        if obj is not None:
            self.names[obj] = candidate
        return candidate


def found(path):
    """The object that a dotted name means from a loaded module on, or None."""
    first, *rest = path.split(".")
    try:
        return functools.reduce(getattr, rest, sys.modules[first])
    except (AttributeError, KeyError):
        return None


def _get_qualified_name(func):
    """Where a function or class is found, as a dotted name: public names of ours before the files that they are from.

    >>> import operator, tritorch as torch
    >>> [_get_qualified_name(f) for f in (torch.relu, torch.nn.functional.relu, torch.Tensor.view, operator.add, len)]
    ['tritorch.relu', 'tritorch.nn.functional.relu', 'tritorch.Tensor.view', '_operator.add', 'len']
    """
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        return f"tritorch.ops.{func}" if isinstance(func, OpOverload) else f"tritorch.ops.{func._namespace}.{func.__name__}"
    name, module = func.__name__, getattr(func, "__module__", None)
    if getattr(builtins, name, None) is func:
        return name
    if name == "<lambda>":
        try:
            name = inspect.getsource(func).split("=")[0].strip()
        except OSError:
            raise RuntimeError(sentence("fx", "a function with a name", func, use="def")) from None
    if module is None or module.partition(".")[0] == "tritorch":
        if vars(Tensor).get(name) is func and found(f"tritorch.{name}") is not func:
            return f"tritorch.Tensor.{name}"
        for home in HOMES:
            if getattr(import_module(home), name, None) is func:
                return f"{home}.{name}"
        path = f"{module}.{getattr(func, '__qualname__', name)}"
        if found(path) is func:
            return path
    return name if module is None else f"{module}.{name}"


def is_ours(obj):
    """Whether generated code reaches an object by its name from `tritorch` on."""
    module = getattr(obj, "__module__", None)
    if not hasattr(obj, "__name__") or module is not None and module.partition(".")[0] != "tritorch":
        return False
    path = _get_qualified_name(obj)
    return path.startswith("tritorch.") and found(path) is obj


def _type_repr(obj):
    """A class as annotations name it."""
    if isinstance(obj, type) and not isinstance(obj, types.GenericAlias):
        return obj.__qualname__ if obj.__module__ == "builtins" else f"{obj.__module__}.{obj.__qualname__}"
    return "..." if obj is ... else obj.__name__ if isinstance(obj, types.FunctionType) else repr(obj)


def pretty_target(target):
    """What a node calls, as tables of nodes show it."""
    if isinstance(target, str):
        return target
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    if name is not None and module in ("builtins", "_operator"):
        return f"{module.lstrip('_')}.{name}"
    return _get_qualified_name(target)


def abbreviated(dtype):
    """A dtype in a few letters.

    >>> import tritorch as torch; [abbreviated(d) for d in (torch.float32, torch.bfloat16, torch.uint8, torch.bool)]
    ['f32', 'bf16', 'u8', 'b8']
    """
    text = "b8" if dtype.name == "bool" else dtype.name
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c"), ("_", "")):
        text = text.replace(long, short)
    return text
