"""Reverse mode: walk the graph from the newest node to the oldest, once.

A node is always younger than the nodes it leads to, so a heap ordered by age visits every node after all of its
consumers: no pass to count them is needed.
"""
import sys
from heapq import heappop, heappush

from tritorch.autograd import observed
from tritorch.autograd.crossing import Crossing
from tritorch.autograd.for_each import for_each
from tritorch.autograd.graph import GradientEdge, Node
from tritorch.autograd.hooks import after, keep_gradient, register_hook, register_post_accumulate_grad_hook, retain_grad, retains_grad
from tritorch.autograd.modes import state
from tritorch.autograd.parts import Part, accumulating, one_for, readable, sparse_sum, whole
from tritorch.autograd.ways import leading_nodes, reachable, ways_to_hooks
from tritorch.cuda.stream import chosen
from tritorch.errors import check, sentence
from tritorch.layout import others, strided
from tritorch.shape import is_dense, same_strides
from tritorch.storage import Spread
from tritorch.tensor import Leaf, Tensor, alias, empty, swaps

_getrefcount = sys.getrefcount


def _alone():
    """What getrefcount says of a gradient that only a list of (edge, gradient) and the loop over it know, and of one in a variable."""
    for _, g in [(None, object())]:
        in_list = _getrefcount(g)
    g = object()
    return in_list, _getrefcount(g)


_IN_LIST, _IN_VARIABLE = _alone()


class Run:
    """One backward pass. `wanted` maps (node, index) to a place in `captured` (None: all leaves accumulate); then only
    the nodes in `runs` run, and only edges to nodes in `leads` are worth a gradient; `leaves` still accumulate."""

    __slots__ = ("keep", "create", "wanted", "runs", "leads", "leaves", "pending", "heap", "captured", "node", "late", "uses", "partial",
                 "crossing", "roots", "outer", "callbacks", "__weakref__")

    def __init__(self, keep, create, wanted=None, runs=None, leads=None, leaves=()):
        self.keep, self.create, self.wanted, self.runs, self.leads, self.leaves = keep, create, wanted, runs, leads, leaves
        self.pending, self.heap, self.captured, self.node = {}, [], {}, None        # node: whose rules run, where `arrived` may answer
        self.late, self.uses = {}, None                               # hooked leaves: their sums so far; what is still to lead to them
        self.partial = False                                             # whether a gradient arrived in parts
        self.crossing = None                                             # what keeps streams in order, once a second one is met
        self.outer, self.callbacks = None, []                            # the pass that this one runs in; what is called at the end

    def go(self, roots):
        """Give the roots their gradients, [(edge, gradient)], and walk."""
        was, self.outer = state.grad, state.run
        state.grad, state.run, self.roots = self.create, self, [edge[0] for edge, _ in roots]
        if chosen() is not None:
            self.crossing = Crossing()
        try:
            for edge, g in roots:
                self.deliver(edge, g, False)
            del roots
            self.walk()
            if self.late:
                for leaf in [leaf for leaf, g in self.late.items() if g is not None]:
                    self.finish(leaf)
        finally:
            state.grad, state.run = was, self.outer
            if self.crossing is not None:
                self.crossing.close(self.captured.values())
        while self.callbacks:
            state.run = self                                             # a callback may queue another one
            try:
                self.callbacks.pop(0)()
            finally:
                state.run = self.outer

    def walk(self):
        """Run the nodes, latest first. One long loop: a call for each node would cost a tenth of what the node does."""
        pending, heap, deliver, late = self.pending, self.heap, self.deliver, self.late
        keep, leads, wanted, crossing = self.keep, self.leads, self.wanted, self.crossing
        pull = observed.pull if observed.by_anyone() else None
        while heap:
            node = heappop(heap)[1]
            grads = pending.pop(node)
            if self.partial:
                grads = [whole(g) for g in grads]
            if others:
                grads = readable(node, grads)
            if crossing is not None or node.streams is not None:
                crossing = self.crossing = crossing or Crossing()
                crossing.enter(node, grads)
            hooks = node.hooks
            if hooks is not None:
                grads = hooks.on_gradients(grads)
            if wanted is not None:
                self.capture(node, grads)
                if node not in self.runs:
                    continue
            if hooks is not None and hooks.before:
                grads = hooks.on_node(grads)
            self.node = node
            pairs = node.pull(grads, leads) if pull is None else pull(node, grads, leads)
            if hooks is not None and hooks.after:
                pairs = after(hooks, node, pairs, grads)
            if not keep and node.saved:
                node.release()
            grads = None                                            # a gradient that passed through unchanged may have no other owner now
            for edge, g in pairs:
                if g is None:
                    continue
                if type(edge) is list:
                    for e, v in zip(edge, g):
                        if e and v is not None:
                            deliver(e, v, False)
                    continue
                target = edge[0]
                if g.dtype is edge[3] and g.shape == edge[2] and target.outputs == 1 and target not in pending and crossing is None:
                    pending[target] = [g]                                # as deliver would, without the call
                    heappush(heap, (-target.seq, target))
                else:
                    sole = type(target) is Leaf and _getrefcount(g) <= _IN_LIST      # asked before g is an argument too
                    deliver(edge, g, sole)
            if late:
                pairs = g = None
                self.count_down(node)

    def deliver(self, edge, g, sole):
        """Bring a gradient into the form of the input it belongs to and hand it to that input's node. `sole`: no one else has it."""
        target, index, shape, dtype = edge
        crossing = self.crossing
        if type(g) is Part and (type(target) is Leaf or crossing is not None):
            if len(g.pieces) == 1 and self.direct(target) and self.adds(target, g):
                self.accumulate_piece(target, *g.pieces[0])
                return
            g, sole = g.whole(), True
        if g.shape != shape:
            wider = dtype.itemsize > g.dtype.itemsize and dtype.is_complex is g.dtype.is_complex
            g, sole = g.sum_to_size(shape, dtype=dtype if wider else None), True
        direct = type(target) is Leaf and self.direct(target)
        if g.dtype is not dtype:
            if g.dtype.is_complex and not dtype.is_complex:              # of what a real tensor gave, the imaginary part is no matter
                g, sole = g.real, False
            if not (self.adds(target, g) if direct else self.reads(target, index, g.dtype)):
                g, sole = g.to(dtype), True
        if direct:
            self.accumulate(target, g, sole)
            return
        if type(target) is Leaf:
            if self.wanted is not None and target not in self.leads:
                return
            slots, index = self.late, target
            old = slots.get(target)
        else:
            slots = self.pending.get(target)
            if slots is None:
                slots = self.pending[target] = [None] * target.outputs
                heappush(self.heap, (-target.seq, target))
            old = slots[index]
        if crossing is not None:
            crossing.leave(target, g, old)
        slots[index] = g if old is None else g + old if type(g) is Part or others and old.layout is not strided else old + g

    def direct(self, leaf):
        """Whether what arrives at the leaf is added to `.grad` at once."""
        return self.wanted is None and leaf.hooks is None and self.crossing is None

    def adds(self, leaf, g):
        """Whether the leaf has a gradient that g can be added to as it is: one of its own dtype or of a wider one."""
        tensor = leaf.ref()
        if tensor is None or tensor._grad is None or self.create:
            return False
        return g.dtype is tensor.dtype or g.dtype.itemsize < tensor.dtype.itemsize

    def accumulate_piece(self, leaf, g, dim, start):
        """Add what is the gradient of a slice into that slice of the leaf's `.grad`, and leave the rest alone."""
        tensor = leaf.ref()
        if tensor.node is not None:
            with accumulating:
                tensor._grad.narrow(dim, start, g.shape[dim]).add_(g)

    def reads(self, node, index, dtype):
        """Whether the node's rule reads a gradient of any dtype, and no one else looks at it: none of another has come, nobody asked."""
        plan, slots = getattr(node, "plan", None), self.pending.get(node)
        if plan is None or not getattr(plan.op, "reads_any_gradient", False):
            return False
        if slots is not None and slots[index] is not None and slots[index].dtype is not dtype:
            return False
        return not self.create and node.hooks is None and not self.asked(node, index)

    def asked(self, node, index):
        """Whether somebody wants to see the gradient of this output."""
        return self.wanted is not None and (node, index) in self.wanted

    def accumulate(self, leaf, g, sole):
        """Add into the leaf's `.grad`; a gradient that nobody else holds becomes it without a copy."""
        tensor = leaf.ref()
        if tensor is None or tensor.node is None:
            return
        if not g.shape and g.storage.device is not tensor.storage.device:
            g = g.to(tensor.device)
        with accumulating:
            old = tensor._grad
            if others and not all(x is None or x.layout is strided for x in (g, old, tensor)):
                tensor._grad, swaps[1] = sparse_sum(old, g, sole, self.create), swaps[1] + 1
                return
            if old is not None and not self.create:
                old.add_(g)
                return
            swaps[1] += 1
            if old is not None:
                tensor._grad = old + g
            elif type(g.storage) is Spread or type(tensor.storage) is Spread:
                tensor._grad = Spread.gradient(g, tensor)
            elif sole and not self.create and same_strides(g.shape, g.strides, tensor.strides) and owns_memory(g):
                tensor._grad = alias(g, Tensor)
            elif is_dense(tensor.shape, tensor.strides):                 # the layout of the leaf, as in PyTorch
                tensor._grad = empty(g.shape, g.dtype, g.storage.device, tensor.strides).copy_(g)
            else:
                tensor._grad = g.clone()

    def finish(self, leaf):
        """A leaf that is looked at only when its gradient is complete: it has hooks, was asked for, or streams meet in it."""
        g, hooks, self.late[leaf] = self.late[leaf], leaf.hooks, None
        if self.crossing is not None:
            self.crossing.enter_leaf(leaf, g)
        if hooks is not None:
            g = hooks.on_gradients([g])[0]
        place = None if self.wanted is None else self.wanted.get((leaf, 0))
        if place is not None:
            self.captured[place] = g
        if self.wanted is not None and leaf not in self.leaves:
            return
        if hooks is not None and hooks.before:
            g = hooks.on_node([g])[0]
        sole = _getrefcount(g) <= _IN_VARIABLE
        self.accumulate(leaf, g, sole)
        if hooks is None:
            return
        tensor = leaf.ref()
        for hook in list(hooks.accumulated.values()):
            if tensor is not None:
                hook(tensor)
        hooks.on_inputs([], [g])

    def count_down(self, node):
        """Finish the hooked leaves that no node still to come leads to, so that their gradients need not wait for the end."""
        if self.wanted is not None or self.crossing is not None:
            return
        if self.uses is None:
            self.uses = ways_to_hooks([node, *[n for _, n in self.heap]])
        uses, at = self.uses
        for target in at.get(node, ()):
            uses[target] -= 1
            if not uses[target] and self.late.get(target) is not None:
                self.finish(target)

    def capture(self, node, grads):
        for k, g in enumerate(grads):
            place = self.wanted.get((node, k))
            if place is not None:
                self.captured[place] = g

    def reached(self):
        """The nodes and leaves that this pass comes to."""
        found = reachable(self.roots)
        return found if self.leads is None else found & self.leads


def queue_callback(callback):
    """Call `callback()` when the backward pass that runs now, the outermost of this thread, is over and has gone well: all gradients
    are in their places then, and other streams have been waited for."""
    run = state.run
    check(run is not None, "queue_callback", "a backward pass that runs", "none")
    while run.outer is not None:
        run = run.outer
    run.callbacks.append(callback)


def owns_memory(g):
    """Whether no other tensor shares the memory of g, but for a base that only g knows, and g is all there is in it."""
    base = g.base
    alone = 2 if base is None or _getrefcount(base) > _IN_VARIABLE + 1 else 3        # references to the storage, with this question's own
    return _getrefcount(g.storage) == alone and g.storage.nbytes == g.nbytes


def as_tuple(x):
    return (x,) if isinstance(x, (Tensor, GradientEdge)) else tuple(x)


def seeds(op, outputs, gradients):
    """[(edge, gradient)] of the tensors that a pass starts from; ones for scalars that got none."""
    gradients = (None,) * len(outputs) if gradients is None else as_tuple(gradients)
    check(len(gradients) == len(outputs), op, f"{len(outputs)} gradients, one a tensor", len(gradients))
    return [_seed(op, k, t, g) for k, (t, g) in enumerate(zip(outputs, gradients))]


def _seed(op, k, t, g):
    if isinstance(t, GradientEdge):
        check(isinstance(g, Tensor), op, "a gradient for every GradientEdge", type(g).__name__)
        return (t.node, t.output_nr, g.shape, g.dtype), alias(g, Tensor)
    check(isinstance(t, Tensor), op, "tensors", type(t).__name__, error=TypeError)
    if not t.requires_grad:
        raise RuntimeError(f"{op}: expected tensors that require grad, got element {k}, which does not require grad")
    if g is None:
        if t.numel() != 1 or t.dtype.is_complex:
            raise RuntimeError(f"{op}: expected a gradient for an output that is no scalar, got shape {tuple(t.shape)} of {t.dtype} "
                               f"without one; use backward(gradient), or a sum that is real")
        g = one_for(alias(t, Tensor))
    else:
        check(isinstance(g, Tensor), op, "gradients that are tensors or None", type(g).__name__, error=TypeError)
        if g.shape != t.shape:
            raise RuntimeError(sentence(op, f"a gradient of the output's shape {tuple(t.shape)}", tuple(g.shape)))
        if g.storage.device is not t.storage.device:
            check(not g.shape, op, f"a gradient on the output's device, {t.device}", g.device)
            g = g.to(t.device)
        if g.dtype is not t.dtype and (g.dtype.is_complex or t.dtype.is_complex):
            raise RuntimeError(sentence(op, f"a gradient of the complex output's dtype, {t.dtype}", g.dtype))
        if g.node is None and g._tangents is None:
            g = alias(g, Tensor) if g.layout is strided else g.detach()  # whoever gave it keeps the object, this pass the memory
    return (t.node, t.index, t.shape, t.dtype), g


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None, inputs=None):
    """Accumulate the gradients of `tensors` into the `.grad` of the leaves (of `inputs` only, if given).

    >>> import tritorch as torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.autograd.backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])
    """
    tensors = as_tuple(tensors)
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        return Run(keep, create_graph).go(seeds("backward", tensors, grad_tensors))
    inputs = as_tuple(inputs)
    check(len(inputs) > 0, "backward", "at least one tensor in inputs", "none", use="inputs=None for all leaves")
    leaves = {t.node for t in inputs if isinstance(t, Tensor) and type(t.node) is Leaf}
    found = gradients_of("backward", tensors, inputs, grad_tensors, keep, create_graph, leaves)
    for k, (t, g) in enumerate(zip(inputs, found)):
        if g is not None and t.node not in leaves and not any(t is other for other in inputs[:k]):
            keep_gradient(t, g)


def gradients_of(op, outputs, inputs, grad_outputs, keep, create, leaves=()):
    """The gradients of the inputs, None where there is no way to one."""
    wanted, places, edges = {}, [], []
    for t in inputs:
        if isinstance(t, Tensor) and not t.requires_grad:
            raise RuntimeError(f"{op}: One of the differentiated Tensors does not require grad")
        check(isinstance(t, (Tensor, GradientEdge)), op, "tensors as inputs", type(t).__name__, error=TypeError)
        edges.append((t.node, t.output_nr) if isinstance(t, GradientEdge) else (t.node, t.index))
        places.append(wanted.setdefault(edges[-1], len(wanted)))
    roots = seeds(op, outputs, grad_outputs)
    leads, runs = leading_nodes([e[0] for e, _ in roots], [node for node, _ in edges])
    run = Run(keep, create, wanted, runs, leads, leaves)
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
    check(inputs, "grad", "one or more inputs", "none")
    keep = create_graph if retain_graph is None else retain_graph
    check(not (materialize_grads and allow_unused is False), "grad", "allow_unused=True or not given with materialize_grads=True", "False",
          error=ValueError)
    if is_grads_batched:
        return for_each(lambda rows: grad(outputs, inputs, rows, True, create_graph, True, allow_unused, False, materialize_grads),
                        as_tuple(grad_outputs))
    found = gradients_of("grad", outputs, inputs, grad_outputs, keep, create_graph)
    for k, (t, g) in enumerate(zip(inputs, found)):
        if g is not None:
            found[k] = g if create_graph or g.node is None else g.detach()
        elif materialize_grads:
            found[k] = empty(t.shape, t.dtype, t.device).zero_()
        elif not allow_unused:
            raise RuntimeError("grad: One of the differentiated Tensors appears to not have been used in the graph; "
                               "use allow_unused=True if this is the desired behavior")
    return tuple(found)


__all__ = ["Node", "backward", "grad", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "retains_grad"]
