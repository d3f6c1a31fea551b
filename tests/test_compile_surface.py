"""The names around tritorch.compile, and the forms in which it takes functions."""
import copy
import functools
import gc
import pickle

import pytest
from test_compile import both, captured, kinds, same, state_of

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F
from tritorch.utils.checkpoint import checkpoint


def test_arguments_of_compile(cuda):
    def f(x):
        return x + 1

    assert torch.compile(f, disable=True) is f and torch.compile(disable=True)(f) is f
    for made in (torch.compile(f), torch.compile(fullgraph=True, dynamic=True, mode="reduce-overhead", backend="inductor")(f)):
        assert made.__name__ == "f" and made.__wrapped__ is f
        for k in range(4):
            assert made(torch.full((2,), float(k), device=cuda)).tolist() == [k + 1] * 2
        assert captured(made) == 1
    with pytest.raises(ValueError, match="mode None, 'default'"):
        torch.compile(f, mode="fast")
    with pytest.raises(ValueError, match="options among"):
        torch.compile(f, options={"triton.cudagraphs": True})
    with pytest.raises(TypeError, match="a function or a module, got int"):
        torch.compile(3)
    assert torch.compiler.list_backends() == ["cudagraph"]


def test_is_compiling_and_reset(cuda):
    seen = []

    @torch.compile
    def f(x):
        seen.append((torch.compiler.is_compiling(), torch.cuda.is_current_stream_capturing()))
        return x * 2

    x = torch.ones(2, device=cuda)
    for _ in range(5):
        f(x)
    assert seen == [(True, False), (True, False), (True, True)] and not torch.compiler.is_compiling()
    assert captured(f) == 1
    torch.compiler.reset()
    assert not kinds(f) and f(x).tolist() == [2, 2] and len(seen) == 4


def test_methods_partial_functions_and_objects(cuda):
    class Trainer:
        def __init__(self, factor):
            self.weight, self.factor = torch.zeros(2, device=cuda), factor

        @torch.compile
        def decorated(self, x):
            self.weight.add_(x * self.factor)

        def plain(self, x):
            self.weight.add_(x * self.factor)

        def __call__(self, x):
            self.plain(x)

    x = torch.ones(2, device=cuda)
    first, second = Trainer(1), Trainer(10)
    for _ in range(5):
        first.decorated(x), second.decorated(x)
    assert first.weight.tolist() == [5, 5] and second.weight.tolist() == [50, 50] and captured(Trainer.decorated) == 2
    trainer = Trainer(1)
    step = torch.compile(trainer.plain)
    for k in range(10):
        if k == 5:
            trainer.factor = 2                                           # a plain attribute of the object
        step(x)
    assert trainer.weight.tolist() == [15, 15] and captured(step) == 2
    for function in functools.partial(Trainer.plain, Trainer(1)), Trainer(1):
        step = torch.compile(function)
        for _ in range(5):
            step(x)
        assert captured(step) == 1
        assert getattr(function, "args", [function])[0].weight.tolist() == [5, 5]


def test_variables_of_enclosing_functions(cuda):
    factor, mask = 1.0, torch.ones(2, device=cuda)

    @torch.compile
    def g(x):
        return x * factor * mask

    for k in range(12):
        if k == 4:
            factor = 3.0
        if k == 8:
            mask = torch.full((2,), 5.0, device=cuda)
        assert g(torch.ones(2, device=cuda)).tolist() == [factor * (5 if k >= 8 else 1)] * 2
    assert captured(g) == 3


def train(compile):
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

    def part(layer, x):
        return F.dropout(layer(x).relu(), 0.5)

    @compile
    def step(x):
        x = F.dropout(x, 0.2)
        for k, layer in enumerate(layers):
            x = checkpoint(part, layer, x, use_reentrant=k == 2)
        loss = F.dropout(x, 0.2).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    torch.manual_seed(1)
    losses = [step(torch.randn(3, 4, device="cuda")) for _ in range(7)]
    if compile is torch.compile:
        assert captured(step) == 1
    return [*state_of(layers, *losses), torch.cuda.get_rng_state().numpy()]


def test_checkpoints_draw_the_same_numbers_twice(cuda):
    both(train)


def test_copies_start_anew(cuda):
    model, x = torch.compile(nn.Linear(2, 2).cuda()), torch.ones(1, 2, device=cuda)
    for _ in range(4):
        model(x).sum().backward()
    other = copy.deepcopy(model)
    nn.init.ones_(other.weight), nn.init.zeros_(other.bias)
    assert other(x).tolist() == [[2, 2]] and other.compiled.function is other._orig_mod and captured(other.compiled) == 0
    assert list(pickle.loads(pickle.dumps(other)).state_dict()) == list(model.state_dict())


def test_cpu_arguments_make_no_kinds(cuda):
    f = torch.compile(lambda x: x + 1, options={"cache_size_limit": 1})
    for n in range(4):
        assert f(torch.zeros(n)).tolist() == [1] * n
    assert not f.kinds and not f.warned
    with pytest.warns(UserWarning, match="arguments that are not on the current CUDA device"):
        torch.compile(lambda x, y: x.sum().item() + y)(torch.zeros(2), torch.zeros(2, device=cuda))


def test_recordings_are_few(cuda):
    model, x = nn.Linear(2, 2).cuda(), torch.ones(2, 2, device=cuda)
    f = torch.compile(model.forward, options={"cache_size_limit": 2})
    with torch.no_grad():
        for k in range(12):
            if k % 3 == 0:
                model.weight.data = torch.full((2, 2), float(k), device=cuda)
            assert torch.equal(f(x), model(x))
    assert captured(f) <= 2


def test_a_pool_serves_all_kinds():
    with torch.cuda.simulate():
        gc.collect()
        f = torch.compile(lambda x: ((x * 2).sin() + 1).cos())
        for n in (1 << 12, 1 << 13, 1 << 14):
            for _ in range(4):
                f(torch.ones(n, device="cuda"))
        segments = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] == f.pool]
        assert captured(f) == 3 and len(segments) == 1


def test_what_a_step_leaves_is_there_for_other_streams(cuda):
    total = torch.zeros(2, device=cuda)
    step = torch.compile(lambda x: total.add_(x).clone())
    for k in range(6):
        y = step(torch.ones(2, device=cuda))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert (y * 2).tolist() == [2 * k + 2] * 2


def test_parameters_that_a_replay_wrote_are_newer_than_what_was_saved_or_read_of_them(cuda):
    layers, x = [nn.Linear(2, 2).cuda() for _ in range(2)], torch.ones(1, 2, device=cuda)

    def stepping(layer):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        @torch.compile
        def step(x):
            optimizer.zero_grad()
            layer(x).sum().backward()
            optimizer.step()

        for _ in range(8):                                               # the last ones with nobody in between
            step(x)
        assert captured(step) == 1
        return step

    steps = [stepping(layer) for layer in layers]
    for replays in (1, 2, 3, 5):
        for step, layer in zip(steps, layers):
            loss = (layer.weight * layer.weight).sum()
            version = layer.weight._version
            for _ in range(replays):
                step(x)
                steps[1](x)
            assert layer.weight._version > version
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            loss = (layer.weight * layer.weight).sum()                   # what is saved after a replay is as it was
            layer.weight.grad = None
            loss.backward()
            assert torch.equal(layer.weight.grad, 2 * layer.weight)
            for _ in range(3):
                step(x)
            again = layer.weight._version
            step(x)
            assert layer.weight._version > again                         # a look at the number is a look too


def test_an_optimizer_of_ones_own_whose_only_option_is_a_tensor(cuda):
    class Descent(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad * group["lr"])

    def train(compile):
        w, rate = torch.ones(3, device=cuda, requires_grad=True), torch.tensor(0.5, device=cuda)
        optimizer = Descent([w], {"lr": rate})

        @compile
        def step(x):
            optimizer.zero_grad()
            (w * w * x).sum().backward()
            optimizer.step()

        for k in range(6):
            rate.fill_(0.5 / (k + 1))
            step(torch.full((3,), float(k), device=cuda))
        assert compile is not torch.compile or captured(step) == 1
        return state_of(nn.Module(), w)

    both(train)


def test_state_of_optimizers_that_is_thrown_away(cuda):
    def train(compile):
        weights = [torch.full((2,), float(k), device=cuda, requires_grad=True) for k in range(3)]
        optimizer, seen = torch.optim.Adam(weights, lr=0.1, capturable=True), []

        @compile
        def step():
            optimizer.zero_grad()
            sum((w * w * w).sum() for w in weights).backward()
            optimizer.step()

        for k in range(24):
            if k == 6:
                optimizer.state.clear()
            elif k in (10, 14):                                          # the one in the middle, the last one
                del optimizer.state[weights[k == 14]]
            elif k == 18:                                                # as for a parameter that is cut: its state is put back
                kept = optimizer.state.pop(weights[1])
                optimizer.state[weights[1]] = {name: value.clone().zero_() for name, value in kept.items()}
            step()
            seen += state_of(nn.ParameterList(weights))
        return seen, step

    eager, _ = train(lambda f: f)
    compiled, step = train(torch.compile)
    same(compiled, eager)
    assert captured(step) > 1


def test_a_class_stays_what_it_is():
    @torch.compile
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0] and issubclass(Double, torch.autograd.Function)


def test_settings_of_pytorchs_compiler_are_accepted(recwarn):
    import tritorch._dynamo.config as dynamo
    import tritorch._inductor.config as inductor

    dynamo.suppress_errors = inductor.coordinate_descent_tuning = True
    assert torch._inductor.config is inductor and torch._dynamo.config.suppress_errors
    x = torch.ones(2)
    torch._dynamo.mark_dynamic(x, 0), torch._dynamo.maybe_mark_dynamic(x, 0), torch._dynamo.mark_static(x), torch._dynamo.graph_break()
    assert torch._dynamo.disable(lambda: 3)() == 3 and not torch._dynamo.is_compiling() and torch._dynamo.reset() is None
    del dynamo.suppress_errors, inductor.coordinate_descent_tuning


def test_the_report_of_every_kind_of_calls(cuda):
    """Word for word: shapes, operators that have work on the device (views have none), and why calls are eager."""
    def f(x, host):
        y = torch.relu(x.view(-1) * 2 + 1)
        return float(y.sum()) if host else y[1:]

    f.__qualname__ = "f"
    step = torch.compile(f)
    with torch.no_grad():
        step(torch.ones(2, 4, device=cuda), False)
        assert step.report() == "f: 1 kinds of calls\n1. (float32[2, 4]) is being warmed up"
        for _ in range(4):
            step(torch.ones(2, 4, device=cuda), False)
        with pytest.warns(UserWarning, match="copy to the host"):
            for _ in range(3):
                step(torch.ones(3, device=cuda), True)
    name, *lines = step.report().split("\n")
    assert name == "f: 2 kinds of calls" and lines[:4] == [
        "1. (float32[2, 4]) is replayed: 3 operators in one CUDA graph", "       1 × mul", "       1 × add", "       1 × relu"]
    (last,) = lines[4:]
    assert last.startswith("2. (float32[3]) runs eagerly: ") and "(copy to the host)" in last


def test_the_report_calls_operators_by_pytorchs_names(cuda):
    table, places = torch.ones(5, 3, device=cuda), torch.tensor([0, 4], device=cuda)
    step = torch.compile(lambda places: torch.nn.functional.embedding(places, table) / 2)
    for _ in range(5):
        step(places)
    assert step.report().split("\n")[2:] == ["       1 × embedding", "       1 × div"]
