"""What a program says about dtypes and about where shards are."""
from dataclasses import dataclass

from tritorch.dtype import dtype

__all__ = ["CPUOffloadPolicy", "MixedPrecisionPolicy", "OffloadPolicy"]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """In which dtypes the modules of a group compute. Shards, and with them what optimizers see, keep the dtype of the parameters.

    `param_dtype` is that of the gathered parameters, and so of the computation; `reduce_dtype` that in which gradients are averaged
    (None: in which they come); `output_dtype` that to which floating outputs of forward are cast; with `cast_forward_inputs` its
    floating inputs are cast to `param_dtype`. None casts nothing.

    >>> import tritorch as torch
    >>> from tritorch.distributed.fsdp import MixedPrecisionPolicy
    >>> MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32).output_dtype is None
    True
    """

    param_dtype: dtype | None = None
    reduce_dtype: dtype | None = None
    output_dtype: dtype | None = None
    cast_forward_inputs: bool = True


@dataclass
class OffloadPolicy:
    """Shards, gradients and the optimizer's state are where the computation is."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Shards, gradients and the optimizer's state are on the CPU: a shard is copied to the GPU before it is gathered, its gradient back
    after it is averaged. `pin_memory`: in page-locked memory, from and to which copies do not keep the host waiting."""

    pin_memory: bool = True
