"""Stochastic gradient descent."""
from tritorch.cuda.watching import watched
from tritorch.errors import check, real_numbers
from tritorch.ops.create import zeros_like
from tritorch.ops.optimize import Recipe
from tritorch.optim.listwise import ListWise, decay_of
from tritorch.optim.optimizer import check_options, check_switches


class SGD(ListWise):
    """g ← ±g + λp;  b ← μb + (1 − τ)g, at first g;  p ← p − γ·(g + μb if nesterov, else b).

    γ is `lr`, μ `momentum` (Sutskever et al. 2013), τ `dampening`, λ `weight_decay`; `maximize` ascends. All parameters of a group
    and dtype are updated at once. With `fused`, and in a step that is captured, GradScaler need not wait for the GPU. `foreach` is
    accepted and changes nothing. Gradients may be sparse. Raises ValueError for negative options.

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
        real_numbers("SGD", dampening=dampening)
        check(not nesterov or (momentum > 0 and dampening == 0), "SGD", "momentum > 0 and dampening 0 with nesterov", momentum, dampening,
              error=ValueError)
        check_switches("SGD", foreach, fused, differentiable)
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
                                      maximize=maximize, foreach=foreach, differentiable=differentiable, fused=fused))

    counts = ()

    def remembers(self, group):
        return ("momentum_buffer",) if group["momentum"] else ()

    def recipe(self, group):
        kind = "nesterov" if group["nesterov"] else "momentum" if group["momentum"] else "plain"
        return Recipe("sgd", (group["momentum"], 1 - group["dampening"]), kind, **decay_of(group))

    def state_of(self, p, group):
        return self.state[p] if group["momentum"] else {}

    def _update(self, group, recipe, params, states, coefficients):
        fresh = [k for k, s in enumerate(states) if group["momentum"] and s.get("momentum_buffer") is None]
        dampened = bool(fresh and group["dampening"])                    # else 0 is what the first step wants to find
        if dampened and self.found_inf is not None and self._overflowed():
            return
        for k in fresh:
            states[k]["momentum_buffer"] = zeros_like(params[k])
        for kind, some in (("first", fresh), (recipe.kind, [k for k in range(len(params)) if k not in fresh])) if dampened else ():
            if some:
                super()._update(group, recipe._replace(kind=kind), [params[k] for k in some], [states[k] for k in some], coefficients)
        if not dampened:
            super()._update(group, recipe, params, states, coefficients)

    def sparse_step(self, p, g, group):
        """A step with a sparse gradient: the rows that it has, and with momentum those that the buffer has, too."""
        mu = group["momentum"]
        if mu:
            state = self.state[p]
            old = state.get("momentum_buffer")
            b = state["momentum_buffer"] = g.clone() if old is None else (old * mu + g * (1 - group["dampening"])).coalesce()
            g = g + b * mu if group["nesterov"] else b
        p.add_(g, alpha=-float(group["lr"]))

    def _overflowed(self):
        """What GradScaler found, which the host asks for before a first step with dampening. In a call that is being compiled it may: the
        calls behind that step have nothing to ask."""
        watcher = watched.watcher
        if watcher is None or watcher.capture is not None:
            return self.found_inf.item()
        watcher.passing = True
        with watcher.unseen():
            return self.found_inf.item()
