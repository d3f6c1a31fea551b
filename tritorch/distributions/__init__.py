"""Probability distributions under the names of torch.distributions: sample, log_prob, entropy, and their gradients.

Parameters and values on the CPU are checked (ValueError) unless `validate_args=False`; those on a device are not, as nothing waits for it.

>>> import tritorch as torch
>>> policy = torch.distributions.Categorical(logits=torch.tensor([0.0, 1.0, 2.0]))
>>> policy.log_prob(torch.tensor([2, 0]))
tensor([-0.4076, -2.4076])
>>> torch.distributions.Normal(0.0, 2.0).entropy()
tensor(2.1121)
"""
from tritorch.distributions.bernoulli import Bernoulli
from tritorch.distributions.categorical import Categorical
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.exponential import Exponential
from tritorch.distributions.independent import Independent
from tritorch.distributions.kl import kl_divergence, register_kl
from tritorch.distributions.laplace import Laplace
from tritorch.distributions.normal import Normal
from tritorch.distributions.one_hot_categorical import OneHotCategorical
from tritorch.distributions.uniform import Uniform

__all__ = ["Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace", "Normal", "OneHotCategorical", "Uniform",
           "kl_divergence", "register_kl"]
