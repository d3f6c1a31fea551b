"""Training with parameters, gradients and optimizer states in parts, one a process: `fully_shard`.

A module that needs more memory than one GPU has is trained by several: each has a part of every parameter, and the whole of those alone
that it computes with right now. In code it differs from a program of one process by the calls of `fully_shard` between the making of the
model and that of the optimizer. See tutorials/train_fsdp.py. `FullyShardedDataParallel` is the class before it, for programs that wrap.
"""
from tritorch.distributed.fsdp.api import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from tritorch.distributed.fsdp.flat_parameter import FlatParameter
from tritorch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel
from tritorch.distributed.fsdp.module import (
    FSDPModule,
    UnshardHandle,
    disable_fsdp_module_new_init,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from tritorch.distributed.fsdp.policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from tritorch.distributed.fsdp.sharding import fully_shard

__all__ = [
    "BackwardPrefetch", "CPUOffload", "CPUOffloadPolicy", "FSDPModule", "FlatParameter", "FullOptimStateDictConfig",
    "FullStateDictConfig", "FullyShardedDataParallel", "LocalOptimStateDictConfig", "LocalStateDictConfig", "MixedPrecision",
    "MixedPrecisionPolicy", "OffloadPolicy", "OptimStateDictConfig", "OptimStateKeyType", "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig", "ShardingStrategy", "StateDictConfig", "StateDictSettings", "StateDictType", "UnshardHandle", "fully_shard",
    "register_fsdp_forward_method", "share_comm_ctx",
]
