"""Nodes of graphs as JSON, and back. Only data comes back: operators of `torch.ops`, arithmetic, numbers, dtypes, devices, containers."""
import keyword
import math
import operator
import sys

from tritorch import return_types
from tritorch.device import as_device, device
from tritorch.device import meta as on_meta
from tritorch.dtype import dtype, types
from tritorch.errors import sentence
from tritorch.fx.graph import Graph
from tritorch.fx.node import Node
from tritorch.layout import layout, strided
from tritorch.memory_format import memory_format
from tritorch.ops.namespaces import OpOverload, OpOverloadPacket, namespace
from tritorch.safetensors import need
from tritorch.tensor import Tensor, empty_strided
from tritorch.utils import _pytree

FUNCTIONS = {f"operator.{name}": getattr(operator, name) for name in """add sub mul floordiv truediv mod neg pow getitem eq ne lt le gt
    ge""".split()}
FUNCTIONS.update({"min": min, "max": max, "math.sqrt": math.sqrt, "math.log": math.log})
NAMES = {function: name for name, function in FUNCTIONS.items()}
FORMATS = {form.name: form for form in vars(sys.modules["tritorch.memory_format"]).values() if isinstance(form, memory_format)}
CONTAINERS = {kind.__name__: kind for kind in _pytree._nodes if isinstance(kind, type)}
PLAIN = str, bool, int, type(None)


def dtype_named(name):
    found = getattr(types, name, None)
    need(isinstance(found, dtype), "the name of a dtype", name)
    return found


def is_name(x):
    """Whether a variable may be called so: generated code has these names."""
    return type(x) is str and x.isidentifier() and not keyword.iskeyword(x)


class Encoder:
    """Values as JSON has them: a list is a list, all else that is no text, number or None is {kind: data}."""

    def target(self, node):
        """What a node calls."""
        if isinstance(node.target, str):
            return node.target
        if isinstance(node.target, OpOverload):
            return f"ops.{node.target.namespace}.{node.target._opname}.{node.target._overloadname}"
        if node.target in NAMES:
            return NAMES[node.target]
        raise NotImplementedError(sentence("export.save", f"an operator as target of {node.name}", node.target))

    def value(self, x):
        """An argument."""
        if isinstance(x, Node):
            return {"node": x.name}
        if isinstance(x, PLAIN):
            return x
        if isinstance(x, float):
            return x if math.isfinite(x) else {"float": repr(x)}
        if isinstance(x, complex):
            return {"complex": [repr(x.real), repr(x.imag)]}
        if isinstance(x, tuple):
            return {"tuple": [self.value(v) for v in x]}
        if isinstance(x, list):
            return [self.value(v) for v in x]
        if isinstance(x, dict):
            return {"dict": [[self.value(k), self.value(v)] for k, v in x.items()]}
        for kind, types_of in (("dtype", dtype), ("device", device), ("memory_format", memory_format)):
            if isinstance(x, types_of):
                return {kind: str(x) if kind == "device" else x.name}
        if isinstance(x, layout) and x is strided:
            return {"layout": "strided"}
        raise NotImplementedError(sentence("export.save", "arguments that are data", type(x).__name__))

    def meta(self, node):
        """What a file keeps of what is known of a node."""
        found = {key: self.value(node.meta[key]) for key in ("sizes", "stack_trace", "nn_module_stack") if key in node.meta}
        if "val" in node.meta:
            found["val"] = self.like(node.meta["val"])
        return found

    def like(self, x):
        if isinstance(x, Tensor):
            return {"tensor": [list(x.shape), list(x.strides), x.dtype.name]}
        return {"tuple": [self.like(v) for v in x]} if isinstance(x, tuple) else self.value(x)

    def spec(self, spec):
        """The form of a tree."""
        if spec.is_leaf():
            return None
        kind, context = spec.type, spec.context
        if not isinstance(kind, type) and getattr(return_types, context.__name__, None) is context:
            return [f"return_types.{context.__name__}", None, [self.spec(child) for child in spec.children_specs]]
        if not isinstance(kind, type):                                   # another namedtuple
            raise NotImplementedError(sentence("export.save", "containers that are registered", context.__name__,
                                               use="a dict or a dataclass"))
        if CONTAINERS.get(kind.__name__) is not kind:
            kind = f"{kind.__module__}.{kind.__qualname__}"
            return [kind, self.value(context), [self.spec(child) for child in spec.children_specs]]
        if kind is CONTAINERS["defaultdict"] and context[0] is not None:
            raise NotImplementedError(sentence("export.save", "dicts without a function", "a defaultdict"))
        return [kind.__name__, self.value(context), [self.spec(child) for child in spec.children_specs]]


class Decoder:
    """What an Encoder made, as a graph. Raises FileFormatError for all else."""

    def __init__(self):
        self.graph, self.nodes = Graph(), {}

    def node(self, entry):
        """Append a node."""
        op, name = entry["op"], entry["name"]
        need(op in ("placeholder", "call_function", "output") and type(name) is str and name not in self.nodes,
             "inputs, calls and an output, each with a name", op, name)
        target = self.function(entry["target"]) if op == "call_function" else entry["target"]
        need(op == "call_function" or is_name(target), "an input with a name", target)
        args, kwargs = self.value(entry["args"]), self.value(entry["kwargs"])
        need(isinstance(args, tuple) and isinstance(kwargs, dict) and all(map(is_name, kwargs)), "arguments in a tuple and a dict", args)
        made = self.graph.create_node(op, target, args, kwargs, name)
        if op == "placeholder" and is_name(name):
            made.name = name
        need(made.name == name, "a name that a variable may have", name)
        made.meta = {key: self.value(value) if key != "val" else self.like(value) for key, value in entry["meta"].items()}
        self.nodes[name] = made

    def function(self, target):
        """What a node may call."""
        need(type(target) is str, "the name of an operator", target)
        if target in FUNCTIONS:
            return FUNCTIONS[target]
        parts = target.split(".")
        need(len(parts) == 4 and parts[0] == "ops" and all(part.isidentifier() for part in parts), "the name of an operator", target)
        _, space, name, overload = parts
        need(space != "aten" or name in aten_names(), "an operator that export writes", target)
        packet = getattr(namespace(space), name, None)
        need(isinstance(packet, OpOverloadPacket), "an operator that is there", target, use="the import of who registers it")
        found = getattr(packet, overload, None)
        need(isinstance(found, OpOverload), "an operator that is there", target)
        return found

    def value(self, x):
        """An argument."""
        if isinstance(x, (float, *PLAIN)):
            return x
        if isinstance(x, list):
            return [self.value(v) for v in x]
        need(isinstance(x, dict) and len(x) == 1, "data", x)
        (kind, data), = x.items()
        return getattr(self, f"of_{kind}" if kind in KINDS else "unknown")(data)

    def unknown(self, data):
        need(False, "data of a known kind", data)

    def of_node(self, name):
        need(name in self.nodes, "nodes behind those that they use", name)
        return self.nodes[name]

    def of_float(self, data):
        need(data in ("inf", "-inf", "nan"), "a number", data)
        return float(data)

    def of_complex(self, data):
        return complex(float(data[0]), float(data[1]))

    def of_tuple(self, data):
        return tuple([self.value(v) for v in data])

    def of_dict(self, data):
        return {self.value(k): self.value(v) for k, v in data}

    def of_dtype(self, data):
        return dtype_named(data)

    def of_device(self, data):
        return as_device(data)

    def of_memory_format(self, data):
        need(data in FORMATS, "a memory format", data)
        return FORMATS[data]

    def of_layout(self, data):
        return strided

    def like(self, x):
        """What is known of a value: tensors without memory."""
        if isinstance(x, dict) and "tensor" in x:
            shape, strides, kind = x["tensor"]
            need(all(type(n) is int and n >= 0 for n in (*shape, *strides)), "sizes and strides", shape, strides)
            return empty_strided(tuple(shape), tuple(strides), dtype_named(kind), on_meta)
        return tuple([self.like(v) for v in x["tuple"]]) if isinstance(x, dict) and "tuple" in x else self.value(x)

    def spec(self, data):
        """The form of a tree, of containers that are registered here."""
        if data is None:
            return _pytree.LeafSpec()
        name, context, children = data
        if name.startswith("return_types."):
            kind = getattr(return_types, name.partition(".")[2], None)
            need(isinstance(kind, type) and issubclass(kind, tuple), "a type of results", name)
            return _pytree.TreeSpec("namedtuple", kind, [self.spec(child) for child in children])
        known = {f"{k.__module__}.{k.__qualname__}": k for k in _pytree._nodes if isinstance(k, type)}
        kind = CONTAINERS.get(name) or known.get(name)
        need(kind is not None, "containers that are registered here", name, use="export.register_dataclass before load")
        return _pytree.TreeSpec(kind, self.value(context), [self.spec(child) for child in children])


KINDS = frozenset(name.removeprefix("of_") for name in vars(Decoder) if name.startswith("of_"))


def aten_names():
    """The names of PyTorch's operators that graphs may call."""
    from tritorch.export.targets import NAMED

    return NAMED
