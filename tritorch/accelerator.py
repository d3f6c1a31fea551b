"""The accelerator of this machine, whatever its kind, under the names of torch.accelerator: a CUDA device, or none."""
from tritorch import cuda
from tritorch.cuda import (  # noqa: F401
    Stream,
    current_stream,
    device_count,
    empty_cache,
    is_available,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_stream,
    synchronize,
)
from tritorch.cuda.device import current_device as current_device_index  # noqa: F401
from tritorch.cuda.device import device as device_index  # noqa: F401
from tritorch.cuda.device import mem_get_info as get_memory_info  # noqa: F401
from tritorch.cuda.device import set_device as set_device_index  # noqa: F401
from tritorch.device import device


def current_accelerator(check_available=False):
    """The kind of accelerator that operators run on: device("cuda"), or None without a GPU. `check_available` changes nothing here: what
    cannot be used is not named.

    >>> import tritorch; tritorch.accelerator.current_accelerator() in (None, tritorch.device("cuda"))
    True
    """
    return device("cuda") if cuda.is_available() else None
