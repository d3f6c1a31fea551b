"""Shapes and dtypes of all values of a graph."""
from typing import Any, NamedTuple

from tritorch.dtype import dtype
from tritorch.errors import sentence
from tritorch.fx.interpreter import Interpreter
from tritorch.fx.node import map_aggregate
from tritorch.memory_format import channels_last, channels_last_3d, contiguous_format, memory_format
from tritorch.shape import Size
from tritorch.tensor import Tensor

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """What is known of a tensor without its elements."""

    shape: Size
    dtype: dtype
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: memory_format | None
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result, include_contiguity=True):
    formats = [contiguous_format] + ([channels_last] if result.ndim == 4 else [channels_last_3d] if result.ndim == 5 else [])
    strided = not (result.is_sparse or str(result.layout).rpartition(".")[2] != "strided")
    form = next((f for f in formats if result.is_contiguous(memory_format=f)), None) if include_contiguity and strided else None
    return TensorMetadata(result.shape, result.dtype, result.requires_grad, result.stride() if strided else (), form, False, {})


class ShapeProp(Interpreter):
    """Runs the graph of a module, and leaves in each node's `meta` the class of its value, "type", and the `TensorMetadata` of the
    tensors in it, "tensor_meta". With tensors and parameters on the device meta nothing is computed.

    Errors: RuntimeError that names the node whose call fails.

    >>> import tritorch as torch
    >>> traced = torch.fx.symbolic_trace(lambda x: torch.nn.functional.pad(x, (1, 1)).sum(0))
    >>> _ = ShapeProp(traced).propagate(torch.empty(2, 3, device="meta"))
    >>> [tuple(node.meta["tensor_meta"].shape) for node in traced.graph.nodes]
    [(2, 3), (2, 5), (5,), (5,)]
    """

    def __init__(self, gm, fake_mode=None):
        super().__init__(gm)
        if fake_mode is not None:
            raise NotImplementedError(sentence("ShapeProp", "no fake_mode", type(fake_mode).__name__, use="tensors on the device meta"))

    def run_node(self, n):
        try:
            result = super().run_node(n)
        except Exception as error:
            raise RuntimeError(f"ShapeProp, at {n.format_node()}: {error}") from error
        found = []

        def facts(x):
            if not isinstance(x, Tensor):
                return x
            found.append(x)
            return _extract_tensor_metadata(x)

        meta = map_aggregate(result, facts)
        if found:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args):
        """Run it with these arguments; what it returns."""
        return self.run(*args)
