"""Functions that run in several processes: all are waited for, and the first failure ends the others and is told."""
import os
import signal
import sys
import time

import pytest

import tritorch as torch
from tritorch import multiprocessing as mp

METHODS = sorted({"fork", "spawn"} & set(mp.get_all_start_methods()))


def write(i, out, value):
    out[i] = value + i


def fail(i):
    if i == 1:
        raise ValueError("number 1 has had enough")
    time.sleep(60)


def die(i):
    if i == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def leave(i, code):
    sys.exit(code if i == 0 else 0)


def talk(i):
    raise RuntimeError("x" * 300_000)


def stay(i):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if i == 1:
        time.sleep(1)
        raise ValueError
    time.sleep(60)


def test_spawn_runs_all_and_waits():
    out = torch.zeros(3)
    out.share_memory_()
    assert mp.spawn(write, (out, 5.0), nprocs=3) is None
    assert out.tolist() == [5.0, 6.0, 7.0]
    context = mp.spawn(write, (out, 1.0), nprocs=2, join=False)
    assert isinstance(context, mp.SpawnContext) and len(context.pids()) == 2
    while not context.join(timeout=60):
        pass
    assert out.tolist() == [1.0, 2.0, 7.0] and context.join()


@pytest.mark.parametrize("method", METHODS)
def test_the_first_failure_ends_all(method):
    began = time.monotonic()
    with pytest.raises(mp.ProcessRaisedException, match="(?s)Process 1 terminated.*Traceback.*number 1 has had enough") as caught:
        mp.start_processes(fail, nprocs=3, start_method=method)
    assert time.monotonic() - began < 50 and caught.value.error_index == 1 and caught.value.pid > 0
    assert not [p for p in mp.active_children() if p.name.startswith("Process")]


def test_ends_by_signal_and_exit_code():
    with pytest.raises(mp.ProcessExitedException, match="process 0 terminated with signal SIGKILL") as caught:
        mp.start_processes(die, nprocs=2, start_method="fork")
    assert caught.value.signal_name == "SIGKILL" and caught.value.exit_code == -signal.SIGKILL
    with pytest.raises(mp.ProcessExitedException, match="process 0 terminated with exit code 3") as caught:
        mp.start_processes(leave, (3,), nprocs=2, start_method="fork")
    assert caught.value.exit_code == 3
    mp.start_processes(leave, (0,), nprocs=2, start_method="fork")


def test_long_tracebacks_arrive_whole():
    with pytest.raises(mp.ProcessRaisedException) as caught:
        mp.start_processes(talk, nprocs=2, start_method="fork")
    assert str(caught.value).count("x") >= 300_000


def test_who_does_not_end_is_killed():
    context = mp.start_processes(stay, nprocs=2, join=False, start_method="fork")
    with pytest.warns(UserWarning, match="grace"), pytest.raises(mp.ProcessRaisedException):
        while not context.join(grace_period=0.5):
            pass
    assert not any(p.is_alive() for p in context.processes)


def test_a_join_that_runs_out_of_time():
    context = mp.start_processes(time.sleep, nprocs=1, join=False, start_method="fork")
    assert context.join(timeout=60)                                      # sleep(0)
    context = mp.start_processes(die, nprocs=0, join=False)
    assert context.join()
    context = mp.start_processes(stay, nprocs=1, join=False, start_method="fork")
    assert context.join(timeout=0.1) is False
    context.processes[0].kill()
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        context.join()


def test_wrong_arguments():
    with pytest.raises(TypeError, match="a function"):
        mp.spawn("train", nprocs=1)
    with pytest.raises(ValueError, match="nprocs"):
        mp.spawn(write, nprocs=-1)
    with pytest.raises(ValueError, match="start_method"):
        mp.start_processes(write, start_method="knife")
