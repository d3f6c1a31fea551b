"""PyTorch's name for the file of `Variable`, as tensors with gradients were once called, for programs that import from there."""
from tritorch.tensor import Tensor as Variable

__all__ = ["Variable"]
