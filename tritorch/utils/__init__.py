"""Data loading, checkpointing, hooks' handles, trees of containers."""
from tritorch.utils import _pytree, checkpoint, data, hooks

__all__ = ["_pytree", "checkpoint", "data", "hooks"]
