"""The interpreter that sees, in every thread and below all others, which operators are called with DTensors. It is there once the first
DTensor is made: programs without any do not pay for it."""
import threading

from tritorch.autograd import modes
from tritorch.autograd.modes import State, state
from tritorch.cuda.watching import host_work
from tritorch.dispatch import Interpreter
from tritorch.distributed.tensor import chance, class_pieces, dtensor, pointwise, products, rows, run, views  # noqa: F401 rules
from tritorch.ops.multitensor import MultiTensor
from tritorch.storage import Spread
from tritorch.tensor import Tensor


class Resident(Interpreter):
    """Hands calls with DTensors to `run`. It is one for all threads, each of which may have others below it."""

    looks_on, below = True, threading.local()
    outer = property(lambda self: getattr(self.below, "outer", None), lambda self, other: setattr(self.below, "outer", other))

    def __call__(self, op, args, out):
        if out is not None and is_spread(out) or any(map(is_spread, args)):
            host_work("an operator on DTensors")                         # which compiled functions leave to eager calls
            return run.lists(op, args) if type(op) is MultiTensor else run.call(op, args) if out is None else run.write(op, args, out)
        return self.proceed(op, args, out)


def is_spread(x):
    """Whether x is a DTensor, or a sequence in which there is one."""
    if isinstance(x, Tensor):
        return type(x.storage) is Spread
    return x.__class__ in (tuple, list) and any(map(is_spread, x))


def settle(interpreter):
    """Below all interpreters of this thread, and of every thread that has none."""
    State.interpreter, modes.interpreted = interpreter, True
    if "interpreter" in state.__dict__:
        holder, name = state, "interpreter"
        while getattr(holder, name) is not None:
            holder, name = getattr(holder, name), "outer"
        setattr(holder, name, interpreter)


def begin():
    """From now on there are DTensors."""
    Spread.kind, Spread.gradient, Spread.like = map(staticmethod, (dtensor.standing_for, dtensor.gradient_of, dtensor.like))
    Spread.whole, Spread.on_whole, Spread.rows_first = map(staticmethod, (dtensor.whole_gradient, dtensor.on_whole, dtensor.rows_first))
    settle(Resident())
