"""Reverse mode: walk the graph from the newest node to the oldest, once.

A node is always younger than the nodes it leads to, so a heap ordered by age visits every node after all of its
consumers: no pass to count them is needed.
"""
import sys
from heapq import heappop, heappush

from tritorch.autograd.graph import Node
from tritorch.autograd.modes import state
from tritorch.errors import GradientError, check
from tritorch.shape import is_dense
from tritorch.tensor import Leaf, Tensor, alias, empty

_getrefcount = sys.getrefcount


class Run:
    """One backward pass. `wanted` maps (node, index) to a place in `captured` (None: accumulate into the leaves);
    then only the nodes in `runs` run, and only edges to nodes in `leads` are worth a gradient."""

    def __init__(self, keep, create, wanted=None, runs=None, leads=None):
        self.keep, self.create, self.wanted, self.runs, self.leads = keep, create, wanted, runs, leads
        self.pending, self.heap, self.late, self.fresh = {}, [], {}, set()
        self.captured = {}

    def go(self, roots):
        """Give the roots their gradients, [(edge, gradient)], and walk."""
        was, state.grad = state.grad, self.create
        try:
            pending, heap, deliver = self.pending, self.heap, self.deliver
            keep, leads, wanted, anomaly = self.keep, self.leads, self.wanted, state.anomaly
            for edge, g in roots:
                deliver(edge, g)
            while heap:
                node = heappop(heap)[1]
                grads = pending.pop(node)
                if node.pre_hooks:
                    grads = self.before(node, grads)
                if wanted is not None:
                    self.capture(node, grads)
                    if node not in self.runs:
                        continue
                pairs = node.pull(grads, leads)
                if node.hooks:
                    pairs = self.after(node, pairs, grads)
                if not keep:
                    node.release()
                for edge, g in pairs:
                    if g is None:
                        continue
                    if type(edge) is list:
                        for e, v in zip(edge, g):
                            if e is not None and v is not None:
                                deliver(e, v)
                        continue
                    if anomaly:
                        look_for_nan(node, g)
                    target = edge[0]
                    if g.dtype is edge[3] and target not in pending and g.shape == edge[2] and target.outputs == 1:
                        pending[target] = [g]                            # as deliver would, without the call
                        heappush(heap, (-target.seq, target))
                    else:
                        deliver(edge, g)
            for leaf, g in self.late.items():
                self.finish(leaf, g)
        finally:
            state.grad = was

    def deliver(self, edge, g):
        """Bring a gradient into the form of the input it belongs to, and hand it to that input's node."""
        target, index, shape, dtype = edge
        if g.shape != shape:
            g = g.sum_to_size(shape)
        if g.dtype is not dtype:
            g = g.to(dtype)
        if type(target) is Leaf:
            if self.wanted is not None or target.hooks or target.after:
                old = self.late.get(target)
                self.late[target] = g if old is None else old + g
            else:
                self.accumulate(target, g)
            return
        slots = self.pending.get(target)
        if slots is None:
            if target.outputs == 1:
                self.pending[target] = [g]
            else:
                slots = self.pending[target] = [None] * target.outputs
                slots[index] = g
            heappush(self.heap, (-target.seq, target))
        else:
            old = slots[index]
            slots[index] = g if old is None else old + g

    def accumulate(self, leaf, g):
        """Add into the leaf's `.grad`; a gradient that nobody else holds becomes it without a copy."""
        tensor = leaf.ref()
        if tensor is None:
            return
        if not g.shape and g.storage.device is not tensor.storage.device:
            g = g.to(tensor.device)
        old = tensor._grad
        if old is None:
            if self.create:
                tensor._grad = g
            elif _getrefcount(g.storage) == 2 and is_dense(g.shape, g.strides) and g.storage.nbytes == g.nbytes:
                tensor._grad = alias(g, Tensor)
                self.fresh.add(leaf)
            else:
                tensor._grad = g.detach().clone()
        elif self.create or leaf in self.fresh and _getrefcount(old.storage) != 2:
            tensor._grad = old + g                                       # others still hold this memory in the same pass
        else:
            old.add_(g)

    def finish(self, leaf, g):
        """A leaf that is looked at only when its gradient is complete: it has hooks, or was asked for."""
        for hook in list((leaf.hooks or {}).values()):
            out = hook(g)
            g = g if out is None else out
        if self.wanted is not None:
            place = self.wanted.get((leaf, 0))
            if place is not None:
                self.captured[place] = g
            return
        self.accumulate(leaf, g)
        tensor = leaf.ref()
        if tensor is not None:
            for hook in list((leaf.after or {}).values()):
                hook(tensor)

    def before(self, node, grads):
        for hook in list(node.pre_hooks.values()):
            out = hook(tuple(grads))
            if out is not None:
                grads = list(out) if isinstance(out, tuple) else [out]
        return grads

    def after(self, node, pairs, grads):
        pairs = [(e, v) for edge, g in pairs for e, v in (zip(edge, g) if type(edge) is list else ((edge, g),)) if e is not None]
        for hook in list(node.hooks.values()):
            out = hook(tuple(g for _, g in pairs), tuple(grads))
            if out is not None:
                out = out if isinstance(out, tuple) else (out,)
                check(len(out) == len(pairs), "hook", f"{len(pairs)} gradients back", len(out))
                pairs = [(e, v) for (e, _), v in zip(pairs, out)]
        return pairs

    def capture(self, node, grads):
        for k, g in enumerate(grads):
            place = self.wanted.get((node, k))
            if place is not None:
                self.captured[place] = g


def look_for_nan(node, g):
    """Anomaly mode: the first NaN gradient names the node and where it was recorded."""
    if isinstance(g, Tensor) and bool((g != g).any().item()):
        trace = "".join(node.trace or ["(recorded outside of anomaly mode)\n"])
        raise GradientError(f"{node.name}: expected gradients without NaN, got NaN; the forward call was made at\n{trace}")


def leading_nodes(roots, targets):
    """The targets and the nodes between the roots and them."""
    seen, stack, leads = {}, list(roots), set(targets)
    while stack:
        node = stack.pop()
        if node not in seen and type(node) is not Leaf:
            seen[node] = [n for n, _ in node.next_functions if n is not None]
            stack += seen[node]
    for node in sorted(seen, key=lambda n: n.seq):
        if any(n in leads for n in seen[node]):
            leads.add(node)
    return leads


def as_tuple(x):
    return (x,) if isinstance(x, Tensor) else tuple(x)


def seeds(op, tensors, gradients):
    """[(edge, gradient)] of the tensors that a pass starts from; ones for scalars that got none."""
    if gradients is None:
        gradients = (None,) * len(tensors)
    gradients = as_tuple(gradients)
    check(len(gradients) == len(tensors), op, f"{len(tensors)} gradients, one a tensor", len(gradients))
    out = []
    for t, g in zip(tensors, gradients):
        if not t.requires_grad:
            raise RuntimeError(f"{op}: element 0 of tensors does not require grad and does not have a grad_fn")
        if g is None:
            if t.numel() != 1:
                raise RuntimeError(f"{op}: grad can be implicitly created only for scalar outputs, got shape {t.shape}")
            g = empty(t.shape, t.dtype, t.device).fill_(1)
        else:
            check(tuple(g.shape) == tuple(t.shape), op, f"a gradient of the output's shape {t.shape}", g.shape)
            g = alias(g, Tensor) if g.node is None else g
        out.append(((t.node, t.index, t.shape, t.dtype), g))
    return out


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, inputs=None):
    """Accumulate the gradients of `tensors` into the `.grad` of the leaves (of `inputs` only, if given).

    >>> import tritorch as torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.autograd.backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])
    """
    tensors = as_tuple(tensors)
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is not None:
        inputs = as_tuple(inputs)
        check(len(inputs) > 0, "backward", "at least one tensor in inputs", "none")
        for t, g in zip(inputs, gradients_of("backward", tensors, inputs, grad_tensors, keep, create_graph)):
            if g is not None:
                t.grad = g.detach().clone() if t.grad is None and not create_graph else g if t.grad is None else t.grad + g
        return
    Run(keep, create_graph).go(seeds("backward", tensors, grad_tensors))


def gradients_of(op, outputs, inputs, grad_outputs, keep, create):
    """The gradients of the inputs, None where there is no way to one."""
    wanted, places = {}, []
    for t in inputs:
        if not t.requires_grad:
            raise RuntimeError(f"{op}: One of the differentiated Tensors does not require grad")
        places.append(wanted.setdefault((t.node, t.index), len(wanted)))
    roots = seeds(op, outputs, grad_outputs)
    leads = leading_nodes([e[0] for e, _ in roots], [t.node for t in inputs])
    runs = {n for n in leads if any(m in leads for m, _ in n.next_functions)}
    run = Run(keep, create, wanted, runs, leads)
    run.go(roots)
    return [run.captured.get(p) for p in places]


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, allow_unused=None,
         is_grads_batched=False, materialize_grads=False):
    """The gradients of the sum of `outputs` (weighted by `grad_outputs`) with respect to `inputs`, as a tuple.

    >>> import tritorch as torch
    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> (g,) = torch.autograd.grad(x ** 3, x, create_graph=True)
    >>> torch.autograd.grad(g, x)
    (tensor(18.),)
    """
    outputs, inputs = as_tuple(outputs), as_tuple(inputs)
    keep = create_graph if retain_graph is None else retain_graph
    if is_grads_batched:
        rows = [grad(outputs, inputs, [g[k] for g in as_tuple(grad_outputs)], True, create_graph, True, allow_unused, False, materialize_grads)
                for k in range(len(as_tuple(grad_outputs)[0]))]
        return tuple(None if column[0] is None else _stack(column) for column in zip(*rows))
    allow_unused = materialize_grads if allow_unused is None else allow_unused
    found = gradients_of("grad", outputs, inputs, grad_outputs, keep, create_graph)
    for k, (t, g) in enumerate(zip(inputs, found)):
        if g is None:
            if not allow_unused:
                raise RuntimeError("grad: One of the differentiated Tensors appears to not have been used in the graph; "
                                   "use allow_unused=True if this is the desired behavior")
            if materialize_grads:
                found[k] = empty(t.shape, t.dtype, t.device).zero_()
    return tuple(found)


def _stack(gradients):
    out = empty((len(gradients), *gradients[0].shape), gradients[0].dtype, gradients[0].device)
    for k, g in enumerate(gradients):
        out[k] = g
    return out


# ------------------------------------------------------------------ hooks on tensors
def register_hook(self, hook):
    """Call `hook(grad)` when this tensor's gradient is complete; what it returns replaces the gradient."""
    from tritorch.autograd.graph import Handle

    check(self.requires_grad, "register_hook", "a tensor that requires grad", "one that does not")
    node = self.node
    if type(node) is Leaf:
        node.hooks = node.hooks or {}
        return Handle(node.hooks, hook)
    index = self.index

    def on_node(grads):
        out = None if grads[index] is None else hook(grads[index])
        return None if out is None else (*grads[:index], out, *grads[index + 1:])

    return node.register_prehook(on_node)


def register_post_accumulate_grad_hook(self, hook):
    """Call `hook(tensor)` after this leaf's `.grad` got the gradient of a backward pass."""
    from tritorch.autograd.graph import Handle

    check(type(self.node) is Leaf, "register_post_accumulate_grad_hook", "a leaf that requires grad", "another tensor")
    self.node.after = self.node.after or {}
    return Handle(self.node.after, hook)


def retain_grad(self):
    """Let backward keep the gradient of this non-leaf tensor in its `.grad`."""
    import weakref

    check(self.requires_grad, "retain_grad", "a tensor that requires grad", "one that does not")
    if type(self.node) is Leaf or self.__dict__.get("retains_grad"):
        return
    self.retains_grad, ref = True, weakref.ref(self)

    def keep(g):
        tensor = ref()
        if tensor is not None:
            tensor._grad = (g if state.grad else g.detach().clone()) if tensor._grad is None else tensor._grad + g

    register_hook(self, keep)


__all__ = ["Node", "backward", "grad", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"]
