"""Chains of operators for which there is one kernel. An entry of PATTERNS is all that a further one takes.

The operators keep their places in the gradient graph: only what runs on the device is another kernel, which fills the results of all of
them. So a pattern serves forward and backward passes alike.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tritorch.compiler.watch import Seen
from tritorch.ops.feed_forward import ACTIVATIONS, linear_activation, linear_slope
from tritorch.ops.gemm import gemm
from tritorch.ops.linear_residual import linear_residual
from tritorch.ops.normalize import layer_norm_rows, rms_norm_rows
from tritorch.ops.residual_norm import residual_norm, residual_norm_dropped_backward
from tritorch.shape import contiguous_strides
from tritorch.tensor import empty

LINK = object()                                                          # stands for the result of the call before among the arguments


class Pattern(NamedTuple):
    """`chain`: the operators, by name; each reads the (first) result of the one before in one of its arguments, which is then LINK.
    `fits(*arguments of each call)`: whether the kernel can do it; tensors are `Seen`. `fill(*(results, arguments) of each call)`: run
    it; first results in between are None where nobody else reads them, further ones are always to be filled.
    `keeps`: for each result in between, whether the kernel can write it. `exact`: whether every bit is the one that the operators give."""

    name: str
    chain: tuple[str, ...]
    fits: Callable
    fill: Callable
    keeps: tuple[bool, ...]
    exact: bool
    rounding: str


# ------------------------------------------------------------------ products and activations
def _rows_of_one_dtype(linear, *_):
    x, weight, bias = linear
    fits = bias is None or bias.dtype in (x.dtype, x.dtype.compute)
    return fits and len(x.shape) > 1 and len(weight.shape) == 2 and x.dtype is weight.dtype


def _activate(name):
    def fill(linear, activation):
        ((pre,), (x, weight, bias)), ((out,), _) = linear, activation
        if pre is None:
            gemm(out, x, weight.mT, bias, activation=ACTIVATIONS[name][0].__name__)
        else:
            linear_activation.impls["cuda"](out, pre, x, weight, bias, name)

    return fill


def _no_bias(linear, slope):
    return _rows_of_one_dtype(linear) and linear[2] is None and slope[0] is LINK and slope[1].dtype is linear[0].dtype


def _slope(name):
    def fill(linear, slope):
        (_, (g, turned, _)), ((out,), (_, pre)) = linear, slope
        linear_slope.impls["cuda"](out, g, turned.mT, pre, name)

    return fill


def _joins(linear, *rest):
    """An even width, a residual like the layer's result, dropout that drops some and counts elements row by row."""
    added = [operand for args in rest if len(args) == 3 for operand in args[:2] if operand is not LINK]
    shape = (*linear[0].shape[:-1], linear[1].shape[0])
    dtype, strides = linear[0].dtype, contiguous_strides(shape)
    alike = all(type(r) is Seen and (r.shape, r.dtype, r.strides) == (shape, dtype, strides) for r in added)
    exact = all(args[2] == 1 if len(args) == 3 else 0 < args[1] < 1 and args[-1] is None for args in rest)
    return _rows_of_one_dtype(linear) and dtype.is_floating_point and shape[-1] % 2 == 0 and alike and exact


def _join(linear, *rest):
    """Calls of `random_dropout` have six arguments, those of `add` three."""
    residual, drop = None, (0.0, 0, 0, None)
    for _, args in rest:
        if len(args) == 3:
            residual = args[1] if args[0] is LINK else args[0]
        else:
            drop = args[1:5]
    linear_residual.impls["cuda"](rest[-1][0][0], *linear[1], residual, *drop)


# ------------------------------------------------------------------ residual streams and norms
def _one_shape(add, norm, dropped=None):
    x, y, alpha = add
    if dropped is not None and (not 0 < dropped[1] < 1 or dropped[-1] is not None):
        return False
    branch, stream = (dropped[0], y if x is LINK else x) if dropped is not None else (x, y)
    alike = type(branch) is type(stream) is Seen and branch.shape == stream.shape and branch.dtype.is_floating_point
    if not alike or alpha != 1:
        return False
    wider = stream.dtype is branch.dtype.compute or dropped is None and branch.dtype is stream.dtype.compute
    return branch.dtype is stream.dtype or stream.dtype.is_floating_point and wider


def _norm(center, casts=False):
    """Fill a sum, its norm or, if that is only cast, the norm in a half type."""
    def fill(*calls):
        out, calls = calls[-1][0][0], calls[:-1] if casts else calls
        ((total,), (x, y, _)), ((_, *statistics), (_, shape, weight, *rest)) = calls[-2:]
        bias, eps = rest if center else (None, *rest)
        rstd = statistics[-1]
        mean = statistics[0] if center else empty(rstd.shape, rstd.dtype, rstd.device)
        drop = 0.0, 0, 0, None
        if len(calls) == 3:
            residual, (x, *drop, _) = y if x is LINK else x, calls[0][1]
        else:
            x, residual = (y, x) if x.dtype.itemsize > y.dtype.itemsize else (x, y)
        total = empty(residual.shape, residual.dtype, residual.device) if total is None else total
        residual_norm.impls["cuda"](out, total, mean, rstd, x, residual, tuple(shape), weight, bias, center, eps, *drop, None)

    return fill


def _to_half(cast):
    return cast[1].is_floating_point and cast[1].itemsize == 2 and cast[2].type == "cuda"


def _norm_to_half(norm, cast):
    return norm[0].dtype.compute is norm[0].dtype and _to_half(cast)


def _fill_half(card):
    def fill(norm, cast):
        ((_, *statistics), args), ((out,), _) = norm, cast
        card.impls["cuda"](out, *statistics, *args)

    return fill


def _gradient_to_half(backward, cast):
    g, g_sum = backward[:2]
    return _to_half(cast) and g.dtype is cast[1] and g_sum.dtype is g.dtype.compute


def _fill_gradients(backward, cast):
    ((gs, gw, gb), args), ((gx,), _) = backward, cast
    total = args[2]
    gs = empty(total.shape, total.dtype, total.device) if gs is None else gs
    no_bias = empty((0,), total.dtype, total.device)
    residual_norm_dropped_backward.impls["cuda"](gs, gx, gw, gb, no_bias, *args, 0.0, 0, 0, None, False)


ORDER = "the sums of a row may be taken in another order, which changes last bits of mean and variance"
ONCE = "dropout and addition round once, not twice; " + ORDER
NORMS = ("layer_norm", True), ("rms_norm", False)
PATTERNS = [
    *[Pattern(f"linear + {name}", ("linear", forward.__name__), _rows_of_one_dtype, _activate(name), (True,), True,
              "none: the product is rounded before the activation") for name, (forward, _) in ACTIVATIONS.items()],
    *[Pattern(f"linear + gradient of {name}", ("linear", backward.__name__), _no_bias, _slope(name), (False,), True,
              "none: the product is rounded before the derivative") for name, (_, backward) in ACTIVATIONS.items()],
    *[Pattern(f"dropout + add + {name} + cast", ("random_dropout", "add", f"{name}_rows", "copy_to"),
              lambda dropout, add, norm, cast: _one_shape(add, norm, dropout) and _to_half(cast), _norm(center, True),
              (False, True, False), False, ONCE) for name, center in NORMS],
    *[Pattern(f"add + {name} + cast", ("add", f"{name}_rows", "copy_to"), lambda add, norm, cast: _one_shape(add, norm) and _to_half(cast),
              _norm(center, True), (True, False), False, ORDER + "; the norm is rounded once") for name, center in NORMS],
    *[Pattern(f"{name} + cast", (f"{name}_rows", "copy_to"), _norm_to_half, _fill_half(card), (False,), True,
              "none: what would be stored is rounded at once")
      for name, card in (("layer_norm", layer_norm_rows), ("rms_norm", rms_norm_rows))],
    Pattern("gradient of a residual norm + cast", ("residual_norm_backward", "copy_to"), _gradient_to_half, _fill_gradients, (True,), True,
            "none: the gradient is rounded as it is stored"),
    *[Pattern(f"dropout + add + {name}", ("random_dropout", "add", f"{name}_rows"),
              lambda dropout, add, norm: _one_shape(add, norm, dropout), _norm(center), (False, True), False, ONCE)
      for name, center in NORMS],
    *[Pattern(f"add + {name}", ("add", f"{name}_rows"), _one_shape, _norm(center), (True,), False, ORDER) for name, center in NORMS],
    *[Pattern(f"linear + {' + '.join(names)}", ("linear", *chain), _joins, _join, (False,) * len(chain), True,
              "none: every step is rounded as by itself")
      for names, chain in ((("dropout", "add"), ("random_dropout", "add")), (("dropout",), ("random_dropout",)), (("add",), ("add",)))],
]
