"""The name that tritorch goes by in what it prints: packages compare `str(x.dtype)` and `x.type()` with names of torch."""
import sys


def ours(name):
    """`tritorch.name`, or `torch.name` after `as_torch()`.

    >>> ours("float32")
    'tritorch.float32'
    """
    return f"{sys.modules['tritorch'].__name__}.{name}"
