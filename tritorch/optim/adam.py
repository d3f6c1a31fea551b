"""Adam and AdamW."""
import math

from tritorch.ops.optimize import Recipe
from tritorch.optim.listwise import ListWise, decay_of
from tritorch.optim.optimizer import check_options, check_switches
from tritorch.tensor import Tensor


class Adam(ListWise):
    """g ← ±g + λp;  m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²;  p ← p − γ/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε).

    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015. γ is `lr`, λ `weight_decay`; `amsgrad` divides by the
    largest v so far (Reddi et al. 2018); `decoupled_weight_decay` makes it AdamW. All parameters of a group and dtype are updated
    at once, on CUDA by one kernel. State has the parameter's dtype; half types compute in float32. With `capturable` or `fused` the
    count of steps lies on the device: `capturable` steps can be recorded into a CUDA graph, and `GradScaler` need not wait for the
    GPU. `foreach` is accepted and changes nothing.

    >>> import tritorch as torch
    >>> w = torch.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = torch.optim.Adam([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> optimizer.step(); w.detach()
    tensor([ 0.9000, -1.9000])
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False, *, foreach=None, maximize=False,
                 capturable=False, differentiable=False, fused=None, decoupled_weight_decay=False):
        name = type(self).__name__
        check_options(name, lr=lr, eps=eps, betas=betas, weight_decay=weight_decay)
        check_switches(name, foreach, fused, differentiable)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize,
                                      foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused,
                                      decoupled_weight_decay=decoupled_weight_decay))

    def remembers(self, group):
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[:3 if group["amsgrad"] else 2]

    def recipe(self, group):
        return Recipe("adam", *moments_of(group, "amsgrad" if group["amsgrad"] else "plain", "adam_counter"),
                      **decay_of(group, group["decoupled_weight_decay"]))


class AdamW(Adam):
    """Adam whose weight decay does not go through the moments: p ← p − γλp. Loshchilov and Hutter 2019. The rest is as in `Adam`.

    >>> import tritorch as torch
    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> optimizer = torch.optim.AdamW([w], lr=0.1, weight_decay=0.5)
    >>> w.grad = torch.zeros(1)
    >>> optimizer.step(); w.detach()
    tensor([0.9500])
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, *, maximize=False, foreach=None,
                 capturable=False, differentiable=False, fused=None):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
                         differentiable=differentiable, fused=fused, decoupled_weight_decay=True)


def moments_of(group, kind, counter, *constants):
    """The fields of a recipe that the betas and eps make: numbers, kind, counter, constants."""
    betas = [b.item() if isinstance(b, Tensor) else b for b in group["betas"]]
    logs = [math.log(b) if b else -math.inf for b in betas]
    return (betas[1], 1 - betas[0], 1 - betas[1], group["eps"]), kind, counter, (*logs, *constants)
