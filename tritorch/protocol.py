"""`__torch_function__`: classes that see the calls of public functions with their objects. What a program without such a class needs of it.

Nothing of this costs a program that has none: its functions are what they are in the source. The first class that needs it, mode or
foreign object `arms` them: see overridable.py.
"""
import itertools
import sys
import threading

from tritorch.autograd import places
from tritorch.errors import NoTensor, answers, check, sentence, variables
from tritorch.ops import view
from tritorch.tensor import Tensor, alias


class State(threading.local):
    """What this thread does with the protocol."""

    off = 0                                                              # 1: classes are not asked, 2: neither are modes
    outside = None                                                       # what `off` was where a backward pass began, inside of one
    modes = ()                                                           # the TorchFunctionModes around, innermost last


state = State()
armed = failed = False                                                   # whether the functions ask; since a call that failed


class _Off:
    """A context in which fewer are asked."""

    level = 1

    def __enter__(self):
        self.was = state.off
        state.off = max(self.level, self.was)

    def __exit__(self, *exception):
        state.off = self.was


class DisableTorchFunctionSubclass(_Off):
    """A context in which calls run as if no argument had a `__torch_function__`; modes still see them."""


class DisableTorchFunction(_Off):
    """A context in which calls are seen by no `__torch_function__`, of a class or of a mode."""

    level = 2


def disabled(func, types, args=(), kwargs=None):
    """func(*args, **kwargs): what a class of tensors names as its `__torch_function__` to have none."""
    return func(*args, **(kwargs or {}))


def arm():
    """Have the public functions ask from now on."""
    global armed
    if not armed:
        from tritorch import overridable

        overridable.arm()
        armed = True


def has_own(kind):
    """Whether a class, or another object's class, has something to say about calls."""
    return getattr(kind, "__torch_function__", disabled) is not disabled and kind is not Tensor


# ------------------------------------------------------------------ subclasses of Tensor
def torch_function(cls, func, types, args=(), kwargs=None):
    """What subclasses of Tensor do with a call where they do not say otherwise: func(*args, **kwargs), tensors in the result, also in a
    list or tuple, becoming objects of the subclass over the same memory.

    `types` are the classes, among those of the arguments, that have a `__torch_function__`; one that `cls` is no subclass of has to deal
    with the call itself: NotImplemented.

    >>> import tritorch as torch
    >>> class Logged(torch.Tensor):
    ...     @classmethod
    ...     def __torch_function__(cls, func, types, args=(), kwargs=None):
    ...         print(func.__name__)
    ...         return super().__torch_function__(func, types, args, kwargs)
    >>> x = Logged([1.0, 2.0])
    >>> type(x.exp()).__name__
    exp
    'Logged'
    """
    if not all(issubclass(cls, t) for t in types):
        return NotImplemented
    was = state.off
    state.off = was or 1
    try:
        found = func(*args, **(kwargs or {}))
    finally:
        state.off = was
    return found if func in fields else convert(found, cls)


fields = set()                                                           # functions that give what a tensor keeps: it stays as it is


def convert(found, cls):
    """The result of a call as an object of cls: tensors, also in lists and tuples."""
    if isinstance(found, Tensor):
        return found if isinstance(found, cls) else as_subclass(found, cls)
    if not isinstance(found, (tuple, list)) or cls is Tensor:
        return found
    made = [convert(v, cls) for v in found]
    if all(map(_same, made, found)):
        return found
    return found._make(made) if hasattr(found, "_make") else type(found)(made)


def _same(a, b):
    return a is b


def subclassed(cls, **options):
    """`Tensor.__init_subclass__`: the first class that sees calls arms the functions. Classes of ours see none unless they say so."""
    super(Tensor, cls).__init_subclass__(**options)
    own = getattr(cls.__torch_function__, "__func__", None) is not torch_function
    if not own and places.inside[sys._getframe(1).f_code.co_filename]:
        cls.__torch_function__ = disabled
    if has_own(cls):
        arm()
        if own:
            from tritorch import overridable

            overridable.show_facts(cls)


def initialized(self, *args, **kwargs):
    """`Tensor.__init__`: nothing, whatever a subclass says; a tensor is made by `__new__`."""


def as_subclass(self, cls):
    """The same tensor as an object of a subclass of Tensor, history included.

    >>> import tritorch as torch
    >>> class Measured(torch.Tensor): pass
    >>> type(torch.ones(2).as_subclass(Measured)).__name__
    'Measured'
    """
    check_class("as_subclass", cls)
    with DisableTorchFunction():
        seen = view.view_as(self, self)
        out = alias(seen, cls)
    out.node, out.index, out.base, out.base_node = seen.node, seen.index, seen.base, seen.base_node
    return out


def make_subclass(cls, data, require_grad=False):
    """`Tensor._make_subclass`: the memory of a tensor, without history, as an object of a subclass of Tensor.

    >>> import tritorch as torch
    >>> class Measured(torch.Tensor):
    ...     def __new__(cls, data, unit):
    ...         made = torch.Tensor._make_subclass(cls, torch.as_tensor(data), True)
    ...         made.unit = unit
    ...         return made
    >>> Measured([1.0, 2.0], "m").requires_grad
    True
    """
    check_class("_make_subclass", cls)
    if not isinstance(data, Tensor):
        raise NoTensor(sentence("_make_subclass", "a tensor as data", type(data).__name__))
    with DisableTorchFunction():
        return alias(data, cls).requires_grad_(require_grad)


def make_wrapper_subclass(cls, size, **options):
    """`Tensor._make_wrapper_subclass`: it takes a class with a `__torch_dispatch__`, of which there are no objects here.
    NotImplementedError for such a class, TypeError for others."""
    check_class("_make_wrapper_subclass", cls)
    raise TypeError(sentence("_make_wrapper_subclass", "a class with a __torch_dispatch__", cls.__name__,
                             use="a class with a __torch_function__ that keeps the tensor as an attribute"))


def check_class(name, cls):
    """A class with a `__torch_dispatch__` can be written, as packages do when imported, but has no objects: no operator asks it."""
    check(isinstance(cls, type) and issubclass(cls, Tensor), name, "a subclass of Tensor", repr(cls), error=TypeError)
    dispatch = getattr(cls, "__torch_dispatch__", None)
    check(dispatch is None or getattr(dispatch, "__name__", "") == "_disabled_torch_dispatch_impl", name,
          f"{cls.__name__} to see calls by __torch_function__", "a class with a __torch_dispatch__", error=NotImplementedError)


# ------------------------------------------------------------------ objects of other classes
def answer(frame):
    """Of a call that failed in this frame before the functions were armed: (what a foreign object among its arguments answers,), or None
    where there is none. The functions are armed, and the call of the function that runs in the frame is made anew, if the user made it."""
    global failed
    if armed and not failed or state.off or not any(has_own(type(v)) for v in _flat(variables(frame).values(), 3)):
        return None
    failed = True                                                        # the error comes through more functions, up to the user's call
    arm()
    from tritorch import overridable

    call = overridable.call_of(frame)
    return None if call is None else (call(),)


def _flat(values, depth):
    """The values, and what is in tuples, lists and dicts among them."""
    for v in itertools.islice(values, 1000):
        yield v
        if depth and isinstance(v, (tuple, list, dict)):
            yield from _flat(v.values() if isinstance(v, dict) else v, depth - 1)


answers.append(answer)
