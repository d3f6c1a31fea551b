"""The parameters and gradients that optimizers see: DTensors of this rank's parts.

A parameter that tensor parallelism has cut already is a DTensor on a mesh of its own before. Its parts are cut once more: the mesh of the
shards has the dims of both, those of tensor parallelism in front, for they cut first.
"""
import numpy as np

from tritorch.distributed.device_mesh import DeviceMesh
from tritorch.distributed.fsdp.meshes import NAME
from tritorch.distributed.tensor import DTensor, Replicate
from tritorch.distributed.tensor.dtensor import made
from tritorch.distributed.world import get_rank, get_world_size
from tritorch.errors import check
from tritorch.nn.parameter import Parameter


class Place:
    """How a parameter lies on the ranks: `inner` says how it did before (None: each had all of it), `mesh` and `placements` how it does."""

    def __init__(self, parameter, meshes, shard):
        self.inner, self.shape, outer = None, tuple(parameter.shape), () if meshes.replicas is None else (Replicate(),)
        self.mesh, self.placements = meshes.mesh, (*outer, shard)
        if isinstance(parameter, DTensor):
            self.inner = parameter.storage.spec
            self.mesh, self.placements = joined(meshes, self.inner.mesh), (*outer, *self.inner.placements, shard)

    def spread(self, part):
        """The DTensor of which this rank has a part."""
        return made(part, self.mesh, self.placements, self.shape)

    def gathered(self, whole):
        """What the module computes with, of what has been gathered."""
        return whole if self.inner is None else made(whole, self.inner.mesh, self.inner.placements, self.shape)

    def local(self, grad):
        """A gradient of what the module computes with, as this rank has it."""
        if self.inner is None or not isinstance(grad, DTensor):
            return grad
        return grad.detach().redistribute(placements=self.inner.placements).storage.local


def local_of(parameter):
    """What this rank has of a parameter: all, or its part of a DTensor."""
    return (parameter.storage.local if isinstance(parameter, DTensor) else parameter).detach()


def sharded_parameter(part, place, parameter):
    """The parameter of which `part` is this rank's."""
    return Parameter(place.spread(part), parameter.requires_grad)


def joined(meshes, inner):
    """A mesh with the dims of replicas, of another mesh, and of shards. Ranks are counted evenly along each dim, as in one mesh of which
    all of them are parts. ValueError where that cannot be."""
    known = meshes.joined.get(inner)
    if known is None:
        groups = [*([] if meshes.replicas is None else [meshes.replicas]), *inner.get_all_groups(), meshes.shards]
        me = get_rank()
        ranks = np.full((), me)
        for group in groups:
            ranks = ranks[..., None] + (np.asarray(group.ranks) - me)
        fits = len(np.unique(ranks)) == ranks.size and 0 <= ranks.min() and ranks.max() < get_world_size()
        check(fits, NAME, "a mesh that is part of one with that of the DTensors", f"{meshes.mesh} and {inner}", error=ValueError)
        names = [*(meshes.mesh.mesh_dim_names or ["shard"])]
        names = (*names[:-1], *(inner.mesh_dim_names or [f"inner_{k}" for k in range(inner.ndim)]), names[-1])
        known = meshes.joined[inner] = DeviceMesh(meshes.mesh.device_type, ranks, mesh_dim_names=names, _groups=groups)
    return known
