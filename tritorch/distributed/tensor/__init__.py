"""torch.distributed.tensor: tensors that are spread over the processes of a mesh, and work like any other.

`DTensor` says what they are; `distribute_tensor`, `distribute_module` and `zeros`, `rand`, … make them; `parallel` has the styles of tensor
and sequence parallelism. Operators that cannot be split up run on whole tensors on every process: right, if not quick.
"""
import importlib

from tritorch.distributed.device_mesh import DeviceMesh, init_device_mesh
from tritorch.distributed.tensor import placement_types
from tritorch.distributed.tensor.distribute import distribute_tensor
from tritorch.distributed.tensor.dtensor import DTensor
from tritorch.distributed.tensor.factories import empty, full, ones, rand, randn, zeros
from tritorch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

__all__ = ["DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "debug", "distribute_module", "distribute_tensor",
           "empty", "experimental", "full", "init_device_mesh", "ones", "parallel", "placement_types", "rand", "randn", "zeros"]


def __getattr__(name):
    """What is built on modules loads when it is first asked for."""
    if name in ("parallel", "debug", "experimental"):
        return importlib.import_module("tritorch.distributed.tensor." + name)
    if name == "distribute_module":
        return importlib.import_module("tritorch.distributed.tensor.modules").distribute_module
    raise AttributeError(f"module 'tritorch.distributed.tensor' has no attribute {name!r}")
