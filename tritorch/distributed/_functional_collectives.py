"""Collectives that leave their arguments as they are and return the result, in the form in which tensor-parallel programs call them.

`group` is a ProcessGroup, a mesh of one dim, or (mesh, dim). Gradients flow through all of them, as through `distributed.nn.functional`.
Results can be used at once: there is nothing to wait for, and no AsyncCollectiveTensor is ever made.

>>> import tritorch as torch
>>> from tritorch import distributed as dist
>>> from tritorch.distributed import _functional_collectives as funcol
>>> dist.init_process_group("gloo", rank=0, world_size=1)
>>> funcol.wait_tensor(funcol.all_gather_single(torch.ones(2), 0, dist.group.WORLD))
tensor([1., 1.])
>>> dist.destroy_process_group()
"""
from tritorch.distributed.device_mesh import DeviceMesh
from tritorch.distributed.group import ProcessGroup
from tritorch.distributed.nn import functional as collectives
from tritorch.distributed.options import ReduceOp
from tritorch.distributed.world import get_global_rank, get_rank, get_world_size
from tritorch.errors import check
from tritorch.ops.shaping import cat
from tritorch.ops.slicing import chunk
from tritorch.tensor import Tensor


class AsyncCollectiveTensor(Tensor):
    """What programs ask of a result before they wait for it; none is one."""


def _group(name, group):
    """The process group that an argument means."""
    if isinstance(group, DeviceMesh):
        check(group.ndim == 1, name, "a mesh of one dim", f"one of {group.ndim}", error=AssertionError, use="(mesh, dim)")
        return group.get_group(0)
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh) and isinstance(group[1], int):
        return group[0].get_group(group[1])
    check(isinstance(group, ProcessGroup), name, "a ProcessGroup, a mesh or (mesh, dim) as group", repr(group), error=ValueError)
    return group


def _operation(name, op):
    found = getattr(ReduceOp, op.upper(), None)
    check(found is not None, name, "the name of a ReduceOp", repr(op))
    return found


def wait_tensor(tensor):
    """The tensor, which is there already."""
    return tensor


def broadcast(self, src, group, tag=""):
    """The tensor of rank `src` of the group."""
    group = _group("broadcast", group)
    return collectives.broadcast(self, get_global_rank(group, src), group)


def all_reduce(self, reduceOp, group, tag=""):                           # noqa: N803 PyTorch's name
    """The tensors of all ranks as one, by "sum", "avg", "max", …"""
    return collectives.all_reduce(self, _operation("all_reduce", reduceOp), _group("all_reduce", group))


def all_gather_single(self, gather_dim, group, tag=""):
    """The tensors of all ranks, joined along gather_dim."""
    return cat(collectives.all_gather(self.contiguous(), _group("all_gather_single", group)), gather_dim)


def reduce_scatter_single(self, reduceOp, scatter_dim, group, tag=""):   # noqa: N803
    """This rank's piece, along scatter_dim, of the tensors of all ranks as one."""
    group = _group("reduce_scatter_single", group)
    size = get_world_size(group)
    check(self.shape[scatter_dim] % size == 0, "reduce_scatter_single", f"a multiple of {size} rows along dim {scatter_dim}",
          self.shape[scatter_dim], error=AssertionError)
    parts = [part.contiguous() for part in chunk(self, size, scatter_dim)]
    return collectives.reduce_scatter(parts[0], parts, _operation("reduce_scatter_single", reduceOp), group)


def all_to_all_single(self, output_split_sizes, input_split_sizes, group, tag=""):
    """The rows that all ranks have for this one, joined; `input_split_sizes` of its own go to them, equally many if both are None."""
    group, outs, ins = _group("all_to_all_single", group), output_split_sizes, input_split_sizes
    check((outs is None) == (ins is None), "all_to_all_single", "both split sizes or none", (outs, ins), error=AssertionError)
    rows = len(self) if outs is None else sum(outs)
    return collectives.all_to_all_single(self.new_empty((rows, *self.shape[1:])), self, outs, ins, group)


def permute_tensor(self, src_dst, group, tag=""):
    """The tensor, flat, of the rank which src_dst sends here: that of rank m goes to rank src_dst[m]."""
    here, count = get_rank(_group("permute_tensor", group)), self.numel()
    ins = [count * (src_dst[here] == rank) for rank in range(len(src_dst))]
    outs = [count * (dst == here) for dst in src_dst]
    return all_to_all_single(self.reshape(-1), outs, ins, group)


all_gather_tensor = all_gather_tensor_autograd = all_gather_single_autograd = all_gather_single
reduce_scatter_tensor = reduce_scatter_tensor_autograd = reduce_scatter_single_autograd = reduce_scatter_single
all_to_all_single_autograd = all_to_all_single
