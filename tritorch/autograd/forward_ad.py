"""Forward mode by hand: dual tensors inside a dual level.

>>> import tritorch as torch
>>> from tritorch.autograd import forward_ad as fwAD
>>> with fwAD.dual_level():
...     x = fwAD.make_dual(torch.tensor(3.0), torch.tensor(1.0))
...     fwAD.unpack_dual(x * x).tangent
tensor(6.)
"""
from typing import NamedTuple

from tritorch.autograd.forward import Level
from tritorch.autograd.modes import state
from tritorch.errors import check
from tritorch.tensor import Tensor


class UnpackedDualTensor(NamedTuple):
    """What a dual tensor is made of; the tangent is None where there is none."""

    primal: Tensor
    tangent: Tensor | None


def _current():
    level = state.interpreter
    while level is not None and not (isinstance(level, Level) and level.by_hand):
        level = level.outer
    return level


def enter_dual_level():
    """Begin to carry tangents; returns the level."""
    check(_current() is None, "enter_dual_level", "no dual level around (Nested forward mode AD is not supported at the moment)", "one",
          use="func.jvp, which nests")
    level = Level()
    level.by_hand = True
    return level.__enter__()


def exit_dual_level(*, level=None):
    """End the dual level: its tangents are gone."""
    found = _current()
    check(found is not None and level in (None, found), "exit_dual_level", "the dual level that was entered last",
          "another" if found else "none")
    check(state.interpreter is found, "exit_dual_level", "the dual level innermost", type(state.interpreter).__name__)
    found.__exit__()


class dual_level:
    """Inside, dual tensors carry their tangents through every operator."""

    def __enter__(self):
        self.level = enter_dual_level()
        return self.level

    def __exit__(self, *exception):
        exit_dual_level(level=self.level)


def make_dual(tensor, tangent, *, level=None):
    """The tensor as one that carries `tangent`, of the same shape and dtype."""
    level = level or _current()
    check(level is not None, "make_dual", "a dual level around", "none", use="with dual_level():")
    check(tensor.dtype.has_gradients, "make_dual", "a floating or complex tensor", tensor.dtype, error=ValueError)
    check(tangent.shape == tensor.shape and tangent.dtype is tensor.dtype, "make_dual",
          f"a tangent of shape {tensor.shape} and {tensor.dtype}", tangent.shape, tangent.dtype)
    return level.dual(tensor, tangent)


def unpack_dual(tensor, *, level=None):
    """(primal, tangent) of a tensor at the current dual level."""
    level = level or _current()
    if level is None:
        return UnpackedDualTensor(tensor, None)
    primal = tensor.view_as(tensor)
    primal._tangents = {k: v for k, v in (tensor._tangents or {}).items() if k is not level} or None
    return UnpackedDualTensor(primal, level.tangent(tensor))
