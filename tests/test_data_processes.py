"""How DataLoader's worker processes end: with their parent, without noise, however that ends."""
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tritorch.utils.data import DataLoader

ROOT = Path(__file__).parent.parent
PROGRAM = """
import multiprocessing, signal, sys, time
import tritorch
from tritorch.utils.data import DataLoader

class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, k):
        if k > 4:
            time.sleep({nap})
        return tritorch.ones(5000) * k

def tell():
    print("held:", *signal.pthread_sigmask(signal.SIG_BLOCK, []))

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)             # a shell has what it starts in the background ignore it
    loader = DataLoader(Slow(), num_workers=2, multiprocessing_context={how!r})
    iterator = iter(loader)
    for _ in range(5):                                                   # what comes at once: then all are waiting
        next(iterator)
    print(*[p.pid for p in iterator.workers.processes], flush=True)
    {then}
"""


@pytest.fixture(params=sorted({"fork", "forkserver"} & set(multiprocessing.get_all_start_methods())))
def run_program(request, tmp_path):
    """Runs it in a process group of its own, its workers started as Python does by default: before 3.14, and since."""
    return lambda then, nap: running(PROGRAM.format(then=then, nap=nap, how=request.param), tmp_path / "program.py")


def running(program, file):
    file.write_text(program)
    process = subprocess.Popen([sys.executable, file], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    pids = [int(p) for p in process.stdout.readline().split()]
    assert len(pids) == 2, process.communicate()
    return process, pids


def assert_gone(pids, patience=10.0):
    end = time.time() + patience
    while any(alive(p) for p in pids):
        assert time.time() < end, "workers outlive their parent"
        time.sleep(0.05)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")


@linux
def test_workers_die_with_their_parent(run_program):
    process, pids = run_program("time.sleep(60)", 0.1)
    process.kill()
    process.wait()
    assert_gone(pids)
    process.communicate()


@linux
def test_ctrl_c_is_clean(run_program):
    process, pids = run_program("[0 for _ in iterator]", 0.3)
    os.killpg(process.pid, signal.SIGINT)                                # as the terminal does
    _, errors = process.communicate(timeout=30)
    assert_gone(pids)
    assert process.returncode != 0 and errors.count("Traceback") == 1 and "KeyboardInterrupt" in errors and "leaked" not in errors


@linux
def test_exit_in_the_middle_is_clean(run_program):
    process, pids = run_program("sys.exit(3)", 0.01)
    _, errors = process.communicate(timeout=30)
    assert_gone(pids)
    assert process.returncode == 3 and errors == ""


@linux
def test_processes_that_start_afterwards_heed_ctrl_c(run_program):
    """The server that forks the workers forks what is started later too."""
    then = "p = multiprocessing.get_context(loader.multiprocessing_context).Process(target=tell); p.start(); p.join(); iterator.end()"
    process, _ = run_program(then, 0.01)
    out, errors = process.communicate(timeout=30)
    assert out.strip() == "held:" and errors == ""


def test_what_cannot_be_pickled_is_told():
    for options in ({"collate_fn": lambda batch: batch}, {"worker_init_fn": lambda k: None}):
        loader = DataLoader(range(4), num_workers=1, multiprocessing_context="spawn", **options)
        with pytest.warns(UserWarning, match="can be pickled.*'spawn'.*'fork'") as told:
            with pytest.raises((AttributeError, pickle.PicklingError)):
                iter(loader)
        assert told[0].filename == __file__
