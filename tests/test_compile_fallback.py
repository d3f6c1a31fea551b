"""tritorch.compile: what no CUDA graph can hold runs eagerly, once, with a warning that names it; errors leave what eager ones leave."""
import collections
import contextlib
import inspect
import random
import threading
import warnings

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn
from tritorch.cuda import driver


def item(x):
    return x * x.sum().item()


def cpu(x):
    return x + x.cpu().sum().to("cuda")


def branch(x):
    return x + 1 if x.sum() > 0 else x - 1


def shown(x):
    assert str(x)
    return x + 1


def nonzero(x):
    return x.nonzero().sum() + x


def masked(x):
    return x[x > 0] * 2


def waits(x):
    torch.cuda.synchronize()
    return x * 2


def cpu_tensor(x):
    return x * torch.tensor(2.0)


def constant(x):
    return x * torch.tensor([2.0, 3.0], device="cuda")


def counter(x, count=[0]):                                               # noqa: B006
    count[0] += 1
    return x + count[0]


def reseeded(x):
    torch.cuda.manual_seed(3)
    return x + torch.rand(2, device="cuda")


@torch.compiler.disable
def disabled(x):
    return x + 1


def partly(x):
    return disabled(x * 2)


def python_numbers(x):
    return x + random.random()


def numpy_numbers(x):
    return x + np.random.rand()


def opaque(x):
    return slice(x + 1, None)


def on_cpu(x):
    return x + 1, torch.ones(2)


NUMBER, KEPT, WINDOW = torch.tensor(2.0), [], collections.deque(maxlen=3)


def number_of_cpu(x):
    return x * NUMBER.item()


def list_of_cpu(x):
    return x * NUMBER.tolist()


def array_of_cpu(x):
    return x * float(NUMBER.numpy())


def appended(x):
    KEPT.append(x * 2)
    return x + 1


def rolled(x):
    WINDOW.append(x * 2)
    return x + WINDOW[0]


DRAWS = "random numbers that Python or numpy draws"
CASES = [(item, "item", "x.sum().item()"), (cpu, "cpu_", "x.cpu()"), (branch, "item", "if x.sum()"), (shown, "tensor_repr", "str(x)"),
         (nonzero, "nonzero", "x.nonzero()"), (masked, "getitem", "x[x > 0]"), (waits, "synchronize", "torch.cuda.synchronize()"),
         (cpu_tensor, "mul", "torch.tensor(2.0)"), (constant, "tensor", "torch.tensor([2.0"), (counter, "add", "x + count[0]"),
         (reseeded, "manual_seed", "torch.cuda.manual_seed"), (partly, "disabled, which compiler.disable keeps out,", "x * 2"),
         (python_numbers, DRAWS, None), (numpy_numbers, DRAWS, None), (opaque, "a result of type slice", None),
         (on_cpu, "ones", "torch.ones(2)"), (number_of_cpu, "item", "NUMBER.item()"), (list_of_cpu, "tolist", "NUMBER.tolist()"),
         (array_of_cpu, "numpy", "NUMBER.numpy()"), (appended, "'KEPT' of appended, a list that goes on in every call", None),
         (rolled, "add", "WINDOW[0]")]


def values(x):
    return x.tolist() if isinstance(x, torch.Tensor) else [y.tolist() for y in x] if isinstance(x, tuple) else x.start.tolist()


@pytest.mark.parametrize("function, named, text", CASES, ids=[c[0].__name__ for c in CASES])
def test_it_stays_eager_and_says_why(cuda, function, named, text):
    def calls(step, count=10):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        counter.__defaults__[0][0] = 0
        return [values(step(torch.tensor([1.0, 2.0], device=cuda))) for _ in range(count)]

    step, expected = torch.compile(function), calls(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert calls(step) == expected
    (warning,) = [str(w.message) for w in caught]
    if text is not None:
        lines, first = inspect.getsourcelines(function)
        (place,) = [first + k for k, code in enumerate(lines) if text in code]
        named = f"{named} at {__file__}:{place}"
    assert f"compile: {function.__name__} runs eagerly, because a CUDA graph cannot hold {named}" in warning
    assert warning.rpartition(" hold ")[2] in step.report()
    with pytest.raises(torch.compiler.Unsupported, match="fullgraph=True"):
        calls(torch.compile(function, fullgraph=True))


def test_what_the_first_call_alone_sets_up_is_no_reason(cuda):
    """A table computed on the CPU, a look at the first values: later calls, which do neither, are captured."""
    class Layer(nn.Module):
        table = bound = None

        def forward(self, x):
            if self.table is None:
                self.table, self.bound = (torch.arange(3) / 3).cos().to(x.device), x.abs().max().item()
            return x * self.table / self.bound

    once, plain = torch.compile(Layer()), Layer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(1, 6):
            x = torch.full((2, 3), float(k), device=cuda)
            np.testing.assert_array_equal(once(x).cpu().numpy(), plain(x).cpu().numpy())
    assert "is replayed" in once.report()
    with pytest.raises(torch.compiler.Unsupported, match="arange|item"):
        torch.compile(Layer(), fullgraph=True)(x)


def test_schedules_and_optimizers_that_count_on_the_host_stay_eager(cuda):
    def train(compile, make, schedule_inside):
        model = nn.Linear(2, 1, bias=False).cuda()
        nn.init.ones_(model.weight)
        optimizer = make(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        @compile
        def step(x):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if schedule_inside:
                schedule.step()

        for _ in range(6):
            step(torch.ones(1, 2, device=cuda))
        return model.weight.tolist()

    for make, inside in [(torch.optim.SGD, True), (torch.optim.Adafactor, False), (torch.optim.Muon, False)]:
        expected = train(lambda f: f, make, inside)
        with pytest.warns(UserWarning, match="step at .*on the host|step at .*that the host"):
            assert train(torch.compile, make, inside) == expected


def test_grad_scaler_with_an_optimizer_that_asks_the_host(cuda):
    weight = nn.Parameter(torch.ones(2, device=cuda))
    optimizer, scaler = torch.optim.Adafactor([weight]), torch.amp.GradScaler("cuda", init_scale=4.0)

    @torch.compile
    def step(x):
        optimizer.zero_grad()
        scaler.scale((weight * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    with pytest.warns(UserWarning, match="step at .*copy to the host"):
        for k in range(3):
            step(torch.full((2,), float("inf") if k == 1 else 1.0, device=cuda))
    assert optimizer.state[weight]["step"].item() == 2 and scaler.get_scale() == 2 and weight.isfinite().all().item()


def test_grad_scaler_with_a_dampened_first_step(cuda):
    """The host asks whether that step counts, until one does; what comes behind is captured."""
    def train(compile):
        weight = nn.Parameter(torch.ones(2, device=cuda))
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, dampening=0.25)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0)

        @compile
        def step(x):
            optimizer.zero_grad()
            scaler.scale((weight * x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        for k in range(9):
            step(torch.full((2,), float("inf") if k in (0, 1, 2, 7) else 1.0, device=cuda))
        assert compile is not torch.compile or "is replayed" in step.report()
        return [*weight.tolist(), *optimizer.state[weight]["momentum_buffer"].tolist(), scaler.get_scale()]

    assert train(torch.compile) == train(lambda f: f)


def test_memory_that_the_call_before_made(cuda):
    class Recurrent:
        hidden = torch.zeros(2, device=cuda)

        def step(self, x):
            self.hidden = self.hidden * 2 + x
            return self.hidden

    net = Recurrent()
    step, x, expected = torch.compile(net.step), torch.ones(2, device=cuda), 0
    with pytest.warns(UserWarning, match="mul at .*memory that an earlier call made"):
        for _ in range(12):                                              # it is tried three times
            expected = 2 * expected + 1
            assert step(x).tolist() == [expected] * 2


def test_work_that_turns_up_during_the_capture(cuda):
    calls, total = [], torch.zeros(2, device=cuda)

    @torch.compile
    def step(x):
        calls.append(None)
        total.add_(x)
        y = torch.rand(2, device=cuda)
        if len(calls) == 3:                                              # the call that is captured
            assert y.sum().item() == y.cpu().sum().item()
        total.add_(y)
        return total * 2

    def eager(x):
        total.add_(x)
        total.add_(torch.rand(2, device=cuda))
        return total * 2

    x = torch.ones(2, device=cuda)
    torch.manual_seed(0)
    expected = [eager(x).tolist() for _ in range(6)]
    total.zero_()
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="item at"):
        assert [step(x).tolist() for _ in range(6)] == expected
    assert len(calls) == 6


def test_an_error_leaves_what_an_eager_one_leaves(cuda):
    for failing in range(1, 6):
        total, calls, count = torch.zeros(2, device=cuda), [], [0]

        @torch.compile
        def step(x):
            total.add_(x)
            calls.append(None)
            if calls and len(calls) == failing:
                raise KeyError("stop")
            total.mul_(2)
            return total.clone()

        expected = 0
        for _ in range(6):
            expected += 1
            with contextlib.suppress(KeyError) if len(calls) + 1 == failing else contextlib.nullcontext():
                step(torch.ones(2, device=cuda))
                expected *= 2
            assert total.tolist() == [expected] * 2 and not torch.cuda.is_current_stream_capturing()
        assert len(calls) < 6 if failing < 4 else len(calls) == 3, (failing, len(calls), count)


def test_a_capture_that_the_driver_refuses_runs_eagerly(monkeypatch):
    with torch.cuda.simulate() as device:
        total = torch.zeros(2, device="cuda")
        total.grad = None

        @torch.compile
        def step(x):
            total.add_(x)

        def refuse(graph):
            raise driver.DriverError("no such luck")

        monkeypatch.setattr(device, "graph_instantiate", refuse)
        with pytest.warns(UserWarning, match="no such luck"):
            for k in range(6):
                step(torch.ones(2, device="cuda"))
                assert total.tolist() == [k + 1] * 2


def test_calls_inside_of_other_captures_are_part_of_them(cuda):
    inner, outer = torch.compile(lambda x: x + 1), []
    compiled, x = torch.compile(lambda x: inner(x) * 2), torch.ones(2, device=cuda)
    for _ in range(5):
        outer.append(compiled(x).tolist())
    assert outer == [[4, 4]] * 5 and not inner.kinds
    inner(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = inner(x)
    graph.replay()
    assert y.tolist() == [2, 2]


def test_tensors_of_the_cpu_run_eagerly(cuda):
    step = torch.compile(lambda x: x.sum().item())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [step(torch.ones(3)) for _ in range(5)] == [3.0] * 5


def test_interpreters_of_the_user_see_every_call(cuda):
    seen = []

    class Log(torch.dispatch.Interpreter):
        def __call__(self, op, args, out):
            seen.append(op.__name__)
            return self.proceed(op, args, out)

    step, x = torch.compile(lambda x: x * 3), torch.ones(2, device=cuda)
    for _ in range(4):
        step(x)
    with Log():
        y = step(x)
    assert y.tolist() == [3, 3]
    assert seen == ["mul"]


def test_threads_call_one_after_the_other(cuda):
    step, wrong = torch.compile(lambda x: (x * 2).cumsum(0)), []

    def work(k):
        x = torch.full((4,), float(k), device=cuda)
        wrong.extend(k for _ in range(5) if step(x).tolist() != [2 * k, 4 * k, 6 * k, 8 * k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
