"""Switches of PyTorch that programs set and ask and that decide little here."""
from tritorch import cuda
from tritorch.autograd.modes import set_detect_anomaly
from tritorch.device import as_device
from tritorch.errors import check, switches

_threads = [1, False]                                                    # between operators, and whether that was chosen
_always = [False]


def get_num_interop_threads():
    """The threads that run operators beside each other on the CPU: one, unless `set_num_interop_threads` was told otherwise, which nothing
    goes by.

    >>> import tritorch as torch; torch.get_num_interop_threads() >= 1
    True
    """
    return _threads[0]


def set_num_interop_threads(n):
    """Note a number of threads for `get_num_interop_threads`: operators run one after the other here. Once only, as in PyTorch."""
    name = "set_num_interop_threads"
    check(isinstance(n, int) and n > 0, name, "a whole number above 0", repr(n))
    check(not _threads[1], name, "to be called once", "another call")
    _threads[:] = n, True


def init_num_threads():
    """Nothing: numpy counts its threads itself."""


def is_vulkan_available():
    """Always False: kernels run on NVIDIA GPUs alone."""
    return False


def set_flush_denormal(mode):
    """Always False, as where PyTorch cannot do it: the numbers of the CPU that are nearest to 0 are kept.

    >>> import tritorch as torch; torch.set_flush_denormal(True)
    False
    """
    switches("set_flush_denormal", mode=mode)
    return False


def set_anomaly_enabled(enabled, check_nan=True):
    """`autograd.set_detect_anomaly` until it is called again: remember where nodes were recorded, and stop at NaN gradients.

    >>> import tritorch as torch
    >>> torch.set_anomaly_enabled(True); torch.is_anomaly_enabled()
    True
    >>> torch.set_anomaly_enabled(False)
    """
    switches("set_anomaly_enabled", enabled=enabled, check_nan=check_nan)
    set_detect_anomaly(enabled, check_nan)


def set_warn_always(b, /):
    """Note for `is_warn_always_enabled` that warnings shall come each time: here they do, as far as Python's filters let them."""
    switches("set_warn_always", RuntimeError, b=b)
    _always[0] = b


def is_warn_always_enabled():
    """What `set_warn_always` was told."""
    return _always[0]


def get_device_module(device=None):
    """The package for a kind of device, `tritorch.cuda` or `tritorch.cpu`; without an argument that of the accelerator, if there is one.

    >>> import tritorch as torch; torch.get_device_module("cpu").__name__
    'tritorch.cpu'
    """
    kind = ("cuda" if cuda.is_available() else "cpu") if device is None else as_device(device).type
    if kind == "cuda":
        return cuda
    from tritorch import cpu

    return cpu
