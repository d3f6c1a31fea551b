"""Adamax, NAdam and RAdam."""
from tritorch.ops.create import ones, zeros_like
from tritorch.ops.pointwise import maximum
from tritorch.optim.optimizer import check_options, check_switches
from tritorch.optim.parameterwise import ParameterWise


class _WithMoments(ParameterWise):
    """Two moments of the gradient, as in Adam."""

    def start(self, p, state, group):
        state["exp_avg"], state["exp_avg_sq"] = zeros_like(p), zeros_like(p)

    def moments(self, g, state, group):
        """Both, brought up to date."""
        beta1, beta2 = group["betas"]
        return state["exp_avg"].lerp_(g, 1 - beta1), state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)


class Adamax(ParameterWise):
    """m ← β₁m + (1 − β₁)g;  u ← max(β₂u, |g| + ε);  p ← p − γ/(1 − β₁ᵗ) · m / u.  Kingma and Ba 2015, section 7."""

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, foreach=None, *, maximize=False,
                 differentiable=False, capturable=False):
        check_options("Adamax", lr=lr, eps=eps, betas=betas, weight_decay=weight_decay)
        check_switches("Adamax", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=foreach, maximize=maximize,
                                      differentiable=differentiable, capturable=capturable))

    def start(self, p, state, group):
        state["exp_avg"], state["exp_inf"] = zeros_like(p), zeros_like(p)

    def update(self, p, g, state, t, lr, group):
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(g, 1 - beta1)
        size = state["exp_inf"].mul_(beta2)
        size.copy_(maximum(size, g.abs().add_(group["eps"])))
        p.addcdiv_(mean, size, value=-lr / (1 - beta1 ** t))


class NAdam(_WithMoments):
    """Adam with Nesterov's momentum. Dozat, "Incorporating Nesterov momentum into Adam", 2016.

    p ← p − γ · ((1 − μₜ)/(1 − ∏μ) g + μₜ₊₁/(1 − μₜ₊₁∏μ) m) / (√(v/(1 − β₂ᵗ)) + ε), with μₜ = β₁(1 − 0.96^(tψ)/2), ψ `momentum_decay`
    """

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum_decay=4e-3, decoupled_weight_decay=False,
                 *, foreach=None, maximize=False, capturable=False, differentiable=False):
        check_options("NAdam", lr=lr, eps=eps, betas=betas, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_switches("NAdam", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay,
                                      decoupled_weight_decay=decoupled_weight_decay, maximize=maximize, foreach=foreach,
                                      capturable=capturable, differentiable=differentiable))

    def start(self, p, state, group):
        super().start(p, state, group)
        state["mu_product"] = ones((), device="cpu")

    def update(self, p, g, state, t, lr, group):
        beta1, beta2 = group["betas"]
        mu, following = [beta1 * (1.0 - 0.5 * 0.96 ** (k * group["momentum_decay"])) for k in (t, t + 1)]
        product = state["mu_product"].mul_(mu).item()
        mean, square = self.moments(g, state, group)
        size = square.div(1 - beta2 ** t).sqrt_().add_(group["eps"])
        p.addcdiv_(g, size, value=-lr * (1.0 - mu) / (1.0 - product))
        p.addcdiv_(mean, size, value=-lr * following / (1.0 - product * following))


class RAdam(_WithMoments):
    """Adam whose step is damped while the variance of its denominator is large. Liu et al., "On the variance of the adaptive learning
    rate and beyond", ICLR 2020."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, decoupled_weight_decay=False, *, foreach=None,
                 maximize=False, capturable=False, differentiable=False):
        check_options("RAdam", lr=lr, eps=eps, betas=betas, weight_decay=weight_decay)
        check_switches("RAdam", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize, foreach=foreach,
                                      capturable=capturable, decoupled_weight_decay=decoupled_weight_decay, differentiable=differentiable))

    def update(self, p, g, state, t, lr, group):
        beta1, beta2 = group["betas"]
        mean, square = self.moments(g, state, group)
        size, correction2 = lr / (1 - beta1 ** t), 1 - beta2 ** t
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * t * beta2 ** t / correction2              # of the average that v is, in steps
        if length > 5.0:
            shrink = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
            p.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-size * shrink * correction2 ** 0.5)
        else:
            p.add_(mean, alpha=-size)
