"""The handle that registering a hook returns, under PyTorch's name."""
from tritorch.nn.hooks import RemovableHandle

__all__ = ["RemovableHandle"]
