"""What programs call of torch._dynamo, PyTorch's compiler, before and after `compile`; there is no such compiler here.

>>> import tritorch as torch
>>> torch._dynamo.config.cache_size_limit = 64
>>> x = torch.ones(2); torch._dynamo.mark_dynamic(x, 0); torch._dynamo.reset()
"""
from tritorch._dynamo import config, eval_frame, exc, utils
from tritorch._dynamo.eval_frame import OptimizedModule
from tritorch.compiler import allow_in_graph, assume_constant_result, disable, is_compiling, reset

__all__ = ["OptimizedModule", "allow_in_graph", "assume_constant_result", "config", "disable", "eval_frame", "exc", "graph_break",
           "is_compiling", "mark_dynamic", "mark_static", "mark_static_address", "maybe_mark_dynamic", "reset", "utils"]


def mark_dynamic(t, index, *, hint_override=None, min=None, max=None, specialize_on=None):
    """Nothing: every shape has a recording of its own."""


def maybe_mark_dynamic(t, index):
    """Nothing, as `mark_dynamic`."""


def mark_static(t, index=None):
    """Nothing: all sizes are."""


def mark_static_address(t, guard=False):
    """Nothing: what a recording reads from outside, it reads where that lies."""


def graph_break(msg=""):
    """Nothing: what Python does between operators is not looked at."""
