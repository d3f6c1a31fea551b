"""PyTorch's name for the file where gradient modes are, for programs that import from there."""
from tritorch.autograd.modes import enable_grad, inference_mode, no_grad, set_grad_enabled, set_multithreading_enabled

__all__ = ["enable_grad", "inference_mode", "no_grad", "set_grad_enabled", "set_multithreading_enabled"]
