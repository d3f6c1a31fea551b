"""How DataLoader's worker processes end: with their parent, without noise, however that ends."""
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
import os, signal, sys, threading, time
import tritorch
from tritorch.utils.data import DataLoader

class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, k):
        if k > 4:
            time.sleep({nap})
        return tritorch.ones(5000) * k

if __name__ == "__main__":
    loader = DataLoader(Slow(), num_workers=2)
    iterator = iter(loader)
    for _ in range(5):                                                   # what comes at once: then all are waiting
        next(iterator)
    print(*[p.pid for p in iterator.workers.processes], flush=True)
    {then}
"""


def run_program(then, nap):
    program = textwrap.dedent(PROGRAM).format(then=then, nap=nap)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
def test_workers_die_with_their_parent():
    process, pids = run_program("time.sleep(60)", 0.1)
    process.kill()
    process.wait()
    assert_gone(pids)
    process.communicate()


@linux
def test_ctrl_c_is_clean():
    process, pids = run_program("[0 for _ in iterator]", 0.3)
    for pid in (process.pid, *pids):                                     # the terminal signals the whole group
        os.kill(pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert_gone(pids)
    assert process.returncode != 0 and errors.count("Traceback") == 1 and "KeyboardInterrupt" in errors and "leaked" not in errors


@linux
def test_exit_in_the_middle_is_clean():
    process, pids = run_program("sys.exit(3)", 0.01)
    _, errors = process.communicate(timeout=30)
    assert_gone(pids)
    assert process.returncode == 3 and errors == ""
