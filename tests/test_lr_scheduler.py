"""Learning rate schedules: the numbers of torch.optim.lr_scheduler, to the last bit."""
import pickle
import warnings

import pytest
from both import both

import tritorch
from tritorch.optim import lr_scheduler

SCHEDULES = {
    "lambda": lambda L, o: L.LambdaLR(o, [lambda t: 0.9 ** t, lambda t: 1 / (1 + t)]),
    "multiplicative": lambda L, o: L.MultiplicativeLR(o, lambda t: 0.95),
    "step": lambda L, o: L.StepLR(o, 3, 0.3),
    "multistep": lambda L, o: L.MultiStepLR(o, [2, 5, 5, 11]),
    "constant": lambda L, o: L.ConstantLR(o, 0.3, 4),
    "linear": lambda L, o: L.LinearLR(o, 0.2, 0.9, 7),
    "exponential": lambda L, o: L.ExponentialLR(o, 0.93),
    "polynomial": lambda L, o: L.PolynomialLR(o, 9, 2.5),
    "cosine": lambda L, o: L.CosineAnnealingLR(o, 6, 0.01),
    "restarts": lambda L, o: L.CosineAnnealingWarmRestarts(o, 3, 2, 0.001),
    "onecycle": lambda L, o: L.OneCycleLR(o, [0.5, 0.7], total_steps=31),
    "onecycle linear": lambda L, o: L.OneCycleLR(o, 0.5, epochs=5, steps_per_epoch=7, anneal_strategy="linear", three_phase=True),
    "cyclic": lambda L, o: L.CyclicLR(o, 0.01, [0.1, 0.2], 4, 3),
    "cyclic 2": lambda L, o: L.CyclicLR(o, 0.01, 0.1, 4, mode="triangular2", cycle_momentum=False),
    "cyclic exp": lambda L, o: L.CyclicLR(o, 0.01, 0.1, 4, mode="exp_range", gamma=0.95),
    "cyclic own": lambda L, o: L.CyclicLR(o, 0.01, 0.1, 4, scale_fn=lambda x: 0.5 ** x, scale_mode="iterations"),
    "sequential": lambda L, o: L.SequentialLR(o, [L.ConstantLR(o, 0.1, 2), L.ExponentialLR(o, 0.9), L.StepLR(o, 2)], [3, 8]),
    "warm-up": lambda L, o: L.SequentialLR(o, [L.LinearLR(o, 0.01, total_iters=4), L.CosineAnnealingLR(o, 20)], [4]),
    "chained": lambda L, o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 5), L.ExponentialLR(o, 0.9)]),
}


def make(module, schedule, cls="SGD"):
    a, b = [module.zeros(2, requires_grad=True) for _ in range(2)]
    options = {"momentum": 0.9} if cls == "SGD" else {}
    optimizer = getattr(module.optim, cls)([{"params": [a]}, {"params": [b], "lr": 0.25}], lr=0.1, **options)
    return optimizer, schedule(module.optim.lr_scheduler, optimizer)


def rates(optimizer, scheduler, steps=30):
    out = [[dict(g) for g in optimizer.param_groups]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        out.append([{k: v for k, v in g.items() if k in ("lr", "momentum", "betas")} for g in optimizer.param_groups])
        assert scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
    return [[(g["lr"], g.get("momentum"), g.get("betas")) for g in groups] for groups in out]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("cls", ["SGD", "Adam"])
def test_numbers_are_those_of_torch(name, cls):
    torch = pytest.importorskip("torch")
    assert rates(*make(tritorch, SCHEDULES[name], cls)) == rates(*make(torch, SCHEDULES[name], cls))


@pytest.mark.parametrize("name", ["step", "multistep", "constant", "linear", "exponential", "polynomial", "cosine", "restarts"])
def test_any_epoch_at_once(name):
    torch = pytest.importorskip("torch")
    found = []
    for module in (tritorch, torch):
        optimizer, scheduler = make(module, SCHEDULES[name])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                              # deprecated there and here
            for epoch in (4, 1, 17):
                scheduler.step(epoch)
                found.append((module is torch, epoch, *scheduler.get_last_lr()))
    ours, theirs = [[f[1:] for f in found if f[0] is kind] for kind in (False, True)]
    assert ours == theirs


PLATEAUS = [{}, {"mode": "max", "threshold_mode": "abs", "threshold": 0.5}, {"cooldown": 2, "min_lr": [0.02, 0.001]}]


@pytest.mark.parametrize("options", PLATEAUS)
def test_plateau(options):
    torch = pytest.importorskip("torch")
    metrics = [5, 4, 4, 4.1, 3.9999, 3.9, 3.9, 4, 4, 4, 5, 6, 1, 1, 1, 1, 1, 1, 1]
    found = []
    for module in (tritorch, torch):
        optimizer, scheduler = make(module, lambda L, o: L.ReduceLROnPlateau(o, factor=0.3, patience=1, **options))
        for metric in metrics:
            optimizer.step()
            scheduler.step(metric)
            found.append(scheduler.get_last_lr())
    assert found[:len(metrics)] == found[len(metrics):]


@pytest.mark.parametrize("name", SCHEDULES)
def test_saved_and_resumed(name):
    optimizer, scheduler = make(tritorch, SCHEDULES[name])
    rates(optimizer, scheduler, 7)
    saved = scheduler.state_dict(), optimizer.state_dict()
    if "lambda" not in name:
        saved = pickle.loads(pickle.dumps(saved))
    again, resumed = make(tritorch, SCHEDULES[name])
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    assert rates(again, resumed, 9) == rates(optimizer, scheduler, 9)


class Power:
    def __init__(self, base):
        self.base = base

    def __call__(self, n):
        return self.base ** n


@pytest.mark.parametrize("make", [lambda L, o, f: L.LambdaLR(o, f), lambda L, o, f: L.LambdaLR(o, [f]),
                                  lambda L, o, f: L.CyclicLR(o, 0.1, 1.0, 3, scale_fn=f, cycle_momentum=False)])
@both
def test_what_functions_keep_is_saved(torch, make):
    pairs = []
    for base in (0.5, 0.1):
        function, optimizer = Power(base), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        pairs.append((function, make(torch.optim.lr_scheduler, optimizer, function)))
    (_, first), (function, second) = pairs
    first.optimizer.step()
    first.step()
    second.load_state_dict(first.state_dict())
    return function.base, second.last_epoch


@both
def test_a_plateau_has_one_least_rate_for_groups_that_come_later(torch):
    first, later = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([first], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=0.2, factor=0.3)
    listed = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.2])
    optimizer.add_param_group({"params": [later]})
    rates = []
    for metric in (1.0, 1.0, torch.tensor(1.0)):
        schedule.step(metric)
        rates += [group["lr"] for group in optimizer.param_groups]
    listed.step(1.0)
    with pytest.raises(RuntimeError):
        listed.step(1.0)
    return rates


def test_rate_in_a_tensor_keeps_its_memory():
    w = tritorch.zeros(2, requires_grad=True)
    rate = tritorch.tensor(0.5)
    optimizer = tritorch.optim.SGD([w], lr=rate)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert rate.item() == 0.25 and optimizer.param_groups[0]["lr"] is rate
    assert scheduler.get_last_lr()[0] is not rate


def test_errors_and_warnings():
    w = tritorch.zeros(2, requires_grad=True)
    optimizer = tritorch.optim.SGD([w], lr=1.0)
    for call, error in [
        (lambda: lr_scheduler.StepLR(w, 1), TypeError), (lambda: lr_scheduler.StepLR(optimizer, 1, last_epoch=3), KeyError),
        (lambda: lr_scheduler.LambdaLR(optimizer, [abs, abs]), ValueError), (lambda: lr_scheduler.ConstantLR(optimizer, 2.0), ValueError),
        (lambda: lr_scheduler.LinearLR(optimizer, 0.0), ValueError), (lambda: lr_scheduler.OneCycleLR(optimizer, 1.0), ValueError),
        (lambda: lr_scheduler.OneCycleLR(optimizer, 1.0, 10, pct_start=2.0), ValueError),
        (lambda: lr_scheduler.CyclicLR(tritorch.optim.Optimizer([w], {"lr": 1.0}), 0.1, 0.2), ValueError),
        (lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 0), ValueError),
        (lambda: lr_scheduler.ReduceLROnPlateau(optimizer, factor=1.0), ValueError),
        (lambda: lr_scheduler.SequentialLR(optimizer, [], []), ValueError), (lambda: lr_scheduler.ChainedScheduler([]), ValueError),
        (lambda: lr_scheduler.ReduceLROnPlateau(optimizer, mode="least"), ValueError),
    ]:
        with pytest.raises(error):
            call()
    with pytest.warns(UserWarning, match="the first learning rate was never used"):
        lr_scheduler.StepLR(optimizer, 1).step()
