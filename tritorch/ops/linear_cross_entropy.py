"""A linear layer and the cross entropy of what it gives, without storing the logits: pieces of rows, one after the other, in one buffer.

For 32768 tokens and 50304 classes the logits are 3.1 GiB in bfloat16, and so is their gradient; the buffer is two GiB at most. Where
the loss is a mean or a sum, the gradients are made along with it, while a piece is there: three products as in the plain chain, not four.
"""
from math import prod

import numpy as np

from tritorch.autograd.modes import again, state
from tritorch.autograd.parts import is_one, joined_grads, wanted_dtype
from tritorch.autograd.snapshot import expendable
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.composite import result_dtype
from tritorch.ops.cross_entropy import (
    CLASSES,
    counted,
    cross_entropy_backward,
    cross_entropy_backward_cpu,
    cross_entropy_backward_cuda,
    cross_entropy_cpu,
    cross_entropy_cuda,
    unfit,
    weighted_mean,
)
from tritorch.ops.faults import fault_word
from tritorch.ops.gemm import gemm
from tritorch.ops.lerp import addcmul_value
from tritorch.ops.linear_cross_entropy_tiles import turn_into_gradients
from tritorch.ops.loss import cross_entropy, reduced
from tritorch.ops.matmul import linear
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.normalize import contiguous
from tritorch.shape import cdiv
from tritorch.tensor import empty, strided

K = kernels("linear_cross_entropy")
BUFFER = 1 << 31                                                         # bytes; each piece adds two passes over the weight's gradient


def check_shapes(input, linear_weight, linear_bias, target, weight, label_smoothing):
    """Raise unless the operands fit; returns the number of rows and of classes."""
    name = "linear_cross_entropy"
    check(input.ndim == 2 and linear_weight.ndim == 2, name, "input (N, k) and linear_weight (C, k)", input.shape, linear_weight.shape)
    check(input.shape[1] == linear_weight.shape[1], name, "input.shape[1] == linear_weight.shape[1]", input.shape, linear_weight.shape)
    check(input.dtype.is_floating_point and input.dtype is linear_weight.dtype, name, "operands of one floating dtype", input.dtype,
          linear_weight.dtype)
    rows, classes = input.shape[0], linear_weight.shape[0]
    for given in (linear_bias, weight):
        fits = given is None or given.shape == (classes,)
        check(fits, name, f"a bias and weights for {classes} classes", None if fits else given.shape)
    if target.shape != (rows,):
        raise unfit(name, input, target, (rows,))
    check(target.dtype in (types.int64, types.int32, types.uint8), name, "class indices", target.dtype)
    check(0 <= label_smoothing <= 1, name, "label_smoothing in [0, 1]", label_smoothing)
    return rows, classes


# ------------------------------------------------------------------ rows of logits, piece by piece
def spans(rows, row_bytes, limit, grain=1):
    """(first, end) of the pieces: even ones of whole grains, as few as keep the buffer near the limit."""
    step = max(cdiv(cdiv(rows, cdiv(rows * row_bytes, limit) or 1), grain) * grain, 1)
    return [(at, min(at + step, rows)) for at in range(0, rows, step)]


def part(x, span):
    """Rows of a tensor; without history, as all below."""
    return strided(x.storage, (span[1] - span[0], *x.shape[1:]), x.strides, x.offset + span[0] * x.strides[0], x.dtype)


def turned(x):
    return strided(x.storage, x.shape[::-1], x.strides[::-1], x.offset, x.dtype)


def pieces_of_logits(x, w, b):
    """(span, logits of these rows): on CUDA all in one buffer, rows padded to where the next can be copied asynchronously."""
    rows, classes = x.shape[0], w.shape[0]
    wide = cdiv(classes, 16) * 16
    row_bytes = wide * x.dtype.itemsize
    cuts = spans(rows, row_bytes, tile(BUFFER, max(cdiv(rows, 2), 1) * row_bytes), tile(128, 1))
    buffer = empty((cuts[0][1] if cuts else 0, wide), x.dtype, x.device)
    for span in cuts:
        logits = strided(buffer.storage, (span[1] - span[0], classes), (wide, 1), 0, x.dtype)
        gemm(logits, part(x, span), turned(w), b)
        yield span, logits


def arrays_of_logits(x, w, b):
    """The same on the CPU: half types are computed in float32."""
    kind = np.promote_types(x.dtype, np.float32)
    w, b = w.astype(kind, copy=False), None if b is None else b.astype(kind, copy=False)
    for first, end in spans(x.shape[0], w.shape[0] * kind.itemsize, BUFFER):
        logits = x[first:end].astype(kind, copy=False) @ w.T
        yield slice(first, end), logits if b is None else np.add(logits, b, out=logits)


class Sums:
    """The gradients of weight and bias on CUDA: sums over the pieces in float32, always in the same order, rounded once at the end."""

    def __init__(self, gw, gb, pieces):
        self.gw, self.gb, self.left, self.started = gw, gb, pieces, False
        acc = gw.dtype.compute
        self.acc = gw if gw.dtype is acc or pieces == 1 else empty(gw.shape, acc, gw.device)
        self.rows = empty((pieces, *gb.shape), acc, gb.device)

    def add(self, logits, x):
        self.left -= 1
        gemm(self.acc if self.left else self.gw, turned(logits), x, self.acc if self.started else None)
        if self.gb.numel():
            reduce_rows([part(self.rows, (self.left, self.left + 1))], [logits], (0,), True, Monoid("sum", "sum"), self.rows.dtype)
            if not self.left:
                reduce_rows([self.gb], [self.rows], (0,), False, Monoid("sum", "sum"), self.rows.dtype)
        self.started = True


# ------------------------------------------------------------------ the loss of every row
@op(returns=("loss", "target_weight", "lse"))
def linear_cross_entropy_rows(input, linear_weight, linear_bias, target, weight=None, ignore_index=-100, label_smoothing=0.0):
    """Cross entropy of the rows of input @ linear_weightᵀ + linear_bias: loss, weight of the target, log-sum-exp.

    Only `loss` has a gradient. input (N, k), linear_weight (C, k), linear_bias (C,) or None, target (N,), weight (C,) or None; half types
    give float32.
    """
    rows, _ = check_shapes(input, linear_weight, linear_bias, target, weight, label_smoothing)
    row = (rows,), input.dtype.compute, input.device
    return [row, row, row]


@linear_cross_entropy_rows.impl("cpu")
def rows_cpu(loss, target_weight, lse, x, w, b, target, weight, ignore_index, label_smoothing):
    for rows, logits in arrays_of_logits(x, w, b):
        cross_entropy_cpu(loss[rows], target_weight[rows], lse[rows], logits, target[rows], weight, ignore_index, label_smoothing)


@linear_cross_entropy_rows.impl("cuda")
def rows_cuda(loss, target_weight, lse, x, w, b, target, weight, ignore_index, label_smoothing):
    for span, logits in pieces_of_logits(x, w, b):
        outs = [part(t, span) for t in (loss, target_weight, lse)]
        cross_entropy_cuda(*outs, logits, part(target, span), weight, ignore_index, label_smoothing)


@linear_cross_entropy_rows.grad("input", "linear_weight", "linear_bias")
def rows_grad(g_loss, input, linear_weight, linear_bias, target, weight, ignore_index, label_smoothing, lse):
    if again(input, linear_weight, linear_bias):
        lse = linear(input, linear_weight, linear_bias).logsumexp(1).to(lse.dtype)
    return linear_cross_entropy_backward(g_loss, input, linear_weight, linear_bias, target, lse, weight, ignore_index, label_smoothing)


@op(returns=("grad_input", "grad_weight", "grad_bias"))
def linear_cross_entropy_backward(gradient, input, linear_weight, linear_bias, target, lse, weight=None, ignore_index=-100,
                                  label_smoothing=0.0):
    """The gradients of `linear_cross_entropy_rows`, from that of every row's loss; the logits are computed again. Without a bias its
    gradient is empty."""
    check_shapes(input, linear_weight, linear_bias, target, weight, label_smoothing)
    bias = (0,) if linear_bias is None else linear_bias.shape
    return [(x, input.dtype, input.device) for x in (input.shape, linear_weight.shape, bias)]


@linear_cross_entropy_backward.impl("cpu")
def backward_cpu(gx, gw, gb, g, x, w, b, target, lse, weight, ignore_index, label_smoothing):
    def slope(rows, logits):
        cross_entropy_backward_cpu(logits, g[rows], logits, target[rows], lse[rows], weight, ignore_index, label_smoothing)

    gradients_cpu(gx, gw, gb, x, w, b, slope)


def gradients_cpu(gx, gw, gb, x, w, b, slope):
    """Sums over the pieces; `slope(rows, logits)` replaces logits by their gradient."""
    kind = np.promote_types(x.dtype, np.float32)
    sum_w, sum_b, wide = np.zeros(gw.shape, kind), np.zeros(gb.shape, kind), w.astype(kind, copy=False)
    for rows, logits in arrays_of_logits(x, w, b):
        slope(rows, logits)
        gx[rows] = logits @ wide
        sum_w += logits.T @ x[rows].astype(kind, copy=False)
        if gb.size:
            sum_b += logits.sum(0)
    gw[...], gb[...] = sum_w, sum_b


@linear_cross_entropy_backward.impl("cuda")
def backward_cuda(gx, gw, gb, g, x, w, b, target, lse, weight, ignore_index, label_smoothing):
    def slope(span, logits):
        cross_entropy_backward_cuda(logits, part(g, span), logits, part(target, span), part(lse, span), weight, ignore_index,
                                    label_smoothing)

    gradients_cuda(gx, gw, gb, x, w, b, slope)


def gradients_cuda(gx, gw, gb, x, w, b, slope):
    sums = None
    for span, logits in pieces_of_logits(x, w, b):
        sums = sums or Sums(gw, gb, cdiv(x.shape[0], span[1]))           # all pieces but the last have the length of the first
        slope(span, logits)
        gemm(part(gx, span), logits, w)
        sums.add(logits, part(x, span))
    if sums is None:
        for empty_sum in (gw, gb):
            empty_sum.detach().zero_()


@linear_cross_entropy_backward.formula
def backward_formula(gradient, input, linear_weight, linear_bias, target, lse, weight, ignore_index, label_smoothing):
    logits = linear(input, linear_weight, linear_bias)
    g = cross_entropy_backward(gradient, logits, target, lse, weight, ignore_index, label_smoothing)
    return g @ linear_weight, g.mT @ input, g.sum(0) if linear_bias is not None else g.new_zeros(0)


# ------------------------------------------------------------------ the sum over all rows, with its gradients
@op(returns=("total", "divisor", "grad_input", "grad_weight", "grad_bias"))
def linear_cross_entropy_sum(input, linear_weight, linear_bias, target, weight=None, ignore_index=-100, label_smoothing=0.0, mean=False,
                             grad_dtype=None):
    """The sum of all rows' losses, the sum of their targets' weights, and the gradients of the former, that of the weight in `grad_dtype`
    if that is given. With `mean` the first is the mean, and the gradients are the mean's (but in float16: see `is_scaled`). Only `total`
    has a gradient."""
    check_shapes(input, linear_weight, linear_bias, target, weight, label_smoothing)
    number, bias = ((), input.dtype.compute, input.device), (0,) if linear_bias is None else linear_bias.shape
    return [number, number, (input.shape, input.dtype, input.device), (linear_weight.shape, grad_dtype or input.dtype, input.device),
            (bias, input.dtype, input.device)]


@linear_cross_entropy_sum.impl("cpu")
def sum_cpu(total, divisor, gx, gw, gb, x, w, b, target, weight, ignore_index, label_smoothing, mean, grad_dtype):
    losses, weights, lse = np.zeros((3, x.shape[0]), total.dtype)
    counts, at = counted(target, w.shape[0], ignore_index)
    weights[...] = counts if weight is None else np.where(counts, weight[at], 0)
    divisor[...] = weights.sum()
    with np.errstate(divide="ignore"):
        scale = 1 / divisor if mean else total.dtype.type(1)

    def slope(rows, logits):
        cross_entropy_cpu(losses[rows], weights[rows], lse[rows], logits, target[rows], weight, ignore_index, label_smoothing)
        factor = np.full(len(logits), scale if is_scaled(x.dtype) else 1, logits.dtype)
        cross_entropy_backward_cpu(logits, factor, logits, target[rows], lse[rows], weight, ignore_index, label_smoothing)

    gradients_cpu(gx, gw, gb, x, w, b, slope)
    with np.errstate(invalid="ignore"):
        total[...] = losses.sum() * scale


@linear_cross_entropy_sum.impl("cuda")
def sum_cuda(total, divisor, gx, gw, gb, x, w, b, target, weight, ignore_index, label_smoothing, mean, grad_dtype):
    losses, weights = [empty((x.shape[0],), total.dtype, x.device) for _ in range(2)]
    scale = empty((), total.dtype, x.device) if mean else None
    if mean:                                                             # before the gradients, which it scales
        launch(K.divisor_kernel, (1,), divisor, scale, target, contiguous(weight), target.strides[0], x.shape[0], w.shape[0], ignore_index,
               ACC=getattr(K.tl, total.dtype.name), BLOCK=tile(8192, 1 << 16), num_warps=16)
    losses_and_gradients(losses, weights, gx, gw, gb, x, w, b, target, weight, ignore_index, label_smoothing, scale)
    for out, parts in ((total, losses), (divisor, weights))[:1 if mean else 2]:
        reduce_rows([out], [parts], (0,), False, Monoid("sum", "sum"), total.dtype)


def losses_and_gradients(losses, weights, gx, gw, gb, x, w, b, target, weight, ignore_index, label_smoothing, scale=None):
    """The rows' losses, the weights of their targets, and the gradients of the sum of the losses; gw and gb may be float32. With `scale`, a
    number on the device, the losses times that, and the gradients of these, as far as `is_scaled` says."""
    weight = contiguous(weight)
    sum_w = weight.sum() if weight is not None and label_smoothing else None
    report = fault_word(x.device, "linear_cross_entropy", CLASSES)

    def slope(span, logits):
        rows = part(losses, span), part(weights, span), logits, part(target, span)
        turn_into_gradients(*rows, weight, sum_w, scale, report, ignore_index, label_smoothing, is_scaled(x.dtype))

    gradients_cuda(gx, gw, gb, x, w, b, slope)


def is_scaled(dtype):
    """Whether the gradients of a mean are made as such. float16 has no numbers as small as the parts of one: there they are those of the
    sum."""
    return dtype.name != "float16"


@linear_cross_entropy_sum.grad("input", "linear_weight", "linear_bias")
def sum_grad(g_total, input, linear_weight, linear_bias, target, weight, ignore_index, label_smoothing, mean, divisor, grad_input,
             grad_weight, grad_bias):
    if again(input, linear_weight, linear_bias):
        g_total = g_total / divisor.detach() if mean else g_total
        lse = linear(input, linear_weight, linear_bias).logsumexp(1).to(g_total.dtype)
        return linear_cross_entropy_backward(g_total.expand(target.shape), input, linear_weight, linear_bias, target, lse, weight,
                                             ignore_index, label_smoothing)
    if mean and not is_scaled(input.dtype):
        g_total = g_total / divisor
    named = ("input", grad_input), ("linear_weight", grad_weight), ("linear_bias", grad_bias)
    return tuple([scaled(name, x, g_total) for name, x in named])


def scaled(name, x, g):
    """x · g, the gradient of the input of that name, in float32 behind a cast to a half type; None if it was added to the `.grad` of a
    leaf."""
    if joined_grads(lambda total: addcmul_value.into(total, total, x, g, 1), (x, g), name):
        return None
    if wanted_dtype(name) is g.dtype and x.dtype is not g.dtype:         # rounded, it would be cast back in a pass of its own
        return x.detach() * g.reshape((1,) * x.ndim)
    if not expendable(x):
        return x * g
    return x.detach() if is_one(g) else x.detach().mul_(g)


# ------------------------------------------------------------------ PyTorch's function above them
def linear_cross_entropy(input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean", ignore_index=None,
                         label_smoothing=0.0, options=None):
    """cross_entropy(linear(input, linear_weight, linear_bias), target, …) without storing the logits.

    input (N, k) or (k,), linear_weight (C, k), class indices (N,) or (); linear_bias (C,), class weights (C,). At most two GiB of logits
    exist at a time; for a mean or a sum the gradients are made along with the loss, those of a mean divided before they are rounded (but
    in float16), and under autocast that of the weight in its own dtype, never rounded. Class probabilities as targets, (N, C), and
    K-dimensional losses, linear_weight (C, d₁, …, k), are computed by the two functions. PyTorch's `options` is accepted and
    changes nothing.
    Raises RuntimeError when shapes or dtypes do not fit, ValueError for targets of another batch, IndexError for a target that is no class.

    >>> import tritorch as torch; from tritorch.nn import functional as F
    >>> F.linear_cross_entropy(torch.zeros(2, 3), torch.ones(4, 3), torch.tensor([0, 3]))
    tensor(1.3863)
    """
    ignored = -100 if ignore_index is None else ignore_index
    check(0 < input.ndim < 3 and linear_weight.ndim > 1, "linear_cross_entropy", "an input of one or two dims and a weight of at least two",
          input.shape, linear_weight.shape)
    lead, classes, inner = input.shape[:-1], linear_weight.shape[0], linear_weight.shape[1:-1]
    if target.dtype.is_floating_point or inner:
        check(lead or not inner, "linear_cross_entropy", "a batch of inputs for a loss of several dims", input.shape, linear_weight.shape)
        check(ignore_index is None or not target.dtype.is_floating_point, "linear_cross_entropy",
              "no ignore_index with class probabilities", ignore_index)
        bias = None if linear_bias is None else linear_bias.reshape(-1)
        logits = linear(input, linear_weight.reshape(classes * prod(inner), linear_weight.shape[-1]), bias).reshape(*lead, classes, *inner)
        return cross_entropy(logits, target, weight, None, ignored, None, reduction, label_smoothing)
    dtype, alone = result_dtype("cross_entropy", input), not lead
    if alone:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
    values = input, linear_weight, linear_bias, target, weight, ignored, label_smoothing
    wanted = state.grad and any(x is not None and x.requires_grad for x in values[:3])
    if wanted and reduction in ("mean", "sum"):
        total, *_ = linear_cross_entropy_sum(*values, reduction == "mean", linear_weight.dtype)
        return total.to(dtype)
    loss, target_weight, _ = linear_cross_entropy_rows(*values)
    if reduction == "mean":
        return weighted_mean(loss, target_weight)[0].to(dtype)
    return reduced(loss.squeeze(0) if alone else loss, reduction).to(dtype)


# ------------------------------------------------------------------ samples and workloads
def operands(make, n, k, c, bias=True):
    return make(n, k), make(c, k), make(c) if bias else None, make(n, integer=True, low=0, high=c)


@linear_cross_entropy_rows.samples
def rows_samples(make):
    yield *operands(make, 5, 4, 7), None
    yield *operands(make, 6, 3, 5, bias=False), make(5, positive=True, grad=False), 1, 0.1
    yield *operands(make, 3, 2, 301), None, -100, 0.2
    yield operands(make, 0, 4, 3)


linear_cross_entropy_sum.samples(rows_samples)                # of a mean, float16 means something else: it has tests of its own


@linear_cross_entropy_backward.samples
def backward_samples(make):
    for x, w, b, target, *rest in rows_samples(make):
        yield make(x.shape[0]), x, w, b, target, make(x.shape[0]), *rest


@linear_cross_entropy_rows.errors
def rows_errors(make):
    x, w, b, target = operands(make, 3, 4, 5)
    yield (x, make(5, 3), b, target), {}, RuntimeError, "input.shape[1] == linear_weight.shape[1]"
    yield (x, w, make(4), target), {}, RuntimeError, "a bias and weights for 5 classes"
    yield (x, w, b, make(2, integer=True, low=0, high=5)), {}, ValueError, "targets of shape (3,)"
    yield (x, w, b, make(3, integer=True, low=5, high=6)), {}, IndexError, "expected class indices in [0, 4], got 5"


def sizes(make, products):
    """GPT-2's last layer, and one with a larger vocabulary."""
    for n, k, c in (32768, 768, 50304), (8192, 4096, 128256):
        def call(n=n, k=k, c=c):
            half = dict(dtype=types.bfloat16)
            return make(n, k, **half), make(c, k, **half), None, make(n, integer=True, low=0, high=c)

        yield f"bf16 {n}x{c}x{k}", call, 2 * (n * k + c * k), 2 * products * n * k * c


linear_cross_entropy_rows.workloads(lambda make: sizes(make, 1))
linear_cross_entropy_sum.workloads(lambda make: sizes(make, 3))


@linear_cross_entropy_backward.workloads
def backward_workloads(make):
    for label, call, moved, flops in sizes(make, 3):
        def with_gradient(call=call):
            values = call()
            return make(values[0].shape[0]), *values, make(values[0].shape[0])

        yield label, with_gradient, moved, flops
