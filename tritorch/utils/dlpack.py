"""Tensors from and to other libraries without a copy, under the names of torch.utils.dlpack."""
from tritorch.interop import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
