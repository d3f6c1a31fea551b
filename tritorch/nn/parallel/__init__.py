"""Modules in several processes (DistributedDataParallel), or on several devices of one."""
import importlib

from tritorch.nn.parallel.data_parallel import DataParallel, data_parallel
from tritorch.nn.parallel.scatter_gather import gather, scatter

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel", "gather", "scatter"]


def __getattr__(name):
    """DistributedDataParallel, and with it tritorch.distributed, loads when it is first asked for."""
    if name in ("DistributedDataParallel", "distributed"):
        module = importlib.import_module("tritorch.nn.parallel.distributed")
        return module if name == "distributed" else module.DistributedDataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
