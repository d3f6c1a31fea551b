"""The names of PyTorch's first FSDP, by which programs ask what a module is. Only its successor, `fully_shard`, is here."""
import enum
from dataclasses import dataclass

from tritorch.nn.module import Module


class ShardingStrategy(enum.Enum):
    """What is in parts: `fully_shard` has `reshard_after_forward` and meshes of two dims for it."""

    FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2 = range(1, 6)


@dataclass
class CPUOffload:
    """Whether parameters are in host memory: `fully_shard` has CPUOffloadPolicy for it."""

    offload_params: bool = False


class FullyShardedDataParallel(Module):
    """No module is one: making one raises NotImplementedError.

    >>> import tritorch as torch
    >>> from tritorch.distributed.fsdp import FullyShardedDataParallel
    >>> isinstance(torch.nn.Linear(2, 2), FullyShardedDataParallel)
    False
    """

    def __init__(self, module, *args, **kwargs):
        raise NotImplementedError(f"FullyShardedDataParallel: expected fully_shard, got the class before it, for {type(module).__name__}")
