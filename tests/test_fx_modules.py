"""GraphModules and graphs: changed, copied, saved, trained, compiled and run node by node."""
import copy
import importlib
import pickle
import random
import sys
import threading
import time
import traceback
import weakref

import pytest
from models import CNN, images
from traced_models import Net

import tritorch as torch
from tritorch import fx, nn
from tritorch.nn import functional as F
from tritorch.utils import _pytree as pytree

X = torch.randn(4, 3)


def traced():
    return fx.symbolic_trace(Net())


def node(module, name):
    return next(n for n in module.graph.nodes if n.name == name)


# ------------------------------------------------------------------ training
def test_training_is_the_same():
    """To the bit, also through optimizers, state dicts and autocast."""
    net = CNN()
    twin = fx.symbolic_trace(copy.deepcopy(net))
    assert twin.state_dict().keys() == net.state_dict().keys()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (net, twin)]
    for x, t in images(3):
        for m, optimizer in zip((net, twin), optimizers):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(m(x), t)
            loss.backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), twin.state_dict().values()))
    twin.load_state_dict(CNN().state_dict())
    assert torch.equal(torch.func.functional_call(twin.eval(), net.state_dict(), images(1)[0][0]), net.eval()(images(1)[0][0]))
    assert twin.double().train()(images(1)[0][0].double()).dtype is torch.float64


def test_trained_on_the_simulated_gpu():
    """A compiled step of a traced network, under autocast, is the eager one of the network itself."""
    pytest.importorskip("triton")
    from tritorch.cuda import driver

    def step_of(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x, t):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), t)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    with driver.using(None):
        torch.cuda.simulate()
        net = Net().cuda()
        twin, x, t = fx.symbolic_trace(copy.deepcopy(net)), X.cuda(), torch.tensor([0, 1, 2, 0]).cuda()
        eager, compiled = step_of(net), torch.compile(step_of(twin))
        for _ in range(5):
            assert torch.equal(eager(x, t), compiled(x, t))
        assert "is replayed" in compiled.report() and torch.equal(net.weight, twin.weight)


def test_compiled_on_the_simulated_gpu():
    pytest.importorskip("triton")
    from tritorch.cuda import driver

    with driver.using(None):
        torch.cuda.simulate()
        module = fx.symbolic_trace(Net().cuda())
        compiled, x = torch.compile(module), X.cuda()
        with torch.no_grad():
            for _ in range(5):
                assert torch.equal(compiled(x), module(x))
            assert "is replayed" in compiled.report()
            node(module, "relu").target = "sigmoid"
            module.recompile()
            for _ in range(5):
                assert torch.equal(compiled(x), module(x))


# ------------------------------------------------------------------ graphs
def test_changes_are_seen_after_recompile():
    module = traced()
    before, relu = module(X), node(module, "relu")
    with module.graph.inserting_after(relu):
        half = module.graph.call_function(torch.mul, (relu, 0.5))
    relu.replace_all_uses_with(half, lambda user: user is not half)
    assert torch.equal(module(X), before)
    module.recompile()
    module.graph.lint()
    assert torch.equal(module(X), before * 0.5) and [*relu.users] == [half] and module.graph.output_node().args == (half,)


def test_dead_code():
    def f(x):
        x.exp()
        y = x + torch.zeros(3).add_(1)
        y.add_(1)
        F.relu(y, inplace=True)
        torch.mul(x, x, out=y)
        torch.bernoulli(x.abs().clamp(max=1))
        torch.neg(x)
        return y

    module = fx.symbolic_trace(f)
    assert module.graph.eliminate_dead_code() and not module.graph.eliminate_dead_code()
    names = [n.name for n in module.graph.nodes]
    assert {"add_", "bernoulli", "mul"} < set(names) and not {"exp", "neg"} & set(names) and module.recompile()
    assert torch.equal(module(X), X * X)
    keep = fx.symbolic_trace(lambda x: (x.exp(), x)[1])
    assert not keep.graph.eliminate_dead_code(lambda n: n.op in ("call_method", "output", "placeholder")) and len(keep.graph.nodes) == 3
    assert not node(fx.symbolic_trace(lambda x: torch.rand_like(x)), "rand_like").is_impure(impure_random=False)


def test_wrong_graphs():
    module, other = traced(), traced()
    relu, add = node(module, "relu"), node(module, "add")
    for error, call in ((RuntimeError, lambda: module.graph.erase_node(add)), (RuntimeError, lambda: other.graph.erase_node(
            module.graph.output_node())), (AssertionError, lambda: add.append(node(other, "add"))),
            (AssertionError, lambda: other.graph.inserting_before(add)), (ValueError, lambda: module.graph.call_function("relu")),
            (ValueError, lambda: module.graph.create_node("call_method", torch.relu)),
            (AssertionError, lambda: module.graph.create_node("x", "y")),
            (AssertionError, lambda: module.graph.call_function(torch.relu, [relu])),
            (TypeError, lambda: fx.Graph().call_function(max, ([1],)).args[0].append(2)),
            (AssertionError, lambda: setattr(module, "graph", 3)),
            (RuntimeError, lambda: fx.GraphModule({}, copy.deepcopy(module.graph))), (RuntimeError, lambda: fx.GraphModule(3, fx.Graph())),
            (AttributeError, lambda: module.graph.call_module("nowhere")), (AssertionError, lambda: relu.insert_arg(3, 1)),
            (AssertionError, lambda: module.graph.find_nodes(op="call_function")), (AssertionError, lambda: fx.Graph().output_node())):
        with pytest.raises(error):
            call()
    with pytest.warns(UserWarning, match="get_attr"):
        module.graph.get_attr("nowhere")
    with pytest.raises(RuntimeError, match="nowhere"):
        module.graph.lint()
    for change in (lambda m: node(m, "relu").append(node(m, "add")), lambda m: node(m, "relu").update_arg(0, relu)):
        wrong = traced()
        change(wrong)
        with pytest.raises(RuntimeError, match="lint"):
            wrong.graph.lint()


def test_walking_while_changing():
    graph = fx.symbolic_trace(lambda x: x + 1 + 2 + 3).graph
    seen = []
    for n in graph.nodes:
        seen.append(n.name)
        if n.op == "call_function":
            n.replace_all_uses_with(n.args[0])
            graph.erase_node(n)
    assert seen == ["x", "add", "add_1", "add_2", "output"] and [n.name for n in graph.nodes] == ["x", "output"] and len(graph.nodes) == 2
    with pytest.warns(UserWarning, match="erased already"):
        n = graph.call_function(torch.relu)
        graph.erase_node(n)
        graph.erase_node(n)


def test_arguments_know_their_users():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    n = graph.call_function(torch.cat, ([x, x, {"k": slice(y, None)}],), {"dim": y})
    assert n.all_input_nodes == [x, y] and [*x.users] == [n] and type(n.args[0]).__name__ == "immutable_list"
    n.args, n.kwargs = ((x,),), {"dim": 0}
    assert not y.users and n.all_input_nodes == [x]
    n.update_kwarg("dim", y)
    assert [*y.users] == [n] and hash(n.kwargs) and pickle.loads(pickle.dumps(fx.Graph().call_function(max, ([1],)).args)) == ([1],)
    assert fx.map_arg((x, [y, 3]), lambda node: node.name) == ("x", ["y", 3])
    leaves, spec = pytree.tree_flatten(fx.immutable_collections.immutable_dict(a=fx.immutable_collections.immutable_list([1, 2])))
    assert leaves == [1, 2] and type(spec.unflatten(leaves)["a"]).__name__ == "immutable_list"
    n.meta["tag"] = 3
    new = graph.call_function(torch.relu)
    n.replace_all_uses_with(new, propagate_meta=True)
    assert new.meta == {"tag": 3} and new.format_node().endswith("call_function[target=tritorch.relu](args = (), kwargs = {})")


def test_normalized_arguments():
    module = fx.symbolic_trace(nn.Sequential(nn.ReLU(), Net()))
    assert node(module, "_0").normalized_arguments(module, normalize_to_only_use_kwargs=True).kwargs.keys() == {"input"}
    pad = node(fx.symbolic_trace(lambda x: F.pad(x, (1, 1), value=2.0)), "pad")
    found = pad.normalized_arguments(module)
    assert found.args[1] == (1, 1) and found.kwargs == {"mode": "constant", "value": 2.0}
    assert node(fx.symbolic_trace(lambda x: x.relu()), "relu").normalized_arguments(module) is None


# ------------------------------------------------------------------ copies and files
def test_copies():
    module = traced()
    module.register_forward_hook(lambda m, args, out: out + 1)
    module.note, module.meta["k"] = [1], {"v": 2}
    node(module, "relu").meta["tag"] = 5
    twin = copy.deepcopy(module)
    assert torch.equal(twin(X), module(X)) and twin.note == [1] and twin.note is not module.note and twin.meta == {"k": {"v": 2}}
    assert twin.layer.weight is not module.layer.weight and node(twin, "relu").meta["tag"] == 5 and type(twin).__name__ == "Net"
    node(twin, "relu").target = "sigmoid"
    twin.recompile()
    assert not torch.equal(twin(X), module(X)) and twin.graph.owning_module is twin and module.graph.owning_module is module
    assert copy.copy(module).graph is module.graph
    graph = copy.deepcopy(module.graph)
    assert [n.name for n in graph.nodes] == [n.name for n in module.graph.nodes] and graph.owning_module is None


def test_pickles():
    module = traced().eval()
    module.note = "kept"
    loaded = pickle.loads(pickle.dumps(module))
    assert torch.equal(loaded(X), module(X)) and loaded.code == module.code and loaded.note == "kept" and not loaded.training
    assert loaded.state_dict().keys() == module.state_dict().keys() and isinstance(loaded, fx.GraphModule)
    local = fx.symbolic_trace(lambda x: x)

    def own():
        return 3

    with local.graph.inserting_before():
        local.graph.output_node().args = (local.graph.call_function(own),)
    local.recompile()
    assert local(1) == 3
    with pytest.raises(RuntimeError, match="expected functions in the graph that a module has"):
        pickle.dumps(local)


def test_folders(tmp_path, monkeypatch):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.linear, self.scale = Net(), nn.Linear(3, 2, bias=False), nn.Parameter(torch.randn(3), requires_grad=False)
            self.register_buffer("table", torch.randn(3), persistent=False)

        def forward(self, x):
            return self.linear(self.net(x["x"]) * self.scale + self.table).to(torch.float64)

    module = fx.symbolic_trace(Outer(), concrete_args={"x": {"x": fx.PH}})
    with pytest.warns(UserWarning, match="net"):
        module.to_folder(tmp_path / "fx_folder", "Again")
    (tmp_path / "fx_folder").rename(tmp_path / "fx_moved")
    monkeypatch.syspath_prepend(tmp_path)
    again = importlib.import_module("fx_moved").Again()
    sys.modules.pop("fx_moved")
    assert torch.equal(again({"x": X}), module({"x": X})) and not again.scale.requires_grad
    assert again.state_dict().keys() == module.state_dict().keys() and "table" not in again.state_dict()


def test_members():
    module = traced()
    assert module.add_submodule("a.b.c", nn.ReLU()) and not module.add_submodule("weight.x", nn.ReLU())
    assert module.delete_submodule("a.b.c") and not module.delete_submodule("a.b.c") and not module.delete_submodule("x.y")
    module.add_submodule("spare", nn.ReLU())
    module.delete_all_unused_submodules()
    assert [name for name, _ in module.named_modules()] == ["", "layer"]
    parts = {"layer": nn.Linear(3, 3), "weight": nn.Parameter(torch.ones(3)), "shift": torch.ones(3)}
    parts = fx.GraphModule(parts, copy.deepcopy(module.graph))
    assert parts(X).shape == (4, 3) and [*parts._buffers] == ["shift"]
    nested = fx.symbolic_trace(nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU()))
    assert [name for name, _ in nested.named_modules()] == ["", "0", "0.0", "1"]


def test_generated_code_in_tracebacks():
    module = traced()
    with pytest.raises(RuntimeError) as caught:
        module(torch.ones(2, 5))
    assert "layer = self.layer(x)" in "".join(traceback.format_tb(caught.value.__traceback__))


def test_code_generation():
    module = traced()
    module.graph.on_generate_code(lambda was: lambda body: [*(was(body) if was else body)[:-1], "return torch.neg(relu)\n"])
    module.recompile()
    assert torch.equal(module(X), -fx.Interpreter(module).run(X))

    class Doubling(fx.CodeGen):
        def gen_fn_def(self, free_vars, maybe_return_annotation):
            return super().gen_fn_def(free_vars, maybe_return_annotation) + "\n    assert known == 3"

        def generate_output(self, output_args):
            return f"return 2 * {output_args}"

        def additional_globals(self):
            return [("known", 3)]

        def process_outputs(self, outputs):
            return 2 * outputs

    module.graph.set_codegen(Doubling())
    module.recompile()
    assert torch.equal(module(X), fx.Interpreter(module).run(X)) and "return 2 * relu" in module.code
    text = traced().print_readable(print_output=False, colored=True, expanded_def=True)
    assert "\033[2m" in text and "    self,\n" in text


def test_memory_dies_with_the_module():
    module = traced()
    gone = weakref.ref(module.layer.weight)
    del module
    import gc
    gc.collect()
    assert gone() is None


# ------------------------------------------------------------------ running nodes
def test_interpreters():
    module, seen = traced(), []

    class Seen(fx.Interpreter):
        def run_node(self, n):
            seen.append(n.name)
            return super().run_node(n)

    runner = Seen(module)
    assert torch.equal(runner.run(X), module(X)) and seen[-1] == "output" and [n.name for n in runner.env] == ["output"]
    values = [X]
    assert torch.equal(fx.Interpreter(module).boxed_run(values), module(X)) and values == []
    assert torch.equal(fx.Interpreter(module).run(X, initial_env={node(module, "add"): X}), X.relu())
    for call in (lambda: fx.Interpreter(module).boxed_run([]), lambda: fx.Interpreter(module).run()):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(RuntimeError, match=r"at %layer .*call_module\[target=layer\]"):
        fx.Interpreter(module).run(torch.ones(2, 5))
    defaults = fx.symbolic_trace(lambda x, y=3, *rest: x + y + (rest[0] if False else 0))
    assert fx.Interpreter(defaults).run(1) == 4 and fx.Interpreter(defaults).run(1, 1, 5) == 2
    assert torch.equal(fx.Interpreter(nn.ReLU(), graph=fx.symbolic_trace(lambda x: x + 1).graph).run(X), X + 1)


def test_transformers_keep_what_is_known():
    module = fx.symbolic_trace(nn.Sequential(Net()))
    node(module, "relu").meta["custom"] = {"k": 1}
    node(module, "relu").stack_trace = "here"

    class Sigmoid(fx.Transformer):
        def call_method(self, target, args, kwargs):
            return super().call_function(torch.sigmoid, args, kwargs) if target == "relu" else super().call_method(target, args, kwargs)

    made = Sigmoid(module).transform()
    new = node(made, "sigmoid")
    assert new.meta["custom"] == {"k": 1} and new.stack_trace == "here" and list(new.meta["nn_module_stack"]) == ["0"]
    assert made(X).max() <= 1 and {id(p) for p in made.parameters()} == {id(p) for p in module.parameters()}


def test_threads_trace_one_after_another():
    found, before = [], (nn.Module.__call__, nn.Module.__getattribute__)

    class Slow(nn.Sequential):
        def forward(self, x):
            time.sleep(random.random() * 5e-3)                           # others would begin meanwhile
            return super().forward(x)

    def trace():
        for _ in range(4):
            module = fx.symbolic_trace(Slow(Slow(nn.ReLU()), nn.ReLU()))
        found.append(module(X) + 1)

    threads = [threading.Thread(target=trace) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(out, X.relu() + 1) for out in found)
    assert before == (nn.Module.__call__, nn.Module.__getattribute__) and not fx._symbolic_trace.is_fx_tracing()


def test_a_list_of_operands_is_handed_on_one_by_one():
    class Net(torch.nn.Module):
        def forward(self, a, b):
            return torch.einsum("ij,jk->ik", [a, b])

    graph = fx.symbolic_trace(Net()).graph
    (node,) = [n for n in graph.nodes if n.op == "call_function"]
    assert node.args[0] == "ij,jk->ik" and [n.name for n in node.args[1:]] == ["a", "b"]
