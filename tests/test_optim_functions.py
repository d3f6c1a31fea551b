"""Steps of optimizers as functions of lists: what the optimizers do, and PyTorch's functions."""
import numpy as np
import pytest

import tritorch as T
from tritorch.optim.adagrad import adagrad
from tritorch.optim.adam import adam
from tritorch.optim.adamw import adamw
from tritorch.optim.rmsprop import rmsprop
from tritorch.optim.sgd import sgd

BETAS = dict(beta1=0.8, beta2=0.95, lr=0.1, weight_decay=0.1, eps=1e-6)
CASES = {                                                                # function, options, columns of tensors, whether steps are counted
    "adam": ("adam.adam", dict(amsgrad=False, maximize=False, **BETAS), 2, [[]], True),
    "amsgrad": ("adam.adam", dict(amsgrad=True, maximize=True, **BETAS), 3, [], True),
    "adamw": ("adamw.adamw", dict(amsgrad=False, maximize=False, **BETAS), 2, [[]], True),
    "sgd": ("sgd.sgd", dict(weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0.2, nesterov=False, maximize=False), 1, [], False),
    "plain": ("sgd.sgd", dict(weight_decay=0, momentum=0, lr=0.1, dampening=0, nesterov=False, maximize=True), 0, [[None, None]], False),
    "rmsprop": ("rmsprop.rmsprop", dict(lr=0.1, alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.5, centered=True), 3, [], True),
    "adagrad": ("adagrad.adagrad", dict(lr=0.1, weight_decay=0.1, lr_decay=0.1, eps=1e-6, maximize=False), 1, [], True),
}


def after_steps(library, case, device="cpu"):
    """Parameters and all that is remembered, after two steps."""
    name, options, columns, more, counted = CASES[case]
    module, function = name.split(".")
    step = getattr(__import__(f"{library.__name__}.optim.{module}", fromlist=["x"]), function)
    values = [np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3), np.float32([0.5, -0.25])]
    params = [library.tensor(v, device=device) for v in values]
    lists = [[library.zeros_like(p) for p in params] for _ in range(columns)] + more
    steps = [library.tensor(0.0) for _ in params] if counted else None
    for k in range(2):
        step(params, [p * (k + 1) - 0.5 for p in params], *lists, *([steps] if counted else []), **options)
    return [x.cpu().numpy() for x in (*params, *[v for some in lists for v in some if v is not None], *(steps or ()))]


@pytest.mark.parametrize("case", CASES)
def test_pytorch_has_the_same(case):
    torch = pytest.importorskip("torch")
    for got, want in zip(after_steps(T, case), after_steps(torch, case), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_devices_agree(case, cuda):
    for got, want in zip(after_steps(T, case, cuda), after_steps(T, case), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_they_are_the_optimizers():
    w, optimized = T.tensor([1.0, -2.0, 3.0]), T.tensor([1.0, -2.0, 3.0], requires_grad=True)
    optimizer = T.optim.AdamW([optimized], lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    m, v, t = T.zeros(3), T.zeros(3), T.tensor(0.0)
    for _ in range(3):
        optimized.grad = optimized.detach() * 2
        optimizer.step()
        adamw([w], [w * 2], [m], [v], [], [t], amsgrad=False, maximize=False, **BETAS)
    state = optimizer.state[optimized]
    assert T.equal(w, optimized.detach()) and T.equal(m, state["exp_avg"]) and T.equal(v, state["exp_avg_sq"]) and t.item() == 3


def test_buffers_are_made_and_scales_taken_off():
    options = dict(weight_decay=0, momentum=0.9, lr=0.1, dampening=0.5, nesterov=False, maximize=False)
    w, buffers = T.tensor([1.0, 2.0]), [None]
    sgd([w], [T.tensor([8.0, 8.0])], buffers, grad_scale=T.tensor(4.0), **options)
    assert w.tolist() == pytest.approx([0.8, 1.8]) and buffers[0].tolist() == [2.0, 2.0]            # dampening leaves the first step alone
    sgd([w], [T.tensor([8.0, 8.0])], buffers, found_inf=T.tensor(1.0), **options)
    assert w.tolist() == pytest.approx([0.8, 1.8]) and buffers[0].tolist() == [2.0, 2.0]


def test_refusals():
    x = T.ones(2)
    with pytest.raises(RuntimeError, match="a list of tensors"):
        adagrad([x], [x], [x.clone()], [1], lr=0.1, weight_decay=0, lr_decay=0, eps=1e-6, maximize=False)
    with pytest.raises(RuntimeError, match="differentiable=False"):
        rmsprop([x], [x], [x], [], [], [T.tensor(0.0)], differentiable=True, lr=0.1, alpha=0.9, eps=0, weight_decay=0, momentum=0,
                centered=False)
    with pytest.raises(ValueError, match="lr"):
        adam([x], [x], [x], [x], [], [T.tensor(0.0)], amsgrad=False, maximize=False, **{**BETAS, "lr": -1.0})
    assert x.tolist() == [1, 1]
