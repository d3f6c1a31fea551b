"""The Kullback-Leibler divergence ∫ p log(p / q), where there is a formula."""
import math

from tritorch.distributions.bernoulli import Bernoulli
from tritorch.distributions.categorical import Categorical
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.independent import Independent
from tritorch.distributions.laplace import Laplace
from tritorch.distributions.normal import Normal
from tritorch.distributions.one_hot_categorical import OneHotCategorical
from tritorch.distributions.uniform import Uniform
from tritorch.errors import check
from tritorch.nn.functional import softplus
from tritorch.ops.compare import where

_formulas = {}


def register_kl(type_p, type_q):
    """A decorator: the function of (p, q) is their divergence."""
    def register(f):
        _formulas[type_p, type_q] = f
        return f

    return register


def kl_divergence(p, q):
    """KL(p ‖ q), by batch. Raises NotImplementedError for a pair without a formula.

    >>> import tritorch as torch
    >>> torch.distributions.kl_divergence(torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(1.0, 1.0))
    tensor(0.5000)
    """
    for a in type(p).__mro__:
        for b in type(q).__mro__:
            if (a, b) in _formulas:
                return _formulas[a, b](p, q)
    raise NotImplementedError(f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; use register_kl")


@register_kl(Normal, Normal)
def _normal(p, q):
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(Laplace, Laplace)
def _laplace(p, q):
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + away / q.scale + ratio * (-away / p.scale).exp() - 1


@register_kl(Exponential, Exponential)
def _exponential(p, q):
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


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


@register_kl(Categorical, Categorical)
def _categorical(p, q):
    terms = p.probs * (p.logits - q.logits)
    return where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, terms)).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p, q):
    return kl_divergence(p._categorical, q._categorical)


@register_kl(Independent, Independent)
def _independent(p, q):
    check(p.reinterpreted_batch_ndims == q.reinterpreted_batch_ndims, "kl_divergence", "as many dims in both", p, q,
          error=NotImplementedError)
    return p._sum(kl_divergence(p.base_dist, q.base_dist))
