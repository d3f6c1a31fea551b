"""The former place of `tritorch.distributed.fsdp`.

>>> from tritorch.distributed._composable.fsdp import fully_shard  # noqa: F401
"""
from tritorch.distributed.fsdp import (  # noqa: F401
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
