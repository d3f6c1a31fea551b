"""Probability distributions under the names of torch.distributions: sample, log_prob, entropy, and their gradients.

Parameters and values on the CPU are checked (ValueError) unless `validate_args=False`; those on a device are not, as nothing waits for it.

>>> import tritorch as torch
>>> policy = torch.distributions.Categorical(logits=torch.tensor([0.0, 1.0, 2.0]))
>>> policy.log_prob(torch.tensor([2, 0]))
tensor([-0.4076, -2.4076])
>>> torch.distributions.Normal(0.0, 2.0).entropy()
tensor(2.1121)
"""
from tritorch.distributions import constraints, transforms, utils
from tritorch.distributions.bernoulli import Bernoulli
from tritorch.distributions.beta import Beta
from tritorch.distributions.binomial import Binomial
from tritorch.distributions.categorical import Categorical
from tritorch.distributions.cauchy import Cauchy
from tritorch.distributions.chi2 import Chi2
from tritorch.distributions.constraint_registry import biject_to, transform_to
from tritorch.distributions.continuous_bernoulli import ContinuousBernoulli
from tritorch.distributions.dirichlet import Dirichlet
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.fishersnedecor import FisherSnedecor
from tritorch.distributions.gamma import Gamma
from tritorch.distributions.generalized_pareto import GeneralizedPareto
from tritorch.distributions.geometric import Geometric
from tritorch.distributions.gumbel import Gumbel
from tritorch.distributions.half_cauchy import HalfCauchy
from tritorch.distributions.half_normal import HalfNormal
from tritorch.distributions.independent import Independent
from tritorch.distributions.inverse_gamma import InverseGamma
from tritorch.distributions.kl import kl_divergence, register_kl
from tritorch.distributions.kumaraswamy import Kumaraswamy
from tritorch.distributions.laplace import Laplace
from tritorch.distributions.lkj_cholesky import LKJCholesky
from tritorch.distributions.log_normal import LogNormal
from tritorch.distributions.logistic_normal import LogisticNormal
from tritorch.distributions.lowrank_multivariate_normal import LowRankMultivariateNormal
from tritorch.distributions.mixture_same_family import MixtureSameFamily
from tritorch.distributions.multinomial import Multinomial
from tritorch.distributions.multivariate_normal import MultivariateNormal
from tritorch.distributions.negative_binomial import NegativeBinomial
from tritorch.distributions.normal import Normal
from tritorch.distributions.one_hot_categorical import OneHotCategorical, OneHotCategoricalStraightThrough
from tritorch.distributions.pareto import Pareto
from tritorch.distributions.poisson import Poisson
from tritorch.distributions.relaxed_bernoulli import RelaxedBernoulli
from tritorch.distributions.relaxed_categorical import RelaxedOneHotCategorical
from tritorch.distributions.studentT import StudentT
from tritorch.distributions.transformed_distribution import TransformedDistribution
from tritorch.distributions.transforms import *  # noqa: F403
from tritorch.distributions.uniform import Uniform
from tritorch.distributions.von_mises import VonMises
from tritorch.distributions.weibull import Weibull
from tritorch.distributions.wishart import Wishart

from tritorch.distributions import divergences, divergences_between, divergences_of_vectors  # isort: skip

__all__ = ["Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli", "Dirichlet", "Distribution",
           "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric", "Gumbel", "HalfCauchy",
           "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal",
           "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal",
           "OneHotCategorical", "OneHotCategoricalStraightThrough", "Pareto", "Poisson", "RelaxedBernoulli", "RelaxedOneHotCategorical",
           "StudentT", "TransformedDistribution", "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "kl_divergence",
           "register_kl", "transform_to", *transforms.__all__]
