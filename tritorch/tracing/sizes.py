"""One graph of several traces: what is a number in one call and another in the next depends on the sizes of the inputs.

Numbers that differ become `Varying`, which no operator can take for a number; constants that differ are told from those that are the same.
A program that runs other operators for other sizes is refused.
"""
import numpy as np

from tritorch.errors import sentence
from tritorch.tracing.tracer import Untraceable, Value, home


class Baked(Untraceable):
    """A number that depends on the sizes of the inputs where a graph can only hold one that does not."""


class Varying:
    """A number that is another in every call: `values`, one for each trace. Whoever takes it for a number gets `Baked`."""

    __slots__ = ("values",)

    def __init__(self, values):
        self.values = tuple(values)

    def __repr__(self):
        return " / ".join(map(str, self.values))

    def __eq__(self, other):
        return isinstance(other, Varying) and self.values == other.values

    def __hash__(self):
        return hash(self.values)

    def refuse(self, *_):
        raise Baked(str(self))

    __index__ = __int__ = __float__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __neg__ = refuse


def merged(traces):
    """The first of several traces, with what varies over them."""
    first, *others = traces
    if others:
        for k, nodes in enumerate(zip(*[t.nodes for t in traces])):
            names = [n.name for n in nodes]
            if len(set(names)) > 1:
                raise _other_operators(traces, k)
            first.nodes[k].args = _alike(nodes[0], tuple([n.args for n in nodes]))
        if any(len(t.nodes) != len(first.nodes) or len(t.values) != len(first.values) for t in others):
            raise _other_operators(traces, min(len(t.nodes) for t in traces))
        for values in zip(*[t.values for t in traces]):
            _compare(values)
    return first


def outline(args):
    """What of arguments, or of a trace's calls, is the same in calls that differ in numbers alone."""
    if isinstance(args, Value):
        return args.number
    if isinstance(args, (tuple, list)):
        return tuple([outline(a) for a in args])
    return "number" if isinstance(args, (int, float)) else str(args)


def check_results(results):
    """That the values which calls of several sizes returned are the same ones."""
    if len({tuple([v.number for v in values]) for values in results}) > 1:
        raise Untraceable(sentence("export", "the same results whatever the sizes of dynamic axes are",
                                   "others, or another number of them"))


def _other_operators(traces, k):
    lines = [f"{t.nodes[k].name} at {t.nodes[k].where()}" if k < len(t.nodes) else "nothing" for t in traces]
    other = next((line for line in lines if line != lines[0]), "constants")
    return Untraceable(sentence("export", "the same operators whatever the sizes of dynamic axes are", f"{lines[0]} for some, {other} for "
                                "others", use="Dim(min=, max=), a static axis, or call the model once before if it keeps what it computed"))


def _alike(node, args):
    """Arguments of the same call in several traces, as one."""
    kinds = {type(a) for a in args}
    if (kinds <= {int, float, bool} or kinds == {str}) and len(set(map(str, args))) > 1:
        return Varying(args)
    if kinds <= {tuple, list} and len({len(a) for a in args}) == 1:
        return tuple([_alike(node, parts) for parts in zip(*args)])
    same = len({a.number for a in args}) == 1 if kinds == {Value} else len(kinds) == 1 and all(a is args[0] or a == args[0] for a in args)
    if not same:
        raise Untraceable(sentence("export", "the same calls whatever the sizes of dynamic axes are", f"{node.name} at {node.where()} on "
                                   "other arguments", use="a static axis"))
    return args[0]


def _compare(values):
    """Note in the first of the same values in several traces what varies: its shape, or its elements."""
    first = values[0]
    if len({v.ndim for v in values}) > 1:
        raise Untraceable(sentence("export", "as many dims whatever the sizes of dynamic axes are", _maker(first)))
    first.shape = tuple([Varying(n) if len(set(n)) > 1 else n[0] for n in zip(*[v.tensor.shape for v in values])])
    if not first.depends:
        first.same = first.shape == tuple(first.tensor.shape) and all(_equal(first.tensor, v.tensor) for v in values[1:])
        if not first.same and first.node is None and first.ndim <= 1 and first.shape == tuple(first.tensor.shape):
            first.elements = [_alike(None, tuple(n)) for n in zip(*[np.ravel(_numbers(v.tensor)).tolist() for v in values])]


def _maker(value):
    return "a constant" if value.node is None else f"the result of {value.node.name} at {value.node.where()}"


def _numbers(x):
    return x.detach().cpu().array


def _equal(x, y):
    if home(x) is home(y) and x.offset == y.offset and x.strides == y.strides:
        return True
    a, b = _numbers(x), _numbers(y)
    return np.array_equal(a.view(np.uint8) if a.flags.c_contiguous and a.ndim else a,
                          b.view(np.uint8) if b.flags.c_contiguous and b.ndim else b)


def leaves(args):
    """The values among arguments."""
    for a in args:
        if isinstance(a, Value):
            yield a
        elif isinstance(a, tuple):
            yield from leaves(a)
