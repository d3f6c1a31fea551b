"""The name under which programs look for the shape of a process's piece.

>>> from tritorch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: F401
"""
from tritorch.distributed.tensor.spec import compute_local_shape_and_global_offset  # noqa: F401
