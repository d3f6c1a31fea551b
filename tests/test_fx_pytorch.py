"""Traces beside PyTorch's, node for node: what is called, under what name, with what, and the values and errors that come of it."""
import collections
import math
import operator
from importlib import import_module

import numpy as np
import pytest
from oracle import draw, same, tensor
from oracle import torch as pytorch

import tritorch

Pair = collections.namedtuple("Pair", "left right")
LIBS = tritorch, pytorch
# what PyTorch calls otherwise: functions of torch._C._nn, and by their names; its functions in Python add all their defaults to the call
OTHER = {"multiply": "mul", "true_divide": "div"}


def module(lib, forward, **members):
    """A module of a library with these members and this forward."""
    class Net(lib.nn.Module):
        pass

    Net.forward = forward
    net = Net()
    for name, value in members.items():
        net.register_buffer(name, value) if isinstance(value, lib.Tensor) and not isinstance(value, lib.nn.Parameter) else setattr(
            net, name, value)
    return net


def mlp(lib):
    return lib.nn.Sequential(lib.nn.Linear(4, 8), lib.nn.ReLU(), lib.nn.Sequential(lib.nn.Dropout(0.0), lib.nn.Linear(8, 4)))


def resnet_block(lib):
    nn = lib.nn

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x if self.down is None else self.down(x)
        return self.relu(y)

    return module(lib, forward, conv1=nn.Conv2d(2, 2, 3, padding=1, bias=False), norm1=nn.BatchNorm2d(2), conv2=nn.Conv2d(2, 2, 1),
                  norm2=nn.BatchNorm2d(2), relu=nn.ReLU(), down=nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)))


def transformer_layer(lib):
    nn, F = lib.nn, lib.nn.functional

    def forward(self, x):
        B, T, C = x.size(0), x.size(1), 4
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, 2, C // 2).permute(2, 0, 3, 1, 4).unbind(0)
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)
        x = x + self.project(read) * self.scale
        return x + self.down(F.gelu(self.up(self.norm(x))))

    return module(lib, forward, norm=nn.LayerNorm(4), qkv=nn.Linear(4, 12), project=nn.Linear(4, 4), up=nn.Linear(4, 8),
                  down=nn.Linear(8, 4), scale=nn.Parameter(lib.ones(4)))


def members(lib):
    constant = lib.ones(4)

    def forward(self, x, y=2.0):
        x = self.buffer * x + self.weight
        x = self.buffer - x + constant
        x = x + self.layers[0](x) + self.layers[1](x) / y
        return x @ self.weight, self.plain

    net = module(lib, forward, buffer=lib.ones(4), weight=lib.nn.Parameter(lib.ones(4)), layers=lib.nn.ModuleList(
        [lib.nn.Linear(4, 4), lib.nn.Tanh()]))
    net.plain = 7
    return net


def functions(lib):
    F = lib.nn.functional

    def forward(self, x):
        x = F.relu(x) + lib.relu(x) + x.relu()
        x = F.softmax(x, dim=-1) + F.log_softmax(x, dim=-1) + F.layer_norm(x, (4,)) + F.gelu(x) + F.silu(x)
        x = lib.cat([x, x], dim=1)[:, 1:5] + lib.stack((x, x)).sum(0)
        x = lib.where(x > 0, x, lib.zeros_like(x)).clamp(min=0.1, max=2.0)
        x = F.linear(x, self.weight) + F.pad(x, (1, 1))[:, 1:-1]
        return lib.einsum("ij,kj->ik", x, x), lib.max(x, dim=1), F.mse_loss(x, x * 2), lib.flatten(x, 0)

    return module(lib, forward, weight=lib.nn.Parameter(lib.ones(4, 4)))


def methods(lib):
    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        y = a.unsqueeze(1) * b[..., None] + x.T.shape[0]
        z = y.view(y.size(0), -1).to(lib.float64).float().contiguous()
        z.add_(1)
        return {"z": z.mean(-1, keepdim=True), "all": [x.dtype, (z.masked_fill(z > 0, 0.0), z.argmax(dim=1))], "n": x.new_zeros(2, 3)}

    return module(lib, forward)


def operators(lib):
    def forward(self, x):
        y = abs(-x) + 1 - 2 * x / 3
        y = (y ** 2) // 0.5 + 2 ** x % 3 - (1 - y) / (2 + x) + (3 // (y + 10)) + (+y)
        b = (x > 0) & ~(x >= 1) | (x == 0) ^ (x != 2)
        return y @ x.mT, b, x <= 0, x < y, (y[0], y[:, 1], y[None, ..., ::2]), 2 @ x if False else x

    return module(lib, forward)


def signature(lib):
    def forward(self, x, *rest, scale=2.0, **options):
        return x * scale + rest[0] + options["bias"]

    return module(lib, forward)


def twice(lib):
    def forward(self, x):
        return self.layer(self.layer(x)) + self.same(x)

    layer = lib.nn.Linear(4, 4)
    return module(lib, forward, layer=layer, same=layer)


def containers(lib):
    def forward(self, x):
        return Pair(x, [x + 1]), math.sqrt(x.sum()), {"k": (slice(x.size(0)), None, ...)}

    return module(lib, forward)


MODELS = [mlp, resnet_block, transformer_layer, members, functions, methods, operators, signature, twice, containers]


def line(node):
    target = node.target if isinstance(node.target, str) else node.target.__name__
    if node.op == "call_function" and node.target is getattr:
        target = f"getattr {node.args[1]}"
    return node.op, node.name, OTHER.get(target, target), [n.name for n in node.all_input_nodes], len(node.users)


@pytest.mark.parametrize("model", MODELS, ids=lambda f: f.__name__)
def test_graphs(model):
    ours, theirs = [[line(node) for node in lib.fx.symbolic_trace(model(lib)).graph.nodes] for lib in LIBS]
    assert ours == theirs


@pytest.mark.parametrize("model", [mlp, resnet_block, transformer_layer, members, functions, methods, operators])
def test_values(model):
    nets = [model(lib) for lib in LIBS]
    nets[0].load_state_dict({name: tritorch.tensor(value.numpy()) for name, value in nets[1].state_dict().items()})
    x = draw(2, 2, 4, 4) if model is resnet_block else draw(2, 3, 4) if model is transformer_layer else draw(4, 4)
    ours, theirs = [lib.fx.symbolic_trace(net)(tensor(lib, x)) for lib, net in zip(LIBS, nets)]
    same(_flat(ours), _flat(theirs), rtol=2e-5, atol=2e-5)


def _flat(x):
    if isinstance(x, dict):
        x = list(x.values())
    return [y for part in x for y in _flat(part)] if isinstance(x, (list, tuple)) else [x]


# ------------------------------------------------------------------ what cannot be traced
def condition(lib, x):
    return x if x.sum() > 0 else -x


def loop(lib, x):
    return [row + 1 for row in x]


def spread(lib, x):
    return lib.cat([*x])


def length(lib, x):
    return len(x)


def number(lib, x):
    return int(x)


def assigned(lib, x):
    x[0] = 1
    return x


def indexed(lib, x):
    return [1, 2, 3][x]


def key(lib, x):
    return x + {x: 1}


def asserted(lib, x):
    assert x.sum() > 0
    return x


def contained(lib, x):
    return 1 in x


def ranged(lib, x):
    return sum(range(x.size(0)))


def keywords(lib, x):
    return dict(**x)


def of_x(program, lib):
    return lambda x: program(lib, x)


@pytest.mark.parametrize("program", [condition, loop, spread, length, number, assigned, indexed, key, asserted, contained, ranged,
                                     keywords])
def test_what_is_no_graph(program):
    errors = []
    for lib in LIBS:
        with pytest.raises(Exception) as caught:
            lib.fx.symbolic_trace(of_x(program, lib))
        errors.append(next(kind.__name__ for kind in type(caught.value).__mro__))
    assert errors[0] == errors[1]


# ------------------------------------------------------------------ text and passes
def test_code_and_tables():
    """The text of graphs and modules, but for names of functions."""
    def forward(self, x, y: int = 3):
        return (self.weight + x[0].sum(dim=-1, keepdim=True), [y, None, x.size()])

    ours, theirs = [lib.fx.symbolic_trace(module(lib, forward, weight=lib.nn.Parameter(lib.ones(2)))) for lib in LIBS]
    for text in (lambda g: g.code, lambda g: str(g.graph), lambda g: g.print_readable(print_output=False).replace("\n\n", "\n"), str):
        lines = [line for line in text(theirs).split("\n") if not line.lstrip().startswith("#")]
        assert text(ours).replace("tritorch", "torch").split() == "\n".join(lines).split()


@pytest.mark.parametrize("way", [{}, {"keep_original_order": True}, {"partition_affix": "p"}, {"tuple_return": True},
                                 {"keep_original_input_name": False}, {"keep_original_node_name": True}], ids=str)
def test_split_module(way):
    def forward(self, x, y):
        a = self.layer(x) + self.weight
        b = lib_relu(a) * y
        return a - b, self.layer.weight + 1

    found = []
    for lib in LIBS:
        lib_relu = lib.relu
        net = module(lib, forward, layer=lib.nn.Linear(2, 2), weight=lib.nn.Parameter(lib.ones(2)))
        split_module = import_module(f"{lib.__name__}.fx.passes.split_module").split_module
        names, parts = {}, {"layer": 0, "add": 1, "add_1": 3}
        split = split_module(lib.fx.symbolic_trace(net), net, lambda node, parts=parts: parts.get(node.name, 2), names, **way)
        graphs = [split.graph, *[child.graph for name, child in sorted(split.named_children()) if name.startswith("submod")]]
        found.append(([[line(node) for node in graph.nodes] for graph in graphs], names))
    assert found[0] == found[1]


def test_replaced_patterns():
    def program(lib, x, w1, w2):
        m1, m2 = lib.cat([w1, w2]).sum(), lib.cat([w2, w1]).sum()
        return x + lib.max(m1) + lib.max(m2) + lib.nn.functional.relu(x) * 2 + lib.relu(x + x)

    found = []
    for lib in LIBS:
        traced = lib.fx.symbolic_trace(lambda x, w1, w2: program(lib, x, w1, w2))             # noqa: B023 (traced in this round)
        counts = [len(lib.fx.replace_pattern(traced, before, after)) for before, after in (
            (lambda a, b: lib.cat([a, b]).sum(), lambda a, b: lib.stack([a, b]).sum()),
            (lambda a: lib.nn.functional.relu(a), lambda a: a.clamp(min=0)), (lambda a, b: a + b, lambda a, b: lib.add(a, b)),
            (lambda a: lib.relu(a) * 3, lambda a: a))]
        traced.graph.lint()
        found.append((counts, [line(node) for node in traced.graph.nodes],
                      traced(*[tensor(lib, np.float32(v)) for v in ([1.0, -2.0], [3.0], [4.0])]).tolist()))
    assert found[0] == found[1]


def test_fused():
    def forward(self, x):
        return self.norm2(self.fc(self.norm(self.conv(x)).mean((2, 3)))) + self.norm(self.conv(x)).sum()

    found = []
    for lib in LIBS:
        net = module(lib, forward, conv=lib.nn.Conv2d(1, 2, 3), norm=lib.nn.BatchNorm2d(2), fc=lib.nn.Linear(2, 2),
                     norm2=lib.nn.BatchNorm1d(2)).eval()
        fused = import_module(f"{lib.__name__}.fx.experimental.optimization").fuse(net)
        found.append([line(node) for node in fused.graph.nodes])
    assert found[0] == found[1]


def test_nodes_changed():
    """The same changes to the same graph."""
    found = []
    for lib in LIBS:
        graph = lib.fx.Graph()
        x, y = graph.placeholder("x"), graph.placeholder("y", default_value=3)
        a = graph.call_function(operator.add, (x, y))
        b = graph.create_node("call_method", "view", (a, -1), name="add")
        graph.output([b, a])
        with graph.inserting_before(a):
            c = graph.call_function(operator.mul, (x, 2))
            d = graph.call_module("some.layer", (c,))
        with graph.inserting_after(b):
            graph.call_function(lib.relu, ([b],), {"k": {"n": c}})
        a.update_arg(1, d)
        a.insert_arg(0, c)
        b.replace_all_uses_with(d, lambda user: user.op == "output")
        c.append(b)
        d.prepend(y)
        a.replace_input_with(c, x)
        found.append(([line(node) for node in graph.nodes], [line(node) for node in reversed(graph.nodes)], sorted(map(str, x.users)),
                      a < b, b < c, [n.name for n in graph.find_nodes(op="placeholder")], str(a.args), a.format_node()))
    assert found[0] == found[1]
