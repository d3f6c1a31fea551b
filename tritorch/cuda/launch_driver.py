"""What Triton asks its active driver, answered without torch: the device, its limits, how to time a kernel.

Triton's own NVIDIA driver asks torch for all of it. `after_triton` sees to it that a program that imports tritorch and Triton finds this
one, and that `kernel[grid](...)` takes our tensors; it imports neither.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tritorch.cuda import driver
from tritorch.cuda.device import current_device, get_device_capability, get_device_properties, set_device
from tritorch.cuda.launch import is_tensor
from tritorch.cuda.stream import current_handle, is_capturing, refuse_capture
from tritorch.cuda.watching import watched
from tritorch.device import device as Device

triton_run: list[Callable] = []
"""JITFunction.run as Triton has it, once Triton is there."""


class TritonDriver:
    """The protocol of triton.backends.driver.GPUDriver."""

    get_device_capability = staticmethod(get_device_capability)
    get_current_device = staticmethod(current_device)
    set_current_device = staticmethod(set_device)
    get_current_stream = staticmethod(current_handle)

    def __init__(self):
        self.utils = SimpleNamespace(get_device_properties=_properties)

    @staticmethod
    def is_active() -> bool:
        """Whether there is a device."""
        return driver.available()

    @property
    def launcher_cls(self) -> Any:
        """What Triton starts kernels with that are not given our tensors: there is nothing."""
        raise RuntimeError("kernel[grid](...): expected tensors of tritorch, or of a PyTorch that has CUDA, got neither")

    def get_current_target(self) -> Any:
        """The architecture of the current device."""
        from triton.backends.compiler import GPUTarget

        major, minor = get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_active_torch_device(self) -> Device:
        """The current device."""
        return Device("cuda", current_device())

    def get_device_interface(self) -> Any:
        """Events, streams and synchronize, under the names of torch.cuda."""
        return importlib.import_module("tritorch.cuda")

    def get_benchmarker(self) -> Any:
        """What @triton.autotune times its configurations with."""
        return _benchmark

    def get_empty_cache_for_benchmark(self) -> Any:
        """What `clear_cache` takes; its memory is kept from one benchmark to the next."""
        return None

    def clear_cache(self, cache: Any) -> None:
        """Overwrite the L2 cache."""
        from tritorch.cuda.timing import flush

        flush(driver.current(), current_handle(current_device()))

    def map_python_to_cpp_type(self, ty: str) -> str:
        """The C++ type of a kernel's parameter."""
        from triton.backends.nvidia.driver import ty_to_cpp

        return ty_to_cpp(ty)


def _properties(index: int) -> dict[str, int]:
    found = get_device_properties(index)
    return {"max_shared_mem": found.shared_memory_per_block_optin, "max_num_regs": found.regs_per_multiprocessor,
            "multiprocessor_count": found.multi_processor_count, "warpSize": found.warp_size, "sm_clock_rate": found.clock_rate,
            "mem_clock_rate": found.memory_clock_rate, "mem_bus_width": found.memory_bus_width}


def _benchmark(kernel_call, *, quantiles, timer=None, **kwargs):
    """Milliseconds of a launch, by `timer` or triton.testing.do_bench; infinite where it does not compile or fit. A device that takes no
    time finds all equally fast. The waiting is done once, so who compiles a step is not told of it."""
    from tritorch.cuda.timing import works

    index = current_device()
    stream = current_handle(index)
    if is_capturing(index, stream):
        refuse_capture("triton.autotune", index, stream)
    if driver.current().name == "dry":                           # its launches take no time, and tell `warmup` what to compile
        kernel_call()
    if driver.current().name in ("simulated", "dry"):
        return [0.0] * len(quantiles)
    triton_driver = importlib.import_module("triton.runtime").driver
    active, watcher = triton_driver._active, watched.watcher
    triton_driver.set_active(TritonDriver())                     # torch's, where the program has torch too, knows nothing of our streams
    watched.watcher = None
    try:
        if not works("a kernel", "", lambda _: kernel_call(), stream):
            return [float("inf")] * len(quantiles)
        timer = timer or importlib.import_module("triton.testing").do_bench
        return timer(kernel_call, quantiles=quantiles, **kwargs)
    finally:
        triton_driver.set_active(active)
        watched.watcher = watcher


# ------------------------------------------------------------------ taking the place of Triton's own
def after_triton() -> None:
    """Install once Triton is there, now or later."""
    waiting = {"triton.runtime": _install, "triton.testing": _install_testing}
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)()
    if waiting:
        sys.meta_path.insert(0, _Importer(waiting))


class _Importer(importlib.abc.MetaPathFinder):
    """Waits for the import of modules, and then calls what is to be called."""

    def __init__(self, waiting: dict[str, Callable[[], None]]):
        self.waiting = waiting

    def find_spec(self, fullname, path, target=None):
        if fullname not in self.waiting:
            return None
        install = self.waiting.pop(fullname)
        if not self.waiting:
            sys.meta_path.remove(self)
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def exec_module(module):
                execute(module)
                install()

            found.loader.exec_module = exec_module               # type: ignore[method-assign]
        return found


def _install():
    module = sys.modules["triton.runtime.driver"]
    original = module._create_driver                             # what Triton calls the first time somebody asks for its driver

    def create_driver():
        if torch_is_there():
            try:
                return original()
            except RuntimeError:                                 # a torch without CUDA
                pass
        return TritonDriver()

    module._create_driver = create_driver
    autotuner = sys.modules["triton.runtime.autotuner"].Autotuner
    do_bench = autotuner.do_bench.func

    def timed(self):
        """Whatever a program has chosen to time its configurations with, those that do not fit are passed over."""
        if torch_is_there() and not ours((getattr(self, "nargs", None) or {}).values()):
            return do_bench(self)
        return functools.partial(_benchmark, timer=self._do_bench)

    autotuner.do_bench = property(timed)
    kernel = sys.modules["triton.runtime.jit"].JITFunction

    def run(self, *args, **kwargs):
        """kernel[grid](...) of the first kernel."""
        kernel.run = importlib.import_module("tritorch.cuda.launch_bracket").run
        return kernel.run(self, *args, **kwargs)

    triton_run.append(kernel.run)
    kernel.run = run


def _install_testing():
    module = sys.modules["triton.testing"]
    for name in ("do_bench", "do_bench_cudagraph", "assert_close", "get_max_tensorcore_tflops", "get_max_simd_tflops"):
        setattr(module, name, _given_torch(getattr(module, name)))


def _given_torch(function):
    """A function of Triton's that imports torch finds us under that name, where the program has no other."""
    @functools.wraps(function)
    def call(*args, **kwargs):
        if torch_is_there() and not isinstance(importlib.import_module("triton.runtime").driver.active, TritonDriver):
            return function(*args, **kwargs)
        before, us = sys.modules.get("torch"), importlib.import_module("tritorch")
        sys.modules["torch"] = us
        try:
            if us.cuda.is_available():
                us.cuda.synchronize()                            # what is measured may be on a stream that has not waited for its inputs
            return function(*args, **kwargs)
        finally:
            if before is None:
                del sys.modules["torch"]
            else:
                sys.modules["torch"] = before

    return call


def torch_is_there() -> bool:
    """Whether the program has imported PyTorch itself, not us under its name."""
    found = sys.modules.get("torch")
    return getattr(found, "__name__", None) == "torch" and found is not sys.modules.get("tritorch")       # as_torch renames us


def ours(values) -> bool:
    """Whether a call with another library around is meant for us: there is a tensor of ours, or a descriptor of one."""
    return any(is_tensor(value) or is_tensor(getattr(value, "base", None)) for value in values)


def yield_to_torch() -> None:
    """A kernel is given tensors of torch, which came after Triton had found us."""
    triton_driver = importlib.import_module("triton.runtime").driver
    if isinstance(triton_driver._active, TritonDriver) and torch_is_there():
        triton_driver._default = triton_driver._active = None
