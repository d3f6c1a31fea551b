"""Modules that programs import beside the framework: timing, counting, marks for profilers, old homes of names."""
import sys
import types

import pytest

import tritorch as torch
from tritorch import nn
from tritorch.utils.benchmark import Compare, Measurement, TaskSpec, Timer
from tritorch.utils.flop_counter import FlopCounterMode


def test_statistics_of_measurements():
    task = TaskSpec("f(x)", "x = 1", label="f", sub_label="small", description="ours")
    steady, wild = Measurement(10, [1.0, 1.01, 0.99, 1.0, 1.0], task), Measurement(10, [1.0, 2.0, 0.5, 3.0], task)
    assert steady.median == steady.mean == 0.1 and steady.times[1] == 0.101 and steady.iqr == 0 and steady.meets_confidence()
    assert not steady.has_warnings and wild.has_warnings and not wild.meets_confidence() and wild.significant_figures == 1
    assert "Median: 100 ms" in repr(steady) and "5 measurements, 10 runs per measurement, 1 thread" in repr(steady)
    assert "WARNING" in repr(wild) and repr(steady).startswith("f: small\nours\nsetup: x = 1")
    (both,) = Measurement.merge([steady, wild])
    assert len(both.times) == 9 and both.number_per_run == 1


def test_timers_run_what_they_are_given():
    calls = []
    m = Timer("calls.append(torch.ones(2))", globals={"calls": calls}).timeit(50)
    assert m.number_per_run == 50 and len(calls) == 52 and m.median > 0 and type(calls[0]) is torch.Tensor
    ticks = iter(range(10**6))                                           # a clock that moves by 1 whenever it is read
    blocks = []
    fake = Timer("pass", timer=lambda: float(next(ticks))).blocked_autorange(lambda n, t: blocks.append((n, t)), min_run_time=5)
    assert fake.raw_times == [1.0] * 5 and blocks == [(fake.number_per_run, 1.0)] * 5
    assert len(Timer("pass", timer=lambda: float(next(ticks))).adaptive_autorange(min_run_time=1).times) == 4
    for call, kind in ((lambda: Timer(lambda: 1), TypeError), (lambda: Timer("1", language="c++"), ValueError),
                       (lambda: Timer().repeat(), NotImplementedError), (lambda: Compare([1]), ValueError)):
        with pytest.raises(kind):
            call()


def test_timers_set_the_threads_of_the_cpu():
    pytest.importorskip("threadpoolctl", reason="without it nothing sets numpy's threads")
    before, seen = torch.get_num_threads(), []
    Timer("seen.append(torch.get_num_threads())", globals={"seen": seen}, num_threads=1).timeit(1)
    assert set(seen) == {1} and torch.get_num_threads() == before


def test_tables_of_measurements():
    def made(seconds, row, column, threads=1):
        return Measurement(1, [seconds] * 4, TaskSpec("f", "pass", label="f", sub_label=row, description=column, num_threads=threads))

    table = Compare([made(2e-6, "small", "ours"), made(3e-6, "small", "theirs"), made(5e-3, "large", "ours", 2)])
    lines = str(table).split("\n")
    assert [line.split() for line in lines[1:6]] == [
        ["|", "ours", "|", "theirs"], ["1", "thread:", "-" * len(lines[2].split()[-1])], ["small", "|", "2", "|", "3"],
        ["2", "threads:", "-" * len(lines[4].split()[-1])], ["large", "|", "5000", "|"]] and lines[-1] == "Times are in microseconds (us)."
    table.colorize()
    assert "2*" in str(table) and "3*" not in str(table)


def test_operations_are_counted_by_module_and_in_the_backward_pass():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x):
            return self.rest(self.first(x)) * 2

    with FlopCounterMode(display=False, depth=3) as counter:
        Net()(torch.ones(3, 4)).sum().backward()
    counts = {place: sum(found.values()) for place, found in counter.get_flop_counts().items()}
    forward = 2 * 3 * (4 * 8 + 8 * 2)
    assert counter.get_total_flops() == counts["Global"] == counts["Net"] == forward + 2 * forward - 2 * 3 * 4 * 8   # x needs no gradient
    assert counts["Net.first"] == 2 * 2 * 3 * 4 * 8 and counts["Net.rest"] == counts["Net.rest.1"] == 3 * 2 * 3 * 8 * 2
    assert "Net.rest.1" in counter.get_table() and "Net.rest.1" not in counter.get_table(2) and "Net.first" in counter.get_table(2)
    with counter:
        torch.ones(2, 3) @ torch.ones(3, 4)
    assert counter.get_total_flops() == 48 and list(counter.get_flop_counts()) == ["Global"]
    with FlopCounterMode(display=False, custom_mapping={"relu": lambda shape, out_shape: shape.numel()}) as counter:
        torch.ones(2, 3).relu()
    assert counter.get_flop_counts()["Global"] == {"aten::relu": 6}


def test_tables_of_operations_are_printed(capsys):
    with FlopCounterMode():
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)
    assert "FLOPs (B)" in capsys.readouterr().out


def test_marks_for_profilers(monkeypatch):
    with pytest.raises(RuntimeError, match="package nvtx"):
        monkeypatch.setitem(sys.modules, "nvtx", None)
        torch.cuda.nvtx.mark("x")
    told = []
    fake = types.SimpleNamespace(push_range=lambda m: told.append(("push", m)), pop_range=lambda: told.append("pop"),
                                 mark=lambda m: told.append(("mark", m)), start_range=lambda m: ("id", m), end_range=told.append)
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    nvtx = torch.cuda.nvtx
    assert nvtx.range_push("a") == 0 and nvtx.range_push("b") == 1 and nvtx.range_pop() == 1 and nvtx.range_pop() == 0
    with pytest.raises(ZeroDivisionError), nvtx.range("step {}", 3):
        nvtx.mark("here")
        1 / 0                                                            # noqa: B018
    nvtx.range_end(nvtx.range_start("long"))
    assert told[4:] == [("push", "step 3"), ("mark", "here"), "pop", ("id", "long")]


def test_profilers_are_told_what_to_record(monkeypatch):
    with torch.cuda.simulate() as driver:
        with torch.cuda.profiler.profile():
            pass                                                         # nobody to be told
        told = []
        monkeypatch.setattr(driver, "profile", told.append, raising=False)
        with torch.cuda.profiler.profile():
            assert told == [True]
        assert told == [True, False]


def test_old_homes():
    from tritorch.utils import dlpack, model_zoo
    from tritorch.utils.collect_env import get_pretty_env_info

    x = torch.arange(3.0)
    y = dlpack.from_dlpack(dlpack.to_dlpack(x))
    y[0] = 7
    assert x[0] == 7 and model_zoo.load_url is torch.hub.load_state_dict_from_url
    assert "numpy" in get_pretty_env_info() and isinstance(torch.ones(1), torch.types.Tensor) and isinstance(2, torch.types.Number)
    with pytest.raises(AttributeError):
        torch.utils.absent                                               # noqa: B018
