"""Switches of the GPU: the precision of float32 matrix products, and which attention is used."""
import contextlib

from tritorch.errors import check
from tritorch.ops.attention_backends import SDPBackend, backends
from tritorch.precision import get_float32_matmul_precision, set_float32_matmul_precision

_PRECISIONS = {"none": "highest", "ieee": "highest", "tf32": "high"}


class _Matmul:
    """Matrix products. Sums are always kept in float32, so `allow_bf16_reduced_precision_reduction` and the like change nothing."""

    allow_bf16_reduced_precision_reduction = allow_fp16_reduced_precision_reduction = allow_fp16_accumulation = False

    @property
    def allow_tf32(self):
        """Whether float32 operands may be rounded to TF32 (10 bits): precision "high", else "highest"."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value):
        if bool(value) != self.allow_tf32:
            set_float32_matmul_precision("high" if value else "highest")

    @property
    def fp32_precision(self):
        """The same as "ieee" or "tf32"."""
        return "tf32" if self.allow_tf32 else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, value):
        check(value in _PRECISIONS, "backends.cuda.matmul.fp32_precision", "'ieee', 'tf32' or 'none'", repr(value))
        set_float32_matmul_precision(_PRECISIONS[value])


matmul = _Matmul()


def is_built():
    """True: kernels for NVIDIA GPUs are part of the package."""
    return True


def _switch(backend):
    def enabled():
        """Whether scaled_dot_product_attention may use this."""
        return backend in backends.allowed

    def enable(enabled):
        """Let scaled_dot_product_attention use this, or not."""
        backends.allowed = backends.allowed | {backend} if enabled else backends.allowed - {backend}

    return enabled, enable


flash_sdp_enabled, enable_flash_sdp = _switch(SDPBackend.FLASH_ATTENTION)
mem_efficient_sdp_enabled, enable_mem_efficient_sdp = _switch(SDPBackend.EFFICIENT_ATTENTION)
cudnn_sdp_enabled, enable_cudnn_sdp = _switch(SDPBackend.CUDNN_ATTENTION)
math_sdp_enabled, enable_math_sdp = _switch(SDPBackend.MATH)


def is_flash_attention_available():
    """True: the fused kernels are part of the package."""
    return True


@contextlib.contextmanager
def sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=True, enable_cudnn=True):
    """Context manager: the older name of `tritorch.nn.attention.sdpa_kernel`."""
    from tritorch.nn.attention import sdpa_kernel

    chosen = zip((SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION),
                 (enable_flash, enable_math, enable_mem_efficient, enable_cudnn))
    with sdpa_kernel([backend for backend, wanted in chosen if wanted]):
        yield
