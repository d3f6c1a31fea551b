"""Tensors spread over devices. A world of one process has none: programs that ask whether a tensor is one are told that it is not."""
from tritorch.errors import check

__all__ = ["DTensor"]


class DTensor:
    """A tensor of which every process has a part, for `isinstance` alone: it cannot be made.

    >>> import tritorch as torch
    >>> isinstance(torch.zeros(3), torch.distributed.tensor.DTensor)
    False
    """

    def __init__(self, *args, **kwargs):
        check(False, "DTensor", "a world of several processes", "one process", use="the tensor itself", error=NotImplementedError)
