"""A GPU in host memory that can be debugged: kernels run in an interpreter, every access is checked, streams run in any legal order."""
from __future__ import annotations

from .driver import SimulatedDriver
from .memory import MemoryFault

__all__ = ["MemoryFault", "SimulatedDriver"]
