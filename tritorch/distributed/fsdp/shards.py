"""The parameters and gradients that optimizers see: DTensors of this rank's parts."""
from tritorch.distributed.tensor import DTensor, Replicate
from tritorch.nn.parameter import Parameter
from tritorch.shape import Size, layout


def placements(meshes, shard):
    """How a parameter lies on the mesh."""
    return (shard,) if meshes.replicas is None else (Replicate(), shard)


def as_dtensor(local, meshes, shape, shard):
    """A DTensor of that shape of which `local` is this rank's part."""
    return DTensor.from_local(local, meshes.mesh, placements(meshes, shard), run_check=False, shape=Size(shape),
                              stride=layout(tuple(shape))[1])


def sharded_parameter(part, parameter, meshes, shard):
    """The parameter of which `part` is this rank's."""
    return Parameter(as_dtensor(part, meshes, tuple(parameter.shape), shard), parameter.requires_grad)
