"""Devices, streams and events on the simulated device, in the orders that its seeds draw."""

import contextlib
import threading

import numpy as np
import pytest
from recording_driver import installed

import tritorch.cuda as cuda
from tritorch.cuda import driver, memory
from tritorch.cuda.allocator import allocate, record_stream
from tritorch.cuda.stream import POOL, current_handle

SEEDS = range(12)


@pytest.fixture
def simulated():
    with cuda.simulate(seed=0, devices=2) as device:
        yield device


def value(block):
    return int(memory.download(block.ptr, 1, 0)[0])


# ------------------------------------------------------------------ devices
def test_the_current_device_belongs_to_the_thread(simulated):
    assert (cuda.device_count(), cuda.current_device()) == (2, 0)
    seen = []
    with cuda.device("cuda:1"):
        assert cuda.current_device() == 1
        thread = threading.Thread(target=lambda: seen.append(cuda.current_device()))
        thread.start()
        thread.join()
        with cuda.device(None), cuda.device(-1):
            assert cuda.current_device() == 1
    assert (cuda.current_device(), seen) == (0, [0])
    cuda.set_device(1)
    assert str(cuda.current_stream().device) == "cuda:1"
    cuda.set_device(0)


def test_devices_that_do_not_exist(simulated):
    with pytest.raises(RuntimeError, match="set_device: expected an index below 2, got 2"):
        cuda.set_device(2)
    with pytest.raises(AssertionError, match="an index below 2"):
        cuda.get_device_properties(2)
    with pytest.raises(ValueError, match="a CUDA device, got cpu"):
        cuda.set_device("cpu")


def test_devices_describe_themselves(simulated):
    assert cuda.is_available() and cuda.is_initialized() and cuda.is_bf16_supported() and cuda.is_tf32_supported()
    assert cuda.get_device_capability() == (9, 0)
    assert cuda.get_device_name("cuda:1") == cuda.get_device_properties(1).name
    free, total = cuda.mem_get_info()
    block = allocate(1 << 20, 0, 0)
    assert cuda.mem_get_info() == (free - (2 << 20), total)
    del block


def test_a_simulation_ends_with_its_block(simulated):
    with cuda.simulate(seed=5) as inner:
        assert driver.current() is inner and cuda.device_count() == 1
        stream = cuda.Stream()
        cuda.set_stream(stream)
    assert driver.current() is simulated
    assert current_handle(0) == 0


def test_without_a_device_every_question_is_answered(monkeypatch):
    monkeypatch.setenv("TRITORCH_CUDA", "none")
    with driver.using(None):
        assert not cuda.is_available() and cuda.device_count() == 0 and not cuda.is_initialized()
        assert (cuda.current_device(), cuda.memory_allocated(), cuda.is_current_stream_capturing()) == (0, 0, False)
        with pytest.raises(RuntimeError, match="no CUDA device is usable"):
            cuda.synchronize()


# ------------------------------------------------------------------ which stream is current
def test_streams_nest_and_undo_themselves(simulated):
    first, second = cuda.Stream(), cuda.Stream(priority=-1)
    assert cuda.current_stream() == cuda.default_stream() and current_handle(0) == 0
    with cuda.stream(first):
        with pytest.raises(KeyError), cuda.stream(second):
            assert cuda.current_stream() is second and current_handle(0) == second.cuda_stream
            raise KeyError
        with cuda.stream(None), second, second:
            assert cuda.current_stream() is second
        assert cuda.current_stream() is first
    assert cuda.current_stream() == cuda.default_stream()


def test_a_stream_brings_its_device(simulated):
    far = cuda.Stream("cuda:1")
    with cuda.stream(far):
        assert (cuda.current_device(), cuda.current_stream()) == (1, far)
        assert cuda.current_stream(0) == cuda.default_stream(0)
    assert cuda.current_device() == 0 and cuda.current_stream(1) == cuda.default_stream(1)
    cuda.set_stream(far)
    assert (cuda.current_device(), current_handle(1)) == (1, far.cuda_stream)
    cuda.set_stream(cuda.default_stream(1))
    cuda.set_stream(None)
    cuda.set_device(0)


def test_the_current_stream_belongs_to_the_thread(simulated):
    seen = []
    with cuda.stream(cuda.Stream()):
        thread = threading.Thread(target=lambda: seen.append(current_handle(0)))
        thread.start()
        thread.join()
    assert seen == [0]


def test_streams_come_from_a_pool(simulated):
    streams = [cuda.Stream() for _ in range(POOL + 1)]
    assert len(set(streams)) == POOL and streams[0] == streams[POOL]
    assert cuda.Stream(priority=-1) not in streams
    assert cuda.ExternalStream(streams[3].cuda_stream) == streams[3] == cuda.get_stream_from_external(streams[3].cuda_stream)
    assert hash(streams[0]) == hash(streams[POOL]) and streams[0] != 3
    assert cuda.Stream.priority_range() == (0, -5)
    assert (streams[0].device_index, streams[0].stream_id) == (0, streams[0].cuda_stream)
    assert "cuda_stream=" in repr(streams[0])


# ------------------------------------------------------------------ order
def race(seed, wait):
    """What a stream reads that another stream writes."""
    with cuda.simulate(seed=seed):
        writer, reader = cuda.Stream(), cuda.Stream()
        x, y = (allocate(1, 0, writer.cuda_stream) for _ in range(2))
        with cuda.stream(writer):
            memory.fill(x.ptr, 0, 1, 1, 0)
            memory.fill(y.ptr, 0, 1, 1, 0)
        cuda.synchronize()
        with cuda.stream(writer):
            memory.fill(x.ptr, 7, 1, 1, 0)
        wait(writer, reader)
        with cuda.stream(reader):
            memory.copy(y.ptr, x.ptr, 1, "d2d", 0)
        cuda.synchronize()
        return value(y)


def by_event(writer, reader):
    event = cuda.Event()
    event.record(writer)
    event.wait(reader)


@pytest.mark.parametrize("wait", [
    lambda writer, reader: reader.wait_stream(writer), lambda writer, reader: reader.wait_event(writer.record_event()), by_event,
    lambda writer, reader: writer.synchronize(), lambda writer, reader: writer.record_event().synchronize(),
    lambda writer, reader: cuda.synchronize()])
def test_waiting_orders_streams(wait):
    assert {race(seed, wait) for seed in SEEDS} == {7}


def test_streams_that_do_not_wait_race():
    assert {race(seed, lambda writer, reader: None) for seed in SEEDS} == {0, 7}


def reuse(seed, record):
    """A block dies on its stream while another one still reads it; its memory is given out and written again."""
    with cuda.simulate(seed=seed):
        other, out = cuda.Stream(), allocate(1, 0, 0)
        block = allocate(1, 0, 0)
        memory.fill(block.ptr, 7, 1, 1, 0)
        other.wait_stream(cuda.current_stream())
        with cuda.stream(other):
            memory.copy(out.ptr, block.ptr, 1, "d2d", 0)
        if record:
            record_stream(block, other)
        del block
        fresh = allocate(1, 0, 0)
        memory.fill(fresh.ptr, 9, 1, 1, 0)
        cuda.synchronize()
        return value(out)


def test_recorded_blocks_are_not_reused_too_early():
    assert {reuse(seed, True) for seed in SEEDS} == {7}


def test_blocks_that_were_not_recorded_are():
    def outcome(seed):
        try:
            return reuse(seed, False)
        except RuntimeError as fault:
            return str(fault)

    assert any(outcome(seed) != 7 for seed in SEEDS)


def test_query_tells_when_work_is_done(simulated):
    stream, block = cuda.Stream(), allocate(1, 0, 0)
    event = cuda.Event()
    assert stream.query() and event.query()
    with cuda.stream(stream):
        memory.fill(block.ptr, 1, 1, 1, 0)
        event.record()
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()


def test_a_stream_of_another_device(simulated):
    far, other = cuda.Stream(1), cuda.Stream(1)
    block = allocate(4, 1, far.cuda_stream)
    record_stream(block, other)
    with cuda.stream(far):
        memory.fill(block.ptr, 3, 4, 1, 1)
    near = cuda.current_stream()
    near.wait_stream(far)
    near.synchronize()
    assert memory.download(block.ptr, 4, 1).view(np.int32)[0] == 3
    other.wait_stream(far)
    del block
    assert cuda.memory_stats(1)["active.all.current"] in (0, 1)
    cuda.synchronize(1)
    assert cuda.memory_stats(1)["active.all.current"] == 0


def test_work_for_a_device_is_asked_of_it_whatever_is_current():
    with installed() as driver:
        for stream in (cuda.Stream(1), cuda.default_stream(1)):
            assert stream.query()
            stream.wait_event(stream.record_event())
            stream.synchronize()
        block, array, recorded = allocate(512, 1, 0), memory.pinned_empty(8), cuda.CUDAGraph()
        record_stream(block, cuda.Stream(1))
        del block                                                        # leaves an event on that stream
        memory.upload(array, 1 << 40, 1, memory.pinned_owner(array), non_blocking=False)
        memory.fill(1 << 40, 0, 1, 8, 1)
        with cuda.device(1), cuda.graph(recorded):
            pass
        recorded.replay()
        elsewhere = [call for call, place in driver.places if place == 0]
        assert {*elsewhere} <= {"set_device", "synchronize", "host_alloc", "event_destroy"}
        assert {*[call for call, _ in driver.places]} >= {
            "stream_create", "stream_query", "stream_wait_event", "stream_synchronize", "event_create", "event_record", "alloc", "copy",
            "fill", "graph_launch"}


# ------------------------------------------------------------------ events
def test_events_measure_milliseconds(simulated):
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert 0 <= start.elapsed_time(end) < 1e4
    assert start.cuda_event and "Event" in repr(start)


def test_events_that_cannot_be_measured():
    with installed() as device:
        timed, plain = cuda.Event(enable_timing=True), cuda.Event()
        with pytest.raises(ValueError, match="created with enable_timing=True"):
            timed.elapsed_time(plain)
        with pytest.raises(ValueError, match="both events recorded"):
            timed.elapsed_time(cuda.Event(enable_timing=True))
        timed.record()
        with pytest.raises(RuntimeError, match="both events completed"):
            timed.elapsed_time(timed)
        with pytest.raises(RuntimeError, match="a stream of cuda:0, where the event was recorded first, got cuda:1"):
            timed.record(cuda.Stream(1))
        with pytest.raises(RuntimeError, match="enable_timing=False when interprocess=True"):
            cuda.Event(enable_timing=True, interprocess=True)
        handle = timed.cuda_event
        del timed
        assert device.named("event_destroy") == [("event_destroy", handle)]


def test_an_event_never_recorded_is_no_obstacle(simulated):
    event = cuda.Event()
    event.wait()
    event.synchronize()
    assert event.query() and event.cuda_event == 0 and "uninitialized" in repr(event)


# ------------------------------------------------------------------ pinned memory
def test_uploads_from_pinned_memory_run_late_and_the_memory_waits():
    for seed in SEEDS:
        with cuda.simulate(seed=seed):
            block = allocate(8, 0, 0)
            array = memory.pinned_empty(8)
            array[:] = 5
            memory.upload(array, block.ptr, 0, memory.pinned_owner(array))
            del array
            other = memory.pinned_empty(8)
            other[:] = 6
            assert memory.download(block.ptr, 8, 0).tolist() == [5] * 8


@pytest.mark.parametrize("captured", [False, True])
def test_pinned_memory_waits_for_downloads_into_it(captured):
    for seed in SEEDS:
        with cuda.simulate(seed=seed):
            block, array, recorded = allocate(8, 0, 0), memory.pinned_empty(8), cuda.CUDAGraph()
            memory.fill(block.ptr, 5, 1, 8, 0)
            with cuda.graph(recorded) if captured else contextlib.nullcontext():
                memory.download_into(array, block.ptr, 0, memory.pinned_owner(array), non_blocking=True)
            del array
            others = [memory.pinned_empty(8) for _ in range(2)]
            for other in others:
                other[:] = 6
            if captured:
                recorded.replay()
            cuda.synchronize()
            assert [other.tolist() for other in others] == [[6] * 8] * 2
            memory.download_into(others[0], block.ptr, 0, memory.pinned_owner(others[0]))
            assert others[0].tolist() == [5] * 8                         # at once, unless it may be late


def test_pinned_memory_gives_its_events_back():
    with installed() as device:
        for pending in (1, 0):
            array = memory.pinned_empty(64)
            memory.upload(array, 1 << 40, 0, memory.pinned_owner(array))
            del array
            if not pending:
                device.pending.clear()
        kept = memory.pinned_empty(64)
        assert len(device.named("host_alloc")) == 2 and kept.nbytes == 64
        assert len(device.named("event_destroy")) == len(device.named("event_create")) == 2


@pytest.mark.parametrize("nbytes", [8, memory.STAGED + 8])
def test_uploads_read_pageable_memory_before_they_return(nbytes):
    """Whatever the driver does with it: little is copied to pinned memory first, for much the host waits."""
    for seed in SEEDS[:4]:
        with cuda.simulate(seed=seed):
            block, array = allocate(nbytes, 0, 0), np.full(nbytes, 5, np.uint8)
            memory.upload(array, block.ptr, 0)
            array[:] = 6
            found = memory.download(block.ptr, nbytes, 0)
            assert found.min() == found.max() == 5


def test_pinned_memory_may_outlive_its_driver():
    before = driver.use(None)
    try:
        with cuda.simulate(devices=2):
            array = memory.pinned_empty(64)
            block = allocate(64, 1, 0)
            with cuda.device(1):
                memory.upload(array, block.ptr, 1, memory.pinned_owner(array))
            del block
        with cuda.simulate(devices=1):
            del array                                                    # was used on a device that is not there now
            kept = [memory.pinned_empty(64) for _ in range(2)]
            assert len({a.__array_interface__["data"][0] for a in kept}) == 2
    finally:
        driver.use(before)
