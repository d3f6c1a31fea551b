"""ASGD, which averages, and Rprop, which looks at signs alone."""
from tritorch.errors import check, real_numbers
from tritorch.ops.create import full_like
from tritorch.ops.optimize import Recipe
from tritorch.optim.listwise import ListWise, decay_of
from tritorch.optim.optimizer import check_options, check_switches, pair_of_numbers


class ASGD(ListWise):
    """p ← (1 − λη)p − ηg, with η = γ/(1 + λγt)^α; the average of p from step `t0` on is in `state[p]["ax"]`. Polyak and Juditsky 1992.

    >>> import tritorch as torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.ASGD([w], lr=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.8, 0.8]
    """

    def __init__(self, params, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0, foreach=None, maximize=False, differentiable=False,
                 capturable=False):
        check_options("ASGD", lr=lr, weight_decay=weight_decay)
        real_numbers("ASGD", lambd=lambd, alpha=alpha, t0=t0)
        check_switches("ASGD", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay, foreach=foreach, maximize=maximize,
                                      differentiable=differentiable, capturable=capturable))

    counts = "step", "eta", "mu"

    def remembers(self, group):
        return ("ax",)

    def started(self, name, p, group):
        return {"eta": float(group["lr"]), "mu": 1.0}.get(name) or super().started(name, p, group)

    def recipe(self, group):
        return Recipe("asgd", (group["lambd"],), "plain", "asgd_counter", (group["lambd"], group["alpha"], group["t0"]), **decay_of(group))


class Rprop(ListWise):
    """p ← p − sign(g) · s: the step s of an element grows by etas[1] while the sign of its gradient stays, and shrinks by etas[0], without
    a move, where it changes; s stays within `step_sizes`. Riedmiller and Braun 1993."""

    def __init__(self, params, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50), *, capturable=False, foreach=None, maximize=False,
                 differentiable=False):
        check_options("Rprop", lr=lr)
        pair_of_numbers("Rprop", "etas", etas)
        pair_of_numbers("Rprop", "step_sizes", step_sizes)
        check(0.0 < etas[0] < 1.0 < etas[1], "Rprop", "0 < etas[0] < 1 < etas[1]", etas, error=ValueError)
        check_switches("Rprop", foreach, None, differentiable)
        super().__init__(params, dict(lr=lr, etas=etas, step_sizes=step_sizes, foreach=foreach, maximize=maximize,
                                      differentiable=differentiable, capturable=capturable))

    def remembers(self, group):
        return "prev", "step_size"

    def started(self, name, p, group):
        if name != "step_size":
            return super().started(name, p, group)
        lr = float(group["lr"])
        return full_like(p, complex(lr, lr) if p.dtype.is_complex else lr)         # the parts of complex numbers are numbers of their own

    def recipe(self, group):
        return Recipe("rprop", (*group["etas"], *group["step_sizes"]), maximize=bool(group["maximize"]))
