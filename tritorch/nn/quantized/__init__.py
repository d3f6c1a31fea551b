"""The older place of `ao.nn.quantized`."""
from tritorch.ao.nn.quantized import FloatFunctional

__all__ = ["FloatFunctional"]
