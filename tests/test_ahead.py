"""The host runs ahead while kernels compile: the device gets the same calls in the same order, errors come, nobody hangs or stays."""
import contextlib
import ctypes
import io
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

triton = pytest.importorskip("triton")
K = pytest.importorskip("launch_kernels")

import tritorch as torch  # noqa: E402
from tritorch.cuda import ahead, compiler, compiler_pool, driver  # noqa: E402
from tritorch.cuda.compiler import Specialisation  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402
from tritorch.cuda.launch import LaunchError, launch  # noqa: E402


class Loaded:
    info = {"registers": 1}

    def __init__(self, device, name):
        self.device, self.name = device, name

    def launch(self, *call):
        if driver.waiting and ahead.launches_later(self.launch, *call):
            return
        self.device.told.append((self.name, *call[:3], self.device.index, [v for v in call[4] if not isinstance(v, int) or v < 1 << 32]))


class Told(DryDriver):
    """Tells what it was told to do, in order."""

    def __init__(self):
        super().__init__(90)
        self.told, self.index = [], 0

    def device_count(self):
        return 2

    def set_device(self, index):
        self.index = index

    def load(self, kernel, *rest):
        spec = Specialisation(kernel, *rest)
        return ahead.load(self, spec, 90, lambda compiled: Loaded(self, compiled.name))

    def copy(self, dst, src, nbytes, kind, stream):
        self.told.append((kind, nbytes, ctypes.string_at(src, nbytes) if kind == "h2d" else None))
        super().copy(dst, src, nbytes, kind, stream)

    def fill(self, ptr, value, width, count, stream):
        self.told.append(("fill", value, count))

    def event_record(self, event, stream):
        self.told.append(("record", stream, self.index))

    def synchronize(self, index):
        self.told.append(("synchronize", index))


@pytest.fixture
def device(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler_pool, "cores", lambda: 2)
    with driver.using(Told()) as device:
        yield device
    assert not driver.waiting and not ahead._calls and set(vars(device)) <= {
        "properties", "used", "sizes", "host", "on_host", "capturing", "handles", "address", "told", "index"}


def program():
    """Launches, copies in every direction, events, memory of the host that changes at once, and a value that is read."""
    x = torch.arange(5, device="cuda", dtype=torch.float32)
    a = np.arange(6.0, dtype=np.float32)
    y = torch.from_numpy(a).to("cuda")
    a[:] = 7
    z = (y * 2 + 1).sum()
    torch.cuda.Event().record()
    x[2:4] = 3
    with torch.cuda.device(1):
        torch.ones(3, device="cuda").exp()
    z.item()
    return x


def test_the_device_gets_the_same_calls_in_the_same_order(device):
    program()
    late, device.told = device.told, []
    assert len(list((compiler.cache_folder() / "kernels").iterdir())) >= 4
    driver.functions.clear()
    driver.forget_calls()
    program()                                                            # all is on disk: nothing waits
    assert device.told == late and any(call[0] == "h2d" for call in late) and any(call[-2] == 1 for call in late if len(call) == 6)


def test_what_dies_with_the_last_that_waits_is_not_forgotten(device, monkeypatch):
    monkeypatch.setattr(driver, "call_tables", [{0: (dies := Loaded(device, ""))}])
    weakref.finalize(dies, lambda: device.fill(0, 7, 1, 1, 0))           # as memory that only a table of calls still holds
    del dies
    torch.zeros(8, device="cuda").exp()
    torch.cuda.synchronize()
    assert ("fill", 7, 1) in device.told


def test_kernels_compile_side_by_side_and_calls_wait(device, monkeypatch):
    monkeypatch.setattr(ahead, "CALLS", 1000)
    x = torch.zeros(8, device="cuda")
    device.told.clear()
    for f in (torch.exp, torch.log, torch.sin):
        f(x)
    event = torch.cuda.Event()
    event.record()
    torch.cuda.synchronize()
    assert event.query() and not driver.waiting
    assert [call[0] for call in device.told[-2:]] == ["record", "synchronize"]
    assert compiler_pool.shared().threads >= 1


def test_results_are_the_same(tmp_path, monkeypatch):
    """On the real driver, over a machine that executes the compiled kernels: training from an empty cache, and from a full one."""
    ptx = pytest.importorskip("tritorch.testing.ptx.device")
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler_pool, "cores", lambda: 2)
    found, a = [], np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    for _ in range(2):
        with ptx.simulate(90):
            w = torch.from_numpy(a.copy()).to("cuda").requires_grad_()
            optimizer = torch.optim.SGD([w], lr=0.5, momentum=0.9)
            missing = False
            for _ in range(2):
                optimizer.zero_grad()
                (w.tanh() * w).sum().backward()
                optimizer.step()
                missing = missing or bool(driver.waiting)
            found.append((w.detach().cpu().numpy(), missing))
    w, moment = a.astype(np.float64), 0.0
    for _ in range(2):
        moment = 0.9 * moment + np.tanh(w) + w * (1 - np.tanh(w) ** 2)
        w = w - 0.5 * moment
    assert np.array_equal(found[0][0], found[1][0]) and np.allclose(found[0][0], w, rtol=1e-5, atol=1e-6)
    assert [missing for _, missing in found] == [True, False]


def test_machine_code_that_launches_share_is_compiled_once(device, monkeypatch):
    """A parameter that is not specialised: 1, 16 and 3 are told apart, and their machine code is the same."""
    questions, submit = [], compiler_pool.Pool.submit
    monkeypatch.setattr(compiler_pool.Pool, "submit", lambda *args, **kwargs: questions.append(args) or submit(*args, **kwargs))
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    questions.clear()
    for n in (1, 16, 3):
        launch(K.unspecialised_kernel, (1,), x, n)
    assert driver.waiting and len(questions) == 1
    device.told.clear()
    torch.cuda.synchronize()
    assert [call[-1] for call in device.told[:3]] == [[1], [16], [3]]


def test_few_calls_wait(device, monkeypatch):
    monkeypatch.setattr(ahead, "CALLS", 3)
    x = torch.zeros(8, device="cuda")
    for _ in range(9):
        x.exp_()
        assert len(ahead._calls) < 3
    torch.cuda.synchronize()


def test_a_kernel_that_does_not_compile_is_an_error_of_the_call_that_waits(device, monkeypatch):
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    launch(K.broken_kernel, (4,), x)
    x.exp_()
    device.told.clear()
    with pytest.raises(LaunchError) as late:
        torch.cuda.synchronize()
    assert [call[0] for call in device.told] == ["unary_flat"] and not driver.waiting      # what else was queued has run
    torch.cuda.synchronize()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    driver.functions.clear()
    with pytest.raises(LaunchError, match="undefined_name is not defined") as early:
        launch(K.broken_kernel, (4,), x)
    assert str(early.value) == str(late.value) and isinstance(late.value.__cause__, compiler.CompileError)


def test_kernels_of_a_capture_or_of_the_program_itself_are_compiled_at_once(device, monkeypatch):
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    with ahead.staying():
        x.exp()
        assert not driver.waiting
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.log()
        assert not driver.waiting
    monkeypatch.setattr(K.twice, "__module__", "__main__", raising=False)
    launch(K.map_kernel, (1,), x, x, 8, FN=K.twice, BLOCK=64)
    assert not driver.waiting
    monkeypatch.setattr(compiler_pool, "cores", lambda: 1)
    x.sin()
    assert not driver.waiting


def test_who_asks_again_and_again_hears_of_the_end(device):
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    x.exp()
    event.record()
    end = time.monotonic() + 120
    while not event.query():
        assert time.monotonic() < end
        time.sleep(0.01)
    launch(K.broken_kernel, (4,), x)
    event.record()
    with pytest.raises(LaunchError, match="undefined_name is not defined"):
        while not event.query():
            assert time.monotonic() < end
            time.sleep(0.01)
    assert not driver.waiting


@pytest.mark.parametrize("way", [lambda x: x.__cuda_array_interface__, lambda x: x.__dlpack__(),
                                 lambda x: torch.cuda.ExternalStream(123, "cuda:0")])
def test_other_libraries_find_nothing_waiting(device, way):
    x = torch.zeros(8, device="cuda")
    x.exp_()
    assert driver.waiting
    way(x)
    assert not driver.waiting and [call[0] for call in device.told if call[0] == "unary_flat"]
    x.log_()
    assert not driver.waiting


def test_another_driver_finds_nothing_waiting(device):
    torch.zeros(8, device="cuda").exp()
    with driver.using(DryDriver(90)):
        assert not driver.waiting
    assert device.told[-1][0] == "unary_flat"


def test_processes_that_are_killed_are_done_without(device, monkeypatch):
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    device.told.clear()
    for f in (torch.exp, torch.log, torch.sin, torch.cos, torch.tanh):
        f(x)
    stop = threading.Event()

    def kill():
        while not stop.wait(0.01):
            for worker in list(compiler_pool._workers):
                with contextlib.suppress(AttributeError):
                    worker.process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        torch.cuda.synchronize()
    finally:
        stop.set()
        killer.join()
    assert [call[0] for call in device.told] == ["unary_flat"] * 5 + ["synchronize"] and not compiler_pool.shared().unanswered


def test_a_bar_is_shown_on_a_terminal_alone(device, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    for where, off, function, shown in ((Terminal(), "1", torch.exp, True), (Terminal(), "0", torch.log, False),
                                        (io.StringIO(), "1", torch.sin, False)):
        monkeypatch.setenv("TRITORCH_PROGRESS", off)
        monkeypatch.setattr(sys, "stderr", where)
        function(x)
        torch.cuda.synchronize()
        assert ("compiling kernels:" in where.getvalue() and "/1 " in where.getvalue()) == shown == bool(where.getvalue())


PROGRAM = """
import sys
import tritorch as torch
import test_ahead
from tritorch.cuda import compiler_pool, driver
compiler_pool.cores = lambda: 2
with driver.using(test_ahead.Told()):
    x = torch.zeros(8, device="cuda")
    for f in (torch.exp, torch.log, torch.sin, torch.cos):
        f(x)
    pids = []
    while not pids:
        pids = [w.process.pid for w in list(compiler_pool._workers) if w.process]
    print(*pids, flush=True)
    {end}
    torch.cuda.synchronize()
    print("done", flush=True)
"""


def started(end=""):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-c", PROGRAM.replace("{end}", end)], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def gone(pid):
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("how", ["interrupt", "exit", "error", "kill"])
def test_nothing_is_left_behind(tmp_path, monkeypatch, how):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    process = started({"exit": "sys.exit(3)", "error": "1 / 0"}.get(how, ""))
    pids = [int(word) for word in process.stdout.readline().split()]
    assert pids
    if how in ("interrupt", "kill"):
        os.killpg(process.pid, signal.SIGINT if how == "interrupt" else signal.SIGKILL)
    out, told = process.communicate(timeout=120)
    assert "done" not in out and process.returncode == {"interrupt": -2, "exit": 3, "error": 1, "kill": -9}[how]
    raised = [line for line in told.splitlines() if line.startswith(("KeyboardInterrupt", "ZeroDivisionError"))]
    assert len(raised) == (how in ("interrupt", "error")) == ("Traceback" in told), told
    assert all(map(gone, pids))


def test_a_function_of_atexit_may_wait_for_the_device(tmp_path, monkeypatch):
    """It runs after the processes that compile have ended, and what multiprocessing lets go of, where it starts processes anew."""
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = ("import atexit, multiprocessing, tritorch as torch, test_ahead\n"
            "multiprocessing.set_start_method('spawn')\n"
            "from tritorch.cuda import compiler_pool, driver\n"
            "compiler_pool.cores = lambda: 3\n"
            "driver.use(test_ahead.Told())\n"
            "atexit.register(lambda: (torch.cuda.synchronize(), print(driver.waiting)))\n"
            "for f in (torch.exp, torch.log, torch.sin, torch.cos): f(torch.zeros(8, device='cuda'))\n"
            "assert driver.waiting")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("helped", [False, True])
def test_where_no_thread_can_begin_any_more_the_askers_answer(helped, monkeypatch):
    """While a program ends, Python 3.12 begins none."""
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("threading.Thread.start", refuse)
    pool = compiler_pool.Pool(2)
    futures = [pool.submit(lambda worker, n=n: (worker, n), helped) for n in range(3)]
    while pool.help():
        pass
    assert [future.result(timeout=0) for future in futures] == [(None, 0), (None, 1), (None, 2)]


@pytest.mark.parametrize("ask", [
    lambda x: torch.cuda.current_stream().cuda_stream, lambda x: torch.cuda.Event().cuda_event, torch.Tensor.__dlpack__,
    lambda x: x.__cuda_array_interface__, lambda x: torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(8)),
    lambda x: torch.cuda.ExternalStream(16)])
def test_what_other_libraries_are_given_is_up_to_date(device, ask):
    x = torch.zeros(8, device="cuda").exp()
    assert driver.waiting
    ask(x)
    assert not driver.waiting
    x.log()
    assert not driver.waiting


def test_two_processes_share_a_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    both = [started(), started()]
    for process in both:
        out, told = process.communicate(timeout=300)
        assert process.returncode == 0 and out.endswith("done\n"), told
    assert all(compiler.read(path) is not None for path in (tmp_path / "kernels").iterdir())


def test_a_fork_owns_nothing(device):
    torch.zeros(8, device="cuda").exp()
    pid = os.fork()
    if not pid:
        os._exit(0 if not driver.waiting and not compiler_pool._workers and compiler_pool.shared().owner == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    torch.cuda.synchronize()
    assert device.told[-1][0] == "synchronize"
