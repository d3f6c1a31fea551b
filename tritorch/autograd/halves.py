"""A backward pass in two halves: the gradients of some inputs at once, those of all other leaves when there is time for them."""
from tritorch.autograd.engine import Run, as_tuple, gradients_of, seeds
from tritorch.autograd.graph import GradientEdge, flat_edges
from tritorch.autograd.ways import leading_nodes, reachable
from tritorch.errors import check


class Rest(Run):
    """The second half: from the gradients of the nodes at the `border`, [(node, gradients)], to what lies `beside` the first half's way."""

    __slots__ = ("border", "beside")

    def walk(self):
        for node, grads in self.border:
            self.node = node
            for edge, g in node.pull(grads, self.beside):
                several = type(edge) is list
                for e, v in zip(edge, g) if several else ((edge, g),):
                    if e and v is not None and e[0] in self.beside:
                        self.deliver(e, v, False)
        super().walk()


def inputs_first(outputs, inputs, grad_outputs=None):
    """(gradients of the inputs, None where there is no way to one; a function that accumulates those of all other leaves).

    Together the two do what `backward` does, each rule once, but for those that give gradients on both ways at the same time (of
    a layer norm, say). The graph is kept until the second half has run, which begins where the ways part; hooks of nodes and tensors on
    the way to the inputs are called in the first half alone. After Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241.

    >>> import tritorch as torch
    >>> from tritorch.autograd.halves import inputs_first
    >>> x, w = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    >>> (g,), later = inputs_first(x * w, [x], torch.tensor([1.0]))
    >>> g, w.grad
    (tensor([3.]), None)
    >>> later()
    >>> x.grad, w.grad
    (None, tensor([2.]))
    """
    outputs, inputs = as_tuple(outputs), as_tuple(inputs)
    check(len(inputs) > 0, "inputs_first", "at least one input", "none")
    roots = [edge[0] for edge, _ in seeds("inputs_first", outputs, grad_outputs)]
    leads, runs = leading_nodes(roots, [x.node for x in inputs])
    beside = reachable(roots) - leads
    parting = [node for node in runs if any(e and e[0] in beside for e in flat_edges(node.edges))]
    parting.sort(key=lambda node: -node.seq)
    edges = [GradientEdge(node, k) for node in parting for k in range(node.outputs)]
    found = gradients_of("inputs_first", outputs, [*inputs, *edges], grad_outputs, keep=True, create=False)
    gradients, arrived = found[:len(inputs)], iter(found[len(inputs):])
    rest = Rest(False, False)
    border = [(node, [next(arrived) for _ in range(node.outputs)]) for node in parting]
    rest.border, rest.beside = [pair for pair in border if any(g is not None for g in pair[1])], beside
    straight = [(edge, g) for edge, g in seeds("inputs_first", outputs, grad_outputs) if edge[0] in beside]

    def later():
        rest.go(straight)
        for node in runs:
            node.release()
        rest.border = ()

    return gradients, later


__all__ = ["inputs_first"]
