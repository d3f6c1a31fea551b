"""The tables of configurations that are shipped: each entry is a candidate that the operator would still take."""
import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

from bench import ahead  # noqa: E402
from tritorch.cuda import driver, tuner  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402

pytestmark = pytest.mark.records                                         # every case of the benchmarks is launched once, where nothing runs
TUNED = ["matmul", "attention", "gpt2", "memory", "rows", "index", "optim"]
TABLES = sorted(Path(tuner.__file__).with_name("tables").glob("sm_*.json"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_entries_are_candidates(table):
    with driver.using(DryDriver(int(table.stem[3:]))), tuner.trying_all() as met:
        failed = ahead.run(TUNED)
    candidates = {(family, json.dumps(tuner.plain(key))): [*map(tuner.plain, found)] for family, key, found in met}
    entries = [(family, entry) for family, entries in json.loads(table.read_text()).items() for entry in entries]
    gone = [entry for entry in entries if entry[1]["use"] not in candidates.get((entry[0], json.dumps(entry[1]["key"])), [])]
    assert entries and not failed and not gone


def test_there_is_a_table():
    assert TABLES
