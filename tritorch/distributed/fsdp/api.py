"""What a program says to FullyShardedDataParallel, under PyTorch's names."""
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tritorch.dtype import dtype
from tritorch.nn.norm import _BatchNorm

__all__ = [
    "BackwardPrefetch", "CPUOffload", "FullOptimStateDictConfig", "FullStateDictConfig", "LocalOptimStateDictConfig",
    "LocalStateDictConfig", "MixedPrecision", "OptimStateDictConfig", "OptimStateKeyType", "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig", "ShardingStrategy", "StateDictConfig", "StateDictSettings", "StateDictType",
]


class ShardingStrategy(enum.Enum):
    """What is in parts. FULL_SHARD: parameters, gradients and optimizer states, at all times but for the computation of a module.
    SHARD_GRAD_OP: parameters stay whole between forward and backward. NO_SHARD: nothing, gradients are averaged. HYBRID_SHARD: as
    FULL_SHARD inside of each node, nodes are replicas of each other; _HYBRID_SHARD_ZERO2: as SHARD_GRAD_OP there."""

    FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2 = range(1, 6)


class BackwardPrefetch(enum.Enum):
    """Whether the parameters that backward needs next are gathered before it computes with those of now, or after."""

    BACKWARD_PRE, BACKWARD_POST = range(1, 3)


@dataclass
class MixedPrecision:
    """In which dtypes a unit computes; its shards, and with them what optimizers see, keep the dtype of the parameters.

    `param_dtype`: that of the whole parameters, and so of the computation. `reduce_dtype`: that in which gradients are averaged (None:
    `param_dtype`). `buffer_dtype`: that of the buffers from the first forward pass on; state dicts have them in the dtype from before.
    `cast_root_forward_inputs`: floating inputs of the outermost unit are cast to `param_dtype`; `cast_forward_inputs`: those of every
    unit. Modules of `_module_classes_to_ignore` become units of their own without mixed precision, where a policy wraps. None casts
    nothing. `keep_low_precision_grads` is refused: gradients have the dtype of their parameters here.
    """

    param_dtype: dtype | None = None
    reduce_dtype: dtype | None = None
    buffer_dtype: dtype | None = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: Sequence = (_BatchNorm,)


@dataclass
class CPUOffload:
    """Whether shards, their gradients and the optimizer's state are in host memory."""

    offload_params: bool = False


class StateDictType(enum.Enum):
    """What `state_dict` of a sharded model has: whole tensors, what this rank has of them, or DTensors."""

    FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT = range(1, 4)


@dataclass
class StateDictConfig:
    """`offload_to_cpu`: tensors are on the CPU."""

    offload_to_cpu: bool = False


@dataclass
class FullStateDictConfig(StateDictConfig):
    """Of FULL_STATE_DICT. `rank0_only`: the others get an empty dict."""

    rank0_only: bool = False


@dataclass
class LocalStateDictConfig(StateDictConfig):
    """Of LOCAL_STATE_DICT."""


@dataclass
class ShardedStateDictConfig(StateDictConfig):
    """Of SHARDED_STATE_DICT. It has DTensors with and without `_use_dtensor`."""

    _use_dtensor: bool = False


@dataclass
class OptimStateDictConfig:
    """`offload_to_cpu`: tensors of the optimizer's state are on the CPU."""

    offload_to_cpu: bool = True


@dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """Of FULL_STATE_DICT. `rank0_only`: the others get an empty dict."""

    rank0_only: bool = False


@dataclass
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """Of LOCAL_STATE_DICT."""

    offload_to_cpu: bool = False


@dataclass
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """Of SHARDED_STATE_DICT. It has DTensors with and without `_use_dtensor`."""

    _use_dtensor: bool = False


@dataclass
class StateDictSettings:
    """How the state dicts of a model and of its optimizer are made."""

    state_dict_type: StateDictType
    state_dict_config: StateDictConfig
    optim_state_dict_config: OptimStateDictConfig


class OptimStateKeyType(enum.Enum):
    """Whether the states of an optimizer go by the names of parameters or by their numbers."""

    PARAM_NAME, PARAM_ID = range(1, 3)
