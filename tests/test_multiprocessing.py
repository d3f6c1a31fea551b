"""Tensors between processes: memory that all see, however it gets there and however processes start and end."""
import gc
import glob
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tritorch as torch
from tritorch import multiprocessing as mp
from tritorch import nn
from tritorch.multiprocessing import segments
from tritorch.multiprocessing.segments import _family

METHODS = sorted({"fork", "spawn"} & set(mp.get_all_start_methods()))


@pytest.fixture(params=sorted(mp.get_all_sharing_strategies()))
def strategy(request):
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy("file_descriptor")
    gc.collect()
    assert not files(), "files of shared memory were left behind"


def files():
    return glob.glob(_family() + "*")


def run(method, target, *args):
    """A process that is expected to end well."""
    process = mp.get_context(method).Process(target=target, args=args, daemon=True)
    process.start()
    return process


def ended(process):
    process.join(60)
    assert process.exitcode == 0


# ------------------------------------------------------------------ what the other process does (by name, for spawn)
def add_one(*tensors):
    for x in tensors:
        x += 1


def answer(inbox, outbox):
    while (x := inbox.get()) is not None:
        with torch.no_grad():
            x *= 2
        outbox.put(x)


def describe(x):
    return type(x).__name__, x.dtype, tuple(x.shape), x.stride(), x.storage_offset(), x.requires_grad, x.is_shared()


def tell(inbox, outbox):
    for _ in range(inbox.get()):
        outbox.put(describe(inbox.get()))


def views(inbox, outbox):
    a, b = inbox.get()
    a.fill_(7)
    again = inbox.get()
    outbox.put((b.tolist(), a.storage is b.storage, again.storage is a.storage))
    inbox.get()


def train(model, seed):
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(60):
        x = torch.randn(16, 3)
        loss = ((model(x) - x @ torch.tensor([[1.0], [-2.0], [0.5]])) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scale(x):
    return x * 10


# ------------------------------------------------------------------ memory
@pytest.mark.parametrize("method", METHODS)
def test_what_one_writes_all_see(method, strategy):
    x = torch.zeros(3, 4)
    column, row = x[:, 1], x[2]
    assert column.sum().item() == 0 and row.tolist() == [0] * 4            # both have arrays of the old memory
    assert not x.is_shared() and x.share_memory_() is x
    assert x.is_shared() and column.is_shared() and row.untyped_storage().is_shared()
    ended(run(method, add_one, x))
    assert x.tolist() == [[1.0] * 4] * 3 and column.tolist() == [1.0] * 3 and row.tolist() == [1.0] * 4
    ended(run(method, add_one, column, row))
    assert x.tolist() == [[1, 2, 1, 1], [1, 2, 1, 1], [2, 3, 2, 2]]


def test_all_that_shows_the_memory_moves_with_it(strategy):
    array = np.arange(6, dtype=np.float32)
    x = torch.from_numpy(array)
    part, data, w = torch.from_numpy(array[2:5]), x.data, torch.zeros(4, requires_grad=True)
    seen = [t.array for t in (x, part, data)]
    x.share_memory_()
    assert x.is_shared() and data.is_shared() and not part.is_shared()   # another storage of the caller's memory, which nothing can move
    x[0] = 9
    assert data[0].item() == 9 and [a[0] for a in seen] == [0, 2, 0]
    y = w * 2
    w.share_memory_()
    with torch.no_grad():
        w.fill_(3)
    y.sum().backward()
    assert w.grad.tolist() == [2.0] * 4 and (w * w).sum().item() == 36


def test_empty_scalar_and_put_off_memory(strategy):
    for x in (torch.empty(0), torch.tensor(3.0), nn.Linear(300, 300).weight, torch.ones(2, 3).t(), torch.ones(4, dtype=torch.bfloat16)):
        before = x.detach().clone()
        assert x.share_memory_().is_shared() and torch.equal(x, before)


def test_a_graph_keeps_what_it_saved():
    x = torch.full((3,), 2.0, requires_grad=True)
    y = (x * x).sum()
    x.share_memory_()
    y.backward()
    assert x.grad.tolist() == [4.0] * 3


@pytest.mark.parametrize("method", METHODS)
def test_queues_pass_memory_not_copies(method, strategy):
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = run(method, answer, inbox, outbox)
    x = torch.arange(5.0)
    for i in range(3):
        inbox.put(x)
        back = outbox.get(timeout=60)
        assert back.storage is x.storage and x.tolist() == [n * 2 ** (i + 1) for n in range(5)]
    weight = nn.Parameter(torch.ones(2))
    inbox.put(weight)
    back = outbox.get(timeout=60)
    assert type(back) is nn.Parameter and back.requires_grad and weight.tolist() == [2.0, 2.0]
    inbox.put(torch.empty(0, 3))
    assert outbox.get(timeout=60).shape == (0, 3)
    inbox.put(None)
    ended(process)


def test_layout_and_kind_arrive(strategy):
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = run("spawn", tell, inbox, outbox)
    sent = [torch.ones(3, 4)[1:, ::2], torch.ones(2, 3).t(), torch.ones(2, 1).expand(2, 5), torch.tensor(1),
            torch.ones(3, requires_grad=True), nn.Buffer(torch.ones(2, dtype=torch.bfloat16)), torch.ones(4, dtype=torch.float8_e4m3fn),
            torch.zeros(2, dtype=torch.bool)]
    inbox.put(len(sent))
    for x in sent:
        inbox.put(x)
        assert outbox.get(timeout=60) == describe(x)
    ended(process)


@pytest.mark.parametrize("method", METHODS)
def test_views_share_on_arrival(method, strategy):
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = run(method, views, inbox, outbox)
    x = torch.zeros(6)
    inbox.put((x[:3], x[2:]))
    inbox.put(x)
    assert outbox.get(timeout=60) == ([7.0, 0, 0, 0], True, True)
    inbox.put(None)
    ended(process)
    assert x.tolist() == [7, 7, 7, 0, 0, 0]


def test_results_of_operators_do_not_travel():
    parent, child = mp.Pipe()
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="x.detach()"):
        parent.send(x * 2)
    parent.send((x * 2).detach())
    assert child.recv().tolist() == [2.0, 2.0]


def test_a_pool_of_processes():
    with mp.get_context("fork").Pool(2) as pool:
        assert [x.tolist() for x in pool.map(scale, [torch.ones(2) * i for i in range(4)])] == [[10.0 * i] * 2 for i in range(4)]


def test_training_without_locks():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    model.weight.grad = torch.zeros(1, 3)
    assert model.share_memory() is model and model.weight.grad.is_shared() and model.bias.is_shared()
    start = model.weight.detach().clone()
    for process in [run("fork", train, model, seed) for seed in range(3)]:
        ended(process)
    assert not torch.equal(model.weight, start)
    assert torch.allclose(model.weight, torch.tensor([[1.0, -2.0, 0.5]]), atol=0.05)


# ------------------------------------------------------------------ what is kept open, and for how long
def test_descriptors_and_files_go_with_the_tensors(strategy):
    context = mp.get_context("fork")
    inbox, outbox = context.Queue(), context.Queue()
    process = run("fork", answer, inbox, outbox)
    inbox.put(torch.ones(3))                                             # starts what serves descriptors
    outbox.get(timeout=60)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else None
    kept = [torch.ones(1000) for _ in range(20)]
    for x in kept:
        inbox.put(x)
        outbox.get(timeout=60)
    assert strategy == "file_descriptor" or len(files()) >= 20
    if before is not None:
        opened = len(os.listdir("/proc/self/fd")) - before
        assert opened >= 20 if strategy == "file_descriptor" else opened < 5
    kept.clear()
    del x
    inbox.put(None)
    ended(process)
    deadline = time.monotonic() + 20
    while files() and time.monotonic() < deadline:                       # the feeder of a queue lets go of the last when it sees the next
        gc.collect()
        time.sleep(0.05)
    assert not files()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) - before < 5


def test_no_room_is_said_and_nothing_lost():
    x = torch.ones(1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises((RuntimeError, OSError)):
            x.share_memory_()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not x.is_shared() and x.sum().item() == 1 << 20
    assert x.share_memory_().is_shared()


@pytest.mark.skipif(sys.platform != "linux", reason="file_system is for Linux")
def test_files_of_a_killed_process_are_swept_up(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os, signal, sys, tritorch as torch\n"
                       "from tritorch import multiprocessing as mp\n"
                       "from tritorch.multiprocessing.segments import _family\n"
                       "mp.set_sharing_strategy('file_system')\n"
                       "x = torch.ones(5).share_memory_()\n"
                       "if sys.argv[1] == '0': mp.get_context('fork').Process(target=signal.pause, daemon=True).start()\n"
                       "pipe = mp.Pipe(); pipe[0].send(torch.ones(3))\n"                    # a message that nobody reads
                       "print(_family(), flush=True)\n"
                       "os.kill(os.getpid(), int(sys.argv[1])) if sys.argv[1] != '0' else None\n")
    for end in (signal.SIGKILL, 0):
        done = subprocess.run([sys.executable, program, str(int(end))], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.returncode == -end and (end or not done.stderr), done.stderr
        deadline = time.monotonic() + 20
        while (left := glob.glob(done.stdout.strip() + "*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left


def test_strategies_by_name():
    assert mp.get_sharing_strategy() in mp.get_all_sharing_strategies()
    with pytest.raises(ValueError, match="file_descriptor"):
        mp.set_sharing_strategy("carrier pigeon")
    assert set(multiprocessing.__all__) <= set(mp.__all__) and torch.multiprocessing is mp


def test_threads_move_one_tensor_once(monkeypatch):
    x, errors, made, create = torch.zeros(1000), [], [], segments.create

    def slowly(nbytes):
        made.append(nbytes)
        time.sleep(0.05)
        return create(nbytes)

    monkeypatch.setattr(segments, "create", slowly)

    def share():
        try:
            x.share_memory_()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=share) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and x.is_shared() and made == [4000]
    ended(run("fork", add_one, x))
    assert x.sum().item() == 1000
