"""Processes that a launcher has started."""
from tritorch.distributed.elastic.multiprocessing import errors

__all__ = ["errors"]
