"""Multi-head attention, and the choice of how scaled_dot_product_attention is computed."""
import contextlib

from tritorch.errors import check
from tritorch.nn.attention.multihead import MultiheadAttention, NonDynamicallyQuantizableLinear
from tritorch.ops.attention_backends import SDPBackend, backends

__all__ = ["MultiheadAttention", "NonDynamicallyQuantizableLinear", "SDPBackend", "sdpa_kernel"]
_allowed = backends


@contextlib.contextmanager
def sdpa_kernel(backends, set_priority=False):
    """Context manager, also a decorator: scaled_dot_product_attention uses one of `backends` inside, an SDPBackend or a list of them.

    With SDPBackend.MATH alone the scores are stored and every step is an operator of its own; any other member allows the fused kernels,
    which are used wherever they are allowed, so `set_priority` changes nothing. Raises TypeError for what is no SDPBackend.

    >>> import tritorch as torch; from tritorch.nn.attention import SDPBackend, sdpa_kernel
    >>> x = torch.ones(1, 2, 3, 4)
    >>> with sdpa_kernel(SDPBackend.MATH):
    ...     torch.nn.functional.scaled_dot_product_attention(x, x, x).shape
    tritorch.Size([1, 2, 3, 4])
    """
    wanted = [backends] if isinstance(backends, SDPBackend) else list(backends)
    check(all(isinstance(b, SDPBackend) for b in wanted), "sdpa_kernel", "members of SDPBackend", backends, error=TypeError)
    before, _allowed.allowed = _allowed.allowed, frozenset(wanted)
    try:
        yield
    finally:
        _allowed.allowed = before
