"""Names of torch.distributed.tensor.experimental."""
import contextlib

from tritorch.distributed.tensor.mixing import allowed

__all__ = ["implicit_replication"]


@contextlib.contextmanager
def implicit_replication():
    """Inside, ordinary tensors among DTensors are taken to be the same on all processes.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import Shard, experimental, ones
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> with experimental.implicit_replication():
    ...     y = ones(2, device_mesh=mesh, placements=[Shard(0)]) + torch.tensor([1.0, 2.0])
    >>> y.to_local()
    tensor([2., 3.])
    >>> dist.destroy_process_group()
    """
    allowed.append(True)
    try:
        yield
    finally:
        allowed.pop()
