"""tritorch.cpu: what torch.cpu has, for programs written for any device."""
from tritorch.cpu import amp
from tritorch.cpu.compiled import native
from tritorch.errors import check

__all__ = ["amp", "current_device", "device_count", "is_available", "native", "set_device", "synchronize"]


def is_available():
    """Always True."""
    return True


def device_count():
    """Always 1."""
    return 1


def current_device():
    """Always "cpu"."""
    return "cpu"


def set_device(device):
    """Nothing to choose from."""
    check(str(device).startswith("cpu"), "cpu.set_device", "the CPU", device)


def synchronize(device=None):
    """Work on the CPU is done when the call returns."""
