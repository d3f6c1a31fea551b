"""Adamax, NAdam and RAdam."""
import math

from tritorch.ops.optimize import Recipe
from tritorch.optim.adam import moments_of
from tritorch.optim.listwise import ListWise, decay_of
from tritorch.optim.optimizer import check_options, check_switches


class Adamax(ListWise):
    """m ← β₁m + (1 − β₁)g;  u ← max(β₂u, |g| + ε);  p ← p − γ/(1 − β₁ᵗ) · m / u.  Kingma and Ba 2015, section 7.

    >>> import tritorch as torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.Adamax([w], lr=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.9, 0.9]
    """

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, foreach=None, *, maximize=False,
                 differentiable=False, capturable=False):
        check_options("Adamax", lr=lr, eps=eps, betas=betas, weight_decay=weight_decay)
        check_switches("Adamax", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=foreach, maximize=maximize,
                                      differentiable=differentiable, capturable=capturable))

    def remembers(self, group):
        return "exp_avg", "exp_inf"

    def recipe(self, group):
        return Recipe("adamax", *moments_of(group, "plain", "adam_counter"), **decay_of(group))


class NAdam(ListWise):
    """Adam with Nesterov's momentum. Dozat, "Incorporating Nesterov momentum into Adam", 2016.

    p ← p − γ · ((1 − μₜ)/(1 − ∏μ) g + μₜ₊₁/(1 − μₜ₊₁∏μ) m) / (√(v/(1 − β₂ᵗ)) + ε), with μₜ = β₁(1 − 0.96^(tψ)/2), ψ `momentum_decay`

    >>> import tritorch as torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.NAdam([w], lr=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.8944, 0.8944]
    """

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum_decay=4e-3, decoupled_weight_decay=False,
                 *, foreach=None, maximize=False, capturable=False, differentiable=False):
        check_options("NAdam", lr=lr, eps=eps, betas=betas, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_switches("NAdam", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay,
                                      decoupled_weight_decay=decoupled_weight_decay, maximize=maximize, foreach=foreach,
                                      capturable=capturable, differentiable=differentiable))

    counts = "step", "mu_product"

    def remembers(self, group):
        return "exp_avg", "exp_avg_sq"

    def started(self, name, p, group):
        return 1.0 if name == "mu_product" else super().started(name, p, group)

    def recipe(self, group):
        return Recipe("nadam", *moments_of(group, "plain", "nadam_counter", group["momentum_decay"] * math.log(0.96)),
                      **decay_of(group, group["decoupled_weight_decay"]))


class RAdam(ListWise):
    """Adam whose step is damped while the variance of its denominator is large. Liu et al., "On the variance of the adaptive learning
    rate and beyond", ICLR 2020.

    >>> import tritorch as torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.RAdam([w], lr=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.8, 0.8]
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, decoupled_weight_decay=False, *, foreach=None,
                 maximize=False, capturable=False, differentiable=False):
        check_options("RAdam", lr=lr, eps=eps, betas=betas, weight_decay=weight_decay)
        check_switches("RAdam", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize, foreach=foreach,
                                      capturable=capturable, decoupled_weight_decay=decoupled_weight_decay, differentiable=differentiable))

    def remembers(self, group):
        return "exp_avg", "exp_avg_sq"

    def recipe(self, group):
        return Recipe("radam", *moments_of(group, "plain", "radam_counter", 2 / (1 - group["betas"][1]) - 1),
                      **decay_of(group, group["decoupled_weight_decay"]))
