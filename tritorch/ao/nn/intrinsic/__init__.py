"""Layers that follow each other as one module, for quantization: each is a Sequential of its parts. `qat` has those that train."""
from tritorch.errors import check
from tritorch.nn.activation import ReLU
from tritorch.nn.container import Sequential
from tritorch.nn.conv import Conv1d, Conv2d, Conv3d
from tritorch.nn.linear import Linear
from tritorch.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d

__all__ = ["BNReLU2d", "BNReLU3d", "ConvBn1d", "ConvBn2d", "ConvBn3d", "ConvBnReLU1d", "ConvBnReLU2d", "ConvBnReLU3d", "ConvReLU1d",
           "ConvReLU2d", "ConvReLU3d", "LinearReLU"]


class _FusedModule(Sequential):
    """The base of them. AssertionError, as in PyTorch, for parts of other types."""

    _parts = ()

    def __init__(self, *parts):
        fits = len(parts) == len(self._parts) and all(type(p) is kind for p, kind in zip(parts, self._parts))
        check(fits, type(self).__name__, ", ".join(kind.__name__ for kind in self._parts), [type(p).__name__ for p in parts],
              error=AssertionError)
        super().__init__(*parts)


class ConvReLU1d(_FusedModule):
    """Conv1d, ReLU."""

    _parts = Conv1d, ReLU


class ConvReLU2d(_FusedModule):
    """Conv2d, ReLU."""

    _parts = Conv2d, ReLU


class ConvReLU3d(_FusedModule):
    """Conv3d, ReLU."""

    _parts = Conv3d, ReLU


class ConvBn1d(_FusedModule):
    """Conv1d, BatchNorm1d."""

    _parts = Conv1d, BatchNorm1d


class ConvBn2d(_FusedModule):
    """Conv2d, BatchNorm2d."""

    _parts = Conv2d, BatchNorm2d


class ConvBn3d(_FusedModule):
    """Conv3d, BatchNorm3d."""

    _parts = Conv3d, BatchNorm3d


class ConvBnReLU1d(_FusedModule):
    """Conv1d, BatchNorm1d, ReLU."""

    _parts = Conv1d, BatchNorm1d, ReLU


class ConvBnReLU2d(_FusedModule):
    """Conv2d, BatchNorm2d, ReLU."""

    _parts = Conv2d, BatchNorm2d, ReLU


class ConvBnReLU3d(_FusedModule):
    """Conv3d, BatchNorm3d, ReLU."""

    _parts = Conv3d, BatchNorm3d, ReLU


class BNReLU2d(_FusedModule):
    """BatchNorm2d, ReLU."""

    _parts = BatchNorm2d, ReLU


class BNReLU3d(_FusedModule):
    """BatchNorm3d, ReLU."""

    _parts = BatchNorm3d, ReLU


class LinearReLU(_FusedModule):
    """Linear, ReLU."""

    _parts = Linear, ReLU
