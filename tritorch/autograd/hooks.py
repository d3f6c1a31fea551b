"""Hooks: functions of the user that see gradients, and may replace them, on tensors and on nodes of the graph."""
import weakref
from itertools import count

from tritorch.autograd.modes import state
from tritorch.autograd.parts import whole
from tritorch.errors import check
from tritorch.storage import Batched
from tritorch.tensor import Leaf, Tensor, swaps


class Handle:
    """What a registered hook gives back: `remove()` takes the hook away; as a context manager it does so at the end."""

    __slots__ = ("hooks", "id")
    _ids = count().__next__

    def __init__(self, hooks, fn):
        self.hooks, self.id = hooks, Handle._ids()
        hooks[self.id] = fn
        swaps[0] += 1

    def remove(self):
        self.hooks.pop(self.id, None)
        swaps[0] += 1

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.remove()


class Hooks:
    """The hooks of one node: `tensor` on the gradients of its outputs, `kept` for `retain_grad`, `before` and `after` around
    the node, `accumulated` after a leaf got its gradient."""

    __slots__ = ("tensor", "kept", "before", "after", "accumulated")

    def __init__(self):
        self.tensor, self.kept, self.before, self.after, self.accumulated = {}, {}, {}, {}, {}

    def on_gradients(self, grads):
        """The tensors' own hooks in the order of their registration, then what `retain_grad` asked for."""
        grads = list(grads)
        for index, hook in list(self.tensor.values()):
            if grads[index] is not None:
                grads[index] = replaced(hook, grads[index])
        for index, ref in list(self.kept.items()):
            tensor = ref()
            if tensor is not None and grads[index] is not None:
                keep_gradient(tensor, grads[index])
        return grads

    def on_node(self, grads):
        """Hooks before the node: each may give other gradients of the outputs."""
        for hook in list(self.before.values()):
            out = hook(tuple(grads))
            if out is not None:
                out = out if isinstance(out, tuple) else (out,)
                check(len(out) == len(grads), "prehook", f"{len(grads)} gradients back", len(out))
                grads = list(out)
        return grads

    def on_inputs(self, results, grads):
        """Hooks after the node: each may give other gradients of the inputs."""
        for hook in list(self.after.values()):
            out = hook(tuple(results), tuple(grads))
            if out is not None:
                out = out if isinstance(out, tuple) else (out,)
                check(len(out) == len(results), "hook", f"{len(results)} gradients back", len(out))
                results = list(out)
        return results


def after(hooks, node, pairs, grads):
    """The gradients of the inputs after the hooks on the node, which see one an input."""
    made = {}
    for edge, g in pairs:
        for e, v in zip(edge, g) if type(edge) is list else ((edge, g),):
            made[id(e)] = whole(v)
    edges = [e for edge in node.edges for e in (edge if type(edge) is list else (edge,)) if e is not False]
    results = hooks.on_inputs([made.get(id(e)) if e else None for e in edges], grads)
    return [(e, v) for e, v in zip(edges, results) if e]


def replaced(hook, g):
    """The gradient after a hook: what it returns, of the same shape and dtype, or g."""
    out = hook(g)
    if out is None:
        return g
    check(isinstance(out, Tensor), "hook", "a Tensor or None back", type(out).__name__, error=TypeError)
    check(out.shape == g.shape, "hook", f"a gradient of shape {g.shape} back", out.shape)
    check(out.dtype is g.dtype, "hook", f"a gradient of {g.dtype} back", out.dtype)
    return out


def keep_gradient(tensor, g):
    """Add into the `.grad` of a tensor that is not a leaf: memory of its own, or history where the graph goes on."""
    swaps[1] += 1
    if tensor._grad is None:
        tensor._grad = g.clone() if state.grad else g.detach().clone()
    else:
        tensor._grad = tensor._grad + g


def hooks_of(node):
    """The hooks of a node, made with the first."""
    if node.hooks is None:
        node.hooks = Hooks()
    return node.hooks


def register_hook(self, hook):
    """Call `hook(grad)` when this tensor's gradient is complete; what it returns replaces the gradient.

    >>> import tritorch as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> handle = x.register_hook(lambda g: g * 10)
    >>> x.sum().backward(); x.grad
    tensor([10., 10.])
    """
    check(self.requires_grad, "register_hook",
          "a tensor that requires grad", "one that does not")
    handle = Handle(hooks_of(self.node).tensor, (self.index, hook))
    if type(self.storage) is Batched:                                    # inside of vmap, with perhaps a graph around
        Batched.hooked(self, hook, lambda: handle.id in handle.hooks)
    return handle


def register_post_accumulate_grad_hook(self, hook):
    """Call `hook(tensor)` after this leaf's `.grad` got the gradient of a backward pass."""
    check(self.requires_grad, "register_post_accumulate_grad_hook", "a leaf that requires grad", "a tensor that does not require grad")
    check(type(self.node) is Leaf, "register_post_accumulate_grad_hook", "a leaf that requires grad", "the result of an operator",
          use="register_hook()")
    return Handle(hooks_of(self.node).accumulated, hook)


def retain_grad(self):
    """Let backward keep the gradient of this non-leaf tensor in its `.grad`.

    >>> import tritorch as torch
    >>> x = torch.ones(2, requires_grad=True); y = x * 3; y.retain_grad()
    >>> (y * y).sum().backward(); y.grad
    tensor([6., 6.])
    """
    check(self.requires_grad, "retain_grad", "a tensor that requires grad (can't retain_grad on Tensor that has requires_grad=False)",
          "one that does not")
    if type(self.node) is not Leaf:
        hooks_of(self.node).kept[self.index] = weakref.ref(self)


def retains_grad(self):
    """Whether `retain_grad` was called on this tensor."""
    kept = None if self.grad_fn is None or self.node.hooks is None else self.node.hooks.kept.get(self.index)
    return kept is not None and kept() is self


def move_kept(tensor, node, index):
    """A tensor written in place keeps the gradient of its new value: its `retain_grad` moves on from (node, index)."""
    if type(node) is Leaf or node is None or node.hooks is None:
        return
    kept = node.hooks.kept.get(index)
    if kept is not None and kept() is tensor and tensor.node is not None:
        del node.hooks.kept[index]
        hooks_of(tensor.node).kept[tensor.index] = kept


def register_multi_grad_hook(tensors, fn, *, mode="all"):
    """Call `fn` when the gradients of all these tensors are there (with one a tensor, None where there is none), or with the first of
    them (`mode="any"`), once a pass.

    >>> import tritorch as torch
    >>> x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    >>> handle = torch.autograd.graph.register_multi_grad_hook((x, y), lambda gs: print([g.item() for g in gs]))
    >>> (2 * x + 3 * y).backward()
    [2.0, 3.0]
    """
    check(mode in ("all", "any"), "register_multi_grad_hook", "mode 'all' or 'any'", mode, error=ValueError)
    tensors = tuple(tensors)
    seen = weakref.WeakKeyDictionary()                                   # pass -> (gradients that have come, how many will)
    nodes: list = []                                                     # weakly, for they own the hooks

    def of(k):
        def hook(g):
            run = state.run
            first = run not in seen
            if first:
                reached = run.reached() if mode == "all" else ()
                seen[run] = [None] * len(nodes), sum(node() in reached for node in nodes)
            got, number = seen[run]
            got[k] = g
            if mode == "any" and first:
                fn(g)
            elif mode == "all" and sum(v is not None for v in got) == number:
                fn(list(got))

        return hook

    handles = [register_hook(t, of(k)) for k, t in enumerate(tensors)]
    nodes += [weakref.ref(t.node) for t in tensors]
    return _Handles(handles)


class _Handles(Handle):
    __slots__ = ("handles",)

    def __init__(self, handles):
        self.handles = handles

    def remove(self):
        for h in self.handles:
            h.remove()
