"""Tensors spread over several processes. There are none: programs that ask whether a tensor is one are told that it is not."""
from tritorch.errors import check

__all__ = ["DTensor"]


class DTensor:
    """A tensor of which every process has a part, for `isinstance` alone: it cannot be made.

    >>> import tritorch as torch
    >>> isinstance(torch.zeros(3), torch.distributed.tensor.DTensor)
    False
    """

    def __init__(self, *args, **kwargs):
        check(False, "DTensor", "a whole tensor on each rank", "one spread over several processes", use="DistributedDataParallel",
              error=NotImplementedError)
