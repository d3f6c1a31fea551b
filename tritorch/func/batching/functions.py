"""Functions with a gradient or a rule of the user's inside of vmap: autograd.Function, and custom operators."""
from collections import namedtuple
from contextlib import contextmanager
from functools import partial
from weakref import ref

from tritorch.autograd import slices
from tritorch.autograd.function import Function
from tritorch.autograd.graph import Node, next_seq
from tritorch.autograd.modes import state
from tritorch.errors import check
from tritorch.func.batching.calls import is_batched
from tritorch.storage import Batched, batched
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_flatten, tree_leaves, tree_map

VmapInfo = namedtuple("VmapInfo", "batch_size randomness")


def level_of(tree):
    """The innermost call of vmap of whose samples there are tensors in a tree; None without one."""
    if state.interpreter is None:
        return None
    here, found = {x.storage.level for x in tree_leaves(tree) if isinstance(x, Tensor) and type(x.storage) is Batched}, state.interpreter
    while here and found is not None:
        if found in here:
            return found
        found = found.outer
    return None


@contextmanager
def outside(level):
    """Inside, operators see tensors of all samples as what they are: this vmap is left out of those who see calls."""
    holder, name = state, "interpreter"
    while getattr(holder, name) is not level:
        holder, name = getattr(holder, name), "outer"
    setattr(holder, name, level.outer)
    try:
        yield
    finally:
        setattr(holder, name, level)


def by_rule(name, rule, args, kwargs=None):
    """What a rule of the user's makes of a call: `rule(info, in_dims, *args)` is given tensors of all samples, along their first dims where
    in_dims, of the form of the arguments, says 0, and returns (results, their dims)."""
    level = level_of((args, kwargs))
    args, kwargs = tuple(args), kwargs or {}

    def whole(x):
        return level.whole(x) if is_batched(x, level) else x

    with outside(level):
        made = rule(VmapInfo(level.size, level.randomness), tree_map(lambda x: 0 if is_batched(x, level) else None, args),
                    *tree_map(whole, args), **tree_map(whole, kwargs))
        check(isinstance(made, tuple) and len(made) == 2, name, "a rule for vmap that returns (results, dims)", type(made).__name__)
        flat, form = tree_flatten(made[0])
        dims = [made[1]] * len(flat) if made[1] is None or isinstance(made[1], int) else tree_leaves(made[1])
        check(len(dims) == len(flat), name, f"dims of {len(flat)} results from a rule for vmap", made[1])
        for x, d in zip(flat, dims):
            fits = d is None or isinstance(x, Tensor) and -x.ndim <= d < x.ndim and x.shape[d] == level.size
            check(fits, name, f"dims of results that have {level.size} samples along them", d, getattr(x, "shape", type(x).__name__))
        flat = [x if d is None else x.movedim(d, 0) for x, d in zip(flat, dims)]
    return form.unflatten([x if d is None else level.sample(x) for x, d in zip(flat, dims)])


def forward(function, args):
    """The results of an autograd.Function by its own rule for vmap, in a tuple; None where there is no such rule or no vmap."""
    own = "vmap" in function.__dict__ or function.vmap is not Function.vmap
    check(not (own and function.generate_vmap_rule), function.__name__, "generate_vmap_rule or a static method vmap", "both")
    if not own or function.setup_context is None or level_of(args) is None:
        return None                                                      # without setup_context it is forward that saves
    return (by_rule(function.__name__, function.vmap, args),)


class OfAll(Node):
    """What an autograd.Function that was called with samples is in the graph around: its backward runs for all of them, inside of the vmap
    that called it, as what it has saved are samples."""

    __slots__ = ("level", "node", "args", "_dirty", "_fixed", "_linked")

    def __init__(self, level, node, args, outs):
        self.level, self.node, self.seq, self.outputs, self._linked = level, node, next_seq(), len(outs), None
        self.hooks = self.trace = self.shapes = self.streams = None
        self.edges, self.args = [], []
        for a in args:
            known = isinstance(a, Tensor)
            x = level.whole(a) if known and is_batched(a, level) else a
            self.edges.append((x.node, x.index, x.shape, x.dtype) if known and x.requires_grad else None if known else False)
            self.args.append((a.shape, is_batched(a, level)) if known else None)

    def name(self):
        return self.node.name()

    @property
    def saved(self):
        return self.node.saved

    def release(self):
        self.node.release()

    def pull(self, grads, useful=None, as_output=None):
        level = self.level
        with level:
            found = self.node.pull([None if g is None else level.entered(g) for g in grads])
            places = [k for k, edge in enumerate(self.node.edges) if edge]
            made = [(k, g if g.shape == self.args[k][0] else g.sum_to_size(self.args[k][0])) for k, (_, g) in zip(places, found)
                    if g is not None and self.edges[k]]
        wholes = [(k, level.leave(g, 0)) for k, g in made]
        return [(self.edges[k], g if self.args[k][1] else g.sum(0)) for k, g in wholes]


def linked(around_node, x):
    """A saved output of a call of an autograd.Function with its history in the graph around. It was saved before it had one, so that the
    node is not kept alive by what it has saved."""
    seen = around_node()
    if seen is None:
        return x
    whole = seen.level.whole(x)
    whole.node, whole.index = seen, x.index
    out = seen.level.sample(whole if seen._linked is None else seen._linked(whole))
    out.node, out.index, out._tangents = x.node, x.index, x._tangents
    return out


def around(node, args, outs):
    """Have the node of a call of an autograd.Function with samples, which is their history, in the graph around, too."""
    level = level_of(args)
    if level is None or not any(isinstance(a, Tensor) and a.requires_grad for a in args):
        return
    seen, wholes = OfAll(level, node, args, outs), []
    node._linked = partial(linked, ref(seen))
    for k, o in enumerate(outs):
        if not isinstance(o, Tensor):
            wholes.append(o)
            continue
        dirty = any(o is d for d in node._dirty)
        whole = level.whole(o, to_write=dirty) if is_batched(o, level) else o.detach().expand(level.size, *o.shape)
        wholes.append(whole)
        if not dirty:
            o.storage, o._array, o.form, o.strides, o.offset = batched(whole, level), None, None, whole.strides[1:], whole.offset
        if o.dtype.has_gradients and not any(o is x for x in node._fixed):
            old = whole.node, whole.index
            whole.node, whole.index = seen, k
            if dirty:
                slices.settle(whole, seen, k, old)
    seen._dirty, seen._fixed = ([w for o, w in zip(outs, wholes) if any(o is x for x in some)] for some in (node._dirty, node._fixed))
    with outside(level):
        around(seen, [level.whole(a) if is_batched(a, level) else a for a in args], wholes)
    seen._dirty = seen._fixed = ()


def hooked(x, hook, wanted):
    """Have a hook on the gradient of a sample called with that in the graph around, too, as long as it is `wanted`."""
    level, whole = x.storage.level, x.storage.level.whole(x)
    if not whole.requires_grad:
        return
    x._whole = whole                                                     # from now on what is made of x is made of this

    def of_all(g):
        if not wanted():
            return None
        with level:
            made = hook(level.entered(g))
        return None if made is None else level.leave(made, 0)

    with outside(level):
        whole.register_hook(of_all)


Batched.by_rule, Batched.forward, Batched.around, Batched.hooked = map(staticmethod, (by_rule, forward, around, hooked))
