"""Which ranks share the parameters of a module, and which have the same shards."""
import warnings
import weakref

from tritorch.autograd.places import stacklevel
from tritorch.distributed.world import new_group
from tritorch.errors import check

NAME = "fully_shard"
_smaller: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()        # by group: {size: the part of that size with this process}


class Meshes:
    """A mesh of one dim, along which parameters are sharded, or of two: (replicas, shards)."""

    def __init__(self, mesh):
        check(mesh.ndim in (1, 2), NAME, "a DeviceMesh of 1 or 2 dims", f"{mesh.ndim}", error=ValueError)
        check(mesh.ndim == 1 or mesh.mesh_dim_names is not None, NAME, "mesh_dim_names for a DeviceMesh of 2 dims", "none",
              error=AssertionError)
        self.mesh, self.shards = mesh, mesh.get_group(mesh.ndim - 1)
        self.replicas = mesh.get_group(0) if mesh.ndim == 2 else None
        self.size, self.rank, self.joined = self.shards.size(), self.shards.rank(), {}   # joined: meshes with those of DTensors

    def after_forward(self, wanted):
        """The group among whose ranks parameters stay sharded after forward (`shards` for True), None where they are not."""
        check(isinstance(wanted, int), NAME, "a bool or a number of ranks as reshard_after_forward", repr(wanted), error=ValueError)
        if isinstance(wanted, bool):
            return self.shards if wanted else None
        check(1 <= wanted <= self.size and self.size % wanted == 0, NAME, f"a reshard_after_forward that divides {self.size}", wanted,
              error=ValueError)
        if wanted == 1:
            warnings.warn(f"{NAME}: reshard_after_forward=1 leaves parameters gathered, as False does, not True", stacklevel=stacklevel())
            return None
        if wanted == self.size:
            return self.shards
        known = _smaller.setdefault(self.shards, {})
        if wanted not in known:
            start = self.rank // wanted * wanted
            known[wanted] = new_group(self.shards.ranks[start:start + wanted], use_local_synchronization=True, sort_ranks=False)
        return known[wanted]
