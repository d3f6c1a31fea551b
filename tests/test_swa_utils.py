"""Averages of weights over training: torch.optim.swa_utils, PyTorch beside ours."""
import numpy as np
import pytest
from oracle import torch as pytorch

import tritorch

AVERAGES = {
    "mean": lambda utils: {},
    "ema at once": lambda utils: {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.9)},
    "ema": lambda utils: {"avg_fn": utils.get_ema_avg_fn(0.9)},
    "mean at once": lambda utils: {"multi_avg_fn": utils.get_swa_multi_avg_fn()},
    "mean one by one": lambda utils: {"avg_fn": utils.get_swa_avg_fn()},
    "ema of buffers": lambda utils: {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.9), "use_buffers": True},
    "own function": lambda utils: {"avg_fn": lambda average, now, n: 0.5 * average + 0.5 * now + n},
}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def averaged(torch, how):
    """State dicts after training with averages, the statistics made anew, and the rates of the schedule."""
    utils = torch.optim.swa_utils
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, momentum=0.3), torch.nn.Linear(4, 1))
    net.load_state_dict({name: torch.from_numpy(draw(*x.shape)) if x.is_floating_point() else x for name, x in net.state_dict().items()})
    net[1].running_var.abs_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    average, schedule = utils.AveragedModel(net, **AVERAGES[how](utils)), utils.SWALR(optimizer, 0.01, anneal_epochs=2)
    batches, rates = [torch.from_numpy(draw(5, 3, seed=k)) for k in range(4)], []
    for x in batches:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(net)
        rates.append(schedule.get_last_lr()[0])
    before = {name: x.double().numpy().copy() for name, x in average.state_dict().items()}
    average.eval()
    utils.update_bn([(x, None) for x in batches], average)
    after = {name: x.double().numpy() for name, x in average.state_dict().items()}
    return before, after, rates, average(batches[0]).detach().numpy(), average.training, average.module[1].momentum, repr(average)


@pytest.mark.parametrize("how", AVERAGES)
def test_averages_as_in_pytorch(how):
    mine, theirs = averaged(tritorch, how), averaged(pytorch, how)
    for a, b in zip(mine[:2], theirs[:2], strict=True):
        assert list(a) == list(b)
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(mine[2], theirs[2], rtol=1e-12)
    np.testing.assert_allclose(mine[3], theirs[3], rtol=1e-4, atol=1e-5)
    assert mine[4:] == theirs[4:]


OPTIONS = [{}, {"anneal_epochs": 0}, {"anneal_strategy": "linear", "anneal_epochs": 3}, {"swa_lr": [0.3, 0.2]}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rates(options):
    rates = []
    for torch in (tritorch, pytorch):
        optimizer = torch.optim.SGD([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr": 0.7}], lr=1.0)
        schedule = torch.optim.swa_utils.SWALR(optimizer, **{"swa_lr": 0.1, **options})
        for _ in range(12):
            optimizer.step()
            schedule.step()
            rates.append(schedule.get_last_lr())
    np.testing.assert_allclose(rates[:12], rates[12:], rtol=1e-9)


def test_what_is_refused():
    utils, optimizer = tritorch.optim.swa_utils, tritorch.optim.SGD([tritorch.zeros(1)], lr=1.0)
    for wrong in ({"anneal_strategy": "step"}, {"anneal_epochs": -1}, {"swa_lr": [0.1, 0.2]}):
        with pytest.raises(ValueError):
            utils.SWALR(optimizer, **{"swa_lr": 0.1, **wrong})
    for make in (utils.get_ema_avg_fn, utils.get_ema_multi_avg_fn):
        with pytest.raises(ValueError, match="decay"):
            make(1.5)
    with pytest.raises(AssertionError, match="got both"):
        utils.AveragedModel(tritorch.nn.Linear(1, 1), avg_fn=min, multi_avg_fn=min)


def test_on_the_device():
    net = tritorch.nn.Linear(2, 2)
    average = tritorch.optim.swa_utils.AveragedModel(net, multi_avg_fn=tritorch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    with tritorch.cuda.simulate():
        there = tritorch.nn.Linear(2, 2).cuda()
        there.load_state_dict(net.state_dict())
        across = tritorch.optim.swa_utils.AveragedModel(there, multi_avg_fn=tritorch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
        for k in range(3):
            for model, mean in ((net, average), (there, across)):
                with tritorch.no_grad():
                    model.weight.add_(k)
                mean.update_parameters(model)
        np.testing.assert_allclose(across.module.weight.detach().cpu().numpy(), average.module.weight.detach().numpy(), rtol=1e-6)
