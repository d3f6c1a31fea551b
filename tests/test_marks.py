"""Marks of profiles that begin and end by calls of their own, and formulas for operations that counters do not know."""
import pytest

import tritorch as torch
from tritorch.profiler import profile
from tritorch.utils import flop_counter


def test_marks_begin_and_end_like_blocks():
    marks = torch.ops.profiler
    assert torch.ops.profiler is marks
    with profile() as prof:
        outer = marks._record_function_enter_new("outer", "text")
        inner = marks._record_function_enter("inner")
        torch.ones(2).exp()
        marks._record_function_exit._RecordFunction(inner)
        marks._record_function_exit(outer)
    parents = {e.name: e.cpu_parent.name if e.cpu_parent else None for e in prof.events()}
    assert parents["inner"] == "outer" and parents["aten::exp"] == "inner"
    mark = marks._record_function_enter_new("nobody looks")
    marks._record_function_exit(mark)


@pytest.fixture
def no_formulas():
    yield
    flop_counter.flop_registry.clear()


def test_formulas_of_programs(no_formulas):
    @flop_counter.register_flop_formula([torch.cumsum, "cumprod"])
    def shapes(x_shape, dim, *rest, out_shape):
        assert out_shape == x_shape and not isinstance(x_shape, torch.Tensor)
        return 10 * x_shape[dim]

    @flop_counter.register_flop_formula(torch.exp, get_raw=True)
    def raw(x, *, out_val):
        return int((out_val > 1).sum())

    with flop_counter.FlopCounterMode(display=False) as counter:
        x = torch.tensor([-1.0, 1.0, 2.0])
        x.cumsum(0)
        x.cumprod(0)
        x.exp()
    assert counter.get_flop_counts()["Global"] == {"aten::cumsum": 30, "aten::cumprod": 30, "aten::exp": 2}
    with pytest.raises(RuntimeError, match="an operator without a formula"):
        flop_counter.register_flop_formula(torch.exp)(raw)
    with flop_counter.FlopCounterMode(display=False, custom_mapping={torch.exp: lambda x, out_shape: 7}) as counter:
        x.exp()
    assert counter.get_total_flops() == 7                                # the counter's own formula comes first
