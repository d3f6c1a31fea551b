"""ASGD, which averages, and Rprop, which looks at signs alone."""
from tritorch.errors import check
from tritorch.ops.compare import where
from tritorch.ops.create import full_like, tensor, zeros_like
from tritorch.optim.optimizer import check_options, check_switches
from tritorch.optim.parameterwise import ParameterWise


class ASGD(ParameterWise):
    """p ← (1 − λη)p − ηg, with η = γ/(1 + λγt)^α; the average of p from step `t0` on is in `state[p]["ax"]`. Polyak and Juditsky 1992."""

    def __init__(self, params, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0, foreach=None, maximize=False, differentiable=False,
                 capturable=False):
        check_options("ASGD", lr=lr, weight_decay=weight_decay)
        check_switches("ASGD", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay, foreach=foreach, maximize=maximize,
                                      differentiable=differentiable, capturable=capturable))

    def start(self, p, state, group):
        state["eta"], state["mu"], state["ax"] = tensor(float(group["lr"]), device="cpu"), tensor(1.0, device="cpu"), zeros_like(p)

    def update(self, p, g, state, t, lr, group):
        eta, mu = state["eta"].item(), state["mu"].item()
        p.mul_(1 - group["lambd"] * eta).add_(g, alpha=-eta)
        if mu == 1:
            state["ax"].copy_(p)
        else:
            state["ax"].add_(p.sub(state["ax"]).mul_(mu))
        state["eta"].fill_(lr / (1 + group["lambd"] * lr * t) ** group["alpha"])
        state["mu"].fill_(1 / max(1, t - group["t0"]))


class Rprop(ParameterWise):
    """p ← p − sign(g) · s: the step s of an element grows by etas[1] while the sign of its gradient stays, and shrinks by etas[0], without
    a move, where it changes; s stays within `step_sizes`. Riedmiller and Braun 1993."""

    counts = False

    def __init__(self, params, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50), *, capturable=False, foreach=None, maximize=False,
                 differentiable=False):
        check_options("Rprop", lr=lr)
        check(0.0 < etas[0] < 1.0 < etas[1], "Rprop", "0 < etas[0] < 1 < etas[1]", etas, error=ValueError)
        check_switches("Rprop", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, etas=etas, step_sizes=step_sizes, foreach=foreach, maximize=maximize,
                                      differentiable=differentiable, capturable=capturable))

    def start(self, p, state, group):
        state["prev"], state["step_size"] = zeros_like(p), full_like(p, float(group["lr"]))

    def update(self, p, g, state, t, lr, group):
        agree = g * state["prev"]
        state["step_size"].mul_(where(agree > 0, group["etas"][1], where(agree < 0, group["etas"][0], 1.0)).to(p.dtype))
        state["step_size"].clamp_(*group["step_sizes"])
        g = g.masked_fill(agree < 0, 0.0)
        p.addcmul_(g.sign(), state["step_size"], value=-1)
        state["prev"].copy_(g)
