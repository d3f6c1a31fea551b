"""Modules in several processes (DistributedDataParallel), or on several devices of one."""
from tritorch.nn.parallel.data_parallel import DataParallel, data_parallel
from tritorch.nn.parallel.distributed import DistributedDataParallel

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]
