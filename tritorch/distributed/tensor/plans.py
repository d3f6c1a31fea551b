"""How an operator on DTensors is split up: a Plan says which placements its tensors need and which its results get.

A rule is a function of a Call. `by_mesh_dim(fn)` makes one of `fn(call, n)`, which lists what is possible along one mesh dim of n
processes: pairs (placements of the tensors, placements of the results). Each mesh dim takes what moves the fewest bytes; that all are
replicated is always possible. An operator without a rule runs on whole tensors on every process: right, if not quick.
"""
from tritorch.distributed.tensor.placement_types import Partial, Replicate, Shard
from tritorch.shape import layout

R, P = Replicate(), Partial()
LATENCY = 1 << 14                                                        # bytes that could travel while one collective begins
rules = {}                                                               # by the operator's name
S = [Shard(d) for d in range(64)].__getitem__


class Call:
    """An operator's call as rules see it: `tensors` are its tensors in order, DTensors all, `outs` the (shape, dtype) of its results,
    `at` the mesh dim that a rule is asked for."""

    __slots__ = ("op", "args", "tensors", "outs", "mesh", "where", "at")

    def __init__(self, op, args, tensors, outs, mesh):
        self.op, self.args, self.tensors, self.outs, self.mesh = op, args, tensors, outs, mesh
        self.where, self.at, k = {}, 0, 0
        for name, a in zip(op.names, args):
            count = count_in(a)
            if count:
                self.where[name] = k if count == 1 and type(a) is not tuple else range(k, k + count)
            k += count

    def __getitem__(self, name):
        """An argument, tensors as DTensors."""
        place = self.where.get(name)
        return self.args[self.op.names.index(name)] if place is None else self.tensors[place] if place.__class__ is int else [
            self.tensors[k] for k in place]

    def given(self, **placements):
        """Placements of all tensors, by the names of arguments; of the others Replicate."""
        out = [R] * len(self.tensors)
        for name, p in placements.items():
            place = self.where.get(name)
            for k in (place,) if place.__class__ is int else place or ():
                out[k] = p
        return out

    def cut(self, k=0):
        """The dims that mesh dims cut of one of the tensors."""
        return sorted({p.dim for p in self.tensors[k].placements if type(p) is Shard})


class Plan:
    """`needs`: placements of each tensor; `outs`: of each result; `run`: what to call with the operator, its arguments and the parts in the
    place of `op(*args)`."""

    __slots__ = ("needs", "outs", "run")

    def __init__(self, needs, outs, run=None):
        self.needs, self.outs, self.run = needs, outs, run


def count_in(a):
    """How many tensors an argument has."""
    return 1 if hasattr(a, "storage") and hasattr(a, "node") else sum(map(count_in, a)) if type(a) in (tuple, list) else 0


def rule(*names):
    """Decorator: the rule of operators."""
    def verb(fn):
        for name in names:
            rules[name] = fn
        return fn

    return verb


def by_mesh_dim(fn, run=None):
    """A rule from what is possible along one mesh dim."""
    def plan(call, wanted=None):
        return chosen(call, lambda n: fn(call, n), run, wanted)

    return plan


def whole(call):
    """All on each process."""
    return Plan([(R,) * call.mesh.ndim] * len(call.tensors), [(R,) * call.mesh.ndim] * len(call.outs))


def chosen(call, possible, run=None, wanted=None):
    """The Plan that moves least. `wanted`: placements that the results must have; None if they cannot."""
    needs, outs = [], []
    for k, n in enumerate(call.mesh.shape):
        call.at = k
        ways = [([R] * len(call.tensors), [R] * len(call.outs)), *possible(n)]
        if wanted is not None:
            ways = [way for way in ways if all(p == w[k] for p, w in zip(way[1], wanted))]
        costs = [sum(cost(x.placements[k], p, x, n) for x, p in zip(call.tensors, way[0])) for way in ways]
        if not ways or min(costs) == IMPOSSIBLE:
            return None
        way = ways[costs.index(min(costs))]
        needs.append(way[0])
        outs.append(way[1])
    return Plan([*zip(*needs)] if call.tensors else [], [*zip(*outs)], run)


IMPOSSIBLE = float("inf")


def cost(was, will, x, n):
    """About how many bytes a process sends to bring a tensor from one placement to another, and what it costs to begin."""
    if was == will:
        return 0
    whole_, kind = layout(x.shape)[2] * x.dtype.itemsize, type(will)
    if type(was) is Replicate:
        return 1 if kind is Shard or will.reduce_op != "product" else IMPOSSIBLE
    if kind is Partial or type(was) is Shard and kind is Shard and n == 1:
        return IMPOSSIBLE if kind is Partial else 1
    part = whole_ * (n - 1) / n
    if type(was) is Partial:
        return LATENCY + (2 * part if kind is Replicate else part)
    return LATENCY + (part if kind is Replicate else part / n)


def full_pieces(rows, n):
    """Whether each of n processes has at least one row."""
    return rows >= n and (n - 1) * -(-rows // n) < rows
