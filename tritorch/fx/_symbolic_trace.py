"""Tracing: a function runs with proxies in the place of its arguments, and what it does with them is written down."""
import builtins
import contextlib
import functools
import inspect
import math
import sys
import types

from tritorch import protocol
from tritorch.errors import NoTensor, check
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import map_aggregate
from tritorch.fx.proxy import Proxy, TracerBase
from tritorch.nn.module import Module
from tritorch.nn.modules import Sequential
from tritorch.nn.parameter import Parameter
from tritorch.tensor import Tensor

_wrapped = {}                                                            # (id of a module's globals, name) → those globals
_call = Module.__call__
_HERE = object()                                                         # a name that was not there: that of a builtin function


class Tracer(TracerBase):
    """Traces modules and functions: `trace(root)` gives a Graph. Subclasses say which modules are one step (`is_leaf_module`).

    Functions of `autowrap_modules`, `autowrap_functions` and those of `torch.fx.wrap` are steps, too, where they are given proxies.

    >>> import tritorch as torch
    >>> class Steps(torch.fx.Tracer):
    ...     def is_leaf_module(self, m, name):
    ...         return isinstance(m, torch.nn.Linear)
    >>> [node.name for node in Steps().trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())).nodes]
    ['input_1', '_0', 'relu', 'output']
    """

    def __init__(self, autowrap_modules=(math,), autowrap_functions=(), param_shapes_constant=False):
        self._modules = tuple(autowrap_modules)
        self._functions = [f for m in autowrap_modules for f in vars(m).values() if callable(f) and not isinstance(f, type)]
        self._functions = {id(f): f for f in (*self._functions, *autowrap_functions)}
        self.root, self.tensor_attrs, self._paths, self._constants = None, {}, {}, 0

    # -------------------------------------------------------------- what subclasses say
    def is_leaf_module(self, m, module_qualified_name):
        """Whether a module is one step: those of torch.nn but Sequential are."""
        return type(m).__module__.startswith(("tritorch.nn.", "tritorch.ao.nn.")) and not isinstance(m, Sequential)

    def path_of_module(self, mod):
        """The dotted name of a module below the root. NameError if it is not there."""
        for name, module in self.root.named_modules():
            if module is mod:
                return name
        raise NameError(f"path_of_module: expected a module below the root, got {type(mod).__name__}")

    def call_module(self, m, forward, args, kwargs):
        """What the call of a module does: a step, or what its forward does."""
        name = self.path_of_module(m)
        return self.create_proxy("call_module", name, args, kwargs) if self.is_leaf_module(m, name) else forward(*args, **kwargs)

    def getattr(self, attr, attr_val, parameter_proxy_cache):
        """What a module's parameter is while it is traced: a proxy."""
        for name, parameter in self.root.named_parameters():
            if parameter is attr_val:
                if name not in parameter_proxy_cache:
                    parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
                return parameter_proxy_cache[name]
        return attr_val

    # -------------------------------------------------------------- tracing
    def trace(self, root, concrete_args=None):
        """The Graph of a module's forward, or of a function. Arguments named in `concrete_args` are not traced but have these values;
        the traced function takes them still, and does not look at them."""
        protocol.arm()
        module = isinstance(root, Module)
        check(module or callable(root), "trace", "a module or function", type(root).__name__, error=TypeError)
        self.root, fn = (root, type(root).forward) if module else (Module(), root)
        self.graph, self._constants = Graph(tracer_cls=type(self)), 0
        self.tensor_attrs = {id(t): name for name, t in _attributes(self.root) if isinstance(t, Tensor)}
        fn, args = self.create_args_for_root(fn, module, concrete_args)
        with _traced_modules(self), _asking_wrapped(self, getattr(fn, "__globals__", {})):
            result = fn(*args)
        self.create_node("output", "output", (self.create_arg(result),), {})
        return self.graph

    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        """(the function to trace, its arguments, all by position): `*args` and `**kwargs` are one proxy each."""
        plain, concrete = inspect.unwrap(root_fn), concrete_args or {}
        parameters = list(inspect.signature(plain).parameters.values())[int(is_module):]
        parameters.sort(key=lambda p: (p.kind == p.VAR_KEYWORD, p.kind == p.VAR_POSITIONAL, p.kind == p.KEYWORD_ONLY))
        args = [self.root] if is_module else []
        for p in parameters:
            stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
            value = concrete.get(p.name, p.default)
            default = () if value is p.empty or stars else (self.create_arg(value),)
            made = self.create_proxy("placeholder", stars + p.name, default, {})
            args.append(concrete.get(p.name, made))
        if all(p.kind == p.POSITIONAL_OR_KEYWORD for p in parameters):
            return root_fn, args
        code = plain.__code__
        code = code.replace(co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS), co_argcount=len(args),
                            co_posonlyargcount=0, co_kwonlyargcount=0)
        return types.FunctionType(code, plain.__globals__, plain.__name__, None, plain.__closure__), args

    def create_constant(self, a):
        if not isinstance(a, Tensor):
            return super().create_constant(a)
        if id(a) not in self.tensor_attrs:
            name = f"_tensor_constant{self._constants}"
            self._constants += 1
            object.__setattr__(self.root, name, a)
            self.tensor_attrs[id(a)] = name
        return self.create_node("get_attr", self.tensor_attrs[id(a)], (), {})


def _attributes(module):
    """(dotted name, value) of all attributes of a module and of those below it."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            yield f"{path}.{name}" if path else name, value


@contextlib.contextmanager
def _traced_modules(tracer):
    """Inside, calls of modules and their parameters go through the tracer."""
    parameters = {}

    def __call__(module, *args, **kwargs):
        return tracer.call_module(module, lambda *a, **k: _call(module, *a, **k), args, kwargs)

    def __getattribute__(module, name):
        value = object.__getattribute__(module, name)
        return tracer.getattr(name, value, parameters) if isinstance(value, Parameter) else value

    Module.__call__, Module.__getattribute__ = __call__, __getattribute__
    try:
        yield
    finally:
        Module.__call__ = _call
        del Module.__getattribute__


@contextlib.contextmanager
def _asking_wrapped(tracer, own):
    """Inside, names of wrapped functions, where `wrap` was told of them, in the modules of `autowrap_modules` and in the function's own
    globals, are of such that make a step of a call with proxies."""
    places = [(space, name) for (_, name), space in _wrapped.items() if name in space or hasattr(builtins, name)]
    places += [(space, name) for space in (own, *map(vars, tracer._modules)) for name, f in space.items() if id(f) in tracer._functions]
    before = [(space, name, space[name] if name in space else _HERE) for space, name in places]
    for space, name, original in before:
        space[name] = _asking(getattr(builtins, name) if original is _HERE else original)
    try:
        yield
    finally:
        for space, name, original in reversed(before):
            if original is _HERE:
                del space[name]
            else:
                space[name] = original


def _asking(original):
    """A function that makes a step of a call with proxies."""
    @functools.wraps(original)
    def asking(*args, **kwargs):
        found = []
        map_aggregate((args, kwargs), lambda v: found.append(v) if isinstance(v, Proxy) else None)
        return found[0].tracer.create_proxy("call_function", original, args, kwargs) if found else original(*args, **kwargs)

    return asking


def wrap(fn_or_name):
    """Have a function be one step of traces that call it with what is traced: as `@torch.fx.wrap`, or by a name in the calling module,
    also of a builtin function. Called at a module's top; fn_or_name itself.

    >>> import tritorch as torch
    >>> @torch.fx.wrap
    ... def doubled(x):
    ...     return 2 * x if x.sum() > 0 else x
    >>> doubled(torch.tensor(3))
    tensor(6)
    """
    check(callable(fn_or_name) or isinstance(fn_or_name, str), "wrap", "a function, or the name of one", type(fn_or_name).__name__,
          error=NoTensor)
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    space = sys._getframe(1).f_globals
    _wrapped[id(space), name] = space
    return fn_or_name


def symbolic_trace(root, concrete_args=None):
    """A module's forward, or a function, as a GraphModule: its steps are a Graph, which can be changed.

    The function runs once, with proxies for its arguments. What depends on their values, as `if x.sum() > 0`, raises TraceError.

    >>> import tritorch as torch
    >>> traced = torch.fx.symbolic_trace(lambda x, y: torch.relu(x) + 2 * y)
    >>> print(traced.code)
    def forward(self, x, y):
        relu = torch.relu(x);  x = None
        mul = 2 * y;  y = None
        add = relu + mul;  relu = mul = None
        return add
    <BLANKLINE>
    >>> traced(torch.tensor([-1.0, 3.0]), 1)
    tensor([2., 5.])
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    return GraphModule(tracer.root, graph, type(root).__name__ if isinstance(root, Module) else root.__name__)
