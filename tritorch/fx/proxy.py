"""Proxies: what stands for values while a function is traced, and writes down what is done with it."""
import dis
import inspect
import operator

from tritorch.errors import sentence
from tritorch.fx.node import Node, map_aggregate
from tritorch.overrides import resolve_name

_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
_OTHERS = "lt le eq ne gt ge getitem neg pos invert".split()


class TraceError(ValueError):
    """The function does something that depends on values, which a trace does not have."""


class TracerBase:
    """What writes nodes into `self.graph`."""

    graph = None
    record_stack_traces = False

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        """A new node of the graph, of arguments that `create_arg` gave."""
        return self.graph.create_node(kind, target, args, kwargs, name, type_expr)

    def proxy(self, node):
        """What stands for the result of a node."""
        return Proxy(node, self)

    def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, proxy_factory_fn=None):
        """A new node, of any arguments, and what stands for its result."""
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs), name, type_expr)
        return (proxy_factory_fn or self.proxy)(node)

    def create_arg(self, a):
        """A value as the argument of a node. NotImplementedError of what can be none."""
        return map_aggregate(a, self._leaf)

    def _leaf(self, a):
        if isinstance(a, Proxy):
            return a.node
        if isinstance(a, Node) or a is None or a is ... or callable(a) or type(a) in (int, float, bool, str, complex, range, bytes):
            return a
        return self.create_constant(a)

    def create_constant(self, a):
        """The argument for a value that is no plain one."""
        if type(a).__module__.partition(".")[0] == "tritorch" or isinstance(a, (int, float, str)):       # dtypes, devices, enums
            return a
        raise NotImplementedError(sentence("create_arg", "nodes, tensors, numbers, texts, dtypes and containers of them", type(a).__name__))

    def to_bool(self, obj):
        """What `if proxy` means: TraceError, unless a subclass knows."""
        raise TraceError(sentence("bool", "control flow that does not depend on what is traced", obj, use="torch.where, or torch.fx.wrap"))

    def iter(self, obj):
        """What `for x in proxy` means: TraceError, unless a subclass knows."""
        raise TraceError(sentence("iter", "a loop that does not run over what is traced", obj, use="a leaf module, or torch.fx.wrap"))

    def keys(self, obj):
        """What `**proxy` means."""
        return Attribute(obj, "keys")()


class GraphAppendingTracer(TracerBase):
    """Writes what is done with `Proxy(node)` at the end of the node's graph."""

    def __init__(self, graph):
        self.graph = graph


class Proxy:
    """Stands for the result of a node; what is done with it makes further nodes.

    >>> import tritorch as torch
    >>> graph = torch.fx.Graph()
    >>> x = torch.fx.Proxy(graph.placeholder("x"))
    >>> y = torch.relu(x + 1).sum(dim=0)
    >>> print(graph)
    graph():
        %x : [num_users=1] = placeholder[target=x]
        %add : [num_users=1] = call_function[target=operator.add](args = (%x, 1), kwargs = {})
        %relu : [num_users=1] = call_function[target=torch.relu](args = (%add,), kwargs = {})
        %sum_1 : [num_users=0] = call_method[target=sum](args = (%relu,), kwargs = {'dim': 0})
    """

    def __init__(self, node, tracer=None):
        self.node, self.tracer = node, tracer or GraphAppendingTracer(node.graph)

    def __repr__(self):
        return f"Proxy({self.node.name})"

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):                # Python and packages ask for such to see what kind of object it is
            raise AttributeError(name)
        return Attribute(self, name)

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self):
        frame = inspect.currentframe().f_back
        at = next((i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti), None)
        if at is not None and at.opname == "UNPACK_SEQUENCE":            # a, b = proxy
            return (self[k] for k in range(at.argval))
        return self.tracer.iter(self)

    def __bool__(self):
        return self.tracer.to_bool(self)

    def __len__(self):
        raise RuntimeError(sentence("len", "a length that does not depend on what is traced", self, use='torch.fx.wrap("len")'))

    def __setitem__(self, key, value):
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __contains__(self, value):
        raise TraceError(sentence("in", "a question that does not depend on what is traced", self))

    def keys(self):
        """What `**proxy` asks for."""
        return self.tracer.keys(self)

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, orig_method, types, args=(), kwargs=None):
        found = []
        map_aggregate((args, kwargs or {}), lambda v: found.append(v.tracer) if isinstance(v, Proxy) else None)
        name = orig_method.__name__
        if (resolve_name(orig_method) or "").startswith("tritorch.Tensor.") and name != "__get__":       # a method that is no function, too
            return found[0].create_proxy("call_method", name, args, kwargs or {})
        return found[0].create_proxy("call_function", orig_method, args, kwargs or {})


class Attribute(Proxy):
    """An attribute of a proxy; one that is called is a method and makes one node instead of two."""

    def __init__(self, root, attr):
        self.root, self.attr, self.tracer, self._node = root, attr, root.tracer, None

    @property
    def node(self):
        """Of the attribute's value, made when something is done with it."""
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


def _operator(name, reflected=False):
    """The method of Proxy for an operator of Python's."""
    target = getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self, *others):
        return self.tracer.create_proxy("call_function", target, (*others, self) if reflected else (self, *others), {})

    return method


for _name in _BINARY:
    setattr(Proxy, f"__r{_name}__", _operator(_name, True))
for _name in (*_BINARY, *_OTHERS):
    setattr(Proxy, f"__{_name}__", _operator(_name))
