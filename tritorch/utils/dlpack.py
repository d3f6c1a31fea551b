"""Memory shared with other libraries, under the names of torch.utils.dlpack.

>>> import tritorch as torch
>>> from tritorch.utils.dlpack import from_dlpack, to_dlpack
>>> from_dlpack(to_dlpack(torch.ones(2)))
tensor([1., 1.])
"""
from tritorch.interop import from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor):
    """The capsule of a tensor's memory, for libraries that take no objects with `__dlpack__`."""
    return tensor.__dlpack__()
