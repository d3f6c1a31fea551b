"""The marks of torch.jit, which programs put on functions for TorchScript. There is none here: marked functions run as they are, and
`script`, `trace` and `freeze` return what they are given, as PyTorch does where PYTORCH_JIT=0 switches TorchScript off.
What needs the graph of a program (`save`, `load`, …) raises NotImplementedError.

>>> import tritorch as torch
>>> @torch.jit.script
... def clamped(x):
...     return x if torch.jit.is_scripting() else x.clamp(0, 1)
>>> clamped(torch.tensor([-1.0, 2.0]))
tensor([0., 1.])
"""
import builtins
import contextlib
import types
import typing
from typing import Final

from tritorch.errors import sentence
from tritorch.futures import Future
from tritorch.jit import annotations
from tritorch.nn.module import Module

__all__ = ["Attribute", "Error", "Final", "RecursiveScriptModule", "ScriptFunction", "ScriptModule", "TracerWarning", "annotate",
           "annotations", "export", "fork", "freeze", "ignore", "interface", "is_scripting", "is_tracing", "isinstance", "load",
           "TensorType", "optimize_for_inference", "optimized_execution", "save", "script", "script_if_tracing", "script_method", "trace",
           "trace_module", "unused", "wait"]


class ScriptModule(Module):
    """A module whose methods programs mark for TorchScript. No module is one that was not written as one: `script` makes none."""


class RecursiveScriptModule(ScriptModule):
    """What PyTorch's `script` makes of a module. There are none: the name is for `isinstance`."""


class ScriptFunction:
    """What PyTorch's `script` makes of a function. There are none: the name is for `isinstance`."""


class TensorType:
    """TorchScript's type of tensors. No value has it: the name is for annotations and `isinstance`."""


class Error(RuntimeError):
    """What PyTorch raises in programs of TorchScript. It is never raised here."""


class TracerWarning(Warning):
    """Of traces that depend on values. There are none: the name is for filters of warnings."""

    @staticmethod
    def ignore_lib_warnings():
        """Nothing: there are no such warnings."""


def is_scripting():
    """Always False."""
    return False


def is_tracing():
    """Always False."""
    return False


def script(obj, optimize=None, _frames_up=0, _rcb=None, example_inputs=None):
    """obj itself, a function, class or module; `tritorch.compile` is what makes it faster."""
    return obj


def trace(func, example_inputs=None, optimize=None, check_trace=True, check_inputs=None, check_tolerance=1e-5, strict=True,
          _force_outplace=False, _module_class=None, _compilation_unit=None, example_kwarg_inputs=None, _store_inputs=True):
    """func itself, a function or module: what it does may go on depending on its inputs' values.

    >>> import tritorch as torch
    >>> layer = torch.nn.Linear(2, 3)
    >>> torch.jit.trace(layer, torch.ones(1, 2)) is layer
    True
    """
    return func


def trace_module(mod, inputs, *args, **kwargs):
    """mod itself."""
    return mod


def freeze(mod, preserved_attrs=None, optimize_numerics=True):
    """mod itself."""
    return mod


def optimize_for_inference(mod, other_methods=None):
    """mod itself."""
    return mod


def optimized_execution(should_optimize):
    """A context in which nothing changes."""
    return contextlib.nullcontext()


def fork(func, *args, **kwargs):
    """A Future of func(*args, **kwargs), which has been called when `fork` returns.

    >>> import tritorch as torch
    >>> torch.jit.wait(torch.jit.fork(torch.add, torch.ones(2), 1))
    tensor([2., 2.])
    """
    future = Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future):
    """The result of a Future."""
    return future.wait()


def isinstance(obj, target_type):
    """Whether obj is of a type as annotations have it, elements included: a type, Optional, Union, List, Dict or Tuple, or a tuple of such.

    >>> import tritorch as torch
    >>> torch.jit.isinstance([torch.ones(1)], list[torch.Tensor]), torch.jit.isinstance({"a": "b"}, dict[str, int])
    (True, False)
    """
    if builtins.isinstance(target_type, tuple):
        return any(isinstance(obj, kind) for kind in target_type)
    origin, args = typing.get_origin(target_type), typing.get_args(target_type)
    if origin in (typing.Union, types.UnionType):
        return any(isinstance(obj, kind) for kind in args)
    if origin not in (list, dict, tuple):
        return builtins.isinstance(obj, origin or target_type)
    if not builtins.isinstance(obj, origin):
        return False
    if origin is tuple and args[1:] != (...,):
        return len(obj) == len(args) and all(map(isinstance, obj, args))
    if origin is dict:
        return all(isinstance(k, args[0]) and isinstance(v, args[1]) for k, v in obj.items())
    return all(isinstance(v, args[0]) for v in obj)


def save(m, f, _extra_files=None):
    """NotImplementedError: there is no TorchScript."""
    _no_graph("save", "tritorch.save(m.state_dict(), f)")


def load(f, map_location=None, _extra_files=None, _restore_shapes=False):
    """NotImplementedError: the program in such a file is TorchScript."""
    _no_graph("load", "tritorch.load for the numbers, and the program's Python for the rest")


def _get_trace_graph(f, args=(), kwargs=None, *rest, **options):
    _no_graph("_get_trace_graph", "tritorch.utils.flop_counter to count operators, tritorch.fx for a graph")


def _no_graph(name, use):
    raise NotImplementedError(sentence(f"jit.{name}", "what needs no TorchScript", "a call for its graph", use=use))


def script_if_tracing(fn):
    """fn itself."""
    return fn


def script_method(fn):
    """fn itself."""
    return fn


def export(fn):
    """fn itself."""
    return fn


def interface(obj):
    """The class itself: what it asks of modules, Python does not check."""
    return obj


def unused(fn):
    """fn itself."""
    return fn


def ignore(drop=False, **kwargs):
    """The function itself, as `@ignore` or `@ignore(drop=True)`."""
    return drop if callable(drop) else lambda fn: fn


def annotate(the_type, the_value):
    """the_value itself."""
    return the_value


def Attribute(value, type):
    """The value itself."""
    return value


def _assert(condition, message):
    """AssertionError with `message` unless `condition` holds."""
    if not condition:
        raise AssertionError(message)


def _overload(fn):
    return fn


_overload_method, _script_if_tracing = _overload, script_if_tracing      # names that torchvision and torch_geometric use
