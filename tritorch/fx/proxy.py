"""Proxies: what a traced function gets in the place of tensors, and what makes nodes of what it does with them."""
import collections
import copy
import dis
import enum
import operator
import sys
import traceback
from dataclasses import fields, is_dataclass

from tritorch import overridable, protocol
from tritorch.errors import sentence
from tritorch.fx import traceback as fx_traceback
from tritorch.fx.codegen import magic_methods, reflectable_magic_methods
from tritorch.fx.node import base_types, map_arg, writes
from tritorch.nn.parameter import Parameter
from tritorch.utils._pytree import tree_leaves

__all__ = ["Attribute", "GraphAppendingTracer", "ParameterProxy", "Proxy", "Scope", "ScopeContextManager", "TraceError", "TracerBase"]


class TraceError(ValueError):
    """The program asks for a value that a proxy does not have."""


class Scope:
    """Which module a tracer is inside of: its path and class."""

    def __init__(self, module_path, module_type):
        self.module_path, self.module_type = module_path, module_type


class ScopeContextManager:
    """A context in which one scope has the values of another."""

    def __init__(self, scope, current_scope):
        self._scope, self._was = scope, copy.copy(scope)
        scope.module_path, scope.module_type = current_scope.module_path, current_scope.module_type

    def __enter__(self):
        return self._scope

    def __exit__(self, *exception):
        self._scope.module_path, self._scope.module_type = self._was.module_path, self._was.module_type


def assert_fn(x):
    """AssertionError unless x holds: what `trace_asserts` makes of assert statements."""
    if not x:
        raise AssertionError("Assertion failed")


class TracerBase:
    """What proxies tell what happens to them: it has the graph, and makes the nodes.

    `check_mutable_operations`: functions that write into an argument are a RuntimeError. `record_stack_traces`: nodes have the lines of
    the program that made them, from the first `forward` on. `trace_asserts`: statements `assert proxy` become nodes.
    `proxy_buffer_attributes`: buffers are proxies, as parameters are. `traced_func_name`: the method of a module that is traced.
    """

    record_stack_traces = trace_asserts = proxy_buffer_attributes = check_mutable_operations = False
    traced_func_name = "forward"

    def _begin(self):
        self.scope, self.module_stack, self.node_name_to_scope = Scope("", None), collections.OrderedDict(), {}

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        """A new node of the graph. Subclasses may look at it first, and refuse or change it."""
        if self.check_mutable_operations and kind == "call_function" and writes(target, kwargs):
            raise RuntimeError(sentence("fx", "functions that change no argument", overridable.name_of(target)))
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        self.node_name_to_scope[node.name] = self.scope.module_path, self.scope.module_type
        if fx_traceback.has_preserved_node_meta():
            node.meta.update(fx_traceback.kept_meta())
        elif self.module_stack:
            node.meta["nn_module_stack"] = copy.copy(self.module_stack)
        if self.record_stack_traces and not node.stack_trace:
            frames = traceback.extract_stack()
            first = next((k for k, frame in enumerate(frames) if frame.name == self.traced_func_name), len(frames))
            frames = [frame for frame in frames[first:] if not _is_ours(frame.filename)]
            if frames:
                node.stack_trace = "".join(traceback.format_list(frames)).strip()
        return node

    def proxy(self, node):
        """A proxy of a node."""
        return Proxy(node, self)

    def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, proxy_factory_fn=None):
        """A new node, whose arguments are made of these by `create_arg`, and a proxy of it by `proxy_factory_fn` or `proxy`."""
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs), name, type_expr)
        return self.proxy(node) if proxy_factory_fn is None else proxy_factory_fn(node)

    def create_arg(self, a):
        """What a node gets for an argument of a call: nodes for proxies, also in containers, slices and dataclasses, and plain values.

        Errors: NotImplementedError for other objects, RuntimeError for a proxy among the keys of a dict.
        """
        if isinstance(a, Proxy):
            return a.node
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if isinstance(a, tuple):
            made = [self.create_arg(x) for x in a]
            return type(a)(*made) if hasattr(a, "_fields") else tuple(made)
        if isinstance(a, list):
            return [self.create_arg(x) for x in a]
        if isinstance(a, dict):
            return {self._key(key): self.create_arg(x) for key, x in a.items()}
        if isinstance(a, slice):
            return slice(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if is_dataclass(a) and not isinstance(a, type):
            return self.create_node("call_function", type(a), (), {f.name: self.create_arg(getattr(a, f.name)) for f in fields(a)})
        if isinstance(a, (*base_types, enum.Enum, range, type)) or a is None or a is ...:
            return a
        raise NotImplementedError(sentence("fx", "arguments of nodes that are tensors, numbers or containers of them", type(a).__name__,
                                           use="fx.wrap on the function that takes it"))

    def _key(self, key):
        made = self.create_arg(key)
        if not isinstance(key, str):
            map_arg(made, _no_key)
        return made

    def to_bool(self, obj):
        """Called where the program asks whether a proxy holds: TraceError, unless a subclass knows."""
        raise TraceError(sentence("fx", "control flow that no traced value decides", f"{obj} in a condition",
                                  use="concrete_args, fx.wrap or tritorch.where"))

    def iter(self, obj):
        """Called where the program iterates over a proxy: TraceError, unless a subclass knows how many there are."""
        raise TraceError(sentence("fx", "no iteration over a traced value, as its length is not known", f"a loop over {obj}, or *{obj}",
                                  use="concrete_args or fx.wrap"))

    def keys(self, obj):
        """Called where the program asks a proxy for its keys, as `**proxy` does."""
        return Attribute(obj, "keys")()


def _is_ours(filename):
    return filename.startswith(_OURS) or filename in (protocol.__file__, overridable.__file__)


_OURS = __file__.rpartition("proxy.py")[0]


def _no_key(node):
    raise RuntimeError(sentence("fx", "keys of dicts that are no traced values", node))


class GraphAppendingTracer(TracerBase):
    """A tracer that appends to a graph: that of proxies which are made of nodes alone."""

    def __init__(self, graph):
        self._begin()
        self.graph = graph


class Proxy:
    """A node as the value that it stands for: operators, methods, attributes and functions of tensors make new nodes of it.

    A condition on it, a loop over it and `len` of it raise: traced programs do the same whatever the values are.

    >>> import tritorch as torch
    >>> graph = torch.fx.Graph()
    >>> x = torch.fx.Proxy(graph.placeholder("x"))
    >>> torch.relu(x).sum() / x.shape[0]
    Proxy(truediv)
    >>> [node.name for node in graph.nodes]
    ['x', 'relu', 'sum_1', 'getattr_1', 'getitem', 'truediv']
    """

    def __init__(self, node, tracer=None):
        protocol.arm()
        self.tracer, self.node = GraphAppendingTracer(node.graph) if tracer is None else tracer, node

    def __repr__(self):
        return f"Proxy({self.node.name})"

    def __getattr__(self, k):
        if k.startswith("__") and k.endswith("__"):                      # which Python, numpy and others ask of every object
            raise AttributeError(f"'Proxy' object has no attribute {k!r}")
        return Attribute(self, k)

    def __getstate__(self):
        return self.__dict__

    def __setstate__(self, state):
        self.__dict__.update(state)

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self):
        steps, k = _steps(sys._getframe(1))
        if steps[k].opname == "UNPACK_SEQUENCE":
            return (self[i] for i in range(steps[k].argval))
        return self.tracer.iter(self)

    def __abs__(self):
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def __bool__(self):
        if self.tracer.trace_asserts and _asserts(sys._getframe(1)):
            self.tracer.create_proxy("call_function", assert_fn, (self,), {})
            return True
        return self.tracer.to_bool(self)

    def keys(self):
        """What the tracer makes of `**proxy`: a call of the method."""
        return self.tracer.keys(self)

    def __len__(self):
        raise RuntimeError(sentence("fx", "no length of a traced value, as it is not known", f"len({self})",
                                    use="tritorch.fx.wrap('len') at the top of the module, or x.size(0)"))

    @classmethod
    def __torch_function__(cls, orig_method, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tracers = {a.tracer: a.tracer for a in tree_leaves((args, kwargs)) if isinstance(a, Proxy)}
        if len(tracers) > 1:
            raise RuntimeError(sentence(overridable.name_of(orig_method), "traced values of one tracer", *tracers))
        tracer = next(iter(tracers))
        path, space = overridable.public.get(orig_method, ("", ""))
        name = path.rpartition(".")[2] or orig_method.__name__
        if space == "tritorch.Tensor" or overridable._by_operator(sys._getframe(5)):     # below it: _asked, decide, ask, the function
            return tracer.create_proxy("call_method", name, args, kwargs)
        return tracer.create_proxy("call_function", orig_method, args, kwargs, name=tracer.graph._target_to_str(name))


class Attribute(Proxy):
    """`proxy.name`: a node only where it is used otherwise than in a call, which is that of a method."""

    def __init__(self, root, attr):
        self.root, self.attr, self.tracer, self._node = root, attr, root.tracer, None

    @property
    def node(self):
        """The node, which is made when it is first asked for."""
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """A parameter of a traced module whose shape the program may ask for, under `param_shapes_constant`."""

    def __init__(self, tracer, node, name, param):
        super().__init__(node, tracer)
        if not isinstance(param, Parameter):
            raise AssertionError(sentence("ParameterProxy", "a Parameter", type(param).__name__))
        self.param, self.name = param, name

    def __repr__(self):
        return f"ParameterProxy({self.name})"

    def __getattr__(self, k):
        return getattr(self.param, k) if k in ("shape", "ndim", "size", "dim", "numel", "nelement") else super().__getattr__(k)


def _operator_method(name, reflected):
    target = getattr(operator, name)

    def method(self, *args):
        args = (args[0], self) if reflected else (self, *args)
        return self.tracer.create_proxy("call_function", target, args, {})

    method.__name__ = f"__{'r' * reflected}{name.strip('_')}__"
    setattr(Proxy, method.__name__, method)


for _name in magic_methods:
    _operator_method(_name, False)
for _name in reflectable_magic_methods:
    _operator_method(_name, True)


def _steps(frame):
    """The instructions of a frame's code, and which of them it is at."""
    steps = list(dis.get_instructions(frame.f_code))
    return steps, next(k for k, step in enumerate(steps) if step.offset == frame.f_lasti)


def _asserts(frame):
    """Whether a frame is at an assert statement."""
    steps, k = _steps(frame)
    k += steps[k].opname == "TO_BOOL"
    while steps[k].opname in ("CACHE", "NOT_TAKEN"):
        k += 1
    after = steps[k + 1:]
    return "POP_JUMP" in steps[k].opname and "IF_TRUE" in steps[k].opname and any(
        step.opname == "LOAD_ASSERTION_ERROR" or step.argval is AssertionError for step in after[:2])
