"""SparseAdam: Adam for the rows that a sparse gradient has, while the others rest."""
import math

from tritorch.autograd.modes import no_grad
from tritorch.errors import check, real_numbers
from tritorch.layout import sparse_coo
from tritorch.ops.create import zeros_like
from tritorch.optim.optimizer import Optimizer, check_options, evaluated
from tritorch.tensor import Tensor


class SparseAdam(Optimizer):
    """m ← m + (1 − β₁)(g − m);  v ← v + (1 − β₂)(g² − v);  p ← p − γ√(1 − β₂ᵗ)/(1 − β₁ᵗ) · m / (√v + ε), where the sparse gradient g has
    elements, and nowhere else. Parameters are strided and real. Kingma and Ba 2015.

    The number of elements is read from the device. Raises RuntimeError for strided gradients.

    >>> import tritorch as torch
    >>> table = torch.nn.Embedding(3, 2, sparse=True)
    >>> torch.nn.init.zeros_(table.weight)
    Parameter containing:
    tensor([[0., 0.],
            [0., 0.],
            [0., 0.]], requires_grad=True)
    >>> optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.5)
    >>> table(torch.tensor([2])).sum().backward()
    >>> optimizer.step(); table.weight.detach()
    tensor([[ 0.0000,  0.0000],
            [ 0.0000,  0.0000],
            [-0.5000, -0.5000]])
    """

    counts = ()                                                          # the step is a number, as in PyTorch

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, maximize=False):
        check_options("SparseAdam", lr=lr, betas=betas, eps=eps)
        check(lr > 0 and eps > 0, "SparseAdam", "lr and eps greater than 0", lr, eps, error=ValueError)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, maximize=maximize))
        for group in self.param_groups:
            for p in group["params"]:
                check(not p.is_sparse, "SparseAdam", "strided parameters", p.layout, error=ValueError)
                check(not p.is_complex(), "SparseAdam", "real parameters", p.dtype, error=ValueError)

    @no_grad()
    def step(self, closure=None):
        """Update the parameters; `closure` computes the loss, which is returned."""
        loss = evaluated(closure)
        for group in self.param_groups:
            real_numbers("SparseAdam", lr=group["lr"], eps=group["eps"])
            for p in group["params"]:
                check(p._grad is None or p._grad.layout is sparse_coo, "SparseAdam", "sparse gradients (it does not support dense ones)",
                      getattr(p._grad, "layout", None), use="Adam")
        for group in self.param_groups:
            lr = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
            for p in group["params"]:
                if p._grad is not None:
                    self._update(p, -p._grad if group["maximize"] else p._grad, lr, *group["betas"], group["eps"])
        return loss

    def _update(self, p, g, lr, beta1, beta2, eps):
        state = self.state[p]
        if not state:
            state.update(step=0, exp_avg=zeros_like(p), exp_avg_sq=zeros_like(p))
        state["step"] += 1
        g, t = g.coalesce(), state["step"]
        if not g._nnz():
            return
        moments = []
        for name, beta, new in (("exp_avg", beta1, g._values()), ("exp_avg_sq", beta2, g._values().square())):
            old = state[name].sparse_mask(g)._values()
            change = (new - old) * (1 - beta)
            state[name].add_(g.like(change))
            moments.append(old + change)
        size = lr * math.sqrt(1 - beta2 ** t) / (1 - beta1 ** t)
        p.add_(g.like(moments[0] / (moments[1].sqrt() + eps)), alpha=-size)
