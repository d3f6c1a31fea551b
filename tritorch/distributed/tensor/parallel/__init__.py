"""Tensor and sequence parallelism: which layers of a module are cut, and how.

>>> import tritorch as torch
>>> from tritorch import distributed as dist
>>> from tritorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
>>> mesh = dist.init_device_mesh("cpu", (1,))
>>> mlp = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
>>> mlp = parallelize_module(mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
>>> mlp[0].weight.placements, mlp[2].weight.placements, mlp(torch.ones(3, 4)).shape
((Shard(dim=0),), (Shard(dim=1),), tritorch.Size([3, 4]))
>>> dist.destroy_process_group()
"""
from tritorch.distributed.tensor.parallel.api import parallelize_module
from tritorch.distributed.tensor.parallel.loss import loss_parallel
from tritorch.distributed.tensor.parallel.style import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

__all__ = ["ColwiseParallel", "ParallelStyle", "PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput", "RowwiseParallel",
           "SequenceParallel", "loss_parallel", "parallelize_module"]
