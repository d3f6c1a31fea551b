"""The interpreter of one call of vmap."""
import sys
import weakref

from tritorch.amp.autocast_mode import _Caster
from tritorch.autograd import forward, graph, modes, slices
from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.autograd.places import user_place
from tritorch.dispatch import Interpreter, _check_destination, _view
from tritorch.func.batching import (  # noqa: F401 rules
    attention,
    calls,
    draws,
    functions,
    indexing,
    losses,
    matrices,
    moving,
    norms,
    pointwise,
    products,
    rows,
    views,
    windows,
)
from tritorch.func.batching.calls import Call
from tritorch.generator import drawing
from tritorch.ops import create
from tritorch.ops.complex import view_as_real
from tritorch.ops.copy import copy_to
from tritorch.shape import extent, layout
from tritorch.storage import Batched, SampleBySample, batched
from tritorch.tensor import Leaf, Tensor, empty_strided, strided

ABOVE = (_Caster, forward.Level)                                         # what changes calls and carries tangents sees those of samples


class Level(Interpreter):
    """Hands operators that are called with tensors of one sample those of all `size` samples, and records such calls as calls of tensors
    of one sample, so that transformations inside of the function, whose rules are written in operators, work on all samples too."""

    of_samples = True

    def __init__(self, size, randomness):
        self.size, self.randomness, self.works = size, randomness, False
        self.made_here, self.changed = weakref.WeakSet(), None           # memory; the operator that changed memory of others
        self.copies = weakref.WeakSet()                                  # memory of copies of what vmap was given
        self.given = weakref.WeakSet()                                   # memory of what it was given

    # -------------------------------------------------------------- in and out
    def __enter__(self):
        holder, name, place, self.above = state, "interpreter", (state, "interpreter"), []
        while (found := getattr(holder, name)) is not None and type(found) is not Level:
            holder, name = found, "outer"
            if isinstance(found, ABOVE):
                place = found, "outer"
            if isinstance(found, forward.Level):
                self.above.append(found)
        self.place, self.outer = place, getattr(*place)
        setattr(*place, self)
        self.depth = 1 if found is None else found.depth + 1
        modes.interpreted = True
        self.works, self.drawing = True, (drawing.samples, drawing.levels)
        create.newborn[id(self)] = self.made_here
        if self.randomness == "different" and self.size > 1:
            drawing.samples, drawing.levels = drawing.samples * self.size, (*drawing.levels, self)
        elif self.randomness == "error":
            drawing.samples = 0
        return self

    def __exit__(self, *exception):
        (drawing.samples, drawing.levels), self.works = self.drawing, False
        del create.newborn[id(self)]
        setattr(*self.place, self.outer)

    def entered(self, whole):
        """A sample of a tensor of all samples, along its first dim. It is copied where that is not its outermost dim in memory: results of
        operators have the order of their operands, and a sample of theirs would have no view of another shape."""
        if any(n > 1 and s > whole.strides[0] for n, s in zip(whole.shape, whole.strides)) and whole.strides[0]:
            whole = whole.contiguous()
            self.copies.add(whole.storage)
        self.given.add(whole.storage)
        out = self.sample(whole)
        if whole.requires_grad:
            out.node = Leaf(out)
        if whole._tangents is not None:
            out._tangents = {level: self.entered(t) for level, t in whole._tangents.items()}
        return out

    def leave(self, x, dim):
        """The tensor of all samples, along `dim`."""
        whole = self.whole(x) if self.has(x) else x.expand(self.size, *x.shape)
        out = whole.movedim(0, dim)
        out._inference = out._inference or x._inference
        if x._tangents is not None and self.has(x):
            out = out.view_as(out)
            out._tangents = {level: self.leave(t, dim) for level, t in x._tangents.items()}
        return out

    # -------------------------------------------------------------- samples and tensors of all
    def has(self, x):
        """Whether x is a sample, or a sequence in which there is one."""
        if isinstance(x, Tensor):
            home = x.storage
            return type(home) is Batched and home.level is self
        return type(x) in (tuple, list) and any(map(self.has, x))

    def sample(self, whole):
        return strided(batched(whole, self), whole.shape[1:], whole.strides[1:], whole.offset, whole.dtype)

    def whole(self, x, to_write=False):
        """The tensor of all samples of x. It belongs to the graph around if x has a history, and has x's tangents, which that saves."""
        out = self.placed(x, to_write)
        for level in self.above if state.grad and x._tangents is not None else ():
            t = x._tangents.get(level)
            if t is not None and (out._tangents is None or level not in out._tangents):
                level.give(out, self.whole(t) if self.has(t) else t.expand(self.size, *t.shape))
        return out

    def placed(self, x, to_write):
        root = x.storage.whole
        step = root.strides[0] * root.dtype.itemsize // x.dtype.itemsize
        shape, strides = (self.size, *x.shape), (step, *x.strides)
        follows = root.requires_grad and x.requires_grad
        if follows or to_write and not root.requires_grad:
            if (kept := x.__dict__.get("_whole")) is not None:
                return kept
            if root.shape == shape and root.strides == strides and root.offset == x.offset and root.dtype is x.dtype:
                return root
            if root.dtype is not x.dtype:
                if not root.dtype.is_complex or root.dtype.to_real() is not x.dtype:
                    raise SampleBySample
                root = view_as_real(root)
            return root.as_strided(shape, strides, x.offset)
        return strided(root.storage, shape, strides, x.offset, x.dtype)

    def no_values(self):
        """What to raise where somebody looks at the memory of a sample."""
        return SampleBySample() if self.works else RuntimeError(
            "vmap: expected a tensor made outside of it or returned by it, got one that its function left behind")

    # -------------------------------------------------------------- calls
    def __call__(self, op, args, out):
        written = () if out is None else tuple(out) if type(out) in (tuple, list) else (out,)
        if not any(map(self.has, args)) and not any(map(self.has, written)):
            return self.alike(op, args, out, written)
        if not hasattr(op, "body"):                                      # of an operator on lists
            raise SampleBySample
        return self.call(op, args) if out is None else self.write(op, args, out, written)

    def alike(self, op, args, out, written):
        """A call that is the same for all samples, but for what is drawn."""
        if self.draws(op, args):
            if op.__name__ not in calls.each_its_own:
                raise SampleBySample
            return self.call(op, args) if out is None else self.write(op, args, out, written)
        for o in written:
            if o.storage not in self.made_here and any(o is a for a in args) and op.__name__ not in ("fill", "assign"):
                self.changed = op.__name__
        made = self.proceed(op, args, out)
        if out is None:
            self.made_here.update([o.storage for o in (made if type(made) is tuple else (made,)) if o.base is None])
        return made

    def start_over(self, reason):
        """Raise where the function cannot be called for each sample instead, because it has left traces."""
        if self.changed:
            raise RuntimeError(
                f"vmap: expected a function that asks for no values of its samples once it has written into tensors of others "
                f"({self.changed}), got one that does; use torch.where in the place of what depends on values") from reason

    def call(self, op, args):
        try:
            promise = op.body(*args)
        except RuntimeError as error:
            if op.__name__ == "view_as_shape":                           # samples of what a rule made need not be dense in memory
                raise SampleBySample from error
            raise
        if isinstance(promise, Tensor):
            return self.view(op, args, promise)
        made = self.made(op, args, promise)
        outs = [self.sample(x) for x in made]
        self.remember(record, op, args, outs)
        if state.inference:
            for o in outs:
                o._inference = True
        return outs[0] if len(op.returns) == 1 else tuple(outs)

    def made(self, op, args, promise, out=None, written=()):
        """The results of all samples."""
        call = Call(self, op, args, (promise,) if type(promise) is tuple else promise, out, written)
        rule = op.batch_rule or pointwise.rule_of(op)
        rule = rule if "seed" not in op.names else self.of_random(op, args, rule)
        made = self.carrying(rule, call) if self.above and state.grad else rule(call)
        return made if type(made) in (tuple, list) else (made,)

    def carrying(self, rule, call):
        """What the rule gives. If the graph around records it, forward mode around sees it, so that what that saves has tangents."""
        wholes = [x for a in call.args for x in (a if type(a) in (tuple, list) else (a,)) if isinstance(x, Tensor)]
        if not any(x.requires_grad for x in wholes) or all(x._tangents is None for x in wholes):
            return rule(call)
        slot, outers, below = state.interpreter, [level.outer for level in self.above], self.outer
        try:
            for level in reversed(self.above):                           # the outermost first
                level.outer, below = below, level
            state.interpreter = below
            return rule(call)
        finally:
            state.interpreter = slot
            for level, outer in zip(self.above, outers):
                level.outer = outer

    def of_random(self, op, args, usual):
        """The rule of a random operator; the usual one takes the numbers of all samples one after the other, or needs none."""
        idle = any(name in ("p", "dropout_p") and not isinstance(a, Tensor) and a == 0 for name, a in zip(op.names, args))
        if self.draws(op, args) or idle:
            return calls.each_its_own.get(op.__name__, usual)
        return calls.all_the_same.get(op.__name__, calls.each)

    def draws(self, op, args):
        """Whether the numbers of a random operator are others for each sample: their place was taken for all of this level."""
        names = getattr(op, "names", ())
        place = args[names.index("offset")] if "offset" in names else args[names.index("dropout")][2] if "dropout" in names else None
        return self in getattr(place, "levels", ())

    def view(self, op, args, out):
        x = args[0]
        self.remember(_view, op, args, out, anyway=True)
        if state.grad and out.node is not None and x.storage.whole.requires_grad and op.__name__ in views.views:
            out._whole = views.views[op.__name__](self.whole(x), *args[1:])
        return out

    def write(self, op, args, out, written):
        for o in written:
            if not self.has(o):
                self.adopt(o)
            elif o.storage.whole.storage in self.copies:
                raise SampleBySample
            elif o.storage.whole.storage in self.given:
                self.changed = op.__name__
        promise = op.body(*args)
        promises = (promise,) if type(promise) is tuple else promise
        for o, p in zip(written, promises):
            if not (o.shape == p[0] and o.dtype is p[1] and not o._inference and 0 not in o.strides):
                _check_destination(op, o, *p[:3], args)
        node = self.remember(slices.prepare, op, written, args)
        targets = tuple([self.whole(o, to_write=True) for o in written])
        exact = all(o.dtype is p[1] and o.shape == p[0] for o, p in zip(written, promises))
        for target, made in zip(targets, self.made(op, args, promise, targets if exact else None, zip(written, targets))):
            if made is not target:
                target.copy_(made)
        writer = user_place()
        for o in written:
            o.storage.version += 1
            o.storage.writer = writer
        if node is not None:
            self.remember(*(slices.rebase, written[0], node) if len(written) == 1 else (graph.hang, node, written))
        return out

    def adopt(self, x):
        """Let each sample have a tensor of its own in the place of one that the function made for all: it is about to be written."""
        root = x if x.base is None else x.base
        alone = sys.getrefcount(root.storage) == 2 + (x is not root)     # else other tensors show this memory
        if root.storage not in self.made_here or not alone or root.offset:
            raise SampleBySample                                         # the samples would have to take turns
        whole = root.expand(self.size, *root.shape)
        home = batched(copy_to(whole, root.dtype, root.device, (max(extent(root.shape, root.strides), 1), *root.strides)), self)
        for t in (x, root):
            t.storage, t._array, t.form = home, None, None

    def remember(self, fn, *args, anyway=False):
        """History of samples, which operators on samples make."""
        if state.grad or anyway:
            slot, state.interpreter = state.interpreter, self
            try:
                return fn(*args)
            finally:
                state.interpreter = slot
        return None


def like(x, shape, dtype, device, strides=None):
    """An unset tensor of each sample's own, inside of several calls of vmap of each sample of all of them."""
    level, whole, (shape, usual, _) = x.storage.level, x.storage.whole, layout(tuple(shape))
    strides = usual if strides is None else tuple(strides)
    every = (level.size, *shape), (max(extent(shape, strides), 1), *strides)
    if type(whole.storage) is Batched:
        return level.sample(like(whole, every[0], dtype, device, every[1]))
    return level.sample(empty_strided(*every, dtype, device))


def shown(x):
    """(which vmap around it is, the outermost being 1; the tensor of all samples) of a sample."""
    return x.storage.level.depth, x.storage.level.whole(x)


Batched.like, Batched.shown = staticmethod(like), staticmethod(shown)
