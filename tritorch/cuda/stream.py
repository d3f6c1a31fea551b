"""Streams: queues of work on a device. Which one is current is known thread by thread."""

from __future__ import annotations

import threading

from tritorch.cuda import driver, faults, sync_debug
from tritorch.cuda.device import current_device, index_of, set_device
from tritorch.cuda.device import device as on_device
from tritorch.cuda.watching import host_work
from tritorch.device import device as Device
from tritorch.errors import check

POOL = 32                                       # streams of one device and priority; the 33rd Stream is the first again, as in PyTorch


class _Current(threading.local):
    def __init__(self):
        self.streams = {}
        self.handles = {}


_current = _Current()
_defaults: dict[int, Stream] = {}
_made: dict[tuple[int, int], list[int]] = {}    # never destroyed, so that a handle names one queue for ever and so one memory pool
_turn: dict[tuple[int, int], int] = {}
_chosen: dict[tuple, tuple] = {}                # what chosen() has returned
used = 0                                   # how often threads have chosen streams since the driver came: until then no one needs to look
_lock = threading.Lock()
captures: dict = {}                             # device index -> the CUDAGraph that is being recorded there


def forget() -> None:
    """Start anew in every thread: the driver was replaced, so every handle is void."""
    global _current, used
    _current, used = _Current(), 0
    for table in (_defaults, _made, _turn, _chosen, captures):
        table.clear()


driver.watchers.append(forget)


def current_handle(index: int) -> int:
    """The driver's handle of this thread's current stream on a device (0.07 µs)."""
    return _current.handles.get(index, 0)


class Stream:
    """A queue of work on a device. Work of one stream runs in order, work of different streams in any.

    `priority`: 0 normal, -1 and below before it. Streams come from a pool of 32 a device and priority.
    """

    __slots__ = ("device", "handle", "priority", "_context", "__weakref__")

    def __init__(self, device=None, priority: int = 0, **kwargs):
        index = index_of(device)
        self.device, self.priority, self._context = Device("cuda", index), priority, []
        self.handle = kwargs["stream_ptr"] if "stream_ptr" in kwargs else _take(index, priority)

    @property
    def cuda_stream(self) -> int:
        """The driver's handle, for other libraries: what they queue there runs after all that we have queued so far."""
        driver.share()
        return self.handle

    @property
    def device_index(self) -> int:
        """The index of the stream's device."""
        return self.device.index

    @property
    def stream_id(self) -> int:
        """The driver's handle as a number that tells streams apart."""
        return self.handle

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(least, greatest) priority."""
        return 0, -5

    def query(self) -> bool:
        """True when all work queued so far is done."""
        with on_device(self.device.index):
            return driver.current().stream_query(self.handle)

    def synchronize(self) -> None:
        """Wait for the work queued so far."""
        refuse_capture("Stream.synchronize", self.device.index, self.handle)
        if sync_debug.mode[0]:
            sync_debug.told("Stream.synchronize")
        with on_device(self.device.index):
            driver.current().stream_synchronize(self.handle)
        if self.device.index in faults.unread:
            faults.read(self.device.index)

    def record_event(self, event=None):
        """Record `event` (a new one by default) here and return it."""
        from tritorch.cuda.event import Event

        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event) -> None:
        """Work queued here from now on waits for the last record of `event`."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Work queued here from now on waits for what is queued on `stream` now."""
        self.wait_event(stream.record_event())

    def __enter__(self):
        self._context.append(StreamContext(self))
        self._context[-1].__enter__()
        return self

    def __exit__(self, *exception):
        self._context[-1].__exit__(*exception)                   # before it is forgotten: an interrupt between the two does no harm
        self._context.pop()
        return False

    def __eq__(self, other):
        return isinstance(other, Stream) and (self.handle, self.device) == (other.handle, other.device)

    def __hash__(self):
        return hash((self.handle, self.device))

    def __repr__(self):
        return f"<tritorch.cuda.Stream device={self.device} cuda_stream={self.handle:#x}>"


class OnlyStream(Stream):
    """Stands for the default stream where that cannot be used: whoever works inside of `with stream:` has not chosen any."""

    __slots__ = ("_before",)

    def synchronize(self) -> None:
        """Wait for the work queued so far, here and on the stream that this one stood for."""
        refuse_capture("Stream.synchronize", self.device.index, self.handle)
        synchronize(self.device)

    def __enter__(self):
        global used
        used += 1
        index = self.device.index
        self._before = _current.streams.get(index), _current.handles.get(index)
        _current.streams[index], _current.handles[index] = self, self.handle
        return self

    def __exit__(self, *exception):
        global used
        for table, before in zip((_current.streams, _current.handles), self._before):
            if before is None:
                table.pop(self.device.index, None)
            else:
                table[self.device.index] = before
        used -= 1                                               # last: after an interrupt it is only more than need be


class ExternalStream(Stream):
    """A stream made elsewhere, by its driver handle; whoever made it keeps it alive."""

    __slots__ = ()

    def __init__(self, stream_ptr: int, device=None, **kwargs):
        super().__init__(device, stream_ptr=stream_ptr, **kwargs)
        driver.share()


def get_stream_from_external(data_ptr: int, device=None) -> ExternalStream:
    """The Stream of a driver handle made elsewhere."""
    return ExternalStream(data_ptr, device)


def _take(index: int, priority: int) -> int:
    key = index, priority
    with _lock:
        made, turn = _made.setdefault(key, []), _turn.get(key, 0)
        _turn[key] = turn + 1
        if turn < POOL:
            with on_device(index):
                made.append(driver.current().stream_create(priority))
        return made[turn % POOL]


def default_stream(device=None) -> Stream:
    """The stream that is current where nobody chose another."""
    index = index_of(device)
    found = _defaults.get(index)
    if found is None:
        found = _defaults.setdefault(index, Stream(index, stream_ptr=0))
    return found


def current_stream(device=None) -> Stream:
    """This thread's current stream on a device."""
    index = index_of(device)
    return _current.streams.get(index) or default_stream(index)


def chosen() -> tuple | None:
    """This thread's current streams that are not default ones, always the same tuple for the same streams; None where all are default."""
    if not _current.handles:
        return None
    streams = tuple([s for _, s in sorted(_current.streams.items()) if s.handle and type(s) is not OnlyStream])
    return _chosen.setdefault(streams, streams) if streams else None


def set_stream(stream: Stream | None) -> None:
    """Make `stream` and its device current in this thread; None changes nothing. `stream()` undoes itself, this does not."""
    global used
    if stream is not None:
        used += 1
        index = stream.device.index
        if index != current_device():
            set_device(index)
        _current.streams[index], _current.handles[index] = stream, stream.handle


def lasts(index: int, handle: int) -> bool:
    """Whether a stream is there as long as the driver: whoever made another may destroy it."""
    return not handle or any(handle in made for (device, _), made in _made.items() if device == index)


def marks(device, streams) -> list[int] | None:
    """An event at the present end of each (device index, stream), made by the driver `device`; None where that cannot be asked any more:
    a kernel has failed, or it is the driver of this process's parent."""
    events = []
    try:
        for index, stream in streams:
            with on_device(index):
                events.append(device.event_create(False))
                device.event_record(events[-1], stream)
    except driver.DriverError:                                           # finalizers ask, and the error is told by those who wait
        return None
    return events


class StreamContext:
    """Context manager: a stream and its device are current inside; None changes nothing."""

    def __init__(self, stream: Stream | None):
        self.stream, self.before = stream, None

    def __enter__(self):
        if self.stream is not None:
            self.device = current_device()
            self.before = current_stream(self.stream.device.index)
            set_stream(self.stream)

    def __exit__(self, *exception):
        if self.before is not None:
            set_stream(self.before)
            set_device(self.device)
        return False


def stream(stream: Stream | None) -> StreamContext:
    """Context manager: `stream` and its device are current inside.

    >>> import tritorch
    >>> with tritorch.cuda.stream(None):
    ...     pass
    """
    return StreamContext(stream)


def is_capturing(index: int, handle: int) -> bool:
    """True while work queued on a stream is recorded into a graph instead of run. The default stream is never captured."""
    return bool(captures) and handle != 0 and index in captures and driver.current().capture_status(handle)


def refuse_capture(what: str, index: int, handle: int) -> None:
    """Raise when `what`, which waits for the device, is called in a graph capture: the work it waits for is not running."""
    host_work(what)
    check(not captures or not is_capturing(index, handle), what, "no CUDA graph capture on the stream, because it waits for the device",
          "a capture under way", use="it before or after the capture")


def synchronize(device=None) -> None:
    """Wait for all work queued on a device. Errors of kernels that ran meanwhile are raised here."""
    index = index_of(device)
    host_work("synchronize")
    check(index not in captures, "synchronize", "no CUDA graph capture on the device, because it waits for it", "a capture under way",
          use="it before or after the capture")
    driver.current().synchronize(index)
    if index in faults.unread:
        faults.read(index)
