"""Dropout, addition to a residual stream and the norm of the sum, in one kernel: the joint between two blocks of a transformer."""
import math

import numpy as np

from tritorch.autograd.modes import again
from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.dtype import promote, types
from tritorch.errors import check
from tritorch.ops.arrays import single
from tritorch.ops.draws import place, random_dropout, threshold
from tritorch.ops.dropout import idle
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.normalize import affine_sums, contiguous, leading, moments, scalar
from tritorch.ops.normalize_cpu import deliver, gradients, normalize_array, scratch
from tritorch.ops.rows import rows, start_rows, start_sums, widest
from tritorch.philox import words

K = kernels("residual_norm")
WIDEST = 8192
"""Columns up to which the gradients of the parameters are summed beside the row; 16384 spill registers."""


def drop_arguments(p, seed, offset, N, kind):
    """(threshold, factor, seed, offset) and the constexprs that say how elements are dropped."""
    return (threshold(p), np.float64(1 / (1 - p)), seed, offset), dict(DROP=p > 0, EVEN=N % 4 == 0, ACC=getattr(K.tl, kind.compute.name))


@op(returns=("out", "sum", "mean", "rstd"))
def residual_norm(input, residual, normalized_shape, weight=None, bias=None, center=True, eps=1e-5, p=0.0, seed=0, offset=0, base=None,
                  input_bias=None):
    """(norm of the sum, the sum, its mean and 1 / √(var + eps) in every row) of residual + dropout(input + input_bias, p); only the first
    two have gradients. `center` makes it layer norm, else it is RMS norm, with a mean of 0 and no bias. The elements that `dropout` with
    the same seed and offset drops are dropped. The sum has the dtype of the residual and is rounded once; the norm is that of the rounded
    sum. `input_bias` has the shape `normalized_shape`.
    """
    name = "dropout_add_layer_norm" if center else "dropout_add_rms_norm"
    lead = leading(name, input, normalized_shape, weight, bias)
    same = input.shape == residual.shape and residual.dtype.is_floating_point
    check(same, name, f"a floating residual of shape {tuple(input.shape)}", None if same else (residual.dtype, tuple(residual.shape)))
    check(0 <= p < 1, name, "0 ≤ p < 1", p, error=ValueError)
    fits = input_bias is None or input_bias.shape == tuple(normalized_shape)
    check(fits, name, f"an input_bias of shape {tuple(normalized_shape)}", None if fits else tuple(input_bias.shape))
    check(center or bias is None, name, "no bias without a mean", "one")
    row = input.shape[:lead], promote(input, residual).compute, input.device
    return [(input.shape, input.dtype, input.device), (input.shape, residual.dtype, input.device), row, row]


def matrix(a, columns, kind):
    return a.astype(kind, copy=False).reshape(a.size // max(columns, 1), columns)


def factors(shape, p, seed, offset, kind):
    """What dropout multiplies the elements with."""
    return np.array([0, 1 / (1 - p)], kind)[(words(seed, offset, math.prod(shape)) >= threshold(p)).view(np.uint8)].reshape(shape)


@residual_norm.impl("cpu")
def residual_norm_cpu(out, total, mean, rstd, x, residual, normalized_shape, weight, bias, center, eps, p, seed, offset, base, input_bias):
    columns, kind = math.prod(normalized_shape), mean.dtype
    s = x.astype(kind)
    if input_bias is not None:
        s += input_bias.astype(kind)
    if p:
        s *= factors(x.shape, p, seed, offset, kind)
    s += residual.astype(kind, copy=False)
    total[...] = s
    s = matrix(total, columns, kind)
    work = scratch(out, s)
    normalize_array(work, s, mean if center else None, rstd, eps)
    if not center:
        mean[...] = 0
    if weight is not None:
        work *= weight.reshape(-1).astype(kind, copy=False)
    if bias is not None:
        work += bias.reshape(-1).astype(kind, copy=False)
    deliver(out, work)


@residual_norm.impl("cuda", passes={"seed": int, "offset": int})
def residual_norm_cuda(out, total, mean, rstd, x, residual, normalized_shape, weight, bias, center, eps, p, seed, offset, base, input_bias):
    dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    geometry = rows(x.shape, dims, *[t.strides for t in (out, total, x, residual, mean, rstd)])._replace(across=False)
    M, shape_m, stride_m, N, shape_n, stride_n, _, wide, _ = geometry
    drop, constexprs = drop_arguments(p, seed, offset, N, mean.dtype)
    if M:
        start_rows(K.residual_norm_kernel, "residual_norm", geometry, widest(x, residual),
                   (out, total, mean, rstd, x, residual, contiguous(input_bias), contiguous(weight), contiguous(bias), base, shape_m,
                    stride_m, shape_n, stride_n, M, N, scalar(eps, mean.dtype), *drop), CENTER=center, WIDE=wide, lines=True,
                   **constexprs)


@residual_norm.grad("input", "residual", "weight", "bias", "input_bias")
def residual_norm_grad(g_out, g_sum, input_dtype, normalized_shape, weight, sum, mean, rstd, center, eps, p, seed, offset, base,
                       input_bias_dtype):
    if again(sum):
        n = len(normalized_shape)
        mean, rstd = moments(sum, n, eps) if center else (mean, (sum.square().mean(tuple(range(-n, 0))) + eps).rsqrt())
    g_out = sum.new_zeros(sum.shape, dtype=input_dtype) if g_out is None else g_out
    saved = g_out, g_sum, sum, mean, rstd, weight, center
    biased = input_bias_dtype is not None
    if p or biased or g_out.dtype is not sum.dtype:                    # a second gradient, or the same one rounded for a narrower input
        g_residual, g_input, g_weight, g_bias, g_input_bias = residual_norm_dropped_backward(*saved, p, seed, offset, base, biased)
        return g_input, g_residual, g_weight, g_bias, g_input_bias if biased else None
    g_residual, g_weight, g_bias = residual_norm_backward(*saved)
    return g_residual, g_residual, g_weight, g_bias, None


residual_norm.some_gradients = True                                      # nobody reads the stream behind the last norm


# ------------------------------------------------------------------ backward
def gradient_promises(g, total, mean, weight):
    parameter = total.shape[mean.ndim:], (weight if weight is not None else g).dtype, total.device
    return [(total.shape, total.dtype, total.device), parameter, parameter]


@op(returns=("g_residual", "g_weight", "g_bias"))
def residual_norm_backward(g, g_sum, total, mean, rstd, weight=None, center=True):
    """The gradients of `residual_norm` without dropout: of the residual, which is that of the input too, of weight and bias.

    With x̂ = (s - mean) · rstd: gs = g_s + rstd · (g·w - mean(g·w) - x̂ · mean(g·w·x̂)), gw = Σ g·x̂, gb = Σ g; without `center` the mean
    is 0, mean(g·w) is not subtracted, and gb is 0. A g_sum of None is one of zeros.
    """
    return gradient_promises(g, total, mean, weight)


@op(returns=("g_residual", "g_input", "g_weight", "g_bias", "g_input_bias"))
def residual_norm_dropped_backward(g, g_sum, total, mean, rstd, weight=None, center=True, p=0.5, seed=0, offset=0, base=None, biased=False):
    """The gradients of `residual_norm`: those of `residual_norm_backward`, that of the input behind dropout, in the dtype of g, and its sum
    over all rows, that of `input_bias`, empty unless `biased`."""
    residual, *parameters = gradient_promises(g, total, mean, weight)
    return [residual, (g.shape, g.dtype, g.device), *parameters, (total.shape[mean.ndim:] if biased else (0,), mean.dtype, g.device)]


def gradients_array(gs, gw, gb, g, g_sum, total, mean, rstd, weight, center):
    columns, kind = math.prod(total.shape[mean.ndim:]), np.promote_types(single(total).dtype, single(g).dtype)
    g, x = matrix(g, columns, kind), matrix(total, columns, kind)
    mean, rstd, weight = mean.astype(kind, copy=False) if center else None, rstd.astype(kind, copy=False), (
        None if weight is None else weight.astype(kind, copy=False))
    work = scratch(gs, x)
    gw[...] = gradients(work, g, x, mean, rstd, weight).reshape(gw.shape)
    if g_sum is not None:
        work += matrix(g_sum, columns, kind)
    deliver(gs, work)
    gb[...] = g.sum(0).reshape(gb.shape) if center else 0


@residual_norm_backward.impl("cpu")
def residual_norm_backward_cpu(gs, gw, gb, g, g_sum, total, mean, rstd, weight, center):
    gradients_array(gs, gw, gb, g, g_sum, total, mean, rstd, weight, center)


@residual_norm_dropped_backward.impl("cpu")
def residual_norm_dropped_backward_cpu(gs, gx, gw, gb, gv, g, g_sum, total, mean, rstd, weight, center, p, seed, offset, base, biased):
    exact = np.empty(gs.shape, mean.dtype)
    gradients_array(exact, gw, gb, g, g_sum, total, mean, rstd, weight, center)
    gs[...] = exact
    exact *= factors(gx.shape, p, seed, offset, mean.dtype)
    gx[...] = exact
    if biased:
        gv[...] = exact.sum(tuple(range(mean.ndim)))


@residual_norm_backward.impl("cuda")
def residual_norm_backward_cuda(gs, gw, gb, g, g_sum, total, mean, rstd, weight, center):
    gradients_cuda(gs, None, gw, gb, None, g, g_sum, total, mean, rstd, weight, center, 0.0, 0, 0, None, False)


@residual_norm_dropped_backward.impl("cuda", passes={"seed": int, "offset": int})
def residual_norm_dropped_backward_cuda(*values):
    gradients_cuda(*values)


def gradients_cuda(gs, gx, gw, gb, gv, g, g_sum, total, mean, rstd, weight, center, p, seed, offset, base, biased):
    dims = tuple(range(mean.ndim, total.ndim))
    operands = [t for t in (g, g_sum, total) if t is not None]
    strides = [t.strides for t in (gs, gx) if t is not None] + [t.strides for t in (g, operands[1], total)]
    geometry = rows(total.shape, dims, *strides)._replace(across=False)
    M, shape_m, stride_m, N, shape_n, stride_n, _, wide, _ = geometry
    drop, constexprs = drop_arguments(p, seed, offset, N, mean.dtype)
    constexprs.update(CENTER=center, WIDE=wide)
    args = (g, g_sum, total, contiguous(mean) if center else None, contiguous(rstd), contiguous(weight), base, shape_m, stride_m, shape_n,
            stride_n, M, N, *drop)
    if 0 < M and N <= WIDEST * 4 // mean.dtype.itemsize:
        sums = gw, gb if center else None, gv if biased else None
        start_sums(K.residual_norm_backward_kernel, "residual_norm_sums", geometry, operands, (gs, gx), sums, args,
                   PARTIAL=True, **constexprs)
    else:
        if M:
            start_rows(K.residual_norm_backward_kernel, "residual_norm_backward", geometry, widest(g, total),
                       (gs, gx, None, None, None, *args), limit=WIDEST, PARTIAL=False, lines=True, **constexprs)
        affine_sums(gw, gb, g, total, mean if center else None, rstd, tuple(range(mean.ndim)))
        if biased:
            reduce_rows([gv], [gx], tuple(range(mean.ndim)), False, Monoid("sum", "sum"), gv.dtype)
    if not center:
        gb.zero_()


@residual_norm_backward.formula
def residual_norm_backward_formula(g, g_sum, total, mean, rstd, weight, center):
    dims, lead = tuple(range(mean.ndim, total.ndim)), tuple(range(mean.ndim))
    rest = (1,) * len(dims)
    rstd = rstd.reshape(*rstd.shape, *rest)
    xhat = (total - mean.reshape(*mean.shape, *rest) if center else total) * rstd
    slope = g if weight is None else g * weight
    inner = slope - xhat * (slope * xhat).mean(dims, keepdim=True)
    gs = rstd * (inner - slope.mean(dims, keepdim=True) if center else inner)
    gs = gs if g_sum is None else g_sum + gs
    gw, gb = ((g * xhat).sum(lead), g.sum(lead)) if lead else (g * xhat, g)
    return gs, gw, gb if center else gb * 0


@residual_norm_dropped_backward.formula
def residual_norm_dropped_backward_formula(g, g_sum, total, mean, rstd, weight, center, p, seed, offset, base, biased):
    gs, gw, gb = residual_norm_backward_formula(g, g_sum, total, mean, rstd, weight, center)
    gx, lead = random_dropout(gs, p, seed, offset, base) if p else gs, tuple(range(mean.ndim))
    return gs, gx.to(g.dtype), gw, gb, (gx.sum(lead) if lead else gx) if biased else gx.new_zeros(0)


# ------------------------------------------------------------------ the cards' tests and sizes
@residual_norm.samples
def residual_norm_samples(make):
    yield make(3, 7), make(3, 7), (7,), make(7), make(7)
    yield make(2, 3, 8), make(2, 3, 8), (3, 8), make(3, 8), make(3, 8), True, 1e-2, 0.3, 7, 5
    yield make(5, 9), make(5, 9), (9,), make(9), None, False, 1e-5, 0.5, -3, 1 << 33
    yield make(37, 4), make(37, 4), (4,), None, None, False
    yield make(2, 301), make(2, 301), (301,), make(301), make(301), True, 1e-5, 0.1, 3, 9
    yield make(6), make(6), (6,), make(6), make(6)
    yield make(5, 8), make(5, 8), (8,), make(8), make(8), True, 1e-5, 0.3, 7, 5, None, make(8)
    yield make(2, 3, 7), make(2, 3, 7), (7,), make(7), None, False, 1e-5, 0.0, 0, 0, None, make(7)
    yield make(0, 4), make(0, 4), (4,), make(4), make(4)


@residual_norm_backward.samples
def residual_norm_backward_samples(make):
    yield make(3, 7), make(3, 7), make(3, 7), make(3), make(3), make(7)
    yield make(2, 3, 5), make(2, 3, 5), make(2, 3, 5), make(2), make(2), make(3, 5), False
    yield make(37, 9), make(37, 9), make(37, 9), make(37), make(37)
    yield make(3, 7), None, make(3, 7), make(3), make(3), make(7)


@residual_norm_dropped_backward.samples
def residual_norm_dropped_backward_samples(make):
    yield make(3, 8), make(3, 8), make(3, 8), make(3), make(3), make(8), True, 0.3, 7, 5
    yield make(2, 3, 5), make(2, 3, 5), make(2, 3, 5), make(2), make(2), make(3, 5), False, 0.5, -1, 1 << 33
    yield make(37, 9), make(37, 9), make(37, 9), make(37), make(37), None, True, 0.1, 3, 3
    yield make(37, 9), make(37, 9), make(37, 9), make(37), make(37), make(9), True, 0.1, 3, 3, None, True
    yield make(5, 7), make(5, 7), make(5, 7), make(5), make(5), None, False, 0.0, 0, 0, None, True
    yield make(5, 8), None, make(5, 8), make(5), make(5), make(8), True, 0.3, 7, 5, None, True


@residual_norm.errors
def residual_norm_errors(make):
    yield (make(3, 4), make(3, 4), (5,)), {}, RuntimeError, "expected an input whose last dims are (5,)"
    yield (make(3, 4), make(4), (4,)), {}, RuntimeError, "expected a floating residual of shape (3, 4)"
    yield (make(3, 4), make(3, 4), (4,), None, None, True, 1e-5, 1.5), {}, ValueError, "0 ≤ p < 1"
    yield (make(3, 4), make(3, 4), (4,), None, None, True, 1e-5, 0.0, 0, 0, None, make(3)), {}, RuntimeError, "an input_bias of shape (4,)"


def stream_sizes(f, arguments, passes):
    def workloads(make):
        def wide(*shape):
            return make(*shape, dtype=types.bfloat16)

        for m, n in (131072, 1024), (32768, 4096), (8192, 16384):
            yield f"{m}x{n}", lambda m=m, n=n: arguments(wide, make, m, n), passes * 2 * m * n, 10 * m * n
    f.workloads(workloads)


stream_sizes(residual_norm, lambda wide, make, m, n: (wide(m, n), wide(m, n), (n,), wide(n), None, False, 1e-5, 0.1, 7, 0), 4)
stream_sizes(residual_norm_backward, lambda wide, make, m, n: (*[wide(m, n) for _ in range(3)], make(m), make(m), wide(n)), 4)
stream_sizes(residual_norm_dropped_backward, lambda wide, make, m, n: (
    *[wide(m, n) for _ in range(3)], make(m), make(m), wide(n), True, 0.1, 7, 0), 5)


# ------------------------------------------------------------------ the public functions
def dropout_add_layer_norm(input, residual, normalized_shape, weight=None, bias=None, p=0.0, training=True, eps=1e-5, *, generator=None,
                           input_bias=None):
    """(layer_norm(s), s) of s = residual + dropout(input + input_bias, p): a block's output joins the stream, the next one gets its norm.

    input and residual have one shape; weight, bias and input_bias have the shape `normalized_shape`, that of the last dims. The norm has
    the dtype of the input, s that of the residual, which may be float32 beside an input of a half type; s is rounded once. One kernel
    forward and one backward (and the sums for weight and bias) instead of three each. With the same generator it drops what `dropout`
    drops; without dropout (p = 0, or not training) no numbers are drawn. `input_bias` is that of the layer in front, if it left it out: its
    gradient then costs no pass over memory. Raises RuntimeError when shapes or dtypes do not fit, ValueError unless 0 ≤ p ≤ 1.

    >>> import tritorch as torch
    >>> y, stream = torch.nn.functional.dropout_add_layer_norm(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]]), (2,))
    >>> stream
    tensor([[2., 3.]])
    """
    return joined(input, residual, normalized_shape, weight, bias, True, eps, p, training, generator, input_bias)


def dropout_add_rms_norm(input, residual, normalized_shape, weight=None, p=0.0, training=True, eps=None, *, generator=None,
                         input_bias=None):
    """(rms_norm(s), s) of s = residual + dropout(input + input_bias, p): see `dropout_add_layer_norm`; eps as in `rms_norm`.

    >>> import tritorch as torch
    >>> y, stream = torch.nn.functional.dropout_add_rms_norm(torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 0.0]]), (2,))
    >>> y
    tensor([[1., 1.]])
    """
    eps = types.finfo_of(input.dtype.compute).eps if eps is None else eps
    return joined(input, residual, normalized_shape, weight, None, False, eps, p, training, generator, input_bias)


def joined(x, residual, normalized_shape, weight, bias, center, eps, p, training, generator, input_bias):
    draws = (0.0, 0, 0, None)
    if not idle(x, p, training):
        if p == 1:
            x, input_bias = x * 0.0, None if input_bias is None else input_bias * 0.0
        else:
            draws = p, *place(x.device, generator, x.numel())
    return residual_norm(x, residual, tuple(normalized_shape), weight, bias, center, eps, *draws, input_bias)[:2]
