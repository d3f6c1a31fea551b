"""The day with a GPU, without one: tests divided among processes that may die, steps that end in time."""
import argparse
import os
import subprocess
import sys
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
CONFTEST = f"""
import importlib.util, pytest
specification = importlib.util.spec_from_file_location("real", {str(rows.ROOT / "tests" / "conftest.py")!r})
real = importlib.util.module_from_spec(specification)
specification.loader.exec_module(real)
def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: ")
    config.pluginmanager.register(real.Guard(config))
def pytest_runtest_logfinish(nodeid):
    if nodeid.endswith("[2]"):
        pytest.exit(f"{{nodeid}} broke the device: illegal address", returncode=3)
"""


@pytest.fixture(autouse=True)
def switches(monkeypatch):
    """What a day sets for the processes that it starts, this one must not keep."""
    for name in ("TRITORCH_AVOID", "TRITORCH_PTX"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def write_tests(folder, text):
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(text)
    (folder / "tests" / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")


def test_no_test_costs_another(tmp_path, monkeypatch, capsys):
    write_tests(tmp_path, TESTS)
    monkeypatch.setattr(shards, "SILENCE", 20)                           # pytest alone may take 6 s to start on a busy machine
    monkeypatch.setenv("PYTHONPATH", str(rows.ROOT))
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    said = []
    outcomes = shards.run([], said.append, 2, time.monotonic() + 240)
    named = {test.partition("::")[2]: outcome for test, outcome in outcomes.items()}
    assert named == {
        **{f"test_fine[{n}]": ("PASSED", "") for n in (0, 1, 3, 5)}, "test_fine[2]": ("BROKE THE DEVICE", "illegal address"),
        "test_fine[4]": ("FAILED", "assert 4 != 4"), "test_dies": ("DIED", "its process ended with 9"),
        "test_hangs": ("DIED", "nothing heard for 20 s"), "test_last": ("PASSED", "")}
    assert all(line[:4] in (" 0| ", " 1| ") for line in said) and any("nothing heard for 20 s" in line for line in said)


def test_why_a_test_failed_is_known_before_pytest_ends(tmp_path, monkeypatch):
    """Time may end it, and what it would have said at its end is lost."""
    write_tests(tmp_path, TESTS)
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "--no-summary", "tests/test_it.py::test_fine[4]",
               "tests/test_it.py::test_dies"]
    environment = {**shards.environment(), "PYTHONPATH": str(rows.ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 9 and "E   assert 4 != 4" in done.stdout, done.stdout


def test_what_failed_comes_before_what_was_not_run():
    outcomes = {"tests/a.py::b": ("NOT RUN", ""), "tests/a.py::c": ("NOT RUN", ""), "tests/z.py::d": ("FAILED", "assert 0"),
                "tests/z.py::e": ("PASSED", "")}
    assert shards.summary(outcomes) == ["1 of 4 tests passed, 0 skipped, 1 not well, 2 not run", "FAILED tests/z.py::d: assert 0",
                                        "NOT RUN 2 tests of tests/a.py"]


def test_no_tests_are_no_success(tmp_path, monkeypatch, capsys):
    write_tests(tmp_path, "import gone")
    monkeypatch.setenv("PYTHONPATH", str(rows.ROOT))
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    assert day(tmp_path / "out", "test") == 1
    assert "No module named 'gone'" in capsys.readouterr().out and "0 of 0 tests passed" in (tmp_path / "out" / "tests.txt").read_text()


def test_a_part_begins_with_something_of_all():
    tests = {"a": [f"a[x-{n}]" for n in range(5)], "b": ["b[x-0]", "b[x-1]"], "c": ["c"], "d": ["d[y]"]}
    parts = shards.divided([test for group in tests.values() for test in group], 2)
    assert sorted(map(len, parts)) == [4, 5] and sorted(sum(parts, [])) == sorted(sum(tests.values(), []))
    assert parts == [tests["a"], ["b[x-0]", "c", "d[y]", "b[x-1]"]]
    assert shards.divided(tests["b"] + tests["c"], 1) == [["b[x-0]", "c", "b[x-1]"]]


def test_what_is_not_run_in_time_is_said(monkeypatch):
    monkeypatch.setattr(shards, "collect", lambda words, seconds: ["tests/test_gone.py::test_it"])
    outcomes = shards.run([], print, 2, time.monotonic() - 1)
    assert outcomes == {"tests/test_gone.py::test_it": ("NOT RUN", "")}


def day(tmp_path, *steps):
    return gpu_day.main(argparse.Namespace(families=list(steps), out=str(tmp_path), minutes=5.0, only="softmax", rehearse=True,
                                           ready=False))


def test_steps_in_a_rehearsal(tmp_path, capsys, monkeypatch):
    """Of the kinds of kernels two: the simulated device's tiles are of none, so that each kind is the same program once more."""
    pytest.importorskip("triton")
    monkeypatch.setattr(gpu_day, "KINDS", ("plain", "gluon"))
    assert day(tmp_path, "smoke", "bench", "tune") == 0, capsys.readouterr().out
    assert "losses of 20 steps" in (tmp_path / "smoke.log").read_text()
    assert "gluon kernels: right" in capsys.readouterr().out
    assert "softmax" in (tmp_path / "bench" / "gpu.json").read_text() and "0 candidates refused" in (tmp_path / "tune.log").read_text()


def test_unknown_steps_are_refused(tmp_path, capsys):
    assert day(tmp_path, "bnech") == 2
    assert "expected steps among smoke, build, test, bench, tune, judge, again, got bnech" in capsys.readouterr().out


def test_a_kind_of_kernel_that_hangs_is_avoided_by_later_commands_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_day, "SMOKE", "import os; print('smoke without', os.environ['TRITORCH_AVOID'])")
    monkeypatch.setattr(gpu_day, "SECONDS", 5)
    monkeypatch.setattr(gpu_day, "KIND", "import os, time\nif 'gluon' not in os.environ['TRITORCH_AVOID'].split(','): time.sleep(60)")
    monkeypatch.setenv("TRITORCH_AVOID", "")
    assert day(tmp_path, "smoke") == 1
    assert "gluon kernels: WRONG: nothing heard for 5 s" in capsys.readouterr().out and os.environ["TRITORCH_AVOID"] == "gluon"
    said = (tmp_path / "smoke.log").read_text()
    assert "gluon| nothing heard for 5 s" in said and "smoke without gluon" in said
    monkeypatch.setenv("TRITORCH_AVOID", "")                             # as in another command
    monkeypatch.setattr(gpu_day, "build", lambda *args: 0)
    assert day(tmp_path, "build") == 0
    assert "avoided: gluon kernels" in capsys.readouterr().out and os.environ["TRITORCH_AVOID"] == "gluon"
    monkeypatch.setenv("TRITORCH_AVOID", "")
    monkeypatch.setattr(gpu_day, "KIND", "1 / 0")                        # with every kind of kernel: it is none of them
    assert day(tmp_path, "smoke") == 1
    assert "nothing is avoided" in capsys.readouterr().out and os.environ["TRITORCH_AVOID"] == ""


def test_kinds_of_kernels_that_there_was_no_time_for_are_not_avoided(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_day, "KIND", "import time\nwhile True: print(1, flush=True), time.sleep(0.1)")
    monkeypatch.setenv("TRITORCH_AVOID", "")
    assert gpu_day.main(argparse.Namespace(families=["smoke"], out=str(tmp_path), minutes=0.05, only="", rehearse=True, ready=False)) == 1
    assert "gluon kernels: not tried" in capsys.readouterr().out and os.environ["TRITORCH_AVOID"] == ""


def test_smoke_says_what_is_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_day, "KIND", "")
    wrong = gpu_day.SMOKE.replace("a.cumsum(0)", "a.cumsum(0) + 9 * a.is_cuda").replace("range(20)", "range(3)")
    monkeypatch.setattr(gpu_day, "SMOKE", wrong)
    assert day(tmp_path, "smoke") == 1
    assert capsys.readouterr().out.count("WRONG") == 2


def test_a_step_that_fails_by_itself_does_not_cost_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_day, "build", lambda *args: 1 / 0)
    monkeypatch.setattr(gpu_day, "tune", lambda *args: 0)
    assert day(tmp_path, "build", "tune") == 1
    assert "ZeroDivisionError" in (out := capsys.readouterr()).err and "== tune: done" in out.out


@pytest.mark.parametrize("says", ["print('.', flush=True)", ""])
def test_a_step_ends_in_time(says, tmp_path):
    start = time.monotonic()
    program = f"import time\nwhile True: {says or None}; time.sleep(0.1)"
    assert gpu_day.logged(["-c", program], gpu_day.Log(tmp_path / "log"), start + 1) != 0 and time.monotonic() < start + 20


def test_a_step_ends_in_time_though_a_process_of_its_own_keeps_talking_to_nobody(tmp_path):
    start = time.monotonic()
    program = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(40)'])\ntime.sleep(40)"
    assert gpu_day.logged(["-c", program], gpu_day.Log(tmp_path / "log"), start + 2) == "out of time" and time.monotonic() < start + 20
