"""One checked call of the CUDA driver: its values, or an error that names the call and says what it means."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from tritorch.cuda.driver import DriverError, OutOfMemory

_OUT_OF_MEMORY, _NOT_INITIALIZED, _DEINITIALIZED, _INVALID_IMAGE, _OUT_OF_RESOURCES = 2, 3, 4, 200, 701
_LATE = {700, 702, 710, 714, 715, 716, 717, 718, 719, 721}      # a kernel that was queued before failed; every later call says so
_BROKEN = {214, 220, 226, 709, 911, 999}                        # as late, and nobody's kernel: memory errors, links, a context that is gone
_HINTS = {
    _OUT_OF_RESOURCES: "; use smaller blocks, fewer num_warps or num_stages",
    _INVALID_IMAGE: "; machine code of a CUDA that this driver does not know: use a newer driver, or an older triton (3.8 has CUDA 12 for "
                    "Hopper, 3.9 has 13), or name its older ptxas in TRITON_PTXAS_BLACKWELL_PATH",
    _NOT_INITIALIZED: "; a forked process cannot use the GPU of its parent: use the start method 'spawn' or 'forkserver'",
}
_NOBODYS = {_NOT_INITIALIZED, _DEINITIALIZED, *_LATE, *_BROKEN}
_HINTS |= dict.fromkeys(_LATE, "; a kernel started before failed: run with CUDA_LAUNCH_BLOCKING=1 to see which")


def call(name: str, *args: Any) -> Any:
    """Call `name` of the driver API: None, the value, or the tuple of values it returns."""
    result = getattr(cu, name)(*args)
    if result[0]:
        raise failure(name, result[0])
    return result[1] if len(result) == 2 else result[1:] or None


def release(name: str, handle: int) -> None:
    """Call a function that frees something. At the end of the process the driver may have freed it before, in a forked process it is the
    parent's, and a device that failed takes nothing back: every other call says so."""
    result = getattr(cu, name)(handle)
    if result[0] and int(result[0]) not in _NOBODYS:
        raise failure(name, result[0])


def failure(name: str, error: Any) -> RuntimeError:
    """The exception for an error code of the driver."""
    code, text = (answer(error)[1] or b"unknown error" for answer in (cu.cuGetErrorName, cu.cuGetErrorString))
    kind = OutOfMemory if int(error) == _OUT_OF_MEMORY else DriverError
    return kind(f"{name}: {code.decode()}: {text.decode()}{_HINTS.get(int(error), '')}")
