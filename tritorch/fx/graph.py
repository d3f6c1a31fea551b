"""Graph: the steps of a function in their order, which can be looked at, changed and written as Python."""
import builtins
import contextlib
import enum
import operator
from dataclasses import dataclass, field

import tritorch
from tritorch.errors import check
from tritorch.fx.node import Namespace, Node, map_aggregate, map_arg, name_for, nodes_in, public_name, qualified_name

_INFIX = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//", operator.mod: "%",
          operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|", operator.xor: "^", operator.lshift: "<<",
          operator.rshift: ">>", operator.lt: "<", operator.le: "<=", operator.eq: "==", operator.ne: "!=", operator.gt: ">",
          operator.ge: ">=", operator.is_: "is", operator.is_not: "is not"}
_PREFIX = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}


@dataclass
class PythonCode:
    """A graph as Python: `src` defines `forward`, with `globals` as the names it uses."""

    src: str
    globals: dict = field(default_factory=dict)


class Graph:
    """The steps of a function. Nodes are made at `inserting_before(node)`, `inserting_after(node)`, else at the end.

    >>> import tritorch as torch
    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> y = graph.call_function(torch.add, (x, x))
    >>> _ = graph.output(graph.call_method("relu", (y,)))
    >>> torch.fx.GraphModule({}, graph)(torch.tensor([-1.0, 2.0]))
    tensor([0., 4.])
    """

    def __init__(self, owning_module=None, tracer_cls=None, tracer_extras=None):
        self._root, self._names = Node(self, "", "placeholder", "", (), {}), Namespace()
        self._insert = self._root.prepend
        self.owning_module, self._tracer_cls = owning_module, tracer_cls

    # -------------------------------------------------------------- nodes
    @property
    def nodes(self):
        """The nodes in their order, also `reversed(…)` and `len(…)`. Nodes may be added and erased while one goes through them."""
        return _Nodes(self._root)

    def create_node(self, op, target, args=None, kwargs=None, name=None, type_expr=None):
        """A new node."""
        for node in nodes_in(args, kwargs):
            check(node.graph is self, "create_node", "arguments of this graph", f"{node} of another")
        node = Node(self, self._names.create_name(name or name_for(op, target)), op, target, args or (), kwargs or {}, type_expr)
        self._insert(node)
        return node

    def placeholder(self, name, type_expr=None, default_value=...):
        """An argument of the function; `*name` and `**name` are those that take all the others."""
        return self.create_node("placeholder", name, () if default_value is ... else (default_value,), type_expr=type_expr)

    def get_attr(self, qualified_name, type_expr=None):
        """A parameter, buffer or other attribute, by its dotted name."""
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(self, module_name, args=None, kwargs=None, type_expr=None):
        """A call of a module, by its dotted name."""
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(self, method_name, args=None, kwargs=None, type_expr=None):
        """A call of a method of the first argument."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(self, the_function, args=None, kwargs=None, type_expr=None, name=None):
        """A call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def output(self, result, type_expr=None):
        """What the function returns."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    def output_node(self):
        """The node that returns."""
        return next(node for node in reversed(self.nodes) if node.op == "output")

    def find_nodes(self, *, op, target=None, sort=True):
        """The nodes of an op, and of a target if one is given."""
        return [n for n in self.nodes if n.op == op and (target is None or n.target == target)]

    def erase_node(self, to_erase):
        """Take a node away, whose result nobody may take. RuntimeError otherwise."""
        check(not to_erase.users, "erase_node", f"nobody to take the result of {to_erase}", ", ".join(map(repr, to_erase.users)))
        if not to_erase._erased:
            to_erase._unlink()
            to_erase._set((), {})
            to_erase._erased = True

    @contextlib.contextmanager
    def _inserting(self, insert):
        before, self._insert = self._insert, insert
        try:
            yield
        finally:
            self._insert = before

    def inserting_before(self, n=None):
        """A context in which new nodes come before n; at the beginning without."""
        return self._inserting((self._root._next if n is None else n).prepend)

    def inserting_after(self, n=None):
        """A context in which new nodes come after n, the first of them nearest; at the beginning without."""
        last = [self._root if n is None else n]

        def insert(node):
            last[0].append(node)
            last[0] = node

        return self._inserting(insert)

    # -------------------------------------------------------------- copies
    def node_copy(self, node, arg_transform=lambda n: n):
        """A copy here of a node of any graph; `arg_transform` gives for each node that it takes the one to take here."""
        made = self.create_node(node.op, node.target, map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform), node.name,
                                node.type)
        made.meta = dict(node.meta)
        return made

    def graph_copy(self, g, val_map, return_output_node=False):
        """Copies of all nodes of g. `val_map` gives for nodes of g the ones here, and is filled. What g returns, here, or None."""
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                result = map_arg(node.args[0], val_map.__getitem__)
                return (result, node) if return_output_node else result
            val_map[node] = self.node_copy(node, val_map.__getitem__)
        return None

    def __deepcopy__(self, memo=None):
        made, copies = Graph(tracer_cls=self._tracer_cls), {}
        for node in self.nodes:
            copies[node] = made.node_copy(node, copies.__getitem__)
        return made

    def __getstate__(self):
        rows = [(n.name, n.op, _stored(n.target), map_aggregate((n.args, n.kwargs), _stored), n.type) for n in self.nodes]
        return {"rows": rows, "tracer_cls": self._tracer_cls}

    def __setstate__(self, state):
        self.__init__(tracer_cls=state["tracer_cls"])
        made = {}
        for name, op, target, called, kind in state["rows"]:
            args, kwargs = map_aggregate(called, lambda v: _found(v, made))
            made[name] = self.create_node(op, _found(target, made), args, kwargs, name, kind)

    # -------------------------------------------------------------- order
    def lint(self):
        """RuntimeError where a node takes the result of one that comes later or is not here, and where a module or attribute is missing."""
        seen, names = set(), set()
        for node in self.nodes:
            for taken in node.all_input_nodes:
                check(taken in seen, "lint", f"{node} to take results of nodes before it", taken)
            check(node.name not in names, "lint", "a name for each node", node.name)
            seen.add(node)
            names.add(node.name)
            if self.owning_module is not None and node.op in ("get_attr", "call_module"):
                try:
                    operator.attrgetter(node.target)(self.owning_module)
                except AttributeError as error:
                    raise RuntimeError(f"lint: expected {node.target} in the module, got none") from error

    def eliminate_dead_code(self, is_impure_node=None):
        """Take away what computes results that nobody takes and does nothing else. Whether there was any."""
        kept, before = is_impure_node or Node.is_impure, len(self.nodes)
        for node in reversed(self.nodes):
            if not node.users and not kept(node):
                self.erase_node(node)
        return len(self.nodes) < before

    # -------------------------------------------------------------- as text
    def python_code(self, root_module="self", **options):
        """The graph as Python, in which `root_module` is the name of the module."""
        return _Writer(self, root_module).code()

    def __str__(self):
        found = "\n".join("    " + node.format_node() for node in self.nodes)
        return f"graph():\n{found}"

    def print_tabular(self):
        """Print a line for each node: op, name, target, args, kwargs."""
        rows = [("opcode", "name", "target", "args", "kwargs")]
        rows += [(n.op, n.name, n._pretty_print_target(n.target), str(n.args), str(n.kwargs)) for n in self.nodes]
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        print("\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows))


class _Nodes:
    """The nodes of a graph, from the one that stands for its ends."""

    def __init__(self, root):
        self._root = root

    def _walk(self, step):
        node = getattr(self._root, step)
        while node is not self._root:
            if not node._erased:
                yield node
            node = getattr(node, step)

    def __iter__(self):
        return self._walk("_next")

    def __reversed__(self):
        return self._walk("_prev")

    def __len__(self):
        return sum(1 for _ in self)


@dataclass
class _Reference:
    """A node, or a function of ours, in a file."""

    name: str


def _stored(v):
    name = v.name if isinstance(v, Node) else public_name(v) if callable(v) else None
    return v if name is None else _Reference(name)


def _found(v, made):
    if not isinstance(v, _Reference):
        return v
    return made[v.name] if v.name in made else operator.attrgetter(v.name.removeprefix("torch."))(tritorch)


# ------------------------------------------------------------------ writing Python
class _Writer:
    """Writes the nodes of a graph as the lines of a function."""

    def __init__(self, graph, root):
        self.graph, self.root, self.globals, self.names = graph, root, {"torch": tritorch}, Namespace()
        self.taken = {node.name for node in graph.nodes}
        self.signature, self.lines = [], []

    def code(self):
        dying = self._last_uses()
        for node in self.graph.nodes:
            line = getattr(self, node.op)(node)
            if line and dying[node]:
                line += ";  " + " = ".join(n.name for n in dying[node]) + " = None"
            if line:
                self.lines.append("    " + line)
        head = ", ".join([self.root, *self.signature])
        return PythonCode(f"def forward({head}):\n" + "\n".join(self.lines or ["    pass"]) + "\n", self.globals)

    def _last_uses(self):
        """By node, those whose results are not needed after it: their memory goes there."""
        seen, dying = set(), {}
        for node in reversed(self.graph.nodes):
            dying[node] = [] if node.op == "output" else [n for n in node.all_input_nodes if n not in seen]
            if node.op not in ("placeholder", "output") and not node.users:
                dying[node].append(node)
            seen.update(node.all_input_nodes)
        return dying

    # one method for each op
    def placeholder(self, node):
        self.signature.append(node.target + "".join(f"={self.value(v)}" for v in node.args))
        argument = node.target.lstrip("*")
        return "" if argument == node.name else f"{node.name} = {argument}"

    def get_attr(self, node):
        return f"{node.name} = {self.path(node.target)}"

    def call_module(self, node):
        return f"{node.name} = {self.path(node.target)}({self.arguments(node.args, node.kwargs)})"

    def call_method(self, node):
        return f"{node.name} = {self.value(node.args[0])}.{node.target}({self.arguments(node.args[1:], node.kwargs)})"

    def call_function(self, node):
        target, args = node.target, node.args
        if not node.kwargs and len(args) == 2 and target in _INFIX:
            return f"{node.name} = {self.value(args[0])} {_INFIX[target]} {self.value(args[1])}"
        if not node.kwargs and len(args) == 1 and target in _PREFIX:
            return f"{node.name} = {_PREFIX[target]}{self.value(args[0])}"
        if target is operator.getitem and not node.kwargs:
            return f"{node.name} = {self.value(args[0])}[{self.value(args[1])}]"
        if target is getattr and isinstance(args[1], str) and args[1].isidentifier() and len(args) == 2:
            return f"{node.name} = {self.value(args[0])}.{args[1]}"
        return f"{node.name} = {self.function(target)}({self.arguments(args, node.kwargs)})"

    def output(self, node):
        return f"return {self.value(node.args[0])}"

    # what is in them
    def path(self, target):
        text = self.root
        for part in target.split("."):
            text = f"{text}.{part}" if part.isidentifier() else f'getattr({text}, "{part}")'
        return text

    def arguments(self, args, kwargs):
        return ", ".join([*map(self.value, args), *[f"{name} = {self.value(v)}" for name, v in kwargs.items()]])

    def function(self, target):
        return public_name(target) or self.named(target, qualified_name(target))

    def named(self, obj, hint):
        """The name of a global for what has no text of its own."""
        for name, known in self.globals.items():
            if known is obj:
                return name
        name = hint if getattr(builtins, hint, None) is obj else self.names.create_name(hint, self.taken)
        self.globals[name] = obj
        return name

    def value(self, v):
        """The text of an argument."""
        if isinstance(v, Node):
            return v.name
        if isinstance(v, tuple) and hasattr(v, "_fields"):
            return f"{self.named(type(v), type(v).__name__)}({', '.join(map(self.value, v))})"
        if type(v) is tuple:
            return f"({', '.join(map(self.value, v))}{',' if len(v) == 1 else ''})"
        if isinstance(v, list):
            return f"[{', '.join(map(self.value, v))}]"
        if isinstance(v, dict):
            return "{" + ", ".join(f"{self.value(k)}: {self.value(w)}" for k, w in v.items()) + "}"
        if isinstance(v, slice):
            return f"slice({self.value(v.start)}, {self.value(v.stop)}, {self.value(v.step)})"
        if type(v) in (int, bool, str, type(None)) or type(v) is float and v - v == 0:
            return repr(v)
        if v is ...:
            return "..."
        if isinstance(v, (tritorch.dtype, tritorch.layout, tritorch.memory_format)):
            return "torch" + str(v).removeprefix("tritorch").removeprefix("torch")
        if callable(v):
            return self.function(v)
        return self.named(v, v.name if isinstance(v, enum.Enum) else type(v).__name__)
