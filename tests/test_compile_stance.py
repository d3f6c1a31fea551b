"""compiler.set_stance: compiled functions that run eagerly, replay what there is, or refuse to record."""
import pytest

import tritorch as torch
from tritorch.compiler import set_stance


@pytest.fixture
def recorded(cuda):
    """A compiled function with one recording, what it appends to when Python runs it, and an argument of another shape."""
    runs = []

    @torch.compile
    def double(x):
        runs.append(0)
        return x * 2

    x = torch.ones(3, device=cuda)
    for _ in range(5):
        assert double(x).tolist() == [2.0] * 3
    before = len(runs)
    double(x)
    assert len(runs) == before                                           # a replay
    yield double, x, torch.ones(4, device=cuda), runs
    set_stance("default")


def ran(runs, call):
    before = len(runs)
    call()
    return len(runs) - before


def test_force_eager(recorded):
    double, x, _, runs = recorded
    with set_stance("force_eager"):
        assert ran(runs, lambda: double(x)) == 1
        with set_stance("default"):
            assert ran(runs, lambda: double(x)) == 0
        assert ran(runs, lambda: double(x)) == 1
    assert ran(runs, lambda: double(x)) == 0
    set_stance("force_eager")
    assert ran(runs, lambda: double(x)) == 1
    set_stance("default")
    assert ran(runs, lambda: double(x)) == 0


def test_as_a_decorator(recorded):
    double, x, _, runs = recorded

    @set_stance("force_eager")
    def evaluate(depth=0):
        double(x)
        if depth:
            evaluate(depth - 1)

    assert ran(runs, lambda: double(x)) == 0                             # the decoration alone says nothing
    assert ran(runs, lambda: evaluate(1)) == 2
    assert ran(runs, lambda: double(x)) == 0


def test_only_what_is_recorded(recorded):
    double, x, other, runs = recorded
    with set_stance("eager_on_recompile"):
        assert ran(runs, lambda: double(x)) == 0
        assert ran(runs, lambda: [double(other) for _ in range(6)]) == 6 and double(other).tolist() == [2.0] * 4
    with set_stance("fail_on_recompile"):
        assert ran(runs, lambda: double(x)) == 0
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            double(other)
    with set_stance("eager_then_compile"):
        [double(other) for _ in range(5)]
        assert ran(runs, lambda: double(other)) == 0


def test_what_is_refused(recorded):
    with pytest.raises(ValueError, match="force_eager"):
        set_stance("eager")
    with pytest.raises(RuntimeError, match="force_backend"):
        set_stance("force_eager", force_backend="cudagraph")
    seen = []

    @torch.compile
    def inside(x):
        try:
            set_stance("force_eager")
        except RuntimeError as error:
            seen.append(str(error))
        return x + 1

    inside(recorded[1])
    assert "outside of compiled functions" in seen[0]
