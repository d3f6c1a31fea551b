"""Nodes of graphs: one call, input or output each."""
import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from tritorch.device import device
from tritorch.dtype import dtype
from tritorch.errors import sentence
from tritorch.fx.immutable_collections import immutable_dict, immutable_list
from tritorch.fx.names import _get_qualified_name, _type_repr, abbreviated, pretty_target  # noqa: F401 (the first is here in PyTorch)
from tritorch.fx.operator_schemas import normalize_function, normalize_module
from tritorch.layout import layout
from tritorch.memory_format import memory_format
from tritorch.ops import methods
from tritorch.ops.namespaces import OpOverload
from tritorch.tensor import Tensor

__all__ = ["Argument", "BaseArgumentTypes", "Node", "Target", "base_types", "has_side_effect", "map_aggregate", "map_arg"]

BaseArgumentTypes = Union[str, int, float, bool, complex, dtype, Tensor, device, memory_format, layout, OpOverload]  # noqa: UP007
base_types = typing.get_args(BaseArgumentTypes)
Target = Union[Callable[..., Any], str]  # noqa: UP007
Argument = Union[tuple["Argument", ...], Sequence["Argument"], Mapping[str, "Argument"], slice, range, "Node", BaseArgumentTypes,  # noqa: UP007
                 None]
OPS = ("placeholder", "get_attr", "call_function", "call_module", "call_method", "output", "root")
_random = {methods.surface[name] for name in """bernoulli multinomial normal poisson rand rand_like randint randint_like randn randn_like
    randperm""".split()}
_side_effectful_functions = {operator.setitem, *_random}


def has_side_effect(fn):
    """Have calls of a function stay in graphs although nothing uses their results; the function itself.

    >>> import tritorch as torch
    >>> @torch.fx.has_side_effect
    ... def log(x): ...
    """
    _side_effectful_functions.add(fn)
    return fn


def map_aggregate(a, fn):
    """The tuples, lists, dicts and slices of `a` with fn(x) for everything else in them; the lists and dicts cannot be changed.

    >>> map_aggregate([1, {"a": (2, 3)}, slice(4)], lambda x: x and 10 * x)
    [10, {'a': (20, 30)}, slice(None, 40, None)]
    """
    if isinstance(a, tuple):
        made = [map_aggregate(x, fn) for x in a]
        return type(a)(*made) if hasattr(a, "_fields") else tuple(made)
    if isinstance(a, list):
        return immutable_list([map_aggregate(x, fn) for x in a])
    if isinstance(a, dict):
        return immutable_dict({key: map_aggregate(x, fn) for key, x in a.items()})
    if isinstance(a, slice):
        return slice(map_aggregate(a.start, fn), map_aggregate(a.stop, fn), map_aggregate(a.step, fn))
    return fn(a)


def map_arg(a, fn):
    """`map_aggregate` for the nodes in `a` alone.

    >>> import tritorch as torch
    >>> graph = torch.fx.Graph(); x = graph.placeholder("x")
    >>> map_arg((x, [2, x]), lambda node: node.name + "!")
    ('x!', [2, 'x!'])
    """
    if not callable(fn):
        raise AssertionError(sentence("map_arg", "a function", type(fn).__name__))
    return map_aggregate(a, lambda x: fn(x) if isinstance(x, Node) else x)


def writes(target, kwargs):
    """Whether a call of a function or method changes an argument, as far as its name and keywords say."""
    name = target if isinstance(target, str) else getattr(target, "_opname", getattr(target, "__name__", ""))
    if getattr(target, "_mutates", ()):
        return True
    in_place = name.endswith("_") and not name.endswith("__") and getattr(operator, name, None) is not target
    return in_place or kwargs.get("out") is not None or kwargs.get("inplace") is True


def _format_arg(arg, max_list_len=float("inf")):
    """An argument as text: nodes as %name, containers with their elements, of long ones the first."""
    if isinstance(arg, (list, tuple)):
        shown = [_format_arg(x, max_list_len) for k, x in enumerate(arg) if k < max_list_len]
        rest = f", ...[total_len={len(arg)}]" if len(arg) > max_list_len else ""
        begin, end = "[]" if isinstance(arg, list) else "()"
        return f"{begin}{', '.join(shown)}{',' if begin == '(' and len(arg) == 1 else ''}{rest}{end}"
    if isinstance(arg, dict):
        return "{" + ", ".join(f"{key}: {_format_arg(x, max_list_len)}" for key, x in arg.items()) + "}"
    return f"%{arg}" if isinstance(arg, Node) else str(arg)


class Node:
    """One line of a graph: a value with a name, and how it comes about.

    `op` says what it is: "placeholder", an input (`target` its parameter, `args` its default, if any); "get_attr", what the module has
    under the dotted name `target`; "call_function", target(*args, **kwargs); "call_module", a call of the module of the name `target`;
    "call_method", a call of the method `target` of args[0]; "output", what is returned, args[0].

    `users` are the nodes that use the value, in the keys of a dict, `meta` is what passes know of it, `type` its annotation.

    >>> import tritorch as torch
    >>> traced = torch.fx.symbolic_trace(lambda x: x + x.relu())
    >>> [(node.name, node.op, node.args) for node in traced.graph.nodes]
    [('x', 'placeholder', ()), ('relu', 'call_method', (x,)), ('add', 'call_function', (x, relu)), ('output', 'output', (add,))]
    """

    def __init__(self, graph, name, op, target, args, kwargs, return_type=None):
        if op not in OPS:
            raise AssertionError(sentence("Node", f"one of the ops {OPS}", repr(op)))
        if op == "call_function" and not callable(target) or op != "call_function" and not isinstance(target, str):
            raise ValueError(sentence(f"Node {name}", "a function" if op == "call_function" else "a str as target", repr(target)))
        self.graph, self.name, self.op, self.target, self.type = graph, name, op, target, return_type
        self.users, self.meta, self._repr_fn, self._erased = {}, {}, None, False
        self._prev = self._next = self
        self._args, self._kwargs, self._input_nodes = (), {}, {}
        self._update_args_kwargs(args, kwargs)

    def __repr__(self):
        return self._repr_fn(self) if self._repr_fn else self.name

    def __lt__(self, other):
        """Whether it comes before another node of its graph."""
        places = self.graph._places()
        return places[self] < places[other]

    def __gt__(self, other):
        return other < self

    def __le__(self, other):
        return self is other or self < other

    def __ge__(self, other):
        return other <= self

    # -------------------------------------------------------------- its place
    @property
    def next(self):
        """The node after it; that of the last is the root, which is none of the graph's."""
        return self._next

    @property
    def prev(self):
        """The node before it."""
        return self._prev

    def _remove_from_list(self):
        self._prev._next, self._next._prev = self._next, self._prev      # its own links stay: who is here goes on from here
        self.graph._moved()

    def prepend(self, x):
        """Put the node `x` before this one.

        Errors: AssertionError if it is of another graph.
        """
        if x.graph is not self.graph:
            raise AssertionError(sentence("Node", f"nodes of one graph, as {self} is", f"{x} of another"))
        if x is not self:
            x._remove_from_list()
            before = self._prev
            before._next = self._prev = x
            x._prev, x._next = before, self

    def append(self, x):
        """Put the node `x` behind this one."""
        self._next.prepend(x)

    # -------------------------------------------------------------- its arguments
    def _update_args_kwargs(self, args, kwargs):
        for node in self._input_nodes:
            node.users.pop(self, None)
        self._input_nodes = {}

        def use(node):
            self._input_nodes[node] = node.users[self] = None
            return node

        self._args, self._kwargs = map_arg(args, use), map_arg(kwargs, use)

    @property
    def args(self):
        """The positional arguments. Assigned, they tell the nodes in them who their users are."""
        return self._args

    @args.setter
    def args(self, args):
        self._update_args_kwargs(args, self._kwargs)

    @property
    def kwargs(self):
        """The keyword arguments, as `args`."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs):
        self._update_args_kwargs(self._args, kwargs)

    @property
    def all_input_nodes(self):
        """The nodes among the arguments, each once."""
        return list(self._input_nodes)

    def update_arg(self, idx, arg):
        """Put `arg` in the place of a positional argument."""
        args = list(self.args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx, arg):
        """Put `arg` in front of the positional argument `idx`."""
        if not 0 <= idx <= len(self.args):
            raise AssertionError(sentence("insert_arg", f"an index from 0 to {len(self.args)}", idx))
        self.args = (*self.args[:idx], arg, *self.args[idx:])

    def update_kwarg(self, key, arg):
        """Put `arg` in the place of a keyword argument."""
        self.kwargs = {**self.kwargs, key: arg}

    def replace_input_with(self, old_input, new_input):
        """Use one node wherever the arguments have another."""
        args, kwargs = map_arg((self._args, self._kwargs), lambda node: new_input if node is old_input else node)
        self._update_args_kwargs(args, kwargs)

    def replace_all_uses_with(self, replace_with, delete_user_cb=None, *, propagate_meta=False):
        """Have those that use this node use another, if `delete_user_cb(user)` says so; they are returned. `propagate_meta`: the other,
        which must have no `meta` yet, gets this one's."""
        if propagate_meta:
            if replace_with.meta:
                raise AssertionError(sentence("replace_all_uses_with", f"{replace_with} without meta", [*replace_with.meta]))
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb is None or delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    # -------------------------------------------------------------- what is known of it
    @property
    def stack_trace(self):
        """Where the program made the node, if the tracer has `record_stack_traces`."""
        return self.meta.get("stack_trace")

    @stack_trace.setter
    def stack_trace(self, trace):
        self.meta["stack_trace"] = trace

    _pretty_print_target = staticmethod(pretty_target)

    def format_node(self, placeholder_names=None, maybe_return_typename=None, *, include_tensor_metadata=False):
        """The node as a line of text.

        `placeholder_names`, a list, gets the text of a placeholder, for which None is returned; `maybe_return_typename`, a list of one,
        the annotation of what is returned. `include_tensor_metadata`: with dtype, shape, strides and device of `meta["val"]`.
        """
        kind = "" if self.type is None else f"{_type_repr(self.type)} "
        head = f"%{self.name} : {kind}[num_users={len(self.users)}] = {self.op}[target={pretty_target(self.target)}]"
        if self.op == "placeholder":
            if placeholder_names is not None:
                placeholder_names.append(self.target if self.type is None else f"{self.target}: {_type_repr(self.type)}")
                return None
            return head + (f"(default={self.args[0]})" if self.args else "")
        if self.op == "output":
            if self.type is not None and maybe_return_typename:
                maybe_return_typename[0] = f" -> {_type_repr(self.type)}"
            return f"return {self.args[0]}"
        value = self.meta.get("val", self.meta.get("example_value"))
        if include_tensor_metadata and isinstance(value, Tensor):
            facts = f'Tensor "{abbreviated(value.dtype)}{list(value.shape)}{list(value.stride())}{value.device}"'
            head = head.replace(f" : {kind}", f" : {facts}", 1)
        calls = "" if self.op == "get_attr" else f"(args = {_format_arg(self.args)}, kwargs = {_format_arg(self.kwargs)})"
        return head + calls

    def is_impure(self, impure_random=True):
        """Whether it does something beside its value, so that it stays although nobody uses that: inputs and outputs, functions that draw
        random numbers or `has_side_effect` names, modules with a true `_is_impure`.

        So do, unlike PyTorch's, calls that write into an argument by their name (`x.add_(y)`), `out=` or `inplace=True`: PyTorch's
        removes them, and with them what the program computes.
        """
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_module":
            if self.graph.owning_module is None:
                raise AssertionError(sentence("is_impure", "a graph that a GraphModule owns", "one without"))
            return getattr(self.graph.owning_module.get_submodule(self.target), "_is_impure", False)
        if self.op == "get_attr":
            return False
        return writes(self.target, self.kwargs) or self.op == "call_function" and self.target in _side_effectful_functions and (
            impure_random or self.target not in _random)

    def normalized_arguments(self, root, arg_types=None, kwarg_types=None, normalize_to_only_use_kwargs=False):
        """The arguments with all defaults and under the names of the parameters, as a pair (args, kwargs): those that were positional are
        so, unless `normalize_to_only_use_kwargs`. None for other nodes than calls of functions and of our modules, which `root` has, and
        for functions of any number of arguments. The types, which tell PyTorch's overloads apart, are not needed here.

        >>> import tritorch as torch
        >>> traced = torch.fx.symbolic_trace(lambda x: torch.nn.functional.softplus(x, 2.0))
        >>> list(traced.graph.nodes)[1].normalized_arguments(traced, normalize_to_only_use_kwargs=True).kwargs
        {'input': x, 'beta': 2.0, 'threshold': 20.0}
        """
        if self.op == "call_function":
            return normalize_function(self.target, self.args, self.kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs)
        if self.op == "call_module":
            return normalize_module(root, self.target, self.args, self.kwargs, normalize_to_only_use_kwargs)
        return None
