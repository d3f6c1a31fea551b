"""What a compiled function is given and returns, taken apart: PyTorch's trees, and besides dicts, lists and tuples of a class of their
own, and dataclasses that hold tensors."""
from __future__ import annotations

import copy
from collections import deque
from dataclasses import fields

from tritorch.nn.parameter import Parameter
from tritorch.tensor import Tensor
from tritorch.utils import _pytree

OWN = "a class of its own"                                               # a container that nobody registered


def is_input(x):
    """Whether an argument is copied to where a recording reads it. Parameters are what they are, as those of modules."""
    return isinstance(x, Tensor) and not isinstance(x, Parameter)


def kind_of(x):
    """What node of a tree something is, None for a leaf."""
    kind = _pytree._kind(x)
    if kind is not None:
        return kind
    own = isinstance(x, (dict, list, tuple)) or hasattr(type(x), "__dataclass_fields__") and any(map(is_input, _items(x)[1]))
    return OWN if own else None


def _items(x):
    """(names, children) of a container of a class of its own."""
    if isinstance(x, dict):
        return list(x), list(x.values())
    if isinstance(x, (list, tuple)):
        return None, list(x)
    names = [f.name for f in fields(x) if hasattr(x, f.name)]
    return names, [getattr(x, name) for name in names]


def _filled(x, children):
    """A container like x with other children."""
    if isinstance(x, tuple):
        return type(x)(children)
    new = copy.copy(x)
    _fill(new, children)
    return new


def _fill(x, children):
    if isinstance(x, list):
        x[:] = children
    elif isinstance(x, dict):
        for key, value in zip(list(x), children):
            x[key] = value
    else:
        for name, value in zip(_items(x)[0], children):
            object.__setattr__(x, name, value)                           # of a frozen one too


def _own_flatten(x):
    names, children = _items(x)
    return children, _Like(names, _filled(x, [None] * len(children)))    # a form keeps no tensor alive


class _Like:
    """What a container of a class of its own is made of besides its children."""

    def __init__(self, names, empty):
        self.names, self.empty = names, empty

    def __eq__(self, other):
        return type(self.empty) is type(other.empty) and self.names == other.names


_pytree._nodes[OWN] = _own_flatten, lambda children, like: _filled(like.empty, children)


def flatten(tree):
    """(leaves, form)."""
    leaves = []
    return leaves, _pytree.flattened(tree, leaves, None, kind_of)


def parts(x):
    """(children, what else a call depends on) of a container, None of a leaf."""
    kind = kind_of(x)
    if kind is None:
        return None
    if kind is OWN:
        names, children = _items(x)
        return children, names
    return _pytree._nodes[kind][0](x)


class Containers:
    """The containers among arguments, to see what a call changes of them. `own` is what the function gets of `given`."""

    def __init__(self, given, own):
        self.own, self.before = own, flatten(own)
        self.pairs = [] if own is given else list(_pairs(given, own))

    def changed(self):
        """Whether another thing is in one of them, or at another place."""
        (leaves, form), (now, form_now) = self.before, flatten(self.own)
        return form != form_now or len(leaves) != len(now) or any(a is not b for a, b in zip(leaves, now))

    def carry(self, ours):
        """Make the changes in what was given; `ours` are the tensors that stand there for copies, by the ids of these."""
        ours = ours | {id(own): given for given, own in self.pairs}
        for given, own in self.pairs:
            if isinstance(given, dict):
                new = {key: ours.get(id(x), x) for key, x in own.items()}
                given.clear()
                given.update(new)
            elif isinstance(given, (list, deque)):
                new = [ours.get(id(x), x) for x in own]
                given.clear()
                given.extend(new)
            elif not isinstance(given, tuple) and kind_of(given) is OWN:
                _fill(given, [ours.get(id(x), x) for x in _items(own)[1]])


def _pairs(given, own):
    found = parts(given)
    if found is not None:
        yield given, own
        for a, b in zip(found[0], parts(own)[0]):
            yield from _pairs(a, b)
