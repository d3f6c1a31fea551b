"""What is otherwise while a program is traced: modules and functions that are not run but become nodes."""
import builtins
import contextlib
import functools
import sys
import threading

from tritorch.errors import sentence
from tritorch.fx.proxy import Proxy
from tritorch.nn.module import _MEMBERS, Module
from tritorch.utils import _pytree as pytree

_wrapped = {}                                                            # (id of a module's globals, name of a function) → the globals
_lock = threading.RLock()                                                # one thread traces at a time: Module has one __call__
_call, _attribute = Module.__call__, Module.__getattribute__


class Patches(contextlib.ExitStack):
    """What is otherwise while a tracer runs: modules tell it their calls and attributes, functions to wrap make nodes."""

    def __init__(self, tracer, space):
        super().__init__()
        self.tracer, self.space, self.thread, self.seen = tracer, space, threading.get_ident(), set()

    def __enter__(self):
        super().__enter__()
        self.enter_context(_lock)
        tracer, thread, proxies = self.tracer, self.thread, {}

        def call(module, *args, **kwargs):
            if threading.get_ident() != thread:
                return _call(module, *args, **kwargs)
            self.search(getattr(module.forward, "__globals__", {}))
            return tracer.call_module(module, functools.partial(_call, module), args, kwargs)

        def attribute(module, name):
            value = _attribute(module, name)
            if threading.get_ident() == thread and any(name in _attribute(module, "__dict__").get(kind, ()) for kind in _MEMBERS):
                return tracer.getattr(name, value, proxies)
            return value

        for name, patch in (("__call__", call), ("__getattribute__", attribute)):
            own = vars(Module).get(name)
            setattr(Module, name, functools.wraps(getattr(Module, name))(patch))
            self.callback(setattr if own else delattr, Module, name, *([own] if own else []))
        for (_, name), space in [*_wrapped.items()]:
            self.wrap(space, name)
        for space in (self.space, *map(vars, tracer._autowrap_search)):
            self.search(space)
        return self

    def search(self, space):
        """Wrap the functions among a module's globals that the tracer wraps."""
        if id(space) not in self.seen:
            self.seen.add(id(space))
            for name, value in [*space.items()]:
                if not name.startswith("_") and id(value) in self.tracer._autowrap_function_ids and callable(value):
                    self.wrap(space, name)

    def wrap(self, space, name):
        own = space.get(name, getattr(builtins, name, None))             # None: of a module that has gone, or no longer has it
        if own is not None and not hasattr(own, "_fx_wraps"):
            self.callback(*((space.__setitem__, name, own) if name in space else (space.pop, name, None)))
            space[name] = _wrapping(own)


def _wrapping(function):
    """The function, of which calls with proxies are nodes."""
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        proxy = find_proxy(args, kwargs)
        if proxy is None:
            return function(*args, **kwargs)
        made = proxy.tracer.create_proxy("call_function", function, args, kwargs)
        made.node.meta["is_wrapped"] = True
        return made

    wrapped._fx_wraps = function
    return wrapped


def find_proxy(*values):
    """The first proxy in containers, or None."""
    return next((x for x in pytree.tree_iter(values) if isinstance(x, Proxy)), None)


def wrap(fn_or_name):
    """Have calls of a function with traced values be nodes, instead of tracing into it; the argument itself. To be called at the top of
    a module, with the function or with the name of a function of the module or of Python's, as a decorator, too.

    Errors: NotImplementedError inside of a function, RuntimeError for what is neither a function nor a name.

    >>> import tritorch as torch
    >>> @torch.fx.wrap
    ... def clipped(x):
    ...     return x if x.sum() > 1 else x * 2
    >>> traced = torch.fx.symbolic_trace(lambda x: clipped(x) + 1)
    >>> [node.name for node in traced.graph.nodes], traced(torch.tensor(1.0))
    (['x', 'clipped', 'add', 'output'], tensor(3.))
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError(sentence("wrap", "a function or the name of one", type(fn_or_name).__name__))
    frame = sys._getframe(1)
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError(sentence("wrap", "a call at the top level of a module", f"one in {frame.f_code.co_name}"))
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    _wrapped[id(frame.f_globals), name] = frame.f_globals
    return fn_or_name
