"""differentiable=True: steps are the others' to the last digits, and gradients go through them, as gradcheck finds."""
import pytest

import tritorch as torch

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, dict(momentum=0.9, weight_decay=0.01, nesterov=True), ["momentum_buffer"]),
    "SGD dampened": (torch.optim.SGD, dict(momentum=0.9, dampening=0.5, maximize=True), ["momentum_buffer"]),
    "SGD plain": (torch.optim.SGD, {}, []),
    "Adam": (torch.optim.Adam, dict(amsgrad=True, weight_decay=0.1), ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    "AdamW": (torch.optim.AdamW, dict(maximize=True), ["exp_avg", "exp_avg_sq"]),
    "Adamax": (torch.optim.Adamax, dict(weight_decay=0.1), ["exp_avg", "exp_inf"]),
    "NAdam": (torch.optim.NAdam, dict(weight_decay=0.1, decoupled_weight_decay=True), ["exp_avg", "exp_avg_sq"]),
    "RAdam": (torch.optim.RAdam, dict(weight_decay=0.1), ["exp_avg", "exp_avg_sq"]),
    "Adagrad": (torch.optim.Adagrad, dict(lr_decay=0.1, weight_decay=0.1), ["sum"]),
    "RMSprop": (torch.optim.RMSprop, dict(centered=True, momentum=0.9), ["square_avg", "grad_avg", "momentum_buffer"]),
    "Adadelta": (torch.optim.Adadelta, dict(weight_decay=0.1, maximize=True), ["square_avg", "acc_delta"]),
    "ASGD": (torch.optim.ASGD, dict(t0=1, lambd=0.1), ["ax"]),
    "Rprop": (torch.optim.Rprop, dict(maximize=True), ["prev", "step_size"]),
}


def drawn(*shape, seed, **options):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.8 + 0.1


def settled(kind, options, p, names, values, steps):
    """An optimizer of p that remembers these values after so many steps."""
    optimizer = kind([p], lr=options.pop("lr", 0.1), differentiable=True, **options)
    state = optimizer.state_of(p, optimizer.param_groups[0])
    if "step" in state:
        state["step"] = torch.tensor(float(steps))
    state.update(zip(names, values))
    return optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_go_through_a_step(name):
    kind, options, names = OPTIMIZERS[name]

    def step(p, g, *remembered):
        p = p.clone()
        p.grad = g
        optimizer = settled(kind, dict(options), p, names, [v.clone() for v in remembered], 6)
        optimizer.step()
        return p, *[optimizer.state[p][n] for n in names]

    given = [drawn(4, seed=k) for k in range(2 + len(names))]
    if name == "RMSprop":
        given[2] = given[2] + 2                                          # the mean square is more than the squared mean
    if name == "Adam":
        given[4] = given[4] + torch.tensor([1.0, -0.09, 1.0, -0.09], dtype=torch.float64)
    assert torch.autograd.gradcheck(step, [v.requires_grad_() for v in given])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_other_optimizers(name, dtype, cuda):
    kind, options, names = OPTIMIZERS[name]
    for device in ("cpu", cuda):
        plain, through = [torch.tensor([1.0, -2.0, 0.5], dtype=dtype, device=device) for _ in range(2)]
        plain.requires_grad_()
        optimizers = kind([plain], lr=0.1, **options), kind([through], lr=0.1, differentiable=True, **options)
        for k in range(8):
            g = torch.tensor([0.3, -0.1 * (-1) ** k, 0.5 - k % 3], dtype=dtype, device=device) * (1 + 0.5j if dtype.is_complex else 1)
            plain.grad, through.grad = g.clone(), g.clone().requires_grad_()
            for optimizer in optimizers:
                optimizer.step()
        assert through.requires_grad
        torch.testing.assert_close(plain.detach(), through.detach(), rtol=1e-12, atol=1e-14)
        states = [o.state_dict()["state"].get(0, {}) for o in optimizers]
        assert states[0].keys() == states[1].keys()
        for key in states[0]:
            torch.testing.assert_close(states[0][key], states[1][key].detach(), rtol=1e-6, atol=1e-14)


def test_a_learning_rate_that_is_learned():
    """Two steps down w² with lr γ leave w (1 - 2γ)²: its derivative in γ is -4 w (1 - 2γ)."""
    lr, start = torch.tensor(0.1, dtype=torch.float64, requires_grad=True), torch.tensor([3.0, -1.0], dtype=torch.float64)
    w = start.clone().requires_grad_().clone()
    optimizer = torch.optim.SGD([w], lr=lr, differentiable=True)
    for _ in range(2):
        w.grad = 2 * w.clone()
        optimizer.step()
    w.sum().backward()
    assert abs(lr.grad.item() - (-4 * start * 0.8).sum().item()) < 1e-12


def test_other_options_that_are_learned():
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        p, g = drawn(3, seed=1), drawn(3, seed=2)

        def step(lr, decay, kind=kind, p=p, g=g):
            q = p.clone()
            q.grad = g
            kind([q], lr=lr, weight_decay=decay, differentiable=True).step()
            return q

        options = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, 0.2)]
        assert torch.autograd.gradcheck(step, options, eps=1e-7)


def test_what_is_refused():
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="fused or differentiable"):
        torch.optim.Adam([w], fused=True, differentiable=True)
    with pytest.raises(ValueError, match="leaf tensors"):
        torch.optim.SGD([w * 2])
    w.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="leaf"):
        torch.optim.SGD([w], differentiable=True).step()
