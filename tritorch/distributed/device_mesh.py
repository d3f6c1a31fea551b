"""DeviceMesh: the ranks of a world as an n-dimensional array, with a process group along each row of each dim."""
import numpy as np

from tritorch.device import cpu
from tritorch.distributed.world import _world, get_rank, get_world_size, init_process_group, is_initialized, new_group
from tritorch.dtype import int32
from tritorch.errors import check
from tritorch.ops.create import tensor
from tritorch.tensor import Tensor

__all__ = ["DeviceMesh", "init_device_mesh"]


class DeviceMesh:
    """`mesh` is an array of ranks. All processes of the world make it, those that are not in it, too.

    `mesh["name"]` is the part along the named dim, or several, that has this process. Two are equal if they have the same ranks, names and
    device type.
    """

    def __init__(self, device_type, mesh=None, *, mesh_dim_names=None, backend_override=None, _groups=None):
        check(mesh is not None, "DeviceMesh", "an array of ranks", "none", error=TypeError)
        init_process_group() if not is_initialized() else None
        self.device_type, self.mesh_dim_names = device_type, None if mesh_dim_names is None else tuple(mesh_dim_names)
        self._ranks = np.asarray(mesh.cpu().array if isinstance(mesh, Tensor) else mesh, np.int64)
        check(self._ranks.ndim > 0 and self._ranks.size > 0, "DeviceMesh", "at least one rank", mesh, error=ValueError)
        check(self._ranks.size <= get_world_size(), "DeviceMesh", f"at most {get_world_size()} ranks", self._ranks.size)
        check(len(np.unique(self._ranks)) == self._ranks.size, "DeviceMesh", "each rank once", self._ranks.tolist(), error=ValueError)
        self._strides = tuple(s // self._ranks.itemsize for s in self._ranks.strides)
        self._groups = self._made(backend_override or ()) if _groups is None else list(_groups)

    def _made(self, overrides):
        """The group of each dim that has this process. All processes make all groups, in the same order. `overrides`: (backend, options)
        of each dim."""
        check(len(overrides) in (0, self.ndim), "DeviceMesh", f"{self.ndim} overrides of backends", len(overrides))
        mine = []
        for dim in range(self.ndim):
            rows = np.moveaxis(self._ranks, dim, -1).reshape(-1, self._ranks.shape[dim]).tolist()
            backend, options = overrides[dim] if overrides else (None, None)
            if sorted(rows[0]) == list(range(get_world_size())) and backend is options is None:
                mine.append(_world.default)
                continue
            made = [new_group(row, backend=backend, pg_options=options, group_desc=f"mesh_{self._name(dim)}") for row in rows]
            mine += [group for group, row in zip(made, rows) if get_rank() in row]
        return mine

    def _name(self, dim):
        return self.mesh_dim_names[dim] if self.mesh_dim_names else f"dim_{dim}"

    @staticmethod
    def from_group(group, device_type, mesh=None, *, mesh_dim_names=None):
        """A mesh of the ranks of a group, or of several groups, one for each dim of `mesh`."""
        if not isinstance(group, (list, tuple)):
            return DeviceMesh(device_type, group.ranks if mesh is None else mesh, mesh_dim_names=mesh_dim_names, _groups=[group])
        check(len(group) > 0, "from_group", "at least one group", "none", error=ValueError)
        check(mesh is not None, "from_group", "a mesh for several groups", "none", error=ValueError)
        made = DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, _groups=group)
        check(made.ndim == len(group), "from_group", f"a mesh of {len(group)} dims, one for each group", made.ndim, error=ValueError)
        return made

    # -------------------------------------------------------------- what it is
    @property
    def mesh(self):
        """The ranks, an int32 tensor on the CPU."""
        return tensor(self._ranks.tolist(), dtype=int32, device=cpu)

    @property
    def shape(self):
        """The sizes of the dims."""
        return tuple(self._ranks.shape)

    @property
    def ndim(self):
        """How many dims there are."""
        return self._ranks.ndim

    def size(self, mesh_dim=None):
        """The number of ranks, or the size of a dim."""
        return self._ranks.size if mesh_dim is None else self._ranks.shape[mesh_dim]

    def __repr__(self):
        names = self.mesh_dim_names or [""] * self.ndim
        sizes = ", ".join(f"{name}={n}" if name else str(n) for name, n in zip(names, self.shape))
        strides = ", ".join(map(str, self._strides))
        comma = "," if self.ndim == 1 else ""
        return f"DeviceMesh(({sizes}{comma if not self.mesh_dim_names else ''}), {self.device_type!r}, stride=({strides}{comma}))"

    def __eq__(self, other):
        return self is other or isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def _key(self):
        return self.device_type, self.mesh_dim_names, self.shape, tuple(self._ranks.flat)

    # -------------------------------------------------------------- parts
    def __getitem__(self, mesh_dim_names):
        check(self.mesh_dim_names is not None, "DeviceMesh", "mesh_dim_names to choose dims by", "none")
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        dims = [self.mesh_dim_names.index(name) if name in self.mesh_dim_names else -1 for name in names]
        check(dims and min(dims) >= 0, "DeviceMesh", f"names among {list(self.mesh_dim_names)}", names, error=KeyError)
        check(dims == sorted(set(dims)), "DeviceMesh", "names in the order of the dims", names, error=KeyError)
        place = self.get_coordinate()
        check(place is not None, "DeviceMesh", "a process that is in the mesh", f"rank {get_rank()}")
        ranks = self._ranks[tuple(slice(None) if dim in dims else place[dim] for dim in range(self.ndim))]
        return DeviceMesh(self.device_type, ranks, mesh_dim_names=names, _groups=[self._groups[dim] for dim in dims])

    def _dim(self, name, mesh_dim):
        if mesh_dim is None:
            check(self.ndim == 1, name, "a mesh_dim where there are several", "none")
            return 0
        if isinstance(mesh_dim, str):
            check(mesh_dim in (self.mesh_dim_names or ()), name, f"a dim among {self.mesh_dim_names}", mesh_dim, error=KeyError)
            return self.mesh_dim_names.index(mesh_dim)
        check(-self.ndim <= mesh_dim < self.ndim, name, f"a dim of {self.ndim}", mesh_dim, error=IndexError)
        return mesh_dim

    def get_group(self, mesh_dim=None):
        """The process group along a dim (a number or a name; None where there is one) that has this process."""
        return self._groups[self._dim("get_group", mesh_dim)]

    def get_all_groups(self):
        """The process group of this process along each dim."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    def get_rank(self):
        """This process's rank in the world."""
        return get_rank()

    def get_local_rank(self, mesh_dim=None):
        """This process's place along a dim."""
        return get_rank(self.get_group(mesh_dim))

    def get_coordinate(self):
        """This process's places along all dims, None if it is not in the mesh."""
        found = np.argwhere(self._ranks == get_rank())
        return tuple(found[0].tolist()) if len(found) else None


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None, backend_override=None):
    """The ranks 0, 1, … in an array of that shape. Begins the world (`init_process_group()`) if nobody has. `backend_override` says for
    dims, by number or name, which backend their groups get: {"shard": "gloo"}, or (a backend, its options).

    >>> from tritorch import distributed as dist
    >>> mesh = dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    >>> mesh["shard"].size(), mesh.get_coordinate()
    (1, (0, 0))
    >>> dist.destroy_process_group()
    """
    check(str(device_type).isalpha(), "init_device_mesh", "a type of device without an index", device_type)
    if mesh_dim_names is not None:
        check(len(set(mesh_dim_names)) == len(mesh_dim_names), "init_device_mesh", "each name once", mesh_dim_names)
        check(len(mesh_dim_names) == len(mesh_shape), "init_device_mesh", f"{len(mesh_shape)} mesh_dim_names", len(mesh_dim_names))
    overrides = _overrides(backend_override, mesh_dim_names or (), len(mesh_shape)) if backend_override else None
    ranks = np.arange(int(np.prod(mesh_shape))).reshape(mesh_shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, backend_override=overrides)


def _overrides(given, names, ndim):
    """(backend, options) of each dim."""
    out = [(None, None)] * ndim
    for key, value in given.items():
        dim = names.index(key) if key in names else key
        check(isinstance(dim, int) and 0 <= dim < ndim and out[dim] == (None, None), "init_device_mesh",
              "dims, each once, by number or name in backend_override", repr(key))
        out[dim] = (value, None) if isinstance(value, str) else value if isinstance(value, tuple) else (None, value)
    return tuple(out)
