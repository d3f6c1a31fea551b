"""ParameterWise: the optimizers that update one parameter after the other, in public operators."""
from tritorch.autograd.modes import no_grad
from tritorch.cuda.stream import current_handle, is_capturing
from tritorch.cuda.watching import host_work
from tritorch.dtype import float32
from tritorch.errors import check, real_numbers
from tritorch.ops.create import zeros
from tritorch.optim.optimizer import Optimizer, evaluated
from tritorch.tensor import Tensor


class ParameterWise(Optimizer):
    """Subclasses give `start(p, state, group)`, which fills a new state, and `update(p, g, state, t, lr, group)`, which is step t."""

    steps_matter = True                                                  # whether the update depends on t, a number of the host

    @no_grad()
    def step(self, closure=None):
        host_work("numbers of the optimizer that the host keeps")
        loss = evaluated(closure)
        for group in self.param_groups:                                  # before the first parameter is written
            real_numbers(type(self).__name__, **{name: group[name] for name in ("lr", "weight_decay") if name in group})
        for group in self.param_groups:
            lr = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
            for p in self.with_gradients(group):
                check(not p.dtype.is_complex, type(self).__name__, "real parameters", p.dtype)
                check(not self.steps_matter or p.device.type == "cpu" or not is_capturing(p.device.index, current_handle(p.device.index)),
                      type(self).__name__, "no CUDA graph capture, which would repeat one step", "one", use="Adam(capturable=True)")
                state = self.state[p]
                if not state:
                    found = {"step": zeros((), dtype=float32, device="cpu")} if self.steps_matter else {}
                    self.start(p, found, group)
                    state.update(found)                                  # all of it, or nothing where there is no memory for it
                g, t = -p.grad if group.get("maximize") else p.grad, state["step"].item() + 1 if self.steps_matter else None
                self.update(p, self.decayed(p, g, lr, group), state, t, lr, group)
                if self.steps_matter:
                    state["step"] += 1                                   # afterwards: a step that raised an error was none
        return loss

    def decayed(self, p, g, lr, group):
        """The gradient with the one of weight_decay / 2 · p² in it; or, decoupled, the parameter shrunk."""
        decay = group.get("weight_decay", 0)
        if decay and group.get("decoupled_weight_decay"):
            p.mul_(1 - lr * decay)
        elif decay:
            return g.add(p, alpha=decay)
        return g

    def start(self, p, state, group):
        """Fill the state of a parameter before its first step."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method start in the subclass")

    def update(self, p, g, state, t, lr, group):
        """Step t of a parameter with the gradient g, in place."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method update in the subclass")
