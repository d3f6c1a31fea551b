"""Which ways of computing attention `scaled_dot_product_attention` may choose from, in this thread."""
import threading
from enum import IntEnum


class SDPBackend(IntEnum):
    """PyTorch's names of the ways. FLASH_ATTENTION, EFFICIENT_ATTENTION and CUDNN_ATTENTION all mean the fused kernels, which never store
    the scores; MATH means products and softmax, one after the other."""

    ERROR, MATH, FLASH_ATTENTION, EFFICIENT_ATTENTION, CUDNN_ATTENTION, OVERRIDEABLE = range(-1, 5)


class _Backends(threading.local):
    allowed = frozenset((SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION))

    def plain(self):
        """Whether the scores have to be stored: True where only MATH is allowed. Raises RuntimeError where nothing is."""
        if self.allowed is _Backends.allowed:
            return False
        if not self.allowed:
            raise RuntimeError("scaled_dot_product_attention: expected at least one backend that may be used, got none")
        return self.allowed == {SDPBackend.MATH}


backends = _Backends()
