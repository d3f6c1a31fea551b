"""The parameters and gradients that optimizers see: DTensors of this rank's parts."""
from tritorch.distributed.tensor import Replicate
from tritorch.distributed.tensor.dtensor import made
from tritorch.nn.parameter import Parameter


def as_dtensor(part, meshes, shape, shard):
    """A DTensor of that shape of which `part` is this rank's."""
    return made(part, meshes.mesh, (shard,) if meshes.replicas is None else (Replicate(), shard), shape)


def sharded_parameter(part, parameter, meshes, shard):
    """The parameter of which `part` is this rank's."""
    return Parameter(as_dtensor(part, meshes, tuple(parameter.shape), shard), parameter.requires_grad)
