"""The name that torch.distributed.tensor had before, from which programs still import."""
from tritorch.distributed import tensor as _tensor
from tritorch.distributed.device_mesh import DeviceMesh, init_device_mesh
from tritorch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)

distribute_module = _tensor.distribute_module

__all__ = ["DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor", "empty", "full",
           "init_device_mesh", "ones", "rand", "randn", "zeros"]
