"""Where programs look for the settings of PyTorch's code generator."""
from tritorch._inductor import config

__all__ = ["config"]
