"""What the board says of itself by NVML, the library behind nvidia-smi: load, temperature, power, clocks, processes.

The package `nvidia-ml-py` asks it: `pip install 'tritorch[monitoring]'`.
"""
from __future__ import annotations

from types import ModuleType
from typing import Any

from tritorch.cuda import driver
from tritorch.cuda.device import index_of
from tritorch.errors import check


def _library() -> ModuleType:
    """pynvml, started."""
    try:
        import pynvml
    except ImportError as error:
        raise ModuleNotFoundError("pynvml: expected the package nvidia-ml-py, got none; use pip install 'tritorch[monitoring]'") from error
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_LibraryNotFound) as error:
        raise RuntimeError(f"pynvml: expected a loaded NVIDIA driver, got {error}") from error
    return pynvml


def _board(device: Any) -> tuple[ModuleType, Any]:
    """The library and its handle of a device: by its UUID, because NVML counts all boards, whatever CUDA_VISIBLE_DEVICES hides."""
    nvml, index = _library(), index_of(device)
    uuid = getattr(driver.current(), "device_uuid", None)
    check(uuid is not None, "pynvml", "a real GPU", "the simulated one")
    return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid(index))


def utilization(device: Any = None) -> int:
    """Percent of the last sample period (1/6 to 1 s) in which a kernel ran. Raises ModuleNotFoundError without nvidia-ml-py.

    >>> import tritorch as torch
    >>> percent = torch.cuda.utilization()                               # doctest: +SKIP
    """
    nvml, board = _board(device)
    return nvml.nvmlDeviceGetUtilizationRates(board).gpu


def memory_usage(device: Any = None) -> int:
    """Percent of the last sample period in which device memory was read or written; not how much of it is taken, for which see
    `device_memory_used`."""
    nvml, board = _board(device)
    return nvml.nvmlDeviceGetUtilizationRates(board).memory


def device_memory_used(device: Any = None) -> int:
    """Bytes of the device's memory that all processes have taken."""
    nvml, board = _board(device)
    return nvml.nvmlDeviceGetMemoryInfo(board).used


def temperature(device: Any = None) -> int:
    """Degrees Celsius of the chip."""
    nvml, board = _board(device)
    return nvml.nvmlDeviceGetTemperature(board, nvml.NVML_TEMPERATURE_GPU)


def power_draw(device: Any = None) -> int:
    """Milliwatts that the board draws, averaged over the last sample period."""
    nvml, board = _board(device)
    return nvml.nvmlDeviceGetPowerUsage(board)


def clock_rate(device: Any = None) -> int:
    """Megahertz of the multiprocessors' clock."""
    nvml, board = _board(device)
    return nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_SM)


def list_gpu_processes(device: Any = None) -> str:
    """The processes that compute on the device and the memory each has taken, as text; what is missing, where it cannot be asked."""
    try:
        nvml, board = _board(device)
    except (ModuleNotFoundError, RuntimeError) as error:
        return str(error)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(board)
    lines = [f"process {p.pid:>10d} uses {(p.usedGpuMemory or 0) / 2**20:>12.3f} MB GPU memory" for p in processes]
    return "\n".join([f"GPU:{index_of(device)}", *(lines or ["no processes are running"])])
