"""Writes in place: the history of a tensor that was written, and of the base it is a view of."""
from tritorch.autograd.graph import SELF, Node, flat_edges, hang, make_node, next_seq, written_edges
from tritorch.autograd.hooks import move_kept
from tritorch.autograd.modes import state
from tritorch.tensor import Leaf, Tensor, Unfollowed, refresh, strided


class CopySlices(Node):
    """History of a base after a write through one of its views: the view's part of the gradient goes through the
    call that wrote, the rest goes on to the base's own past."""

    __slots__ = ("inner", "index", "geometry")

    def __init__(self, base, view, inner, index=0):
        self.seq, self.outputs, self.hooks, self.trace, self.streams = next_seq(), 1, None, inner.trace, inner.streams
        past = None if base.node is None else (base.node, base.index, base.shape, base.dtype)
        self.inner, self.index, self.geometry = inner, index, (view.shape, view.strides, view.offset, view.dtype, base.shape,
                                                                    base.strides, base.offset, base.dtype)
        self.edges = [past, *[e for e in flat_edges(inner.edges) if not e or e[0] is not SELF]]

    @property
    def saved(self):
        return self.inner.saved

    def release(self):
        self.inner.release()

    def as_view(self, out):
        """A saved output of the call that wrote, as what it is now: the view of a base whose history this node is."""
        if not state.grad:
            out.node = None                                              # the call's own node counts inside of this one alone
            return out
        shape, strides, offset, dtype, base_shape, base_strides, base_offset, base_dtype = self.geometry
        base = strided(out.storage, base_shape, base_strides, base_offset, base_dtype)
        base.node, base.index = self, 0
        view = base._seen_as(shape, strides, offset, dtype)
        view._tangents = out._tangents
        return view

    def pull(self, grads, useful=None):
        shape, strides, offset, dtype, base_shape, base_strides, base_offset, base_dtype = self.geometry
        rest = grads[0].new_empty_strided(base_shape, base_strides).copy_(grads[0])
        before = base_offset if dtype is base_dtype else base_offset * base_dtype.itemsize // dtype.itemsize
        part = rest._seen_as(shape, strides, offset - before, dtype)
        arriving = [None] * self.inner.outputs
        arriving[self.index] = part.clone()
        out, own = [], None
        for edge, g in self.inner.pull(arriving, useful, self.as_view):
            for e, v in zip(edge, g) if type(edge) is list else ((edge, g),):
                if e and e[0] is SELF and v is not None:
                    own = v if own is None else own + v                  # the call may have read the view twice
                elif e and e[0] is not SELF:
                    out.append((e, v))
        if own is None:
            part.zero_()
        else:
            part.copy_(own)
        if self.edges[0] is not None:
            out.append((self.edges[0], rest))
        return out


def prepare(op, outs, args):
    """The node of a call that writes, its inputs saved before they change; None if no gradient is wanted."""
    mask, name = 0, op.__name__
    for i, a in enumerate(args):
        if isinstance(a, Tensor):
            if a.node is not None if a.base is None else a.requires_grad:
                mask |= 1 << i
        elif type(a) is tuple and any(isinstance(v, Tensor) and v.requires_grad for v in a):
            mask |= 1 << i
    wanted = mask != 0
    for out in outs:
        if not mask and out.node is None and out.base is None:
            continue
        wanted = wanted or out.requires_grad
        if (mask or out.requires_grad) and not any(out is a for a in args):
            raise RuntimeError(f"{name}: expected out= where nothing requires grad, got an argument that does; use no_grad() or no out=")
        check_history(name, out, mask)
    if not wanted:
        return None
    return make_node(op.plans[mask], args, written_edges(args, outs[0]), written=outs[0])


def check_history(name, out, wanted):
    """Raise if the history of `out` may not change: a leaf, a view of one, a view whose history was not followed."""
    own, base = out.requires_grad, out.base
    if type(out.base_node) is Unfollowed and (wanted or own or base.node is not None):
        raise RuntimeError(f"{name}: {out.base_node.why} and is being modified inplace with grad mode enabled; "
                           "use a view made in grad mode, or write under no_grad()")
    if own and type(out.node) is Leaf or base is not None and type(base.node) is Leaf:        # its base may have become one since
        kind = "leaf Variable" if type(out.node) is Leaf else "view of a leaf Variable"
        raise RuntimeError(f"{name}: a {kind} that requires grad is being used in an in-place operation; use no_grad() or an "
                           f"out-of-place operator")


def rebase(out, node):
    """Make `node` the history of a tensor that was written in place, and of its base if it is a view."""
    old = out.node, out.index
    out.node = None
    hang(node, [out])
    settle(out, node, 0, old)


def settle(out, node, index, old):
    """After a write whose history is `node`: its base's history, and the gradient that was to be kept."""
    base = out.base
    if base is not None and (out.node is not None or base.node is not None):
        base.node, base.index = CopySlices(base, out, node, index), 0
        refresh(out)
    move_kept(out, *old)
