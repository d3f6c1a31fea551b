"""How precisely float32 products are computed on a GPU."""
import contextlib

from tritorch.cuda import driver
from tritorch.errors import check

_PRECISIONS = {"highest": "ieee", "high": "tf32", "medium": "bf16"}
_chosen = "highest"


def set_float32_matmul_precision(precision):
    """Choose how float32 matrix products, convolutions and attention multiply on a GPU; sums are kept in float32.

    "highest" (the default) has the accuracy of IEEE float32, "high" rounds the operands to the nearest TF32 (10 bits), "medium"
    to bfloat16 (7 bits).
    The CPU always computes in float32.

    >>> import tritorch as torch
    >>> torch.set_float32_matmul_precision("high"); torch.get_float32_matmul_precision()
    'high'
    >>> torch.set_float32_matmul_precision("highest")
    """
    global _chosen
    check(precision in _PRECISIONS, "set_float32_matmul_precision", "'highest', 'high' or 'medium'", repr(precision))
    if precision != _chosen:
        _chosen = precision
        driver.forget_calls()


def get_float32_matmul_precision():
    """The precision that `set_float32_matmul_precision` chose."""
    return _chosen


@contextlib.contextmanager
def highest():
    """Products inside keep the accuracy of float32, whatever was chosen: those of factorizations, whose errors grow."""
    global _chosen
    chosen, _chosen = _chosen, "highest"
    try:
        yield
    finally:
        _chosen = chosen


def dot_precision(dtype):
    """What `tl.dot` is told for operands of a dtype; "fp8" is for ours (triton_kernels/matmul.py)."""
    return _PRECISIONS[_chosen] if dtype.name == "float32" else "fp8" if dtype.name.startswith("float8") else "ieee"
