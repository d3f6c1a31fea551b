"""Forward mode: tangents carried along, operator by operator, derived from the gradient rules.

A rule is linear in the arriving gradient, so the transpose of that linear map, got by differentiating it once more, carries
tangents forward (J. Townsend's trick, 2017). An operator may give its own `.jvp` where that is cheaper. Levels nest, and
tangents are made by public operators, so forward over reverse, reverse over forward and forward over forward all work.
"""
import weakref

from tritorch.autograd import modes
from tritorch.autograd.engine import grad as differentiate
from tritorch.autograd.graph import OpNode
from tritorch.autograd.modes import state
from tritorch.autograd.slices import CopySlices
from tritorch.autograd.snapshot import carrying
from tritorch.errors import check
from tritorch.tensor import Tensor


class Level:
    """An interpreter that carries the tangents of one level; a tensor keeps its tangents by level in `_tangents`."""

    outer, views, of_samples = None, True, False
    by_hand = False                                                      # entered through forward_ad

    def __init__(self):
        self.buffers = weakref.WeakSet()                                 # memory of tangents that are written in place

    def __enter__(self):
        self.outer, state.interpreter = state.interpreter, self
        modes.interpreted = True
        return self

    def __exit__(self, *exception):
        state.interpreter = self.outer

    def tangent(self, x):
        """The tangent of a tensor at this level, None if it has none."""
        if not isinstance(x, Tensor):
            return None
        base = x.base
        if base is not None and self in base._settled:                   # once written, a family of views has one tangent
            whole = base._tangents[self]
            self.give(x, whole.as_strided(x.shape, x.strides, x.offset - base.offset + whole.offset))
        return None if x._tangents is None else x._tangents.get(self)

    def give(self, x, tangent):
        """Let x carry a tangent."""
        x._tangents = {**(x._tangents or {}), self: tangent}
        return x

    def dual(self, primal, tangent):
        """The primal, as a tensor of its own that carries the tangent."""
        out = primal.view_as(primal)
        out.base = out.base_node = None                                  # writes to it are no writes to the primal's tangent
        return self.give(out, tangent)

    def __call__(self, op, args, out):
        tangents = [tuple(map(self.tangent, a)) if type(a) is tuple else self.tangent(a) for a in args]
        moves = any(t is not None and (type(t) is not tuple or any(v is not None for v in t)) for t in tangents)
        if out is not None:
            return self.write(op, args, out, tangents, moves)
        made = op(*args)
        if moves:
            outs = made if isinstance(made, tuple) else (made,)
            for o, t in zip(outs, self.push(op, args, tangents, outs)):
                if t is not None:
                    if op.impls and t.storage in self.buffers:           # a rule gave the tangent back as it came: it may still be written
                        t = t.clone()
                    self.give(o, t)
                    _remember(o)
        return made

    def custom(self, function, args):
        """A call of an autograd.Function: its own `jvp` rule, or its backward transposed."""
        tangents = [self.tangent(a) for a in args]
        slot, state.interpreter = state.interpreter, self.outer
        try:
            made, ctx = function.call(args)
            outs = made if isinstance(made, tuple) else (made,)
            if "jvp" in function.__dict__:
                if ctx._materialize:
                    tangents = [a.new_zeros(a.shape) if t is None and isinstance(a, Tensor) and a.dtype.has_gradients else t
                                for a, t in zip(args, tangents)]
                moved = function.jvp(ctx, *tangents)
                moved = moved if isinstance(moved, tuple) else (moved,)
                check(len(moved) == len(outs), function.__name__, f"{len(outs)} tangents from jvp, one an output", len(moved))
            else:
                moved = transpose(function.apply, args, tangents)
        finally:
            state.interpreter = slot
        for k, (o, t) in enumerate(zip(outs, moved)):
            if t is not None and isinstance(o, Tensor):
                check(t.shape == o.shape, function.__name__, f"a tangent of shape {o.shape} from jvp", t.shape)
                self.give(o, t)
                ctx.saved = ctx.saved and [carrying(packed, k, o._tangents) for packed in ctx.saved]
        return made

    def push(self, op, args, tangents, outs):
        """The tangents of the outputs."""
        if not op.impls:                                                 # a view moves its tangent as it moves itself
            t = tangents[0]
            if t is None or not op.rules:                                # the bits under another dtype have no gradient
                return [None]
            if op.__name__ == "view_as_shape":                           # a tangent may lie otherwise than its primal
                return [t.reshape(outs[0].shape)]
            if op.__name__ == "as_strided":
                return [op(self.same_layout(t, args[0]), *args[1:3], outs[0].offset - args[0].offset)]
            return [op(t.contiguous() if op.__name__ == "view_as_complex" else t, *args[1:])]
        if op.jvp_rule is not None:
            moved = op.jvp_rule(tangents, args, outs)
            return moved if isinstance(moved, (tuple, list)) else [moved]
        return transpose(op, args, tangents)

    def same_layout(self, tangent, x):
        """The tangent in memory of x's layout, for views that speak of strides."""
        out = tangent.new_empty_strided(x.shape, x.strides)
        return out.copy_(tangent)

    def write(self, op, args, out, tangents, moves):
        """In-place and out=: the tangent of what is written is written too, through the base's tangent if it is a view."""
        outs = out if isinstance(out, (tuple, list)) else (out,)
        if not moves and all(self.tangent(o) is None for o in outs):
            return op.into(out, *args)
        written = {id(o.storage) for o in outs}
        before = [a.clone() if isinstance(a, Tensor) and id(a.storage) in written else a for a in args] if moves else args
        made = op.into(out, *args)
        moved = self.push(op, before, tangents, outs) if moves else [None] * len(outs)
        for o, t in zip(outs, moved):
            current = self.settle(o)
            if t is None:
                current.zero_()
            else:
                current.copy_(t.expand(o.shape))
            _remember(o)
        return made

    def settle(self, x):
        """A tangent of x that can be written: memory laid out as that of x, or of its base, in which all views of it share."""
        root = x if x.base is None else x.base
        if self not in root._settled:
            old = self.tangent(root)
            whole = root.detach().new_empty_strided(root.shape, root.strides).zero_() if old is None else self.same_layout(old, root)
            self.give(root, whole)
            self.buffers.add(whole.storage)
            root._settled = root._settled | {self}
        return self.tangent(x)


def level_of(args):
    """The innermost level at work for which one of these values carries a tangent."""
    level = state.interpreter
    while level is not None:
        if isinstance(level, Level) and any(level.tangent(a) is not None for a in args):
            return level
        level = level.outer
    return None


def _remember(out):
    """An output that its own node saved gets its tangents there as well: it was saved before it had them."""
    node, index = out.node, out.index
    if out.base is not None and type(out.base.node) is CopySlices:
        node, index = out.base.node.inner, 0
    if isinstance(node, OpNode):
        for k, which in node.plan.saved_outputs:
            if which == index and type(node.saved[k]) is tuple:
                node.saved[k] = (*node.saved[k][:-1], out._tangents)


def _cut(x):
    """x and the tangents of the levels around, without the graphs that were made on the way."""
    out = x.detach()
    out._tangents = x._tangents and {level: _cut(t) for level, t in x._tangents.items()}
    return out


def _watched(values):
    """Whether somebody outside differentiates through these values."""
    flat = [v for a in values for v in (a if type(a) is tuple else (a,)) if isinstance(v, Tensor)]
    return any(v.requires_grad or v._tangents and _watched(v._tangents.values()) for v in flat)


def transpose(op, args, tangents):
    """The tangents of the outputs by transposing the gradient rules: u ↦ vjp(u) is linear, and its own vjp is the jvp."""
    was, state.grad = state.grad, True
    watched = was and (_watched(args) or _watched(tangents))
    keep = watched or state.interpreter is not None
    try:
        stand_ins, picked = [], []
        for a, t in zip(args, tangents):
            if type(a) is tuple and type(t) is tuple:
                stand_ins.append(tuple([_stand_in(v, w, picked) for v, w in zip(a, t)]))
            else:
                stand_ins.append(_stand_in(a, t, picked))
        made = op(*stand_ins)
        outs = made if isinstance(made, tuple) else (made,)
        live = [k for k, o in enumerate(outs) if isinstance(o, Tensor) and o.dtype.has_gradients and o.requires_grad]
        result = [None] * len(outs)
        if live:
            probes = [outs[k].detach().clone().zero_().requires_grad_() for k in live]
            for k, probe in zip(live, probes):                           # steps do not move: their tangents are zeros
                result[k] = probe.detach()
            pulled = differentiate([outs[k] for k in live], [x for x, _ in picked], probes, create_graph=True, allow_unused=True)
            pairs = [(p, t) for p, (_, t) in zip(pulled, picked) if p is not None and p.requires_grad]
            if pairs:
                moved = differentiate([p for p, _ in pairs], probes, [t.to(p.dtype).expand(p.shape) for p, t in pairs], create_graph=keep,
                                      allow_unused=True)
                for k, m in zip(live, moved):
                    result[k] = result[k] if m is None else m if watched else _cut(m)
    finally:
        state.grad = was
    return result


def _stand_in(x, tangent, picked):
    """An argument as the start of a graph of its own, still connected to the graphs and levels around it."""
    if tangent is None:
        return x
    fresh = x.view_as(x)
    if not fresh.requires_grad:
        fresh.base = None
        fresh.requires_grad_()
    picked.append((fresh, tangent))
    return fresh


def jvp(func, primals, tangents):
    """(func(*primals), its derivative along the tangents), both in the structure that func returns."""
    single = isinstance(primals, Tensor)
    primals, tangents = ((primals,), (tangents,)) if single else (tuple(primals), tuple(tangents))
    check(len(primals) == len(tangents), "jvp", f"{len(primals)} tangents, one a primal", len(tangents))
    for x, t in zip(primals, tangents):
        check(x.shape == t.shape and x.dtype is t.dtype, "jvp", f"tangents of the primals' shape and dtype, {x.shape} {x.dtype}",
              (t.shape, t.dtype))
    level = Level()
    duals = [level.dual(x, t) for x, t in zip(primals, tangents)]
    with level:
        made = func(*duals)
    return _split(level, made)


def _split(level, made):
    """(values, tangents) of a result, tensors without a tangent having zero."""
    if isinstance(made, Tensor):
        tangent = level.tangent(made)
        plain = made.view_as(made)
        plain._tangents = {k: v for k, v in (made._tangents or {}).items() if k is not level} or None
        return plain, made.detach().clone().zero_() if tangent is None else tangent
    check(isinstance(made, (tuple, list)), "jvp", "a function that returns tensors", type(made).__name__, error=TypeError)
    pairs = [_split(level, m) for m in made]
    return type(made)(p for p, _ in pairs), type(made)(t for _, t in pairs)
