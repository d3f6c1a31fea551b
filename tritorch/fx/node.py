"""The nodes of a graph: what is called, and with the results of which other nodes."""
import builtins
import keyword
import operator
import re
import types
from collections.abc import Callable
from typing import Any, TypeAlias

import tritorch
from tritorch.errors import check
from tritorch.overrides import resolve_name

Target: TypeAlias = Callable | str
Argument: TypeAlias = Any
OPS = "placeholder", "get_attr", "call_function", "call_method", "call_module", "output"


def map_aggregate(a, fn):
    """fn of everything in nested tuples (named ones, too), lists, dicts and slices, in their form.

    >>> map_aggregate([1, {"a": (2, 3)}], lambda v: 10 * v)
    [10, {'a': (20, 30)}]
    """
    if isinstance(a, tuple):
        made = [map_aggregate(v, fn) for v in a]
        return type(a)(*made) if hasattr(a, "_fields") else tuple(made)
    if isinstance(a, list):
        return [map_aggregate(v, fn) for v in a]
    if isinstance(a, dict):
        return {k: map_aggregate(v, fn) for k, v in a.items()}
    if isinstance(a, slice):
        return slice(*[map_aggregate(v, fn) for v in (a.start, a.stop, a.step)])
    return fn(a)


def map_arg(a, fn):
    """fn of every Node in nested containers, in their form; what is no Node stays."""
    return map_aggregate(a, lambda v: fn(v) if isinstance(v, Node) else v)


def nodes_in(*values):
    """The nodes in containers, each once, in order."""
    found = {}
    map_arg(values, lambda node: found.setdefault(node))
    return found


class Node:
    """One step of a Graph: `op` is one of placeholder, get_attr, call_function, call_method, call_module and output, `target` the function,
    or the name of the method, module, attribute or argument, `args` and `kwargs` what it is called with: nodes and plain values in
    containers. `users` are the nodes that take its result, as keys of a dict, `meta` is for whoever wants to keep something here.
    """

    def __init__(self, graph, name, op, target, args, kwargs, return_type=None):
        check(op in OPS, "Node", f"an op among {', '.join(OPS)}", op, error=ValueError)
        self.graph, self.name, self.op, self.target, self.type = graph, name, op, target, return_type
        self.users, self.meta, self._erased, self._args, self._kwargs = {}, {}, False, (), {}
        self._prev = self._next = self
        self._set(args, kwargs)

    def _set(self, args, kwargs):
        for node in self.all_input_nodes:
            node.users.pop(self, None)
        self._args, self._kwargs = map_aggregate(tuple(args), lambda v: v), map_aggregate(dict(kwargs), lambda v: v)
        for node in self.all_input_nodes:
            node.users[self] = None

    @property
    def args(self):
        """What it is called with, by position. Assigning keeps `users` right."""
        return self._args

    @args.setter
    def args(self, value):
        self._set(value, self._kwargs)

    @property
    def kwargs(self):
        """What it is called with, by name. Assigning keeps `users` right."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, value):
        self._set(self._args, value)

    @property
    def all_input_nodes(self):
        """The nodes whose results it takes, each once."""
        return list(nodes_in(self._args, self._kwargs))

    @property
    def next(self):
        """The node after it."""
        return self._next

    @property
    def prev(self):
        """The node before it."""
        return self._prev

    def prepend(self, x):
        """Move node x to the place before this one."""
        check(x.graph is self.graph, "prepend", "a node of the same graph", x, error=AssertionError)
        if x is not self:
            x._unlink()
            x._prev, x._next = self._prev, self
            self._prev._next = self._prev = x

    def append(self, x):
        """Move node x to the place after this one."""
        if x is not self:
            self._next.prepend(x)

    def _unlink(self):
        self._prev._next, self._next._prev = self._next, self._prev

    def update_arg(self, idx, arg):
        """Set one argument by its position."""
        args = list(self._args)
        args[idx] = arg
        self.args = args

    def insert_arg(self, idx, arg):
        """Put an argument before the one at a position."""
        self.args = (*self._args[:idx], arg, *self._args[idx:])

    def update_kwarg(self, key, arg):
        """Set one argument by its name."""
        self.kwargs = {**self._kwargs, key: arg}

    def replace_all_uses_with(self, replace_with, delete_user_cb=lambda user: True, *, propagate_meta=False):
        """Have those that take its result (and that `delete_user_cb` says yes to) take that of another node; the list of them."""
        if propagate_meta:
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    def replace_input_with(self, old_input, new_input):
        """Take the result of `new_input` wherever it takes that of `old_input`."""
        def other(node):
            return new_input if node is old_input else node

        self._set(map_arg(self._args, other), map_arg(self._kwargs, other))

    def is_impure(self, impure_random=True):
        """Whether it does something besides computing its result, so that it stays even if nobody takes that."""
        if self.op in ("placeholder", "output"):
            return True
        name = self.target if self.op == "call_method" else getattr(self.target, "__name__", "")
        if self.op == "call_function" and name in ("_assert", "setitem", "setattr", "delattr", "delitem"):
            return True
        return self.op in ("call_method", "call_function") and name.endswith("_") and not name.startswith("__")

    def format_node(self):
        """A line about it.

        >>> import tritorch as torch
        >>> traced = torch.fx.symbolic_trace(lambda x: x.relu() + 1)
        >>> [*traced.graph.nodes][2].format_node()
        '%add : [num_users=1] = call_function[target=operator.add](args = (%relu, 1), kwargs = {})'
        """
        def shown(value):
            return re.sub("\x00(\\w+)\x00", r"%\1", repr(map_arg(value, lambda n: _Named(n.name))))

        if self.op == "placeholder":
            return f"%{self.name} : [num_users={len(self.users)}] = placeholder[target={self.target}]"
        if self.op == "output":
            return f"return {shown(self._args[0])}"
        head = f"%{self.name} : [num_users={len(self.users)}] = {self.op}[target={self._pretty_print_target(self.target)}]"
        return head if self.op == "get_attr" else f"{head}(args = {shown(self._args)}, kwargs = {shown(self._kwargs)})"

    def _pretty_print_target(self, target):
        return target if isinstance(target, str) else qualified_name(target)

    def __repr__(self):
        return self.name


class _Named:
    """Stands for a node in the text of what holds it."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"\x00{self.name}\x00"


def qualified_name(func):
    """The path of a function in the world: `torch.nn.functional.relu`, `operator.add`, `package.module.name`."""
    found = resolve_name(func)
    if found:
        return "torch" + found.removeprefix("tritorch")
    name, module = getattr(func, "__qualname__", getattr(func, "__name__", type(func).__name__)), getattr(func, "__module__", None)
    if module in (None, "builtins"):
        return name
    return f"{module.lstrip('_') if module == '_operator' else module}.{name}"


def public_name(func):
    """`torch.….name` where that is this very function; None of functions of others."""
    name = qualified_name(func)
    try:
        return name if name.startswith("torch.") and operator.attrgetter(name.partition(".")[2])(tritorch) is func else None
    except AttributeError:
        return None


def snake_case(text):
    """A name in lower case with underscores, as variables have it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text).lower()


class Namespace:
    """Names that are given once."""

    def __init__(self):
        self._taken, self._counts = set(), {}

    def create_name(self, candidate, taken=()):
        """A name like the wished one that nobody has."""
        candidate = re.sub(r"\W+", "_", candidate) or "_unnamed"
        candidate = f"_{candidate}" if candidate[0].isdigit() else candidate
        base, _, number = candidate.rpartition("_")
        base, count = (base, int(number)) if base and number.isdigit() else (candidate, 0)
        name, count = candidate, max(count, self._counts.get(base, 0))
        while name in self._taken or name in taken or keyword.iskeyword(name) or hasattr(builtins, name) or name in ("torch", "self"):
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        self._counts[base] = count
        return name


def name_for(op, target):
    """What a node is called by what it calls."""
    if op in ("call_function", "call_method"):
        name = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
        name = name.strip("_") if isinstance(target, types.BuiltinFunctionType) or name.startswith("__") else name
        return snake_case(name)
    return "output" if op == "output" else snake_case(str(target))
