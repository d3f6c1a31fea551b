"""`triton_op` and what switches `wrap_triton`, which is always the kernel itself here.

>>> from tritorch._library.triton import is_wrap_triton_enabled, set_wrap_triton_enabled
>>> with set_wrap_triton_enabled(False):
...     is_wrap_triton_enabled()
False
"""
import contextlib
import threading

from tritorch.library.operators import triton_op, wrap_triton

__all__ = ["capture_triton", "is_wrap_triton_enabled", "set_wrap_triton_enabled", "triton_op", "wrap_triton"]
capture_triton = wrap_triton
_switch = threading.local()


def is_wrap_triton_enabled():
    """What `set_wrap_triton_enabled` has set, at first True. Launches are the same either way."""
    return getattr(_switch, "on", True)


@contextlib.contextmanager
def set_wrap_triton_enabled(enabled):
    """Until the end of the `with` block `is_wrap_triton_enabled()` is `enabled`."""
    before, _switch.on = is_wrap_triton_enabled(), enabled
    try:
        yield
    finally:
        _switch.on = before
