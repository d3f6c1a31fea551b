"""The native device: Triton's kernels, compiled for the host. Its driver, how kernels are started, the cache on disk."""
import ctypes
import importlib.util
import os
import platform
import sys
import threading
import warnings

import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import driver

if sys.platform != "linux" or platform.machine() != "x86_64" or importlib.util.find_spec("triton") is None:
    pytest.skip("the native device takes Linux on x86-64, and triton", allow_module_level=True)

import native_kernels as K

from tritorch.cuda.launch import LaunchError, TensorDescriptor, launch
from tritorch.cuda.native import function, llvm, threads
from tritorch.cuda.native.driver import NativeDriver


def on_device(array):
    return torch.from_numpy(np.array(array)).cuda()


# ------------------------------------------------------------------ the choice
def test_it_is_chosen_by_name(monkeypatch):
    monkeypatch.setenv("TRITORCH_CUDA", "native")
    with driver.using(None):
        assert driver.current().name == "native" and driver.on_host()
        properties = torch.cuda.get_device_properties(0)
        assert properties.name.startswith("Native x86-64 ") and torch.cuda.get_device_capability(0) == (8, 0)
        assert properties.total_memory > 1 << 28 and properties.multi_processor_count == driver.current().threads


def test_it_says_where_it_does_not_work(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(RuntimeError, match="expected Linux on x86-64, got Linux on aarch64; use the simulated device"):
        torch.cuda.simulate(native=True)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="expected triton to compile with, which is not installed; pip install triton"):
        torch.cuda.simulate(native=True)


# ------------------------------------------------------------------ memory
def test_memory_is_aligned_counted_and_given_back():
    device = NativeDriver(devices=2, total_memory=1 << 24)
    device.set_device(1)
    pointers = [device.alloc(n) for n in (1, 1000, 5 << 20)]
    assert not any(pointer % 256 for pointer in pointers)
    assert device.memory_info(1) == ((1 << 24) - (5 << 20) - 1001, 1 << 24) and device.memory_info(0) == (1 << 24, 1 << 24)
    with pytest.raises(driver.OutOfMemory, match="expected at most 11533335 free bytes of 16777216"):
        device.alloc(1 << 24)
    for pointer in pointers:
        device.free(pointer)
    assert device.memory_info(1)[0] == 1 << 24
    with pytest.raises(driver.DriverError, match="expected a pointer that alloc returned"):
        device.free(pointers[0])
    with pytest.raises(driver.OutOfMemory, match="the system has no"):
        NativeDriver(total_memory=1 << 60).alloc(1 << 59)


def test_copies_and_fills():
    device = NativeDriver()
    pointer, host = device.alloc(4096), np.arange(1024, dtype=np.float32)
    device.copy(pointer, host.ctypes.data, 4096, "h2d", 0)
    device.copy(pointer + 2048, pointer, 1024, "d2d", 0)
    device.fill(pointer, 0xAB, 1, 3, 0)
    device.fill(pointer + 4, 0xABCD, 2, 2, 0)
    device.fill(pointer + 8, 0x01020304, 4, 2, 0)
    device.fill(pointer + 16, 0x07070707, 4, 1, 0)
    device.fill(pointer + 20, 0xFF, 1, 0, 0)
    expected, found = host.copy(), np.empty_like(host)
    expected[512:768] = host[:256]
    expected.view(np.uint8)[:3] = 0xAB
    expected.view(np.uint16)[2:4] = 0xABCD
    expected.view(np.uint32)[2:4] = 0x01020304
    expected.view(np.uint32)[4] = 0x07070707
    device.copy(found.ctypes.data, pointer, 4096, "d2h", 0)
    assert (found.view(np.uint32) == expected.view(np.uint32)).all()
    device.copy(0, 0, 0, "d2h", 0)
    for call in (lambda: device.copy(pointer, pointer, 4, "d2d", 99), lambda: device.fill(pointer, 0, 1, 4, 99)):
        with pytest.raises(driver.DriverError, match="cudaErrorInvalidResourceHandle: expected a stream, got 0x63"):
            call()


def test_other_processes_open_memory():
    device = NativeDriver()
    pointer = device.alloc(100_000)
    ctypes.memset(pointer, 7, 100_000)
    handle, before = device.ipc_handle(pointer + 5000)
    there = device.ipc_open(handle)
    assert before == 5000 and there != pointer and ctypes.string_at(there, 100_000) == bytes([7]) * 100_000
    ctypes.memset(there + 4096, 9, 8)
    assert ctypes.string_at(pointer + 4096, 9) == bytes([9] * 8 + [7])
    device.ipc_close(there)
    device.free(pointer)


# ------------------------------------------------------------------ starting kernels
def test_arguments_of_every_kind(native):
    out = torch.zeros(8, dtype=torch.float64, device="cuda")
    numbers = on_device(np.array([0.25], np.float32))

    def run(whole, small, single, double, half, brain, truth, added):
        launch(K.scalars_kernel, (1,), out, whole, small, single, np.float64(double), half, brain, truth, (numbers, added))
        return out.tolist()

    assert run(-2**40, -7, 0.1, 0.1, 0.1, 0.1, True, 2.0) == [
        -2.0**40, -7, float(np.float32(0.1)), 0.1, float(np.float16(0.1)), 0.10009765625, 1, 2.25]
    assert run(2**63 + 2**62, 3, 1e300, -1e300, -1e6, 1e300, False, -1e39) == [
        float(2**63 + 2**62), 3, np.inf, -1e300, -np.inf, np.inf, 0, -np.inf]
    assert np.isnan(run(5, 3, np.nan, 0.0, np.nan, np.nan, False, 0.0))[[2, 4, 5]].all()


def test_descriptors_are_pointers_shapes_and_strides(native):
    x = np.arange(40 * 48, dtype=np.float32).reshape(40, 48)
    out, whole = torch.full((40, 64), -1.0, device="cuda"), on_device(x)
    launch(K.tile_kernel, (3, 2), TensorDescriptor(out, (16, 32), shape=(40, 40)), TensorDescriptor(whole, (16, 32), shape=(33, 48)),
           M=16, N=32)
    expected = np.full((40, 64), -1.0)
    expected[:, :40] = 33
    expected[:33, :40] += x[:33, :40]
    assert (out.cpu().numpy() == expected).all()


@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (5, 3, 4), (1, 1, 9), (1000, 3, 1)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_program_runs_once(native, monkeypatch, grid, count):
    monkeypatch.setattr(function, "SPLIT", 0.0)
    native.threads = count
    counts = torch.zeros(grid[::-1], dtype=torch.int64, device="cuda")
    for _ in range(3):
        launch(K.count_kernel, grid, counts)
    expected = np.broadcast_to(3 + 3000 * np.arange(grid[0]), grid[::-1])
    assert (counts.cpu().numpy() == expected).all()


def test_threads_start_the_same_kernel_at_once(native, monkeypatch):
    monkeypatch.setattr(function, "SPLIT", 0.0)
    native.threads, failed = 2, []

    def work(alpha):
        x, y = torch.arange(3000, device="cuda").float(), torch.ones(3000, device="cuda")
        out = torch.empty_like(x)
        for turn in range(100):
            launch(K.axpy_kernel, (47,), out, x, y, 3000, float(alpha + turn), BLOCK=64)
            if not (out.cpu().numpy() == np.arange(3000, dtype=np.float32) * (alpha + turn) + 1).all():
                failed.append((alpha, turn))

    workers = [threading.Thread(target=work, args=(1000 * i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed and len(native.spaces) <= 4


def test_many_short_launches_are_shared(native, monkeypatch):
    monkeypatch.setattr(function, "SPLIT", 0.0)
    native.threads = 4
    counts = torch.zeros(50, dtype=torch.int64, device="cuda")
    for _ in range(3000):
        launch(K.count_kernel, (50,), counts)
    assert counts.tolist() == [3000 + 3000 * 1000 * i for i in range(50)]
    native.threads = 1
    launch(K.count_kernel, (50,), counts)
    assert counts.tolist() == [3001 + 3001 * 1000 * i for i in range(50)]


def test_threads_are_there_after_a_fork(native, monkeypatch):
    monkeypatch.setattr(function, "SPLIT", 0.0)
    native.threads = 2
    counts = torch.zeros(64, dtype=torch.int64, device="cuda")
    launch(K.count_kernel, (64,), counts)
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)              # of threads in a process that forks, from Python 3.12 on
        child = os.fork()
    if not child:
        try:
            launch(K.count_kernel, (64,), counts)
            os._exit(int((counts.cpu().numpy() != 2 + 2000 * np.arange(64)).any()))
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0 and counts.tolist() == [1 + 1000 * i for i in range(64)]


def test_what_the_threads_do_is_llvm_that_holds():
    assert llvm.complaint(threads._TEXT) is None


def test_how_many_threads(native, monkeypatch):
    monkeypatch.setenv("TRITORCH_NATIVE_THREADS", "3")
    assert NativeDriver().threads == NativeDriver().device_properties(0).multi_processor_count == 3
    monkeypatch.delenv("TRITORCH_NATIVE_THREADS")
    assert native.threads == threads.processors() == len(os.sched_getaffinity(0))
    before = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                                  # where numpy's threads cannot be set
        torch.set_num_threads(1)
        assert native.threads == 1
        torch.set_num_threads(before)


def test_what_cannot_start_says_so(native):
    counts = torch.zeros(4, dtype=torch.int64, device="cuda")
    with pytest.raises(LaunchError, match="cudaErrorInvalidValue: expected a grid of positive sizes"):
        launch(K.count_kernel, (4, 70_000), counts)
        torch.cuda.synchronize()
    loaded = native.load(K.count_kernel, {"count_ptr": "*i64"}, {}, {}, {})
    with pytest.raises(driver.DriverError, match="expected a stream, got 0x63"):
        loaded.launch(4, 1, 1, 99, [counts.data_ptr()])
        torch.cuda.synchronize()
    assert counts.tolist() == [0, 0, 0, 0]


def test_an_assertion_is_an_error_of_the_launch(native):
    out = torch.full((8,), -1, dtype=torch.int64, device="cuda")
    with pytest.raises(LaunchError, match="asserting_kernel .*: AssertionError: too many programs"):
        launch(K.asserting_kernel, (6,), out, 4)
        torch.cuda.synchronize()
    launch(K.asserting_kernel, (8,), out, 8)
    assert out.tolist() == list(range(8))


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_views_of_what_a_loop_carries(native, turns):
    """All of a turn's values are from before any is written."""
    flat, tile, low, high = (np.arange(n, dtype=np.int32) + 100 * i for i, n in enumerate((64, 64, 32, 32)))
    tensors = [on_device(x) for x in (flat, tile, low, high)]
    launch(K.views_kernel, (1,), *tensors, turns)
    for _ in range(turns):
        low, high, tile, flat = tile[32:], tile[:32], flat, flat * 3 + 1
    for tensor, expected in zip(tensors, (flat, tile, low, high)):
        np.testing.assert_array_equal(tensor.cpu().numpy(), expected)


# ------------------------------------------------------------------ streams, events, graphs
def test_work_is_done_when_the_call_returns(native):
    on_device(np.ones(3, np.float32)).mul(3).tolist()                    # so that nothing waits for a kernel that compiles
    side, begin, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.ones(1000, device="cuda")
    begin.record()
    with torch.cuda.stream(side):
        y = x * 3
    assert side.query() and (np.frombuffer(ctypes.string_at(y.data_ptr(), 4000), np.float32) == 3).all()
    side.wait_stream(torch.cuda.current_stream())
    end.record()
    assert end.query() and 0 < begin.elapsed_time(end) < 60_000


def test_a_graph_is_what_was_recorded(native):
    x, y, out = torch.ones(100, device="cuda"), torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    launch(K.axpy_kernel, (2,), out, x, y, 100, 2.0, BLOCK=64)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        launch(K.axpy_kernel, (2,), out, x, y, 100, 5.0, BLOCK=64)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch(K.axpy_kernel, (2,), out, out, x, 100, 2.0, BLOCK=64)
            y.copy_(x)
        torch.cuda.current_stream().wait_stream(side)
        out.add_(1)
    assert out.tolist() == [3] * 100
    x.fill_(2)
    graph.replay()
    assert out.tolist() == [(2 * 5 + 1) * 2 + 2 + 1] * 100 and y.tolist() == [2] * 100
    launch(K.axpy_kernel, (2,), out, x, y, 100, 7.0, BLOCK=64)           # its arguments are not those of the graph
    graph.replay()
    assert out.tolist() == [(2 * 5 + 2) * 2 + 2 + 1] * 100
    assert not native.recording


def test_waiting_during_a_capture_is_an_error(native):
    device, stream = native, native.stream_create(0)
    pointer = device.alloc(64)
    device.capture_begin(stream)
    device.fill(pointer, 1, 1, 64, stream)
    with pytest.raises(driver.DriverError, match="cudaErrorStreamCaptureUnsupported"):
        device.stream_synchronize(stream)
    with pytest.raises(driver.DriverError, match="cudaErrorStreamCaptureInvalidated"):
        device.capture_end(stream)
    assert not device.recording and ctypes.string_at(pointer, 2) == b"\0\0"


def test_a_captured_step_trains_as_on_the_cpu(native):
    def steps(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.GELU(), torch.nn.Linear(32, 5)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, target = torch.randn(16, 20).to(device), torch.randint(0, 5, (16,)).to(device)

        def step():
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            return loss

        if device == "cpu":
            return [step().item() for _ in range(8)]
        found = [step().item() for _ in range(3)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        for _ in range(5):
            graph.replay()
            found.append(loss.item())
        return found

    found = steps("cuda")
    assert len(found) == 8 and found[-1] < found[0] and np.allclose(found, steps("cpu"), rtol=1e-5)
