"""Which device is current (thread by thread), what the devices are, and the choice of the simulated one."""

from __future__ import annotations

import threading

import tritorch.device as devices
from tritorch.cuda import driver
from tritorch.errors import check


class _Current(threading.local):
    index = 0


_current = _Current()


def forget() -> None:
    """Start anew in every thread: the driver was replaced."""
    global _current
    _current = _Current()


driver.watchers.append(forget)


def current_device() -> int:
    """Index of the current device of this thread."""
    return _current.index


devices._current[0] = current_device


def index_of(device=None) -> int:
    """The index meant by a device, a string, an index or None (the current one)."""
    if device is None:
        return _current.index
    if not isinstance(device, int):
        device = devices.as_device(device)
        check(device.type == "cuda", "cuda", "a CUDA device", device, error=ValueError)
        device = device.index
    return device


def set_device(device) -> None:
    """Make `device` the current one of this thread; a negative index changes nothing."""
    index = index_of(device)
    if index >= 0:
        count = driver.current().device_count()
        check(index < count, "set_device", f"an index below {count}", index)
        driver.current().set_device(index)
        _current.index = index


class device:
    """Context manager: `device` is current inside; None or a negative index changes nothing.

    >>> import tritorch
    >>> with tritorch.cuda.device(None):
    ...     pass
    """

    def __init__(self, device):
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = _current.index
        if self.idx != self.prev_idx:
            set_device(self.idx)
        return self

    def __exit__(self, *exception):
        if _current.index != self.prev_idx:
            set_device(self.prev_idx)
        return False


class device_of(device):
    """Context manager: the device of a tensor is current inside; a CPU tensor changes nothing."""

    def __init__(self, tensor):
        super().__init__(tensor.device.index if tensor.is_cuda else None)


def is_available() -> bool:
    """True when there is a CUDA device, real or simulated.

    >>> import tritorch; isinstance(tritorch.cuda.is_available(), bool)
    True
    """
    return driver.available()


def device_count() -> int:
    """Number of CUDA devices; 0 without a driver."""
    return driver.count()


def init() -> None:
    """Choose the driver now. Not needed: the first CUDA tensor does it. Raises RuntimeError when there is no device."""
    driver.current()


def is_initialized() -> bool:
    """True once a driver is in use."""
    return driver.chosen() and not driver.hidden()


def get_device_properties(device=None):
    """Name, compute capability (major, minor), total_memory in bytes, multi_processor_count … of a device."""
    index = index_of(device)
    count = driver.current().device_count()
    check(0 <= index < count, "get_device_properties", f"an index below {count}", index, error=AssertionError)
    return driver.current().device_properties(index)


def get_device_name(device=None) -> str:
    """Name of a device."""
    return get_device_properties(device).name


def get_device_capability(device=None) -> tuple[int, int]:
    """Compute capability (major, minor) of a device."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True when kernels may use bfloat16 on the current device."""
    return is_available() and (including_emulation or get_device_capability()[0] >= 8)


def is_tf32_supported() -> bool:
    """True when the current device multiplies in TF32 (compute capability 8 and above)."""
    return is_available() and get_device_capability()[0] >= 8


def mem_get_info(device=None) -> tuple[int, int]:
    """(free, total) bytes of a device, as the driver sees them."""
    return driver.current().memory_info(index_of(device))


class simulate:
    """Run CUDA code on the host from here on; as a context manager, inside only.

    The simulated device interprets kernels and checks every access; `seed` picks the legal order in which work of different streams runs.
    The native one (`native=True`, or TRITORCH_CUDA=native for a whole program) compiles kernels for the host's processor and checks
    nothing: the fastest of what runs without a GPU. Its work is done when the call returns, by TRITORCH_NATIVE_THREADS threads, or as
    many as there are processors; a kernel that it cannot compile runs in the interpreter, with a warning. It takes Linux on x86-64:
    RuntimeError elsewhere. `devices` is the number of devices; other options go to the driver. Tensors of the driver before must not
    be used while another one is in place.

    >>> import tritorch
    >>> with tritorch.cuda.simulate():
    ...     (tritorch.arange(3, device="cuda") * 2).tolist()
    [0, 2, 4]
    """

    def __init__(self, seed: int = 0, devices: int = 1, native: bool = False, **options):
        if native:
            from tritorch.cuda.native.driver import NativeDriver

            self.driver = NativeDriver(devices=devices, **options)
        else:
            from tritorch.cuda.simulated import SimulatedDriver

            self.driver = SimulatedDriver(seed=seed, devices=devices, **options)
        self.previous = driver.use(self.driver)

    def __enter__(self):
        return self.driver

    def __exit__(self, *exception):
        driver.use(self.previous)
        return False
