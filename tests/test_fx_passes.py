"""What passes make of graphs: shapes, modules in parts, patterns replaced, models for inference, drawings."""
import pytest
from models import CNN
from traced_models import Net

import tritorch as torch
from tritorch import fx, nn
from tritorch.fx.experimental import optimization
from tritorch.fx.passes import graph_drawer, shape_prop, tools_common
from tritorch.fx.passes.infra import pass_base, pass_manager
from tritorch.fx.passes.split_module import split_module
from tritorch.nn import functional as F

X = torch.randn(4, 3)


def traced():
    return fx.symbolic_trace(Net())


def node(module, name):
    return next(n for n in module.graph.nodes if n.name == name)


def test_shapes():
    module = fx.symbolic_trace(CNN())
    shape_prop.ShapeProp(module).propagate(torch.randn(2, 1, 12, 12).to(memory_format=torch.channels_last))
    facts = {n.name: n.meta["tensor_meta"] for n in module.graph.nodes}
    assert tuple(facts["head"].shape) == (2, 5) and facts["head"].requires_grad and facts["head"].dtype is torch.float32
    assert facts["max_pool2d"].memory_format is torch.channels_last and facts["flatten"].stride == (8, 1)
    assert 'head: "f32[2, 5]"' in module.print_readable(print_output=False)
    on_meta = fx.symbolic_trace(CNN().to("meta"))
    shape_prop.ShapeProp(on_meta).propagate(torch.empty(2, 1, 12, 12, device="meta"))
    assert [tuple(n.meta["tensor_meta"].shape) for n in on_meta.graph.nodes] == [tuple(f.shape) for f in facts.values()]
    with pytest.raises(RuntimeError, match="ShapeProp, at %first"):
        shape_prop.ShapeProp(module).propagate(torch.ones(2, 3))
    split = fx.symbolic_trace(lambda x: x.split(2))
    shape_prop.ShapeProp(split).propagate(X)
    assert [tuple(m.shape) for m in node(split, "split").meta["tensor_meta"]] == [(2, 3), (2, 3)]


def test_split():
    module = fx.symbolic_trace(CNN().eval())
    numbers = iter(range(100))
    split = split_module(module, None, lambda n: next(numbers) // 3)
    x = torch.randn(2, 1, 12, 12)
    assert torch.equal(split(x), module(x)) and split.meta["partition_names"] == {name for name, _ in split.named_children()}
    assert {id(p) for p in split.parameters()} == {id(p) for p in module.parameters()}
    with pytest.raises(RuntimeError, match="need one another"):
        split_module(module, None, lambda n: int(n.name == "relu"))


def test_orders_and_names():
    module = traced()
    mul, x = node(module, "mul"), node(module, "x")
    x.prepend(mul)
    with pytest.raises(RuntimeError):
        module.graph.lint()
    tools_common.legalize_graph(module).graph.lint()
    assert torch.equal(module(X), fx.Interpreter(module).run(X))
    modules = dict(module.named_modules())
    assert [tools_common.get_node_target(modules, n) for n in module.graph.nodes if n.op.startswith("call")] == [
        "tritorch.nn.linear.Linear", "_operator.mul", "_operator.add", "relu"]


def test_replacing_with_filters():
    module = fx.symbolic_trace(lambda x: F.relu(x, inplace=False) + F.relu(x * 2) * 3 + torch.neg(x) * 4)
    rewrite = fx.subgraph_rewriter.replace_pattern_with_filters
    found = rewrite(module, lambda x: F.relu(x), lambda x: torch.exp(x), [lambda match, graph, pattern: match.placeholder_nodes[0].op ==
                                                                          "placeholder"])
    assert [len(f.replacements) for f in found] == [1] and found[0].replacements[0].target is torch.exp
    assert len(rewrite(module, lambda x: x * 9, lambda x: x, ignore_literals=True)) == 3
    callback = fx.symbolic_trace(lambda x: torch.abs(x)).graph
    assert len(rewrite(module, lambda x: torch.neg(x), replacement_callback=lambda match, graph, pattern: callback)) == 1
    assert torch.equal(module(X), X.exp() + F.relu(X) + X.abs())
    with pytest.raises(AssertionError):
        rewrite(module, lambda x: torch.abs(x))
    with pytest.raises(AssertionError, match="inputs"):
        fx.replace_pattern(module, lambda x: torch.abs(x), lambda x, y: x + y)


def test_replacing_by_modules():
    class Pattern(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.layer = make()

        def forward(self, x):
            return self.layer(x)

    class Replacement(nn.Module):
        def __init__(self):
            super().__init__()
            self.low = nn.Linear(3, 3)

        def forward(self, x):
            return torch.tanh(self.low(x))

    module, new = traced(), fx.symbolic_trace(Replacement())
    assert len(fx.replace_pattern(module, fx.symbolic_trace(Pattern(lambda: nn.Linear(3, 3))), new)) == 1
    assert [name for name, _ in module.named_modules()] == ["", "low"] and module.low.weight is not new.low.weight
    assert torch.equal(module.low.weight, new.low.weight)


def test_inference():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 4), nn.BatchNorm1d(4))
    x = torch.randn(8, 1, 4, 4)
    net(x).sum().backward()
    faster = optimization.optimize_for_inference(net.eval())
    assert [type(m).__name__ for m in faster.modules()][1:] == ["Conv2d", "Flatten", "Linear"]
    torch.testing.assert_close(faster(x), net(x), rtol=1e-5, atol=1e-5)
    assert isinstance(net[1], nn.BatchNorm2d) and torch.equal(optimization.optimize_for_inference(
        net, {"conv_bn_fuse": False, "remove_dropout": False})(x), net(x))
    module = traced()
    part = optimization.extract_subgraph(module, [node(module, "mul"), node(module, "add")], [node(module, n) for n in (
        "layer", "weight", "shift")], [node(module, "add")])
    assert part(X, module.weight, module.shift)[0].shape == (4, 3)


def test_pass_managers():
    order, checked = [], []

    def of(name):
        def each(module):
            order.append(name)

        return pass_manager.pass_result_wrapper(each)

    a, b, c = map(of, "abc")
    before = pass_manager.this_before_that_pass_constraint
    manager = pass_manager.PassManager([c, b, a], [before(a, b), before(b, c)], steps=2, run_checks_after_each_pass=True)
    manager.add_checks(lambda module: checked.append(module))
    module = traced()
    assert manager(module) == (module, True) and order == ["a", "b", "c"] * 2 and len(checked) == 7
    manager.add_constraint(before(c, a))
    for call in (lambda: manager(module), lambda: pass_manager.PassManager([b, a], [before(a, b)]).validate_constraints()):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(TypeError):
        manager.add_checks(lambda: 3)
    with pytest.raises(Exception, match="in the pass <lambda>"):
        pass_manager.PassManager([lambda module: 3])(module)

    class Dead(pass_base.PassBase):
        def call(self, graph_module):
            return pass_base.PassResult(graph_module, graph_module.graph.eliminate_dead_code())

    assert pass_manager.PassManager([Dead()], steps=5)(fx.symbolic_trace(lambda x: (x + 1, x)[1])).modified


def test_drawings():
    if graph_drawer.pydot is None:
        with pytest.raises(RuntimeError, match="pydot"):
            graph_drawer.FxGraphDrawer(traced(), "net")
    else:
        assert "call_module" in graph_drawer.FxGraphDrawer(traced(), "net").get_dot_graph().to_string()
