"""DeviceMesh: the ranks of a world as an n-dimensional array, with a process group along each row of each dim."""
import weakref

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

    `mesh["name"]` is the part along the named dim, or several, that has this process; `mesh["a", "b"]._flatten("ab")` makes one dim of
    several, by whose name the whole mesh can be asked from then on. Two are equal if they have the same ranks, names and device type.
    Inside of `with mesh:` it is the mesh of DTensors that are made without one.
    """

    def __init__(self, device_type, mesh=None, *, mesh_dim_names=None, backend_override=None, _groups=None, _root=None):
        check(mesh is not None, "DeviceMesh", "an array of ranks", "none", error=TypeError)
        init_process_group() if not is_initialized() else None
        self.device_type, self.mesh_dim_names = device_type, None if mesh_dim_names is None else tuple(mesh_dim_names)
        self._ranks = np.asarray(mesh.cpu().array if isinstance(mesh, Tensor) else mesh, np.int64)
        check(self._ranks.ndim > 0 and self._ranks.size > 0, "DeviceMesh", "at least one rank", mesh, error=ValueError)
        check(self._ranks.size <= get_world_size(), "DeviceMesh", f"at most {get_world_size()} ranks", self._ranks.size)
        check(len(np.unique(self._ranks)) == self._ranks.size, "DeviceMesh", "each rank once", self._ranks.tolist(), error=ValueError)
        self._strides = tuple(s // self._ranks.itemsize for s in self._ranks.strides)
        self._groups = self._made(backend_override or ()) if _groups is None else list(_groups)
        self.world, self._hash = _world.default, None
        self.seeded = set()                                              # parts whose processes draw alike: see tensor/chance.py
        self._root, self._flattened = _root, {}                          # of a part: the whole; of a whole: name -> (its dims, their group)
        place = np.argwhere(self._ranks == get_rank())
        self._place = tuple(place[0].tolist()) if len(place) else None
        if None not in self._groups:
            alive[self._key()] = self

    def _made(self, overrides, dims=None, name=None):
        """The group of each of the dims that has this process. All processes make all groups, in the same order. `overrides`: (backend,
        options) of each dim of the mesh."""
        check(len(overrides) in (0, self.ndim), "DeviceMesh", f"{self.ndim} overrides of backends", len(overrides))
        mine = []
        for dim in range(self.ndim) if dims is None else dims:
            rows = np.moveaxis(self._ranks, dim, -1).reshape(-1, self._ranks.shape[dim]).tolist()
            backend, options = overrides[dim] if overrides else (None, None)
            if sorted(rows[0]) == list(range(get_world_size())) and backend is options is None:
                mine.append(_world.default)
                continue
            made = [new_group(row, backend=backend, pg_options=options, group_desc=f"mesh_{name or self._name(dim)}") for row in rows]
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
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __reduce__(self):
        return mesh_of, (self.device_type, self._ranks.tolist(), self.mesh_dim_names)

    def __deepcopy__(self, memo):
        return self

    def _key(self):
        return self.device_type, self.mesh_dim_names, self.shape, tuple(self._ranks.flat)

    def __enter__(self):
        entered.append(self)
        return self

    def __exit__(self, *exception):
        entered.pop()

    # -------------------------------------------------------------- parts
    def _get_root_mesh(self):
        """The mesh that this one is a part of, or itself."""
        return self if self._root is None else self._root

    def _known(self):
        """Name -> (dims of the whole mesh, group along them), of what this one can be asked for."""
        root, own = self._get_root_mesh(), self.mesh_dim_names
        found = {name: ((k,), group) for k, (name, group) in enumerate(zip(root.mesh_dim_names or (), root._groups)) if name in own}
        for name, (dims, group) in root._flattened.items():
            if name in own or all(root.mesh_dim_names[d] in own for d in dims):
                found[name] = dims, group
        return found

    def __getitem__(self, mesh_dim_names):
        check(self.mesh_dim_names is not None, "DeviceMesh", "mesh_dim_names to choose dims by", "none")
        names, known = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names), self._known()
        check(names and all(name in known for name in names), "DeviceMesh", f"names among {list(known)}", names, error=KeyError)
        dims = [d for name in names for d in known[name][0]]
        check(len(set(dims)) == len(dims), "DeviceMesh", "names of different dims", names)
        check(dims == sorted(dims), "DeviceMesh", "names in the order of the dims", names, error=KeyError)
        root = self._get_root_mesh()
        check(root._place is not None, "DeviceMesh", "a process that is in the mesh", f"rank {get_rank()}")
        ranks = root._ranks[tuple(slice(None) if d in dims else root._place[d] for d in range(root.ndim))]
        sizes = [[root._ranks.shape[d] for d in known[name][0]] for name in names]
        if any(len(some) > 1 for some in sizes):
            ranks = ranks.reshape([int(np.prod(some)) for some in sizes])
        return DeviceMesh(self.device_type, ranks, mesh_dim_names=names, _groups=[known[name][1] for name in names], _root=root)

    def _flatten(self, mesh_dim_name=None, backend_override=None):
        """All dims as one, called `mesh_dim_name`, or by their names joined. All processes of the whole mesh call it."""
        check(self.mesh_dim_names is not None, "_flatten", "mesh_dim_names", "none")
        root, name = self._get_root_mesh(), mesh_dim_name or "_".join(self.mesh_dim_names)
        dims = tuple(d for own in self.mesh_dim_names for d in self._known()[own][0])
        if self.ndim == 1 and name in self.mesh_dim_names:
            return self
        check(name not in root.mesh_dim_names and root._flattened.get(name, (dims,))[0] == dims, "_flatten",
              f"a name that none of {(*root.mesh_dim_names, *root._flattened)} has", repr(name), error=ValueError)
        if name not in root._flattened:
            rest = [d for d in range(root.ndim) if d not in dims]
            rows = root._ranks.transpose(*rest, *dims).reshape(-1, self.size())
            lines = DeviceMesh(self.device_type, rows, _groups=[None, None])
            (group,) = lines._made([(None, None), _override(backend_override)], [1], name)
            root._flattened[name] = dims, group
        return root[name]

    def _unflatten(self, dim, mesh_sizes, mesh_dim_names, backend_override=None):
        """A dim as several of these sizes and names. All processes of the mesh call it."""
        dim, sizes = self._dim("_unflatten", dim), tuple(mesh_sizes)
        check(int(np.prod(sizes)) == self.shape[dim], "_unflatten", f"sizes whose product is {self.shape[dim]}", sizes, error=ValueError)
        check(len(sizes) == len(mesh_dim_names), "_unflatten", f"{len(sizes)} mesh_dim_names", len(mesh_dim_names))
        ranks = self._ranks.reshape(*self.shape[:dim], *sizes, *self.shape[dim + 1:])
        names = (*(self.mesh_dim_names or ())[:dim], *mesh_dim_names, *(self.mesh_dim_names or ())[dim + 1:])
        new = range(dim, dim + len(sizes))
        out = DeviceMesh(self.device_type, ranks, mesh_dim_names=names, _groups=[None] * ranks.ndim)
        given = _overrides(backend_override, tuple(mesh_dim_names), len(sizes)) if backend_override else [(None, None)] * len(sizes)
        made = iter(out._made([given[d - dim] if d in new else (None, None) for d in range(ranks.ndim)], new))
        out._groups = [next(made) if d in new else self._groups[d if d < dim else d - len(sizes) + 1] for d in range(ranks.ndim)]
        return out

    def _get_all_submeshes(self, mesh_dim_name):
        """The parts along a dim, of all processes."""
        dim = self._dim("_get_all_submeshes", mesh_dim_name)
        rows = np.moveaxis(self._ranks, dim, -1).reshape(-1, self.shape[dim])
        return [DeviceMesh(self.device_type, row, mesh_dim_names=(mesh_dim_name,), _groups=[self._groups[dim]], _root=self) for row in rows]

    def _is_current_rank_part_of_mesh(self):
        """Whether this process is in the mesh."""
        return self._place is not None

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
        return self._place


def mesh_of(device_type, ranks, names):
    """The mesh of these ranks and names that this process has, or a new one, which all processes have to make: what was pickled."""
    found = alive.get((device_type, names, np.shape(ranks), tuple(np.ravel(ranks).tolist())))
    return found if found is not None and found.world is _world.default else DeviceMesh(device_type, ranks, mesh_dim_names=names)


alive = weakref.WeakValueDictionary()                                    # meshes by what makes them equal
entered = []                                                             # the meshes of the `with` blocks around, innermost last


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
        out[dim] = _override(value)
    return tuple(out)


def _override(value):
    """(backend, options) of what may be given for a dim: a name, options, or both."""
    return (value, None) if value is None or isinstance(value, str) else value if isinstance(value, tuple) else (None, value)
