"""Data loading, checkpointing, hooks' handles, trees of containers; counting, timing, logging for TensorBoard."""
import importlib

from tritorch.utils import _pytree, checkpoint, data, hooks

__all__ = ["_pytree", "checkpoint", "data", "hooks"]
_SELDOM = "benchmark", "collect_env", "dlpack", "flop_counter", "model_zoo", "tensorboard"


def __getattr__(name):
    """Modules that load when they are first asked for."""
    if name == "swap_tensors":
        from tritorch.utils.swapping import swap_tensors

        return swap_tensors
    if name in _SELDOM:
        return importlib.import_module("tritorch.utils." + name)
    raise AttributeError(f"module 'tritorch.utils' has no attribute {name!r}")
