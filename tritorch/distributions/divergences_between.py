"""Divergences between families: the expectation of log q under p, with the entropy of p.

Where p has outcomes that q cannot have, the divergence is infinite.
"""
import math

from tritorch.distributions.bernoulli import Bernoulli
from tritorch.distributions.continuous_bernoulli import ContinuousBernoulli
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.gumbel import Gumbel
from tritorch.distributions.kl import register_kl
from tritorch.distributions.laplace import Laplace
from tritorch.distributions.normal import Normal
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


_infinite(Poisson, [Bernoulli], "rate")
_infinite(Exponential, [ContinuousBernoulli, Pareto, Uniform], "rate")
_infinite(ContinuousBernoulli, [Pareto], "probs")
_infinite(Pareto, [ContinuousBernoulli, Uniform], "scale")
for _whole in Gumbel, Laplace, Normal:                                   # all numbers are outcomes
    _infinite(_whole, [ContinuousBernoulli, Exponential, Pareto, Uniform], "loc")


def _x_log_x(x):
    return x.xlogy(x)


def _mean_log(p):
    """E log x under Uniform(low, high)."""
    width = p.high - p.low
    return (_x_log_x(p.high) - _x_log_x(p.low) - width) / width


def _around(mean, variance, q):
    """-E log q(x) for a normal q."""
    square = q.scale**2
    return 0.5 * (2 * math.pi * square).log() + (variance + (mean - q.loc) ** 2) / (2 * square)


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p, q):
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


@register_kl(ContinuousBernoulli, Exponential)
def _continuous_bernoulli_exponential(p, q):
    return -p.entropy() - q.rate.log() + q.rate * p.mean


@register_kl(ContinuousBernoulli, Normal)
def _continuous_bernoulli_normal(p, q):
    return _around(p.mean, p.variance, q) - p.entropy()


@register_kl(ContinuousBernoulli, Uniform)
def _continuous_bernoulli_uniform(p, q):
    found = (q.high - q.low).log() - p.entropy()
    return where((q.low > 0) | (q.high < 1), math.inf, found)


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p, q):
    product, at = p.rate * q.scale, q.loc / q.scale
    return product.log() - 1 - at + at.exp() * product / (product + 1) + product.reciprocal()


@register_kl(Exponential, Normal)
def _exponential_normal(p, q):
    return _around(p.mean, p.variance, q) - p.entropy()


@register_kl(Gumbel, Normal)
def _gumbel_normal(p, q):
    return _around(p.mean, p.variance, q) - p.entropy()


@register_kl(Laplace, Normal)
def _laplace_normal(p, q):
    return _around(p.mean, p.variance, q) - p.entropy()


@register_kl(Normal, Gumbel)
def _normal_gumbel(p, q):
    away, square = (p.loc - q.loc) / q.scale, (p.scale / q.scale) ** 2
    return q.scale.log() + away + (0.5 * square - away).exp() - p.entropy()


@register_kl(Normal, Laplace)
def _normal_laplace(p, q):
    z = (p.loc - q.loc) / p.scale
    away = math.sqrt(2 / math.pi) * p.scale * (-0.5 * z**2).exp() + (p.loc - q.loc) * (math.sqrt(0.5) * z).erf()
    return (2 * q.scale).log() + away / q.scale - p.entropy()


@register_kl(Pareto, Exponential)
def _pareto_exponential(p, q):
    mean = p.alpha * p.scale / (p.alpha - 1)                             # p's own is infinite where there is none, and so its gradient
    return where(p.alpha <= 1, math.inf, q.rate * mean - q.rate.log() - p.entropy())


@register_kl(Pareto, Normal)
def _pareto_normal(p, q):
    mean = p.alpha * p.scale / (p.alpha - 1)
    variance = mean * p.scale / ((p.alpha - 1) * (p.alpha - 2))
    return where(p.alpha <= 2, math.inf, _around(mean, variance, q) - p.entropy())


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p, q):
    found = -p.entropy() - p.mean * q.logits - (-q.probs).log1p() - q._cont_bern_log_norm()
    return where((p.high > 1) | (p.low < 0), math.inf, found)


@register_kl(Uniform, Exponential)
def _uniform_exponential(p, q):
    found = q.rate * p.mean - q.rate.log() - p.entropy()
    return where(p.low < 0, math.inf, found)


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p, q):
    low, high = (p.low - q.loc) / q.scale, (p.high - q.loc) / q.scale
    share = q.scale / (p.high - p.low)
    return share.log() + 0.5 * (low + high) - share * ((-high).exp() - (-low).exp())


@register_kl(Uniform, Normal)
def _uniform_normal(p, q):
    return _around(p.mean, p.variance, q) - p.entropy()


@register_kl(Uniform, Pareto)
def _uniform_pareto(p, q):
    found = (q.alpha + 1) * _mean_log(p) - q.alpha.log() - q.alpha * q.scale.log() - p.entropy()
    return where(p.low < q.scale, math.inf, found)
