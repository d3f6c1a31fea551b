"""CUDA graphs on the simulated device: what is recorded, and what memory it keeps."""

import threading

import pytest

import tritorch
import tritorch.cuda as cuda
from tritorch.cuda import allocator, memory
from tritorch.cuda.allocator import allocate, record_stream
from tritorch.cuda.graph import current_graph
from tritorch.cuda.stream import captures, current_handle
from tritorch.random import manual_seed

pytestmark = pytest.mark.smoke

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
    kept, found, recorded = new(), [], cuda.CUDAGraph()
    ordinary = new().ptr
    with cuda.graph(recorded):
        thread = threading.Thread(target=lambda: found.append(allocate(1, 0, 0)))
        thread.start()
        thread.join()
        put(new(), 1)
    assert found[0].ptr == ordinary and not inside(found[0], recorded) and not inside(kept, recorded)


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


def test_a_capture_may_use_the_memory_that_warm_up_calls_left():
    with cuda.simulate(total_memory=64 * MIB):
        new(40 * MIB)
        recorded = cuda.CUDAGraph()
        with cuda.graph(recorded):
            put(new(40 * MIB), 2)
        recorded.replay()


# ------------------------------------------------------------------ with operators
def test_a_captured_training_step_is_the_eager_one():
    def run(captured):
        with cuda.simulate(seed=1):
            manual_seed(3)
            weight, x = tritorch.randn(4, 4, device="cuda", requires_grad=True), tritorch.randn(8, 4, device="cuda")

            def step():
                noise = tritorch.randn(8, 4, device="cuda")
                loss = (tritorch.sigmoid((x + noise) @ weight) ** 2).sum()
                loss.backward()
                with tritorch.no_grad():
                    weight.sub_(weight.grad * 0.1)
                weight.grad = None
                return loss.detach()

            losses = [step().item()]
            if captured:
                recorded = cuda.CUDAGraph()
                with cuda.graph(recorded):
                    loss = step()
                for _ in range(3):
                    recorded.replay()
                    losses.append(loss.item())
            else:
                losses += [step().item() for _ in range(3)]
            return losses

    assert run(True) == run(False)
    assert len(set(run(True))) == 4


@pytest.mark.parametrize("seed", range(8))
def test_results_may_die_while_work_on_them_is_queued(seed):
    """They were allocated on the stream of the capture, and are used where the graph is replayed."""
    with cuda.simulate(seed=seed):
        x, recorded = tritorch.ones(8, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(recorded):
            y = x + 1
        recorded.replay()
        z = y * 2
        del y, recorded
        cuda.synchronize()
        assert z.tolist() == [4] * 8
