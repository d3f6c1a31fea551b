"""Tensors spread over the processes of a mesh."""
from tritorch.distributed.device_mesh import DeviceMesh, init_device_mesh
from tritorch.distributed.tensor import placement_types
from tritorch.distributed.tensor.dtensor import DTensor, distribute_tensor
from tritorch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

__all__ = ["DTensor", "Partial", "Placement", "Replicate", "Shard", "distribute_tensor"]
