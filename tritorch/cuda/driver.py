"""The protocol between tritorch and a device, and the choice of who speaks it.

Everything above this file is the same code on a GPU (`nvidia.NvidiaDriver`), on the simulated device (`simulated.SimulatedDriver`) and on
the native one, which compiles kernels for the host (`native.driver.NativeDriver`). Handles (streams, events, graphs) and pointers are plain
ints, sizes are bytes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tritorch.errors import OutOfMemoryError


class DriverError(RuntimeError):
    """A driver call failed; the message names the call, the error and what the error means."""


class OutOfMemory(OutOfMemoryError):
    """The device has no memory left for this request; the allocator catches it and tries again."""


@dataclass(frozen=True)
class DeviceProperties:
    """What a device is, under PyTorch's names; sizes in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int
    shared_memory_per_block_optin: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_multiprocessor: int = 0
    clock_rate: int = 0
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    driver_version: int = 0


class Function(Protocol):
    """A kernel, compiled or interpreted, ready to start."""

    info: dict[str, Any]
    """On a GPU: registers, spills (bytes a thread), shared (bytes a block), num_warps. May be empty elsewhere."""

    def launch(self, gx: int, gy: int, gz: int, stream: int, values: Sequence[Any]) -> None:
        """Queue the kernel on `stream`. `values` holds one entry for every leaf argument (tuples are flattened) that is
        not a constexpr, in order: pointers and integers as int, floats as float, bools as bool, host TMA descriptors as
        `launch.TensorDescriptor`. Values are read before the call returns; the sequence may be reused after it."""


class Driver(Protocol):
    """Some forty calls. All of them may be made from any thread; all but the waiting ones return at once. Nobody keeps one of these
    methods: while kernels compile, others stand in their place (`ahead`)."""

    name: str
    """"nvidia", "simulated" or "native"."""

    # devices
    def device_count(self) -> int:
        """Number of devices."""

    def device_properties(self, index: int) -> DeviceProperties:
        """Properties of a device."""

    def set_device(self, index: int) -> None:
        """Make `index` the device of this thread: what alloc, stream_create, event_create, load and the default stream mean."""

    def memory_info(self, index: int) -> tuple[int, int]:
        """(free, total) bytes of a device."""

    def can_access_peer(self, index: int, peer: int) -> bool:
        """Whether kernels on a device can read the memory of another."""

    def synchronize(self, index: int) -> None:
        """Wait for all work queued on a device. Errors of queued kernels are raised here."""

    # memory
    def alloc(self, nbytes: int) -> int:
        """Device memory, at least 256-byte aligned. Raises OutOfMemory. Never waits for queued work, legal during capture."""

    def free(self, ptr: int) -> None:
        """Give device memory back. May wait for the device; never called during capture."""

    def host_alloc(self, nbytes: int) -> int:
        """Page-locked host memory that every device can read; copies from and to it are asynchronous."""

    def host_free(self, ptr: int) -> None:
        """Give page-locked memory back."""

    def copy(self, dst: int, src: int, nbytes: int, kind: str, stream: int) -> None:
        """Queue a copy. `kind`: "h2d", "d2h", "d2d", "p2p" (between devices). The host's memory, page-locked or not, must stay as it is
        until the copy has run."""

    def fill(self, ptr: int, value: int, width: int, count: int, stream: int) -> None:
        """Queue `count` repetitions of an unsigned pattern of `width` bytes (1, 2 or 4)."""

    # memory of other processes
    def ipc_handle(self, ptr: int) -> tuple[bytes, int]:
        """What another process needs to open the memory that `ptr` is in, and how many bytes before `ptr` that begins."""

    def ipc_open(self, handle: bytes) -> int:
        """The address here of another process's memory. It is not that process's before this one calls ipc_close."""

    def ipc_close(self, ptr: int) -> None:
        """Let go of memory of another process, once nothing queued here uses it."""

    # streams; 0 is the default (legacy) stream of the current device
    def stream_create(self, priority: int) -> int:
        """A new stream that does not wait for the default one; lower priority numbers go first (0 normal, -1 and below high)."""

    def stream_destroy(self, stream: int) -> None:
        """Forget a stream; queued work still runs."""

    def stream_synchronize(self, stream: int) -> None:
        """Wait for the work queued on a stream."""

    def stream_query(self, stream: int) -> bool:
        """True when all work queued on a stream is done."""

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Work queued on `stream` from now on waits for the last record of `event`."""

    # events
    def event_create(self, timing: bool) -> int:
        """A new event; `timing` for event_elapsed (without it recording is cheaper)."""

    def event_destroy(self, event: int) -> None:
        """Forget an event."""

    def event_record(self, event: int, stream: int) -> None:
        """The event happens when the work queued on `stream` so far is done."""

    def event_query(self, event: int) -> bool:
        """True when the last record has happened, or there is none."""

    def event_synchronize(self, event: int) -> None:
        """Wait for the last record."""

    def event_elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two events that have happened."""

    # kernels
    def load(self, kernel: Any, signature: dict, constexprs: dict, attrs: dict, options: dict) -> Function:
        """Make a kernel ready on this thread's device.

        kernel:     a triton JITFunction.
        signature:  parameter name -> type ("*fp32", "i32", "fp64", "i1", "constexpr", "tensordesc<bf16[128, 64]>"; a tuple
                    argument: a tuple of types), every parameter, in order.
        constexprs: path -> value for every leaf that is "constexpr" in the signature; a path is (position,), or
                    (position, position in the tuple). None and integers equal to 1 arrive this way too.
        attrs:      path -> [["tt.divisibility", 16]] for pointers and integers that are multiples of 16.
        options:    num_warps, num_stages, …: what triton.compile takes.
        """

    # graphs
    def capture_begin(self, stream: int) -> None:
        """Record what is queued on `stream` (not the default one), and on streams that wait for it, instead of running it."""

    def capture_end(self, stream: int) -> int:
        """Stop recording: a graph handle. Raises DriverError when the capture was invalidated."""

    def capture_status(self, stream: int) -> bool:
        """True while work queued on `stream` is being recorded."""

    def graph_instantiate(self, graph: int) -> int:
        """An executable copy of a graph."""

    def graph_launch(self, executable: int, stream: int) -> None:
        """Queue one run of an executable graph."""

    def graph_destroy(self, graph: int) -> None:
        """Forget a graph; executables made from it live on."""

    def exec_destroy(self, executable: int) -> None:
        """Forget an executable graph; queued runs still run."""

    # checking
    def annotate(self, ptr: int, nbytes: int, stream: int, live: bool, label: str) -> None:
        """The allocator says which ranges are live, in stream order. The simulated device checks accesses against them;
        a GPU does nothing."""


_NOTHING = "no CUDA device is usable ({}); use device='cpu', or TRITORCH_CUDA=simulated or native to run CUDA code on the host"
functions: dict[Any, Callable] = {}
"""What `launch` has loaded, by all that the machine code depends on; emptied when the driver is replaced."""

call_tables: list[dict] = []
"""What operators remember of the launches of their calls; emptied by forget_calls."""

waiting: list = []
"""The driver whose calls wait for kernels that compile (`ahead`), or nothing."""

alone = True
"""False once another library may queue work on the same memory."""

hardware_tiles = False
"""True while kernels that the simulated device runs must have the block sizes of a GPU, because they will be compiled."""

_lock = threading.RLock()
_chosen: Driver | None = None
_absent: str | None = None
watchers: list[Callable[[], None]] = []
"""Called after the driver was replaced: whoever holds its handles or memory lets go of them here."""


def current() -> Driver:
    """The driver in use, chosen at the first call: TRITORCH_CUDA=simulated, native or none, or unset for a GPU."""
    if _chosen is None:
        _choose()
    if _chosen is None:
        raise RuntimeError(_NOTHING.format(_absent))
    return _chosen


def available() -> bool:
    """True when current() would return a driver that has a device."""
    if _chosen is None:
        _choose()
    return _chosen is not None and not hidden()


def hidden() -> bool:
    """Whether the driver in use is there for tensors of the CPU alone: then there is no CUDA device."""
    return getattr(_chosen, "hidden", False)


def count() -> int:
    """Number of devices, 0 when there is no driver."""
    return current().device_count() if available() else 0


def on_host() -> bool:
    """Whether the driver runs kernels on the host: not what is written for the parts of a GPU, in Gluon or its assembly."""
    return getattr(current(), "on_host", False)


def leaves(kinds: Iterable) -> Iterator[str]:
    """The types, of those in a kernel's signature, of which a launch passes values; those of tuples one by one."""
    for kind in kinds:
        if isinstance(kind, tuple):
            yield from leaves(kind)
        elif kind != "constexpr":
            yield kind


def chosen() -> bool:
    """True once a driver is in use."""
    return _chosen is not None


def forget_calls() -> None:
    """Something changed that implementations look at besides their arguments: the launches they make may be others now."""
    for table in call_tables:
        table.clear()


def share() -> None:
    """Another library is given memory of the device, or a stream is its: no call of ours waits for a kernel from here on."""
    global alone
    alone = False
    if waiting:
        from tritorch.cuda.ahead import catch_up

        catch_up()


def use(driver: Driver | None) -> Driver | None:
    """Install a driver for the whole process and return the one before it; None: choose anew at the next call."""
    global _chosen, _absent, alone
    with _lock:
        alone = True
        previous, _chosen, _absent = _chosen, driver, None
        functions.clear()
        forget_calls()
        for let_go in watchers:
            let_go()
        return previous


@contextlib.contextmanager
def using(driver: Driver | None) -> Iterator[Driver | None]:
    """Another driver inside: `with using(DryDriver(90)):`."""
    before = use(driver)
    try:
        yield driver
    finally:
        use(before)


def _choose() -> None:
    global _chosen, _absent
    with _lock:
        if _chosen is None and _absent is None:
            wanted = os.environ.get("TRITORCH_CUDA", "")
            if wanted == "simulated":
                from tritorch.cuda.simulated import SimulatedDriver

                _chosen = SimulatedDriver()
            elif wanted == "native":
                from tritorch.cuda.native.driver import NativeDriver

                _chosen = NativeDriver()
            elif wanted == "none":
                _absent = "TRITORCH_CUDA=none"
            elif wanted in ("", "nvidia"):
                _choose_nvidia()
            else:
                raise ValueError(f"TRITORCH_CUDA: expected simulated, native, nvidia or none, got {wanted}")


def _choose_nvidia() -> None:
    global _chosen, _absent
    try:
        from tritorch.cuda.nvidia import NvidiaDriver

        driver = NvidiaDriver()
    except ImportError as error:
        _absent = f"{error}; pip install cuda-bindings"
    except (DriverError, RuntimeError) as error:
        _absent = str(error)
    else:
        if driver.device_count():
            _chosen = driver
        else:
            _absent = "the NVIDIA driver lists no GPU"
