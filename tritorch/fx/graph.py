"""Graphs of nodes."""
import contextlib
import copy
import inspect
import warnings

from tritorch.errors import sentence
from tritorch.fx.codegen import (  # noqa: F401 (all of it is here in PyTorch)
    CodeGen,
    PythonCode,
    _PyTreeCodeGen,
    _PyTreeInfo,
    inplace_methods,
    magic_methods,
    reflectable_magic_methods,
)
from tritorch.fx.names import Namespace, snake_case
from tritorch.fx.node import OPS, Node, map_arg
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter

__all__ = ["CodeGen", "Graph", "PythonCode"]


class _NodeList:
    """The nodes of a graph in order. They can be erased, moved and inserted meanwhile; what is inserted further on comes, too."""

    def __init__(self, graph):
        self.graph = graph

    def __len__(self):
        return self.graph._len

    def __iter__(self):
        return self._walk("_next")

    def __reversed__(self):
        return self._walk("_prev")

    def _walk(self, way):
        node = getattr(self.graph._root, way)
        while node is not self.graph._root:
            if not node._erased:
                yield node
            node = getattr(node, way)


class Graph:
    """What a function or module computes as a list of nodes, each after those that it uses.

    >>> import tritorch as torch
    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> y = graph.call_function(torch.relu, (x,))
    >>> _ = graph.output(graph.call_method("add", (y, 1)))
    >>> print(graph)
    graph():
        %x : [num_users=1] = placeholder[target=x]
        %relu : [num_users=1] = call_function[target=tritorch.relu](args = (%x,), kwargs = {})
        %add : [num_users=1] = call_method[target=add](args = (%relu, 1), kwargs = {})
        return add
    >>> torch.fx.GraphModule(torch.nn.Module(), graph)(torch.tensor([-1.0, 1.0]))
    tensor([1., 2.])
    """

    def __init__(self, owning_module=None, tracer_cls=None, tracer_extras=None):
        self.owning_module, self._tracer_cls, self._tracer_extras = owning_module, tracer_cls, tracer_extras
        self._graph_namespace, self._codegen, self._len, self._order = Namespace(), CodeGen(), 0, None
        self._root = Node(self, "", "root", "", (), {})
        self._insert = self._root.prepend

    def _moved(self):
        self._order = None

    def _places(self):
        """Each node with its number, that is found anew after nodes were inserted or moved."""
        if self._order is None:
            self._order = {node: k for k, node in enumerate(self.nodes)}
        return self._order

    # -------------------------------------------------------------- what there is
    @property
    def nodes(self):
        """The nodes in order, forwards or by `reversed`."""
        return _NodeList(self)

    def output_node(self):
        """The last node, which is what is returned.

        Errors: AssertionError if there is none.
        """
        last = self._root._prev
        if last.op != "output":
            raise AssertionError(sentence("output_node", "a graph that ends with its output", last.op))
        return last

    def find_nodes(self, *, op, target=None, sort=True):
        """The nodes of an op, and of a target if one is given, in order, as `call_function` needs one."""
        if op == "call_function" and target is None:
            raise AssertionError(sentence("find_nodes", "a target for call_function", None))
        return [node for node in self.nodes if node.op == op and (target is None or node.target == target)]

    # -------------------------------------------------------------- making nodes
    def create_node(self, op, target, args=None, kwargs=None, name=None, type_expr=None):
        """A new node at the place of insertion, which is the end unless `inserting_before` or `inserting_after` says otherwise. It is
        called `name`, or after its target, with a number where that is taken.

        Errors: AssertionError for other ops, or args and kwargs that are no tuple and dict; ValueError for a target that is no str, or no
        function for call_function.
        """
        if args is not None and not isinstance(args, tuple) or kwargs is not None and not isinstance(kwargs, dict):
            raise AssertionError(sentence("create_node", "args in a tuple, kwargs in a dict", type(args).__name__, type(kwargs).__name__))
        name = self._graph_namespace.create_name(self._target_to_str(target) if name is None else name, None)
        node = Node(self, name, op, target, args or (), kwargs or {}, type_expr)
        self._insert(node)
        self._len += 1
        return node

    def placeholder(self, name, type_expr=None, default_value=inspect.Signature.empty):
        """An input: the parameter `name`, with an annotation and a default if it has them."""
        args = () if default_value is inspect.Signature.empty else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name, type_expr=None):
        """What the module has under a dotted name; a warning where the module of this graph has no parameter, buffer or module there."""
        if self.owning_module is not None and not _has_member(self.owning_module, qualified_name):
            warnings.warn(sentence("get_attr", "the name of a parameter, buffer or module", qualified_name, use="add_submodule, or an "
                                   "attribute of the GraphModule"), stacklevel=2)
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(self, module_name, args=None, kwargs=None, type_expr=None):
        """A call of the module of a dotted name, which the module of this graph has to have."""
        if self.owning_module is not None:
            self.owning_module.get_submodule(module_name)
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(self, method_name, args=None, kwargs=None, type_expr=None):
        """A call of a method of args[0] with the other arguments."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(self, the_function, args=None, kwargs=None, type_expr=None, name=None):
        """A call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def output(self, result, type_expr=None):
        """What is returned: nodes, and containers of them."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    @staticmethod
    def _target_to_str(target):
        name = target.__name__ if callable(target) else target
        return snake_case(name[2:-2] if name.startswith("__") and name.endswith("__") and not callable(target) else name)

    def node_copy(self, node, arg_transform=lambda x: x):
        """A node like one of another graph, whose arguments become `arg_transform(node)` of this graph's; `meta` is copied."""
        args, kwargs = map_arg((node.args, node.kwargs), arg_transform)
        made = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        made.meta = copy.copy(node.meta)
        return made

    def graph_copy(self, g, val_map, return_output_node=False):
        """Insert copies of the nodes of the graph `g`, but for its output, of which the value is returned, in nodes of this graph, with
        the node itself if `return_output_node`. `val_map` maps nodes of `g` to those of this graph: what is in it is not copied, what is
        copied is added to it."""
        for node in g.nodes:
            if node.op == "output" and node not in val_map:
                value = map_arg(node.args[0], val_map.__getitem__)
                return (value, node) if return_output_node else value
            if node not in val_map:
                val_map[node] = self.node_copy(node, val_map.__getitem__)
        return None

    def __deepcopy__(self, memo=None):
        made, nodes = Graph(tracer_cls=self._tracer_cls, tracer_extras=self._tracer_extras), {}
        found = made.graph_copy(self, nodes, return_output_node=True)
        made._codegen = copy.deepcopy(self._codegen, memo)
        if found is not None:
            value, node = found
            made.output(value, node.type).meta = copy.copy(node.meta)
        return made

    # -------------------------------------------------------------- changing
    def inserting_before(self, n=None):
        """Have nodes that are made come before one; without one, at the beginning. For good, or inside of a `with` block.

        >>> import tritorch as torch
        >>> traced = torch.fx.symbolic_trace(lambda x: x.relu())
        >>> relu = traced.graph.find_nodes(op="call_method")[0]
        >>> with traced.graph.inserting_before(relu):
        ...     relu.update_arg(0, traced.graph.call_function(torch.neg, relu.args))
        >>> _ = traced.recompile(); traced(torch.tensor([-1.0, 1.0]))
        tensor([1., 0.])
        """
        return self._inserting_at(n, "prepend", self._root.append)

    def inserting_after(self, n=None):
        """Have nodes that are made come after one; without one, at the end."""
        return self._inserting_at(n, "append", self._root.prepend)

    def _inserting_at(self, n, way, otherwise):
        if n is not None and n.graph is not self:
            raise AssertionError(sentence(f"inserting {way}", "a node of the graph", f"{n} of another"))
        return _InsertPoint(self, otherwise if n is None else getattr(n, way))

    def erase_node(self, to_erase):
        """Remove a node.

        Errors: RuntimeError if another uses it, or it is of another graph.
        """
        if to_erase.users:
            raise RuntimeError(sentence("erase_node", f"{to_erase} without users", [*to_erase.users], use="replace_all_uses_with"))
        if to_erase.graph is not self:
            raise RuntimeError(sentence("erase_node", "a node of the graph", f"{to_erase} of another"))
        if to_erase._erased:
            warnings.warn(sentence("erase_node", "a node that is there", f"{to_erase}, which is erased already"), stacklevel=2)
            return
        to_erase._remove_from_list()
        to_erase._erased = True
        self._len -= 1
        to_erase._update_args_kwargs(*map_arg((to_erase._args, to_erase._kwargs), lambda node: None))

    def eliminate_dead_code(self, is_impure_node=None):
        """Remove nodes that nobody uses and that are not impure (see `Node.is_impure`), also from graphs that `get_attr` nodes name;
        whether there were some.

        >>> import tritorch as torch
        >>> traced = torch.fx.symbolic_trace(lambda x: (x + 1, x.exp())[0])
        >>> traced.graph.eliminate_dead_code(), [node.name for node in traced.graph.nodes]
        (True, ['x', 'add', 'output'])
        """
        self.lint()
        before = self._len
        for node in reversed(self.nodes):
            if not node.users and not (node.is_impure() if is_impure_node is None else is_impure_node(node)):
                self.erase_node(node)
        changed = self._len < before
        if self.owning_module is not None:
            below = {node.target for node in self.find_nodes(op="get_attr")}
            for name, child in self.owning_module.named_children():
                if name in below and isinstance(getattr(child, "graph", None), Graph):
                    changed |= child.graph.eliminate_dead_code()
                    child.recompile()
        return changed

    def lint(self):
        """RuntimeError unless the nodes are this graph's, have names of their own, come after those they use, and name what the module of
        this graph has; ValueError for a target of the wrong kind."""
        names, before = set(), set()
        for node in self.nodes:
            if node.op not in OPS or node.graph is not self:
                raise RuntimeError(sentence("lint", "nodes of the graph", f"{node}, {node.op} of another"))
            for arg in node._input_nodes:
                if arg.graph is not self:
                    raise RuntimeError(sentence("lint", f"arguments of {node} from this graph", f"{arg} of another",
                                                use="arg_transform of node_copy"))
                if arg not in before:
                    raise RuntimeError(sentence("lint", f"arguments of {node} before it", f"{arg}, which is used before it is defined"))
            if node.name in names:
                raise RuntimeError(sentence("lint", "names of one node each", f"{node.name} of two"))
            before.add(node)
            names.add(node.name)
        if self.owning_module is not None:
            for node in self.nodes:
                _check_target(node, self.owning_module)

    # -------------------------------------------------------------- text
    def python_code(self, root_module, *, verbose=False, include_stride=False, include_device=False, colored=False, expanded_def=False,
                    additional_meta=None):
        """The graph as the text of a function `forward(self, …)`, with what it reads from its globals; `root_module` is how it calls the
        module. `verbose` and what follows: as in `GraphModule.print_readable`."""
        namespace = Namespace()
        was = {node: node._repr_fn for node in self.nodes}
        for node in was:
            node._repr_fn = lambda node: namespace.create_name(node.name, node)
        try:
            return self._codegen._gen_python_code(self.nodes, root_module, namespace, verbose=verbose, include_stride=include_stride,
                                                  include_device=include_device, colored=colored, expanded_def=expanded_def,
                                                  additional_meta=additional_meta)
        finally:
            for node, repr_fn in was.items():
                node._repr_fn = repr_fn

    def __str__(self):
        returns = [""]
        lines = [node.format_node(None, returns) for node in self.nodes]
        return "\n    ".join([f"graph(){returns[0]}:", *lines])

    def print_tabular(self):
        """Print a table of the nodes.

        >>> import tritorch as torch
        >>> torch.fx.symbolic_trace(lambda x: x + 1).graph.print_tabular()
        opcode         name    target                   args    kwargs
        -------------  ------  -----------------------  ------  --------
        placeholder    x       x                        ()      {}
        call_function  add     <built-in function add>  (x, 1)  {}
        output         output  output                   (add,)  {}
        """
        rows = [["opcode", "name", "target", "args", "kwargs"]]
        rows += [[str(part) for part in (node.op, node.name, node.target, node.args, node.kwargs)] for node in self.nodes]
        widths = [max(map(len, column)) for column in zip(*rows)]
        widths[-1] = max(widths[-1], len("--------"))
        for row in [rows[0], ["-" * width for width in widths], *rows[1:]]:
            print("  ".join(part.ljust(width) for part, width in zip(row, widths)).rstrip())

    def set_codegen(self, codegen):
        """Have another object write the code."""
        self._codegen = codegen

    def on_generate_code(self, make_transformer):
        """Have a function of the lines of the generated code's body say what they become: `make_transformer(current)` gives it, `current`
        being the one in force, or None. In a `with` block the latter comes back at its end.

        >>> import tritorch as torch
        >>> traced = torch.fx.symbolic_trace(lambda x: x + 1)
        >>> with traced.graph.on_generate_code(lambda current: lambda body: ["print('here')\\n", *body]):
        ...     _ = traced.recompile()
        >>> traced(1)
        here
        2
        """
        was = self._codegen._body_transformer
        self._codegen._body_transformer = make_transformer(was)

        @contextlib.contextmanager
        def in_force():
            try:
                yield
            finally:
                self._codegen._body_transformer = was

        return in_force()

    def process_inputs(self, *args):
        """The values of the placeholders for arguments of the generated function."""
        return self._codegen.process_inputs(*args)

    def process_outputs(self, out):
        """What the generated function returns for the value of the output node."""
        return self._codegen.process_outputs(out)


class _InsertPoint:
    """The place where a graph inserts nodes, from now on or to the end of a `with` block."""

    def __init__(self, graph, insert):
        self.graph, self.was = graph, graph._insert
        graph._insert = insert

    def __enter__(self):
        pass

    def __exit__(self, *exception):
        self.graph._insert = self.was


def _has_member(module, path):
    path, _, name = path.rpartition(".")
    try:
        module = module.get_submodule(path)
    except AttributeError:
        return False
    return name in module._buffers or isinstance(getattr(module, name, None), (Module, Parameter))


def _check_target(node, module):
    if node.op == "call_function" and not callable(node.target) or node.op != "call_function" and not isinstance(node.target, str):
        raise ValueError(sentence("lint", f"a target that {node.op} can have", repr(node.target)))
    if node.op in ("get_attr", "call_module"):
        for k, name in enumerate(node.target.split(".")):
            module = getattr(module, name, None)
            if module is None or node.op == "call_module" and not isinstance(module, Module):
                raise RuntimeError(sentence("lint", f"{node.target} to be " + ("there" if module is None else "a Module"),
                                            f"no such {name} of {'.'.join(node.target.split('.')[:k]) or 'the module'}"))
