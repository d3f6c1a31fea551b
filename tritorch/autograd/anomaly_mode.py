"""PyTorch's name for the file where the hunt for bad gradients is, for programs that import from there."""
from tritorch.autograd.modes import detect_anomaly, set_detect_anomaly

__all__ = ["detect_anomaly", "set_detect_anomaly"]
