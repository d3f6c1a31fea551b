"""Every family: scipy's densities, moments and quantiles, gradients by differences, and samples that follow the distribution."""
import warnings

import numpy as np
import pytest
from distribution_families import FAMILIES, made
from scipy import stats

import tritorch as torch

BESIDE = [n for n, f in FAMILIES.items() if f.beside]
COUNTED = [n for n in BESIDE if not hasattr(FAMILIES[n].beside(*FAMILIES[n].parameters), "pdf") or
           isinstance(FAMILIES[n].beside(*FAMILIES[n].parameters).dist, stats.rv_discrete)]
DRAWN = 4000


def close(ours, theirs, rtol=1e-10):
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("name", BESIDE)
def test_as_scipy(name):
    family = FAMILIES[name]
    p, _, value = made(torch, name)
    other = family.beside(*family.parameters)
    close(p.log_prob(value), (other.logpmf if name in COUNTED else other.logpdf)(family.value))
    if name in ("VonMises", "TransformedDistribution"):                  # a variance of points on a circle; no moments
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moments = {"mean": other.mean(), "variance": other.var(), "stddev": other.std()}
    for what, theirs in moments.items():
        ours = getattr(p, what).detach().numpy()
        both = np.isfinite(ours) & np.isfinite(theirs)                   # scipy's infinities and NaN are not PyTorch's
        np.testing.assert_allclose(ours[both], np.broadcast_to(theirs, ours.shape)[both], rtol=1e-8)


NO_CDF = ("Beta", "StudentT", "FisherSnedecor", "VonMises")              # as in PyTorch; and with no icdf:
NO_ICDF = ("Gamma", "Chi2", "InverseGamma")


@pytest.mark.parametrize("name", [n for n in BESIDE if n not in (*COUNTED, *NO_CDF)])
def test_cdf_and_its_inverse(name):
    family = FAMILIES[name]
    p, _, value = made(torch, name, gradients=name not in NO_ICDF)
    found = p.cdf(value)
    close(found, family.beside(*family.parameters).cdf(family.value))
    if name not in NO_ICDF:
        close(p.icdf(found), family.value, rtol=1e-7)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_log_prob(name):
    family = FAMILIES[name]
    _, parameters, value = made(torch, name)
    leaves = [x for x in (*parameters, value) if x.requires_grad]
    fixed = not value.requires_grad or name in COUNTED or p_is_discrete(name)

    def density(*leaves):
        given = iter(leaves)
        filled = [next(given) if x.requires_grad else x for x in parameters]
        at = value.detach() if fixed else next(given)
        d = family.make(torch.distributions, *filled)
        d._validate_args = False                                         # a moved point may leave the simplex
        return d.log_prob(at)

    leaves = leaves[:-1] if fixed and value.requires_grad else leaves
    assert torch.autograd.gradcheck(density, leaves, fast_mode=True)


def p_is_discrete(name):
    return made(torch, name)[0].support.is_discrete


@pytest.mark.parametrize("name", [n for n in BESIDE if n not in COUNTED])
def test_samples_by_kolmogorov_and_smirnov(name):
    torch.manual_seed(3)
    family = FAMILIES[name]
    p = made(torch, name, gradients=False)[0]
    x = p.sample((DRAWN,)).numpy()
    uniform = family.beside(*family.parameters).cdf(x).reshape(DRAWN, -1)
    assert min(stats.kstest(column % 1, "uniform").pvalue for column in uniform.T) > 1e-3


@pytest.mark.parametrize("name", COUNTED)
def test_samples_that_are_counted(name):
    torch.manual_seed(4)
    family = FAMILIES[name]
    x = made(torch, name, gradients=False)[0].sample((DRAWN,)).numpy()
    for k in range(4):
        chance = family.beside(*family.parameters).pmf(k)
        away = (x == k).mean(0) - chance
        assert (np.abs(away) < 4.5 * np.sqrt(chance * (1 - chance) / DRAWN) + 1e-9).all()


NO_MOMENTS = ("Cauchy", "HalfCauchy", "VonMises", "LKJCholesky", "Categorical", "RelaxedBernoulli", "RelaxedOneHotCategorical",
              "LogisticNormal", "TransformedDistribution")


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in NO_MOMENTS])
def test_moments_of_samples(name):
    torch.manual_seed(5)
    p = made(torch, name, gradients=False)[0]
    x = p.sample((DRAWN,))
    assert x.shape == (DRAWN, *p.batch_shape, *p.event_shape) and p.sample().shape == x.shape[1:]
    mean, variance = p.mean, p.variance
    known = torch.isfinite(variance) & torch.isfinite(mean)
    assert ((x.mean(0) - mean)[known].abs() < 5 * (variance[known] / DRAWN).sqrt()).all()
    assert bool(p.support.check(x).all())


DRAWS = [n for n in FAMILIES if "Categorical" not in n and made(torch, n)[0].has_rsample]
MOVING = ("Uniform", "Pareto", "GeneralizedPareto", "ContinuousBernoulli")     # supports; or a law without gradients around 1/2


@pytest.mark.parametrize("name", [n for n in DRAWS if n not in MOVING])
def test_gradients_of_samples(name):
    """E tanh x grows with a parameter as the gradients of the samples say, and as that of the density at the samples does."""
    torch.manual_seed(6)
    p, parameters, _ = made(torch, name)
    x = p.rsample((DRAWN,))
    assert x.requires_grad and x.dtype == torch.float64
    score = x.tanh()
    by_path = torch.autograd.grad(score.sum() / DRAWN, parameters, retain_graph=True)
    seen = score.detach().reshape(DRAWN, *p.batch_shape, -1).sum(-1)
    by_density = torch.autograd.grad((p.log_prob(x.detach()) * (seen - seen.mean(0))).sum() / DRAWN, parameters)
    for a, b in zip(by_path, by_density):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=0.12, rtol=0.12)


@pytest.mark.parametrize("name", MOVING)
def test_gradients_of_single_samples(name):
    _, parameters, _ = made(torch, name)

    def drawn(*parameters):
        torch.manual_seed(6)
        return FAMILIES[name].make(torch.distributions, *parameters).rsample((5,))

    assert torch.autograd.gradcheck(drawn, parameters, fast_mode=True)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in DRAWS and "Straight" not in n and "Relaxed" not in n])
def test_no_gradients_of_samples(name):
    with pytest.raises(NotImplementedError, match="rsample"):
        made(torch, name)[0].rsample()


def test_correlations():
    """A correlation of the LKJ distribution is a beta number, and that of matrices 2 × 2 has the density that log_prob says."""
    torch.manual_seed(7)
    for n, c in ((2, 0.6), (3, 1.5), (5, 1.0)):
        lower = torch.distributions.LKJCholesky(n, torch.tensor(c, dtype=torch.float64)).sample((DRAWN,))
        half = c + (n - 2) / 2
        for pair in ((0, 1), (0, n - 1), (n - 2, n - 1)):
            r = (lower @ lower.mT).numpy()[:, pair[0], pair[1]]
            assert stats.kstest((r + 1) / 2, stats.beta(half, half).cdf).pvalue > 1e-3
    r = np.linspace(-0.9, 0.9, 7)
    rows = torch.from_numpy(np.stack([np.stack([np.ones(7), 0 * r], -1), np.stack([r, np.sqrt(1 - r * r)], -1)], -2))
    found = torch.distributions.LKJCholesky(2, torch.tensor(0.6, dtype=torch.float64)).log_prob(rows)
    close(found, stats.beta(0.6, 0.6).logpdf((r + 1) / 2) - np.log(2))


def test_wishart_as_scipy():
    p, (df, _), value = made(torch, "Wishart", gradients=False)
    other = [stats.wishart(n, p.covariance_matrix[k].numpy()) for k, n in enumerate(df.numpy())]
    close(p.log_prob(value), np.stack([o.logpdf(np.moveaxis(value[:, k].numpy(), 0, -1)) for k, o in enumerate(other)], -1))
    close(p.entropy(), [o.entropy() for o in other])
    close(p.mean, np.stack([o.mean() for o in other]))
    close(p.variance, np.stack([o.var() for o in other]))


@pytest.mark.parametrize("name", ["Kumaraswamy", "ContinuousBernoulli", "RelaxedBernoulli"])
def test_densities_have_the_integral_1(name):
    p = made(torch, name, gradients=False)[0]
    z = torch.linspace(-36, 36, 2001, dtype=torch.float64).reshape(-1, 1, 1)          # dx = x (1 - x) dz: near 0 and 1, too
    x = z.sigmoid()
    whole = (p.log_prob(x).exp() * x * (1 - x)).sum(0) * 72 / 2000
    np.testing.assert_allclose(whole.numpy(), 1, rtol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_expand(name):
    p, _, value = made(torch, name, gradients=False)
    wide = p.expand((5, *p.batch_shape))
    assert wide.batch_shape == (5, *p.batch_shape) and wide.event_shape == p.event_shape and type(wide) is type(p)
    value = value[:1] if value.ndim > len(p.batch_shape) + len(p.event_shape) else value
    close(wide.log_prob(value), np.broadcast_to(p.log_prob(value).numpy(), wide.batch_shape))
    assert wide.sample((2,)).shape == (2, 5, *p.batch_shape, *p.event_shape)
    with pytest.raises(ValueError, match="support|last dims|broadcasts"):
        wide.log_prob(torch.full((2, 7, 9), float("nan"), dtype=torch.float64))


@pytest.mark.parametrize("name", ["Normal", "Gumbel", "Gamma", "Dirichlet", "Weibull", "StudentT", "RelaxedOneHotCategorical", "Poisson",
                                  "MixtureSameFamily", "ContinuousBernoulli"])
def test_on_a_device(cuda, name):
    here, _, value = made(torch, name, gradients=False, dtype="float32")
    there = made(torch, name, gradients=False, dtype="float32", device=cuda)[0]
    ours, theirs = there.log_prob(value.to(cuda)), here.log_prob(value)
    np.testing.assert_allclose(ours.cpu().numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    drawn = []
    for p in here, there:
        torch.manual_seed(8)
        drawn.append(p.sample((3,)).cpu().numpy())
    np.testing.assert_allclose(*drawn, rtol=1e-4, atol=1e-5)


def test_a_step_is_captured(cuda):
    """Nothing waits for the device: parameters and values are not checked there, and numbers become tensors where they are."""
    d, w = torch.distributions, torch.nn.Parameter(torch.zeros(3, device=cuda))
    spread = torch.nn.Parameter(torch.eye(3, device=cuda) * 1.5)

    @torch.compile(fullgraph=True)
    def step(x):
        w.grad = spread.grad = None
        q, p = d.MultivariateNormal(w, scale_tril=spread.tril()), d.MultivariateNormal(x[0], spread @ spread.mT)
        rates = d.kl_divergence(d.Gamma((w + 1).exp(), 1.0), d.Gamma(2.0, w.exp()))
        loss = d.kl_divergence(q, p) - q.log_prob(x).mean() + rates.sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.05)
            spread.sub_(spread.grad, alpha=0.05)
        return loss

    x = torch.linspace(-1, 1, 12, device=cuda).reshape(4, 3)
    losses = [step(x).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and sum(len(k.recordings) for k in step.kinds.values()) == 1
