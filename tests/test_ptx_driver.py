"""The rules of the driver that the stand-in of tritorch.testing.ptx keeps,
each by the code that the CUDA driver API documents for breaking it."""
import os
import threading

import numpy as np
import pytest

pytest.importorskip("triton")
import tritorch as torch  # noqa: E402
from tritorch.cuda import driver  # noqa: E402
from tritorch.testing.ptx.bindings import Bindings  # noqa: E402
from tritorch.testing.ptx.codes import Code  # noqa: E402
from tritorch.testing.ptx.device import simulate  # noqa: E402
from tritorch.testing.ptx.machine import Fault  # noqa: E402


def ready():
    gpu = Bindings(90)
    gpu.cuInit(0)
    gpu.cuCtxSetCurrent(gpu.cuDevicePrimaryCtxRetain(0)[1])
    return gpu


@pytest.fixture
def gpu():
    return ready()


@pytest.fixture
def streams(gpu):
    return [gpu.cuStreamCreateWithPriority(1, 0)[1] for _ in range(3)]


def event(gpu, stream=None, flags=2):
    handle = gpu.cuEventCreate(flags)[1]
    if stream is not None:
        assert gpu.cuEventRecord(handle, stream) == (Code.SUCCESS,)
    return handle


def fill(gpu, stream, address, value):
    return gpu.cuMemsetD8Async(address, value, 1, stream)[0]


def test_a_call_needs_cuinit_a_context_in_its_thread_and_its_own_process():
    gpu = Bindings(90)
    assert gpu.cuDeviceGetCount()[0] == Code.NOT_INITIALIZED
    gpu.cuInit(0)
    assert gpu.cuMemAlloc(512)[0] == Code.INVALID_CONTEXT and gpu.cuCtxSetCurrent(5)[0] == Code.INVALID_CONTEXT
    gpu.cuCtxSetCurrent(gpu.cuDevicePrimaryCtxRetain(0)[1])
    assert gpu.cuMemAlloc(512)[0] == Code.SUCCESS
    found = []
    thread = threading.Thread(target=lambda: found.append(gpu.cuMemAlloc(512)[0]))
    thread.start(), thread.join()
    assert found == [Code.INVALID_CONTEXT]
    child = os.fork()
    if not child:
        os._exit(gpu.cuMemAlloc(512)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == Code.NOT_INITIALIZED


def test_memory(gpu):
    device, host = gpu.cuMemAlloc(4096)[1], gpu.cuMemHostAlloc(4096, 1)[1]
    assert gpu.cuMemAlloc(0)[0] == gpu.cuMemFree(device + 512)[0] == Code.INVALID_VALUE
    assert gpu.cuMemFree(host)[0] == gpu.cuMemFreeHost(device)[0] == Code.INVALID_VALUE
    assert gpu.cuMemsetD32Async(device + 2, 1, 4, 0)[0] == gpu.cuMemsetD8Async(device, 256, 4, 0)[0] == Code.INVALID_VALUE
    assert gpu.cuMemFree(device)[0] == gpu.cuMemFreeHost(host)[0] == Code.SUCCESS
    assert gpu.cuMemFree(device)[0] == Code.INVALID_VALUE


def test_handles_that_were_given_back_are_void(gpu, streams):
    mark = event(gpu, streams[0])
    gpu.cuEventDestroy(mark), gpu.cuStreamDestroy(streams[0])
    assert gpu.cuEventRecord(mark, streams[1])[0] == gpu.cuEventQuery(mark)[0] == Code.INVALID_HANDLE
    assert gpu.cuStreamSynchronize(streams[0])[0] == Code.INVALID_HANDLE
    assert gpu.cuStreamWaitEvent(streams[1], mark, 0)[0] == gpu.cuGraphDestroy(streams[1])[0] == Code.INVALID_HANDLE


def test_only_events_that_keep_time_and_were_recorded_are_timed(gpu, streams):
    timed = [event(gpu, streams[0], 0), event(gpu, streams[0], 0)]
    assert gpu.cuEventElapsedTime(*timed)[0] == Code.SUCCESS
    assert gpu.cuEventElapsedTime(timed[0], event(gpu, streams[0]))[0] == Code.INVALID_HANDLE
    assert gpu.cuEventElapsedTime(timed[0], event(gpu, None, 0))[0] == Code.INVALID_HANDLE


def test_what_is_captured_cannot_be_asked_or_waited_for(gpu, streams):
    for spoil, code in (
        (lambda: gpu.cuStreamSynchronize(streams[0]), Code.STREAM_CAPTURE_UNSUPPORTED),
        (lambda: gpu.cuStreamQuery(streams[0]), Code.STREAM_CAPTURE_UNSUPPORTED),
        (lambda: gpu.cuCtxSynchronize(), Code.STREAM_CAPTURE_UNSUPPORTED),
        (lambda: gpu.cuEventQuery(event(gpu, streams[0])), Code.CAPTURED_EVENT),
        (lambda: gpu.cuStreamWaitEvent(0, event(gpu, streams[0]), 0), Code.STREAM_CAPTURE_IMPLICIT),
        (lambda: gpu.cuStreamWaitEvent(streams[0], event(gpu, streams[1]), 0), Code.STREAM_CAPTURE_ISOLATION),
    ):
        assert gpu.cuStreamBeginCapture(streams[0], 2) == (Code.SUCCESS,)
        assert spoil()[0] == code
        assert gpu.cuStreamIsCapturing(streams[0])[1] == 2 and gpu.cuStreamEndCapture(streams[0])[0] == Code.STREAM_CAPTURE_INVALIDATED
        assert gpu.cuStreamIsCapturing(streams[0])[1] == 0 and gpu.cuStreamQuery(streams[0])[0] == Code.SUCCESS


def test_captures_begin_end_and_meet_as_they_should(gpu, streams):
    one, two, three = streams
    assert gpu.cuStreamBeginCapture(0, 2)[0] == Code.STREAM_CAPTURE_UNSUPPORTED
    assert gpu.cuStreamEndCapture(one)[0] == Code.ILLEGAL_STATE
    gpu.cuStreamBeginCapture(one, 2)
    assert gpu.cuStreamBeginCapture(one, 2)[0] == Code.ILLEGAL_STATE
    gpu.cuStreamWaitEvent(two, event(gpu, one), 0)
    assert gpu.cuStreamIsCapturing(two)[1] == 1 and gpu.cuStreamEndCapture(two)[0] == Code.STREAM_CAPTURE_UNMATCHED
    gpu.cuStreamBeginCapture(three, 2)
    assert gpu.cuStreamWaitEvent(three, event(gpu, two), 0)[0] == Code.STREAM_CAPTURE_MERGE
    assert gpu.cuStreamEndCapture(one)[0] == gpu.cuStreamEndCapture(three)[0] == Code.STREAM_CAPTURE_INVALIDATED
    gpu.cuStreamBeginCapture(one, 2)
    late = event(gpu, one)
    assert gpu.cuStreamEndCapture(one)[0] == Code.SUCCESS and gpu.cuStreamWaitEvent(two, late, 0)[0] == Code.CAPTURED_EVENT


def test_work_on_other_streams_has_to_be_joined(gpu, streams):
    one, two, _ = streams
    address = gpu.cuMemAlloc(16)[1]
    for join in (False, True):
        gpu.cuStreamBeginCapture(one, 2)
        gpu.cuStreamWaitEvent(two, event(gpu, one), 0)
        assert fill(gpu, two, address, 1) == Code.SUCCESS
        if join:
            gpu.cuStreamWaitEvent(one, event(gpu, two), 0)
        code, graph = gpu.cuStreamEndCapture(one)
        assert code == (Code.SUCCESS if join else Code.STREAM_CAPTURE_UNJOINED)
    assert gpu.cuGraphLaunch(gpu.cuGraphInstantiate(graph, 0)[1], 0)[0] == Code.SUCCESS and gpu.memory.host(address, 1)[0] == 1


def test_a_graph_runs_in_any_order_that_its_edges_allow(gpu, streams):
    one, two, _ = streams
    address = gpu.cuMemAlloc(16)[1]
    ends = {}
    for ordered in (False, True):
        gpu.cuStreamBeginCapture(one, 2)
        gpu.cuStreamWaitEvent(two, event(gpu, one), 0)
        fill(gpu, two, address, 1)
        if ordered:
            gpu.cuStreamWaitEvent(one, event(gpu, two), 0)
        fill(gpu, one, address, 2)
        gpu.cuStreamWaitEvent(one, event(gpu, two), 0)
        executable = gpu.cuGraphInstantiate(gpu.cuStreamEndCapture(one)[1], 0)[1]
        ends[ordered] = set()
        for _ in range(32):
            gpu.cuGraphLaunch(executable, one)
            ends[ordered].add(int(gpu.memory.host(address, 1)[0]))
    assert ends == {False: {1, 2}, True: {2}}


def test_a_captured_copy_of_pageable_memory_is_a_fault(gpu, streams):
    device, host, pageable = gpu.cuMemAlloc(64)[1], gpu.cuMemHostAlloc(64, 1)[1], np.zeros(64, np.uint8)
    gpu.cuStreamBeginCapture(streams[0], 2)
    assert gpu.cuMemcpyHtoDAsync(device, host, 64, streams[0])[0] == Code.SUCCESS
    with pytest.raises(Fault, match="pageable"):
        gpu.cuMemcpyHtoDAsync(device, pageable.ctypes.data, 64, streams[0])


def test_tritorch_keeps_the_rules_where_streams_cross_a_capture():
    if os.environ.get("TRITORCH_PTX"):
        pytest.skip("the whole suite runs on it")
    with simulate(90):
        x, side, graph = torch.ones(1000, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                z = y * 3
            torch.cuda.current_stream().wait_stream(side)
            y = y * z
        graph.replay()
        assert y[0].item() == 12
        with pytest.raises(driver.DriverError, match="STREAM_CAPTURE_UNJOINED"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x + 1
        assert (x + 1)[0].item() == 2


def test_steps_of_nothing_but_empty_parameters():
    """A grid of 0 programs is an error, so no kernel is started."""
    with simulate(90):
        for optimizer in (torch.optim.SGD, torch.optim.AdamW):
            parameter = torch.zeros(0, device="cuda", requires_grad=True)
            parameter.grad = torch.zeros_like(parameter)
            torch.nn.utils.clip_grad_norm_([parameter], 1.0)
            optimizer([parameter], 0.1).step()
        torch.cuda.synchronize()
