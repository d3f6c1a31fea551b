"""Streams, events and graphs of the simulated device keep CUDA's promises and no others."""
import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from tritorch.cuda.driver import DriverError  # noqa: E402
from tritorch.cuda.simulated import SimulatedDriver  # noqa: E402

SEEDS = range(24)
N = 16


@triton.jit
def add_one(x_ptr):
    i = tl.arange(0, 16)
    tl.store(x_ptr + i, tl.load(x_ptr + i) + 1)


@triton.jit
def copy(o_ptr, x_ptr):
    i = tl.arange(0, 16)
    tl.store(o_ptr + i, tl.load(x_ptr + i))


class Device:
    def __init__(self, seed=0):
        self.driver = SimulatedDriver(seed)
        self.add_one_function = self.driver.load(add_one, {"x_ptr": "*fp32"}, {}, {}, {})
        self.copy_function = self.driver.load(copy, {"o_ptr": "*fp32", "x_ptr": "*fp32"}, {}, {}, {})

    def zeros(self, stream):
        ptr = self.driver.alloc(4 * N)
        self.driver.fill(ptr, 0, 4, N, stream)
        return ptr

    def add_one(self, ptr, stream):
        self.add_one_function.launch(1, 1, 1, stream, (ptr,))

    def copy(self, o, x, stream):
        self.copy_function.launch(1, 1, 1, stream, (o, x))

    def read(self, ptr, stream):
        out = np.empty(N, "f4")
        self.driver.copy(out.ctypes.data, ptr, out.nbytes, "d2h", stream)
        self.driver.stream_synchronize(stream)
        return out[0] if (out == out[0]).all() else np.nan


def across_streams(seed, wait):
    """A value made on one stream and copied on another; returns what the copy saw."""
    device = Device(seed)
    a, b = device.driver.stream_create(0), device.driver.stream_create(0)
    x, o = device.zeros(a), device.driver.alloc(4 * N)
    for _ in range(3):
        device.add_one(x, a)
    event = device.driver.event_create(False)
    device.driver.event_record(event, a)
    if wait:
        device.driver.stream_wait_event(b, event)
    device.copy(o, x, b)
    return device.read(o, b)


def test_work_of_one_stream_runs_in_order():
    for seed in SEEDS:
        device = Device(seed)
        x = device.zeros(0)
        for _ in range(5):
            device.add_one(x, 0)
        assert device.read(x, 0) == 5


def test_a_wait_orders_two_streams():
    assert {across_streams(seed, True) for seed in SEEDS} == {3}


def test_a_missing_wait_shows():
    assert len({str(across_streams(seed, False)) for seed in SEEDS}) > 2


def test_nothing_runs_before_it_must():
    device = Device()
    x = device.zeros(0)
    pinned = device.driver.host_alloc(4 * N)
    device.driver.copy(pinned, x, 4 * N, "d2h", 0)
    from tritorch.cuda.simulated.memory import host_bytes

    view = host_bytes(pinned, 4 * N).view("f4")
    view[:] = 7
    assert (view == 7).all()
    device.driver.synchronize(0)
    assert (view == 0).all()


def test_queries_make_progress_and_tell_the_truth():
    device = Device()
    stream = device.driver.stream_create(0)
    event = device.driver.event_create(True)
    assert device.driver.event_query(event)
    x = device.zeros(stream)
    for _ in range(20):
        device.add_one(x, stream)
    device.driver.event_record(event, stream)
    answers = [device.driver.event_query(event) for _ in range(200)]
    assert not answers[0] and answers[-1] and answers == sorted(answers)
    assert device.driver.stream_query(stream)


def test_a_wait_is_for_the_record_before_it():
    for seed in SEEDS:
        device = Device(seed)
        a, b = device.driver.stream_create(0), device.driver.stream_create(0)
        event = device.driver.event_create(False)
        device.driver.stream_wait_event(b, event)      # never recorded: nothing to wait for
        x, y = device.zeros(a), device.zeros(b)
        device.driver.event_record(event, a)
        device.driver.stream_wait_event(b, event)
        device.driver.stream_wait_event(a, event)
        device.driver.event_record(event, b)           # a new record: the wait above is not for this one
        device.add_one(y, b)
        assert device.read(y, b) == 1 and device.read(x, a) == 0


def test_events_measure_time():
    device = Device()
    start, end = device.driver.event_create(True), device.driver.event_create(True)
    device.driver.event_record(start, 0)
    device.zeros(0)
    device.driver.event_record(end, 0)
    with pytest.raises(DriverError, match="NotReady"):
        device.driver.event_elapsed(start, end)
    device.driver.event_synchronize(end)
    assert 0 < device.driver.event_elapsed(start, end) < 1e4


def test_a_full_queue_runs():
    device = Device()
    x = device.zeros(0)
    for _ in range(5000):
        device.add_one(x, 0)
    assert device.driver.queues.count < 2100
    assert device.read(x, 0) == 5000


def captured(device, fork):
    """A graph that adds two to x, and copies it to y on a second stream if `fork`."""
    driver = device.driver
    a, b = driver.stream_create(0), driver.stream_create(0)
    x, y = device.zeros(a), device.zeros(a)
    driver.stream_synchronize(a)
    driver.capture_begin(a)
    assert driver.capture_status(a) and not driver.capture_status(b)
    device.add_one(x, a)
    if fork:
        there, back = driver.event_create(False), driver.event_create(False)
        driver.event_record(there, a)
        driver.stream_wait_event(b, there)
        assert driver.capture_status(b)
        device.copy(y, x, b)
        device.add_one(y, b)
        driver.event_record(back, b)
        driver.stream_wait_event(a, back)
    device.add_one(x, a)
    graph = driver.capture_end(a)
    assert not driver.capture_status(a) and not driver.capture_status(b)
    executable = driver.graph_instantiate(graph)
    driver.graph_destroy(graph)
    return a, x, y, executable


@pytest.mark.parametrize("fork", [False, True])
def test_a_graph_replays(fork):
    for seed in SEEDS:
        device = Device(seed)
        stream, x, y, executable = captured(device, fork)
        assert device.read(x, stream) == 0             # recording ran nothing
        for _ in range(3):
            device.driver.graph_launch(executable, stream)
        assert device.read(x, stream) == 6
        assert device.read(y, stream) == (6 if fork else 0)


def test_branches_of_a_graph_run_in_any_order():
    seen = set()
    for seed in SEEDS:
        device = Device(seed)
        driver = device.driver
        a, b = driver.stream_create(0), driver.stream_create(0)
        x, y = device.zeros(a), device.zeros(a)
        driver.stream_synchronize(a)
        driver.capture_begin(a)
        there, back = driver.event_create(False), driver.event_create(False)
        driver.event_record(there, a)
        driver.stream_wait_event(b, there)
        device.add_one(x, a)
        device.copy(y, x, b)                           # does not wait for the addition
        driver.event_record(back, b)
        driver.stream_wait_event(a, back)
        executable = driver.graph_instantiate(driver.capture_end(a))
        driver.graph_launch(executable, a)
        seen.add(device.read(y, a))
    assert seen == {0, 1}


@pytest.mark.parametrize("call", [
    lambda d, s, e: d.stream_synchronize(s), lambda d, s, e: d.synchronize(0), lambda d, s, e: d.stream_query(s)])
def test_waiting_ends_a_capture(call):
    device = Device()
    stream = device.driver.stream_create(0)
    x = device.zeros(stream)
    device.driver.capture_begin(stream)
    device.add_one(x, stream)
    with pytest.raises(DriverError, match="cudaErrorStreamCaptureUnsupported"):
        call(device.driver, stream, None)
    with pytest.raises(DriverError, match="cudaErrorStreamCaptureInvalidated"):
        device.driver.capture_end(stream)
    device.add_one(x, stream)
    assert device.read(x, stream) == 1


def test_captured_events_are_not_for_the_host():
    device = Device()
    stream, event = device.driver.stream_create(0), device.driver.event_create(False)
    device.driver.capture_begin(stream)
    device.driver.event_record(event, stream)
    for call in (device.driver.event_query, device.driver.event_synchronize):
        with pytest.raises(DriverError, match="cudaErrorCapturedEvent"):
            call(event)


def test_a_branch_must_come_back():
    device = Device()
    driver = device.driver
    a, b, event = driver.stream_create(0), driver.stream_create(0), driver.event_create(False)
    x = device.zeros(a)
    driver.stream_synchronize(a)
    driver.capture_begin(a)
    driver.event_record(event, a)
    driver.stream_wait_event(b, event)
    device.add_one(x, b)
    with pytest.raises(DriverError, match="cudaErrorStreamCaptureUnjoined"):
        driver.capture_end(a)


def test_the_default_stream_is_neither_captured_nor_used_meanwhile():
    device = Device()
    with pytest.raises(DriverError, match="cudaErrorStreamCaptureUnsupported"):
        device.driver.capture_begin(0)
    stream = device.driver.stream_create(0)
    x = device.zeros(stream)
    device.driver.capture_begin(stream)
    with pytest.raises(DriverError, match="cudaErrorStreamCaptureImplicit"):
        device.add_one(x, 0)


def test_memory_of_a_graph_is_poisoned_again_at_every_replay():
    device = Device()
    driver = device.driver
    pool, stream = driver.alloc(4096), driver.stream_create(0)
    x = device.zeros(stream)
    driver.stream_synchronize(stream)
    driver.capture_begin(stream)
    driver.annotate(pool, 64, stream, True, "temporary")
    device.copy(pool, x, stream)
    driver.annotate(pool, 64, stream, False, "temporary")
    driver.annotate(pool, 64, stream, True, "result")
    device.add_one(pool, stream)
    executable = driver.graph_instantiate(driver.capture_end(stream))
    driver.graph_launch(executable, stream)
    assert np.isnan(device.read(pool, stream))         # the result never saw the temporary's numbers


def test_an_error_of_queued_work_is_raised_where_the_host_waits():
    device = Device()
    x = device.zeros(0)
    device.add_one(x + 4 * N, 0)
    device.add_one(x, 0)
    with pytest.raises(RuntimeError, match="add_one"):
        device.driver.synchronize(0)
    assert device.read(x, 0) == 1


def test_unknown_handles():
    device = Device()
    with pytest.raises(DriverError, match="expected a stream"):
        device.driver.stream_synchronize(99)
    with pytest.raises(DriverError, match="expected an event"):
        device.driver.event_record(99, 0)
    with pytest.raises(DriverError, match="expected a grid of positive sizes"):
        device.add_one_function.launch(0, 1, 1, 0, (0,))
    with pytest.raises(DriverError, match="up to .*got \\(1, 65536, 1\\)"):
        device.add_one_function.launch(1, 65536, 1, 0, (0,))
