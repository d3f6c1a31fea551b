"""`tritorch.onnx.export`: names, axes, constants, files, refusals, and rules of one's own."""
import sys
import warnings

import pytest
from onnx_cases import Of, alike, drawn, exported, kinds, onnx, tensors

import tritorch as torch
from tritorch import nn
from tritorch.export import Dim
from tritorch.onnx.errors import OnnxExporterError, UnsupportedOperatorError

X = drawn(2, 3)
ROWS = ({0: "rows"},)


def shape_of(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


class Named(nn.Module):
    """Inputs and results in containers, a parameter that is used twice, a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("scale", torch.arange(3.0))

    def forward(self, x, pair, *, gain=2.0, **more):
        left, right = pair["left"], pair["right"]
        made = (self.layer(x) + x @ self.layer.weight.t()) * self.scale * gain
        return {"sum": made + left, "rest": [right * 2, more["extra"] + 1, 5, None]}


def named_call():
    return (X, {"left": X + 1, "right": X * 3}), {"gain": 3.0, "extra": X - 1}


# ------------------------------------------------------------------ inputs, results, constants
def test_names_of_inputs_results_and_weights():
    model, (args, kwargs) = Named().eval(), named_call()
    program = torch.onnx.export(model, args, kwargs=kwargs)
    graph = program.model_proto.graph
    assert [x.name for x in graph.input] == ["x", "pair_left", "pair_right", "extra"]
    assert [x.name for x in graph.output] == ["output_0", "output_1", "output_2"]
    assert {x.name for x in graph.initializer} >= {"layer.weight", "layer.bias", "scale"}
    alike(program(*args, kwargs["extra"]), tensors(model(*args, **kwargs)), 1e-6)
    alike(program(extra=kwargs["extra"], pair=args[1], x=X), tensors(model(*args, **kwargs)), 1e-6)
    program = torch.onnx.export(model, args, kwargs=kwargs, input_names=["a", "b"], output_names=["y"])
    assert [x.name for x in program.model_proto.graph.input] == ["a", "b", "pair_right", "extra"]
    assert [x.name for x in program.model_proto.graph.output] == ["y", "output_1", "output_2"]
    with pytest.raises(ValueError, match="at most 3 output_names"):
        torch.onnx.export(model, args, kwargs=kwargs, output_names=list("abcd"))


def test_results_of_dicts_have_their_keys():
    program = exported(lambda x: {"logits": x * 2, "hidden": x}, (X,))
    assert [x.name for x in program.model_proto.graph.output] == ["logits", "hidden"] and kinds(program) == {"Mul": 1, "Identity": 1}


def test_one_value_as_several_results():
    def twice(x):
        y = x.relu()
        return y, y, x, y + 1, torch.ones(2)

    exported(twice, (X,), ROWS, [(drawn(5, 3),)])


def test_constants_are_folded_and_weights_are_not():
    weight = nn.Parameter(drawn(3, 3))
    model = Of(lambda x: x @ (weight * 2) + torch.arange(3).float().exp().sqrt() * 3)
    model.weight = weight
    assert kinds(exported(model, (X,))) == {"Mul": 1, "MatMul": 1, "Add": 1}


def test_numbers_among_the_arguments_are_what_they_were():
    model = Of(lambda x, power, flag: x**power if flag else x)
    program = torch.onnx.export(model.eval(), (X, 3, True))
    alike(program(X), [X**3], 1e-6)


def test_unused_inputs_stay():
    program = torch.onnx.export(Of(lambda x, y: x + 1).eval(), (X, X))
    assert len(program.model_proto.graph.input) == 2 and len(program.model_proto.graph.node) == 1


# ------------------------------------------------------------------ dynamic axes
def test_axes_are_named():
    x, y = drawn(2, 4), drawn(2, 4)
    model = Of(lambda x, y: (x + y, torch.cat([x, y], 0), x.sum(1))).eval()
    for options in (dict(dynamic_shapes=({0: "n"}, {0: "n"})), dict(dynamic_shapes={"args": ({0: Dim("n", max=64)}, [Dim("n"), None])}),
                    dict(input_names=["x", "y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(model, (x, y), **options)
        graph = program.model_proto.graph
        assert [shape_of(v) for v in graph.input] == [["n", 4], ["n", 4]]
        assert [shape_of(v)[0] for v in graph.output] == ["n", "output_1_dim_0", "n"]
        alike(program(drawn(5, 4), drawn(5, 4, seed=1)), model(drawn(5, 4), drawn(5, 4, seed=1)), 1e-6)


def test_axes_of_lists_and_without_names():
    model = Of(lambda x, y: x + y).eval()
    program = torch.onnx.export(model, (X, X), input_names=["x", "y"], output_names=["sum"], dynamic_axes={"x": [0], "y": [0],
                                                                                                           "sum": {0: "all"}})
    assert [shape_of(v)[0] for v in program.model_proto.graph.input] == ["x_dynamic_axes_1"] * 2
    assert shape_of(program.model_proto.graph.output[0]) == ["all", 3]
    program = torch.onnx.export(Of(lambda x, y: (x * 2, y)).eval(), (X, X), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.DYNAMIC, 1: Dim.STATIC}))
    assert [shape_of(v)[0] for v in program.model_proto.graph.input] == ["args_0_dim_0", "args_1_dim_0"]


def test_multiples_and_ranges():
    blocks = Dim("blocks", min=1, max=6)
    program = torch.onnx.export(Of(lambda x: x.view(x.shape[0] // 4, 4, 3).sum(1)).eval(), (drawn(8, 3),), dynamic_shapes=({0: 4 * blocks},
                                                                                                                           ))
    assert shape_of(program.model_proto.graph.input[0]) == ["4*blocks", 3] and shape_of(program.model_proto.graph.output[0])[0] == "blocks"
    assert program(drawn(20, 3))[0].shape == (5, 3)
    table = nn.Embedding(10, 3).weight
    program = torch.onnx.export(Of(lambda x: x + table[: x.shape[0]]).eval(), (drawn(10, 3),), dynamic_shapes=ROWS)      # no size above 10
    assert program(drawn(4, 3))[0].shape == (4, 3)


def test_a_sample_of_size_one_says_nothing_of_others():
    exported(lambda x: x.squeeze(1) * x.shape[0] + x.reshape(x.shape[0], -1).sum(), (drawn(1, 1, 3),), ({0: "rows"},),
             [(drawn(4, 1, 3),), (drawn(2, 1, 3),)])


REFUSED = {
    "a look": (lambda x: x * x.sum().item(), "a look at"), "a branch": (lambda x: x if x.sum() > 0 else -x, "a look at"),
    "a list": (lambda x: torch.tensor(x.tolist()) + x, "a look at"), "numpy": (lambda x: torch.from_numpy(x.numpy() + 1), "a look at"),
    "places": (lambda x: x.nonzero(), "a look at"), "chance": (lambda x: x + torch.randn(3) * 2, "without chance"),
    "repeats": (lambda x: x.repeat_interleave((x[:, 0] > 0).long(), 0), "a look at"),
}
BAKED = {
    "a loop": (lambda x: sum(x), "the same operators whatever the sizes"), "results": (lambda x: [x * 1 for _ in x][0:],
                                                                                       "the same operators"),
    "a size": (lambda x: x.reshape(2, 3), "other sizes than 2"),
    "numbers": (lambda x: x[:, 0] + torch.tensor([float(i % 2) for i in range(len(x))]), "a constant of another shape"),
    "a choice": (lambda x: x * (2 if x.shape[0] > 4 else 3), "mul with arguments that ONNX can have at .*test_onnx_export"),
    "pooling": (lambda x: nn.functional.adaptive_avg_pool1d(x.t()[None], 4), "onnx.export"), "as many": (lambda x: [x] * x.shape[0],
                                                                                                         "the same results"),
    "columns": (lambda x: x.expand(3, *x.shape)[x.shape[0] % 2], "onnx.export"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_cannot_hold(name):
    f, why = REFUSED[name]
    with pytest.raises(OnnxExporterError, match=why):
        torch.onnx.export(Of(f).eval(), (X,))


@pytest.mark.parametrize("name", BAKED)
def test_what_depends_on_sizes_is_never_baked_in(name):
    f, why = BAKED[name]
    with pytest.raises(OnnxExporterError, match=why):
        torch.onnx.export(Of(f).eval(), (X,), dynamic_shapes=ROWS)


def test_training():
    with pytest.warns(UserWarning, match="training mode"), pytest.raises(OnnxExporterError, match="without chance"):
        torch.onnx.export(nn.Dropout(), (X,))
    with pytest.warns(UserWarning, match="training mode"), pytest.raises(OnnxExporterError, match="'num_batches_tracked'.*use model.eval"):
        torch.onnx.export(nn.BatchNorm1d(3), (X,))


def test_written_inputs_are_told_of():
    with pytest.warns(torch.onnx.errors.OnnxExporterWarning, match="writes to 'x'"):
        program = torch.onnx.export(nn.ReLU(inplace=True).eval(), (X,), input_names=["x"])
    alike(program(X), [X.relu()], 1e-6)
    assert (X < 0).any()                                                                       # the caller's tensor is as it was


def test_refused_arguments():
    model = nn.ReLU().eval()
    for error, options in [(ValueError, dict(opset_version=9)), (ValueError, dict(dynamic_shapes={"z": {0: "n"}})),
                           (ValueError, dict(dynamic_axes={"q": [0]})),
                           (ValueError, dict(dynamic_shapes=({5: "n"},))), (TypeError, dict(dynamic_shapes=({0: 2.5},))),
                           (NotImplementedError, dict(report=True)),
                           (ValueError, dict(dynamo=False)), (TypeError,
                                                              dict(custom_translation_table={torch.dispatch.registry["relu"]: []})),
                           (ValueError, dict(custom_translation_table={nn.functional.relu6: len}))]:
        with pytest.raises(error):
            torch.onnx.export(model, (X,), **options)
    with pytest.raises(TypeError, match="a Module"):
        torch.onnx.export(torch.relu, (X,))
    with pytest.raises(UnsupportedOperatorError, match="got svd_factors at .*test_onnx_export.py:"):
        torch.onnx.export(Of(lambda x: torch.linalg.svd(x)[1]).eval(), (X,))
    assert not torch.onnx.is_in_onnx_export() and not torch.compiler.is_exporting()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'tritorch\[onnx\]'"):
        torch.onnx.export(nn.ReLU(), (X,))


# ------------------------------------------------------------------ the program and its files
def test_files(tmp_path):
    model = nn.Sequential(nn.Linear(3, 400), nn.ReLU()).eval()
    program = torch.onnx.export(model, (X,), tmp_path / "beside.onnx", verify=True)
    assert (tmp_path / "beside.onnx.data").stat().st_size >= 4800 and "initializers=2" in repr(program)
    assert torch.onnx.export(model, (X,), str(tmp_path / "one.onnx"), dynamo=False) is None
    program.save(tmp_path / "inputs.onnx", keep_initializers_as_inputs=True)
    program.save(tmp_path / "bare.onnx", include_initializers=False, keep_initializers_as_inputs=True)
    for name in ("beside", "one", "inputs"):
        loaded = onnx.load(tmp_path / f"{name}.onnx")
        onnx.checker.check_model(loaded)
        alike(torch.onnx.ONNXProgram(loaded).call_reference(X, *[p.detach() for p in model.parameters()][: len(loaded.graph.input) - 1]),
              [model(X)], 1e-6)
    bare = onnx.load(tmp_path / "bare.onnx").graph
    assert len(bare.initializer) == 0 and [x.name for x in bare.input] == ["input", "0.weight", "0.bias"]
    with pytest.raises(TypeError, match="expected 1 tensors, input, got 0"):
        program()


def test_other_weights():
    model, other = nn.Linear(3, 2).eval(), nn.Linear(3, 2)
    program = torch.onnx.export(model, (X,))
    alike(program(X), [model(X)], 1e-6)
    program.apply_weights(other.state_dict())
    alike(program(X), [other(X)], 1e-6)
    with pytest.raises(KeyError):
        program.apply_weights({"scale": X})
    with pytest.raises(ValueError, match="expected 'bias' of shape"):
        program.apply_weights({"bias": X})


def test_opsets():
    for opset, gelu in ((18, 0), (20, 1)):
        program = exported(nn.GELU(), (X,), opset_version=opset)
        assert program.model_proto.opset_import[0].version == opset and kinds(program).get("Gelu", 0) == gelu


# ------------------------------------------------------------------ rules of one's own
@torch.library.custom_op("onnx_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor, times: int) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2**times)


def test_symbolic_functions():
    model = Of(lambda x: doubled(x, 3) + 1).eval()
    with pytest.raises(UnsupportedOperatorError, match="onnx_tests::doubled at .*test_onnx_export.py:"):
        torch.onnx.export(model, (X,))
    torch.onnx.register_custom_op_symbolic("onnx_tests::doubled", lambda g, x,
                                           times: g.op("Mul", x, g.op("Constant", value_float=2.0**times)), 18)
    torch.onnx.register_custom_op_symbolic("onnx_tests::doubled", lambda g, x, times: g.op("acme::Doubled", x, times_i=times), 21)
    try:
        exported(model, (X,), ROWS, [(drawn(5, 3),)])
        program = torch.onnx.export(model, (X,), opset_version=21, custom_opsets={"acme": 3})
        node, versions = program.model_proto.graph.node[0], {x.domain: x.version for x in program.model_proto.opset_import}
        assert (node.domain, node.op_type, node.attribute[0].name, node.attribute[0].i) == ("acme", "Doubled", "times",
                                                                                            3) and versions["acme"] == 3
    finally:
        for opset in (18, 21):
            torch.onnx.unregister_custom_op_symbolic("onnx_tests::doubled", opset)
    with pytest.raises(OnnxExporterError, match="domain::name"):
        torch.onnx.register_custom_op_symbolic("doubled", len, 18)


@pytest.mark.parametrize("key", [doubled, torch.ops.onnx_tests.doubled.default], ids=["function", "overload"])
def test_translation_table(key):
    exported(lambda x: doubled(x, 3) + 1, (X,), ROWS, [(drawn(5, 3),)], custom_translation_table={key: lambda x, times: x * 2.0**times})


def test_translation_of_a_card():
    table = {torch.ops.aten.mish.default: lambda x: torch.onnx.ops.symbolic("ai.onnx::Relu", (x,), dtype=1, shape=x.shape)}
    program = torch.onnx.export(nn.Mish().eval(), (X,), custom_translation_table=table)
    alike(program(X), [X.relu()], 1e-6)


def test_nodes_of_onnx_in_a_model():
    def model(x):
        y = torch.onnx.ops.symbolic("ai.onnx::LeakyRelu", (x,), {"alpha": 0.3}, dtype=x.dtype, shape=x.shape)
        values, places = torch.onnx.ops.symbolic_multi_out("ai.onnx::TopK", (x, torch.tensor([2])), {"axis": 1}, dtypes=(1, 7),
                                                           shapes=((x.shape[0], 2),) * 2)
        return y + 1, values, places

    program, x = torch.onnx.export(Of(model).eval(), (X,), dynamic_shapes=ROWS), drawn(5, 3)
    alike(program(x), [nn.functional.leaky_relu(x, 0.3) + 1, *x.topk(2)], 1e-6)
    assert torch.onnx.ops.symbolic("a::B", (X,), dtype=torch.int64, shape=(2,)).tolist() == [0, 0]
    for error, call in [(ValueError, lambda: torch.onnx.ops.symbolic("B", (X,), dtype=1, shape=())),
                        (RuntimeError, lambda: torch.onnx.ops.symbolic_multi_out("a::B", (X,), dtypes=(1,), shapes=()))]:
        with pytest.raises(error):
            call()
