"""PyTorch's name for the file of graphs, for programs that import from there."""
from tritorch.cuda.graph import CUDAGraph, graph, graph_pool_handle, is_current_stream_capturing

__all__ = ["CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing"]


def __getattr__(name):
    """make_graphed_callables lies above this layer and loads when it is asked for."""
    if name == "make_graphed_callables":
        import tritorch.cuda

        return tritorch.cuda.make_graphed_callables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
