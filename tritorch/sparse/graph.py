"""Where sparse tensors stand in the gradient graph: nodes whose rules are functions of the gradient and of what was kept."""
from tritorch.autograd import graph, places
from tritorch.autograd.crossing import note
from tritorch.autograd.graph import Node, cuda_streams
from tritorch.autograd.modes import state
from tritorch.autograd.snapshot import pack, restore
from tritorch.errors import GradientError, check
from tritorch.layout import strided
from tritorch.storage import Batched
from tritorch.tensor import Tensor


class SparseNode(Node):
    """A call with a sparse operand or result. `rules` has one function an input: rule(g, *kept)."""

    __slots__ = ("label", "rules", "saved", "frame")

    def name(self):
        return self.label + "Backward0"

    def saved_as(self, k):
        """What the k-th saved value is called, and by which function."""
        return f"saved tensor {k}", self.label

    def pull(self, grads, useful=None, as_output=None):
        if self.saved is None:
            raise GradientError(f"{self.label}: expected a graph whose saved tensors are still there, but backward has freed them; "
                                "use retain_graph=True to go through the graph a second time")
        kept, g = [restore(self, v, k) for k, v in enumerate(self.saved)], grads[0]
        return [(edge, rule(g, *kept)) for edge, rule in zip(self.edges, self.rules) if edge and (useful is None or edge[0] in useful)]

    def release(self):
        if self.saved:
            self.saved = None


def recorded(label, out, inputs, *kept):
    """Hang `out`, computed without history, on a node. `inputs` are pairs (tensor, rule): rule(g, *kept) is the gradient of the tensor,
    in public operators, so that it can be differentiated, too."""
    lost = state.interpreter is not None and out._tangents is None and any(isinstance(x, Tensor) and x._tangents for x, _ in inputs)
    check(not lost, label, "tensors without tangents: sparse ones have no forward mode", "a dual tensor", error=NotImplementedError)
    if not state.grad or not out.dtype.has_gradients:
        return out
    wanted = [isinstance(x, Tensor) and x.requires_grad for x, _ in inputs]
    if any(wanted):
        if out.layout is strided and type(out.storage) is Batched:       # no graph around vmap would see this node
            raise out.storage.level.no_values()
        node = SparseNode()
        node.label, node.rules, node.outputs, node.seq = label, [rule for _, rule in inputs], 1, graph.next_seq()
        node.hooks = node.streams = node.trace = node.shapes = None
        node.edges = [(x.node, x.index, x.shape, x.dtype) if want else None if isinstance(x, Tensor) else False
                      for (x, _), want in zip(inputs, wanted)]
        node.saved, node.frame = [pack(x) for x in kept], places.user_place(3)
        if state.anomaly is not None:
            node.trace = places.user_trace()
        if cuda_streams.used:
            note(node)
        out.node, out.index = node, 0
    return out


def straight(label, x, out, rule=lambda g: g):
    """Hang `out` on a node of one input whose gradient is made of that of the output alone."""
    return recorded(label, out, [(x, rule)])


def plain(x):
    """A dense tensor over the same memory without history; anything else as it is."""
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x
