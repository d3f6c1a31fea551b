"""Signal processing: `tritorch.signal.windows`."""
from tritorch.signal import windows

__all__ = ["windows"]
