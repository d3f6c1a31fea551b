"""The base of classes that say how the parameters of a module are spread over processes."""
from tritorch.distributed.tensor.parallel.style import ParallelStyle

__all__ = ["ParallelStyle"]
