"""distribute_tensor: from a whole tensor to parts; and what from_local finds out where it is told to."""
from tritorch.autograd.modes import no_grad
from tritorch.distributed import collectives as dist
from tritorch.distributed.device_mesh import DeviceMesh, entered
from tritorch.distributed.tensor import dtensor, exchange
from tritorch.distributed.tensor.placement_types import Partial, Replicate, Shard
from tritorch.distributed.tensor.spec import checked, whole_on_all
from tritorch.errors import check
from tritorch.memory_format import dense_strides
from tritorch.ops import create
from tritorch.tensor import Tensor, empty

__all__ = ["distribute_tensor"]


def mesh_around(device_type):
    """The mesh around, or one of all processes."""
    return entered[-1] if entered else DeviceMesh(device_type, list(range(dist.get_world_size())))


@no_grad()
def same_parts(x, mesh, placements):
    """x after the checks that from_local makes where it is told to."""
    facts = create.tensor([x.ndim, *x.shape, *[0] * (16 - x.ndim)], device=x.device)
    for k, p in enumerate(placements):
        group = mesh.get_group(k)
        found = exchange.gather(facts.reshape(1, -1), group, 0, group.size())
        check(bool((found == facts).all()), "from_local", "parts of one shape", found[:, 1:1 + x.ndim].tolist())
        if type(p) is Replicate:
            x = x.detach().clone()
            exchange.tell("broadcast", group)
            dist.broadcast(x, group=group, group_src=0)
    return x


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    """A whole tensor, spread over the processes: its values are those of rank `src_data_rank` along each dim of the mesh, or with None,
    and then without communication, those that each process has. The result is a leaf.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import Shard, distribute_tensor
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> distribute_tensor(torch.eye(2), mesh, [Shard(0)]).sum().full_tensor()
    tensor(2.)
    >>> dist.destroy_process_group()
    """
    check(isinstance(tensor, Tensor), "distribute_tensor", "a tensor", type(tensor).__name__, error=TypeError)
    mesh = device_mesh if device_mesh is not None else mesh_around(tensor.device.type)
    placements = checked("distribute_tensor", mesh, whole_on_all(mesh) if placements is None else placements, tensor.ndim)
    if isinstance(tensor, dtensor.DTensor):
        check(tensor.device_mesh == mesh, "distribute_tensor", f"a DTensor on the mesh {mesh}", tensor.device_mesh, error=ValueError)
        check(tensor.placements == placements, "distribute_tensor", f"a DTensor placed {placements}", tensor.placements, error=ValueError,
              use="redistribute")
        return tensor
    check(tensor.is_leaf, "distribute_tensor", "a leaf", f"the result of {tensor.grad_fn}", use="from_local, through which gradients flow")
    local = tensor.detach()
    if local.device.type != mesh.device_type:
        local = local.to(mesh.device_type)
    if mesh.get_coordinate() is None:
        local = local.new_empty(0)                                       # who is not in the mesh has nothing
    with no_grad():
        for k, p in enumerate(placements) if mesh.get_coordinate() is not None else ():
            local = _handed_out(local, mesh.get_group(k), p, src_data_rank)
    strides = dense_strides(tensor.shape, tensor.strides)
    return dtensor.made(local, mesh, placements, tensor.shape, strides).requires_grad_(tensor.requires_grad)


def _handed_out(x, group, placement, source):
    """This process's part along one dim of the mesh, from the values of rank `source`."""
    size = group.size()
    if source is not None and size > 1 and x.numel() and type(placement) is not Shard:
        x = x.clone() if x.is_contiguous() else x.contiguous()
        exchange.tell("broadcast", group)
        dist.broadcast(x, group=group, group_src=source)
    if type(placement) is Partial:
        return exchange.shared(x, placement.reduce_op, group)
    if type(placement) is Replicate:
        return x
    d = placement.dim
    if source is None or size == 1 or not x.numel():
        return x if size == 1 else exchange.piece(x, d, size, group.rank()).clone()      # not a view that keeps all of x alive
    most, mine = -(-x.shape[d] // size), exchange.piece(x, d, size, group.rank()).shape[d]
    out = empty((most, *x.shape[:d], *x.shape[d + 1:]), x.dtype, x.device)
    parts = [exchange._padded(exchange._rows_first(exchange.piece(x, d, size, r), d), most) for r in range(size)]
    exchange.tell("scatter", group)
    dist.scatter(out, parts if group.rank() == source else None, group=group, group_src=source)
    return exchange._rows_back(out[:mine] if mine != most else out, d)
