"""The name that torch.distributed.tensor had before, from which programs still import."""
import sys

from tritorch.distributed import device_mesh as _meshes
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

__path__: list[str] = []                                                 # makes the names below importable as modules
_FILES = {"api": _tensor.dtensor, "device_mesh": _meshes, "experimental": _tensor.experimental, "placement_types": _tensor.placement_types}
sys.modules.update({f"{__name__}.{name}": file for name, file in _FILES.items()})
globals().update(_FILES)
distribute_module = _tensor.distribute_module

__all__ = ["DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor", "empty", "full",
           "init_device_mesh", "ones", "rand", "randn", "zeros"]
