"""Looking at DTensors: which collectives a program does, and which process has which part of a tensor."""
from tritorch.distributed.tensor.debug.communication import CommDebugMode
from tritorch.distributed.tensor.debug.layout import visualize_sharding

__all__ = ["CommDebugMode", "visualize_sharding"]
