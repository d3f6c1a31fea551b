"""torch.distributed: processes that train together. They meet (`init_process_group`), form groups, and do collectives on their tensors.

`python -m tritorch.distributed.run --nproc-per-node 4 train.py` starts a program in four processes, which find in the environment who they
are. Backends: "gloo" (tensors on the CPU, in Python over TCP; those on CUDA through page-locked memory), "nccl" (CUDA, with nccl4py) and
"mpi" (with mpi4py); `pip install tritorch[nccl]`, `tritorch[mpi]`. "nccl" has not run on hardware yet. A world of one process needs
nothing: programs that are written for many run alone, without a change.

The processes of a world trust each other: who can reach the store's port can take part, and collectives of objects unpickle what they get.

>>> import tritorch as torch
>>> from tritorch import distributed as dist
>>> dist.init_process_group("gloo", rank=0, world_size=1)
>>> x = torch.tensor([1.0, 2.0])
>>> dist.all_reduce(x, op=dist.ReduceOp.AVG)
>>> x, dist.get_rank(), dist.get_world_size()
(tensor([1., 2.]), 0, 1)
>>> dist.destroy_process_group()
"""
import importlib

from tritorch.distributed import nn
from tritorch.distributed.backend import (
    Backend,
    BackendConfig,
    get_default_backend_for_device,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
)
from tritorch.distributed.collectives import (
    _all_gather_base,
    _reduce_scatter_base,
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
)
from tritorch.distributed.device_mesh import DeviceMesh, init_device_mesh
from tritorch.distributed.failures import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    QueueEmptyError,
    default_pg_timeout,
)
from tritorch.distributed.file_store import FileStore
from tritorch.distributed.gradient_bucket import GradBucket
from tritorch.distributed.group import ProcessGroup
from tritorch.distributed.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
from tritorch.distributed.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from tritorch.distributed.options import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from tritorch.distributed.rendezvous import register_rendezvous_handler, rendezvous
from tritorch.distributed.stores import HashStore, PrefixStore, Store
from tritorch.distributed.tcp_store import TCPStore
from tritorch.distributed.work import Work
from tritorch.distributed.world import (
    GroupMember,
    destroy_process_group,
    get_backend,
    get_backend_config,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    is_torchelastic_launched,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    split_group,
)

__all__ = [
    "AllToAllOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "Backend", "BackendConfig", "BarrierOptions",
    "BroadcastOptions", "DeviceMesh", "DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "FileStore",
    "GatherOptions", "GradBucket", "GroupMember", "HashStore", "P2POp", "PrefixStore", "ProcessGroup", "QueueEmptyError", "ReduceOp",
    "ReduceOptions", "ReduceScatterOptions", "ScatterOptions", "Store", "TCPStore", "Work", "all_gather", "all_gather_coalesced",
    "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all",
    "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "default_pg_timeout",
    "destroy_process_group", "gather", "gather_object", "get_backend", "get_backend_config", "get_default_backend_for_device",
    "get_global_rank", "get_group_rank", "get_node_local_rank", "get_pg_count", "get_process_group_ranks", "get_rank", "get_world_size",
    "group", "init_device_mesh", "init_process_group", "irecv", "is_available", "is_backend_available", "is_gloo_available",
    "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available",
    "isend", "monitored_barrier", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "nn", "recv", "recv_object_list",
    "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "register_rendezvous_handler", "rendezvous",
    "scatter", "scatter_object_list", "send", "send_object_list", "split_group", "tensor",
]


def __getattr__(name):
    """What is built on collectives and on modules or optimizers loads when it is first asked for."""
    if name in ("algorithms", "checkpoint", "fsdp", "optim", "pipelining", "tensor"):
        return importlib.import_module("tritorch.distributed." + name)
    raise AttributeError(f"module 'tritorch.distributed' has no attribute {name!r}")
