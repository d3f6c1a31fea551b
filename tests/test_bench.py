"""The measurements' own arithmetic, and the form of the results that are kept."""
import argparse
import functools
import json
import subprocess
import sys
import time
from dataclasses import fields

import pytest

import tritorch as torch
from bench import clock, rows, timing, watch
from bench.anchors import optim
from bench.models import twin
from tritorch.cuda import driver
from tritorch.cuda.dry import DryDriver


def test_ratio_above_one_is_a_win():
    assert rows.row("time", "µs", 2.0, 4.0, "torch").ratio == 2.0
    assert rows.row("rate", "GB/s", 2.0, 4.0, "torch").ratio == 0.5
    assert rows.row("alone", "µs", 2.0, None, "torch").opponent_name is None
    assert rows.row("budget", "µs", 2.0, limit=4.0).share_of_limit == 0.5


def test_race_tells_slow_from_fast():
    found = timing.race({"fast": lambda: None, "slow": lambda: sum(range(2000))}, rounds=3, seconds=0.001)
    assert 0 < found["fast"] < found["slow"]


class Timeline(DryDriver):
    """A GPU that takes 60 µs to clear its cache, and a host that takes 2 µs for each call of the driver; seconds of both."""

    def __init__(self):
        super().__init__()
        self.host, self.free, self.marks = 0.0, 0.0, {}

    def work(self, spent):
        self.host += 2e-6
        self.free = max(self.free, self.host) + spent

    def fill(self, *args):
        self.work(60e-6)

    def event_record(self, event, stream):
        self.work(0.0)
        self.marks[event] = self.free

    def event_synchronize(self, event):
        self.host = max(self.host, self.marks[event])

    def event_elapsed(self, start, end):
        return 1e3 * (self.marks[end] - self.marks[start])


def test_the_host_is_not_in_the_time_of_a_call_on_a_gpu(monkeypatch):
    """A step of an optimizer may take the host longer than the cache is being cleared."""
    device = Timeline()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: device.host)

    def call(host, launches):
        def run():
            for _ in range(launches):
                device.host += host / launches
                device.work(100e-6 / launches)

        return run

    with driver.using(device):
        found = clock.race({"quick": call(5e-6, 1), "slow": call(700e-6, 10)})
    assert found == pytest.approx({"quick": 100.0, "slow": 100.0}, rel=0.03)


def test_record_keeps_rows_and_renews_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    rows.record("area", [rows.row("a thing", "ms", 1.23123, 2.0, "torch")], "python -m bench area", "on a test")
    (kept,) = json.loads((tmp_path / "area.json").read_text(encoding="utf-8"))
    assert kept["ours"] == 1.231 and kept["command"] == "python -m bench area" and kept["machine"].endswith("on a test") and kept["date"]
    assert "| a thing | ms | 1.23 | 2 | 1.62 |" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_kept_results_are_rows():
    names = {f.name for f in fields(rows.Row)}
    for path in rows.RESULTS.glob("*.json"):
        for row in json.loads(path.read_text(encoding="utf-8")):
            assert row.keys() == names and row["command"] and row["machine"] and row["date"] and row["commit"], path
    if any(rows.RESULTS.glob("*.json")):
        assert (rows.RESULTS / "README.md").read_text(encoding="utf-8") == rows.table()


def test_host_parts_on_the_idle_device(monkeypatch):
    pytest.importorskip("triton")
    from bench import host

    monkeypatch.setattr(host, "race", functools.partial(host.race, seconds=0.001))       # what the times are is not asked
    with driver.using(None):
        found = list(host.parts(argparse.Namespace(quick=True)))
    stages = [r for r in found if "x + y, " in r.name]                   # differences of noisy times, which have no sign to rely on
    assert len(found) >= 13 and len(stages) == 6 and all(r.ours > 0 for r in found if r not in stages)


def test_twin_is_the_same_program_on_torch():
    torch = pytest.importorskip("torch")
    program = twin.load(rows.ROOT / "tutorials" / "train_gpt.py", "torch")
    assert program.torch is torch and program.F is torch.nn.functional


def test_every_case_runs_at_its_real_size_on_a_dry_device():
    pytest.importorskip("triton")
    from bench import ahead, gpu
    from tritorch.cuda import compiler

    with driver.using(DryDriver(90)), compiler.recording() as record:
        assert ahead.run([*gpu.FAMILIES, *gpu.MORE]) == []
    assert len(record) > 100


@pytest.mark.parametrize("words", [["rows", "--only", "softmax"], ["attention", "--only", "B4H16T4096D128 bwd"],
                                   ["host", "--only", "MLP step SGD"], ["host", "--only", "captured kernel"]])
def test_rehearsal(words, tmp_path):
    """The whole of `bench gpu` on tiny shapes: the result is right, and written where it was asked to be."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "bench", "gpu", *words, "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=rows.ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "\n0 failed" in done.stdout, done.stdout + done.stderr
    assert f"{words[0]}: " in done.stdout


def kept_after(folder, monkeypatch, *runs, only=""):
    """What gpu.json holds after runs of (name of a row, PyTorch's µs or None where it failed), one after the other."""
    from bench import gpu

    monkeypatch.setattr(rows, "RESULTS", folder)
    for cases in runs:
        table = gpu.Table(argparse.Namespace(families=[], only=only, quick=False, out=folder))
        for name, us in cases.items():
            if us is None:
                table.take({"row": vars(rows.row(name, "failed", None)), "error": 'RuntimeError: "no", it said'})
            else:
                table.take({"row": vars(rows.row(name, "µs", 1.0, us, "torch")), "us": {"tritorch": 1.0, "torch": us},
                            "exact": [1e-7, 2e-7], "relative_error": 3e-5})
        table.write()
    return {r["name"]: r["ratio"] or r["ours"] for r in json.loads((folder / "gpu.json").read_text(encoding="utf-8"))}


def test_gpu_results_keep_the_rows_of_other_families(tmp_path, monkeypatch):
    found = kept_after(tmp_path, monkeypatch, {"rows: softmax": 2.0, "conv: broken": None}, {"matmul: big": 1.5, "matmul: small": 1.0},
                       {"matmul: big": 3.0, "conv: broken": None})
    assert found == {"rows: softmax": 2.0, "rows: geometric mean of 1 ratios (aim 1.6)": 2.0, "matmul: big": 3.0,
                     "matmul: geometric mean of 1 ratios (aim 1.0)": 3.0}
    assert 'conv: broken,,nan,,,"RuntimeError: ""no"", it said"\n' in (tmp_path / "gpu.csv").read_text(encoding="utf-8")


def test_a_part_keeps_the_other_rows_of_its_family(tmp_path, monkeypatch):
    from bench import gpu

    kept_after(tmp_path, monkeypatch, {"matmul: big": 1.0, "matmul: matmul fp32 one": 4.0, "matmul: gone": 2.0, "rows: softmax": 2.0})
    found = kept_after(tmp_path, monkeypatch, {"matmul: big": 4.0, "matmul: gone": None}, only="big|gone")
    assert found == {"matmul: matmul fp32 one": 4.0, "rows: softmax": 2.0, "rows: geometric mean of 1 ratios (aim 1.6)": 2.0,
                     "matmul: big": 4.0, "matmul: geometric mean of 2 ratios (aim 1.0)": 4.0}
    cases = {case["name"]: case for case in gpu.known_cases(tmp_path / "gpu.csv")}
    assert cases["matmul: matmul fp32 one"] == dict(name="matmul: matmul fp32 one", us={"tritorch": 1.0, "torch": 4.0}, exact=[1e-7, 2e-7],
                                                    relative_error=3e-5, error="")
    assert cases["matmul: gone"]["us"] == {} and len(cases) == 4
    said = (tmp_path / "gpu_aims.md").read_text(encoding="utf-8")
    assert "| their error against float64, times PyTorch's | ≤ 1 × | 0.5 × (matmul: matmul fp32 one) | met |" in said, said
    assert "times cuBLAS | ≥ 2 × | 4 ×" in said and "- 5 rows: " in said


def test_words_to_choose_cases_by():
    assert rows.asked("", "softmax") and rows.asked("sort|soft", "softmax") and not rows.asked("sort|norm", "softmax")


def measured_names(monkeypatch):
    """The names of all rows that `bench gpu` prints."""
    from bench import anchors, gpu_gpt2, gpu_host
    from bench.sides import Sides

    yield from (f"{family}: {case.name}" for family in anchors.FAMILIES for _, case in anchors.cases([family]))
    with driver.using(DryDriver()):
        sides = Sides(alone=True)
        yield from (f"host: {row.name}" for _, measure in gpu_host.work(sides, True) for row in measure())
        found = {"compiled": 9, "cores": 2, "all": 1.0}
        monkeypatch.setattr(gpu_host.subprocess, "run", lambda *args, **more: argparse.Namespace(stdout=json.dumps(found)))
        yield from (f"host: {row.name}" for row in gpu_host.first_steps())
        monkeypatch.setattr(gpu_gpt2, "measured", lambda *args: (1.0, 1.0, 0))
        monkeypatch.setattr(gpu_gpt2, "breakdown", lambda *args: [])
        monkeypatch.setattr(gpu_gpt2, "curves", lambda *args: [rows.row("largest distance of the bf16 curve", "nats", 1.0)])
        yield from (f"gpt2: {row.name}" for _, measure in gpu_gpt2.work(sides, True) for row in measure())


def test_every_call_of_the_clipping_row_scales():
    gradient = torch.randn(64) * 100
    step = optim.clip(optim.ALWAYS)(torch, torch.zeros(64), gradient)
    for _ in range(20):
        before = gradient.clone()
        step()
        assert (gradient.abs() < before.abs()).all() and (gradient.abs() > 1e-30).all()


def test_every_aim_speaks_of_rows_that_there_are(monkeypatch):
    pytest.importorskip("triton")
    from bench import aims

    table = [rows.Row(name, "", 1.0, 1.0, "torch", 1.0, 1.0) for name in measured_names(monkeypatch)]
    raw = [{"name": "matmul: matmul fp32 512^3", "exact": (1e-7, 1e-7)}]
    lines = aims.report(table, raw)
    assert not [line for line in lines if "not measured" in line], lines
    assert any("| ≥ 604000 tokens/s | 1 tokens/s | NOT MET |" in line for line in lines)
    assert sum("not measured" in line for line in aims.report([], [])) == sum(map(len, aims.TITLES.values())) > 25


def test_an_aim_says_what_is_furthest_from_it():
    from bench import aims

    table = [rows.row("rows: a", "GB/s", 95.0, 90.0, "torch", limit=100.0), rows.row("memory: b", "GB/s", 80.0, 90.0, "torch", limit=100.0),
             rows.row("index: sort c", "GB/s", 1.0, limit=100.0), rows.row("memory: d", "GB/s", 99.0, limit=100.0)]
    share, ratio = [line for line in aims.report(table, []) if line.startswith("| memory-bound operators")]
    assert share == "| memory-bound operators, of the copy's bandwidth in this run | ≥ 0.9 | 0.8 (memory: b) | NOT MET by 1 of 3 |"
    assert ratio.endswith("| ≥ 1 × | 0.889 × (memory: b) | NOT MET by 1 of 2 |")
    table.append(rows.row("memory: e", "failed", None))
    assert any("| failed (memory: e) | NOT MET by 2 of 4 |" in line for line in aims.report(table, []))


SPEAKER = """
import sys, time
from bench.watch import say
say(begin=0)
print("by the way", flush=True)
{}
say(done=True)
"""


@pytest.mark.parametrize("last, end", [("", ""), ("sys.exit(7)", "its process ended with 7: by the way"),
                                       ("time.sleep(60)", "nothing heard for 2 s: it hangs")])
def test_a_watched_process(last, end, tmp_path, monkeypatch):
    (tmp_path / "speaker.py").write_text(SPEAKER.format(last))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{rows.ROOT}")
    messages = list(watch.watch(["speaker"], 2 if "sleep" in last else 60, time.monotonic() + 60))
    assert messages == [{"begin": 0}, *([{"done": True}] if not last else []), {"end": end}]
