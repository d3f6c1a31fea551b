"""Tensors spread over several processes. There are none: programs that ask whether a tensor is one are told that it is not."""
from tritorch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard
from tritorch.errors import check

__all__ = ["DTensor", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor"]


def _none(name):
    check(False, name, "a whole tensor on each rank", "one spread over several processes", use="DistributedDataParallel",
          error=NotImplementedError)


class DTensor:
    """A tensor of which every process has a part, for `isinstance` alone: it cannot be made.

    >>> import tritorch as torch
    >>> isinstance(torch.zeros(3), torch.distributed.tensor.DTensor)
    False
    """

    def __init__(self, *args, **kwargs):
        _none("DTensor")

    @staticmethod
    def from_local(*args, **kwargs):
        """NotImplementedError, as the class."""
        _none("DTensor")


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    """NotImplementedError: packages that can spread a tensor over processes import it, and call it where they are told to."""
    _none("distribute_tensor")


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """NotImplementedError, as `distribute_tensor`."""
    _none("distribute_module")
