"""Gamma and Dirichlet numbers: distributions, the same numbers on all devices, gradients against derivatives of scipy's quantiles."""
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats

import tritorch as torch
from tritorch.ops.gamma import standard_gamma

LOG = np.linspace(-2.5, 4, 27)


def seeded(device="cpu"):
    return torch.Generator(device).manual_seed(5)


@pytest.mark.parametrize("alpha", [0.2, 0.9, 1.0, 3.5, 1e5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gamma_numbers_are_distributed_so(alpha, dtype):
    x = torch._standard_gamma(torch.full((20000,), alpha, dtype=getattr(torch, dtype)), generator=seeded()).numpy()
    assert scipy.stats.kstest(x, scipy.stats.gamma(alpha).cdf).pvalue > 1e-3


def test_small_shapes_keep_their_logarithm():
    x = torch._standard_gamma(torch.full((20000,), 0.02, dtype=torch.float64), generator=seeded()).numpy()
    assert scipy.stats.kstest(np.log(x), scipy.stats.loggamma(0.02).cdf).pvalue > 1e-3


def test_numbers_are_the_same_on_cuda(cuda):
    alpha = torch.tensor(10**np.linspace(-3, 6, 301), dtype=torch.float64)
    for draw in torch._standard_gamma, torch._sample_dirichlet:
        for kind, rtol in ((torch.float64, 1e-11), (torch.float32, 1e-6), (torch.float16, 1e-3)):
            values = alpha.clamp(max=6e4).to(kind)
            here, there = draw(values, generator=seeded()), draw(values.to(cuda), generator=seeded(cuda))
            np.testing.assert_allclose(there.cpu().double().numpy(), here.double().numpy(), rtol=rtol)


def test_calls_draw_other_numbers_each_time():
    generator, alpha = seeded(), torch.full((50,), 2.0)
    first, second = (torch._standard_gamma(alpha, generator) for _ in range(2))
    assert generator.get_offset() == 100 and not set(first.tolist()) & set(second.tolist())


def test_an_element_has_the_same_number_in_every_piece():
    alpha = torch.full((140_000,), 0.7, dtype=torch.float64)
    whole = standard_gamma(alpha, 3, 1 << 32)
    assert torch.equal(whole[-9:], standard_gamma(alpha[-9:], 3, (1 << 32) + 139_991))


def test_shapes_at_the_ends(cuda):
    for where in "cpu", cuda:
        x = torch._standard_gamma(torch.tensor([0.0, np.inf, np.nan, -1.0, 1e-30, 1e30], device=where)).cpu()
        tiny = torch.finfo(torch.float32).tiny
        np.testing.assert_allclose(x.numpy(), [tiny, np.inf, np.nan, np.nan, tiny, 1e30], rtol=1e-6)
        rows = torch._sample_dirichlet(torch.full((200, 3), 1e-20, device=where), seeded(where)).cpu()
        assert ((rows > 0.99).sum(-1) == 1).all() and set(rows.argmax(-1).tolist()) == {0, 1, 2} and (rows > 0).all()


@pytest.mark.parametrize("shape", [(), (1,), (3, 0), (0, 3)])
def test_dirichlet_numbers_of_odd_shapes(shape):
    alpha = torch.ones(shape, requires_grad=True)
    out = torch._sample_dirichlet(alpha)
    assert out.shape == shape and (out == 1).all()
    out.sum().backward()
    assert (alpha.grad == 0).all()


def test_dirichlet_numbers_and_their_gradient():
    conc = np.array([0.5, 1.0, 2.0])
    alpha = torch.tensor(conc).expand(20000, 3).clone().requires_grad_()
    x = torch._sample_dirichlet(alpha, seeded())
    beta = scipy.stats.beta(0.5, 3.0)
    assert scipy.stats.kstest(x.detach().numpy()[:, 0], beta.cdf).pvalue > 1e-3
    np.testing.assert_allclose(x.detach().numpy().sum(-1), 1, rtol=1e-14)
    x[:, 0].sum().backward()
    np.testing.assert_allclose(alpha.grad.numpy().mean(0), np.array([3.0, -0.5, -0.5]) / 3.5**2, atol=5e-3)       # of the mean


def close_to_slope(have, f, a, rtol):
    step = 1e-4 * a
    want = (8 * (f(a + step) - f(a - step)) - f(a + 2 * step) + f(a - 2 * step)) / (12 * step)
    np.testing.assert_allclose(have, want, rtol=rtol)


def test_the_slope_of_gamma_numbers():
    a, p = np.meshgrid(10**LOG, [1e-6, 0.01, 0.3, 0.7, 0.99, 1 - 1e-6])
    x = sp.gammaincinv(a, p)
    a, p, x = a[x > 1e-60], p[x > 1e-60], x[x > 1e-60]
    have = torch._standard_gamma_grad(torch.tensor(a), torch.tensor(x)).numpy()
    upper = p > 0.5
    close_to_slope(have[~upper], lambda a: sp.gammaincinv(a, p[~upper]), a[~upper], 2e-8)
    close_to_slope(have[upper], lambda a: sp.gammainccinv(a, 1 - p[upper]), a[upper], 2e-8)


def test_the_slope_of_beta_numbers():
    a, b, p = (v.ravel() for v in np.meshgrid(10**LOG[6::4], 10**LOG[6::4], [0.01, 0.3, 0.7, 0.99]))
    x = sp.betaincinv(a, b, p)
    ok = (x > 1e-200) & (x < 0.999)
    a, b, p, x = a[ok], b[ok], p[ok], x[ok]
    have = torch._dirichlet_grad(torch.tensor(x), torch.tensor(a), torch.tensor(a + b)).numpy() * (1 - x)
    close_to_slope(have, lambda a: sp.betaincinv(a, b, p), a, 3e-7)


def test_slopes_in_closed_form(cuda):
    x = np.array([1e-30, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-9])
    for where in "cpu", cuda:
        value, one, two = (torch.tensor(v, device=where) for v in (x, np.ones(6), np.full(6, 2.0)))
        have = torch._dirichlet_grad(value, one, two).cpu().numpy()      # x = u^(1/α) at α = 1
        np.testing.assert_allclose(have, -x * np.log(x) / (1 - x), rtol=1e-9)
        have = torch._dirichlet_grad(torch.tensor([0.0, 1.0, 1.0], device=where), *torch.tensor([[0.3, 2, 2], [1, 2.5, 2]], device=where))
        np.testing.assert_allclose(have.cpu().numpy(), [0, 2 * (sp.digamma(2.5) - sp.digamma(2)), 0], rtol=1e-6)
        assert torch._standard_gamma_grad(torch.tensor([0.5], device=where), torch.tensor([0.0], device=where)).item() == 0


def test_what_has_no_gradient_says_so():
    a = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad(torch._standard_gamma(a).sum(), a, create_graph=True)
    with pytest.raises(NotImplementedError, match="_standard_gamma_grad: expected no gradient"):
        g.sum().backward()
    with pytest.raises(RuntimeError, match="one dtype"):
        torch._standard_gamma_grad(torch.ones(3), torch.ones(3, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="floating dtype"):
        torch._dirichlet_grad(*[torch.ones(3, dtype=torch.int64)] * 3)
