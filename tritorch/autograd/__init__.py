"""Gradients: the graph, the engine, the modes, and functions with gradients of their own."""
from tritorch.autograd.engine import backward, grad
from tritorch.autograd.graph import Node
from tritorch.autograd.modes import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_detect_anomaly,
    set_grad_enabled,
)

__all__ = ["Node", "backward", "detect_anomaly", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled",
           "no_grad", "set_detect_anomaly", "set_grad_enabled"]
