"""CUDA graphs: record the work of a step once, then queue all of it in one call (under 1 µs a kernel).

A capture runs the Python code and records its kernels and copies instead of running them. What it allocates comes from a
private pool that stays with the graph: a replay writes to the same addresses. Blocks freed inside the capture are used again
inside it; several graphs that are replayed one after another may share a pool.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable

from tritorch.cuda import allocator, driver, faults, measuring
from tritorch.cuda.device import current_device
from tritorch.cuda.device import device as on_device
from tritorch.cuda.memory import Pinned
from tritorch.cuda.stream import OnlyStream, Stream, StreamContext, captures, current_handle, is_capturing, synchronize
from tritorch.errors import check

_ids = itertools.count(1)
replays = [0]                                              # by `replay`: what they write no version tells of
_side: dict[tuple, Stream] = {}                            # (device, kind) -> the stream that graph() captures on
driver.watchers.append(_side.clear)


def graph_pool_handle() -> tuple[int, int]:
    """A name for a new private pool, to be shared by several captures."""
    return 0, next(_ids)


def is_current_stream_capturing() -> bool:
    """True while work queued on the current stream is recorded into a graph instead of run.

    >>> import tritorch; tritorch.cuda.is_current_stream_capturing()
    False
    """
    return current_graph() is not None


def current_graph() -> CUDAGraph | None:
    """The graph into which work queued on the current stream is recorded, or None."""
    if not captures:
        return None
    index = current_device()
    return captures[index] if is_capturing(index, current_handle(index)) else None


class CUDAGraph:
    """A recorded sequence of work. Record it with `tritorch.cuda.graph`, run it with `replay`."""

    def __init__(self, keep_graph: bool = False):
        self.driver = self.executable = self.private = None
        self.index = self.handle = 0
        self.hooks: list[Callable[[], None]] = []
        self.kept: list = []
        self.streams: set[tuple[int, int]] = set()         # where it was replayed

    def capture_begin(self, pool=None, capture_error_mode: str = "global") -> None:
        """Start to record the current stream, which must not be the default one. `pool`: from graph_pool_handle() or another
        graph's pool(). `capture_error_mode` is accepted: recording never forbids calls that other threads make."""
        index = current_device()
        handle = current_handle(index)
        check(capture_error_mode in ("global", "thread_local", "relaxed"), "CUDAGraph.capture_begin",
              "capture_error_mode 'global', 'thread_local' or 'relaxed'", repr(capture_error_mode))
        check(self.private is None, "CUDAGraph.capture_begin", "a graph that holds no capture", "one that does", use="a new CUDAGraph")
        check(handle != 0, "CUDAGraph.capture_begin", "a stream that is not the default one", "the default stream",
              use="tritorch.cuda.graph or tritorch.cuda.stream")
        check(index not in captures, "CUDAGraph.capture_begin", "no other capture on the device", "a capture under way")
        self.driver, self.index, self.handle = driver.current(), index, handle
        try:
            allocator.begin_capture(index, self, pool or graph_pool_handle())
            self.driver.capture_begin(handle)
        except driver.DriverError:                         # it has not begun
            allocator.end_capture(index)
            self.reset()
            raise
        except BaseException:
            self.abandon()
            raise

    def capture_end(self) -> None:
        """Stop recording; the graph is ready for replay."""
        check(self.capturing(), "CUDAGraph.capture_end", "a capture of this graph under way", "none")
        check(current_handle(self.index) == self.handle, "CUDAGraph.capture_end", "the stream that the capture began on",
              "another current stream")
        try:
            recorded = self.stop()
            try:
                self.executable = self.driver.graph_instantiate(recorded)
            finally:
                self.driver.graph_destroy(recorded)
        except driver.DriverError:                         # it has ended
            self.reset()
            raise
        except BaseException:
            self.abandon()
            raise

    def capturing(self) -> bool:
        """Whether a capture of this graph is under way."""
        return captures.get(self.index) is self

    def stop(self) -> int:
        """Leave the capture state, whatever the driver says; the recorded graph."""
        try:
            return self.driver.capture_end(self.handle)
        finally:
            allocator.end_capture(self.index)

    def abandon(self) -> None:
        """End a capture that failed, or an interrupt broke off at whatever line, and keep nothing of it."""
        if self.driver is not None:
            with contextlib.suppress(RuntimeError):  # the first error is the one to tell; or it has ended already
                self.driver.graph_destroy(self.stop())
        self.reset()

    def replay(self) -> None:
        """Queue everything that was recorded on the current stream."""
        check(self.executable is not None, "CUDAGraph.replay", "a captured graph", "none", use="tritorch.cuda.graph to capture it")
        replays[0] += 1
        if current_device() == self.index:
            self.queue(current_handle(self.index))
        else:
            with on_device(self.index):
                self.queue(current_handle(self.index))

    def queue(self, stream: int) -> None:
        """replay() of a captured graph where its device is current and `stream` the current one there."""
        if captures:
            check(self.index not in captures, "CUDAGraph.replay", "no capture on the device", "a capture under way")
        for hook in self.hooks:
            hook()
        self.streams.add((self.index, stream))
        if measuring.meter is None:
            self.driver.graph_launch(self.executable, stream)
        else:
            with measuring.measured("cudaGraphLaunch", self.index, stream):
                self.driver.graph_launch(self.executable, stream)
        if faults.words:
            faults.unread.add(self.index)

    def before_replay(self, hook: Callable[[], None]) -> None:
        """Have `hook` called at the start of every replay: for state that moves on, like a random number generator's offset.
        Device memory that it writes must be allocated on the default stream, outside the recording, and be given to `keep`."""
        self.hooks.append(hook)

    def keep(self, owner) -> None:
        """Keep what recorded work refers to (an Owner, page-locked memory) as long as the graph and its last replays."""
        self.kept.append(owner)

    def pool(self) -> tuple[int, int]:
        """The private pool, for other captures to share."""
        check(self.private is not None, "CUDAGraph.pool", "a captured graph", "none")
        return self.private.id

    def reset(self) -> None:
        """Forget the recording; its memory is free once no tensor uses it."""
        if self.executable is not None:
            self.driver.exec_destroy(self.executable)
        if self.private is not None:
            self.private.users -= 1
        for owner in self.kept:                            # replays may still be using it
            for index, stream in self.streams:
                if isinstance(owner, Pinned):
                    owner.streams.add((index, stream))
                else:
                    allocator.record_use(owner, index, stream)
        self.executable = self.private = None
        self.hooks, self.kept, self.streams = [], [], set()

    def __del__(self, finalizing=sys.is_finalizing):
        if not finalizing():
            self.reset()


class graph:
    """Context manager: what is queued inside is recorded into `cuda_graph`, on `stream` or a stream kept for this.

    Nothing inside runs yet, so nothing inside may ask for a value (`item`, `cpu`, `print`, `synchronize`). Run the same code
    once before, so that kernels are compiled and tuned. An error inside ends the capture and leaves the graph empty.

    >>> import tritorch
    >>> if tritorch.cuda.is_available():
    ...     x, recorded = tritorch.zeros(4, device="cuda"), tritorch.cuda.CUDAGraph()
    ...     with tritorch.cuda.graph(recorded):
    ...         y = x + 1
    ...     recorded.replay()
    """

    def __init__(self, cuda_graph: CUDAGraph, pool=None, stream: Stream | None = None, capture_error_mode: str = "global"):
        index = current_device()
        if stream is None:
            form = Stream if current_handle(index) else OnlyStream           # as in warm-up calls: backward passes go by chosen streams
            stream = _side.get((index, form)) or _side.setdefault((index, form), form(index))
        self.cuda_graph, self.pool, self.capture_error_mode = cuda_graph, pool, capture_error_mode
        self.stream_ctx = StreamContext(stream)

    def __enter__(self):
        synchronize()
        allocator.empty_cache()                            # a capture cannot: warm-up calls left as much as the graph's pool needs
        before = self.cuda_graph.capturing()
        try:
            self.stream_ctx.__enter__()
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            if self.cuda_graph.capturing() and not before:             # an interrupt, after the capture began
                self.cuda_graph.abandon()
            self.stream_ctx.__exit__()
            raise

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph.abandon()
        except BaseException:
            if self.cuda_graph.capturing():                            # an interrupt, before it ended
                self.cuda_graph.abandon()
            raise
        finally:
            self.stream_ctx.__exit__()
        return False
