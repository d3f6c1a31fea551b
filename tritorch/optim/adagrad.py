"""Adagrad, RMSprop and Adadelta: each element's step is divided by the size that its gradients have had."""
from tritorch.errors import check, real_numbers
from tritorch.ops.create import full_like
from tritorch.ops.optimize import Recipe
from tritorch.optim.listwise import ListWise, decay_of
from tritorch.optim.optimizer import check_options, check_switches


class Adagrad(ListWise):
    """s ← s + g²;  p ← p − γ/(1 + (t − 1)η) · g / (√s + ε).  η is `lr_decay`. Duchi et al., JMLR 2011. Gradients may be sparse.

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

        for group in self.param_groups:
            for p in group["params"]:
                self.start(p, group)

    switch = "fused"

    def remembers(self, group):
        return ("sum",)

    def started(self, name, p, group):
        value = group["initial_accumulator_value"]
        return full_like(p, complex(value, value) if p.is_complex() else value) if name == "sum" else super().started(name, p, group)

    def sparse_step(self, p, g, group):
        """A step with a sparse gradient: the elements that it has."""
        state, g = self.state_of(p, group), g.coalesce()
        state["sum"].add_(g * g)
        t = state["step"].item() + 1
        slope = g._values() / state["sum"].sparse_mask(g)._values().sqrt().add(group["eps"])
        p.add_(g.like(slope), alpha=-float(group["lr"]) / (1 + (t - 1) * group["lr_decay"]))
        state["step"] += 1

    def recipe(self, group):
        return Recipe("adagrad", (group["eps"],), "plain", "adagrad_counter", (group["lr_decay"],), **decay_of(group))


class RMSprop(ListWise):
    """s ← αs + (1 − α)g²;  p ← p − γ · g / (√s + ε), `centered`: √(s − m²) with m the mean gradient; with `momentum` by its buffer.

    Hinton, Neural networks for machine learning, lecture 6, 2012; centered: Graves 2013.

    >>> import tritorch as torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.RMSprop([w], lr=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.0, 0.0]
    """

    def __init__(self, params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False, capturable=False, foreach=None,
                 maximize=False, differentiable=False):
        check_options("RMSprop", lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        check_switches("RMSprop", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, momentum=momentum, alpha=alpha, eps=eps, centered=centered, weight_decay=weight_decay,
                                      capturable=capturable, foreach=foreach, maximize=maximize, differentiable=differentiable))

    def remembers(self, group):
        more = ("grad_avg",) if group["centered"] else ()
        return ("square_avg", *more, *(("momentum_buffer",) if group["momentum"] > 0 else ()))

    def recipe(self, group):
        kind = " ".join(["centered"] * bool(group["centered"]) + ["momentum"] * (group["momentum"] > 0))
        return Recipe("rmsprop", (group["alpha"], 1 - group["alpha"], group["eps"], group["momentum"]), kind or "plain", **decay_of(group))


class Adadelta(ListWise):
    """s ← ρs + (1 − ρ)g²;  Δ ← √(u + ε) / √(s + ε) · g;  u ← ρu + (1 − ρ)Δ²;  p ← p − γΔ.  Zeiler 2012.

    >>> import tritorch as torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.Adadelta([w], lr=1.0)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.9968, 0.9968]
    """

    def __init__(self, params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0, foreach=None, *, capturable=False, maximize=False,
                 differentiable=False):
        check_options("Adadelta", lr=lr, eps=eps, weight_decay=weight_decay)
        real_numbers("Adadelta", rho=rho)
        check(0 <= rho <= 1, "Adadelta", "0 ≤ rho ≤ 1", rho, error=ValueError)
        check_switches("Adadelta", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize, capturable=capturable,
                                      foreach=foreach, differentiable=differentiable))

    def remembers(self, group):
        return "square_avg", "acc_delta"

    def recipe(self, group):
        return Recipe("adadelta", (group["rho"], 1 - group["rho"], group["eps"]), **decay_of(group))
