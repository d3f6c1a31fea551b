"""New DTensors of sizes: zeros, ones, empty, full, rand, randn. Each process makes its part; random numbers are those that an ordinary
tensor of the whole shape would get, so that they do not depend on the mesh."""
from tritorch.distributed.tensor.distribute import mesh_around
from tritorch.distributed.tensor.dtensor import unset
from tritorch.distributed.tensor.spec import checked, whole_on_all
from tritorch.errors import check
from tritorch.layout import only_strided
from tritorch.ops import create
from tritorch.shape import layout as laid_out

__all__ = ["empty", "full", "ones", "rand", "randn", "zeros"]


def _unset(name, sizes, dtype, layout, device_mesh, placements):
    """An unset DTensor; by default all of it on each process."""
    only_strided(name, layout)
    mesh = mesh_around("cpu") if device_mesh is None else device_mesh
    shape = laid_out(create._sizes(sizes))[0]
    places = checked(name, mesh, whole_on_all(mesh) if placements is None else placements, len(shape))
    check(not any(p.is_partial() for p in places), name, "Shard or Replicate as placements", places)
    return unset(shape, dtype, mesh, places, mesh.device_type)


def empty(*size, dtype=None, layout=None, requires_grad=False, device_mesh=None, placements=None):
    """A DTensor whose elements are not set."""
    return _unset("empty", size, dtype, layout, device_mesh, placements).requires_grad_(requires_grad)


def full(size, fill_value, *, dtype=None, layout=None, requires_grad=False, device_mesh=None, placements=None):
    """A DTensor of one value; its dtype follows the value unless given."""
    dtype = create.number_dtype(fill_value) if dtype is None else dtype
    return _unset("full", (size,), dtype, layout, device_mesh, placements).fill_(fill_value).requires_grad_(requires_grad)


def zeros(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None):
    """A DTensor of zeros.

    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import Shard, zeros
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> zeros(2, 3, device_mesh=mesh, placements=[Shard(0)]).to_local()
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    >>> dist.destroy_process_group()
    """
    return _unset("zeros", size, dtype, layout, device_mesh, placements).zero_().requires_grad_(requires_grad)


def ones(*size, dtype=None, layout=None, requires_grad=False, device_mesh=None, placements=None):
    """A DTensor of ones."""
    return _unset("ones", size, dtype, layout, device_mesh, placements).fill_(1).requires_grad_(requires_grad)


def rand(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None):
    """A DTensor of random numbers, uniform in [0, 1)."""
    return _unset("rand", size, dtype, layout, device_mesh, placements).uniform_().requires_grad_(requires_grad)


def randn(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None):
    """A DTensor of random numbers, standard normal."""
    return _unset("randn", size, dtype, layout, device_mesh, placements).normal_().requires_grad_(requires_grad)
