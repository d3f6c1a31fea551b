"""What the tensors of a graph are like, found by running it."""
from typing import NamedTuple

from tritorch.fx.interpreter import Interpreter
from tritorch.fx.node import map_aggregate
from tritorch.tensor import Tensor


class TensorMetadata(NamedTuple):
    """What a tensor is like without its values."""

    shape: object
    dtype: object
    requires_grad: bool
    stride: tuple
    memory_format: object = None
    is_quantized: bool = False
    qparams: dict = {}


class ShapeProp(Interpreter):
    """Runs a GraphModule and leaves in every node's `meta` what its tensors are like ("tensor_meta"), and its type ("type").

    >>> import tritorch as torch
    >>> from tritorch.fx.passes.shape_prop import ShapeProp
    >>> traced = torch.fx.symbolic_trace(lambda x: x.sum(0))
    >>> _ = ShapeProp(traced).propagate(torch.ones(2, 3))
    >>> [tuple(node.meta["tensor_meta"].shape) for node in traced.graph.nodes]
    [(2, 3), (3,), (3,)]
    """

    def run_node(self, n):
        """The result of a node."""
        found = []

        def facts(value):
            if isinstance(value, Tensor):
                found.append(value)
                return TensorMetadata(value.shape, value.dtype, value.requires_grad, value.stride())
            return value

        result = super().run_node(n)
        described = map_aggregate(result, facts)
        if found:
            n.meta["tensor_meta"] = described
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args):
        """Run it."""
        return self.run(*args)
