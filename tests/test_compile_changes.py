"""tritorch.compile: what a program changes between calls, in its optimizer, its parameters and their wish for gradients."""
import copy
import warnings

import pytest

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F


def eager(function):
    return function


@pytest.mark.parametrize("call, fullgraph", [(1, False), (2, True), (3, True), (4, False)])
def test_state_that_is_loaded_between_the_first_calls(cuda, call, fullgraph):
    """The warm-up calls and the captured one find other tensors: the warm-up begins anew, and nothing stays eager for it."""
    def trained(compile):
        torch.manual_seed(0)
        model = nn.Linear(4, 4).to(cuda)
        optimizer = torch.optim.ASGD(model.parameters())                 # counts with the learning rate, in float64

        @compile
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        for k in range(9):
            if k == call:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            step(torch.full((3, 4), 0.1 * k, device=cuda))
        if compile is not eager:
            assert "is replayed" in step.report()
        return [x.tolist() for state in optimizer.state_dict()["state"].values() for x in state.values()], model.weight.tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(torch.compile(fullgraph=fullgraph)) == trained(eager)


@pytest.mark.parametrize("kinds", ["numbers", "tensors", "number and tensor", "tensor and number"])
def test_a_learning_rate_that_is_replaced(cuda, kinds):
    def trained(compile):
        w, both = torch.ones(3, device=cuda, requires_grad=True), kinds.split(" and ") * 2
        first, second = [torch.tensor(lr, device=cuda) if "tensor" in kind else lr for lr, kind in zip((0.1, 0.05), both)]
        optimizer = torch.optim.AdamW([w], lr=first, capturable=True)

        @compile
        def step(x):
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()

        seen = []
        for k in range(12):
            if k in (5, 9):
                optimizer.param_groups[0]["lr"] = second if k == 5 else first
            step(torch.full((3,), 1.0 + k, device=cuda))
            seen.append(w.tolist())
        return seen

    assert trained(torch.compile) == trained(eager)


LAYERS = {"product": lambda x, w: x @ w, "product of a view": lambda x, w: x @ w.t(), "row": lambda x, w: x + w[0],
          "expanded row": lambda x, w: x * w[1:2].expand(3, 4)}


@pytest.mark.parametrize("changes", [(3,), (6, 9)])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_weight_that_is_frozen_or_thawed(cuda, layer, frozen, changes):
    """The weight belongs to no module and comes first in the product, so that nothing else tells its gradients from none."""
    def trained(compile):
        torch.manual_seed(0)
        w, v = torch.randn(4, 4, device=cuda), torch.randn(4, 4, device=cuda, requires_grad=True)
        w.requires_grad_(not frozen)

        @compile
        def step(x):
            (LAYERS[layer](x, w) @ v).square().mean().backward()
            with torch.no_grad():
                for p in (w, v):
                    if p.grad is not None:
                        p -= 0.1 * p.grad
                        p.grad = None

        for k in range(12):
            if k in changes:
                w.requires_grad_(not w.requires_grad)
            step(torch.full((3, 4), 0.1 + 0.1 * k, device=cuda))
        assert compile is eager or "is replayed" in step.report()
        return w.tolist(), v.tolist()

    assert trained(torch.compile) == trained(eager)


def test_layers_that_are_thawed_one_by_one(cuda):
    def trained(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(cuda)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)
        model[:4].requires_grad_(False)

        @compile
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        for k in range(18):
            if k in (6, 12):
                model[4 - k // 3].requires_grad_(True)
            step(torch.full((3, 4), 0.1 * k, device=cuda))
        assert compile is eager or step.report().count("is replayed") == 3
        return [p.tolist() for p in model.parameters()]

    assert trained(torch.compile) == trained(eager)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_gradients_of_weights_behind_autocast(cuda, half):
    """Sums of float32 weights' gradients are not rounded to the half type, whether a graph makes them or the engine."""
    def gradient(compile):
        torch.manual_seed(0)
        layer = nn.Linear(12, 24).to(cuda)

        @compile
        def forward(x):
            with torch.autocast("cuda", dtype=half):
                return F.gelu(layer(x))

        for _ in range(6):
            layer.zero_grad()
            x, g = torch.randn(7, 12, device=cuda), torch.randn(7, 24, device=cuda)
            (forward(x).float() * g).sum().backward()
        assert compile is eager or "is replayed" in forward.report()
        assert not torch.equal(layer.weight.grad, layer.weight.grad.to(half).float())
        return layer.weight.grad.tolist(), layer.bias.grad.tolist()

    assert gradient(torch.compile) == gradient(eager)


def test_gradients_by_name_are_those_of_backward(cuda):
    weight = torch.randn(8, 8, device=cuda, requires_grad=True)

    def loss():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            cast = weight.to(torch.bfloat16)
            return cast, F.linear(torch.full((3, 8), 0.3, device=cuda), cast).float().square().sum()

    loss()[1].backward()
    cast, value = loss()
    rounded, whole = torch.autograd.grad(value, [cast, weight])          # who asks for the cast's gradient gets it in the cast's type
    assert rounded.dtype is torch.bfloat16 and torch.equal(whole, rounded.float())
    (alone,) = torch.autograd.grad(loss()[1], [weight])
    assert torch.equal(alone, weight.grad) and not torch.equal(alone, whole)


def fill(value):
    return lambda optimizer, ws: optimizer.state[ws[1]].update(momentum_buffer=torch.full((3,), value, device="cuda"))


def another_parameter(optimizer, ws):
    ws[2] = optimizer.param_groups[0]["params"][2] = torch.full((3,), 0.5, device="cuda", requires_grad=True)


KEPT = []


def keep_and_fill(optimizer, ws):
    KEPT.extend([value for w in ws for value in optimizer.state[w].values()])
    for w in ws:
        fill(0.0)(optimizer, [None, w])


CHANGES = {
    "one entry": lambda o, ws: o.state.__setitem__(ws[1], {}), "one tensor": fill(0.0),
    "what is in an entry": lambda o, ws: o.state[ws[1]].clear(),
    "a group": lambda o, ws: o.param_groups.__setitem__(0, {**o.param_groups[0], "momentum": 0.1}),
    "all groups": lambda o, ws: setattr(o, "param_groups", [{**o.param_groups[0], "lr": 0.01}]), "a parameter": another_parameter,
    "one tensor of all entries, the old ones of which live on": keep_and_fill,
    "the order": lambda o, ws: o.param_groups[0]["params"].reverse(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_replaced_inside_an_optimizer(cuda, what):
    def trained(compile):
        ws = [torch.ones(3, device=cuda, requires_grad=True) for _ in range(3)]
        optimizer, seen = torch.optim.SGD(ws, lr=0.1, momentum=0.9), []

        @compile
        def step(x):
            optimizer.zero_grad()
            sum((w * x).square().sum() for w in ws).backward()
            optimizer.step()

        for k in range(12):
            if k == 6:
                CHANGES[what](optimizer, ws)
            step(torch.full((3,), 0.1 + 0.1 * k, device=cuda))
            seen.append([w.tolist() for w in ws])
        assert compile is eager or "is replayed" in step.report()
        return seen

    assert trained(torch.compile) == trained(eager)


LOOKS = {"returned": lambda o, s: o.param_groups[0]["lr"], "asked of the schedule": lambda o, s: s.get_last_lr()[0]}


@pytest.mark.parametrize("look", LOOKS)
def test_a_learning_rate_that_the_call_looks_at(cuda, look):
    def trained(compile):
        w = torch.ones(3, device=cuda, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)

        @compile
        def step(x):
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()
            return x * 2, LOOKS[look](optimizer, schedule)

        seen = []
        for _ in range(14):
            seen.append((step(torch.ones(3, device=cuda))[1], w.tolist()))
            schedule.step()
        assert compile is eager or "is replayed" in step.report()
        return seen

    assert trained(torch.compile) == trained(eager)


def by_name(optimizer, value):
    for group in optimizer.param_groups:
        group[OPTION] = value


OPTION = "lr"
SETS = {"a computed name": by_name, "update": lambda o, v: o.param_groups[0].update({OPTION: v})}


@pytest.mark.parametrize("way", SETS)
def test_a_learning_rate_that_the_call_sets_without_naming_it(cuda, way):
    def trained(compile):
        w = torch.ones(3, device=cuda, requires_grad=True)
        optimizer, seen = torch.optim.SGD([w], lr=0.1), []

        @compile
        def step(x, value):
            SETS[way](optimizer, value)
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()

        for k in range(16):
            step(torch.full((3,), 0.1, device=cuda), 0.3 if k % 2 else 0.1)
            seen.append(w.tolist())
        return seen

    assert trained(torch.compile) == trained(eager)


@pytest.mark.parametrize("option", ["lr", "momentum"])
def test_an_option_that_the_call_sets(cuda, option):
    """A replay would not set it, and would take what another call left."""
    def trained(compile):
        w = torch.ones(3, device=cuda, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.5)

        @compile
        def step(x, value):
            for group in optimizer.param_groups:
                if option == "lr":
                    group["lr"] = value
                else:
                    group["momentum"] = value
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()

        seen = []
        for k in range(16):
            step(torch.full((3,), 0.1, device=cuda), 0.3 if k % 2 else 0.1)
            seen.append(w.tolist())
        return seen

    with pytest.warns(UserWarning, match="'lr' of an optimizer, which the host sets"):
        assert trained(torch.compile) == trained(eager)


def test_a_parameter_that_is_read_without_its_history(cuda):
    """It is an argument, and belongs to no module: nothing but the look at it tells that its memory is another."""
    w = nn.Parameter(torch.ones(3, device=cuda))
    step, x = torch.compile(lambda x, w: x * w.detach()), torch.ones(3, device=cuda)
    for value in (1.0, 5.0):
        w.data = torch.full((3,), value, device=cuda)
        assert [step(x, w).tolist()[0] for _ in range(5)] == [value] * 5
    assert step.report().count("is replayed") == 2


def test_a_parameter_of_a_module_that_does_not_run(cuda):
    average, x = nn.Linear(3, 3, bias=False).to(cuda), torch.ones(3, device=cuda)
    step = torch.compile(lambda x: x * [*average.parameters()][0].detach()[0])
    for value in (1.0, 5.0):
        average.weight.data = torch.full((3, 3), value, device=cuda)
        assert [step(x).tolist()[0] for _ in range(5)] == [value] * 5


def test_a_call_that_asks_for_a_gradient(cuda):
    def trained(compile):
        w, seen = torch.ones(3, device=cuda, requires_grad=True), []

        @compile
        def step(x):
            factor = 2.0 if w.grad is None else 1.0
            w.grad = None
            (w * x * factor).sum().backward()

        for k in range(14):
            if k in (7, 8, 12):
                w.grad = None
            step(torch.full((3,), 1.0 + k, device=cuda))
            seen.append(w.grad.tolist())
        return seen

    assert trained(torch.compile) == trained(eager)


def test_the_state_of_a_scaler_that_is_loaded(cuda):
    def trained(compile):
        w = torch.ones(3, device=cuda, requires_grad=True)
        optimizer, scaler = torch.optim.SGD([w], lr=0.1), torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=3)

        @compile
        def step(x):
            optimizer.zero_grad()
            scaler.scale((w * x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        seen = []
        for k in range(16):
            if k == 7:
                scaler.load_state_dict({**scaler.state_dict(), "scale": 64.0})
            if k == 11:
                scaler.set_growth_factor(8.0)
            step(torch.full((3,), 0.1, device=cuda))
            seen.append((w.tolist(), scaler.get_scale()))
        assert compile is eager or "is replayed" in step.report()
        return seen

    assert trained(torch.compile) == trained(eager)
