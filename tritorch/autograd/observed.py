"""Nodes that run while somebody looks on: the hunt for NaN gradients, a profiler."""
import contextlib

from tritorch.autograd.modes import state
from tritorch.errors import GradientError
from tritorch.tensor import Tensor

around = None                                                            # a profiler's: around(node) is a context manager for its rules


def by_anyone():
    """Whether somebody looks on in this thread."""
    return state.anomaly is not None or around is not None


def pull(node, grads, leads):
    """node.pull(grads, leads), looked at."""
    with contextlib.nullcontext() if around is None else around(node):
        pairs = node.pull(grads, leads)
    if state.anomaly is not None:
        look_for_nan(node, pairs)
    return pairs


def look_for_nan(node, pairs):
    """Anomaly mode: the first NaN gradient names the node and where it was recorded."""
    gradients = [v for edge, g in pairs for v in (g if type(edge) is list else (g,))]
    for k, g in enumerate(gradients):
        if state.anomaly and isinstance(g, Tensor) and not g.is_meta and bool((g != g).any().item()):
            trace = node.trace or "(the forward call was made outside of anomaly mode)\n"
            raise GradientError(f"{node.name()}: expected gradients without NaN, but it returned nan values in its {k}th output; the "
                                f"forward call was made at\n{trace}")
