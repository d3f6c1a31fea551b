"""Data loading and checkpointing."""
from tritorch.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
