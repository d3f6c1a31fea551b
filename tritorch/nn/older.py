"""Modules of PyTorch's first years that programs may still name; each warns what to use in its place."""
import warnings

from tritorch.nn.loss import NLLLoss
from tritorch.nn.module import Module


class NLLLoss2d(NLLLoss):
    """`NLLLoss`, which takes images, too."""

    def __init__(self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
        warnings.warn("NLLLoss2d is part of NLLLoss; use that", FutureWarning, stacklevel=2)
        super().__init__(weight, size_average, ignore_index, reduce, reduction)


class Container(Module):
    """A module with the given children, by name; subclass `Module` in new programs."""

    def __init__(self, **kwargs):
        super().__init__()
        warnings.warn("Container is part of Module; subclass that", FutureWarning, stacklevel=2)
        for name, module in kwargs.items():
            self.add_module(name, module)
