"""Divergences within a family."""
import math

from tritorch.distributions.bernoulli import Bernoulli
from tritorch.distributions.beta import Beta
from tritorch.distributions.binomial import Binomial
from tritorch.distributions.categorical import Categorical
from tritorch.distributions.cauchy import Cauchy
from tritorch.distributions.continuous_bernoulli import ContinuousBernoulli
from tritorch.distributions.dirichlet import Dirichlet
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.gamma import Gamma
from tritorch.distributions.geometric import Geometric
from tritorch.distributions.gumbel import Gumbel
from tritorch.distributions.half_normal import HalfNormal
from tritorch.distributions.independent import Independent
from tritorch.distributions.kl import kl_divergence, register_kl
from tritorch.distributions.laplace import Laplace
from tritorch.distributions.normal import Normal
from tritorch.distributions.one_hot_categorical import OneHotCategorical
from tritorch.distributions.parameters import EULER, sum_rightmost
from tritorch.distributions.pareto import Pareto
from tritorch.distributions.poisson import Poisson
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.uniform import Uniform
from tritorch.errors import check
from tritorch.nn.functional import softplus
from tritorch.ops.bounds import every
from tritorch.ops.compare import where


@register_kl(Normal, Normal)
def _normal(p, q):
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p, q):
    return _normal(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p, q):
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + away / q.scale + ratio * (-away / p.scale).exp() - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p, q):
    """F. Chyzak and F. Nielsen, arXiv:1905.10965."""
    return ((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2).log() - (4 * p.scale * q.scale).log()


@register_kl(Exponential, Exponential)
def _exponential(p, q):
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


@register_kl(Gamma, Gamma)
def _gamma(p, q):
    a, b = p.concentration, q.concentration
    return b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma() + (a - b) * a.digamma() + (q.rate - p.rate) * (a / p.rate)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p, q):
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    norms = total.lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    return norms + ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)


@register_kl(Beta, Beta)
def _beta(p, q):
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(Gumbel, Gumbel)
def _gumbel(p, q):
    ratio, away = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return -ratio.log() + away + ratio * EULER + ((1 + ratio).lgamma() - away).exp() - (1 + EULER)


@register_kl(Pareto, Pareto)
def _pareto(p, q):
    ratio = q.alpha / p.alpha
    found = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return where(p.scale < q.scale, math.inf, found)


@register_kl(Uniform, Uniform)
def _uniform(p, q):
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return where((q.low > p.low) | (q.high < p.high), math.inf, found)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p, q):
    one = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    zero = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    one = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, one))
    return one + where(p.probs == 1, 0.0, where(q.probs == 1, math.inf, zero))


@register_kl(Binomial, Binomial)
def _binomial(p, q):
    p_counts, q_counts = p.total_count, q.total_count
    if p_counts.device.type == "cpu":
        larger = bool(every(p_counts < q_counts).any())
        check(not larger, "kl_divergence", "no larger total_count in q", (p_counts.detach(), q_counts.detach()), error=NotImplementedError)
    found = p_counts * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())
    return where(p_counts > q_counts, math.inf, found)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p, q):
    ours, theirs = p._cont_bern_log_norm() + (-p.probs).log1p(), q._cont_bern_log_norm() + (-q.probs).log1p()
    return p.mean * (p.logits - q.logits) + ours - theirs


@register_kl(Geometric, Geometric)
def _geometric(p, q):
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p, q):
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
def _categorical(p, q):
    terms = p.probs * (p.logits - q.logits)
    return where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, terms)).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p, q):
    return _categorical(p._categorical, q._categorical)


@register_kl(Independent, Independent)
def _independent(p, q):
    check(p.reinterpreted_batch_ndims == q.reinterpreted_batch_ndims, "kl_divergence", "as many dims in both", p, q,
          error=NotImplementedError)
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p, q):
    """A bijection changes nothing."""
    same = p.transforms == q.transforms and p.event_shape == q.event_shape
    check(same, "kl_divergence", "the same transforms and event_shape", p, q, error=NotImplementedError)
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(ExponentialFamily, ExponentialFamily)
def _bregman(p, q):
    """F(θ_q) - F(θ_p) - ⟨θ_q - θ_p, ∇F(θ_p)⟩."""
    check(type(p) is type(q), "kl_divergence", "two of one family", p, q, error=NotImplementedError)
    leaves, normalizer, gradients = p._bregman()
    theirs = q._natural_params
    result = q._log_normalizer(*theirs) - normalizer
    for ours, other, g in zip(leaves, theirs, gradients):
        term = (other - ours) * g
        result = result - sum_rightmost(term, len(term.shape) - len(result.shape))
    return result
