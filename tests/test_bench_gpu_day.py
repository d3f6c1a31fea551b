"""The day with a GPU, without one: tests divided among processes that may die, steps that end in time."""
import argparse
import os
import time

import pytest

from bench import gpu_day, rows, shards

TESTS = """
import os, time, pytest
pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("n", range(6))
def test_fine(n):
    assert n != 4

def test_dies():
    os._exit(9)

def test_hangs():
    time.sleep(1000)

def test_last():
    pass
"""
CONFTEST = """
import pytest
def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: ")
def pytest_runtest_logfinish(nodeid):
    if nodeid.endswith("[2]"):
        pytest.exit(f"{nodeid} broke the device: illegal address", returncode=3)
"""


def test_no_test_costs_another(tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    monkeypatch.setattr(shards, "SILENCE", 20)                           # pytest alone may take 6 s to start on a busy machine
    outcomes, parts = shards.run([], tmp_path / "out", 2, time.monotonic() + 240)
    named = {test.partition("::")[2]: outcome for test, outcome in outcomes.items()}
    assert named == {**{f"test_fine[{n}]": "PASSED" for n in (0, 1, 3, 5)}, "test_fine[2]": "BROKE THE DEVICE", "test_fine[4]": "FAILED",
                     "test_dies": "DIED", "test_hangs": "DIED", "test_last": "PASSED"}
    assert any("nothing heard for 20 s" in line for part in parts for line in part.output)
    assert (tmp_path / "out" / "part0.log").exists()


def test_a_part_begins_with_something_of_all():
    tests = {"a": [f"a[x-{n}]" for n in range(5)], "b": ["b[x-0]", "b[x-1]"], "c": ["c"], "d": ["d[y]"]}
    parts = shards.divided([test for group in tests.values() for test in group], 2)
    assert sorted(map(len, parts)) == [4, 5] and sorted(sum(parts, [])) == sorted(sum(tests.values(), []))
    assert parts == [tests["a"], ["b[x-0]", "c", "d[y]", "b[x-1]"]]
    assert shards.divided(tests["b"] + tests["c"], 1) == [["b[x-0]", "c", "b[x-1]"]]


def test_what_is_not_run_in_time_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "collect", lambda words, seconds: ["tests/test_gone.py::test_it"])
    outcomes, _ = shards.run([], tmp_path, 2, time.monotonic() - 1)
    assert outcomes == {"tests/test_gone.py::test_it": "NOT RUN"}


def day(tmp_path, *steps):
    return gpu_day.main(argparse.Namespace(families=list(steps), out=str(tmp_path), minutes=5.0, only="softmax", rehearse=True))


def test_steps_in_a_rehearsal(tmp_path, capsys):
    pytest.importorskip("triton")
    assert day(tmp_path, "smoke", "bench", "tune") == 0, capsys.readouterr().out
    assert "losses of 20 steps" in (tmp_path / "smoke.log").read_text()
    assert "gluon kernels: right" in capsys.readouterr().out
    assert "softmax" in (tmp_path / "bench" / "gpu.json").read_text() and "0 candidates refused" in (tmp_path / "tune.log").read_text()


def test_unknown_steps_are_refused(tmp_path, capsys):
    assert day(tmp_path, "bnech") == 2
    assert "expected steps among smoke, build, test, bench, tune, again, got bnech" in capsys.readouterr().out


def test_a_kind_of_kernel_that_hangs_is_avoided(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_day, "SMOKE", "")
    monkeypatch.setattr(gpu_day, "SECONDS", 3)
    monkeypatch.setattr(gpu_day, "KIND", "import os, time\nif 'gluon' not in os.environ['TRITORCH_AVOID'].split(','): time.sleep(60)")
    monkeypatch.setenv("TRITORCH_AVOID", "")
    assert day(tmp_path, "smoke") == 1
    assert "gluon kernels: WRONG" in capsys.readouterr().out and os.environ["TRITORCH_AVOID"] == "gluon"
    assert "nothing heard for 3 s" in (tmp_path / "smoke_gluon.log").read_text()


def test_kinds_of_kernels_that_there_was_no_time_for_are_not_avoided(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_day, "SMOKE", "import time\nwhile True: print(1), time.sleep(0.1)")
    monkeypatch.setenv("TRITORCH_AVOID", "")
    assert gpu_day.main(argparse.Namespace(families=["smoke"], out=str(tmp_path), minutes=0.05, only="", rehearse=True)) == 1
    assert "gluon kernels: not tried" in capsys.readouterr().out and os.environ["TRITORCH_AVOID"] == ""


def test_a_step_that_fails_by_itself_does_not_cost_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_day, "build", lambda *args: 1 / 0)
    monkeypatch.setattr(gpu_day, "tune", lambda *args: 0)
    assert day(tmp_path, "build", "tune") == 1
    assert "ZeroDivisionError" in (out := capsys.readouterr()).err and "== tune: done" in out.out


@pytest.mark.parametrize("says", ["print('.', flush=True)", ""])
def test_a_step_ends_in_time(says, tmp_path):
    start = time.monotonic()
    program = f"import time\nwhile True: {says or None}; time.sleep(0.1)"
    assert gpu_day.logged(["-c", program], tmp_path / "log", start + 1) != 0 and time.monotonic() < start + 20


def test_a_step_ends_in_time_though_a_process_of_its_own_keeps_talking_to_nobody(tmp_path):
    start = time.monotonic()
    program = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(40)'])\ntime.sleep(40)"
    assert gpu_day.logged(["-c", program], tmp_path / "log", start + 2) == "out of time" and time.monotonic() < start + 20
