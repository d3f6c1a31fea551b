"""torch.distributed for a world of one process: programs that are written for many run alone, without a change.

There is no communication between processes. A group of one is: every collective does what it would do with one rank, so a sum over
the ranks leaves a tensor as it is, and what is gathered is the tensor itself.

>>> import tritorch as torch
>>> from tritorch import distributed as dist
>>> dist.init_process_group("gloo", rank=0, world_size=1)
>>> x = torch.tensor([1.0, 2.0])
>>> dist.all_reduce(x, op=dist.ReduceOp.AVG)
>>> x, dist.get_rank(), dist.get_world_size()
(tensor([1., 2.]), 0, 1)
>>> dist.destroy_process_group()
"""
import os

from tritorch.distributed import nn, tensor
from tritorch.distributed.collectives import (
    ProcessGroup,
    ReduceOp,
    Work,
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    gather,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_initialized,
    monitored_barrier,
    new_group,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from tritorch.errors import check

__all__ = [
    "ProcessGroup", "ReduceOp", "Work", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "destroy_process_group", "gather", "get_backend",
    "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size", "group", "init_process_group",
    "is_available", "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched",
    "monitored_barrier", "new_group", "nn", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "tensor",
]


def is_available():
    """Always True: a world of one process needs nothing."""
    return True


def is_gloo_available():
    """Always True: the name of a backend decides nothing in a world of one."""
    return True


def is_nccl_available():
    """Always True: the name of a backend decides nothing in a world of one."""
    return True


def is_mpi_available():
    """Always False."""
    return False


def is_torchelastic_launched():
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="", pg_options=None,
                       device_id=None):
    """Begin the world of this process. Its size is `world_size`, else that of the environment (WORLD_SIZE), and has to be 1.

    Raises ValueError when it has begun before, RuntimeError for more than one process.
    """
    check(not is_initialized(), "init_process_group", "to be called once", "a second call", error=ValueError,
          use="destroy_process_group() in between")
    found = int(os.environ.get("WORLD_SIZE", 1)) if world_size < 0 else world_size
    check(found == 1, "init_process_group", "a world of 1 process (there is no communication between processes)", found)
    ProcessGroup.world = ProcessGroup(backend or "undefined")


def destroy_process_group(group=None):
    """End the world; a group of `new_group` just goes."""
    if group is None or group is ProcessGroup.world:
        ProcessGroup.world = None
