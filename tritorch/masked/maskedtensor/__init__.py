"""Tensors that carry the mask of the elements that count."""
from tritorch.masked.maskedtensor.core import MaskedTensor, is_masked_tensor
from tritorch.masked.maskedtensor.creation import as_masked_tensor, masked_tensor

__all__ = ["MaskedTensor", "as_masked_tensor", "is_masked_tensor", "masked_tensor"]
