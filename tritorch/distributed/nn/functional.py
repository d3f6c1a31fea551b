"""Collectives that gradients flow through: for a world of one process, what comes back is the tensor itself.

>>> import tritorch as torch
>>> from tritorch import distributed as dist
>>> dist.init_process_group("gloo", rank=0, world_size=1)
>>> x = torch.ones(2, requires_grad=True)
>>> (3 * dist.nn.functional.all_reduce(x)).sum().backward()
>>> x.grad, torch.cat(dist.nn.functional.all_gather(x)).shape
(tensor([3., 3.]), tritorch.Size([2]))
>>> dist.destroy_process_group()
"""
from tritorch.distributed.collectives import ReduceOp, _begun, _only
from tritorch.errors import check

__all__ = ["all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"]


def _from(name, rank):
    _begun()
    check(rank == 0, name, "rank 0, the only one", rank, error=ValueError)


def broadcast(tensor, src, group=None):
    """The tensor of rank `src`."""
    _from("broadcast", src)
    return tensor.clone()


def gather(tensor, dst=0, group=None):
    """A tuple of the tensors of all ranks."""
    _from("gather", dst)
    return (tensor.clone(),)


def scatter(tensors, src=0, group=None):
    """The tensor of the list that is this rank's."""
    _from("scatter", src)
    return _only("scatter", tensors).clone()


def reduce(tensor, dst, op=ReduceOp.SUM, group=None):
    """The tensors of all ranks as one."""
    _from("reduce", dst)
    return tensor.clone()


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None):
    """This rank's part of the tensors of all ranks as one."""
    _begun()
    return _only("reduce_scatter", input_list).clone()


def all_gather(tensor, group=None):
    """A tuple of the tensors of all ranks."""
    _begun()
    return (tensor.clone(),)


def all_to_all(output_tensor_list, input_tensor_list, group=None):
    """A tuple of what each rank has for this one."""
    _begun()
    return (_only("all_to_all", input_tensor_list).clone(),)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None):
    """What all ranks have for this one, in a tensor of output's shape."""
    _begun()
    return input.clone().view_as(output)


def all_reduce(tensor, op=ReduceOp.SUM, group=None):
    """The tensors of all ranks as one."""
    _begun()
    return tensor.clone()
