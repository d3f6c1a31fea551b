"""Ordinary tensors among DTensors: which of them are the same on all processes, and which may not be."""
import sys

from tritorch.autograd.modes import state
from tritorch.autograd.places import inside
from tritorch.tensor import Tensor

allowed = []                                                             # not empty: all of them are, says the program


def same_everywhere(x):
    """Whether an ordinary tensor is taken to be the same on all processes: one of one element, which programs make of numbers; one that a
    gradient rule or a function of this package has made, and was not given; all of them where the program says so."""
    return x.numel() == 1 or state.run is not None or bool(allowed) or not _given(x)


def _given(x):
    """Whether the user's program gave a tensor, or one with its memory, to the function or module of this package that is running."""
    frame, last = sys._getframe(2), None
    while frame is not None and inside[frame.f_code.co_filename]:
        if frame.f_code.co_filename.endswith("/nn/module.py") and _among(x, _arguments(frame)):
            return True
        frame, last = frame.f_back, frame
    return last is not None and _among(x, _arguments(last))


def _arguments(frame):
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return [values.get(name) for name in code.co_varnames[:count]]


def _among(x, values):
    for v in values:
        if isinstance(v, Tensor):
            if v.storage is x.storage:
                return True
        elif isinstance(v, (tuple, list)) and _among(x, v) or isinstance(v, dict) and _among(x, v.values()):
            return True
    return False
