"""Values and gradients of pointwise operators where a formula breaks: thresholds met exactly, NaN, infinity, zeros, numbers next to zero.

The numbers are PyTorch's, or the limits that mathematics gives where its own lose them.
"""
import math

import numpy as np
import pytest

import tritorch as torch
import tritorch.nn.functional as F

INF, NAN = math.inf, math.nan
KINDS = {"float64": 1e-12, "float32": 2e-6}


@pytest.fixture(params=["cpu", "cuda"])
def device(request, cuda):
    return cuda if request.param == "cuda" else "cpu"


def derivatives(f, values, kind, device, others=()):
    """Values, first and second derivatives of f, and the gradient of the first one in what arrives."""
    x = torch.tensor(values, dtype=getattr(torch, kind), device=device, requires_grad=True)
    out = f(x, *[torch.tensor(v, dtype=x.dtype, device=device) for v in others])
    g = torch.ones_like(out).requires_grad_()
    slope, = torch.autograd.grad(out, x, g, create_graph=True)
    second, back = torch.autograd.grad(slope.sum(), (x, g), materialize_grads=True)
    return [t.detach().cpu().numpy() for t in (out, slope, second, back)]


E20, S20 = math.exp(-20), 1 / (1 + math.exp(20))                   # e^-20, σ(-20)
BEND = S20 * (1 - S20)
ELU = [-20.0, -0.0, 0.0, 1.0, INF, -INF, NAN]
BELOW, T20 = math.expm1(-20), math.tanh(math.log1p(E20))
MISH = [T20 - 20 * S20 * (1 - T20**2), S20 * (1 - T20**2) * (2 - 20 * (1 - S20 - 2 * T20 * S20))]
POINTS = {
    "elu": (F.elu, ELU, [BELOW, -0.0, 0, 1, INF, -1, NAN], [E20, 1, 1, 1, 1, 0, 1], [E20, 0, 0, 0, 0, 0, 0]),
    "elu(-1)": (lambda x: F.elu(x, -1.0), [0.0, -0.0, NAN], [0.0, -0.0, NAN], [-1, -1, 1], [0, 0, 0]),
    "celu": (F.celu, ELU, [BELOW, -0.0, 0, 1, INF, -1, NAN], [E20, 1, 1, 1, 1, 0, 1], [E20, 0, 0, 0, 0, 0, 0]),
    "hardswish": (F.hardswish, [-3.0, 0.0, 3.0, INF, NAN], [-0.0, 0, 3, INF, NAN], [0, 0.5, 1, 1, 1], [0, 1 / 3, 0, 0, 0]),
    "hardsigmoid": (F.hardsigmoid, [-3.0, 0.0, 3.0, INF, -INF, NAN], [0, 0.5, 1, 1, 0, NAN], [0, 1 / 6, 0, 0, 0, 0], [0] * 6),
    "softshrink": (F.softshrink, [-0.5, -0.0, 0.5, INF, -INF], [0, 0, 0, INF, -INF], [0, 0, 0, 1, 1], [0] * 5),
    "softplus": (F.softplus, [20.0, 21.0, 0.0], [20 + math.log1p(E20), 21, math.log(2)], [1 - S20, 1, 0.5], [0, 0, 0.25]),
    "mish": (F.mish, [0.0, -20.0], [0, -20 * T20], [0.6, MISH[0]], [0.64, MISH[1]]),
    "sigmoid": (torch.sigmoid, [-20.0, 0.0, INF, -INF], [S20, 0.5, 1, 0], [BEND, 0.25, 0, 0], [BEND * (1 - 2 * S20), 0, 0, 0]),
    "logsigmoid": (F.logsigmoid, [20.0, -20.0], [-math.log1p(E20), -20 - math.log1p(E20)], [S20, 1 - S20], [-BEND, -BEND]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", POINTS)
def test_activations_where_their_formulas_change(name, kind, device):
    f, values, out, slope, second = POINTS[name]
    got = derivatives(f, values, kind, device)
    for what, have, want in zip(("value", "slope", "second derivative", "slope again"), got, (out, slope, second, slope)):
        np.testing.assert_allclose(have, want, KINDS[kind], 1e-38 if kind == "float32" else 1e-50, err_msg=f"{name}: {what}")
    zeros = np.equal(out, 0)
    np.testing.assert_array_equal(np.signbit(got[0][zeros]), np.signbit(np.array(out, float)[zeros]), f"{name}: signs of zeros")


def test_a_sigmoid_far_below_zero_has_a_logarithm(device):
    for kind in ("float32", "float16", "bfloat16"):
        x = torch.tensor([-10.0, -16.0], dtype=getattr(torch, kind), device=device)
        np.testing.assert_allclose(x.float().sigmoid().log().cpu().numpy(), [-10.0000454, -16.0000001], 1e-6)
        assert (x.sigmoid() > 0).all(), kind


@pytest.mark.parametrize("name", ["max", "min"])
def test_all_nans_share_the_gradient_of_the_extreme_of_everything(name, device):
    for values, want in (([1.0, NAN, NAN, 3.0], [0, 0.5, 0.5, 0]), ([NAN, INF, 1.0, -INF], [1, 0, 0, 0]), ([2.0, 2.0], [0.5, 0.5])):
        x = torch.tensor(values, device=device, requires_grad=True)
        getattr(x, name)().backward()
        assert x.grad.tolist() == want
    x = torch.tensor([1.0, NAN], device=device, requires_grad=True)
    getattr(x, "a" + name)().backward()                                  # of these PyTorch makes NaN
    assert x.grad.isnan().all()


def test_bounds_that_are_tensors(device):
    x = torch.tensor([0.0, 1.0, 2.0, NAN, 1.0, 5.0], device=device, requires_grad=True)
    low = torch.tensor([1.0, 1.0, 1.0, 1.0, NAN, 7.0], device=device, requires_grad=True)
    high = torch.tensor([3.0, 1.0, 1.5, 3.0, 3.0, 4.0], device=device, requires_grad=True)
    made = x.clamp(low, high)
    np.testing.assert_array_equal(made.detach().cpu().numpy(), [1, 1, 1.5, NAN, NAN, 4])
    made.sum().backward()
    assert [t.grad.tolist() for t in (x, low, high)] == [[0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1]]
    whole = torch.tensor([-3, 5, 9], device=device)
    assert whole.clamp(torch.tensor([0, 0, 0], device=device), 7).tolist() == [0, 5, 7]
    assert whole.clamp(min=torch.tensor([0, 6, 0], dtype=torch.int8, device=device)).dtype is torch.int64


def test_nothing_to_the_power_of_what_requires_grad(device):
    for kind in KINDS:
        y = torch.tensor([2.0, 0.0, -1.0], dtype=getattr(torch, kind), device=device, requires_grad=True)
        for base in (0.0, torch.zeros(3, dtype=y.dtype, device=device)):
            g = torch.ones(3, dtype=y.dtype, device=device, requires_grad=True)
            slope, = torch.autograd.grad(base ** y, y, g, create_graph=True)
            again, = torch.autograd.grad(slope.sum(), g)
            assert slope.tolist() == again.tolist() == [0, 0, -INF]


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss])
def test_losses_that_become_straight(loss, device):
    for kind in KINDS:
        _, slope, second, again = derivatives(lambda x, y, loss=loss: loss(x, y, reduction="none"), [1.0, -1.0, 0.5, INF, NAN], kind,
                                              device, [[0.0] * 5])
        np.testing.assert_array_equal(second, [0, 0, 1, 0, 0])
        np.testing.assert_array_equal(slope[:4], [1, -1, 0.5, 1])
        np.testing.assert_array_equal(slope, again)


def test_second_derivatives_of_binary_cross_entropy_at_its_ends(device):
    x = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64, device=device, requires_grad=True)
    y = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64, device=device)
    slope, = torch.autograd.grad(F.binary_cross_entropy(x, y, reduction="sum"), x, create_graph=True)
    second, = torch.autograd.grad(slope.sum(), x)
    np.testing.assert_allclose(second.detach().cpu().numpy(), [0, 0, 4], 1e-10)


def test_an_infinite_slope_beside_what_is_cut_off(device):
    x = torch.tensor([[INF, -2.0]], device=device, requires_grad=True)
    weight = torch.tensor([0.5, 0.5], device=device, requires_grad=True)
    slope, = torch.autograd.grad(F.prelu(x, weight).sum(), weight, create_graph=True)
    assert slope.tolist() == [0, -2] and torch.autograd.grad(slope.sum(), x)[0].tolist() == [[0, 1]]


def test_a_cross_entropy_beside_infinity_is_none(device):
    for values, none in (([0.0, INF, 2.0], True), ([-INF, 1.0, 2.0], False)):
        loss = F.cross_entropy(torch.tensor([values], device=device), torch.tensor([0], device=device))
        assert bool(loss.isnan()) is none and (none or loss.item() == INF)


def test_lgamma_of_the_smallest_numbers():
    for value in (5e-324, -1e-310, 1e-308):
        x = torch.tensor([value], dtype=torch.float64)
        np.testing.assert_allclose(x.lgamma().item(), -math.log(abs(value)), 1e-14)
    assert torch.tensor([0.0, -2.0, -INF]).lgamma().tolist() == [INF] * 3
