"""Every family of tritorch.distributions once: how to make it of arrays, values of its support, and scipy's distribution beside it."""
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

_rng = np.random.default_rng(7)


def positive(*shape):
    return _rng.uniform(0.4, 3.0, shape)


def unit(*shape):
    return _rng.uniform(0.05, 0.95, shape)


def real(*shape):
    return _rng.standard_normal(shape)


def counts(*shape):
    return _rng.integers(0, 6, shape).astype(float)


def simplex(*shape):
    x = _rng.uniform(0.1, 1.0, shape)
    return x / x.sum(-1, keepdims=True)


def definite(*shape):
    x = _rng.standard_normal((*shape, shape[-1]))
    return x @ np.swapaxes(x, -1, -2) / shape[-1] + 0.5 * np.eye(shape[-1])


class Family(NamedTuple):
    """`make(d, *parameters)` with d the module of either library; `beside(*parameters)` is scipy's, if it has one of the same values."""

    make: Any
    parameters: tuple
    value: np.ndarray
    beside: Any = None
    fixed: tuple = ()                                                    # numbers of parameters without a gradient


A, B, S, T, P, Q = real(2, 3), real(3), positive(2, 3), positive(3), unit(2, 3), unit(3)
DF, HALF = np.array([[0.5, 1.0, 1.5], [2.5, 4.5, 7.0]]), np.array([[0.1, 0.5, 0.4999], [0.9, 0.5005, 0.7]])
FAMILIES = {
    "Normal": Family(lambda d, a, b: d.Normal(a, b), (A, T), real(4, 2, 3), lambda a, b: stats.norm(a, b)),
    "Laplace": Family(lambda d, a, b: d.Laplace(a, b), (A, T), real(4, 2, 3), lambda a, b: stats.laplace(a, b)),
    "Cauchy": Family(lambda d, a, b: d.Cauchy(a, b), (A, T), real(4, 2, 3), lambda a, b: stats.cauchy(a, b)),
    "Gumbel": Family(lambda d, a, b: d.Gumbel(a, b), (A, T), real(4, 2, 3), lambda a, b: stats.gumbel_r(a, b)),
    "Uniform": Family(lambda d, a, b: d.Uniform(a, a + b), (A, S), A + S * unit(4, 2, 3), lambda a, b: stats.uniform(a, b)),
    "Exponential": Family(lambda d, a: d.Exponential(a), (S,), positive(4, 2, 3), lambda a: stats.expon(scale=1 / a)),
    "Gamma": Family(lambda d, a, b: d.Gamma(a, b), (S, T), positive(4, 2, 3), lambda a, b: stats.gamma(a, scale=1 / b)),
    "Chi2": Family(lambda d, a: d.Chi2(a), (S,), positive(4, 2, 3), lambda a: stats.chi2(a)),
    "InverseGamma": Family(lambda d, a, b: d.InverseGamma(a, b), (S, T), positive(4, 2, 3), lambda a, b: stats.invgamma(a, scale=b)),
    "Beta": Family(lambda d, a, b: d.Beta(a, b), (S, T), unit(4, 2, 3), lambda a, b: stats.beta(a, b)),
    "StudentT": Family(lambda d, n, a, b: d.StudentT(n, a, b), (DF, A, T), real(4, 2, 3), lambda n, a, b: stats.t(n, a, b)),
    "FisherSnedecor": Family(lambda d, n, m: d.FisherSnedecor(n, m), (DF, 2 * S), positive(4, 2, 3), lambda n, m: stats.f(n, m)),
    "LogNormal": Family(lambda d, a, b: d.LogNormal(a, b), (A, T), positive(4, 2, 3), lambda a, b: stats.lognorm(b, scale=np.exp(a))),
    "Weibull": Family(lambda d, a, b: d.Weibull(a, b), (S, T), positive(4, 2, 3), lambda a, b: stats.weibull_min(b, scale=a)),
    "Pareto": Family(lambda d, a, b: d.Pareto(a, b), (S, T), S * (1 + positive(4, 2, 3)), lambda a, b: stats.pareto(b, scale=a)),
    "Kumaraswamy": Family(lambda d, a, b: d.Kumaraswamy(a, b), (S, T), unit(4, 2, 3)),
    "HalfNormal": Family(lambda d, a: d.HalfNormal(a), (S,), positive(4, 2, 3), lambda a: stats.halfnorm(scale=a)),
    "HalfCauchy": Family(lambda d, a: d.HalfCauchy(a), (S,), positive(4, 2, 3), lambda a: stats.halfcauchy(scale=a)),
    "GeneralizedPareto": Family(lambda d, a, b, c: d.GeneralizedPareto(a, b, c), (A, T, np.array([0.3, 0.7, -0.4])),
                                A + T * unit(4, 2, 3), lambda a, b, c: stats.genpareto(c, a, b)),
    "VonMises": Family(lambda d, a, k: d.VonMises(a, k), (A, np.array([0.3, 3.0, 30.0])), real(4, 2, 3), lambda a, k: stats.vonmises(k, a)),
    "ContinuousBernoulli": Family(lambda d, a: d.ContinuousBernoulli(a), (HALF,), unit(4, 2, 3)),
    "RelaxedBernoulli": Family(lambda d, a, t: d.RelaxedBernoulli(t, a), (P, np.array(0.7)), unit(4, 2, 3)),
    "Bernoulli": Family(lambda d, a: d.Bernoulli(a), (P,), counts(4, 2, 3) % 2, lambda a: stats.bernoulli(a)),
    "Geometric": Family(lambda d, a: d.Geometric(a), (P,), counts(4, 2, 3), lambda a: stats.geom(a, -1)),
    "Poisson": Family(lambda d, a: d.Poisson(a), (S,), counts(4, 2, 3), lambda a: stats.poisson(a)),
    "NegativeBinomial": Family(lambda d, n, a: d.NegativeBinomial(n, a), (S, Q), counts(4, 2, 3), lambda n, a: stats.nbinom(n, 1 - a)),
    "Binomial": Family(lambda d, n, a: d.Binomial(n, a), (np.array([5.0, 6.0, 70.0]), P), counts(4, 2, 3),
                       lambda n, a: stats.binom(n, a), (0,)),
    "Multinomial": Family(lambda d, a: d.Multinomial(5, a), (S,), np.array([[2.0, 3.0, 0.0], [1.0, 1.0, 3.0]])),
    "Categorical": Family(lambda d, a: d.Categorical(a), (S,), _rng.integers(0, 3, (4, 2))),
    "OneHotCategorical": Family(lambda d, a: d.OneHotCategorical(logits=a), (A,), np.eye(3)[[0, 2]]),
    "OneHotCategoricalStraightThrough": Family(lambda d, a: d.OneHotCategoricalStraightThrough(a), (S,), np.eye(3)[[0, 2]]),
    "RelaxedOneHotCategorical": Family(lambda d, a, t: d.RelaxedOneHotCategorical(t, logits=a), (A, np.array(0.7)), simplex(4, 2, 3)),
    "Dirichlet": Family(lambda d, a: d.Dirichlet(a), (S,), simplex(4, 2, 3)),
    "MultivariateNormal": Family(lambda d, a, m: d.MultivariateNormal(a, (m + m.mT) / 2), (A, definite(3)), real(4, 2, 3)),
    "MultivariateNormal by L": Family(lambda d, a, m: d.MultivariateNormal(a, scale_tril=m.tril()), (A, definite(2, 3)),
                                      real(4, 2, 3)),
    "MultivariateNormal by P": Family(lambda d, a, m: d.MultivariateNormal(a, precision_matrix=(m + m.mT) / 2), (B, definite(2, 3)),
                                      real(4, 2, 3)),
    "LowRankMultivariateNormal": Family(lambda d, a, w, b: d.LowRankMultivariateNormal(a, w, b), (A, real(3, 2), T), real(4, 2, 3)),
    "Wishart": Family(lambda d, n, m: d.Wishart(n, (m + m.mT) / 2), (np.array([3.5, 6.0]), definite(3)), definite(4, 2, 3)),
    "Wishart by P": Family(lambda d, n, m: d.Wishart(n, precision_matrix=(m + m.mT) / 2), (np.array(5.0), definite(2, 3)),
                           definite(4, 2, 3)),
    "LKJCholesky": Family(lambda d, a: d.LKJCholesky(3, a), (T[:2],), np.linalg.cholesky([[1, 0.3, -0.2], [0.3, 1, 0.5], [-0.2, 0.5, 1]])),
    "LogisticNormal": Family(lambda d, a, b: d.LogisticNormal(a, b), (A, T), simplex(4, 2, 4)),
    "MixtureSameFamily": Family(lambda d, w, a, b: d.MixtureSameFamily(d.Categorical(logits=w), d.Independent(d.Normal(a, b), 1)),
                                (A, real(2, 3, 5), positive(5)), real(4, 2, 5)),
    "Independent": Family(lambda d, a, b: d.Independent(d.Laplace(a, b), 1), (A, T), real(4, 2, 3)),
    "TransformedDistribution": Family(lambda d, a, b: d.TransformedDistribution(d.Uniform(0.0, 1.0), [
        d.SigmoidTransform().inv, d.AffineTransform(a, -b)]), (A, T), real(4, 2, 3), lambda a, b: stats.logistic(a, b)),
}


def made(lib, name, gradients=True, dtype="float64", device=None):
    """(the distribution in one of the two libraries, its parameters, a value)."""
    family = FAMILIES[name]
    tensors = [lib.from_numpy(np.array(x)) for x in (*family.parameters, family.value)]
    tensors = [x.to(getattr(lib, dtype)) if x.dtype.is_floating_point else x for x in tensors]
    tensors = tensors if device is None else [x.to(device) for x in tensors]
    for k, x in enumerate(tensors):
        if gradients and x.dtype.is_floating_point and k not in family.fixed:
            x.requires_grad_()
    return family.make(lib.distributions, *tensors[:-1]), tensors[:-1], tensors[-1]
