"""PyTorch's names for what programs ask of the launcher; `tritorch.distributed.run` is the launcher."""
from tritorch.distributed.elastic import multiprocessing

__all__ = ["multiprocessing"]
