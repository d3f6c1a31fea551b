"""Gradients that meet: of pieces of a tensor, kept as pieces until the whole is needed, and of a tensor that several operators read, in
this pass or in those before it.

The gradient of a slice is zeros with a part filled in. Where a tensor is cut up (`split`, `unbind`, a loop over time steps), one such
tensor for each piece, and their sum, would move the whole memory several times for every piece. A Part says the same and moves nothing:
parts meet in one Part, and pieces that cover the tensor are written side by side, once, or not at all if they already lie so.
"""
import threading

from tritorch.autograd.modes import state
from tritorch.layout import strided as strided_layout
from tritorch.memory_format import dense_strides
from tritorch.shape import is_dense
from tritorch.storage import Batched, Spread, Storage
from tritorch.tensor import Leaf, Tensor, empty, strided

accumulating = threading.RLock()                                         # two passes may meet at a leaf


class Part:
    """Zeros of `shape`, its dims in memory in the order of `strides`, plus, for each (g, dim, start) of `pieces`, g at `start` of `dim`.
    Made by gradient rules inside a backward pass."""

    __slots__ = ("shape", "strides", "dtype", "pieces")
    layout = strided_layout

    def __init__(self, shape, strides, pieces):
        self.shape, self.strides, self.dtype, self.pieces = shape, strides, pieces[0][0].dtype, pieces
        state.run.partial = True

    def __add__(self, other):
        if type(other) is Part:
            return Part(self.shape, self.strides, self.pieces + other.pieces)
        return other + self.whole()

    def to(self, dtype):
        return self.whole().to(dtype)

    def whole(self):
        """The gradient as one tensor."""
        if type(self.pieces[0][0].storage) is Spread:
            return Spread.whole(self)
        pieces, dim = sorted(self.pieces, key=lambda piece: piece[2]), self.pieces[0][1]
        ends = [start + g.shape[dim] for g, _, start in pieces]
        apart = all(d == dim for _, d, _ in pieces) and all(end <= start for end, (_, _, start) in zip(ends, pieces[1:]))
        covers = apart and sum([g.shape[dim] for g, _, _ in pieces]) == self.shape[dim]
        side_by_side = _joined(self.shape, dim, pieces) if covers else None
        if side_by_side is not None:
            return side_by_side
        of_sample = next((g for g, _, _ in pieces if type(g.storage) is Batched), None)
        if of_sample is None:
            out = empty(self.shape, self.dtype, pieces[0][0].device, self.strides, dense_strides)
        else:
            out = Batched.like(of_sample, self.shape, self.dtype, of_sample.device)
        if not covers:
            out.zero_()
        for g, d, start in pieces if apart else self.pieces:
            target = out.narrow(d, start, g.shape[d])
            if apart:
                target.copy_(g)
            else:
                target.add_(g)
        return out


def sparse_sum(old, g, sole, create):
    """What the `.grad` of a leaf becomes, where it or the gradient g that arrived is sparse: strided once one of them is."""
    if old is None:
        return g.detach() if sole and not create else g.clone()
    if create or old.layout is not g.layout and old.layout is not strided_layout:
        return old + g if old.layout is strided_layout or g.layout is not strided_layout else g + old
    return old.add_(g)


SPARSE_TOO = {"copy_to", "neg", "transpose", "permute_dims"}             # operators whose rules take sparse gradients


def readable(node, grads):
    """The gradients as the rules of a node can read them: those of operators want strided ones, but for a few."""
    plan = getattr(node, "plan", None)
    if plan is None or plan.op.__name__ in SPARSE_TOO:
        return grads
    return [g if g is None or g.layout is strided_layout else g.to_dense() for g in grads]


def whole(g):
    """A gradient as a tensor."""
    return g.whole() if type(g) is Part else g


def _joined(shape, dim, pieces):
    """The tensor whose pieces lie side by side in one memory already, or None. The pieces are in order."""
    (first, _, _), (last, _, end) = pieces[0], pieces[-1]
    step, rest = divmod(last.offset - first.offset, end) if end else (first.strides[dim], 0)
    if step <= 0 or rest:
        return None
    strides = first.strides[:dim] + (step,) + first.strides[dim + 1:]
    for g, _, start in pieces:
        fits = g.storage is first.storage and g.offset == first.offset + start * step and g._tangents is None
        if not fits or any(a != b for a, b, n in zip(g.strides, strides, g.shape) if n > 1):
            return None
    return strided(first.storage, shape, strides, first.offset, first.dtype)


def alone(name):
    """For a gradient rule: whether an input's gradient has nothing to be added to, neither from this pass nor from those before: mostly so,
    and one question instead of `joined_grads` and `arrived`."""
    run = state.run
    node = None if run is None else run.node
    edge = None if node is None else node.edges[node.plan.op.names.index(name)]
    if not edge:
        return True
    target = edge[0]
    if type(target) is Leaf:
        leaf = target.ref()
        return target not in run.late and (leaf is None or leaf._grad is None)
    plan = getattr(target, "plan", None)
    return target not in run.pending and (plan is None or not getattr(plan.op, "casts", False))


def arrived(name):
    """For a gradient rule: what an input of its node has got already, from others that read it, or None. A rule that takes it must return
    the sum of it and its own: one pass over memory instead of three."""
    run = state.run
    node = None if run is None else run.node
    if node is None or run.create or node.hooks is not None:
        return None
    edge = node.edges[node.plan.op.names.index(name)]
    if not edge:
        return None
    slots, index = (run.late, edge[0]) if edge[0] in run.late else (run.pending.get(edge[0]), edge[1])
    found = slots[index] if slots is not None else None
    if type(found) is not Tensor or found.dtype is not edge[3] or found._tangents is not None:
        return None
    slots[index] = None
    if run.crossing is not None:
        run.crossing.meet(edge[0], found)
    return found


def joined_grads(add, reads, *names):
    """For a gradient rule: let `add(*grads)` add the gradients of these inputs, in place, to what their leaves have in `.grad` from
    before, one pass over memory instead of two; then the rule returns None for them. False, and nothing is done, where the engine has to
    do more than add: a leaf is without `.grad` or has hooks, gradients get a graph of their own, were asked for by name, or cross streams.
    `reads` are the tensors that they are made of, which must not change as `.grad` does.

    The sum is rounded once, to the dtype of `.grad`: in float32 the bits are those of an addition by itself, in half types it is one
    rounding less."""
    run = state.run
    node = None if run is None else run.node
    if node is None or run.create or run.wanted is not None or run.crossing is not None or node.hooks is not None:
        return False
    grads, places = [], node.plan.op.names
    for name in names:
        g = _grad_behind(node.edges[places.index(name)])
        if g is None:                                                    # mostly the first backward pass of a step: no time is lost
            return False
        grads.append(g)
    if state.anomaly is not None or any(x._tangents is not None for x in reads):
        return False
    kept = {id(x.storage.owner) for x in reads}
    kept.update([id(v[0].owner) for v in node.saved if type(v) is tuple and v and isinstance(v[0], Storage)])
    if not kept.isdisjoint([id(g.storage.owner) for g in grads]):
        return False
    with accumulating:
        add(*grads)
    return True


def _grad_behind(edge):
    """The `.grad` that can be added to where an edge leads: to a leaf, or to the cast of one to a half type; else None."""
    if not edge:
        return None
    if type(edge[0]) is not Leaf:
        (cast, _, shape, dtype), plan = edge, getattr(edge[0], "plan", None)
        if plan is None or not getattr(plan.op, "casts", False) or cast.hooks is not None or cast.streams is not None:
            return None
        edge = cast.edges[0]
        if edge[2] != shape or edge[3] is not dtype.compute:
            return None
    node = edge[0]
    leaf = node.ref() if type(node) is Leaf and node.hooks is None else None
    g = None if leaf is None else leaf._grad
    if type(g) is not Tensor or leaf.node is not node or (g.shape, g.dtype) != edge[2:]:
        return None
    return None if g.storage.device is not leaf.storage.device or g._inference or g._tangents is not None or 0 in g.strides else g


def needed(name):
    """For a gradient rule: whether an input of its node needs a gradient; True where that is not known."""
    node = None if state.run is None else state.run.node
    return node is None or bool(node.edges[node.plan.op.names.index(name)])


def one_for(x):
    """The gradient of 1 with which a pass begins at x."""
    g = x._filled(1)
    g._ones = g.storage.version
    return g


def is_one(g):
    """For a gradient rule: whether g is the gradient of 1 with which a pass begins, and nobody has had it in between."""
    run = state.run
    node = None if run is None else run.node
    return node is not None and node.hooks is None and getattr(g, "_ones", None) == g.storage.version


def wanted_dtype(name):
    """For a gradient rule: the wider dtype that the gradient of an input had better have, or None. Behind a cast that is the dtype of what
    was cast: it gets sums that were never rounded, and nothing is cast back."""
    run = state.run
    node = None if run is None else run.node
    if node is None or run.create:
        return None
    edge = node.edges[node.plan.op.names.index(name)]
    plan = getattr(edge[0], "plan", None) if edge else None
    if plan is None or not getattr(plan.op, "casts", False) or edge[0].hooks is not None or run.asked(*edge[:2]):
        return None
    dtype = edge[0].edges[0][3]
    return dtype if dtype is edge[3].compute and dtype is not edge[3] else None


def empty_alike(*tensors, g=None):
    """Unset tensors in one memory, with the layout that `tensors` have in theirs; None unless these fill one, evenly interleaved. `g` is
    the gradient that they will be made of."""
    order = sorted(tensors, key=lambda x: x.offset)
    first, step = order[0], order[1].offset - order[0].offset
    even = step and all(x.storage is first.storage and x.shape == first.shape and x.strides == first.strides and x.dtype is first.dtype
                        and x.offset == first.offset + k * step for k, x in enumerate(order))
    if not even or not is_dense((len(tensors), *first.shape), (step, *first.strides)):
        return None
    count, samples = (len(tensors) * first.numel(),), [x for x in (g, first) if x is not None and type(x.storage) is Batched]
    memory = Batched.like(samples[0], count, first.dtype, first.device) if samples else empty(count, first.dtype, first.device)
    return [strided(memory.storage, x.shape, x.strides, x.offset - first.offset, x.dtype) for x in tensors]
