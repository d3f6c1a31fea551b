"""Binomial numbers: their moments and distribution, the same on both devices, and the ends of counts and chances."""
import math

import numpy as np
import pytest

import tritorch as torch

N = 40_000


def drawn(n, p, where="cpu", size=N, generator=None):
    return torch.binomial(torch.full((size,), float(n), device=where), torch.tensor(p, device=where), generator=generator)


@pytest.mark.parametrize("n, p", [(20, 0.3), (7, 0.9), (1000, 0.7), (1e6, 1e-6), (1e6, 0.02), (39, 0.5)])
def test_moments(n, p):
    """By inversion and by rejection, on both sides of ½."""
    torch.manual_seed(1)
    got, var = drawn(n, p).double(), n * p * (1 - p)
    assert abs(got.mean().item() - n * p) < 5 * math.sqrt(var / N) and abs(got.var().item() / var - 1) < 0.05
    assert (got == got.floor()).all() and got.min() >= 0 and got.max() <= n


@pytest.mark.parametrize("n, p", [(7, 0.4), (60, 0.9), (400, 0.05), (90, 0.5)])
def test_distribution(n, p):
    stats = pytest.importorskip("scipy.stats")
    torch.manual_seed(2)
    got, law = drawn(n, p).numpy().astype(int), stats.binom(n, p)
    low, high = law.ppf([0.001, 0.999]).astype(int)
    expected = np.diff(np.concatenate([[0], law.cdf(np.arange(low, high)), [1]])) * N
    assert stats.chisquare(np.bincount(np.clip(got, low, high) - low, minlength=high - low + 1), expected).pvalue > 1e-4


@pytest.mark.parametrize("n, p", [(30, 0.8), (300, 0.2), (1e7, 0.6)])
def test_same_on_cuda(cuda, n, p):
    numbers = [drawn(n, p, where, 500, torch.Generator(where).manual_seed(5)) for where in (torch.device("cpu"), cuda)]
    assert torch.equal(numbers[0], numbers[1].cpu()) and numbers[0].unique().numel() > 3


def test_ends_shapes_and_gradients(cuda):
    count = torch.tensor([5.0, 5.0, -1.0, 2.7, 9.0, math.nan, math.inf])
    chance = torch.tensor([0.0, 1.0, 0.5, 2.0, math.nan, 0.5, 0.5])
    for where in (torch.device("cpu"), cuda):
        got = torch.binomial(count.to(where), chance.to(where)).cpu()
        assert got.tolist()[:4] == [0, 5, 0, 2] and got[4:].isnan().all()
    assert torch.binomial(torch.ones(2, 1).half(), torch.ones(3).half()).tolist() == [[1] * 3] * 2
    leaves = torch.full((3,), 4.0, requires_grad=True), torch.full((3,), 0.5, requires_grad=True)
    assert [g.tolist() for g in torch.autograd.grad(torch.binomial(*leaves).sum(), leaves)] == [[0] * 3] * 2
    with pytest.raises(ValueError):
        torch.binomial(count.long(), chance)
    with pytest.raises(RuntimeError):
        torch.binomial(count, chance.double())
