"""The arguments of a call under the names of its parameters."""
import inspect
from typing import Any, NamedTuple

from tritorch import nn
from tritorch.errors import sentence

__all__ = ["ArgsKwargsPair", "normalize_function", "normalize_module"]


class ArgsKwargsPair(NamedTuple):
    """Positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def normalize_function(target, args, kwargs=None, arg_types=None, kwarg_types=None, normalize_to_only_use_kwargs=False):
    """The arguments of target(*args, **kwargs) with all defaults and under their names: see `Node.normalized_arguments`.

    >>> import tritorch as torch
    >>> normalize_function(torch.nn.functional.softplus, (1.0,), {"threshold": 9.0})
    ArgsKwargsPair(args=(1.0,), kwargs={'beta': 1.0, 'threshold': 9.0})
    """
    try:
        signature = inspect.signature(target)
    except ValueError:                                                   # of builtins
        return None
    return _normalized(signature, args, kwargs or {}, normalize_to_only_use_kwargs)


def normalize_module(root, target, args, kwargs=None, normalize_to_only_use_kwargs=False):
    """The same of a call of the module that `root` has under the name `target`; None unless it is of a class of `tritorch.nn`."""
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise RuntimeError(sentence("normalize_module", "the name of a module", target)) from error
    if getattr(nn, type(module).__name__, None) is not type(module):
        return None
    return _normalized(inspect.signature(module.forward), args, kwargs or {}, normalize_to_only_use_kwargs)


def _normalized(signature, args, kwargs, only_kwargs):
    usual = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    if any(parameter.kind not in usual for parameter in signature.parameters.values()):
        return None
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    place = 0 if only_kwargs else len(args)
    items = list(bound.arguments.items())
    return ArgsKwargsPair(tuple([value for _, value in items[:place]]), dict(items[place:]))
