"""Trees of Python's containers: their leaves in a list, functions of leaf after leaf, and the way back, under PyTorch's name.

>>> from tritorch.utils._pytree import tree_flatten, tree_map, tree_unflatten
>>> leaves, spec = tree_flatten({"a": 1, "b": [2, (3, None)]})
>>> leaves, tree_unflatten([10, 20, 30, 40], spec)
([1, 2, 3, None], {'a': 10, 'b': [20, (30, 40)]})
>>> tree_map(lambda x, y: x + y, [1, (2, 3)], [10, (20, 30)])
[11, (22, 33)]
"""
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

PyTree = Any


def _dict_flatten(d):
    return list(d.values()), list(d)


def _dict_unflatten(values, context):
    return dict(zip(context, values))


def _namedtuple_flatten(d):
    return list(d), type(d)


def _namedtuple_unflatten(values, context):
    return context(*values)


class NodeDef(NamedTuple):
    """A type of containers: its children and what else makes it, and how it is made of them."""

    flatten_fn: Callable
    unflatten_fn: Callable


# by type; packages read it under PyTorch's name, which follows
_nodes = {kind: NodeDef(*functions) for kind, functions in {
    dict: (_dict_flatten, _dict_unflatten),
    list: (lambda x: (x, None), lambda children, _: list(children)),
    tuple: (lambda x: (list(x), None), lambda children, _: tuple(children)),
    OrderedDict: (_dict_flatten, lambda children, keys: OrderedDict(zip(keys, children))),
    defaultdict: (lambda d: (list(d.values()), [d.default_factory, list(d)]),
                  lambda children, context: defaultdict(context[0], zip(context[1], children))),
    deque: (lambda q: (list(q), q.maxlen), lambda children, maxlen: deque(children, maxlen)),
    "namedtuple": (_namedtuple_flatten, _namedtuple_unflatten),
}.items()}
SUPPORTED_NODES = _nodes
_MAPPINGS = (dict, OrderedDict, defaultdict)


def register_pytree_node(cls, flatten_fn, unflatten_fn, **options):
    """Let `cls` be a container: `flatten_fn(x)` gives (children, context), `unflatten_fn(children, context)` makes one. With
    `flatten_with_keys_fn(x)`, ([(key, child), …], context), the paths to its leaves are known, too."""
    if cls in _nodes:
        raise ValueError(f"register_pytree_node: expected a class that is no node yet, got {cls.__name__}")
    _nodes[cls] = NodeDef(flatten_fn, unflatten_fn)
    if options.get("flatten_with_keys_fn") is not None:
        _keyed[cls] = options["flatten_with_keys_fn"]


_register_pytree_node = register_pytree_node


def register_dataclass(cls, *, field_names=None, drop_field_names=None, serialized_type_name=None):
    """Let a dataclass, or a class that is made of `field_names` by keyword, be a container of those of its fields that are not None.

    Errors: ValueError if `field_names` and `drop_field_names` are not all that the dataclass is made of.
    """
    names, check_names = field_names, is_dataclass(cls)
    made_of = {f.name for f in fields(cls) if f.init} if check_names else set()
    if names is None:
        if not check_names:
            raise ValueError(f"register_dataclass: expected field_names for {cls.__name__}, which is no dataclass, got None")
        names = [f.name for f in fields(cls) if f.init]
    elif check_names and made_of - set(drop_field_names or ()) != set(names):
        raise ValueError(f"register_dataclass: expected all fields that {cls.__name__} is made of in field_names or drop_field_names, "
                         f"{sorted(made_of)}, got {names} and {drop_field_names}")

    def flatten(x):
        there = [name for name in names if getattr(x, name) is not None]
        return [getattr(x, name) for name in there], [there, [name for name in names if name not in there]]

    register_pytree_node(cls, flatten, lambda children, context: cls(**dict(zip(context[0], children)), **dict.fromkeys(context[1])),
                         serialized_type_name=serialized_type_name, flatten_with_keys_fn=lambda x: (
                             [(GetAttrKey(name), getattr(x, name)) for name in flatten(x)[1][0]], flatten(x)[1]))


# ------------------------------------------------------------------ paths
@dataclass(frozen=True)
class MappingKey:
    """Where in a dict a child is."""

    key: object

    def __str__(self):
        return f"[{self.key!r}]"

    def get(self, mapping):
        """The child."""
        return mapping[self.key]


@dataclass(frozen=True)
class SequenceKey:
    """Where in a list or tuple a child is."""

    idx: int

    def __str__(self):
        return f"[{self.idx!r}]"

    def get(self, sequence):
        """The child."""
        return sequence[self.idx]


@dataclass(frozen=True)
class GetAttrKey:
    """Which attribute a child is."""

    name: str

    def __str__(self):
        return f".{self.name}"

    def get(self, obj):
        """The child."""
        return getattr(obj, self.name)


def _dict_flatten_with_keys(d):                                          # what transformers and diffusers register their outputs with
    return [(MappingKey(key), value) for key, value in d.items()], list(d)


def _sequence_with_keys(values):
    return [(SequenceKey(k), value) for k, value in enumerate(values)], None


_keyed = {list: _sequence_with_keys, tuple: _sequence_with_keys, deque: _sequence_with_keys,
          "namedtuple": lambda x: ([(GetAttrKey(name), getattr(x, name)) for name in x._fields], type(x))}


def keystr(kp):
    """A path as Python would write it: `['a'][0].b`."""
    return "".join(map(str, kp))


def key_get(obj, kp):
    """What is in a tree at a path."""
    for key in kp:
        obj = key.get(obj)
    return obj


def _paths(tree, is_leaf, path):
    kind = _kind(tree)
    if kind is None or is_leaf is not None and is_leaf(tree):
        yield path, tree
        return
    flatten = _dict_flatten_with_keys if kind in _MAPPINGS else _keyed.get(kind)
    if flatten is None:
        raise ValueError(f"tree_flatten_with_path: expected nodes whose children have keys, got {kind.__name__}; use register_pytree_node "
                         "with flatten_with_keys_fn")
    for key, child in flatten(tree)[0]:
        yield from _paths(child, is_leaf, (*path, key))


def tree_leaves_with_path(tree, is_leaf=None):
    """(path, leaf) of every leaf. A path has a key for each container on the way, see `keystr`.

    >>> [(keystr(path), leaf) for path, leaf in tree_leaves_with_path({"a": [1, (2,)]})]
    [("['a'][0]", 1), ("['a'][1][0]", 2)]
    """
    return list(_paths(tree, is_leaf, ()))


def tree_flatten_with_path(tree, is_leaf=None):
    """The leaves with their paths, and the form.

    Errors: ValueError for a node that was registered without keys.
    """
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(func, tree, *rests, is_leaf=None):
    """A tree of func(path, leaf, …): as `tree_map`, with the path in front."""
    found, spec = tree_flatten_with_path(tree, is_leaf)
    return spec.unflatten([func(path, *leaves) for (path, *leaves) in zip([path for path, _ in found], [leaf for _, leaf in found],
                                                                          *[spec.flatten_up_to(rest) for rest in rests], strict=True)])


def _kind(tree):
    kind = type(tree)
    if kind in _nodes:
        return kind
    return "namedtuple" if isinstance(tree, tuple) and hasattr(tree, "_fields") else None


def _get_node_type(tree):
    """The key in SUPPORTED_NODES of what is a container; the type of a leaf."""
    return _kind(tree) or type(tree)


@dataclass(eq=True, repr=False)
class TreeSpec:
    """The form of a tree without its leaves: what node it is, what else makes it, and the forms of its children."""

    type: object
    context: object = None
    children_specs: list = field(default_factory=list)

    def __post_init__(self):
        self.num_children, self.num_nodes, self.num_leaves = len(self.children_specs), 1, int(self.type is None)
        for child in self.children_specs:
            self.num_nodes += child.num_nodes
            self.num_leaves += child.num_leaves

    def is_leaf(self):
        """Whether it is a leaf alone."""
        return self.type is None

    def unflatten(self, leaves):
        """The tree of this form with these leaves."""
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(f"unflatten: expected {self.num_leaves} leaves for {self}, got {len(leaves)}")
        return self._build(iter(leaves))

    def _build(self, leaves):
        if self.type is None:
            return next(leaves)
        return _nodes[self.type][1]([child._build(leaves) for child in self.children_specs], self.context)

    def flatten_up_to(self, tree):
        """What is in another tree at the places of this one's leaves; dicts are matched by key.

        Errors: ValueError if the other tree has not this form.
        """
        if self.is_leaf():
            return [tree]
        kind = _kind(tree)
        if kind != self.type and not (kind in _MAPPINGS and self.type in _MAPPINGS):
            expected, got = (self.context if self.type == "namedtuple" else self.type), type(tree)
            raise ValueError(f"flatten_up_to: expected a node of type {expected!r}, got {got!r}")
        children, context = _nodes[kind][0](tree)
        if len(children) != self.num_children:
            raise ValueError(f"flatten_up_to: expected {self.num_children} children, got {len(children)}")
        if kind in _MAPPINGS:
            keys = self.context[1] if self.type is defaultdict else self.context
            if set(keys) != set(tree):
                raise ValueError(f"flatten_up_to: expected the keys {[*keys]}, got {[*tree]}")
            children = [tree[key] for key in keys]
        elif kind is not deque and context != self.context:
            raise ValueError(f"flatten_up_to: expected a node {kind!r} of {self.context!r}, got {context!r}")
        return [leaf for spec, child in zip(self.children_specs, children) for leaf in spec.flatten_up_to(child)]

    def __repr__(self):
        return self._show(0)

    def _show(self, indent):
        if self.is_leaf():
            return "*"
        name = self.type if isinstance(self.type, str) else self.type.__name__
        children = (",\n" + " " * (indent + 2)).join(child._show(indent + 2) for child in self.children_specs)
        return f"TreeSpec({name}, {self.context}, [{children}])"


_leaf = TreeSpec(None)


def LeafSpec():
    """The form of a leaf."""
    return _leaf


def tree_is_leaf(tree, is_leaf=None):
    """Whether it is no container, or one that `is_leaf` takes for a leaf."""
    return _kind(tree) is None or (is_leaf is not None and bool(is_leaf(tree)))


def tree_flatten(tree, is_leaf=None):
    """The leaves and the form: everything that is no dict, list, tuple, namedtuple, OrderedDict, defaultdict, deque or registered type."""
    leaves = []
    return leaves, flattened(tree, leaves, is_leaf)


def flattened(tree, leaves, is_leaf=None, kind_of=_kind):
    """The form of a tree, whose leaves it appends to a list. `kind_of` says what node something is, or None of a leaf."""
    kind = kind_of(tree)
    if kind is None or is_leaf is not None and is_leaf(tree):
        leaves.append(tree)
        return _leaf
    children, context = _nodes[kind][0](tree)
    return TreeSpec(kind, context, [flattened(child, leaves, is_leaf, kind_of) for child in children])


def tree_unflatten(leaves, treespec):
    """The tree of a form with these leaves."""
    if not isinstance(treespec, TreeSpec):
        raise TypeError(f"tree_unflatten: expected a TreeSpec, got {type(treespec).__name__}")
    return treespec.unflatten(leaves)


def tree_iter(tree, is_leaf=None):
    """The leaves, one by one."""
    kind = _kind(tree)
    if kind is None or is_leaf is not None and is_leaf(tree):
        yield tree
    else:
        for child in _nodes[kind][0](tree)[0]:
            yield from tree_iter(child, is_leaf)


def tree_leaves(tree, is_leaf=None):
    """The leaves."""
    return list(tree_iter(tree, is_leaf))


def tree_structure(tree, is_leaf=None):
    """The form."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func, tree, *rests, is_leaf=None):
    """A tree of func(leaf, …), the other arguments being what is at that place of the other trees.

    Errors: ValueError if one of those has not the form of the first.
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten(map(func, leaves, *[spec.flatten_up_to(rest) for rest in rests]))


def tree_map_(func, tree, *rests, is_leaf=None):
    """Call func(leaf, …) for every leaf; the tree itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def tree_map_only(type_or_types_or_pred, func, tree, is_leaf=None):
    """A tree of func(leaf) where the leaf is of a type, of one of several, or one that a function says yes to, and else of the leaf."""
    chosen = type_or_types_or_pred
    if isinstance(chosen, (type, tuple)):
        return tree_map(lambda x: func(x) if isinstance(x, chosen) else x, tree, is_leaf=is_leaf)
    return tree_map(lambda x: func(x) if chosen(x) else x, tree, is_leaf=is_leaf)


def tree_map_only_(type_or_types_or_pred, func, tree, is_leaf=None):
    """Call func(leaf) for the leaves that `tree_map_only` gives it; the tree itself."""
    tree_map_only(type_or_types_or_pred, func, tree, is_leaf)
    return tree


def tree_all_only(type_or_types, pred, tree, is_leaf=None):
    """Whether pred says yes to all leaves of a type, or of one of several."""
    return all(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def tree_any_only(type_or_types, pred, tree, is_leaf=None):
    """Whether pred says yes to a leaf of a type, or of one of several."""
    return any(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def tree_all(pred, tree, is_leaf=None):
    """Whether pred says yes to all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred, tree, is_leaf=None):
    """Whether pred says yes to a leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))
