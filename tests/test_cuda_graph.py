"""CUDA graphs on the simulated device: what is recorded, what memory it keeps, and what it refuses."""

import threading

import numpy as np
import pytest
from recording_driver import RecordingDriver

import tritorch.cuda as cuda
from tritorch.cuda import allocator, driver, memory
from tritorch.cuda.allocator import allocate, record_stream
from tritorch.cuda.graph import current_graph
from tritorch.cuda.stream import captures, current_handle

MIB = 1 << 20


@pytest.fixture(params=range(3))
def simulated(request):
    with cuda.simulate(seed=request.param) as device:
        yield device
        assert not captures


def new(nbytes=1):
    return allocate(nbytes, 0, current_handle(0))


def put(block, number):
    memory.fill(block.ptr, number, 1, block.span.nbytes, 0)


def move(target, source):
    memory.copy(target.ptr, source.ptr, target.span.nbytes, "d2d", 0)


def value(block):
    return int(memory.download(block.ptr, 1, 0)[0])


def inside(block, graph):
    return any(segment["address"] <= block.ptr < segment["address"] + segment["total_size"]
               for segment in cuda.memory_snapshot(graph.pool()))


# ------------------------------------------------------------------ record and replay
def test_a_replay_repeats_the_work_on_new_values(simulated):
    x, y = new(), new()
    put(x, 1)
    put(y, 0)
    recorded = cuda.CUDAGraph()
    with cuda.graph(recorded):
        assert cuda.is_current_stream_capturing() and current_graph() is recorded
        between = new()
        move(between, x)
        move(y, between)
    assert not cuda.is_current_stream_capturing()
    assert value(y) == 0                                                 # nothing has run yet
    for number in (3, 4):
        put(x, number)
        recorded.replay()
        assert value(y) == number
    with cuda.stream(cuda.Stream()):
        recorded.replay()
        cuda.current_stream().synchronize()


def test_work_on_a_forked_stream_is_recorded_too(simulated):
    x, y, z = new(), new(), new()
    put(x, 5)
    recorded, side = cuda.CUDAGraph(), cuda.Stream()
    with cuda.graph(recorded):
        allocate(1, 0, side.cuda_stream)                                 # not part of the capture yet
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            assert cuda.is_current_stream_capturing()
            theirs = new()
            move(theirs, x)
            move(y, theirs)
        ours = new()
        move(ours, x)
        move(z, ours)
        cuda.current_stream().wait_stream(side)
    assert inside(theirs, recorded) and inside(ours, recorded)
    recorded.replay()
    assert (value(y), value(z)) == (5, 5)
    cuda.synchronize()


def test_pinned_memory_is_read_again_by_every_replay(simulated):
    x, array = new(4), memory.pinned_empty(4)
    recorded = cuda.CUDAGraph()
    with cuda.graph(recorded):
        memory.upload(array, x.ptr, 0, memory.pinned_owner(array))
    view = array[:]
    del array
    for number in (1, 2):
        view[:] = number
        recorded.replay()
        assert value(x) == number


def test_pinned_memory_outlives_the_replays_of_a_graph_that_died():
    for seed in range(16):
        with cuda.simulate(seed=seed):
            x, array = new(4), memory.pinned_empty(4)
            array[:] = 3
            recorded = cuda.CUDAGraph()
            with cuda.graph(recorded):
                memory.upload(array, x.ptr, 0, memory.pinned_owner(array))
            del array
            memory.pinned_empty(4)[:] = 9
            recorded.replay()
            assert value(x) == 3
            put(x, 0)
            recorded.replay()
            del recorded
            for other in [memory.pinned_empty(4) for _ in range(2)]:
                other[:] = 9
            assert value(x) == 3


def test_hooks_run_before_every_replay(simulated):
    offset, x, y = [10], new(), new()
    recorded = cuda.CUDAGraph()

    def move_on():
        put(x, offset[0])
        offset[0] += 1

    with cuda.graph(recorded):
        current_graph().before_replay(move_on)
        move(y, x)
    for expected in (10, 11, 12):
        recorded.replay()
        assert value(y) == expected


def test_what_a_hook_writes_outlives_the_last_replay():
    for seed in range(8):
        with cuda.simulate(seed=seed):
            y, recorded, player = new(), cuda.CUDAGraph(), cuda.Stream()
            with cuda.graph(recorded):
                with cuda.stream(cuda.default_stream()):
                    state = new()
                recorded.keep(state)
                recorded.before_replay(lambda state=state: put(state, 7))
                move(y, state)
            cuda.synchronize()
            with cuda.stream(player):
                recorded.replay()
            del recorded, state
            for _ in range(3):
                put(new(), 9)
            cuda.synchronize()
            assert value(y) == 7


# ------------------------------------------------------------------ memory
def test_what_a_graph_allocated_stays_its_own(simulated):
    recorded = cuda.CUDAGraph()
    side = cuda.graph(recorded).stream_ctx.stream.cuda_stream
    for handle in (0, side):
        allocate(3 * MIB, 0, handle)                                     # free now, but not for the capture
    with cuda.graph(recorded):
        first = new(3 * MIB)
        address = first.ptr
        put(first, 1)
        del first
        second = new(3 * MIB)
        put(second, 2)
        assert second.ptr == address                                     # used again inside
        third = new(3 * MIB)
        put(third, 3)
    assert inside(second, recorded) and inside(third, recorded)
    del second
    cuda.empty_cache()
    for handle in (side, 0):
        others = [allocate(3 * MIB, 0, handle) for _ in range(10)]
        assert not any(inside(block, recorded) for block in others)
    recorded.replay()
    assert value(third) == 3


def test_memory_goes_back_after_the_graph_and_its_tensors(simulated):
    recorded = cuda.CUDAGraph()
    with cuda.graph(recorded):
        kept = new(30 * MIB)
    cuda.empty_cache()
    assert cuda.memory_reserved() == 30 * MIB
    del recorded
    cuda.empty_cache()
    assert cuda.memory_reserved() == 30 * MIB
    del kept
    cuda.empty_cache()
    assert cuda.memory_reserved() == 0 and not allocator.memories[0].privates


def test_graphs_share_a_pool(simulated):
    x, y = new(), new()
    first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(first):
        between = new()
        put(between, 1)
        move(x, between)
        address = between.ptr
        del between
    with cuda.graph(second, pool=first.pool()):
        between = new()
        assert between.ptr == address
        put(between, 2)
        move(y, between)
        del between
    assert second.pool() == first.pool()
    for _ in range(2):
        first.replay()
        second.replay()
        assert (value(x), value(y)) == (1, 2)
    del first
    cuda.empty_cache()
    second.replay()
    assert value(y) == 2


def test_graphs_share_a_named_pool(simulated):
    name = cuda.graph_pool_handle()
    graphs = [cuda.CUDAGraph(), cuda.CUDAGraph()]
    for recorded in graphs:
        with cuda.graph(recorded, pool=name):
            put(new(), 1)
    assert {recorded.pool() for recorded in graphs} == {name} != {cuda.graph_pool_handle()}


def test_other_threads_allocate_as_ever_during_a_capture(simulated):
    ordinary = new().ptr
    found, recorded = [], cuda.CUDAGraph()
    with cuda.graph(recorded):
        thread = threading.Thread(target=lambda: found.append(allocate(1, 0, 0)))
        thread.start()
        thread.join()
        put(new(), 1)
    assert found[0].ptr == ordinary and not inside(found[0], recorded)


def test_blocks_recorded_on_streams_die_in_a_capture(simulated):
    other, outside = cuda.Stream(), new()
    record_stream(outside, other)
    held = outside.ptr
    recorded, side = cuda.CUDAGraph(), cuda.Stream()
    with cuda.graph(recorded):
        del outside
        block = new()
        record_stream(block, side)
        mine = block.ptr
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            put(block, 1)
        del block
        assert new().ptr != mine
        cuda.current_stream().wait_stream(side)
    cuda.synchronize()
    assert cuda.memory_stats()["active.all.current"] == 0
    assert new().ptr == held
    second = cuda.CUDAGraph()
    with cuda.graph(second, pool=recorded.pool()):
        assert mine in {block.ptr for block in [new() for _ in range(3)]}
        put(new(), 2)


def test_running_out_of_memory_ends_the_capture_cleanly():
    with cuda.simulate(total_memory=64 * MIB):
        x, recorded = new(), cuda.CUDAGraph()
        with pytest.raises(cuda.OutOfMemoryError, match="Tried to allocate 100.00 MiB"), cuda.graph(recorded):
            new(100 * MIB)
        put(x, 1)
        assert value(x) == 1
        with cuda.graph(recorded):
            put(x, 2)
        recorded.replay()
        assert value(x) == 2


# ------------------------------------------------------------------ refusals
def test_replay_needs_a_capture(simulated):
    with pytest.raises(RuntimeError, match="CUDAGraph.replay: expected a captured graph, got none; use tritorch.cuda.graph"):
        cuda.CUDAGraph().replay()
    with pytest.raises(RuntimeError, match="CUDAGraph.pool: expected a captured graph"):
        cuda.CUDAGraph().pool()


def test_a_graph_is_captured_once(simulated):
    recorded, x = cuda.CUDAGraph(), new()
    with cuda.graph(recorded):
        put(x, 1)
    with pytest.raises(RuntimeError, match="a graph that holds no capture"), cuda.graph(recorded):
        pass
    assert current_handle(0) == 0
    recorded.reset()
    with cuda.graph(recorded):
        put(x, 2)
    recorded.replay()
    assert value(x) == 2


def test_captures_do_not_nest(simulated):
    recorded, x = cuda.CUDAGraph(), new()
    with cuda.graph(recorded):
        with pytest.raises(RuntimeError, match="no other capture on the device, got a capture under way"), cuda.stream(cuda.Stream()):
            cuda.CUDAGraph().capture_begin()
        put(x, 1)
    recorded.replay()
    assert value(x) == 1
    with cuda.graph(cuda.CUDAGraph()):
        with pytest.raises(RuntimeError, match="no capture on the device"):
            recorded.replay()
        put(x, 1)


def test_the_default_stream_is_not_captured(simulated):
    with pytest.raises(RuntimeError, match="a stream that is not the default one"):
        cuda.CUDAGraph().capture_begin()
    with pytest.raises(RuntimeError, match="'global', 'thread_local' or 'relaxed', got 'never'"), cuda.stream(cuda.Stream()):
        cuda.CUDAGraph().capture_begin(capture_error_mode="never")


def test_a_capture_ends_where_it_began(simulated):
    recorded, x = cuda.CUDAGraph(), new()
    with pytest.raises(RuntimeError, match="a capture of this graph under way"):
        recorded.capture_end()
    with cuda.graph(recorded):
        with pytest.raises(RuntimeError, match="the stream that the capture began on"), cuda.stream(cuda.Stream()):
            recorded.capture_end()
        put(x, 1)


@pytest.mark.parametrize("wait, name", [
    (cuda.synchronize, "synchronize"), (lambda: cuda.current_stream().synchronize(), "Stream.synchronize"),
    (lambda: cuda.current_stream().record_event().synchronize(), "Event.synchronize"),
    (lambda: memory.download(new().ptr, 1, 0), "copy to the host"),
    (lambda: memory.upload(np.zeros(4), new().ptr, 0), "upload: expected pinned host memory")])
def test_waiting_is_refused_and_the_capture_goes_on(simulated, wait, name):
    recorded, x = cuda.CUDAGraph(), new()
    with cuda.graph(recorded):
        with pytest.raises(RuntimeError, match=f"^{name}.*a CUDA graph capture|^{name}.*no CUDA graph capture"):
            wait()
        put(x, 1)
    recorded.replay()
    assert value(x) == 1


def test_an_error_inside_ends_the_capture(simulated):
    recorded, x = cuda.CUDAGraph(), new()
    with pytest.raises(KeyError), cuda.graph(recorded):
        new(5 * MIB)
        raise KeyError
    assert current_handle(0) == 0 and not cuda.is_current_stream_capturing()
    cuda.empty_cache()
    assert cuda.memory_reserved() == 2 * MIB
    with cuda.graph(recorded):
        put(x, 1)
    recorded.replay()
    assert value(x) == 1


def test_a_capture_that_the_driver_refuses_leaves_nothing():
    class Refusing(RecordingDriver):
        refused = ()

        def capture_begin(self, stream):
            if "begin" in self.refused:
                raise driver.DriverError("begin")
            super().capture_begin(stream)

        def graph_instantiate(self, graph):
            if "instantiate" in self.refused:
                raise driver.DriverError("instantiate")
            return super().graph_instantiate(graph)

    device = Refusing()
    before = driver.use(device)
    try:
        recorded = cuda.CUDAGraph()
        for step in ("begin", "instantiate"):
            device.refused = (step,)
            with pytest.raises(driver.DriverError, match=step), cuda.graph(recorded):
                new(5 * MIB)
            assert not captures and recorded.executable is None and recorded.private is None
        cuda.empty_cache()
        assert not device.segments
        device.refused = ()
        with cuda.graph(recorded):
            new()
        executable = recorded.executable
        recorded.replay()
        assert device.named("graph_launch") == [("graph_launch", executable, 0)]
        del recorded
        assert device.named("exec_destroy") == [("exec_destroy", executable)]
        assert len(device.named("graph_destroy")) == 2
    finally:
        driver.use(before)
