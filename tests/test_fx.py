"""Traces of functions and modules as graphs: what tracers keep, what they refuse, and what is as it was after them."""
import collections
import functools
import math
import pickle
import threading
import types

import pytest
import traced_models
from models import CNN, GPT, texts
from traced_models import Checked, Net

import tritorch as torch
from tritorch import fx, nn, overridable
from tritorch.dispatch import registry
from tritorch.fx import names
from tritorch.nn import functional as F
from tritorch.testing.samples import each_tensor, samples_of, tensors_in


@fx.wrap
def clipped(x, least=0.0):
    return x if x.sum() > 1 else x * 2 + least


def summed(x):
    return sum(x.tolist())


fx.wrap("summed")
fx.wrap("len")
fx.wrap("no_such_function")

CPU = torch.device("cpu")


def named(graph):
    return [node.name for node in getattr(graph, "graph", graph).nodes]


def targets(graph, op="call_function"):
    return [node.target for node in getattr(graph, "graph", graph).nodes if node.op == op]


# ------------------------------------------------------------------ what is kept
def test_models():
    """Whole networks: the same results to the bit, also of the graphs that their code gives when it is traced again."""
    tokens, images = texts(1)[0][0], torch.randn(2, 1, 12, 12)
    for net, x in ((GPT(), tokens), (CNN(), images), (nn.Sequential(Net(), nn.Sequential(Net())), torch.randn(4, 3))):
        net.eval()
        traced = fx.symbolic_trace(net)
        traced.graph.lint()
        again = fx.symbolic_trace(traced)
        assert torch.equal(traced(x), net(x)) and torch.equal(again(x), net(x)) and again.code == traced.code
        assert {id(p) for p in traced.parameters()} == {id(p) for p in net.parameters()} and not traced.training


def test_code_names_what_it_calls():
    def f(x, y: torch.Tensor, device=CPU) -> list[int]:
        z = F.gelu(torch.where(x > 0, x, y), approximate="tanh").to(torch.float64).to(device)
        return [torch.linalg.norm(z), torch.Tensor.size(z), float("inf"), z.contiguous(memory_format=torch.contiguous_format)]

    traced = fx.symbolic_trace(f)
    head, *lines = traced.code.strip().split("\n")
    assert head == "def forward(self, x, y : tritorch.Tensor, device = tritorch.device(type='cpu')) -> list[int]:"
    for text in ("tritorch.nn.functional.gelu(where, approximate = 'tanh')", ".to(tritorch.float64)", "tritorch.linalg.norm(to_1)", "inf",
                 "size = to_1.size()", "memory_format = tritorch.contiguous_format"):
        assert text in "\n".join(lines)
    x, y = torch.randn(3), torch.randn(3)
    assert all(a == b if isinstance(a, (float, tuple)) else torch.equal(a, b) for a, b in zip(traced(x, y), f(x, y)))


def test_every_public_function_has_a_name():
    """By which generated code reaches it: no function of ours becomes a global of its own."""
    fx.Proxy(fx.Graph().placeholder("x"))                                # the functions have their public names from then on
    public = [f for f in overridable.public if isinstance(f, types.FunctionType)]
    assert len(public) > 900 and [f for f in public if not names.is_ours(f)] == []


def test_public_operators_by_their_samples():
    """Each is one node, whose code gives what the call gives, and so does that of its pickle."""
    fx.Proxy(fx.Graph().placeholder("x"))
    public = [op for op in registry.values() if op.samples_body and op in overridable.public]
    for op in public:
        args = next(samples_of(op))
        tensors = [x.detach() for x in tensors_in(args)]

        def call(*values):
            rest = iter(values)
            return op(*each_tensor(lambda x: next(rest), args))          # noqa: B023 (called in this round)

        tracer = fx.Tracer()
        graph = tracer.trace(call, concrete_args=(fx.PH,) * len(tensors))
        module = fx.GraphModule(tracer.root, graph)
        assert len(graph.nodes) == len(tensors) + 2 or op.returns != ("out",), op.__name__
        results = []
        for program in (call, module, pickle.loads(pickle.dumps(module))):
            torch.manual_seed(0)
            results.append(program(*[x.clone() for x in tensors]))
        for found in results[1:]:
            torch.testing.assert_close(found, results[0], rtol=0, atol=0, equal_nan=True, msg=op.__name__)


def test_names_shadow_nothing():
    def f(tritorch, len, torch_1, inf):
        sum = tritorch + len
        return sum.sum() * torch_1 + inf + float("inf") * 0.5

    traced = fx.symbolic_trace(f)
    assert traced(*torch.ones(4)).item() == math.inf and "len_1 = len\n" in traced.code
    traced = fx.symbolic_trace(lambda torch, device, tritorch: tritorch.to(torch.dtype).relu_() + F.relu(device) * 1j)
    assert traced(torch.ones(2), torch.ones(2), torch.ones(2)).tolist() == [1 + 1j, 1 + 1j]


def test_operand_on_the_right():
    x = torch.randn(3)
    traced = fx.symbolic_trace(lambda y: (x + y, x @ y, x[y.argmax()], torch.add(x, y), x > y))
    assert targets(traced, "call_method") == ["add", "matmul", "argmax", "__getitem__", "gt"] and targets(traced) == [torch.add]
    assert [type(v) for v in traced._buffers.values()] == [torch.Tensor] and traced._tensor_constant0 is x
    y = torch.randn(3)
    assert all(torch.equal(a, b) for a, b in zip(traced(y), (x + y, x @ y, x[y.argmax()], torch.add(x, y), x > y)))


def test_names_that_python_keeps():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleDict({"class": nn.Linear(3, 3), "0": nn.ReLU()})

        def forward(self, x):
            return self.layers["class"](self.layers["0"](x))

    assert fx.symbolic_trace(Kept())(torch.ones(2, 3)).shape == (2, 3)


def test_own_operators():
    from tritorch.library import custom_op

    @custom_op("fx_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    traced = fx.symbolic_trace(lambda x: torch.ops.fx_tests.scaled(x, 2.0) + torch.ops.fx_tests.scaled.default(x, 3.0))
    assert "tritorch.ops.fx_tests.scaled(x, 2.0)" in traced.code and "tritorch.ops.fx_tests.scaled.default(x, 3.0)" in traced.code
    assert traced(torch.ones(2)).tolist() == [5.0, 5.0]
    traced = fx.symbolic_trace(lambda x: torch.ops.aten.add.Tensor(torch.ops.aten.sigmoid(x), x))
    assert targets(traced) == [torch.ops.aten.sigmoid, torch.ops.aten.add.Tensor]
    assert torch.equal(pickle.loads(pickle.dumps(traced))(torch.ones(2)), torch.ones(2).sigmoid() + 1)


@pytest.mark.parametrize("args", [(3,), (3, 4), (3, 4, 5)])
def test_signatures(args):
    def f(x, y=2, *rest, factor, bias=1, **more):
        return x * y * factor + bias + more["k"] + summed(rest[0] if len(args) > 2 else torch.zeros(1))

    traced = fx.symbolic_trace(f)
    values = [*map(float, args[:2]), *[torch.tensor([float(v)]) for v in args[2:]]]
    assert traced(*values, factor=2.0, k=7.0) == f(*values, factor=2.0, k=7.0)
    assert fx.symbolic_trace(lambda x=1, *, y: x - y)(5, y=3) == 2


def test_decorated_functions():
    def tripled(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return f(*args, **kwargs) * 3

        return wrapper

    assert fx.symbolic_trace(tripled(lambda x, *, y=2: x + y))(1, y=1) == 6 and fx.symbolic_trace(tripled(lambda x: x))(2) == 6
    assert fx.symbolic_trace(torch.no_grad()(lambda x, *rest: x + rest[0]))(1, 2) == 3


# ------------------------------------------------------------------ wrapped functions and modules
def test_wrapped_functions():
    own = clipped, summed
    traced = fx.symbolic_trace(lambda x: clipped(x, least=1.0) + summed(x) + len(x) + math.sqrt(x[0]) + math.sqrt(4.0))
    assert {clipped, summed, len, math.sqrt} <= {*targets(traced)} and "2.0" in traced.code
    x = torch.tensor([4.0, 9.0])
    assert (clipped, summed) == own and traced(x).tolist() == (clipped(x) + 13 + 2 + 2 + 2).tolist() and math.sqrt(9) == 3
    loaded = pickle.loads(pickle.dumps(traced))
    assert loaded.code == traced.code and torch.equal(loaded(x), traced(x))
    with pytest.raises(NotImplementedError, match="top level"):
        fx.wrap("summed")
    with pytest.raises(RuntimeError, match="wrap: expected a function"):
        fx.wrap(3)


def test_autowrapped():
    def inner(x):
        return x if x.sum() > 0 else -x

    collections.inner = inner                                            # as of a module of one's own
    try:
        tracer = fx.Tracer(autowrap_modules=(math, collections), autowrap_functions=(inner,))
        graph = tracer.trace(lambda x: collections.inner(x))
        assert targets(graph) == [inner] and collections.inner is inner
    finally:
        del collections.inner


def test_leaves():
    class Deep(fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return module_qualified_name == "layer"

    net = nn.Sequential(collections.OrderedDict(layer=nn.Linear(3, 3), norm=nn.LayerNorm(3), inner=nn.Sequential(nn.ReLU())))
    assert named(Deep().trace(net)) == ["input_1", "layer", "norm_weight", "norm_bias", "layer_norm", "relu", "output"]
    assert named(fx.symbolic_trace(net)) == ["input_1", "layer", "norm", "inner_0", "output"]


def test_modules_that_are_not_there():
    other = nn.Linear(3, 3)

    class Wrong(nn.Module):
        def forward(self, x):
            return other(x)

    class Weights(nn.Module):
        def forward(self, x):
            return F.linear(x, other.weight)

    for net in (Wrong(), Weights()):
        with pytest.raises(NameError):
            fx.symbolic_trace(net)
    assert other(torch.ones(1, 3)).shape == (1, 3)                       # nothing of the trace is left
    with pytest.raises(AssertionError):
        fx.symbolic_trace(nn.ReLU().forward)


def test_nothing_is_left_of_a_trace():
    before = nn.Module.__call__, nn.Module.__getattribute__, dict(vars(math))
    with pytest.raises(fx.proxy.TraceError):
        fx.symbolic_trace(lambda x: x if x > 0 else math.sqrt(x))
    assert (nn.Module.__call__, nn.Module.__getattribute__, dict(vars(math))) == before and "__getattribute__" not in vars(nn.Module)
    assert not fx._symbolic_trace.is_fx_tracing()


def test_other_threads_are_not_traced():
    net, found, inside, done = Net(), [], threading.Event(), threading.Event()

    class Waits(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            inside.set()
            assert done.wait(30)
            return self.net(x)

    def work():
        inside.wait(30)
        found.append(net(torch.ones(2, 3)))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    traced = fx.symbolic_trace(Waits())
    thread.join()
    assert torch.equal(found[0], traced(torch.ones(2, 3))) and fx._symbolic_trace.is_fx_symbolic_tracing() is False


def test_traces_inside_of_traces():
    def f(x):
        inner = fx.symbolic_trace(lambda y: y.relu() + 1)
        return inner.forward(x) * 2

    assert fx.symbolic_trace(f)(torch.tensor(-1.0)).item() == 2


# ------------------------------------------------------------------ options
def test_concrete_args():
    def f(x, deep, k, tail=None):
        return {"sum": sum(x["parts"]) * k if deep else x["first"], "tail": tail}

    traced = fx.symbolic_trace(f, concrete_args={"x": {"first": fx.PH, "parts": [fx.PH, fx.PH]}, "deep": True, "tail": None})
    x = {"first": 1.0, "parts": [torch.tensor(2.0), torch.tensor(3.0)]}
    for module in (traced, fx.Transformer(traced).transform(), pickle.loads(pickle.dumps(traced)), fx.symbolic_trace(
            traced, concrete_args={"x": {"first": fx.PH, "parts": [fx.PH, fx.PH]}})):
        assert module(x, True, 4)["sum"].item() == 20 and module(x, True, 4)["tail"] is None
    assert fx.Interpreter(traced).run(x, True, 4, None)["sum"].item() == 20
    for wrong in ((x, False, 4), (x, True, 4, 5)):
        with pytest.raises(AssertionError):
            traced(*wrong)
    assert fx.symbolic_trace(lambda x, y: x + y, concrete_args=(fx.PH, 2))(1, 2) == 3
    with pytest.raises(RuntimeError):
        fx.symbolic_trace(lambda x, y: x + y, concrete_args=(2,))
    with pytest.warns(UserWarning, match="concrete_args"):
        fx.symbolic_trace(lambda x, y: x, concrete_args={"y": object()})


def test_any_number_of_inputs():
    def f(*args, **more):
        return args[0] + args[1] * len(args)

    tracer = fx.Tracer()
    graph = tracer.trace(f, concrete_args=(fx.PH, fx._symbolic_trace.PHWithMeta(ph_key="second"), fx.PH))
    assert [n.target for n in graph.nodes][:3] == ["input_0", "input_1", "input_2"]
    assert list(graph.nodes)[1].ph_key == "second" and fx.GraphModule(nn.Module(), graph)(1, 2, 3) == 7


def test_shapes_of_parameters():
    class Shaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, x):
            if self.weight.shape[0] > 1 and self.weight.dim() == self.weight.ndim and self.weight.size(1) == 3:
                return x + self.weight.numel()
            return x * self.weight

    tracer, net = fx.Tracer(param_shapes_constant=True), Shaped()
    assert fx.GraphModule(net, tracer.trace(net))(1) == 7
    with pytest.raises(fx.proxy.TraceError):
        fx.symbolic_trace(net)


def test_flags_of_tracers():
    class Asserting(fx.Tracer):
        trace_asserts = proxy_buffer_attributes = record_stack_traces = True

    net = Checked()
    graph = Asserting().trace(net)
    traced = fx.GraphModule(net, graph)
    assert named(graph) == ["x", "sum_1", "gt", "assert_fn", "shift", "add", "output"] and traced(torch.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(AssertionError):
        traced(-torch.ones(3))
    add = next(node for node in graph.nodes if node.name == "add")
    trace = add.stack_trace
    assert trace.endswith("y = x + self.shift") and traced_models.__file__ in trace and "proxy.py" not in trace
    assert "code: y = x + self.shift" in traced.print_readable(print_output=False)


def test_where_nodes_are_from():
    traced = fx.symbolic_trace(nn.Sequential(Net(), Net()))
    relu = [node for node in traced.graph.nodes if node.target == "relu"]
    assert [list(node.meta["nn_module_stack"]) for node in relu] == [["0"], ["1"]]
    assert relu[0].meta["nn_module_stack"]["0"] == ("0", Net)


def test_functions_that_write_can_be_refused():
    class Pure(fx.Tracer):
        check_mutable_operations = True

    for f in (lambda x, y: torch.sigmoid(x, out=y), lambda x, y: torch.relu_(x), lambda x, y: F.relu(x, inplace=True)):
        assert fx.symbolic_trace(f) is not None
        with pytest.raises(RuntimeError, match="change no argument"):
            Pure().trace(f)
    Pure().trace(lambda x, y: torch.sigmoid(x) & y)


def test_own_tracers_change_nodes():
    class Renaming(fx.Tracer):
        def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
            target = torch.sigmoid if target is torch.relu else target
            return super().create_node(kind, target, args, kwargs, name, type_expr)

        def to_bool(self, obj):
            return True

        def iter(self, obj):
            return iter([obj[0], obj[1]])

    graph = Renaming().trace(lambda x: sum(torch.relu(v) for v in x) if x.sum() > 0 else None)
    traced = fx.GraphModule(nn.Module(), graph)
    assert traced(torch.zeros(2)).item() == 1.0 and targets(graph).count(torch.sigmoid) == 2


def test_proxies():
    graph, other = fx.Graph(), fx.Graph()
    x, y = fx.Proxy(graph.placeholder("x")), fx.Proxy(other.placeholder("y"))
    assert repr(x.shape) == "Proxy(getattr_1)" and repr(x) == "Proxy(x)" and len({x, x}) == 1 and not hasattr(x, "__array__")
    a, b = x.split(2)
    assert repr(a(3)) == "Proxy(__call__)" or named(graph)[-1]
    z = fx.Proxy(graph.placeholder("z"))
    assert repr(x + z) == "Proxy(add)" and repr(3 - z) == "Proxy(sub)"
    with pytest.raises(RuntimeError, match="of one tracer"):
        torch.add(x, y)
    with pytest.raises(RuntimeError, match="keys of dicts"):
        x + {x: 1}
    with pytest.raises(NotImplementedError, match="arguments of nodes"):
        x + object()


def test_objects_made_of_proxies():
    from dataclasses import dataclass

    @dataclass
    class Pair:
        left: object
        right: object = 2

    traced = fx.symbolic_trace(lambda x: torch.add(x, 1).view(Pair(x, 3).right))
    assert targets(traced) == [torch.add] or Pair in targets(traced)
    graph = fx.Tracer().trace(lambda x: x.foo(Pair(x)))
    assert Pair in targets(graph) and graph.find_nodes(op="call_function", target=Pair)[0].kwargs["right"] == 2
