"""The step that judges itself, without a GPU: which trials there are, what stays, and what a process that ends costs."""
import csv
import itertools
import json
import subprocess
import sys
import time
import types

import pytest

pytest.importorskip("triton")

from stand_ins import speak  # noqa: E402

import tritorch as torch  # noqa: E402
from bench import gpu_gpt2, in_step, in_step_worker, rows  # noqa: E402
from tritorch.cuda import driver, tuner  # noqa: E402

A, B, C, D = ({"kernel": "gluon", "B": n} for n in (1, 2, 4, 8))
OTHER = {"kernel": "apart"}
NAME, NEXT = json.dumps(["matmul", [64]]), json.dumps(["matmul", [128]])


def test_rivals_are_the_best_and_the_best_of_other_kinds():
    assert in_step.rivals([(5.0, C), (3.0, A), (4.0, B), (6.0, D)], B) == [A, C]
    assert in_step.rivals([(3.0, A), (3.1, B), (3.2, C), (3.3, OTHER), (3.4, {"kernel": "apart", "B": 1})], A) == [B, C, OTHER]
    assert in_step.rivals([(3.0, A), (3.1, B), (3.2, C), (3.5, OTHER)], D) == [A, B, C]            # too far
    assert in_step.rivals([(3.0, {"B": 1}), (3.0, {"B": 2})], {"B": 1}) == [{"B": 2}] and in_step.rivals([(3.0, A)], A) == []


def test_the_largest_share_comes_first():
    problems = {name: {"us": us, "rivals": rivals} for name, us, rivals in (
        ("small", 9.0, [A]), ("first", 100.0, [A]), ("often", 50.0, [A]), ("no rivals", 500.0, []), ("elsewhere", 500.0, [A]))}
    counts = {"small": 1, "first": 1, "often": 12, "no rivals": 1}
    assert in_step.order(problems, counts, 1000.0) == [("often", 0.6), ("first", 0.1)]


def blocks(ours, theirs):
    """A block() that answers from two lists."""
    found = {"present": iter(ours), "other": iter(theirs)}
    return lambda step: next(found[step])


def test_a_gain_is_told_from_noise_and_drift():
    gain, noise, ms = in_step.compare(blocks(itertools.repeat(58.0), itertools.repeat(57.9)), "present", "other")
    assert (gain, noise, ms) == (pytest.approx(0.1), 0.0, 58.0)
    gain, noise, _ = in_step.compare(blocks([58.0, 58.1, 58.2, 58.3, 58.4, 58.5], [58.05, 58.15, 58.25, 58.35, 58.45]), "present", "other")
    assert gain == pytest.approx(0.0, abs=1e-9) and noise == pytest.approx(0.1)                    # it becomes slower, whoever runs
    gain, noise, _ = in_step.compare(blocks([58.0, 58.3, 58.0, 58.1, 58.0, 58.0], [57.9, 57.9, 60.0, 57.9, 57.9]), "present", "other")
    assert gain == pytest.approx(0.15) and noise == pytest.approx(0.3)                             # less than it scatters


class Tried:
    """A trainer whose step takes 58 ms and what its choices cost beyond; `scatter` is added in turn."""

    heat, turns, replays = 0, 5, 4

    def __init__(self, costs, counts, scatter=(0.0,), losses=None, broken=()):
        self.costs, self.found, self.scatter, self.losses, self.broken = costs, counts, itertools.cycle(scatter), losses or {}, broken
        self.captured = []

    def counts(self):
        return self.found

    def capture(self, uses):
        names = tuple(use["B"] for use in uses.values())
        self.captured.append(names)
        if names in self.broken:
            raise driver.DriverError("out of shared memory")
        step = lambda: torch.tensor(self.losses.get(names, 10.8))
        step.ms = 58.0 + sum(self.costs[name] for name in names)
        return step

    def compare(self, present, other):
        return in_step.compare(lambda step: step.ms + next(self.scatter), present, other)


@pytest.fixture
def said(monkeypatch):
    """What the worker says of its trials."""
    found = []
    monkeypatch.setattr(in_step_worker, "say", lambda **message: found.append(message))
    monkeypatch.setattr(in_step_worker, "release", lambda: None)
    return found


PROBLEMS = {NAME: {"us": 900.0, "rivals": [B, C]}, NEXT: {"us": 300.0, "rivals": [D]}}
COUNTS = {NAME: 12, NEXT: 12}


def verdicts(said):
    return [(m["problem"], m["use"]["B"], m.get("stays"), m.get("refused")) for m in said if "gain" in m]


def test_what_gains_stays_and_the_next_are_held_against_it(said):
    trainer = Tried({1: 0.0, 2: -0.5, 4: -0.4, 8: -0.3}, COUNTS)
    in_step_worker.try_all(trainer, PROBLEMS, {NAME: A, NEXT: A}, [])
    assert verdicts(said) == [(NAME, 2, True, ""), (NAME, 4, False, ""), (NEXT, 8, True, "")]
    assert trainer.captured == [(1, 1), (1, 1), (2, 1), (4, 1), (2, 8)]
    assert [(m["trying"], m["patience"]) for m in said if "trying" in m] == [(rival, in_step.SILENCE) for rival in (B, C, D)]


def test_what_is_less_than_the_noise_goes(said):
    in_step_worker.try_all(Tried({1: 0.0, 2: -0.1, 4: -0.5, 8: 0.0}, COUNTS, scatter=(0.2, 0.0, 0.1)), PROBLEMS, {NAME: A, NEXT: A}, [])
    assert [stays for _, _, stays, _ in verdicts(said)] == [False, True, False]


def test_what_another_capture_of_the_same_gains_is_noise(said):
    """Where memory lies may make that of a step."""
    trainer, place = Tried({1: 0.0, 2: -0.5, 4: -0.9, 8: 0.0}, COUNTS), itertools.chain([0.0, -0.7], itertools.repeat(0.0))
    plain = trainer.capture

    def capture(uses):
        step = plain(uses)
        step.ms += next(place)
        return step

    trainer.capture = capture
    in_step_worker.try_all(trainer, PROBLEMS, {NAME: A, NEXT: A}, [])
    assert [stays for _, _, stays, _ in verdicts(said)] == [False, True, False]


def test_what_breaks_or_changes_the_loss_is_refused_and_what_was_tried_is_not_again(said):
    trainer = Tried(dict.fromkeys((1, 2, 4, 8), 0.0) | {4: -9.0}, COUNTS, losses={(4, 1): 10.0}, broken=[(1, 8)])
    in_step_worker.try_all(trainer, PROBLEMS, {NAME: A, NEXT: A}, [[NAME, B]])
    assert verdicts(said) == [(NAME, 4, False, "the loss is 0.8 off"), (NEXT, 8, None, "DriverError: out of shared memory")]
    said.clear()
    trainer = Tried({1: 0.0, 4: -9.0}, {NAME: 12}, losses={(4,): float("nan")})
    in_step_worker.try_all(trainer, {NAME: {"us": 900.0, "rivals": [C]}}, {NAME: A}, [])
    assert verdicts(said) == [(NAME, 4, False, "the loss is nan off")]


# ------------------------------------------------------------------ the session
def session(tmp_path):
    heated = {NAME: [(3.0, A), (2.0, B), (2.5, C)], NEXT: [(1.0, A)]}
    return types.SimpleNamespace(path=tmp_path / "sm_90.json", out=tmp_path / "out", heated=heated,
                                 state=dict(known={NAME: B, NEXT: A, "cold": A}, rehearse=True))


def test_a_rival_that_hangs_is_left_out_and_what_stays_is_in_the_table(tmp_path, monkeypatch, capsys):
    verdict = dict(problem=NAME, use=A, gain=0.25, noise=0.1, ms=58.0, stays=True, refused="")
    asked = speak(monkeypatch, [{"plan": "three trials"}, {"problem": NAME, "trying": C}, {"end": "it hangs"}],
                  [{"problem": NAME, "trying": A}, verdict, {"end": "its process ended with 1"}], [{"end": "its process ended with 1"}])
    tuner.ship(tmp_path / "sm_90.json", {"matmul": [{"key": [32], "use": A}]})
    assert in_step.judge(session(tmp_path), time.monotonic() + 60) == 1            # the last could not even begin, so there is no other
    assert asked[0]["problems"] == {NAME: {"us": 2.0, "rivals": [C, A]}, NEXT: {"us": 1.0, "rivals": []}}
    assert [a["tried"] for a in asked] == [[], [[NAME, C]], [[NAME, C], [NAME, A]]]
    assert [a["uses"] for a in asked] == [{NAME: B, NEXT: A}] * 2 + [{NAME: A, NEXT: A}]
    assert json.loads((tmp_path / "out" / "sm_90.json").read_text()) == {
        "matmul": [{"key": [32], "use": A}, {"key": [64], "use": A, "hot": True}]}
    with open(tmp_path / "out" / "in_step.csv", newline="", encoding="utf-8") as file:
        found = [list(row.values())[2:] for row in csv.DictReader(file)]
    assert found == [[json.dumps(C), "", "", "", "0", "it hangs"], [json.dumps(A), "58.000", "250.0", "100.0", "1", ""]]
    said = capsys.readouterr().out
    assert "three trials" in said and "250.0 µs of 58.000 ms gained, noise 100.0: STAYS" in said and "2 trials in the step, 1 stay" in said


def test_time_may_end(tmp_path, monkeypatch):
    asked = speak(monkeypatch, [{"problem": NAME, "trying": C}, {"end": "out of time"}])
    assert in_step.judge(session(tmp_path), time.monotonic() + 60) == 0 and len(asked) == 1
    assert not (tmp_path / "out").exists()                         # nobody knows whether the rival is bad
    assert in_step.judge(session(tmp_path), time.monotonic() - 1) == 0 and len(asked) == 1


def test_without_times_there_is_nothing_to_try(tmp_path, monkeypatch, capsys):
    asked, nothing = speak(monkeypatch), session(tmp_path)
    nothing.heated = {}
    assert in_step.judge(nothing, time.monotonic() + 60) == 1 and "got none" in capsys.readouterr().out and not asked


def test_choices_are_those_of_the_trial_or_the_table_s():
    choices = in_step_worker.Choices({json.dumps(["f", [8]]): B})
    assert choices("f", (8,), [A, B], None, None) is B and choices("f", (9,), [A, B], None, None) is A
    assert choices("f", (8,), [A, C], None, C) is C


def test_a_step_is_counted_and_captured_with_a_rival(monkeypatch):
    choices, met = in_step_worker.Choices({}), {}

    def measure(family, key, candidates, run, table):
        answer = choices(family, key, candidates, run, table)
        met[json.dumps([family, tuner.plain(key)])] = candidates, answer
        return answer

    with torch.cuda.simulate(), tuner.measuring(measure):
        monkeypatch.setattr(driver, "hardware_tiles", True)
        trainer = in_step_worker.Trainer(choices, True)
        counts = trainer.counts()
        (norm,) = [name for name in counts if name.startswith('["residual_norm",')]
        assert counts[norm] == 2 and choices.counts is None        # behind attention and behind the last layer
        rival = met[norm][0][1]
        met.clear()
        step = trainer.capture({norm: tuner.plain(rival)})
        assert met[norm][1] is rival
        assert step().item() == step().item()                      # nothing is learned
        _, noise, ms = trainer.compare(step, step)
        assert noise >= 0 and ms > 0
        monkeypatch.undo()


def test_rehearsal(tmp_path):
    """From the hot clock to the verdicts, by one family; the second command takes up what the first timed."""
    command = [sys.executable, "-m", "bench", "tune", "gpt2", "residual_norm", "--rehearse", "--out", str(tmp_path), "--in-step"]
    done = subprocess.run(command, cwd=rows.ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "by the hot clock" in done.stdout and "0 candidates refused" in done.stdout, done.stdout + done.stderr
    assert "GPT-2's step is captured" in done.stdout and "trials in the step" in done.stdout, done.stdout
    (entry,) = json.loads((tmp_path / "sm_90.json").read_text(encoding="utf-8"))["residual_norm"]
    assert entry["hot"] is True
    assert gpu_gpt2.scale(False) == ({}, 32)
