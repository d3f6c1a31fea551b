"""Data loading and checkpointing."""
from tritorch.utils import data

__all__ = ["data"]
