"""torch.fx: traces, graphs that are changed and written as Python, copies, interpreters, and what cannot be traced."""
import copy
import math
import operator
import pickle

import pytest

import tritorch as torch
from tritorch import fx, nn
from tritorch.fx.graph_module import _copy_attr
from tritorch.fx.passes.shape_prop import ShapeProp

F = nn.functional


class Block(nn.Module):
    """Parameters, buffers, constants, several results, arguments of all kinds."""

    def __init__(self, d):
        super().__init__()
        self.w, self.norm = nn.Parameter(torch.randn(d, d)), nn.LayerNorm(d)
        self.register_buffer("b", torch.randn(d))

    def forward(self, x, scale=2.0, *rest, flag=None, **options):
        a, b = x.chunk(2, -1)
        y = F.linear(torch.cat([a, b], dim=1), self.w * math.sqrt(2), self.b)
        y = self.norm(y) * scale + torch.ones(1)
        if flag is None:
            y = y[:, None, ..., ::2].squeeze(1)
        return {"y": y, "rows": x.shape[0], "more": (y, y.size(0), -y.mean())}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(4)]), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.blocks[0](self.head(x))


@fx.wrap
def picky(x, k):
    return x * k if x.sum() > 0 else x


fx.wrap("len")


def counted(x):
    return picky(x, 3) + math.floor(x.mean()) + len(x)


def test_traces_do_what_the_module_does():
    net, x = Net(), torch.randn(3, 4)
    traced = fx.symbolic_trace(net)
    traced.graph.lint()
    expected = net(x)
    names = [n.name for n in traced.graph.nodes]
    assert names == ["x", "head_0", "head_1", "chunk", "getitem", "getitem_1", "cat", "blocks_0_w", "mul", "blocks_0_b", "linear",
                     "blocks_0_norm", "mul_1", "_tensor_constant0", "add", "getitem_2", "squeeze", "getattr_1", "getitem_3", "size", "mean",
                     "neg", "output"]
    assert not [n for n in vars(net) if "constant" not in n and n not in vars(Net())]
    for module in (traced, copy.deepcopy(traced), copy.copy(traced), pickle.loads(pickle.dumps(traced)), fx.symbolic_trace(traced)):
        found = module(x)
        assert torch.equal(found["y"], expected["y"]) and found["rows"] == 3 and torch.equal(found["more"][2], expected["more"][2])
        assert module.state_dict().keys() == {*net.state_dict(), "_tensor_constant0"} and type(module).__name__ == "Net"
    weights = [module.get_submodule("head.0").weight for module in (net, traced, copy.deepcopy(traced))]
    assert weights[0] is weights[1] and weights[1] is not weights[2]
    traced(x)["y"].sum().backward()
    assert net.blocks[0].w.grad is not None
    assert not traced.eval().get_submodule("head.0").training and traced.to(torch.float64)(x.double())["y"].dtype == torch.float64


def test_arguments():
    block, x = Block(4), torch.randn(3, 4)
    traced = fx.symbolic_trace(block)
    assert traced.code.startswith("def forward(self, x, scale=2.0, flag=None, *rest, **options):")
    special = fx.symbolic_trace(block, concrete_args={"flag": 1})
    assert torch.equal(special(x, 3.0)["y"], block(x, 3.0, flag=1)["y"]) and special(x)["y"].shape == (3, 4)
    with pytest.raises(TypeError):
        fx.symbolic_trace(3)


def test_values_in_the_text():
    traced = fx.symbolic_trace(lambda x: (x.to(torch.float64, memory_format=torch.channels_last), x[..., 1:2], float("inf"), (x,), [x.T],
                                          torch.add(x, 1, alpha=2), x @ x.mT, 2 ** x, x & 1, torch.device("cpu"), x.relu_()))
    x = torch.randint(5, (2, 3, 4, 4))
    found = traced(x.clone())
    assert found[0].dtype == torch.float64 and found[1].shape == (2, 3, 4, 1) and found[2] == math.inf and found[9] == torch.device("cpu")
    assert torch.equal(found[7], 2 ** x) and torch.equal(found[8], x & 1)
    assert "torch.float64, memory_format = torch.channels_last" in traced.code


def test_wrapped_functions_are_steps():
    traced = fx.symbolic_trace(counted)
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [picky, math.floor, operator.add, len, operator.add]
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(traced(x), counted(x))
    assert len([1]) == 1 and math.floor(1.5) == 1 and "len" not in globals()


@pytest.mark.parametrize("f", [lambda x: x if x.sum() > 0 else -x, lambda x: [v + 1 for v in x], lambda x: 3 in x])
def test_what_depends_on_values(f):
    with pytest.raises(fx.proxy.TraceError):
        fx.symbolic_trace(f)
    with pytest.raises(RuntimeError, match="wrap"):
        fx.symbolic_trace(lambda x: x.__len__())
    with pytest.raises(NotImplementedError, match="object"):
        fx.symbolic_trace(lambda x: x + object())
    assert type(nn.Linear(1, 1)(torch.ones(1))) is torch.Tensor and "__getattribute__" not in vars(nn.Module)    # nothing stays patched


def test_graphs_are_changed():
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    nodes, x = {n.name: n for n in traced.graph.nodes}, torch.randn(3, 2)
    assert nodes["_0"].users == {nodes["_1"]: None} and nodes["_1"].all_input_nodes == [nodes["_0"]] and nodes["_1"].next is nodes["_2"]
    with traced.graph.inserting_after(nodes["_1"]):
        new = traced.graph.call_function(torch.tanh, (nodes["_0"],))
    assert nodes["_1"].replace_all_uses_with(new) == [nodes["_2"]]
    with pytest.raises(RuntimeError, match="nobody"):
        traced.graph.erase_node(nodes["_0"])
    assert traced.graph.eliminate_dead_code() and not traced.graph.eliminate_dead_code() and len(traced.graph.nodes) == 5
    traced.graph.lint()
    traced.recompile()
    traced.delete_all_unused_submodules()
    assert [name for name, _ in traced.named_children()] == ["0", "2"]
    assert torch.equal(traced(x), traced.get_submodule("2")(torch.tanh(traced.get_submodule("0")(x))))
    assert traced.add_submodule("new.inner", nn.ReLU()) and traced.delete_submodule("new.inner") and not traced.delete_submodule("none")
    nodes["_2"].append(nodes["_0"])
    with pytest.raises(RuntimeError, match="before it"):
        traced.graph.lint()
    with pytest.raises(RuntimeError, match="another"):
        fx.Graph().call_function(torch.tanh, (nodes["_0"],))
    with pytest.raises(ValueError, match="an op among"):
        fx.Graph().create_node("call", "x")


def test_interpreters():
    class Doubled(fx.Interpreter):
        def call_module(self, target, args, kwargs):
            return 2 * super().call_module(target, args, kwargs)

    net, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.randn(3, 2)
    traced = fx.symbolic_trace(net)
    assert torch.equal(fx.Interpreter(traced).run(x), net(x)) and torch.equal(Doubled(traced).run(x), 2 * net[1](2 * net[0](x)))
    assert torch.equal(fx.Transformer(traced).transform()(x), net(x))
    ShapeProp(traced).propagate(x)
    assert [n.meta["tensor_meta"].shape for n in traced.graph.nodes] == [(3, 2)] * 4
    with pytest.raises(RuntimeError, match="argument"):
        fx.Interpreter(traced).run()


def test_attributes_are_copied():
    source, target = Net(), nn.Module()
    _copy_attr(source, target, "blocks.0.b")
    _copy_attr(source, target, "head")
    assert target.blocks.get_submodule("0").b is source.blocks[0].b and target.head is source.head and "blocks.0.b" in target.state_dict()
    graph = fx.Graph()
    graph.output(graph.call_module("a.b", (graph.get_attr("c"),)))
    made = fx.GraphModule({"a.b": nn.ReLU(), "c": torch.tensor(-1.0)}, graph)
    assert made() == 0 and "c" in dict(made.named_buffers())
    with pytest.raises(RuntimeError, match="none of"):
        fx.GraphModule({}, graph)


def test_the_same_graphs_as_pytorch():
    pytorch = pytest.importorskip("torch")

    def f(t):
        def f(x, y):
            a, b = t.split(x, 2, dim=-1)
            x = t.nn.functional.gelu(a) + b.transpose(0, 1)[None]
            x[..., 0] = y
            return t.where(x > 0, x, -x).mean(dim=-1, keepdim=True), y.shape
        return f

    ours, theirs = fx.symbolic_trace(f(torch)).graph, pytorch.fx.symbolic_trace(f(pytorch)).graph
    steps = [[(n.op, n.name, str(n.args), str(n.kwargs)) for n in graph.nodes] for graph in (ours, theirs)]
    assert steps[0] == steps[1]
