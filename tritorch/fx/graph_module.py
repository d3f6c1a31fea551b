"""GraphModule: a module whose forward is what a Graph says."""
import copy
import itertools
import linecache

from tritorch.errors import check
from tritorch.fx.graph import Graph
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter
from tritorch.tensor import Tensor

_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"            # in `meta`: names of attributes that copies take along
_count = itertools.count()


def _copy_attr(from_module, to_module, target):
    """Have an attribute of a module below another one, too, by its dotted name; modules on the way are made where there are none."""
    *path, name = target.split(".")
    for part in path:
        from_module = getattr(from_module, part, None)
        if from_module is to_module or from_module is None:
            return
        if getattr(to_module, part, None) is None:
            setattr(to_module, part, Module())
        to_module = getattr(to_module, part)
    _put(to_module, name, getattr(from_module, name), name not in from_module._non_persistent_buffers_set)


def _put(module, name, value, persistent=True):
    """Set an attribute; a tensor that is no parameter becomes a buffer, so that it moves with the module."""
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        module.register_buffer(name, value, persistent)
    else:
        setattr(module, name, value)


def _assign_attr(from_obj, to_module, target):
    """Set an attribute by its dotted name; modules on the way are made where there are none."""
    *path, name = target.split(".")
    for part in path:
        if getattr(to_module, part, None) is None:
            setattr(to_module, part, Module())
        to_module = getattr(to_module, part)
    _put(to_module, name, from_obj)


class GraphModule(Module):
    """A module of the modules and attributes that a Graph names, out of `root` (a module, or a dict by dotted names), whose forward runs
    the graph. `graph` can be changed; `recompile()` makes `forward` anew, `code` is its text.

    >>> import tritorch as torch
    >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
    >>> for node in traced.graph.nodes:
    ...     if node.target == "1":
    ...         with traced.graph.inserting_after(node):
    ...             node.replace_all_uses_with(traced.graph.call_function(torch.sigmoid, node.args))
    ...         traced.graph.erase_node(node)
    [output]
    >>> code = traced.recompile(); bool((traced(-torch.ones(2)) > 0).all())
    True
    """

    def __new__(cls, *args, **kwargs):
        for base in cls.__mro__:                                         # a class for each object: its forward is its own
            if base.__qualname__ != "GraphModuleImpl":
                return super().__new__(type("GraphModuleImpl", (base,), {"__qualname__": "GraphModuleImpl", "__module__": __name__}))

    def __init__(self, root, graph, class_name="GraphModule"):
        super().__init__()
        type(self).__name__ = class_name
        self.meta = {}
        if isinstance(root, Module):
            self.training = root.training
            self.meta.update(getattr(root, "meta", None) or {})
            for node in graph.nodes:
                if node.op in ("get_attr", "call_module"):
                    _copy_attr(root, self, node.target)
        else:
            check(isinstance(root, dict), "GraphModule", "a module or a dict as root", type(root).__name__)
            wanted = {node.target for node in graph.nodes if node.op in ("get_attr", "call_module")}
            check(wanted <= root.keys(), "GraphModule", "all that the graph names in root", f"none of {sorted(wanted - root.keys())}")
            for name in sorted(wanted, key=lambda name: name.count(".")):
                _assign_attr(root[name], self, name)
        self.graph = graph

    @property
    def graph(self):
        """The Graph. Another one can be assigned, which is compiled."""
        return self._graph

    @graph.setter
    def graph(self, g):
        check(isinstance(g, Graph), "GraphModule", "a Graph", type(g).__name__, error=AssertionError)
        self._graph = g
        g.owning_module = self
        self.recompile()

    def recompile(self):
        """Make `forward` of the graph as it is now."""
        made = self._graph.python_code("self")
        name, space = f"<fx graph {next(_count)}>", made.globals
        linecache.cache[name] = len(made.src), None, made.src.splitlines(True), name                 # so that tracebacks show the lines
        exec(compile(made.src, name, "exec"), space)
        type(self).forward, self._code = space["forward"], made.src
        return made

    @property
    def code(self):
        """The text of `forward`."""
        return self._code

    def print_readable(self, print_output=True, **options):
        """The text of `forward` in that of a class, printed and returned."""
        inner = "\n".join("    " + line if line else line for line in self._code.split("\n"))
        text = f"class {type(self).__name__}(torch.nn.Module):\n{inner}"
        if print_output:
            print(text)
        return text

    # -------------------------------------------------------------- modules below
    def add_submodule(self, target, m):
        """Add a module under a dotted name; False if something else is in the way."""
        *path, name = target.split(".")
        at = self
        for part in path:
            at = getattr(at, part, None) if hasattr(at, part) else _added(at, part)
            if not isinstance(at, Module):
                return False
        at.add_module(name, m)
        return True

    def delete_submodule(self, target):
        """Take a module away; whether there was one."""
        *path, name = target.split(".")
        at = self
        for part in path:
            at = getattr(at, part, None)
        if not isinstance(getattr(at, name, None), Module):
            return False
        delattr(at, name)
        return True

    def delete_all_unused_submodules(self):
        """Take away the modules that the graph does not use."""
        used = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                parts = node.target.split(".")
                used |= {".".join(parts[:k + 1]) for k in range(len(parts))}
                if node.op == "call_module":
                    used |= {f"{node.target}.{name}" for name, _ in self.get_submodule(node.target).named_modules() if name}
        for name in [name for name, _ in self.named_modules() if name and name not in used]:
            self.delete_submodule(name)

    # -------------------------------------------------------------- copies
    def __deepcopy__(self, memo):
        made = copy.deepcopy(_CodeOnlyModule(self.__getstate__()), memo)
        out = GraphModule(made, copy.deepcopy(self._graph), type(self).__name__)
        for name in self.meta.get(_USER_PRESERVED_ATTRIBUTES_KEY, ()):
            setattr(out, name, copy.deepcopy(getattr(self, name), memo))
        out.meta = dict(self.meta)
        return out

    def __copy__(self):
        out = GraphModule(self, copy.deepcopy(self._graph), type(self).__name__)
        out.meta = dict(self.meta)
        return out

    def __reduce__(self):
        return _rebuilt, (self.__getstate__(), self._graph, type(self).__name__)

    def __getstate__(self):
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_graph", "_code")}


def _added(module, name):
    module.add_module(name, Module())
    return getattr(module, name)


def _rebuilt(state, graph, class_name):
    return GraphModule(_CodeOnlyModule(state), graph, class_name)


class _CodeOnlyModule(Module):
    """The attributes of a module, without what it does."""

    def __init__(self, body):
        super().__init__()
        self.__setstate__(dict(body))
