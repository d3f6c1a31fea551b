"""The operators: a family in each file, `methods` the table that puts them on Tensor and `tritorch`.

Operators of one's own, made by `tritorch.library`, are here too: `tritorch.ops.namespace.name`.
"""


def load_library(path):
    """Raises OSError: a library of PyTorch operators is C++ for PyTorch's tensors. Packages that have one go on without, if they can."""
    raise OSError(f"load_library: expected operators in Python, got the C++ library {path}; use tritorch.library.custom_op")
