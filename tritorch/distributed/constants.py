"""Timeouts that collectives begin with, under the names of torch.distributed.constants."""
from tritorch.distributed.failures import default_pg_timeout

__all__ = ["default_pg_nccl_timeout", "default_pg_timeout"]

default_pg_nccl_timeout = None                                           # nccl waits as long as the others
