"""What people call most takes few launches and no memory in between, and gives the same numbers on both devices, NaN and infinity too."""
import numpy as np
import pytest

import tritorch as torch
import tritorch.nn.functional as F
from bench.launches import accounting
from tritorch.ops.bincount import tally

ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, -0.5, 1e30, -1e30, 1e-30]
ACTIVATIONS = {
    "leaky_relu": F.leaky_relu, "relu6": F.relu6,
    "hardtanh": F.hardtanh, "softplus": F.softplus, "logsigmoid": F.logsigmoid, "mish": F.mish,
    "elu": F.elu, "celu": F.celu, "hardswish": F.hardswish, "hardshrink": F.hardshrink, "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 7.0), "clamp": lambda x: x.clamp(-1, 1), "square": torch.square, "cube": lambda x: x ** 3,
    "log1p": torch.log1p, "erf": torch.erf, "abs": torch.abs, "sqrt": torch.sqrt, "nan_to_num": torch.nan_to_num,
    "reciprocal": torch.reciprocal, "maximum": lambda x: torch.maximum(x, x.detach().flip(0))}
LOSSES = {"mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss, "kl": F.kl_div,
          "logits": F.binary_cross_entropy_with_logits}


def counted(function, *shapes, backward=False):
    """Launches of a call, or of its backward pass, and the bytes of its largest."""
    with accounting() as account:
        xs = [torch.empty(*shape, device="cuda", requires_grad=k == 0) for k, shape in enumerate(shapes)]
        out = function(*xs)
        if backward:
            g = torch.empty_like(out)
            first = len(account.launches)
            torch.autograd.grad(out, xs[0], g)
        return len(account.launches) - (first if backward else 0), max(launch.nbytes for launch in account.launches)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gradient_is_one_launch(name):
    assert counted(ACTIVATIONS[name], (64, 2048), backward=True)[0] == 1


def test_losses_read_their_operands_once_and_write_nothing_else():
    for name, loss in LOSSES.items():
        launches, nbytes = counted(loss, (4096, 1024), (4096, 1024))
        assert launches == 2 and nbytes < 9 << 22, name
        assert counted(loss, (4096, 1024), (4096, 1024), backward=True)[0] == 2, name


def test_distances_take_memory_for_the_result_alone():
    assert counted(torch.cdist, (4096, 64), (4096, 64))[1] < (4 << 24) + (4 << 20)
    assert counted(torch.isclose, (64, 64), (64, 64))[0] == counted(lambda x: x.median(1)[0], (64, 1000))[0] == 1


def test_the_same_numbers_on_both_devices(cuda):
    rng = np.random.default_rng(0)
    for name, function in {**ACTIVATIONS, **LOSSES}.items():
        xs = [torch.tensor(rng.permutation(np.array(ODD * 4, np.float32))) for _ in range(2)]
        found = []
        for where in ("cpu", cuda):
            a, b = [x.to(where).requires_grad_() for x in xs]
            out = function(a) if name in ACTIVATIONS else function(a, b, reduction="none")
            found.append([out, *torch.autograd.grad(out.sum(), (a, b), allow_unused=True)])
        for x, y in zip(*found):
            if x is not None:
                np.testing.assert_allclose(y.cpu().detach().numpy(), x.detach().numpy(), rtol=2e-5, atol=1e-6, err_msg=name)


def test_distances_and_their_gradients_beside_equal_rows(cuda):
    x, y = np.random.default_rng(1).standard_normal((2, 40, 6))
    y[3] = x[5]
    for p in (1.0, 2.0, 3.0):
        apart = x[:, None] - y[None]
        d = (np.abs(apart) ** p).sum(-1) ** (1 / p)
        share = np.divide(np.abs(apart), d[..., None], out=np.zeros_like(apart), where=d[..., None] > 0)
        wanted = (np.sign(apart) * share ** (p - 1)).sum(1)
        a, b = torch.tensor(x, device=cuda, requires_grad=True), torch.tensor(y, device=cuda)
        found = torch.cdist(a, b, p)
        found.sum().backward()
        np.testing.assert_allclose(found.detach().cpu().numpy(), d, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(a.grad.cpu().numpy(), wanted, rtol=1e-8, atol=1e-9)


def test_the_median_of_all_shares_its_gradient(cuda):
    for values, shares in (([1, 2, 2, 3], [0, 0.5, 0.5, 0]), ([2, np.nan, np.nan, 1], [0, 0.5, 0.5, 0])):
        x = torch.tensor(values, dtype=torch.float32, device=cuda, requires_grad=True)
        x.median().backward()
        assert x.grad.tolist() == shares


@pytest.mark.parametrize("bins", [1, 7, 100])
def test_counts(bins, cuda):
    x = np.random.default_rng(bins).standard_normal(3000)
    x[:6] = np.nan, np.inf, -np.inf, -1, 2, 1e30
    inside = x[(x >= -1) & (x <= 2)]
    wanted = np.bincount(np.minimum((inside + 1) * (bins / 3), bins - 1).astype(int), minlength=bins)
    assert tally(torch.tensor(x, device=cuda), bins, -1.0, 2.0, True).tolist() == wanted.tolist()
    whole = np.random.default_rng(bins).integers(-3, bins + 3, 3000)
    expected = np.bincount(whole[(whole >= 0) & (whole < bins)], minlength=bins)
    assert tally(torch.tensor(whole, device=cuda), bins, 0.0, 0.0, False).tolist() == expected.tolist()
    assert torch.tensor(np.abs(whole), device=cuda).bincount().tolist() == np.bincount(np.abs(whole)).tolist()


def test_a_histogram_needs_a_finite_range(cuda):
    x = torch.tensor([1.0, np.inf], device=cuda)
    with pytest.raises(RuntimeError, match="histc: expected a finite range"):
        x.histc(4)
    assert x.histc(4, 0, 2).tolist() == [0, 0, 1, 0]
