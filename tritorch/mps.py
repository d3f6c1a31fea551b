"""Apple's GPUs are not supported: there are none, under the names of torch.mps that programs ask before they use one.

>>> import tritorch as torch
>>> torch.mps.is_available(), torch.mps.device_count()
(False, 0)
"""
from tritorch.errors import sentence


def is_available():
    """Always False."""
    return False


def device_count():
    """Always 0."""
    return 0


def manual_seed(seed):
    """Nothing: there is no generator to seed."""


def seed():
    """Nothing: there is no generator to seed."""


def _refuse(name):
    def refuse(*args, **kwargs):
        raise RuntimeError(sentence(name, "a GPU of Apple's", "none"))

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raises RuntimeError, as PyTorch does without such a GPU."
    return refuse


synchronize, empty_cache, current_allocated_memory, driver_allocated_memory, recommended_max_memory, set_per_process_memory_fraction = map(
    _refuse, ("synchronize", "empty_cache", "current_allocated_memory", "driver_allocated_memory", "recommended_max_memory",
              "set_per_process_memory_fraction"))
