"""Adagrad, RMSprop and Adadelta: each element's step is divided by the size that its gradients have had."""
from tritorch.ops.create import full_like, zeros_like
from tritorch.optim.optimizer import check_options, check_switches
from tritorch.optim.parameterwise import ParameterWise


class Adagrad(ParameterWise):
    """s ← s + g²;  p ← p − γ/(1 + (t − 1)η) · g / (√s + ε).  η is `lr_decay`. Duchi et al., JMLR 2011.

    >>> import tritorch as torch
    >>> w = torch.tensor([1.0, -2.0], requires_grad=True)
    >>> w.grad = torch.tensor([3.0, -4.0])
    >>> torch.optim.Adagrad([w], lr=0.5).step(); w.detach()
    tensor([ 0.5000, -1.5000])
    """

    def __init__(self, params, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, foreach=None, *, maximize=False,
                 differentiable=False, fused=None):
        check_options("Adagrad", lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps,
                      initial_accumulator_value=initial_accumulator_value)
        check_switches("Adagrad", foreach, fused, differentiable)
        super().__init__(params, dict(lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay, maximize=maximize, foreach=foreach,
                                      initial_accumulator_value=initial_accumulator_value, differentiable=differentiable, fused=fused))

    def start(self, p, state, group):
        state["sum"] = full_like(p, group["initial_accumulator_value"])

    def update(self, p, g, state, t, lr, group):
        total = state["sum"].addcmul_(g, g)
        p.addcdiv_(g, total.sqrt().add_(group["eps"]), value=-lr / (1 + (t - 1) * group["lr_decay"]))


class RMSprop(ParameterWise):
    """s ← αs + (1 − α)g²;  p ← p − γ · g / (√s + ε), `centered`: √(s − m²) with m the mean gradient; with `momentum` by its buffer.

    Hinton, Neural networks for machine learning, lecture 6, 2012; centered: Graves 2013.
    """

    counts = False

    def __init__(self, params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False, capturable=False, foreach=None,
                 maximize=False, differentiable=False):
        check_options("RMSprop", lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        check_switches("RMSprop", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, momentum=momentum, alpha=alpha, eps=eps, centered=centered, weight_decay=weight_decay,
                                      capturable=capturable, foreach=foreach, maximize=maximize, differentiable=differentiable))

    def start(self, p, state, group):
        state["square_avg"] = zeros_like(p)
        if group["momentum"] > 0:
            state["momentum_buffer"] = zeros_like(p)
        if group["centered"]:
            state["grad_avg"] = zeros_like(p)

    def update(self, p, g, state, t, lr, group):
        size = state["square_avg"].mul_(group["alpha"]).addcmul_(g, g, value=1 - group["alpha"])
        if group["centered"]:
            mean = state["grad_avg"].lerp_(g, 1 - group["alpha"])
            size = size.addcmul(mean, mean, value=-1)
        size = size.sqrt().add_(group["eps"])
        if group["momentum"] > 0:
            p.add_(state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(g, size), alpha=-lr)
        else:
            p.addcdiv_(g, size, value=-lr)


class Adadelta(ParameterWise):
    """s ← ρs + (1 − ρ)g²;  Δ ← √(u + ε) / √(s + ε) · g;  u ← ρu + (1 − ρ)Δ²;  p ← p − γΔ.  Zeiler 2012."""

    counts = False

    def __init__(self, params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0, foreach=None, *, capturable=False, maximize=False,
                 differentiable=False):
        check_options("Adadelta", lr=lr, betas=(rho,), eps=eps, weight_decay=weight_decay)
        check_switches("Adadelta", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize, capturable=capturable,
                                      foreach=foreach, differentiable=differentiable))

    def start(self, p, state, group):
        state["square_avg"], state["acc_delta"] = zeros_like(p), zeros_like(p)

    def update(self, p, g, state, t, lr, group):
        rho, eps = group["rho"], group["eps"]
        size = state["square_avg"].mul_(rho).addcmul_(g, g, value=1 - rho)
        delta = state["acc_delta"].add(eps).sqrt_().div_(size.add(eps).sqrt_()).mul_(g)
        state["acc_delta"].mul_(rho).addcmul_(delta, delta, value=1 - rho)
        p.add_(delta, alpha=-lr)
