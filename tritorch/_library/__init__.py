"""Where PyTorch keeps what is below `torch.library`: the names that packages of Triton kernels take from there."""
from tritorch.library.operators import triton_op, wrap_triton

capture_triton = wrap_triton

__all__ = ["capture_triton", "triton_op", "wrap_triton"]
