"""The marks of torch.jit, which programs put on functions for TorchScript. There is none here: marked functions run as they are.

>>> import tritorch as torch
>>> @torch.jit.script
... def clamped(x):
...     return x if torch.jit.is_scripting() else x.clamp(0, 1)
>>> clamped(torch.tensor([-1.0, 2.0]))
tensor([0., 1.])
"""
from typing import Final

from tritorch.jit import annotations
from tritorch.nn.module import Module as ScriptModule

__all__ = ["Attribute", "Final", "ScriptModule", "annotate", "annotations", "export", "ignore", "is_scripting", "is_tracing", "script",
           "script_if_tracing", "script_method", "unused"]


def is_scripting():
    """Always False."""
    return False


def is_tracing():
    """Always False."""
    return False


def script(obj, optimize=None, _frames_up=0, _rcb=None, example_inputs=None):
    """obj itself, a function, class or module; `tritorch.compile` is what makes it faster."""
    return obj


def script_if_tracing(fn):
    """fn itself."""
    return fn


def script_method(fn):
    """fn itself."""
    return fn


def export(fn):
    """fn itself."""
    return fn


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
