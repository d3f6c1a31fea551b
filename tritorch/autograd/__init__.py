"""Gradients: the graph, the engine, the modes, and functions with gradients of their own."""
import importlib

from tritorch.autograd import forward_ad, functional, grad_mode, graph
from tritorch.autograd.engine import backward, grad
from tritorch.autograd.function import Function
from tritorch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from tritorch.autograd.graph import Node
from tritorch.autograd.modes import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_detect_anomaly,
    set_grad_enabled,
    set_multithreading_enabled,
)
from tritorch.autograd.variable import Variable

__all__ = ["Function", "GradcheckError", "Node", "Variable", "backward", "detect_anomaly", "enable_grad", "forward_ad", "functional",
           "grad", "gradcheck",
           "gradgradcheck", "graph", "inference_mode", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "is_grad_enabled",
           "is_inference_mode_enabled",
           "no_grad", "set_detect_anomaly", "set_grad_enabled", "set_multithreading_enabled"]


def __getattr__(name):
    """tritorch.autograd.profiler lies above this layer: it loads when it, or one of its functions, is first asked for."""
    if name in ("profiler", "_profiler_enabled", "_disable_profiler"):
        found = importlib.import_module("tritorch.autograd.profiler")
        return found if name == "profiler" else getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
