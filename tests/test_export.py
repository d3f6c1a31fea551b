"""`tritorch.export`: programs do what their modules do, in results, gradients, buffers, inputs and chance; what they cannot hold is
refused with the line."""
import copy
import pickle
import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
from export_cases import Of, again, alike, called, drawn, proved

import tritorch as torch
from tritorch import nn
from tritorch.export import Dim, UserError
from tritorch.nn import functional as F

X = drawn(3, 4)
IMAGES = drawn(2, 3, 8, 8)


class Block(nn.Module):
    """A small GPT with one weight for tokens and logits."""

    def __init__(self, tokens=11, width=8, heads=2, length=6):
        super().__init__()
        self.heads, self.tokens, self.places = heads, nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, tokens, bias=False)
        self.head.weight, self.drop = self.tokens.weight, nn.Dropout(0.1)

    def forward(self, index, targets=None):
        batch, length = index.shape
        x = self.drop(self.tokens(index) + self.places(torch.arange(length)))
        parts = [y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).split(x.shape[-1], 2)]
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, length, -1))
        logits = self.head(x + self.down(F.gelu(self.up(x))))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


def tokens(*shape):
    return torch.from_numpy(drawn(*shape).numpy().view("int32") % 11).long()


MODELS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2), nn.Softmax(-1)), (X,)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()),
                     (IMAGES,)),
    "convolutions in evaluation": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AvgPool2d(2)).eval(), (IMAGES,)),
    "up and down": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 2, 2, 2),
                                          nn.InstanceNorm2d(2), nn.Upsample(scale_factor=2)), (IMAGES,)),
    "LSTM": (lambda: nn.LSTM(4, 3, 2, batch_first=True), (drawn(2, 5, 4),)),
    "GRU with a state": (lambda: nn.GRU(4, 3, bidirectional=True), (drawn(5, 2, 4), drawn(2, 2, 3))),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8), (drawn(5, 2, 4),)),
    "GPT": (Block, (tokens(2, 5), tokens(2, 5))),
    "norms": (lambda: nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6), nn.GLU(), nn.PReLU(), nn.BatchNorm1d(3, momentum=None)), (X,)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), (X,)),
    "bfloat16": (lambda: nn.Linear(4, 2).bfloat16(), (X.bfloat16(),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    make, args = MODELS[name]
    torch.manual_seed(0)
    proved(make(), args)


# ------------------------------------------------------------------ inputs and results
Pair = namedtuple("Pair", "left right")


@dataclass
class Parts:
    left: torch.Tensor
    right: torch.Tensor


torch.export.register_dataclass(Parts)


def test_containers_keywords_and_numbers():
    def run(self, x, pair, *more, gain=2.0, flag=True, **named):
        made = x["a"][0] * gain + pair[1] if flag else pair[0]
        return {"sum": made + sum(more), "rest": [named["z"] * 2, 5, None, "text", (x["a"][1],)]}

    args, kwargs = ({"a": [X, X + 1]}, (X, X * 2), X, X), {"z": X, "gain": 3.0, "flag": True}
    program = proved(Of(run), args, kwargs)
    assert program.graph_signature.user_inputs == ("args_0_a_0", "args_0_a_1", "args_1_0", "args_1_1", "args_2", "args_3", "z", 3.0, True)
    module = program.module()
    module(*args, flag=True, gain=3.0, z=X)
    for gain, shape in ((2.0, X), (3.0, X[:2]), (3.0, X.double())):
        with pytest.raises(AssertionError, match="Guard failed"):
            module(*args, flag=True, gain=gain, z=shape)
    alike(program.module(check_guards=False)(*args, flag=True, gain=1.0, z=X)["rest"][0], X * 2, "z")


def test_dataclasses_and_named_tuples():
    program = proved(Of(lambda self, parts: Parts(parts.left + 1, parts.right * parts.left)), (Parts(X, X * 2),))
    assert program.graph_signature.user_inputs == ("args_0_left", "args_0_right")
    proved(Of(lambda self, pair: Pair(pair.left + 1, pair.right * 2)), (Pair(X, X),), saved=False)
    with pytest.raises(NotImplementedError, match="registered, got Pair"):
        again(torch.export.export(Of(lambda self, pair: pair.left), (Pair(X, X),)))


def test_signature():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm, self.attribute = nn.Linear(4, 3), nn.BatchNorm1d(3), torch.ones(3)
            self.register_buffer("shift", torch.ones(3), persistent=False)

        def forward(self, input, flag=True):
            return self.norm(self.layer(input)) + self.shift + self.attribute + torch.tensor([1.0, 2, 3]), 5, None

    program = torch.export.export(Net(), (X, True))
    assert str(program.graph_signature).split("\n") == """
# inputs
p_layer_weight: PARAMETER target='layer.weight'
p_layer_bias: PARAMETER target='layer.bias'
p_norm_weight: PARAMETER target='norm.weight'
p_norm_bias: PARAMETER target='norm.bias'
b_shift: BUFFER target='shift' persistent=False
b_norm_running_mean: BUFFER target='norm.running_mean' persistent=True
b_norm_running_var: BUFFER target='norm.running_var' persistent=True
b_norm_num_batches_tracked: BUFFER target='norm.num_batches_tracked' persistent=True
c_attribute: CONSTANT_TENSOR target='attribute'
c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'
input: USER_INPUT
flag: USER_INPUT

# outputs
add_2: USER_OUTPUT
: USER_OUTPUT
: USER_OUTPUT
""".split("\n")
    signature = program.graph_signature
    assert signature.inputs_to_parameters["p_layer_bias"] == "layer.bias" and signature.user_outputs == ("add_2", 5, None)
    assert signature.non_persistent_buffers == ("shift",) and signature.buffers_to_mutate == {}
    assert list(program.constants) == ["attribute", "lifted_tensor_0", "shift"] and "shift" not in program.state_dict
    changed = program.run_decompositions().graph_signature
    assert sorted(changed.buffers_to_mutate.values()) == ["norm.num_batches_tracked", "norm.running_mean", "norm.running_var"]
    module = program.module()
    assert sorted(module.state_dict()) == sorted(program.state_dict) and "def forward(self, input, flag)" in module.code
    assert program.call_spec.in_spec.num_leaves == 2 and program.module_call_graph[1].fqn == "layer"


def test_the_module_is_neither_copied_nor_changed():
    model = nn.Linear(4, 2)
    program = torch.export.export(model, (X,))
    module = program.module()
    assert program.state_dict["weight"] is model.weight and module.weight is model.weight
    with torch.no_grad():
        model.weight.zero_()
    alike(module(X), model(X), "after a change")
    for refused in (module.train, module.eval):
        with pytest.raises(NotImplementedError, match="expected a module whose forward asks for its mode"):
            refused()
    with pytest.raises(RuntimeError, match=r"module\(\)"):
        program(X)
    with pytest.raises(NotImplementedError, match="export.save"):
        pickle.dumps(module)
    alike(copy.deepcopy(module)(X), model(X), "copy")
    alike(torch.fx.Interpreter(program.graph_module).run(*program.state_dict.values(), X)[0], model(X), "interpreter")


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    module = again(torch.export.export(model, (X,))).module()
    assert module.get_parameter("0.weight") is module.get_parameter("1.weight")
    proved(model, (X,))


def test_what_is_known_of_nodes():
    program = torch.export.export(nn.Sequential(nn.Linear(4, 2), Of(lambda self, x: x * 2)), (X,), dynamic_shapes=({0: Dim("rows")},))
    node = program.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)[0]
    assert node.meta["val"].shape == (3, 2) and node.meta["val"].is_meta and node.meta["sizes"] == ("rows", "2")
    assert "test_export.py" in node.stack_trace and "x * 2" in node.stack_trace
    assert list(node.meta["nn_module_stack"].values())[-1] == ("1", f"{Of.__module__}.Of")
    again = program.run_decompositions().graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)[0]
    assert again.stack_trace == node.stack_trace and again.meta["nn_module_stack"] == node.meta["nn_module_stack"]
    text = str(program)
    assert 'input: "f32[rows, 4]"' in text and "test_export.py" in text and "Range constraints: {'rows': VR[0, int_oo]}" in text


# ------------------------------------------------------------------ refusals
def _assigns(self, x):
    self.kept = x * 2
    return x


def _grows(self, x):
    self.buffer = torch.cat([self.buffer, x])
    return x


def _writes(self, x):
    self.weight.data.add_(1)
    return x * self.weight


REFUSED = {
    "a branch": (lambda self, x: x if x.sum() > 0 else -x, "does not look at elements"),
    "item": (lambda self, x: x * x.sum().item(), "a look"),
    "masks": (lambda self, x: x[x > 0], "a look at .*test_export.py"), "attributes": (_assigns, "assigned to buffers alone, got 'kept'"),
    "buffers that grow": (_grows, "of one shape"), "parameters": (_writes, "leaves parameters.*'weight'.*register_buffer"),
    "generators": (lambda self, x: x + torch.rand(4, generator=torch.Generator()), "default generator"),
    "results": (lambda self, x: {1, 2}, "a result of tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    run, why = REFUSED[name]
    model = Of(run, buffer=torch.zeros(1, 4), weight=nn.Parameter(torch.ones(4)))
    with pytest.raises(UserError, match=why):
        torch.export.export(model, (X,))
    assert "kept" not in vars(model) and model.buffer.shape == (1, 4) and bool((model.weight == 1).all())


def test_refused_arguments():
    model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="expected a Module"):
        torch.export.export(lambda x: x, (X,))
    with pytest.raises(UserError, match="args as a tuple"):
        torch.export.export(model, X)
    with pytest.raises(UserError, match="register_dataclass"):
        torch.export.export(model, (object(),))
    with pytest.raises(TypeError):
        torch.export.export(model, (X, X))
    with pytest.raises(NotImplementedError, match="preserve_module_call_signature"):
        torch.export.export(model, (X,), preserve_module_call_signature=("layer",))
    with pytest.raises(ValueError, match="dynamic_shapes of input"):
        torch.export.export(model, (X,), dynamic_shapes={"y": {0: Dim("rows")}})


@pytest.mark.parametrize("asked", [False, True], ids=["plain", "asked"])
def test_inputs_of_other_layouts(asked):
    """Also once a program has a class of tensors that is asked first."""
    if asked:
        class Asked(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs or {})
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    program = torch.export.export(model, (IMAGES,))
    for module in (program.module(), again(program).module(), program.run_decompositions().module()):
        for x in (IMAGES.to(memory_format=torch.channels_last), IMAGES.transpose(2, 3), drawn(4, 3, 8, 8)[::2],
                  IMAGES[:1].expand(2, 3, 8, 8)):
            alike(module(x), model(x), "layout")
    kinds = called(torch.export.export(Of(lambda self, x: x.view(2, 6).reshape(3, 4).flatten().view(-1, 2)), (X,)))
    assert kinds == ["aten.view.default", "aten.reshape.default", "aten.reshape.default", "aten.view.default"]


def test_decompositions_are_asked():
    program = torch.export.export(nn.Sequential(nn.Linear(4, 2), nn.GELU()), (X,))
    made = program.run_decompositions({torch.ops.aten.gelu.default: lambda x: x * torch.sigmoid(1.702 * x)})
    assert "aten.sigmoid.default" in called(made) and "aten.gelu.default" not in called(made)


def test_onnx_takes_a_program():
    pytest.importorskip("onnx")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8)).eval()
    program = torch.export.export(model, (X,), dynamic_shapes=({0: Dim("rows")},))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = torch.onnx.export(program)
    assert made.exported_program is program and [x.name for x in made.model_proto.graph.input] == ["input"]
    alike(made(drawn(7, 4))[0], model(drawn(7, 4)), "onnx")
