"""Stochastic gradient descent."""
from tritorch.autograd.modes import no_grad
from tritorch.errors import check
from tritorch.ops import optimize
from tritorch.optim.optimizer import Optimizer, check_options, check_switches, evaluated, rate_of
from tritorch.tensor import Tensor, empty_like


class SGD(Optimizer):
    """g ← ±g + λp;  b ← μb + (1 − τ)g, at first g;  p ← p − γ·(g + μb if nesterov, else b).

    γ is `lr`, μ `momentum` (Sutskever et al. 2013), τ `dampening`, λ `weight_decay`; `maximize` ascends. All parameters of a group
    and dtype are updated at once. `foreach` and `fused` are accepted and change nothing. Raises ValueError for negative options.

    >>> import tritorch as torch
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    >>> (w * w).sum().backward()
    >>> optimizer.step(); w.detach()
    tensor([0.8000, 1.6000])
    """

    def __init__(self, params, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False, *, maximize=False, foreach=None,
                 differentiable=False, fused=None):
        check_options("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        check(not nesterov or (momentum > 0 and dampening == 0), "SGD", "momentum > 0 and dampening 0 with nesterov", momentum, dampening,
              error=ValueError)
        check_switches("SGD", foreach, fused, differentiable)
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
                                      maximize=maximize, foreach=foreach, differentiable=differentiable, fused=fused))

    @no_grad()
    def step(self, closure=None):
        loss = evaluated(closure)
        for group in self.param_groups:
            params = self.with_gradients(group)
            if not params:
                continue
            fresh = [p for p in params if group["momentum"] and self.state[p].get("momentum_buffer") is None]
            for p in fresh:
                self.state[p]["momentum_buffer"] = empty_like(p)
            known = {id(p) for p in fresh}
            self._update(group, fresh, first=True)
            self._update(group, [p for p in params if id(p) not in known] if fresh else params, first=False)
        return loss

    def _update(self, group, params, first):
        if not params:
            return
        buffers = [self.state[p]["momentum_buffer"] for p in params] if group["momentum"] else None
        decay = group["weight_decay"]
        optimize.sgd(params, [p._grad for p in params], buffers, first, rate_of(group, params), group["momentum"], group["dampening"],
                     decay.item() if isinstance(decay, Tensor) else decay, group["nesterov"], group["maximize"])
