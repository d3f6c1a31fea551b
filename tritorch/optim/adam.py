"""Adam and AdamW."""
from tritorch.autograd.modes import no_grad
from tritorch.dtype import float32
from tritorch.ops import optimize
from tritorch.ops.create import zeros, zeros_like
from tritorch.optim.optimizer import Optimizer, check_options, check_switches, evaluated, rate_of
from tritorch.tensor import Tensor


class Adam(Optimizer):
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

    @property
    def _step_supports_amp_scaling(self):
        self.become_capturable()
        return all(_counts_on_device(group) for group in self.param_groups)

    @no_grad()
    def step(self, closure=None):
        self.become_capturable()
        self.refuse_capture()
        loss = evaluated(closure)
        for group in self.param_groups:
            params = self.with_gradients(group)
            if not params:
                continue
            states = [self.state[p] or self._start(p, group) for p in params]
            steps = [s["step"] for s in states]
            if _counts_on_device(group):
                optimize.advance(steps, self.found_inf)
                self._update(group, params, states, steps)
                continue
            counts = [_advanced(step.array) for step in steps]
            for count in dict.fromkeys(counts):
                some = [k for k, c in enumerate(counts) if c == count]
                self._update(group, [params[k] for k in some], [states[k] for k in some], count)
        return loss

    def _start(self, p, group):
        """The state of a parameter before its first step."""
        state = self.state[p]
        state["step"] = zeros((), dtype=float32, device=p.device if _counts_on_device(group) else "cpu")
        for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[:3 if group["amsgrad"] else 2]:
            state[name] = zeros_like(p)
        return state

    def _update(self, group, params, states, steps):
        largest = [s["max_exp_avg_sq"] for s in states] if group["amsgrad"] else None
        beta1, beta2 = [b.item() if isinstance(b, Tensor) else b for b in group["betas"]]
        optimize.adam(params, [p._grad for p in params], [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], largest, steps,
                      rate_of(group, params), beta1, beta2, group["eps"], group["weight_decay"], group["decoupled_weight_decay"],
                      group["maximize"], self.found_inf)


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


def _advanced(count):
    """The number in a 0-dim array on the host, raised by 1."""
    count.fill(count.item() + 1)
    return count.item()


def _counts_on_device(group):
    return bool(group["capturable"] or group["fused"])
