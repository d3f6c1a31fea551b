"""Optimizers that see a parameter as a matrix: Adafactor and Muon."""
import math

from tritorch.dtype import bfloat16, finfo
from tritorch.errors import check, real_numbers
from tritorch.ops.create import new_zeros, zeros_like
from tritorch.optim.optimizer import check_options
from tritorch.optim.parameterwise import ParameterWise


class Adafactor(ParameterWise):
    """Adam without a first moment, whose second moment of a matrix is the product of a column and a row. Shazeer and Stern 2018.

    eps[0] (None: the dtype's epsilon) bounds the denominator, eps[1] the size of a parameter that scales its step, `d` clips updates;
    t^beta2_decay is the weight of the newest gradient.

    >>> import tritorch as torch
    >>> w = torch.ones(2, 2, requires_grad=True)
    >>> optimizer = torch.optim.Adafactor([w], lr=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> [round(v, 4) for v in w.flatten().tolist()]
    [0.9, 0.9, 0.9, 0.9]
    """

    def __init__(self, params, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, *, foreach=None, maximize=False):
        check(isinstance(eps, (tuple, list)) and len(eps) == 2, "Adafactor", "a pair as eps", repr(eps), error=TypeError)
        real_numbers("Adafactor", beta2_decay=beta2_decay, d=d)
        check_options("Adafactor", lr=lr, weight_decay=weight_decay, eps1=eps[0] or 0, eps2=eps[1])
        check(beta2_decay <= 0, "Adafactor", "beta2_decay ≤ 0", beta2_decay, error=ValueError)
        check(d >= 1, "Adafactor", "d ≥ 1", d, error=ValueError)
        super().__init__(params, dict(lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay, foreach=foreach,
                                      maximize=maximize))

    def start(self, p, state, group):
        if p.ndim > 1:
            state["row_var"], state["col_var"] = new_zeros(p, (*p.shape[:-1], 1)), new_zeros(p, (*p.shape[:-2], 1, p.shape[-1]))
        else:
            state["variance"] = zeros_like(p)

    def decayed(self, p, g, lr, group):
        return g                                                         # update shrinks p itself, after a look at its size

    def update(self, p, g, state, t, lr, group):
        if not p.numel():
            return
        least, smallest = finfo(p.dtype).eps if group["eps"][0] is None else group["eps"][0], group["eps"][1]
        newest, rate = t ** group["beta2_decay"], min(lr, 1 / t ** 0.5)
        rate *= max(smallest, p.norm(2).item() / p.numel() ** 0.5)
        if group["weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        if p.ndim > 1:
            row, col = [state[name].lerp_((g * g).mean(d, keepdim=True), newest) for name, d in (("row_var", -1), ("col_var", -2))]
            variance = (row @ col).div_(row.mean(-2, keepdim=True).clamp_(min=least))
        else:
            variance = state["variance"].lerp_(g * g, newest).clone()
        move = variance.clamp_(min=least * least).rsqrt_().mul_(g)
        p.add_(move, alpha=-rate / max(1.0, move.norm(2).item() / (move.numel() ** 0.5 * group["d"])))


class Muon(ParameterWise):
    """Momentum whose update is made orthogonal, for matrices: Jordan et al., https://kellerjordan.github.io/posts/muon/, 2024.

    b ← μb + (1 − μ)g;  p ← (1 − γλ)p − γ' · orthogonalized(b, with `nesterov` (1 − μ)g + μb). γ' is γ·√max(1, rows/columns), or, with
    adjust_lr_fn "match_rms_adamw", 0.2·γ·√max(rows, columns). The iteration runs in bfloat16.
    """

    steps_matter = False

    def __init__(self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_coefficients=(3.4445, -4.775, 2.0315), eps=1e-7,
                 ns_steps=5, adjust_lr_fn=None):
        check_options("Muon", lr=lr, weight_decay=weight_decay, momentum=momentum)
        check(adjust_lr_fn in (None, "original", "match_rms_adamw"), "Muon", "adjust_lr_fn 'original' or 'match_rms_adamw'",
              repr(adjust_lr_fn), error=ValueError)
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov, eps=eps,
                                      ns_coefficients=ns_coefficients, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn))
        for p in self._parameters():
            check(p.ndim == 2, "Muon", "parameters of 2 dims", p.shape, error=ValueError)

    def start(self, p, state, group):
        state["momentum_buffer"] = zeros_like(p)

    def decayed(self, p, g, lr, group):
        p.mul_(1 - lr * group["weight_decay"])
        return g

    def update(self, p, g, state, t, lr, group):
        buffer = state["momentum_buffer"].lerp_(g, 1 - group["momentum"])
        move = g.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        rows, cols = p.shape
        scale = 0.2 * math.sqrt(max(rows, cols)) if group["adjust_lr_fn"] == "match_rms_adamw" else math.sqrt(max(1, rows / cols))
        p.add_(orthogonalized(move, group["ns_coefficients"], group["ns_steps"], group["eps"]).to(p.dtype), alpha=-lr * scale)


def orthogonalized(matrix, coefficients, steps, eps):
    """Near to U Vᵀ of the singular value decomposition U S Vᵀ, by Newton and Schulz's iteration x ← ax + (b xxᵀ + c(xxᵀ)²)x."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.mT if tall else matrix).to(bfloat16)
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.mT if tall else x
