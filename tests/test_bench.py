"""The measurements' own arithmetic, and the form of the results that are kept."""
import argparse
import json
from dataclasses import fields

import pytest

from bench import rows, timing
from bench.models import twin


def test_ratio_above_one_is_a_win():
    assert rows.row("time", "µs", 2.0, 4.0, "torch").ratio == 2.0
    assert rows.row("rate", "GB/s", 2.0, 4.0, "torch").ratio == 0.5
    assert rows.row("alone", "µs", 2.0, None, "torch").opponent_name is None
    assert rows.row("budget", "µs", 2.0, limit=4.0).share_of_limit == 0.5


def test_race_tells_slow_from_fast():
    found = timing.race({"fast": lambda: None, "slow": lambda: sum(range(2000))}, rounds=3, seconds=0.001)
    assert 0 < found["fast"] < found["slow"]


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


def test_host_parts_on_the_idle_device():
    pytest.importorskip("triton")
    from bench import host
    from tritorch.cuda import driver

    before = driver.use(None)
    try:
        found = list(host.parts(argparse.Namespace(quick=True)))
    finally:
        driver.use(before)
    assert len(found) >= 8 and all(r.ours > 0 for r in found)


def test_twin_is_the_same_program_on_torch():
    torch = pytest.importorskip("torch")
    program = twin.load(rows.ROOT / "tutorials" / "train_gpt.py", "torch")
    assert program.torch is torch and program.F is torch.nn.functional
