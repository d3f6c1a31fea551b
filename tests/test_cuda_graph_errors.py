"""What CUDA graphs refuse, and that a capture that failed leaves nothing behind."""

import numpy as np
import pytest
from recording_driver import RecordingDriver

import tritorch.cuda as cuda
from tritorch.cuda import driver, memory
from tritorch.cuda.allocator import allocate
from tritorch.cuda.stream import captures, current_handle

pytestmark = pytest.mark.smoke

MIB = 1 << 20


@pytest.fixture
def simulated():
    with cuda.simulate(seed=0) as device:
        yield device
        assert not captures


def new(nbytes=1):
    return allocate(nbytes, 0, current_handle(0))


def put(block, number):
    memory.fill(block.ptr, number, 1, block.span.nbytes, 0)


def value(block):
    return int(memory.download(block.ptr, 1, 0)[0])


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


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("wait, name", [
    (cuda.synchronize, "synchronize"), (lambda: cuda.current_stream().synchronize(), "Stream.synchronize"),
    (lambda: cuda.current_stream().record_event().synchronize(), "Event.synchronize"),
    (lambda: memory.download(new().ptr, 1, 0), "copy to the host"),
    (lambda: memory.upload(np.zeros(4), new().ptr, 0), "upload: expected pinned host memory")])
def test_waiting_is_refused_and_the_capture_goes_on(simulated, wait, name, own):
    recorded, x, stream = cuda.CUDAGraph(), new(), cuda.Stream() if own else None
    with cuda.graph(recorded, stream=stream):
        assert (cuda.current_stream() == stream) is own
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
    with driver.using(device):
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
