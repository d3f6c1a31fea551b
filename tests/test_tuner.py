"""The tuner on a device whose clock says what the test wants."""

import json
import types

import pytest
import stand_ins

from tritorch.cuda import compiler, driver, timing, tuner
from tritorch.cuda.device import simulate
from tritorch.cuda.dry import DryDriver

CANDIDATES = [{"BLOCK": 64, "num_warps": 4}, {"BLOCK": 128, "num_warps": 4}, {"BLOCK": 256, "num_warps": 8}]
KERNEL = types.SimpleNamespace(cache_key="a" * 64)


class Clock(stand_ins.Clock):
    """A device where a launch takes as long as its candidate says."""

    def __init__(self, **costs):
        super().__init__()
        self.costs, self.runs = costs, []

    def fill(self, *args):
        self.now += 5.0                                            # clearing the cache is not part of a measurement

    def run(self, candidate):
        self.runs.append(candidate["BLOCK"])
        cost = self.costs[f"b{candidate['BLOCK']}"]
        if cost is None:
            raise driver.DriverError("out of shared memory")
        self.now += cost


def table(path, **families):
    (path / "tables").mkdir()
    (path / "tables" / "sm_90.json").write_text(json.dumps(families))


@pytest.fixture
def clock(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITORCH_TUNE", "1")
    device = Clock(b64=3.0, b128=1.0, b256=None)
    with driver.using(device):
        yield device


def choose(clock, key=(64, 64), kernel=KERNEL):
    return tuner.choose("matmul", key, CANDIDATES, kernel=kernel, run=clock.run)


def test_first_candidate_unless_asked_to_tune(clock, monkeypatch):
    monkeypatch.delenv("TRITORCH_TUNE")
    assert choose(clock) is CANDIDATES[0] and not clock.runs
    assert tuner.choose("matmul", (1,), CANDIDATES) is CANDIDATES[0]


def test_fastest_candidate_is_found_once_and_remembered(clock, tmp_path):
    assert choose(clock) == CANDIDATES[1]
    assert clock.runs == [64, 128, 256, 64] + timing.ROUNDS * [128]    # 3 times slower: out after one look
    clock.runs.clear()
    assert choose(clock) == CANDIDATES[1]
    tuner.forget()                                                # a new process
    assert choose(clock) == CANDIDATES[1] and not clock.runs
    (path,) = (tmp_path / "tuned").iterdir()
    assert path.name == "Clock_GPU-13000.json" and list(json.loads(path.read_text()).values()) == [CANDIDATES[1]]
    path.write_text(json.dumps({**json.loads(path.read_text()), "another process": CANDIDATES[0]}))
    choose(clock, key=(65, 64))
    assert clock.runs and len(json.loads(path.read_text())) == 3
    clock.runs.clear()
    tuner.forget()
    choose(clock, kernel=types.SimpleNamespace(cache_key="b" * 64))
    assert clock.runs                                              # the kernel changed


def test_warm_launches_follow_one_that_does_not_count(clock):
    first = iter([100.0])

    def run(candidate):
        clock.now += next(first, 1.0)                              # the one that compiles

    assert timing.milliseconds("", CANDIDATES[:1], run, 0, warm=True) == [1.0]


def test_a_candidate_listed_twice_is_timed_once(clock):
    tuner.choose("matmul", (64, 64), [*CANDIDATES, dict(CANDIDATES[0])], kernel=KERNEL, run=clock.run)
    assert clock.runs[:3] == [64, 128, 256] and clock.runs.count(64) == 2             # one look, which also compiles, and one round


def test_candidates_that_are_no_more_are_not_chosen(clock):
    choose(clock)
    tuner.forget()
    assert tuner.choose("matmul", (64, 64), CANDIDATES[::2], kernel=KERNEL, run=clock.run) == CANDIDATES[0]


def test_nothing_is_timed_during_capture(clock, monkeypatch):
    monkeypatch.setattr(tuner, "is_capturing", lambda index, handle: True)
    assert choose(clock) is CANDIDATES[0] and not clock.runs
    monkeypatch.undo()
    monkeypatch.setenv("TRITORCH_TUNE", "1")
    assert choose(clock) == CANDIDATES[1]


def test_shipped_table_speaks_for_the_nearest_sizes_of_the_same_kind(clock, monkeypatch, tmp_path):
    entries = [{"key": ["half", [64, 64], True], "use": CANDIDATES[2]}, {"key": ["half", [64, 1024], True], "use": CANDIDATES[1]},
               {"key": ["half", [64, 66], True], "use": {"BLOCK": 7}}]
    table(tmp_path, matmul=entries)
    monkeypatch.setattr(tuner, "__file__", str(tmp_path / "tuner.py"))
    monkeypatch.setenv("TRITORCH_TUNE", "0")
    for key, expect in [(("half", (64, 64), True), 2), (("half", (64, 67), True), 2), (("half", (64, 1000), True), 1),
                        (("half", (80, 400), True), 1), (("half", (64, 5000), True), 0), (("half", (64, 64), False), 0),
                        (("single", (64, 64), True), 0), (("half", (64,), True), 0)]:
        assert choose(clock, key) == CANDIDATES[expect], key
    assert not clock.runs
    assert tuner.choose("conv", ("half", (64, 64), True), CANDIDATES) is CANDIDATES[0]
    assert tuner.distance([1], [True]) is None and tuner.distance([1, 8], [2, 4]) == 2 ** 0.5


def test_equals_go_to_the_first(clock):
    clock.costs.update(b64=1.005, b256=1.0)
    assert choose(clock) is CANDIDATES[0]


def test_where_no_candidate_runs_the_first_reports_why(clock):
    clock.costs = dict.fromkeys(clock.costs)
    assert choose(clock) is CANDIDATES[0]


def test_a_candidate_that_breaks_the_device_is_named(clock, monkeypatch):
    def broken(stream):
        raise driver.DriverError("illegal address")

    monkeypatch.setattr(clock, "stream_synchronize", broken)
    with pytest.raises(driver.DriverError, match=r"matmul \(64, 64\): the candidate {'BLOCK': 64.*} breaks the device: illegal address"):
        choose(clock)


def test_shipping_keeps_what_is_said_of_other_problems(clock, tmp_path):
    path = tmp_path / "tables" / "sm_90.json"
    tuner.ship(path, {"matmul": [{"key": (64, "half"), "use": CANDIDATES[1]}]})
    tuner.ship(path, {"matmul": [{"key": (64, "half"), "use": CANDIDATES[0]}, {"key": (32, "half"), "use": CANDIDATES[0]}],
                      "conv": [{"key": (1,), "use": CANDIDATES[2]}]})
    assert json.loads(path.read_text()) == {
        "matmul": [{"key": [32, "half"], "use": CANDIDATES[0]}, {"key": [64, "half"], "use": CANDIDATES[0]}],
        "conv": [{"key": [1], "use": CANDIDATES[2]}]}
    assert len(path.read_text().splitlines()) == 9


def test_forcing(clock):
    forgotten = []
    tuner.changed.append(lambda: forgotten.append(True))
    try:
        with tuner.forcing("matmul", CANDIDATES[2]):
            assert choose(clock) is CANDIDATES[2] and tuner.choose("conv", 1, CANDIDATES) is CANDIDATES[0]
            with tuner.forcing("conv", CANDIDATES[1]), tuner.forcing("matmul", CANDIDATES[0]):
                assert choose(clock) is CANDIDATES[0] and tuner.choose("conv", 1, CANDIDATES) is CANDIDATES[1]
            assert choose(clock) is CANDIDATES[2] and tuner.choose("conv", 1, CANDIDATES) is CANDIDATES[0]
        assert not clock.runs and len(forgotten) == 6
    finally:
        tuner.changed.pop()
    assert choose(clock) == CANDIDATES[1]


def test_measuring_asks_the_caller_once_for_every_problem(clock):
    asked = []
    choose(clock)
    with tuner.measuring(lambda family, key, candidates, run, known: asked.append((family, key)) or candidates[2]):
        assert choose(clock) == choose(clock) == CANDIDATES[2]
    assert asked == [("matmul", (64, 64))] and choose(clock) == CANDIDATES[1]


def test_what_only_tries_is_no_part_of_a_call_that_is_repeated(monkeypatch, tmp_path):
    """x + y notes its launches to repeat them; those of the tuner are not among them."""
    import tritorch as torch

    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    for tune in ("0", "1"):
        monkeypatch.setenv("TRITORCH_TUNE", tune)
        started = []
        device = DryDriver(90)
        device.load = lambda kernel, *spec: types.SimpleNamespace(launch=lambda *values: started.append(kernel.__name__))
        with driver.using(device):
            x, y = torch.empty(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")
            for _ in range(3):
                started.clear()
                x + y
                torch.nn.functional.softmax(x.view(1024, 1024), -1)
            assert len(started) == 2


def test_tuning_leaves_writes_in_place_as_they_are(monkeypatch, tmp_path):
    import tritorch as torch

    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITORCH_TUNE", "1")
    with simulate():
        x = torch.ones(6, 4, device="cuda")
        x.add_(1.0)
        x.t()[1:].mul_(3.0)
        assert x.tolist() == [[2.0, 6.0, 6.0, 6.0]] * 6


def test_trying_all_shows_every_candidate_and_runs_none():
    K = pytest.importorskip("launch_kernels")
    import tritorch
    from tritorch.cuda.launch import launch

    def twice(out, x):
        def run(candidate):
            launch(K.map_kernel, (1,), out, x, 64, FN=K.twice, **candidate)

        run(tuner.choose("twice", (64,), CANDIDATES, K.map_kernel, run))

    with simulate():
        x, out = tritorch.ones(64, device="cuda"), tritorch.zeros(64, device="cuda")
        with compiler.recording() as record, tuner.trying_all() as met:
            twice(out, x)
            twice(out, x)
        assert out.tolist() == [2.0] * 64
    assert met == [("twice", (64,), CANDIDATES)]
    blocks = [(spec.constexprs[4,], spec.options["num_warps"]) for spec in record.values() if spec.kernel is K.map_kernel]
    assert blocks == [(64, 4), (128, 4), (256, 8)]


def test_runs_on_the_simulated_device(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITORCH_TUNE", "1")
    runs = []
    with simulate():
        assert tuner.choose("relu", 5, CANDIDATES, run=runs.append) in CANDIDATES
    assert len(runs) >= 6


def test_a_dry_device_takes_a_training_step_of_any_size():
    import tritorch as torch
    from tritorch import nn, optim

    with driver.using(DryDriver(90)):
        with compiler.recording() as record:
            model = nn.Linear(1 << 16, 1 << 16, device="cuda")
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            model(torch.randn(1 << 14, 1 << 16, device="cuda")).sum().backward()
            optimizer.step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model.bias + 1
            graph.replay()
            assert y.tolist() == [0.0] * (1 << 16)                 # nothing ran
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.empty(1 << 40, device="cuda")
    assert any("matmul" in spec.kernel.__name__ for spec in record.values())


def test_kernels_that_are_to_be_avoided_are_left_out(clock, monkeypatch):
    ways = [{"kernel": "gluon", "BLOCK": 1}, {"kernel": "plain", "BLOCK": 2}, {"kernel": "plain", "BLOCK": 3}]
    monkeypatch.setenv("TRITORCH_AVOID", "gluon,other")
    assert tuner.choose("family", (1,), ways)["BLOCK"] == 2 and tuner.choose("family", (2,), ways[:1])["BLOCK"] == 1
    monkeypatch.delenv("TRITORCH_AVOID")
    tuner.forget()
    assert tuner.choose("family", (1,), ways)["BLOCK"] == 1
