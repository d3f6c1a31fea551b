"""The operators: a family in each file, `methods` the table that puts them on Tensor and `tritorch`.

Operators of one's own, made by `tritorch.library`, are here too, `tritorch.ops.namespace.name`, and ours under PyTorch's names for them
in `tritorch.ops.aten`.
"""

import importlib.util as _util


def load_library(path):
    """Raises OSError: a library of PyTorch operators is C++ for PyTorch's tensors. Packages that have one go on without, if they can."""
    raise OSError(f"load_library: expected operators in Python, got the C++ library {path}; use tritorch.library.custom_op")


def __getattr__(name):
    """A namespace without operators, as PyTorch has one under every name, so that programs can look into it."""
    if name.startswith("__") or _util.find_spec(f"{__name__}.{name}"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tritorch.ops.namespaces import namespace

    return namespace(name)
