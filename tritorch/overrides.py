"""Extending the functions of tritorch to classes of one's own: `__torch_function__`, as in torch.overrides.

A class with a class method `__torch_function__(cls, func, types, args=(), kwargs=None)` is asked for the result of every public function
that gets an object of it: `func` is the function, `types` are the classes among the arguments that have such a method. Of several the
subclasses come first, then those further left; who answers NotImplemented leaves the call to the next, and if all do it is a TypeError.
Subclasses of Tensor have one that keeps their class in results. A `TorchFunctionMode` sees all calls inside its `with` block.

>>> import tritorch as torch
>>> class Seconds:
...     def __init__(self, value):
...         self.value = value
...     @classmethod
...     def __torch_function__(cls, func, types, args=(), kwargs=None):
...         args = [a.value if isinstance(a, cls) else a for a in args]
...         return cls(func(*args, **(kwargs or {})))
>>> torch.add(Seconds(torch.ones(2)), 1).value
tensor([2., 2.])
"""
import contextlib
import functools
import inspect

import tritorch
from tritorch import overridable
from tritorch.errors import sentence
from tritorch.overridable import relevant
from tritorch.protocol import arm, has_own, state
from tritorch.tensor import Tensor

__all__ = ["BaseTorchFunctionMode", "TorchFunctionMode", "enable_reentrant_dispatch", "get_default_nowrap_functions",
           "get_ignored_functions", "get_overridable_functions", "get_testing_overrides", "handle_torch_function", "has_torch_function",
           "has_torch_function_unary", "has_torch_function_variadic", "is_tensor_like", "is_tensor_method_or_property", "resolve_name",
           "wrap_torch_function"]


# ------------------------------------------------------------------ functions of one's own
def has_torch_function(relevant_args):
    """Whether an argument, or a mode around the call, wants to be asked: then `handle_torch_function` says what the call returns.

    >>> import tritorch as torch
    >>> torch.overrides.has_torch_function((torch.ones(2), 3))
    False
    """
    if state.off == 2:
        return False
    return bool(state.modes) or not state.off and any(has_own(type(v)) for v in relevant_args)


def has_torch_function_unary(obj):
    """`has_torch_function` of one argument."""
    return has_torch_function((obj,))


def has_torch_function_variadic(*relevant_args):
    """`has_torch_function` of several arguments."""
    return has_torch_function(relevant_args)


def handle_torch_function(public_api, relevant_args, *args, **kwargs):
    """What the modes around a call and the arguments that want to be asked answer to `public_api(*args, **kwargs)`.

    Raises TypeError if all of them answer NotImplemented.

    >>> import tritorch as torch
    >>> from tritorch.overrides import handle_torch_function, has_torch_function_unary
    >>> def doubled(x):
    ...     if has_torch_function_unary(x):
    ...         return handle_torch_function(doubled, (x,), x)
    ...     return x * 2
    >>> class Named(torch.Tensor): pass
    >>> type(doubled(Named([1.0]))).__name__
    'Named'
    """
    return overridable.decide(public_api, relevant(relevant_args), args, kwargs)


def wrap_torch_function(dispatcher):
    """Decorator for a function of one's own: `dispatcher`, called with its arguments, gives those that are asked.

    >>> import tritorch as torch
    >>> @torch.overrides.wrap_torch_function(lambda x: (x,))
    ... def doubled(x):
    ...     return x * 2
    >>> doubled(torch.ones(2))
    tensor([2., 2.])
    """
    def decorator(func):
        @functools.wraps(func)
        def wrapped(*args, **kwargs):
            asked = dispatcher(*args, **kwargs)
            if has_torch_function(asked):
                return handle_torch_function(wrapped, asked, *args, **kwargs)
            return func(*args, **kwargs)

        return wrapped

    return decorator


def is_tensor_like(inp):
    """Whether an object is a tensor to the functions: a Tensor, or of a class with a `__torch_function__`.

    >>> import tritorch as torch
    >>> torch.overrides.is_tensor_like(torch.ones(2)), torch.overrides.is_tensor_like([1.0])
    (True, False)
    """
    return type(inp) is Tensor or hasattr(inp, "__torch_function__")


# ------------------------------------------------------------------ which functions there are
def _home(space):
    home = tritorch
    for part in space.split(".")[1:]:
        home = getattr(home, part)
    return home


@functools.cache
def get_overridable_functions():
    """The functions that ask, in lists by their module or class. Of properties these are `Tensor.T.__get__` and their like.

    >>> import tritorch as torch
    >>> torch.add in torch.overrides.get_overridable_functions()[torch]
    True
    """
    arm()
    found = {}
    for func, (name, space) in overridable.public.items():
        if name not in overridable.MODES_ONLY:
            found.setdefault(_home(space), []).append(func)
    methods = found[Tensor]
    methods += [f for f in vars(Tensor).values() if inspect.isfunction(f) and f in overridable.public and f not in methods]
    return found


@functools.cache
def get_ignored_functions():
    """The public functions of `tritorch` and of Tensor that ask nobody, or only modes.

    >>> import tritorch as torch
    >>> torch.is_tensor in torch.overrides.get_ignored_functions()
    True
    """
    arm()
    places = [(name, getattr(tritorch, name)) for name in dir(tritorch)] + list(vars(Tensor).items())
    return {f for name, f in places if inspect.isfunction(f) and (f not in overridable.public or name in overridable.MODES_ONLY)}


@functools.cache
def get_testing_overrides():
    """For every function that asks its arguments one of the same parameters that returns -1: to try a class with all of them.

    >>> import tritorch as torch
    >>> torch.overrides.get_testing_overrides()[torch.matmul](None, None)
    -1
    """
    arm()
    return {func: _minus_one(func) for func, (name, _) in overridable.public.items() if name not in overridable.MODES_ONLY}


def _minus_one(func):
    """lambda <the parameters of func>: -1"""
    try:
        signature = inspect.signature(func)
    except ValueError:                                                   # `__get__` and `__set__`
        signature = inspect.signature((lambda self: -1) if func.__name__ == "__get__" else lambda self, value: -1)
    if func.__name__ == "__get__":
        return lambda self: -1
    names, texts = {}, []
    for k, p in enumerate(signature.parameters.values()):
        names[f"default_{k}"] = p.default
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        if p.kind is p.KEYWORD_ONLY and "*" not in " ".join(texts):
            texts.append("*")
        texts.append(f"{stars}{p.name}" + (f"=default_{k}" if p.default is not p.empty else ""))
    return eval(f"lambda {', '.join(texts)}: -1", names)                 # noqa: S307 of names of parameters


def get_default_nowrap_functions():
    """The functions whose result the `__torch_function__` of Tensor leaves as it is, since the tensor keeps it: `Tensor.grad.__get__`, …"""
    arm()
    return set(overridable.protocol.fields)


def resolve_name(f):
    """The name of a function that asks, with its module; None of others.

    >>> import tritorch as torch
    >>> torch.overrides.resolve_name(torch.nn.functional.linear)
    'tritorch.nn.functional.linear'
    """
    arm()
    try:
        return f"tritorch.{overridable.public[f][0]}" if f in overridable.public else None
    except TypeError:                                                    # what cannot be looked up
        return None


def is_tensor_method_or_property(func):
    """Whether a function that asks is a method of Tensor, or what gets or sets a property of it.

    >>> import tritorch as torch
    >>> torch.overrides.is_tensor_method_or_property(torch.Tensor.T.__get__)
    True
    """
    return func in get_overridable_functions()[Tensor] or func.__name__ == "__get__"


# ------------------------------------------------------------------ modes
class TorchFunctionMode:
    """Sees the calls of public functions inside its `with` block, whatever their arguments are: subclasses give `__torch_function__`.

    Inside of it the mode is not in force, but those around it are, so `func(*args, **kwargs)` goes on with the call.

    >>> import tritorch as torch
    >>> class Log(torch.overrides.TorchFunctionMode):
    ...     def __torch_function__(self, func, types, args=(), kwargs=None):
    ...         print(func.__name__)
    ...         return func(*args, **(kwargs or {}))
    >>> with Log():
    ...     y = torch.ones(2) + 1
    ones
    add
    """

    def __init__(self):
        pass

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """What a call returns; NotImplemented leaves it to the arguments."""
        raise NotImplementedError(sentence(type(self).__name__, "a method __torch_function__", "none"))

    def __enter__(self):
        _push_mode(self)
        return self

    def __exit__(self, *exception):
        _pop_mode()

    @classmethod
    def push(cls, *args, **kwargs):
        """A mode, to be entered: another way to say cls(*args, **kwargs)."""
        return cls(*args, **kwargs)


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that goes on with every call.

    >>> import tritorch as torch
    >>> with torch.overrides.BaseTorchFunctionMode():
    ...     torch.ones(2)
    tensor([1., 1.])
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _push_mode(mode):
    arm()
    state.modes = (*state.modes, mode)


def _pop_mode():
    *around, mode = state.modes
    state.modes = tuple(around)
    return mode


@contextlib.contextmanager
def _pop_mode_temporarily():
    """A context without the innermost mode, which it gives."""
    mode = _pop_mode()
    try:
        yield mode
    finally:
        _push_mode(mode)


def _get_current_function_mode():
    """The innermost mode, or None."""
    return state.modes[-1] if state.modes else None


def _get_current_function_mode_stack():
    """The modes around, the innermost last."""
    return [*state.modes]


@contextlib.contextmanager
def enable_reentrant_dispatch():
    """For use in a `__torch_dispatch__` alone: as there is none here, it raises RuntimeError, as in PyTorch outside of one."""
    raise RuntimeError(sentence("enable_reentrant_dispatch", "a call from a __torch_dispatch__", "one from outside"))
    yield
