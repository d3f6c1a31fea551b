"""The tracer: runs a function or a module with proxies for its inputs, and keeps what it does as a graph."""
import copy
import inspect
import itertools
import math
import threading
import warnings
from types import FunctionType

from tritorch.cuda.watching import watched
from tritorch.errors import sentence
from tritorch.fx.codegen import CodeGen, _PyTreeCodeGen, _PyTreeInfo
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import base_types
from tritorch.fx.patching import Patches, find_proxy, wrap
from tritorch.fx.proxy import ParameterProxy, Scope, ScopeContextManager, TracerBase
from tritorch.jit import _assert
from tritorch.nn.container import Sequential
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter
from tritorch.tensor import Tensor
from tritorch.utils import _pytree as pytree

__all__ = ["PH", "ProxyableClassMeta", "Tracer", "is_fx_symbolic_tracing", "is_fx_tracing", "symbolic_trace", "wrap"]

VARARGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_proxyable_classes = set()


class _State(threading.local):
    """What this thread does."""

    tracing = False


_state = _State()


class PHBase:
    """What stands for an input in `concrete_args`."""

    def __repr__(self):
        return "PH"


PH = PHBase()


class PHWithMeta(PHBase):
    """The same for an input that a key, or other attributes of this object, tell from others: its node has them."""

    def __init__(self, ph_key=None):
        self.ph_key = ph_key


def _placed(proxy, place):
    """The proxy of an input, whose node gets what stands for it carries."""
    vars(proxy.node).update({key: value for key, value in vars(place).items() if not hasattr(proxy.node, key)})
    return proxy


def is_fx_tracing():
    """Whether this thread traces a function.

    >>> is_fx_tracing()
    False
    """
    return _state.tracing


def is_fx_symbolic_tracing():
    """Whether this thread traces a function, and compiles none."""
    return _state.tracing and watched.watcher is None


class ProxyableClassMeta(type):
    """The metaclass of classes of which traced programs may make objects of proxies: that is a node, then.

    >>> import tritorch as torch
    >>> class Pair(metaclass=torch.fx.ProxyableClassMeta):
    ...     def __init__(self, left, right):
    ...         self.left, self.right = left, right
    >>> traced = torch.fx.symbolic_trace(lambda x: Pair(x, 1).left * 2)
    >>> traced(3)
    6
    """

    def __init__(cls, name, bases, attributes):
        _proxyable_classes.add(cls)
        super().__init__(name, bases, attributes)

    def __call__(cls, *args, **kwargs):
        proxy = find_proxy(args, kwargs) if _state.tracing else None
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", cls, args, kwargs)
        return super().__call__(*args, **kwargs)


class Tracer(TracerBase):
    """Traces modules and functions: subclasses say which modules stay calls (`is_leaf_module`), and what becomes of calls, attributes
    and nodes.

    `autowrap_modules` and `autowrap_functions`: functions that are called with proxies as they are, all of some modules' and others;
    `param_shapes_constant`: the shapes of parameters are numbers, as they will not change.

    >>> import tritorch as torch
    >>> class Everything(torch.fx.Tracer):
    ...     def is_leaf_module(self, m, module_qualified_name):
    ...         return False
    >>> [node.name for node in Everything().trace(torch.nn.Sequential(torch.nn.ReLU())).nodes]
    ['input_1', 'relu', 'output']
    """

    def __init__(self, autowrap_modules=(math,), autowrap_functions=(), param_shapes_constant=False):
        wrapped = [f for m in autowrap_modules for name, f in vars(m).items() if not name.startswith("_") and callable(f)]
        self._autowrap_function_ids = {id(f): f for f in (*wrapped, *autowrap_functions)}
        self._autowrap_search, self.param_shapes_constant = list(autowrap_modules), param_shapes_constant
        self.submodule_paths, self.root_module_name, self.num_calls = None, "", {}
        self._begin()

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        vars(made).update({key: copy.copy(value) if key == "_autowrap_search" else copy.deepcopy(value, memo)
                           for key, value in vars(self).items()})
        return made

    # -------------------------------------------------------------- what subclasses may say otherwise
    def is_leaf_module(self, m, module_qualified_name):
        """Whether calls of a module stay calls: of all of `tritorch.nn` but `Sequential`."""
        return m.__module__.startswith(("tritorch.nn", "tritorch.ao.nn")) and not isinstance(m, Sequential)

    def path_of_module(self, mod):
        """The dotted name of a module; NameError if it is none of those that are traced."""
        paths = self.submodule_paths or {module: name for name, module in self.root.named_modules()}
        if mod not in paths:
            raise NameError(sentence("fx", "modules that are attributes of the traced one", type(mod).__name__))
        return paths[mod]

    def call_module(self, m, forward, args, kwargs):
        """What a call of a module returns: a node of a leaf module, and else what forward(*args, **kwargs) does."""
        path = self.path_of_module(m)
        with ScopeContextManager(self.scope, Scope(path, type(m))):
            calls = self.num_calls[path] = self.num_calls.get(path, -1) + 1
            key = f"{path}@{calls}" if calls else path
            self.module_stack[key] = path, type(m)
            try:
                if self.is_leaf_module(m, path):
                    return self.create_proxy("call_module", path, args, kwargs)
                return forward(*args, **kwargs)
            finally:
                self.module_stack.pop(key, None)

    def getattr(self, attr, attr_val, parameter_proxy_cache):
        """What the program gets for a parameter, buffer or module that it reads from a module: for parameters a proxy."""
        if isinstance(attr_val, Parameter):
            return self._member(attr_val, self.root.named_parameters(), parameter_proxy_cache)
        if self.proxy_buffer_attributes and isinstance(attr_val, Tensor):
            return self._member(attr_val, self.root.named_buffers(), parameter_proxy_cache)
        return attr_val

    def _member(self, value, members, proxies):
        name = next((name for name, member in members if member is value), None)
        if name is None:
            return value
        if name not in proxies:
            constant = self.param_shapes_constant and isinstance(value, Parameter)
            make = {"proxy_factory_fn": lambda node: ParameterProxy(self, node, name, value)} if constant else {}
            proxies[name] = self.create_proxy("get_attr", name, (), {}, **make)
        return proxies[name]

    def create_arg(self, a):
        """What a node gets for an argument: besides what `TracerBase.create_arg` says, tensors and modules as nodes that read them from
        the module; one that it does not have becomes an attribute of its own.

        Errors: NameError for a parameter that is none of the module's.
        """
        members = self.root.named_parameters if isinstance(a, Parameter) else (
            self.root.named_buffers if isinstance(a, Tensor) else self.root.named_modules if isinstance(a, Module) else dict().items)
        for name, member in members():
            if member is a:
                return self.create_node("get_attr", name, (), {})
        if isinstance(a, Parameter):
            raise NameError(sentence("fx", "parameters of the traced module", f"another of shape {tuple(a.shape)}"))
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return self.create_node("call_function", type(a), tuple([self.create_arg(x) for x in a]), {})
        if isinstance(a, Tensor):
            if a not in self.tensor_attrs:
                self.tensor_attrs[a] = self._constant("_tensor_constant", a)
            return self.create_node("get_attr", self.tensor_attrs[a], (), {})
        if isinstance(a, pytree.TreeSpec):
            return self.create_node("get_attr", self._constant("_tree_spec_constant", a), (), {})
        if type(a) in _proxyable_classes:
            return self.create_node("get_attr", self._constant(f"_{type(a).__name__}_constant_", a), (), {})
        return super().create_arg(a)

    def _constant(self, prefix, value):
        name = self.get_fresh_qualname(prefix)
        setattr(self.root, name, value)
        return name

    def get_fresh_qualname(self, prefix):
        """The first name prefix0, prefix1, … that the module has no attribute of."""
        return next(name for k in itertools.count() if not hasattr(self.root, name := f"{prefix}{k}"))

    # -------------------------------------------------------------- inputs
    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        """(the function to call, its arguments): proxies of placeholders, named as the parameters are, but what `concrete_args` gives."""
        analyzed = inspect.unwrap(root_fn)
        code, signature = analyzed.__code__, inspect.signature(analyzed)
        total = code.co_argcount + code.co_kwonlyargcount
        if is_module and not total:
            raise RuntimeError(sentence("fx", "self as a parameter of its own", f"*{code.co_varnames[0]}"))
        names, args = code.co_varnames[is_module:total], [self.root] * is_module
        if isinstance(concrete_args, tuple) and code.co_flags & VARARGS and not names:         # as many inputs as *args is to have
            return root_fn, [*args, *[_placed(self.create_proxy("placeholder", f"input_{k}", (), {}), x)
                                      for k, x in enumerate(concrete_args)]]
        if isinstance(concrete_args, tuple):
            if len(concrete_args) != len(names):
                raise RuntimeError(sentence("fx", f"{len(names)} concrete_args", len(concrete_args)))
            concrete_args = dict(zip(names, concrete_args))
        args += [self._input(name, concrete_args or {}, signature.parameters) for name in names]
        stars = []
        for flag, mark in ((inspect.CO_VARARGS, "*"), (inspect.CO_VARKEYWORDS, "**")):
            if code.co_flags & flag:
                stars.append(mark + code.co_varnames[total + len(stars)])
        args += [self.create_proxy("placeholder", name, (), {}) for name in stars]
        if stars:
            root_fn = _of_positional(analyzed, len(args))
        elif code.co_kwonlyargcount:
            root_fn = _without_keywords(root_fn, code)
        leaves, spec = pytree.tree_flatten(tuple(args[is_module:]))
        plain = all(child.is_leaf() for child in spec.children_specs)
        self.graph._codegen = CodeGen() if plain else _PyTreeCodeGen(_PyTreeInfo([*names, *stars], spec, None))
        self.graph._codegen.keyword_only = code.co_varnames[code.co_argcount:total]
        if plain:
            return root_fn, args

        def of_leaves(*leaves):
            found, out_spec = pytree.tree_flatten(root_fn(*args[:is_module], *spec.unflatten(leaves)))
            self.graph._codegen.pytree_info = self.graph._codegen.pytree_info._replace(out_spec=out_spec)
            return found

        return of_leaves, leaves

    def _input(self, name, concrete, parameters):
        parameter = parameters[name]
        default = () if parameter.default is inspect.Parameter.empty else (parameter.default,)
        if name not in concrete:
            kind = None if parameter.annotation is inspect.Parameter.empty else parameter.annotation
            return self.create_proxy("placeholder", name, default, {}, type_expr=kind)
        numbers = itertools.count(1)

        def given(x):
            proxy = self.create_proxy("placeholder", f"{name}_{next(numbers)}", default, {})
            if isinstance(x, PHBase):
                return _placed(proxy, x)
            told = f"{name}: expected {x}, for which the function was traced, got another value"
            if x is None:
                self.create_proxy("call_function", _assert_is_none, (proxy, told), {})
            elif isinstance(x, base_types) and not isinstance(x, Tensor):
                _assert(proxy == x, told)
            else:
                warnings.warn(sentence("fx", "concrete_args that calls can be compared with", f"{name}={type(x).__name__}",
                                       use="the same in every call"), stacklevel=2)
            return x

        return pytree.tree_map(given, concrete[name])

    # -------------------------------------------------------------- tracing
    def trace(self, root, concrete_args=None):
        """The graph of what a function or a module computes; `concrete_args` as in `symbolic_trace`.

        While it runs, modules, functions marked by `wrap` and functions to wrap by themselves are what they are to this thread alone.
        """
        was, is_module = _state.tracing, isinstance(root, Module)
        fn = getattr(type(root), self.traced_func_name) if is_module else root
        if not isinstance(fn, FunctionType):
            raise AssertionError(sentence("fx", "a function of Python or a Module", type(fn).__name__))
        self.root = root if is_module else Module()
        self.root_module_name = root._get_name() if is_module else ""
        self.submodule_paths = {module: name for name, module in root.named_modules()} if is_module else None
        self.graph = Graph(tracer_cls=type(self))
        self.tensor_attrs = {value: f"{path}.{key}" if path else key for path, module in self.root.named_modules()
                             for key, value in vars(module).items() if isinstance(value, Tensor)}
        _state.tracing = True
        try:
            call, args = self.create_args_for_root(fn, is_module, concrete_args)
            with Patches(self, fn.__globals__):
                kind = inspect.unwrap(fn).__annotations__.get("return")
                self.create_node("output", "output", (self.create_arg(call(*args)),), {}, type_expr=kind)
        finally:
            _state.tracing, self.submodule_paths = was, None
        return self.graph


def _without_keywords(fn, code):
    """A function that takes its keyword arguments by position, too."""
    return lambda *args: fn(*args[:code.co_argcount], **dict(zip(code.co_varnames[code.co_argcount:], args[code.co_argcount:])))


def _of_positional(fn, count):
    """A function that takes all its parameters by position, *args and **kwargs as one each."""
    code = fn.__code__
    code = code.replace(co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=code.co_flags & ~VARARGS)
    return FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def symbolic_trace(root, concrete_args=None):
    """A `GraphModule` that computes what a function or a module does, from the nodes that running it with proxies gave.

    Modules of `tritorch.nn` stay calls, others are traced into, their parameters are read from the module. Conditions on tensors and loops
    over them raise `TraceError`; those on other things are decided once. `concrete_args`, a dict by parameter, gives values that are
    no inputs but fixed: numbers, which calls are then checked for, and containers with `fx.PH` where the inputs are.

    Unlike in PyTorch, nodes have the arguments that the program gives, without all defaults, functions that make tensors take traced
    sizes (`torch.zeros(x.shape[0], 3)`), parameters that are given by keyword alone come after *args, and buffers that a state dict leaves
    out are left out by the traced module, too. Functions that run nothing but others (`F.dropout`, which is `torch.dropout` here) have
    the first of their names.

    >>> import tritorch as torch
    >>> def f(x, double):
    ...     return 2 * x.relu() if double else x
    >>> traced = torch.fx.symbolic_trace(f, concrete_args={"double": True})
    >>> print(traced.graph)
    graph():
        %x : [num_users=1] = placeholder[target=x]
        %double_1 : [num_users=1] = placeholder[target=double_1]
        %eq : [num_users=1] = call_function[target=operator.eq](args = (%double_1, True), kwargs = {})
        %_assert : [num_users=0] = call_function[target=tritorch._assert](args = (%eq, double: expected True, for which the function
            was traced, got another value), kwargs = {})
        %relu : [num_users=1] = call_method[target=relu](args = (%x,), kwargs = {})
        %mul : [num_users=1] = call_function[target=operator.mul](args = (2, %relu), kwargs = {})
        return mul
    >>> traced(torch.tensor([-1.0, 1.0]), True)
    tensor([0., 2.])
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    return GraphModule(tracer.root, graph, type(root).__name__ if isinstance(root, Module) else root.__name__)


def _assert_is_none(value, msg):
    """AssertionError unless the value is None."""
    if value is not None:
        raise AssertionError(msg)


wrap("_assert_is_none")
