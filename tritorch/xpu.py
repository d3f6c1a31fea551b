"""Intel's GPUs are not supported: there are none, under the names of torch.xpu that programs ask before they use one.

>>> import tritorch as torch
>>> torch.xpu.is_available(), torch.xpu.device_count()
(False, 0)
"""
from tritorch.errors import sentence


def is_available():
    """Always False."""
    return False


def is_initialized():
    """Always False."""
    return False


def is_bf16_supported(including_emulation=True):
    """Always False."""
    return False


def device_count():
    """Always 0."""
    return 0


def empty_cache():
    """Nothing: there is no memory to give back."""


def manual_seed(seed):
    """Nothing: there is no generator to seed."""


def manual_seed_all(seed):
    """Nothing: there is no generator to seed."""


def memory_allocated(device=None):
    """Always 0."""
    return 0


def _refuse(name):
    def refuse(*args, **kwargs):
        raise AssertionError(sentence(name, "a GPU of Intel's", "none", use="tritorch.cuda"))

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raises AssertionError, as PyTorch does without such a GPU."
    return refuse


memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated
synchronize, current_device, set_device, get_device_name, get_device_capability, get_device_properties = map(_refuse, (
    "synchronize", "current_device", "set_device", "get_device_name", "get_device_capability", "get_device_properties"))
