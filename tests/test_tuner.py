"""The tuner on a device whose clock says what the test wants."""

import json
import types

import pytest

from tritorch.cuda import driver, tuner
from tritorch.cuda.device import simulate

CANDIDATES = [{"BLOCK": 64, "num_warps": 4}, {"BLOCK": 128, "num_warps": 4}, {"BLOCK": 256, "num_warps": 8}]
KERNEL = types.SimpleNamespace(cache_key="a" * 64)


class Clock:
    """A device where a launch takes as long as its candidate says."""

    name = "clock"

    def __init__(self, **costs):
        self.costs, self.now, self.marks, self.runs, self.capturing = costs, 0.0, {}, [], False

    def device_properties(self, index):
        return driver.DeviceProperties("Clock GPU", 9, 0, 1, 1, 32, 1, 1, 1, 1, driver_version=13000)

    def device_count(self):
        return 1

    def event_create(self, timing):
        self.marks[len(self.marks)] = 0.0
        return len(self.marks) - 1

    def event_destroy(self, event):
        pass

    def event_record(self, event, stream):
        self.marks[event] = self.now

    def event_synchronize(self, event):
        pass

    def event_elapsed(self, start, end):
        return self.marks[end] - self.marks[start]

    def run(self, candidate):
        self.runs.append(candidate["BLOCK"])
        cost = self.costs[f"b{candidate['BLOCK']}"]
        if cost is None:
            raise driver.DriverError("out of shared memory")
        self.now += cost


@pytest.fixture
def clock(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITORCH_TUNE", "1")
    device = Clock(b64=3.0, b128=1.0, b256=None)
    before = driver.use(device)
    yield device
    driver.use(before)


def choose(clock, key=(64, 64), kernel=KERNEL):
    return tuner.choose("matmul", key, CANDIDATES, kernel=kernel, run=clock.run)


def test_first_candidate_unless_asked_to_tune(clock, monkeypatch):
    monkeypatch.delenv("TRITORCH_TUNE")
    assert choose(clock) is CANDIDATES[0] and not clock.runs
    assert tuner.choose("matmul", (1,), CANDIDATES) is CANDIDATES[0]


def test_fastest_candidate_is_found_once_and_remembered(clock, tmp_path):
    assert choose(clock) == CANDIDATES[1]
    assert len(clock.runs) == 2 * (1 + tuner.ROUNDS * tuner.LAUNCHES) + 1
    clock.runs.clear()
    assert choose(clock) == CANDIDATES[1]
    tuner._forget()                                                # a new process
    assert choose(clock) == CANDIDATES[1] and not clock.runs
    (path,) = (tmp_path / "tuned").iterdir()
    assert path.name == "Clock_GPU-13000.json" and list(json.loads(path.read_text()).values()) == [CANDIDATES[1]]
    choose(clock, key=(65, 64))
    assert clock.runs
    clock.runs.clear()
    tuner._forget()
    choose(clock, kernel=types.SimpleNamespace(cache_key="b" * 64))
    assert clock.runs                                              # the kernel changed


def test_candidates_that_are_no_more_are_not_chosen(clock):
    choose(clock)
    tuner._forget()
    assert tuner.choose("matmul", (64, 64), CANDIDATES[::2], kernel=KERNEL, run=clock.run) == CANDIDATES[0]


def test_nothing_is_timed_during_capture(clock, monkeypatch):
    monkeypatch.setattr(tuner, "is_capturing", lambda index, handle: True)
    assert choose(clock) is CANDIDATES[0] and not clock.runs
    monkeypatch.undo()
    monkeypatch.setenv("TRITORCH_TUNE", "1")
    assert choose(clock) == CANDIDATES[1]


def test_shipped_table(clock, monkeypatch, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "sm_90.json").write_text(json.dumps({"matmul (64, 64)": CANDIDATES[2]}))
    monkeypatch.setattr(tuner, "__file__", str(tmp_path / "tuner.py"))
    assert choose(clock) == CANDIDATES[2] and not clock.runs


def test_runs_on_the_simulated_device(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITORCH_TUNE", "1")
    runs = []
    with simulate():
        assert tuner.choose("relu", 5, CANDIDATES, run=runs.append) in CANDIDATES
    assert len(runs) == 3 * (1 + tuner.ROUNDS * tuner.LAUNCHES)
