"""Modules whose forward is made from a graph."""
import copy
import inspect
import itertools
import linecache
import pickle
import warnings
import weakref
from pathlib import Path

from tritorch import nn
from tritorch.errors import sentence
from tritorch.fx.codegen import _PyTreeCodeGen, import_block
from tritorch.fx.graph import Graph
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter
from tritorch.serialization import save
from tritorch.tensor import Tensor

__all__ = ["GraphModule", "reduce_graph_module"]

_numbers = itertools.count()
_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


def _forward_of(source, names):
    """The function `forward` of a text with these globals; tracebacks show its lines."""
    file = f"<eval_with_key>.{next(_numbers)}"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    names = {**names, "__name__": file, "__file__": file}
    exec(compile(source, file, "exec", dont_inherit=True), names)        # noqa: S102 the text is ours, of the user's graph
    weakref.finalize(names["forward"], linecache.cache.pop, file, None)
    return names.pop("forward")


def _copy_attr(from_module, to_module, target):
    """Give a module what another has under a dotted name; modules on the way are made where they are not there."""
    *path, name = target.split(".")
    for part in path:
        from_module, inner = getattr(from_module, part), getattr(to_module, part, None)
        if inner is from_module:
            return                                                       # all that is below it is there, too
        if inner is None:
            inner = Module()
            setattr(to_module, part, inner)
        to_module = inner
    _assign(to_module, name, getattr(from_module, name), name not in getattr(from_module, "_non_persistent_buffers_set", ()))


def _assign_attr(from_obj, to_module, target):
    """Put an object under a dotted name of a module; modules on the way are made where they are not there."""
    *path, name = target.split(".")
    for part in path:
        if getattr(to_module, part, None) is None:
            setattr(to_module, part, Module())
        to_module = getattr(to_module, part)
    _assign(to_module, name, from_obj)


def _assign(module, name, value, persistent=True):
    if isinstance(value, Tensor) and not isinstance(value, Parameter):   # a tensor that is no parameter is a buffer
        module.register_buffer(name, value, persistent)
    else:
        setattr(module, name, value)


def _get_attr(model, attr_name):
    """What a module has under a dotted name."""
    for name in attr_name.split("."):
        model = getattr(model, name)
    return model


def _empty(tensor):
    """A tensor of the same shape and dtype, as code."""
    return f"tritorch.empty({list(tensor.shape)}, dtype=tritorch.{tensor.dtype.name})"


class _CodeOnlyModule(Module):
    """A module of given attributes, from which a GraphModule is made."""

    def __init__(self, body):
        super().__init__()
        self.__setstate__(body)


def reduce_graph_module(body, import_block):
    """The GraphModule of a pickle: its code, traced again."""
    from tritorch.fx._symbolic_trace import PH, Tracer

    root = _CodeOnlyModule(body)
    root_class = type("_CodeOnlyModule", (_CodeOnlyModule,), {"forward": _forward_of(import_block + body["_code"], {})})
    object.__setattr__(root, "__class__", root_class)
    tracer_class = body.get("_tracer_cls") or Tracer

    class KeepModules(tracer_class):
        def is_leaf_module(self, m, module_qualified_name):
            return True

    extras = body.get("_tracer_extras", {})
    if "_in_spec" in body:                                               # containers are inputs again as they were
        values = body["_in_spec"].unflatten([PH] * body["_in_spec"].num_leaves)
        names = list(inspect.signature(root_class.forward).parameters)[1:]
        extras = {"concrete_args": {name: value for name, value in zip(names, values) if value is not PH}, **extras}
    graph = KeepModules().trace(root, **extras)
    graph._tracer_cls = tracer_class
    made = GraphModule(root, graph, body.get("_class_name", "GraphModule"))
    for name, value in body.items():
        if not hasattr(made, name):
            setattr(made, name, value)
    return made


class GraphModule(Module):
    """A module that runs the code of a graph: `graph`, `code` and, after changes of the graph, `recompile()`.

    `root` is a module, or a dict by dotted name, of which it gets what the graph names (the same objects, no copies): parameters and
    buffers are listed, saved, moved and trained as those of any module. Each is of a class of its own.

    >>> import operator, tritorch as torch
    >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
    >>> print(traced.code.strip())
    def forward(self, input):
        input_1 = input
        _0 = getattr(self, "0")(input_1);  input_1 = None
        _1 = getattr(self, "1")(_0);  _0 = None
        return _1
    >>> [name for name, _ in traced.named_parameters()]
    ['0.weight', '0.bias']

    Errors: RuntimeError for another `root`, or a name that a dict does not have.
    """

    def __new__(cls, *args, **kwargs):
        base = next(kind for kind in cls.__mro__ if kind.__qualname__.rpartition(".")[2] != "GraphModuleImpl")

        class GraphModuleImpl(base):
            pass

        return super().__new__(GraphModuleImpl)

    def __init__(self, root, graph, class_name="GraphModule"):
        super().__init__()
        type(self).__name__ = class_name
        targets = [node.target for node in graph.nodes if node.op in ("get_attr", "call_module")]
        if isinstance(root, Module):
            self.training = root.training
            if isinstance(root, _CodeOnlyModule):
                targets = [*root._modules, *root._buffers, *root._parameters, *targets]
            for target in targets:
                _copy_attr(root, self, target)
        elif isinstance(root, dict):
            for target in sorted(targets, key=lambda target: target.count(".")):
                if target not in root:
                    raise RuntimeError(sentence("GraphModule", f"a root with {target}", [*root]))
                _assign_attr(root[target], self, target)
        else:
            raise RuntimeError(sentence("GraphModule", "a Module or a dict as root", type(root).__name__))
        self.meta = {}
        self.graph = graph

    @property
    def graph(self):
        """The graph. Assigned, it is compiled."""
        return self._graph

    @graph.setter
    def graph(self, graph):
        if not isinstance(graph, Graph):
            raise AssertionError(sentence("GraphModule", "a Graph", type(graph).__name__))
        self._graph, graph.owning_module = graph, self
        self.recompile()

    @property
    def code(self):
        """The text of the forward."""
        return self._code

    def recompile(self):
        """Make the forward of this module, and of those below it, anew from the graph; what was made, a `PythonCode`."""
        if isinstance(self._graph._codegen, _PyTreeCodeGen):
            self._in_spec, self._out_spec = self._graph._codegen.pytree_info[1:]
        made = self._graph.python_code("self")
        self._code, self._lineno_map, self._prologue_start = made.src, made._lineno_map, made._prologue_start
        type(self).forward = _forward_of(made.src, made.globals)
        for child in self.children():
            if isinstance(child, GraphModule):
                child.recompile()
        return made

    # -------------------------------------------------------------- copies and files
    def __reduce__(self):
        """The code and what the module has: where it is loaded the code is traced again. Nodes then have no `meta`."""
        body = self.__getstate__()
        graph = body.pop("_graph")
        body["_class_name"], body["_tracer_extras"] = type(self).__name__, graph._tracer_extras or {}
        if graph._tracer_cls is not None and "<locals>" not in graph._tracer_cls.__qualname__:
            body["_tracer_cls"] = graph._tracer_cls
        return reduce_graph_module, (body, import_block(self.recompile()))

    def __reduce_ex__(self, protocol):
        return self.__reduce__()

    def __deepcopy__(self, memo):
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        type(made).__name__, made.graph = type(self).__name__, made._graph
        return made

    def __copy__(self):
        made = GraphModule(self, self.graph, type(self).__name__)
        made.meta = self.meta
        return made

    def to_folder(self, folder, module_name="FxModule"):
        """Write the module as a package: its code as a class `module_name`, its parameters and buffers in `state_dict.pt`, and modules
        that their repr does not make anew as pickles, with a warning. The class reads them from the folder where it is."""
        folder = Path(folder)
        folder.mkdir(exist_ok=True)
        save(self.state_dict(), folder / "state_dict.pt")
        shown = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
        lines, pickled = ["super().__init__()", "here = Path(__file__).parent"], []
        for name, module in self.named_children():
            text = f"nn.{module!r}" if type(module) in shown else f"pickle.loads((here / {name + '.pkl'!r}).read_bytes())"
            if type(module) not in shown:
                (folder / f"{name}.pkl").write_bytes(pickle.dumps(module))
                pickled.append(name)
            lines.append(f"self.{name} = {text}" if name.isidentifier() else f"setattr(self, {name!r}, {text})")
        for name, tensor in self._buffers.items():
            if tensor is not None:
                kept = name not in self._non_persistent_buffers_set
                text = _empty(tensor) if kept else f"pickle.loads({pickle.dumps(tensor)!r})"
                lines.append(f"self.register_buffer({name!r}, {text}, persistent={kept})")
        for name, tensor in self._parameters.items():
            if tensor is not None:
                lines.append(f"self.{name} = nn.Parameter({_empty(tensor)}, requires_grad={tensor.requires_grad})")
        for name in ("_in_spec", "_out_spec"):
            if hasattr(self, name):
                lines.append(f"self.{name} = pickle.loads({pickle.dumps(getattr(self, name))!r})")
        lines.append("self.load_state_dict(tritorch.load(here / 'state_dict.pt'))")
        body = "".join([f"        {line}\n" for line in lines])
        lines_above = {"import tritorch", *import_block(self.recompile()).splitlines()}
        imports = "\n".join(["import pickle", "from pathlib import Path", "", *sorted(lines_above), "from tritorch import nn"])
        marks, _, code = self.code.partition("def ")
        code = "\n".join([f"    {line}".rstrip() for line in f"def {code}".strip().split("\n")])
        head = f"class {module_name}(nn.Module):\n    def __init__(self):"
        (folder / "module.py").write_text(f"{imports}\n{marks.rstrip()}\n\n\n{head}\n{body}\n{code}\n")
        (folder / "__init__.py").write_text(f"from .module import {module_name}  # noqa: F401\n")
        if pickled:
            warnings.warn(sentence("to_folder", "modules that their repr makes anew", pickled, use="the pickles written instead"),
                          stacklevel=2)

    # -------------------------------------------------------------- what is below
    def add_submodule(self, target, m):
        """Put a module under a dotted name; modules on the way are made where they are not there. False where something else is."""
        *path, name = target.split(".")
        module = self
        for part in path:
            if getattr(module, part, None) is None:
                setattr(module, part, Module())
            module = getattr(module, part)
            if not isinstance(module, Module):
                return False
        module.add_module(name, m)
        return True

    def delete_submodule(self, target):
        """Remove the module of a dotted name; whether there was one."""
        path, _, name = target.rpartition(".")
        try:
            parent = self.get_submodule(path)
        except AttributeError:
            return False
        if not isinstance(getattr(parent, name, None), Module):
            return False
        delattr(parent, name)
        return True

    def delete_all_unused_submodules(self):
        """Remove the modules that no node of the graph names, or needs for what it names.

        >>> import tritorch as torch
        >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
        >>> traced.add_submodule("spare.linear", torch.nn.Linear(1, 1))
        True
        >>> traced.delete_all_unused_submodules(); [name for name, _ in traced.named_modules()]
        ['', '0']
        """
        used = {""}
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                used.update(itertools.accumulate(node.target.split("."), lambda path, name: f"{path}.{name}"))
                try:
                    below = self.get_submodule(node.target).named_modules()
                except AttributeError:                                   # no module, or one that is yet to come
                    continue
                used.update(f"{node.target}.{name}" for name, _ in below if name)
        for name in [name for name, _ in self.named_modules() if name not in used]:
            self.delete_submodule(name)

    # -------------------------------------------------------------- text
    def print_readable(self, print_output=True, include_stride=False, include_device=False, colored=False, *, fast_sympy_print=False,
                       expanded_def=False, additional_meta=None):
        """The code as a class, with the lines of the program that the nodes are from and the shapes and dtypes that are known of them,
        also of the GraphModules below; printed and returned. `include_stride`, `include_device`: with these, too; `colored`: for
        terminals; `expanded_def`: one parameter a line; `additional_meta`: entries of the nodes' `meta` to show. There are no symbols
        for `fast_sympy_print` to print.

        >>> import tritorch as torch
        >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
        >>> _ = torch.fx.passes.shape_prop.ShapeProp(traced).propagate(torch.ones(2, 3))
        >>> text = traced.print_readable()
        class Sequential(tritorch.nn.Module):
            def forward(self, input: "f32[2, 3]"):
                input_1 = input
                _0: "f32[2, 3]" = getattr(self, "0")(input_1);  input_1 = None
                return _0
        """
        text = self._readable(type(self).__name__, include_stride=include_stride, include_device=include_device, colored=colored,
                              expanded_def=expanded_def, additional_meta=additional_meta)
        if print_output:
            print(text)
        return text

    def _readable(self, name, **options):
        code = self.graph.python_code("self", verbose=True, **options).src.strip()
        parts = [code] + [child._readable(child_name, **options) for child_name, child in self.named_children()
                          if isinstance(child, GraphModule)]
        body = "\n\n".join(parts).split("\n")
        return "\n".join([f"class {name}(tritorch.nn.Module):", *[f"    {line}" if line.strip() else "" for line in body]])

    def __str__(self):
        return f"{super().__str__()}\n{self._code}"
