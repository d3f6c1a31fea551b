"""GPU memory between processes: on a GPU, and on the simulated one, whose memory other processes can map too."""
import ctypes
import gc
import os
import sys
import time

import numpy as np
import pytest

import tritorch as torch
from tritorch import multiprocessing as mp
from tritorch import nn
from tritorch.cuda import allocator
from tritorch.cuda.simulated import SimulatedDriver
from tritorch.multiprocessing import device_memory

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="GPU memory goes between processes on Linux"),
    pytest.mark.skipif("TRITORCH_PTX" in os.environ, reason="the GPU made of PTX is a part of its process"),
]


def serve(simulated, inbox, outbox):
    if simulated:
        torch.cuda.simulate()
    while (work := inbox.get()) is not None:
        name, x = work
        with torch.no_grad():
            outbox.put(getattr(sys.modules[__name__], name)(x))
        work = x = None


def double(x):
    x *= 2
    torch.cuda.synchronize()
    return x.sum().item(), x.device.type, type(x).__name__, x.requires_grad, tuple(x.shape), x.stride()


def keep(x):
    keep.has = x, x.data_ptr()


def let_go(x):
    found = keep.has[0].sum().item()
    del keep.has
    gc.collect()
    return found


def again(x):
    return keep.has[0].storage is x.storage, keep.has[1] == x.data_ptr()


def made(n):
    keep.made = torch.arange(n, device="cuda", dtype=torch.float32)
    return keep.made


def send_on(x):
    try:
        mp.Pipe()[0].send(x)
    except RuntimeError as error:
        return str(error)


def seen(x):
    return keep.made.tolist()


@pytest.fixture
def other(cuda, request):
    """Calls a function of this file, by name, in another process."""
    if request.config.option.kernels_to:
        pytest.skip("there is a GPU only in the process that lists what it would launch")
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=serve, args=(torch.cuda.get_device_name().startswith("Simulated"), inbox, outbox), daemon=True)
    process.start()

    def call(name, x=None):
        inbox.put((name, x))
        return outbox.get(timeout=100)

    yield call
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_memory_goes_both_ways(other, cuda):
    x = torch.arange(12.0, device=cuda).view(3, 4)
    assert x.is_shared() and x.share_memory_() is x
    assert other("double", x) == (132.0, "cuda", "Tensor", False, (3, 4), (4, 1))
    assert x.sum().item() == 132
    assert other("double", x.t()[1:]) == (216.0, "cuda", "Tensor", False, (3, 3), (1, 4)) and x[2, 3].item() == 44 and x[2, 0] == 16
    weight = nn.Parameter(torch.ones(5, device=cuda))
    assert other("double", weight)[2:4] == ("Parameter", True) and weight.sum().item() == 10
    assert other("double", torch.empty(0, 2, device=cuda))[4] == (0, 2)
    theirs = other("made", 6)
    assert theirs.tolist() == [0, 1, 2, 3, 4, 5]
    theirs[1:] += 10
    torch.cuda.synchronize()
    assert other("seen") == [0, 11, 12, 13, 14, 15]
    with pytest.raises(RuntimeError, match=r"x.clone\(\)"):
        mp.Pipe()[0].send(theirs)
    assert "x.clone()" in other("send_on", x)


def test_memory_stays_as_long_as_somebody_has_it(other, cuda):
    torch.cuda.ipc_collect()
    before = torch.cuda.memory_allocated()
    x = torch.full((1000,), 3.0, device=cuda)
    other("keep", x)
    assert other("again", x) == (True, True)
    del x
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() - before == 4096                # the other one still looks at it
    assert [torch.zeros(1000, device=cuda) for _ in range(3)] and other("let_go") == 3000.0
    deadline = time.monotonic() + 20
    while torch.cuda.memory_allocated() > before and time.monotonic() < deadline:
        torch.cuda.ipc_collect()
        time.sleep(0.05)
    assert torch.cuda.memory_allocated() == before and not device_memory._lent


def test_here_it_is_the_same_storage():
    with torch.cuda.simulate(seed=0):
        x = torch.ones(3, device="cuda")
        a, b = mp.Pipe()
        a.send(x)
        y = b.recv()
        assert y.storage is x.storage
        del x, y
        torch.cuda.ipc_collect()
        assert not device_memory._lent


def test_out_of_memory_takes_back_what_was_lent():
    with torch.cuda.simulate(seed=0, total_memory=64 << 20):
        pipe = mp.Pipe()
        for _ in range(5):
            x = torch.ones(40 << 18, device="cuda")                      # 40 MiB
            pipe[0].send(x)
            del x
            pipe[1].recv()
            assert len(device_memory._lent) == 1
    allocator.ipc_collect()


def test_simulated_memory_of_another_driver():
    """As two processes do it, but that addresses differ anyway."""
    first, second = SimulatedDriver(seed=0), SimulatedDriver(seed=1)
    ptr = first.alloc(10_000)
    first.fill(ptr + 100, 5, 1, 50, 0)
    handle, offset = first.ipc_handle(ptr + 100)
    opened = second.ipc_open(handle)
    assert offset == 100 and opened != ptr
    read = np.zeros(52, np.uint8)
    first.synchronize(0)
    second.copy(read.ctypes.data, opened + 99, 52, "d2h", 0)
    second.synchronize(0)
    assert read.tolist() == [255, *[5] * 50, 255]
    second.fill(opened, 9, 1, 4, 0)
    second.synchronize(0)
    assert ctypes.string_at(ptr, 4) == b"\t" * 4
    second.ipc_close(opened)
    with pytest.raises(Exception, match="live device memory"):
        second.copy(read.ctypes.data, opened, 4, "d2h", 0)
        second.synchronize(0)
    first.free(ptr)
