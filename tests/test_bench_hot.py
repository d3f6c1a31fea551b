"""The hot clock without a GPU: a device whose clock falls under heavy products, and what is made of its times."""
import json
import types

import pytest

pytest.importorskip("triton")

import stand_ins  # noqa: E402

import tritorch as torch  # noqa: E402
from bench import hot, tune_worker  # noqa: E402
from tritorch.cuda import driver, timing, tuner  # noqa: E402
from tritorch.errors import OutOfMemoryError  # noqa: E402

CANDIDATES = [{"B": 1}, {"B": 2}, {"B": 4}]


class Clock(stand_ins.Clock):
    """A device where work takes as many milliseconds as the test says."""

    def __init__(self):
        super().__init__()
        self.log, self.drift = [], 0.0

    def fill(self, *args):
        self.now += 0.1

    def work(self, name, ms):
        self.log.append(name)
        self.now += ms * (1 + self.drift * self.now)


@pytest.fixture
def clock():
    device = Clock()
    with driver.using(device):
        yield device


def heating(clock, ms=1.5, seconds=0.0):
    """A Heat whose products take `ms`."""
    heat = hot.Heat.__new__(hot.Heat)
    heat.graph = types.SimpleNamespace(replay=lambda: clock.work("heat", ms))
    heat.seconds, heat.first, heat.ms = seconds, 0.0, ms
    return heat


def runner(clock, costs):
    return lambda candidate: clock.work(candidate["B"], costs[candidate["B"]])


def test_candidates_take_turns_behind_heavy_products(clock):
    found = hot.milliseconds(CANDIDATES, runner(clock, {1: 3.0, 2: 1.0, 4: 2.0}), 0, heating(clock), 4)
    assert found == pytest.approx([3.0, 1.0, 2.0])                  # the products are none of it
    assert clock.log[::2] == ["heat"] * 13 and clock.log[1::2] == [1, 2, 4, 2, 4, 1, 4, 1, 2, 1, 2, 4]
    assert len(clock.gone) == len(clock.marks)


def test_what_drifts_meets_all_alike(clock):
    """On a device that becomes slower and slower, a candidate that was measured wholly before another would win by that."""
    clock.drift = 3e-4
    slow, fast, between = hot.milliseconds(CANDIDATES, runner(clock, {1: 1.02, 2: 1.0, 4: 1.01}), 0, heating(clock), 25)
    assert clock.drift * clock.now > 0.05 and fast < between < slow


def test_one_slow_launch_is_not_what_counts(clock):
    costs = iter([1.0, 1.0, 90.0, 1.0, 1.0])
    assert hot.milliseconds(CANDIDATES[:1], lambda candidate: clock.work(1, next(costs)), 0, heating(clock), 5) == [pytest.approx(1.0)]


def test_the_device_is_heated_until_it_is_slow(clock, monkeypatch):
    monkeypatch.setattr(hot.time, "perf_counter", lambda: clock.now / 1e3)
    heat = heating(clock, seconds=0.5)
    heat.graph.replay = lambda: clock.work("heat", 1.4 if clock.now < 200 else 1.6)
    heat.bring(0)
    assert heat.first == pytest.approx(1.4) and heat.ms == pytest.approx(1.6) and 500 <= clock.now < 530
    heat.bring(0)
    assert heat.first == pytest.approx(1.4) and len(clock.gone) == len(clock.marks)


def test_who_is_worth_the_hot_clock():
    assert hot.finalists([1.0, 1.14, 1.16, float("inf")]) == [0, 1]
    assert hot.finalists([9.0, 1.0, 1.1]) == [0, 1, 2]               # gains are told from the first
    assert hot.finalists([float("inf"), 1.0]) == [1] and hot.finalists([float("inf")]) == hot.finalists([]) == []


def test_rounds_fit_in_the_time():
    heat = types.SimpleNamespace(ms=1.5, seconds=0.5)
    assert hot.plan([0.5, 0.5], heat) == (25, pytest.approx(0.5 + 25 * 4e-3))
    assert hot.plan([98.5, 98.5], heat) == (9, pytest.approx(0.5 + 9 * 0.2))
    assert hot.plan([998.5], heat)[0] == 5 and hot.plan([], heat)[0] == 25


def test_heavy_products_are_random_and_smaller_where_memory_is_short(monkeypatch):
    made, real = [], torch.randn

    def randn(*shape, **options):
        made.append(shape[0])
        if shape[0] > 16:
            raise OutOfMemoryError("no room")
        return real(*shape, **options)

    monkeypatch.setattr(hot, "LEAST", 8)
    monkeypatch.setattr(torch, "randn", randn)
    with torch.cuda.simulate():
        heat = hot.Heat(32, 0.0)
        a, b, product = heat.kept
        assert made == [32, 16, 16, 16] and len({*a.float().flatten().tolist()}) > 100
        started = []
        monkeypatch.setattr(heat.graph.driver, "graph_launch", lambda *values: started.append(values))
        heat()
        assert len(started) == 1
        monkeypatch.undo()
        product.zero_()
        heat()
        assert torch.allclose(product.float(), (a @ b).float())
        monkeypatch.setattr(torch, "randn", lambda *shape, **options: 1 / 0 if shape[0] < 8 else randn(64))
        with pytest.raises(OutOfMemoryError):
            hot.Heat(32, 0.0)


# ------------------------------------------------------------------ in the worker of `bench tune`
def told(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def measurer(heat=None, monkeypatch=None, **more):
    found = tune_worker.Measurer(*[more.get(name, {}) for name in ("families", "known", "broken", "unchecked")], kept=more.get("kept", {}))
    found.heat, found.check = heat, lambda *problem: {}              # nothing is written that could be compared
    return found


def cooling(clock, cold, heated):
    """A `run` that costs what `heated` says right behind a heavy product, else what `cold` says."""
    def run(candidate):
        costs = heated if clock.log and clock.log[-1] == "heat" else cold
        clock.work(candidate["B"], costs[candidate["B"]])

    return run


def test_the_hot_clock_may_choose_another(clock, capsys):
    run = cooling(clock, {1: 1.0, 2: 1.1, 4: 1.3}, {1: 1.4, 2: 1.2, 4: 0.1})
    assert measurer()("f", (8,), CANDIDATES, run, None) == {"B": 1}
    assert told(capsys)[-1]["hot"] == []
    clock.log.clear()
    assert measurer(heating(clock))("f", (8,), CANDIDATES, run, None) == {"B": 2}
    *_, plan, chosen = told(capsys)
    assert plan["plan"] == "2 of 3 candidates 25 times by the hot clock, about 0.1 s; a heavy product takes 1.50 ms, at first 1.50"
    assert chosen["chosen"] == 1 and chosen["hot"] == [0, 1]
    assert chosen["us"] == pytest.approx({"0": 1400, "1": 1200, "2": 1300})      # the last, of the cold clock, was not worth it


def test_what_is_within_the_error_goes_to_the_first(clock, capsys):
    run = cooling(clock, {1: 1.0, 2: 1.0, 4: 1.0}, {1: 1.004, 2: 1.002, 4: 1.0})
    assert measurer(heating(clock))("f", (8,), CANDIDATES, run, None) == {"B": 2}


def test_a_cold_run_leaves_what_was_timed_hot(clock, capsys):
    run = runner(clock, {1: 1.0, 2: 2.0, 4: 3.0})
    kept = {json.dumps(["f", [8]]): {"B": 2}, json.dumps(["f", [9]]): {"B": 7}}
    assert measurer(kept=kept)("f", (8,), CANDIDATES, run, None) == {"B": 2} and not clock.log and not told(capsys)
    assert measurer(kept=kept)("f", (9,), CANDIDATES, run, None) == {"B": 1}      # what was kept is no candidate any more
    assert measurer(heating(clock), kept=kept)("f", (8,), CANDIDATES, run, None) == {"B": 1}
    once = measurer(heating(clock), kept=kept)
    once("f", (8,), CANDIDATES, run, None)
    once.heat = None                                               # another family with the same problem in the same run
    clock.log.clear()
    assert once("f", (8,), CANDIDATES, run, None) == {"B": 1} and not clock.log


def test_choices_inside_a_candidate_are_the_best_known_and_measured_later(clock, capsys, monkeypatch):
    """As where attention's backward pass is two kernels, each with a choice of its own."""
    monkeypatch.setattr(tuner, "_known", lambda family, *rest: {"B": 4} if family == "inner" else None)
    inner, met = runner(clock, {1: 0.1, 2: 0.2, 4: 0.3}), []

    def outer(candidate):
        met.append(tuner.choose("inner", (8,), CANDIDATES, run=inner)["B"])
        clock.work("outer", candidate["B"])

    with tuner.measuring(measurer()):
        assert tuner.choose("outer", (8,), CANDIDATES, run=outer) == {"B": 1}
        assert set(met) == {4}                                     # what the table says
        assert tuner.choose("inner", (8,), CANDIDATES, run=inner) == {"B": 1}
        outer({"B": 1})
    assert met[-1] == 1 and [json.loads(m["problem"])[0] for m in told(capsys) if "chosen" in m] == ["outer", "inner"]


def test_fewer_rounds_screen(clock):
    timing.milliseconds("", CANDIDATES, runner(clock, dict.fromkeys((1, 2, 4), 1.0)), 0, rounds=hot.SCREEN)
    assert clock.log == [1, 2, 4] * (1 + hot.SCREEN)


def test_a_measurer_without_an_answer_leaves_the_table_s(clock, monkeypatch):
    """And is asked again, so that it may count."""
    monkeypatch.setattr(tuner, "_known", lambda *problem: CANDIDATES[2])
    asked = []
    with tuner.measuring(lambda *problem: asked.append(problem)):
        assert [tuner.choose("f", (8,), CANDIDATES, run=print) for _ in range(3)] == [CANDIDATES[2]] * 3
    assert len(asked) == 3
