"""Divergences: each registered formula beside the mean of log p - log q over p's outcomes, or infinite where q lacks some of them."""
import warnings

import numpy as np
import pytest

import tritorch as torch
from tritorch.distributions.kl import _formulas

d = torch.distributions


def t(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


FIRST = {
    d.Normal: lambda: d.Normal(t(0.5, -1.0), t(0.7, 1.5)), d.Laplace: lambda: d.Laplace(t(0.5, -1.0), t(0.7, 1.5)),
    d.Cauchy: lambda: d.Cauchy(t(0.5, -1.0), t(0.7, 1.5)), d.Gumbel: lambda: d.Gumbel(t(0.5, -0.2), t(0.4, 0.5)),
    d.Uniform: lambda: d.Uniform(t(0.2, 0.4), t(0.7, 0.9)), d.Exponential: lambda: d.Exponential(t(2.0, 3.0)),
    d.Gamma: lambda: d.Gamma(t(1.5, 3.0), t(2.0, 4.0)), d.Beta: lambda: d.Beta(t(1.5, 3.0), t(2.0, 0.9)),
    d.Pareto: lambda: d.Pareto(t(0.5, 0.3), t(6.0, 7.0)), d.HalfNormal: lambda: d.HalfNormal(t(1.0, 2.0)),
    d.ContinuousBernoulli: lambda: d.ContinuousBernoulli(t(0.2, 0.6)), d.Bernoulli: lambda: d.Bernoulli(t(0.2, 0.6)),
    d.Binomial: lambda: d.Binomial(5, t(0.2, 0.6)), d.Geometric: lambda: d.Geometric(t(0.2, 0.6)),
    d.Poisson: lambda: d.Poisson(t(1.0, 2.5)),
    d.Categorical: lambda: d.Categorical(t(1.0, 2.0, 3.0)), d.OneHotCategorical: lambda: d.OneHotCategorical(t(1.0, 2.0, 3.0)),
    d.Dirichlet: lambda: d.Dirichlet(t(1.0, 2.0, 3.0)), d.Independent: lambda: d.Independent(d.Normal(t(0.5, -1.0), t(0.7, 1.5)), 1),
    d.TransformedDistribution: lambda: d.LogNormal(t(0.5, -1.0), t(0.7, 1.5)),
    d.ExponentialFamily: lambda: d.Wishart(t(3.5, 6.0), torch.eye(2, dtype=torch.float64)),
    d.MultivariateNormal: lambda: d.MultivariateNormal(t(0.5, -1.0), t(1.0, 0.3, 0.3, 0.5).reshape(2, 2)),
    d.LowRankMultivariateNormal: lambda: d.LowRankMultivariateNormal(t(0.5, -1.0), t(0.3, 0.4).reshape(2, 1), t(0.2, 0.3)),
}
SECOND = {
    **FIRST, d.Normal: lambda: d.Normal(t(0.1, 0.2), t(1.0, 2.0)), d.Laplace: lambda: d.Laplace(t(0.1, 0.2), t(1.0, 2.0)),
    d.Cauchy: lambda: d.Cauchy(t(0.1, 0.2), t(1.0, 2.0)), d.Gumbel: lambda: d.Gumbel(t(0.1, 0.2), t(1.0, 2.0)),
    d.Uniform: lambda: d.Uniform(t(-0.1, 0.0), t(1.1, 1.5)), d.Exponential: lambda: d.Exponential(t(1.0, 0.5)),
    d.Gamma: lambda: d.Gamma(t(1.0, 2.0), t(0.5, 1.0)), d.Beta: lambda: d.Beta(t(1.1, 2.0), t(1.5, 1.2)),
    d.Pareto: lambda: d.Pareto(t(0.1, 0.2), t(1.0, 2.0)), d.HalfNormal: lambda: d.HalfNormal(t(1.5, 1.0)),
    d.ContinuousBernoulli: lambda: d.ContinuousBernoulli(t(0.3, 0.5)), d.Bernoulli: lambda: d.Bernoulli(t(0.4, 0.5)),
    d.Binomial: lambda: d.Binomial(5, t(0.4, 0.5)), d.Geometric: lambda: d.Geometric(t(0.4, 0.5)),
    d.Poisson: lambda: d.Poisson(t(2.0, 2.0)),
    d.Categorical: lambda: d.Categorical(logits=t(0.0, 0.5, 0.1)),
    d.OneHotCategorical: lambda: d.OneHotCategorical(logits=t(0.0, 0.5, 0.1)),
    d.Dirichlet: lambda: d.Dirichlet(t(2.0, 1.0, 1.5)), d.Independent: lambda: d.Independent(d.Normal(t(0.1, 0.2), t(1.0, 2.0)), 1),
    d.TransformedDistribution: lambda: d.LogNormal(t(0.1, 0.2), t(1.0, 2.0)),
    d.ExponentialFamily: lambda: d.Wishart(t(4.0, 5.0), t(1.0, 0.3, 0.3, 1.5).reshape(2, 2)),
    d.MultivariateNormal: lambda: d.MultivariateNormal(t(0.1, 0.2), t(1.0, -0.5, -0.5, 2.0).reshape(2, 2)),
    d.LowRankMultivariateNormal: lambda: d.LowRankMultivariateNormal(t(0.1, 0.2), t(-0.5, 0.9).reshape(2, 1), t(0.5, 0.7)),
}


@pytest.fixture
def unchecked():
    """To what a distribution lacks it has to give some number, and no error."""
    d.Distribution.set_default_validate_args(False)
    yield
    d.Distribution.set_default_validate_args(True)


@pytest.mark.parametrize("pair", _formulas, ids=lambda pair: f"{pair[0].__name__}-{pair[1].__name__}")
def test_mean_of_the_difference(pair, unchecked):
    torch.manual_seed(2)
    p, q = FIRST[pair[0]](), SECOND[pair[1]]()
    found = _formulas[pair](p, q)
    with warnings.catch_warnings():
        warnings.simplefilter("error")                                   # nothing is ambiguous
        np.testing.assert_allclose(found.detach().numpy(), d.kl_divergence(p, q).detach().numpy(), rtol=1e-9)
    drawn = 2000 if isinstance(p, d.Wishart) else 20000
    x, found = p.sample((drawn,)), found.detach()
    terms = (p.log_prob(x) - q.log_prob(x)).numpy()
    outside = ~np.isfinite(terms) | ~q.support.check(x).numpy()
    if np.isinf(found.numpy()).any():
        assert np.isinf(found.numpy()).all() and (outside.any(0) | (pair[0] is d.Pareto)).all()
    else:
        assert not outside.any()
        assert (np.abs(terms.mean(0) - found.numpy()) < 5 * terms.std(0) / np.sqrt(drawn) + 1e-9).all()


def test_bregman_divergences():
    """Those of exponential families, by the gradient of the normalizer, are the formulas'."""
    between = _formulas[d.ExponentialFamily, d.ExponentialFamily]
    for kind in (d.Normal, d.Exponential, d.Gamma, d.Beta, d.Dirichlet, d.Bernoulli, d.ContinuousBernoulli, d.Poisson):
        p, q = FIRST[kind](), SECOND[kind]()
        np.testing.assert_allclose(between(p, q).detach().numpy(), d.kl_divergence(p, q).numpy(), rtol=1e-7)
        if kind not in (d.Beta, d.Dirichlet, d.Poisson):
            np.testing.assert_allclose(d.ExponentialFamily.entropy(p).detach().numpy(), p.entropy().numpy(), rtol=1e-7)


def test_where_it_is_infinite():
    kl, inf = d.kl_divergence, float("inf")
    assert kl(d.Uniform(t(0.0, 0.0), t(1.0, 2.0)), d.Uniform(0.0, 1.0)).tolist() == [0.0, inf]
    assert kl(d.Uniform(t(0.0, -1.0), t(1.0, 1.0)), d.ContinuousBernoulli(0.3)).isinf().tolist() == [False, True]
    assert kl(d.ContinuousBernoulli(t(0.3, 0.3)), d.Uniform(t(0.0, 0.1), t(1.0, 1.0))).isinf().tolist() == [False, True]
    assert kl(d.Pareto(t(1.0, 1.0), t(0.9, 3.0)), d.Exponential(1.0)).isinf().tolist() == [True, False]
    assert kl(d.Bernoulli(t(0.5, 0.0)), d.Bernoulli(t(0.0, 0.0))).tolist() == [inf, 0.0]
    assert kl(d.Binomial(t(5.0, 6.0), t(0.3, 0.4)), d.Binomial(t(5.0, 5.0), t(0.3, 0.4))).tolist() == [0.0, inf]


def test_own_classes():
    class Narrow(d.Normal):
        pass

    class Wide(d.Normal):
        pass

    p, q = Narrow(0.0, 1.0), Wide(0.0, 2.0)
    inherited = d.kl_divergence(p, q)
    assert inherited.item() == d.kl_divergence(d.Normal(0.0, 1.0), d.Normal(0.0, 2.0)).item()
    d.register_kl(Narrow, d.Normal)(lambda p, q: 1)
    d.register_kl(d.Normal, Wide)(lambda p, q: 2)
    try:
        with pytest.warns(RuntimeWarning, match="ambiguous"):
            assert d.kl_divergence(p, q) == 1
        d.register_kl(Narrow, Wide)(lambda p, q: 3)
        assert d.kl_divergence(p, q) == 3
    finally:
        for pair in ((Narrow, d.Normal), (d.Normal, Wide), (Narrow, Wide)):
            _formulas.pop(pair, None)
    for wrong in ((3, d.Normal), (d.Normal, "Normal")):
        with pytest.raises(TypeError, match="classes of distributions"):
            d.register_kl(*wrong)

    class Own:                                                           # a library may have distributions that are none of ours
        pass

    try:
        d.register_kl(Own, d.Normal)(lambda p, q: q.scale)
        assert d.kl_divergence(Own(), Wide(0.0, 2.0)).item() == 2.0
    finally:
        _formulas.pop((Own, d.Normal), None)
    for p, q in ((d.Binomial(3, t(0.5)), d.Binomial(4, t(0.5))), (d.Normal(0.0, 1.0), d.Cauchy(0.0, 1.0)),
                 (d.LogNormal(0.0, 1.0), d.HalfNormal(1.0)), (d.Normal(0.0, 1.0), d.Poisson(1.0))):
        with pytest.raises(NotImplementedError):
            d.kl_divergence(p, q)
