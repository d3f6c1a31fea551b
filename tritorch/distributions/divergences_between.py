"""Divergences between families: the expectation of log q under p, with the entropy of p.

Where p has outcomes that q cannot have, the divergence is infinite.
"""
import math

from tritorch.distributions.bernoulli import Bernoulli
from tritorch.distributions.beta import Beta
from tritorch.distributions.binomial import Binomial
from tritorch.distributions.continuous_bernoulli import ContinuousBernoulli
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.gamma import Gamma
from tritorch.distributions.gumbel import Gumbel
from tritorch.distributions.kl import register_kl
from tritorch.distributions.laplace import Laplace
from tritorch.distributions.normal import Normal
from tritorch.distributions.parameters import EULER
from tritorch.distributions.pareto import Pareto
from tritorch.distributions.poisson import Poisson
from tritorch.distributions.uniform import Uniform
from tritorch.ops.compare import where
from tritorch.ops.create import full_like


def _infinite(kind, others, parameter):
    def divergence(p, q):
        return full_like(getattr(p, parameter), math.inf)

    for other in others:
        register_kl(kind, other)(divergence)


_infinite(Poisson, [Bernoulli, Binomial], "rate")
_infinite(Beta, [Pareto], "concentration1")
_infinite(ContinuousBernoulli, [Pareto], "probs")
_infinite(Pareto, [Beta, ContinuousBernoulli, Uniform], "scale")
_infinite(Exponential, [Beta, ContinuousBernoulli, Pareto, Uniform], "rate")
_infinite(Gamma, [Beta, ContinuousBernoulli, Pareto, Uniform], "concentration")
for _whole in Gumbel, Laplace, Normal:                                   # all numbers are outcomes
    _infinite(_whole, [Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform], "loc")


# ------------------------------------------------------------------ -E log q, by moments
def _under_exponential(q, mean):
    return q.rate * mean - q.rate.log()


def _under_gamma(q, mean, mean_log):
    c = q.concentration
    return c.lgamma() - c * q.rate.log() - (c - 1) * mean_log + q.rate * mean


def _under_normal(q, mean, variance):
    square = q.scale**2
    return 0.5 * (2 * math.pi * square).log() + (variance + (mean - q.loc) ** 2) / (2 * square)


def _under_continuous_bernoulli(q, mean):
    return -mean * q.logits - (-q.probs).log1p() - q._cont_bern_log_norm()


def _mean_log(low, high):
    """E log x of uniform numbers."""
    width = high - low
    return (high.xlogy(high) - low.xlogy(low)) / width - 1


def _beta_mean_log(p):
    return p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()


# ------------------------------------------------------------------ by p
@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p, q):
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


@register_kl(Beta, ContinuousBernoulli)
def _beta_continuous_bernoulli(p, q):
    return _under_continuous_bernoulli(q, p.mean) - p.entropy()


@register_kl(Beta, Exponential)
def _beta_exponential(p, q):
    return _under_exponential(q, p.mean) - p.entropy()


@register_kl(Beta, Gamma)
def _beta_gamma(p, q):
    return _under_gamma(q, p.mean, _beta_mean_log(p)) - p.entropy()


@register_kl(Beta, Normal)
def _beta_normal(p, q):
    return _under_normal(q, p.mean, p.variance) - p.entropy()


@register_kl(Beta, Uniform)
@register_kl(ContinuousBernoulli, Uniform)
def _unit_uniform(p, q):
    return where((q.low > 0) | (q.high < 1), math.inf, (q.high - q.low).log() - p.entropy())


@register_kl(ContinuousBernoulli, Exponential)
def _continuous_bernoulli_exponential(p, q):
    return _under_exponential(q, p.mean) - p.entropy()


@register_kl(Exponential, Gamma)
def _exponential_gamma(p, q):
    return _under_gamma(q, p.mean, -EULER - p.rate.log()) - p.entropy()


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p, q):
    product, at = p.rate * q.scale, q.loc / q.scale
    return product.log() - 1 - at + at.exp() * product / (product + 1) + product.reciprocal()


@register_kl(Gamma, Exponential)
def _gamma_exponential(p, q):
    return _under_exponential(q, p.mean) - p.entropy()


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p, q):
    at, product = q.loc / q.scale, p.rate * q.scale
    return q.scale.log() + p.mean / q.scale - at + at.exp() * (1 + product.reciprocal()) ** -p.concentration - p.entropy()


@register_kl(ContinuousBernoulli, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _any_normal(p, q):
    return _under_normal(q, p.mean, p.variance) - p.entropy()


@register_kl(Normal, Gumbel)
def _normal_gumbel(p, q):
    away, square = (p.loc - q.loc) / q.scale, (p.scale / q.scale) ** 2
    return q.scale.log() + away + (0.5 * square - away).exp() - p.entropy()


@register_kl(Normal, Laplace)
def _normal_laplace(p, q):
    z = (p.loc - q.loc) / p.scale
    away = math.sqrt(2 / math.pi) * p.scale * (-0.5 * z**2).exp() + (p.loc - q.loc) * (math.sqrt(0.5) * z).erf()
    return (2 * q.scale).log() + away / q.scale - p.entropy()


def _pareto_mean(p):
    return p.alpha * p.scale / (p.alpha - 1)                             # p.mean is infinite for alpha ≤ 1, and its gradient no number


@register_kl(Pareto, Exponential)
def _pareto_exponential(p, q):
    return where(p.alpha <= 1, math.inf, _under_exponential(q, _pareto_mean(p)) - p.entropy())


@register_kl(Pareto, Gamma)
def _pareto_gamma(p, q):
    found = _under_gamma(q, _pareto_mean(p), p.scale.log() + p.alpha.reciprocal()) - p.entropy()
    return where(p.alpha <= 1, math.inf, found)


@register_kl(Pareto, Normal)
def _pareto_normal(p, q):
    mean = _pareto_mean(p)
    variance = mean * p.scale / ((p.alpha - 1) * (p.alpha - 2))
    return where(p.alpha <= 2, math.inf, _under_normal(q, mean, variance) - p.entropy())


@register_kl(Uniform, Beta)
def _uniform_beta(p, q):
    a, b = q.concentration1, q.concentration0
    logs = (a - 1) * _mean_log(p.low, p.high) + (b - 1) * _mean_log(1 - p.high, 1 - p.low)
    return where((p.high > 1) | (p.low < 0), math.inf, q._log_normalizer(a, b) - logs - p.entropy())


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p, q):
    return where((p.high > 1) | (p.low < 0), math.inf, _under_continuous_bernoulli(q, p.mean) - p.entropy())


@register_kl(Uniform, Exponential)
def _uniform_exponential(p, q):
    return where(p.low < 0, math.inf, _under_exponential(q, p.mean) - p.entropy())


@register_kl(Uniform, Gamma)
def _uniform_gamma(p, q):
    return where(p.low < 0, math.inf, _under_gamma(q, p.mean, _mean_log(p.low, p.high)) - p.entropy())


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p, q):
    low, high = (p.low - q.loc) / q.scale, (p.high - q.loc) / q.scale
    share = q.scale / (p.high - p.low)
    return share.log() + 0.5 * (low + high) - share * ((-high).exp() - (-low).exp())


@register_kl(Uniform, Pareto)
def _uniform_pareto(p, q):
    found = (q.alpha + 1) * _mean_log(p.low, p.high) - q.alpha.log() - q.alpha * q.scale.log() - p.entropy()
    return where(p.low < q.scale, math.inf, found)
