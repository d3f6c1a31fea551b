"""Tuning without a GPU: wrong candidates are told from right ones, a process that dies or hangs costs its candidate, not the run."""
import argparse
import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")

from stand_ins import speak  # noqa: E402

import tritorch as torch  # noqa: E402
from bench import rows, tune  # noqa: E402
from bench.agree import Agreement  # noqa: E402
from tritorch.cuda import tuner  # noqa: E402
from tritorch.cuda.launch import launch  # noqa: E402

K = pytest.importorskip("launch_kernels")


def test_wrong_results_are_refused_and_inputs_are_put_back():
    with torch.cuda.simulate():
        x, out, places = torch.randn(64, device="cuda"), torch.full((64,), 5.0, device="cuda"), torch.arange(64, device="cuda")
        before = x.tolist(), places.tolist()

        def run(candidate):
            scratch = torch.empty(candidate.get("scratch", 8), device="cuda")        # not a result: each candidate has its own
            launch(K.map_kernel, (1,), scratch, x, 4, FN=K.square, BLOCK=64)
            launch(K.map_kernel, (1,), out, x, candidate.get("n", 64), FN=candidate.get("FN", K.twice), BLOCK=64)
            launch(K.map_kernel, (1,), places, places, 64, FN=candidate.get("places", K.same), BLOCK=64)

        agreement = Agreement(run, {})
        assert [dtype.name for _, _, dtype in agreement.outputs] == ["float32", "int64"]
        assert agreement.refused({"scratch": 4}) == agreement.refused({}) == ""
        assert "relative error" in agreement.refused({"FN": K.square})
        assert agreement.refused({"n": 60}) == "6.25% of the float32 are finite in one result alone"
        assert "of the int64 differ" in agreement.refused({"places": K.twice})
        agreement.close()
        assert (x.tolist(), places.tolist()) == before


def state(**more):
    return dict(workloads=["rows"], families=[], only="softmax", known={}, kept={}, broken={}, unchecked=[], rehearse=True, start=0,
                warm=False, hot=None, **more)


def test_rehearsal_writes_a_table_elsewhere(tmp_path):
    command = [sys.executable, "-m", "bench", "tune", "rows", "softmax", "--only", "softmax", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=rows.ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "0 failed" in done.stdout and "0 candidates refused" in done.stdout, done.stdout + done.stderr
    table = json.loads((tmp_path / "sm_90.json").read_text(encoding="utf-8"))
    assert table.keys() == {"softmax"}                             # the other families were not asked for
    assert all(entry.keys() == {"key", "use"} for entry in table["softmax"])
    with open(tmp_path / "tune.csv", newline="", encoding="utf-8") as file:
        met = [(row["family"], json.loads(row["key"])) for row in csv.DictReader(file) if row["chosen"] == "1"]
    assert met == [("softmax", entry["key"]) for entry in table["softmax"]]


PROBLEM = json.dumps(["softmax", ["half", 64]])
CHOSEN = {"problem": PROBLEM, "chosen": 1, "use": {"B": 2}, "candidates": [{"B": 1}, {"B": 2}], "refused": {}, "us": {"0": 3.0, "1": 2.0},
          "hot": []}


def test_a_candidate_that_hangs_is_left_out_by_the_next_process(tmp_path, monkeypatch, capsys):
    asked = speak(monkeypatch, [{"begin": 3, "name": "x"}, {"problem": PROBLEM, "checking": True}, {"end": "it hangs"}],
                  [{"begin": 3, "name": "x"}, {"problem": PROBLEM, "trying": 2}, {"end": "it hangs"}],
                  [{"begin": 3, "name": "x"}, CHOSEN, {"begin": 4, "name": "y"}, {"end": "its process ended with 1"}],
                  [{"begin": 5, "name": "z"}, {"end": ""}])
    session = tune.Session(state(), tmp_path / "sm_90.json")
    while session.go(time.monotonic() + 60):
        pass
    session.close()
    assert asked[1]["unchecked"] == [PROBLEM] and not asked[1]["broken"]
    assert asked[2]["broken"] == {PROBLEM: [2]} and asked[2]["start"] == 3
    assert asked[3]["known"] == {PROBLEM: {"B": 2}} and asked[3]["start"] == 5
    assert "gain over the first candidate 1.500" in capsys.readouterr().out
    assert json.loads(Path(tmp_path / "sm_90.json").read_text()) == {"softmax": [{"key": ["half", 64], "use": {"B": 2}}]}


def test_every_candidate_has_a_row(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    speak(monkeypatch, [{"begin": 0, "name": "x"}, {**CHOSEN, "candidates": [{"B": n} for n in (1, 2, 4, 8)], "refused": {"3": "wrong"}},
                        {"end": ""}])
    session = tune.Session(state() | {"broken": {PROBLEM: [2]}}, tmp_path / "sm_90.json", str(tmp_path / "out"))
    assert not session.go(time.monotonic() + 60)
    assert (tmp_path / "out" / "sm_90.json").exists()
    with open(tmp_path / "out" / "tune.csv", newline="", encoding="utf-8") as file:
        head, *lines = csv.reader(file)
    assert head == ["family", "key", "candidate", "microseconds", "chosen", "refused", "clock"]
    assert {tuple(line[:2]) for line in lines} == {("softmax", '["half", 64]')}
    assert [tuple(line[2:]) for line in lines] == [
        ('{"B": 1}', "3.00", "0", "", "cold"), ('{"B": 2}', "2.00", "1", "", "cold"), ('{"B": 4}', "", "0", "its process ended", ""),
        ('{"B": 8}', "", "0", "wrong", "")]


HOT = CHOSEN | {"candidates": [{"B": n} for n in (1, 2, 4)], "us": {"0": 3.0, "1": 2.0, "2": 2.5}, "hot": [0, 1]}


def timed_hot(tmp_path, monkeypatch):
    """A session in which one problem was."""
    speak(monkeypatch, [{"begin": 0, "name": "x"}, {"problem": PROBLEM, "plan": "2 of 3"}, HOT, {"end": ""}])
    session = tune.Session(state(), tmp_path / "sm_90.json", str(tmp_path / "out"))
    assert tune.kept(session.path) == {} and not session.go(time.monotonic() + 60)
    return session


def test_what_was_timed_hot_is_marked_and_left_by_the_next_command(tmp_path, monkeypatch, capsys):
    session, path = timed_hot(tmp_path, monkeypatch), tmp_path / "sm_90.json"
    assert json.loads(path.read_text()) == {"softmax": [{"key": ["half", 64], "use": {"B": 2}, "hot": True}]}
    assert session.heated == {PROBLEM: [(3.0, {"B": 1}), (2.0, {"B": 2})]} and "  2 of 3\n" in capsys.readouterr().out
    with open(tmp_path / "out" / "tune.csv", newline="", encoding="utf-8") as file:
        assert [row["clock"] for row in csv.DictReader(file)] == ["hot", "hot", "cold"]
    tuner.ship(path, {"softmax": [{"key": ["half", 65], "use": {"B": 1}}]})
    assert tune.kept(path) == {PROBLEM: {"B": 2}}                  # the clock of the other one was cold


def test_times_of_an_earlier_command_are_taken_up(tmp_path, monkeypatch):
    first = timed_hot(tmp_path, monkeypatch)
    later = tune.Session(state(), first.path, str(first.out))
    later.resume()
    assert later.heated == first.heated and later.state["known"] == {PROBLEM: {"B": 2}} and not later.chosen
    assert [row[3:] for row in later.rows] == [("3.00", "0", "", "hot"), ("2.00", "1", "", "hot")]
    tuner.ship(first.path, {"softmax": [{"key": ["half", 64], "use": {"B": 4}, "hot": True}]})
    later.state["known"].clear()
    later.resume()
    assert later.state["known"] == {PROBLEM: {"B": 4}} and not later.chosen        # what the step itself decided stays
    lost = tune.Session(state(), tmp_path / "other.json", str(first.out))
    lost.resume()
    assert lost.state["known"] == {PROBLEM: {"B": 2}} and lost.chosen == {"softmax": [{"key": ["half", 64], "use": {"B": 2}, "hot": True}]}
    nowhere = tune.Session(state(), first.path)
    nowhere.resume()
    assert not nowhere.heated and not nowhere.rows


def options(tmp_path, **more):
    usual = dict(families=[], only="", minutes=1.0, out=str(tmp_path), arch="", compile_only=False, warm=False, hot=None, in_step=False)
    return argparse.Namespace(**usual | dict(rehearse=True) | more)


@pytest.mark.parametrize("more", [dict(warm=True, hot=True), dict(families=["matmul"], in_step=True), dict(in_step=True, hot=False),
                                  dict(in_step=True, warm=True)])
def test_clocks_that_exclude_each_other_are_refused(tmp_path, monkeypatch, capsys, more):
    asked = speak(monkeypatch)
    assert tune.main(options(tmp_path, **more)) == 2 and "tune: expected one clock" in capsys.readouterr().out and not asked


def test_the_step_of_gpt2_is_first_and_hot(tmp_path, monkeypatch):
    """Of all workloads; others are as the options say."""
    asked = speak(monkeypatch, *[[{"end": ""}]] * 3)
    path = tmp_path / "sm_90.json"
    tuner.ship(path, {"softmax": [{"key": ["half", 64], "use": {"B": 2}, "hot": True}]})
    for hot in (None, True, False):
        assert tune.main(options(tmp_path, hot=hot)) == 0
    assert [(a["workloads"][0], a["hot"], a["kept"]) for a in asked] == [
        ("gpt2", None, {PROBLEM: {"B": 2}}), ("gpt2", True, {}), ("gpt2", False, {})]


def test_a_process_that_cannot_start_is_not_started_for_ever(tmp_path, monkeypatch):
    asked = speak(monkeypatch, *[[{"end": "its process ended with 1"}]] * 5)
    session = tune.Session(state(), tmp_path / "sm_90.json")
    while session.go(time.monotonic() + 60):
        pass
    assert len(asked) == 1


def test_a_table_changes_what_an_operator_launches(tmp_path, monkeypatch):
    """The way from `bench tune`'s table into a launch, by a softmax on a dry device."""
    from tritorch.cuda import compiler, driver
    from tritorch.cuda.dry import DryDriver

    def launched():
        with driver.using(DryDriver(90)), compiler.recording() as record, tuner.trying_all() as met:
            torch.softmax(torch.empty(4096, 1024, device="cuda"), -1)
        with driver.using(DryDriver(90)), compiler.recording() as record:
            torch.softmax(torch.empty(4096, 1024, device="cuda"), -1)
        return met, [dict(spec.options) for spec in record.values()]

    met, before = launched()
    ((family, key, candidates),) = met
    other = next(c for c in candidates if c["num_warps"] != before[0]["num_warps"])
    tuner.ship(tmp_path / "tables" / "sm_90.json", {family: [{"key": key, "use": other}]})
    monkeypatch.setattr(tuner, "__file__", str(tmp_path / "tuner.py"))
    _, after = launched()
    assert after[0]["num_warps"] == other["num_warps"]
