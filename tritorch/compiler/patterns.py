"""Chains of operators for which there is one kernel. An entry of PATTERNS is all that a further one takes.

The operators keep their places in the gradient graph: only what runs on the device is another kernel, which fills the results of all of
them. So a pattern serves forward and backward passes alike.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tritorch.compiler.watch import Seen
from tritorch.memory_format import channels_last, lies_in
from tritorch.ops.batchnorm import apply_channels, batch_norm_backward, moments_channels
from tritorch.ops.batchnorm_relu import batch_norm_add_relu_backward
from tritorch.ops.convolution_cuda import convolve_input_onto
from tritorch.ops.feed_forward import ACTIVATIONS, linear_activation, linear_slope
from tritorch.ops.gemm import gemm
from tritorch.ops.indexing import finish, in_order, take_rows
from tritorch.ops.linear_residual import linear_residual
from tritorch.ops.normalize import layer_norm_rows, mean_and_rstd, rms_norm_rows
from tritorch.ops.residual_norm import residual_norm, residual_norm_dropped_backward
from tritorch.shape import contiguous_strides
from tritorch.tensor import empty, empty_strided

LINK = object()                                                          # stands for the result of the call before among the arguments


class Pattern(NamedTuple):
    """`chain`: the operators, by name; each reads the (first) result of the one before in one of its arguments, which is then LINK; it may
    write its own result in that place. `fits(*arguments of each call)`: whether the kernel can do it; tensors are `Seen`.
    `fill(*(results, arguments) of each call)`: run it; first results in between are None where nobody else reads them, further ones are
    always to be filled. `keeps`: for each result in between, whether the kernel can write it. `exact`: whether every bit is the one that
    the operators give. `early(further results, *arguments)`: fill those of the first call at once, for others read them before the last.
    `origin`: the operators that must have made the last argument of the first call, the last one first, each from the first argument of
    the one before; `fits` gets their (results, arguments) too."""

    name: str
    chain: tuple[str, ...]
    fits: Callable
    fill: Callable
    keeps: tuple[bool, ...]
    exact: bool
    rounding: str
    early: Callable | None = None
    origin: tuple[str, ...] = ()


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


def _joins_product(convolution, add):
    """The gradient of a 1×1 convolution's input and a gradient that is there already, all channels last: rows of a matrix product."""
    g, weight, size, stride, padding, _, groups = convolution
    shape = (g.shape[0], weight.shape[1], *g.shape[2:])
    there = add[1] if add[0] is LINK else add[0]
    product = weight.shape[2:] == (1, 1) and (stride, padding, groups) == ((1, 1), (0, 0), 1) and tuple(size) == shape[2:]
    alike = type(there) is Seen and there.shape == shape and there.dtype is g.dtype and g.dtype.is_floating_point and add[2] == 1
    return product and alike and all(lies_in(x.shape, x.strides, channels_last) for x in (g, there))


def _join_product(convolution, add):
    (_, (g, weight, *_)), ((out,), (x, y, _)) = convolution, add
    convolve_input_onto(out, g, weight, y if x is LINK else x)


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
        ((total,), (x, y, _)), ((_, rows), (_, shape, weight, *rest)) = calls[-2:]
        bias, eps = rest if center else (None, *rest)
        mean, rstd = mean_and_rstd(rows) if center else (empty(rows.shape, rows.dtype, rows.device), rows)
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
    g = backward[0]
    return _to_half(cast) and g.dtype is cast[1] and backward[2].dtype is g.dtype.compute


def _fill_gradients(backward, cast):
    ((gs, gw, gb), args), ((gx,), _) = backward, cast
    total = args[2]
    gs = empty(total.shape, total.dtype, total.device) if gs is None else gs
    no_bias = empty((0,), total.dtype, total.device)
    residual_norm_dropped_backward.impls["cuda"](gs, gx, gw, gb, no_bias, *args, 0.0, 0, 0, None, False)


# ------------------------------------------------------------------ rows of a table
def _adds_rows(rows, add):
    """What is added to the rows of a table, one like these or the same for all of a batch."""
    (weight, index, *_), (x, y, alpha) = rows, add
    added, shape = y if x is LINK else x, (*index.shape, weight.shape[1])
    if type(added) is not Seen or alpha != 1 or added.dtype is not weight.dtype or not added.dtype.is_floating_point or 0 in shape:
        return False
    rank = len(added.shape)
    return 0 < rank <= len(shape) and added.shape == shape[-rank:] and added.strides == contiguous_strides(added.shape)


def _add_rows(rows, add):
    (_, (weight, index, *_)), ((out,), (x, y, _)) = rows, add
    made = in_order(out)
    take_rows(made, weight.detach().unsqueeze(0), index.reshape(-1), "embedding", False, (y if x is LINK else x).detach())
    finish(out, made)


# ------------------------------------------------------------------ batch norm and the rectifier
def _rectifies(norm, *rest):
    """A residual has the shape and dtype of the norm."""
    x, plain = norm[0], not norm[-1]
    added = [operand for args in rest if len(args) == 3 for operand in args[:2] if operand is not LINK]
    alike = all(type(r) is Seen and r.shape == x.shape and r.dtype is x.dtype for r in added)
    return plain and alike and all(args[2] == 1 for args in rest if len(args) == 3)


def _rectify(norm, *rest):
    """Calls of `add` have three arguments."""
    (_, *statistics), (x, *args, eps, _) = norm
    residual = [operand for _, call in rest if len(call) == 3 for operand in call[:2] if operand is not LINK]
    apply_channels(rest[-1][0][0], x, *statistics, *args, eps, True, *residual)


def _alike(relu, backward):
    """All images lie alike, so that sums have the order that the operators alone would give them."""
    (g, result), (_, x, *_, rectified) = relu, backward
    return not rectified and g.shape == x.shape and all(t.strides == x.strides and t.dtype is x.dtype for t in (g, result))


def _made_by_norm(relu, backward, rectifier, norm):
    """What was rectified is the norm that this is the gradient of."""
    results, (x, *given) = norm
    want = (x, *given) if type(results) is Seen else (x, *results[1:], *given)
    return _alike(relu, backward) and all(_same(a, b) for a, b in zip(want, (*backward[1:7], backward[8]), strict=True))


def _same(a, b):
    return a[:5] == b[:5] if type(a) is type(b) is Seen else a == b


def _rectified_gradients(relu, backward):
    (_, (g, _)), (outs, (_, *args, _)) = relu, backward
    batch_norm_backward.impls["cuda"](*outs, g, *args, True)


def _gradients_of_sum(relu, backward):
    ((masked,), (g, result)), ((gx, gw, gb), (_, x, mean, var, weight, _, eps, training, _)) = relu, backward
    masked = empty_strided(g.shape, g.strides, g.dtype, g.device) if masked is None else masked
    batch_norm_add_relu_backward.impls["cuda"](gx, masked, gw, gb, g, x, result, mean, var, weight, eps, training)


def _batch_moments(moments, x, *_):
    moments_channels(*moments, x)


ORDER = "the sums of a row may be taken in another order, which changes last bits of mean and variance"
ONCE = "dropout and addition round once, not twice; " + ORDER
AS_STORED = "none: the norm is rounded before what follows"
GRADIENTS = "relu_backward", "batch_norm_backward"
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
    Pattern("embedding + add", ("table_rows", "add"), _adds_rows, _add_rows, (False,), True, "none: what is read is added to at once"),
    Pattern("gradient of a 1×1 convolution + add", ("convolution_input", "add"), _joins_product, _join_product, (False,), True,
            "none: the product is rounded before the addition"),
    *[Pattern(f"batch_norm + {' + '.join(chain)}", (norm, *chain), _rectifies, _rectify, (False,) * len(chain), True, AS_STORED, early)
      for norm, early in (("batch_norm_train", _batch_moments), ("batch_norm_apply", None)) for chain in (("add", "relu"), ("relu",))],
    *[Pattern("gradient of batch_norm + relu", GRADIENTS, _made_by_norm, _rectified_gradients, (False,), True, AS_STORED, None,
              ("relu", norm)) for norm in ("batch_norm_train", "batch_norm_apply")],
    Pattern("gradient of batch_norm + add + relu", GRADIENTS, _alike, _gradients_of_sum, (True,), True, AS_STORED),
]
