"""Dynamic axes: a graph computes what the module does at all sizes that its range_constraints allow, or is refused."""
import math

import pytest
from export_cases import Of, again, alike, drawn, proved, tensors

import tritorch as torch
from tritorch import nn
from tritorch.export import Dim, UserError
from tritorch.nn import functional as F

ROWS = ({0: Dim("rows")},)
EXACT = {
    "half": lambda self, x: x[x.shape[0] // 2:], "at most five": lambda self, x: x[:5], "the last seven": lambda self, x: x[-7:],
    "squared": lambda self, x: x * x.shape[0] ** 2, "logarithm": lambda self, x: x * math.log(x.shape[0]),
    "root": lambda self, x: x / x.shape[0] ** 0.5, "every third": lambda self, x: (x[::3], x[1::2]), "chunks": lambda self, x: x.chunk(2),
    "roll": lambda self, x: x.roll(1, 0), "numbers": lambda self, x: (x.shape[0], x.numel(), torch.tensor(x.shape[0]), x.size(1)),
    "made": lambda self, x: (torch.zeros(x.shape), torch.arange(x.shape[0]), torch.full((x.shape[0], 1), 2.0),
                             torch.linspace(0, 1, len(x))),
    "variance": lambda self, x: (x.var(0), F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True)),
    "windows": lambda self, x: (F.max_pool1d(x.t()[None], 2, ceil_mode=True), F.conv1d(x.t()[None], torch.ones(1, 4, 2), stride=2)),
    "reshapes": lambda self, x: (x.reshape(-1), x.view(-1, 2), x.view(x.shape[0], 2, 2).transpose(1, 2).reshape(x.shape[0], -1), x.t() @ x),
    "triangle": lambda self, x: (x @ x.t() + torch.full((len(x), len(x)), -math.inf).triu(1)).softmax(-1),
    "the mean of rows": lambda self, x: x.sum() / x.numel() + x[-1],
}
REFUSED = {
    "odd": lambda self, x: x[x.shape[0] % 2:], "a branch": lambda self, x: x * 2 if x.shape[0] > 50 else x,
    "a look": lambda self, x: x if x.sum() > 0 else -x, "one size": lambda self, x: x + drawn(5, 4), "powers": lambda self, x: torch.zeros(
        2 ** x.shape[0] if x.shape[0] < 8 else 5),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore:export", "ignore:var")
def test_exact_at_every_size(name):
    model = Of(EXACT[name])
    program = torch.export.export(model, (drawn(5, 4),), dynamic_shapes=ROWS)
    module, functional = again(program).module(), program.run_decompositions().module()
    low = program.range_constraints["rows"].lower
    for n in (0, 1, 2, 3, 4, 6, 7, 9, 16, 31, 64):
        x = drawn(n, 4)
        if n < low:
            with pytest.raises(AssertionError, match="Guard failed"):
                module(x)
            continue
        for made in (module(x), functional(x)):
            for k, (got, want) in enumerate(zip(torch.utils._pytree.tree_leaves(made), torch.utils._pytree.tree_leaves(model(x)))):
                alike(got, want, f"{n}: {k}")


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:export")
def test_refused(name):
    with pytest.raises(UserError, match="export: expected"):
        torch.export.export(Of(REFUSED[name]), (drawn(5, 4),), dynamic_shapes=ROWS)


def test_models_at_other_sizes():
    layers = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2))
    others = [((drawn(4, 4, 9),), {}), ((drawn(2, 4, 17),), {})]
    proved(layers, (drawn(3, 4, 6),), shapes=({0: Dim("batch", min=2), 2: Dim("time")},), others=others)
    sequences = {0: Dim("batch"), 1: Dim("time")}
    proved(nn.LSTM(4, 3, batch_first=True), (drawn(2, 5, 4),), shapes=(sequences,), others=[((drawn(3, 8, 4),), {})])
    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    proved(encoder, (drawn(2, 5, 4),), shapes=(sequences,), others=[((drawn(3, 7, 4),), {})])


def test_axes_of_one_name_and_their_multiples():
    rows = Dim("rows", max=20)
    model = Of(lambda self, a, b, c: a.sum(0) + b["x"].view(2, -1, 4).sum((0, 1)) + c)
    program = torch.export.export(model, (drawn(3, 4), {"x": drawn(6, 4)}, drawn(4)), dynamic_shapes=(
        {0: rows}, {"x": {0: 2 * rows}}, None))
    module = program.module()
    alike(module(drawn(5, 4), {"x": drawn(10, 4)}, drawn(4)), model(drawn(5, 4), {"x": drawn(10, 4)}, drawn(4)), "5")
    for wrong in ((5, 9), (5, 8), (21, 42)):
        with pytest.raises(AssertionError, match="Guard failed"):
            module(drawn(wrong[0], 4), {"x": drawn(wrong[1], 4)}, drawn(4))
    assert str(program.range_constraints) == "{'rows': VR[0, 20]}" and '"f32[2*rows, 4]"' in str(program)


def test_hints():
    model = Of(lambda self, x, y: (x + y, y * 2))
    named = {"args_0": {0: "n"}, "args_1": {0: "n"}}
    for shapes in (({0: Dim.AUTO}, {0: Dim.AUTO}), [[Dim.DYNAMIC, None], (Dim.DYNAMIC, Dim.STATIC)], named):
        module = torch.export.export(model, (drawn(3, 4), drawn(3, 4)), dynamic_shapes=shapes).module()
        assert [x.shape[0] for x in tensors(module(drawn(7, 4), drawn(7, 4)))] == [7, 7]
    linear = nn.Linear(4, 2)
    program = torch.export.export(linear, (drawn(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    assert list(program.range_constraints) == ["input_dim_0"] and program.module()(drawn(9, 4)).shape == (9, 2)
    with pytest.raises(UserError, match="other sizes than 4 for the dynamic axis 'input_dim_1'"):
        torch.export.export(linear, (drawn(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.DYNAMIC},))
    shapes, inputs = torch.export.ShapesCollection(), torch.export.AdditionalInputs()
    x = drawn(3, 4)
    shapes[x] = {0: Dim("n")}
    inputs.add((drawn(5, 4), drawn(4)))
    for given in (shapes, inputs):
        module = torch.export.export(Of(lambda self, x, y: x + y), (x, drawn(4)), dynamic_shapes=given).module()
        assert module(drawn(7, 4), drawn(4)).shape == (7, 4)
    with pytest.raises(TypeError, match="a tensor"):
        shapes[3] = {}
    assert len(shapes) == 1 and list(shapes[x]) == [0]


def test_small_sizes_that_run_other_operators_are_out_of_range():
    model = Of(lambda self, x: x.sum(0) if x.shape[0] < 3 else x.mean(0))
    with pytest.warns(UserWarning, match="size 2 of the dynamic axis 'rows'"):
        program = torch.export.export(model, (drawn(5, 4),), dynamic_shapes=ROWS)
    assert program.range_constraints["rows"].lower == 5
    program = torch.export.export(nn.BatchNorm1d(4), (drawn(5, 4),), dynamic_shapes=ROWS)
    assert program.range_constraints["rows"].lower == 2                  # it wants more than one value a channel
