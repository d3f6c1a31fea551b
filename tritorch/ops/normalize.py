"""Layer and RMS normalization: fused forward and backward, statistics over rows. `groupnorm` and `batchnorm` build on this file.

Each norm is two operators, itself (with the statistics that its gradient reuses) and its gradient; the public functions
return the result alone. Under create_graph the statistics are computed again from the input, so that gradients flow through them.
"""
import math

import numpy as np

from tritorch.autograd.modes import again
from tritorch.autograd.parts import arrived
from tritorch.cuda.launch import compiled_for_host, kernels, launch
from tritorch.dispatch import op
from tritorch.dtype import check_beside, types
from tritorch.errors import sentence, whole_numbers
from tritorch.memory_format import like_image
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.normalize_cpu import deliver, gradients, matrix, normalize_array, scratch
from tritorch.ops.rows import WIDEST_SUMS, rows, start_rows, start_sums, vector_of, widest
from tritorch.ops.shaping import stack
from tritorch.tensor import strided

K, WAITING = kernels("normalize"), kernels("normalize_gluon")


# ------------------------------------------------------------------ on the GPU
def scalar(value, kind):
    """A number as a kernel argument of the accumulator's precision."""
    return np.float64(value) if kind is types.float64 else float(value)


def contiguous(t):
    return None if t is None else t.contiguous()


def normalize_rows(out, mean, rstd, x, weight, bias, eps, dims, groups=1, inner=1):
    """Launch the forward kernel; without a mean it is RMS norm. mean and rstd have one value a row."""
    acc, center = x.dtype.compute, mean is not None
    first = mean if center else rstd
    geometry = rows(x.shape, dims, out.strides, first.strides, rstd.strides, x.strides)
    M, shape_m, stride_m, N, shape_n, stride_n, _, wide, _ = geometry
    if M:
        args = (out, mean, rstd, x, contiguous(weight), contiguous(bias), shape_m, stride_m, shape_n, stride_n, M, N, groups, inner,
                scalar(eps, acc))
        start_rows(K.norm_kernel, "layer_norm" if center else "rms_norm", geometry._replace(across=False), x.dtype, args, CENTER=center,
                   held=40960 // x.dtype.itemsize, SHARED=shared(geometry, groups, inner, x.dtype), ACC=getattr(K.tl, acc.name),
                   WIDE=wide, lines=True)


def shared(geometry, groups, inner, dtype):
    """How many neighbours surely share a weight in group norm; 0: it is not group norm."""
    if compiled_for_host() and not groups == inner == 1 and inner % 64 == 0:
        return 64                                                        # a row of a loop, and all of a tile are multiples of it
    vector = vector_of(geometry, dtype.itemsize)
    return 0 if groups == inner == 1 else vector if inner % vector == 0 else 1


def normalize_rows_backward(gx, gw, gb, g, x, mean, rstd, weight, dims, groups=1, inner=1):
    """Launch the backward kernel; with `gw` (and `gb`, if there is a mean) also sum those, in two deterministic stages."""
    acc, center = x.dtype.compute, mean is not None
    first = mean if center else rstd
    geometry = rows(x.shape, dims, gx.strides, g.strides, x.strides, first.strides, rstd.strides)
    M, shape_m, stride_m, N, shape_n, stride_n, _, wide, _ = geometry
    args = (g, x, mean, rstd, contiguous(weight), shape_m, stride_m, shape_n, stride_n, M, N, groups, inner)
    constexprs = dict(CENTER=center, SHARED=shared(geometry, groups, inner, x.dtype), ACC=getattr(K.tl, acc.name), WIDE=wide)

    def waiting(way, programs, *outs):
        launch(WAITING.norm_backward_gluon_kernel, (programs,), *outs, g, x, mean, rstd, contiguous(weight), shape_m, stride_m, M, N,
               CENTER=center, ALIGN=geometry.align, **{name: way[name] for name in ("BLOCK_N", "HELD", "STAGES", "num_warps")})

    if gw is not None and 0 < M and N <= WIDEST_SUMS * 4 // max(x.dtype.itemsize, 4):
        start_sums(K.norm_backward_kernel, "layer_norm_sums" if center else "rms_norm_sums", geometry, (x, g), (gx,),
                   (gw, gb) if center else (gw, None), args, twice=1 + center, PARTIAL=True,
                   waiting=None if constexprs["SHARED"] else waiting, **constexprs)
    else:
        if M:
            start_rows(K.norm_backward_kernel, "norm_backward", geometry._replace(across=False), widest(x, g), (gx, None, None, *args),
                       PARTIAL=False, TWICE=0, lines=True, **constexprs)
        if gw is not None:
            affine_sums(gw, gb, g, x, mean, rstd, tuple([d for d in range(x.ndim) if d not in dims]))


def affine_sums(gw, gb, g, x, mean, rstd, dims):
    """Σ g·x̂ and Σ g over `dims`; mean and rstd have the dims in front of the normalized ones."""
    rest = (0,) * (x.ndim - rstd.ndim)
    rstd = strided(rstd.storage, x.shape, (*rstd.strides, *rest), rstd.offset, rstd.dtype)
    if mean is None:
        reduce_rows([gw], [g, x, rstd], dims, False, Monoid("scale", "sum"), x.dtype.compute)
    else:
        mean = strided(mean.storage, x.shape, (*mean.strides, *rest), mean.offset, mean.dtype)
        reduce_rows([gw, gb], [g, x, mean, rstd], dims, False, Monoid("affine", "affine", "both", (None, None)), x.dtype.compute)


# ------------------------------------------------------------------ layer norm
def leading(name, input, normalized_shape, *parameters):
    """How many dims lie before those that are normalized, after a look at the shapes."""
    shape = input.shape
    lead = len(shape) - len(normalized_shape)
    if not normalized_shape or lead < 0 or shape[lead:] != normalized_shape:               # the sentences are made when they are needed
        raise RuntimeError(sentence(name, f"an input whose last dims are {normalized_shape}", shape))
    if not input.dtype.is_floating_point:
        raise NotImplementedError(sentence(name, "a floating dtype", input.dtype))
    for p in parameters:
        if p is not None and p.shape != normalized_shape:
            raise RuntimeError(sentence(name, f"weight and bias of shape {normalized_shape}", p.shape))
    return lead


@op(returns=("out", "statistics"))
def layer_norm_rows(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer norm and (mean, 1 / √(var + eps)) of every row, in one tensor, since each costs the host 0.9 µs. Only `out` has a gradient."""
    lead, shape, device = leading("layer_norm", input, normalized_shape, weight, bias), input.shape, input.storage.device
    if weight is not None and weight.dtype is not input.dtype or bias is not None and bias.dtype is not input.dtype:
        check_beside("layer_norm", "parameters", input.dtype, weight, bias)
    return [(shape, input.dtype, device), ((2, *shape[:lead]), input.dtype.compute, device)]


def mean_and_rstd(statistics):
    """The two parts of the statistics, without history."""
    storage, shape, (step, *strides), dtype = statistics.storage, statistics.shape[1:], statistics.strides, statistics.dtype
    return [strided(storage, shape, tuple(strides), statistics.offset + k * step, dtype) for k in (0, 1)]


@layer_norm_rows.impl("cpu")
def layer_norm_cpu(out, statistics, x, normalized_shape, weight, bias, eps):
    work = scratch(out, x := matrix(x, math.prod(normalized_shape)))
    normalize_array(work, x, statistics[0, ...], statistics[1, ...], eps)
    if weight is not None:
        work *= weight.reshape(-1)
    if bias is not None:
        work += bias.reshape(-1)
    deliver(out, work)


@layer_norm_rows.impl("cuda")
def layer_norm_cuda(out, statistics, x, normalized_shape, weight, bias, eps):
    normalize_rows(out, *mean_and_rstd(statistics), x, weight, bias, eps, tuple(range(x.ndim - len(normalized_shape), x.ndim)))


@layer_norm_rows.grad("input", "weight", "bias")
def layer_norm_grad(g_out, input, normalized_shape, weight, statistics, eps):
    if again(input):
        statistics = moments(input, len(normalized_shape), eps)
    others = arrived("input")
    if others is not None:                                               # a residual stream's gradient: added where ours is written
        from tritorch.ops.residual_norm import residual_norm_backward

        mean, rstd = statistics if again(input) else mean_and_rstd(statistics)
        return residual_norm_backward(g_out, others, input, mean, rstd, weight)
    return layer_norm_backward(g_out, input, statistics, weight)


layer_norm_rows.reads_any_gradient = True                                # its kernels compute in float32: no cast before them


def moments(input, n, eps):
    """(mean, 1 / √(var + eps)) over the last n dims, as a differentiable tensor."""
    dims = tuple(range(-n, 0))
    mean = input.mean(dims, keepdim=True)
    rstd = ((input - mean).square().mean(dims, keepdim=True) + eps).rsqrt()
    return stack((mean, rstd)).reshape(2, *input.shape[:input.ndim - n])


@op(returns=("g_input", "g_weight", "g_bias"))
def layer_norm_backward(g, input, statistics, weight=None):
    """The gradients of layer norm: of its input, weight and bias, from that of its output and the statistics.

    With x̂ = (x - mean) · rstd: gx = rstd · (g·w - mean(g·w) - x̂ · mean(g·w·x̂)), gw = Σ g·x̂, gb = Σ g.
    """
    parameter = input.shape[statistics.ndim - 1:], (weight if weight is not None else input).dtype, input.device
    return [(input.shape, input.dtype, input.device), parameter, parameter]


@layer_norm_backward.impl("cpu")
def layer_norm_backward_cpu(gx, gw, gb, g, x, statistics, weight):
    n = math.prod(x.shape[statistics.ndim - 1:])
    g, x = matrix(g, n), matrix(x, n)
    work = scratch(gx, x)
    gw[...] = gradients(work, g, x, statistics[0, ...], statistics[1, ...], weight).reshape(gw.shape)
    deliver(gx, work)
    gb[...] = g.sum(0).reshape(gb.shape)


@layer_norm_backward.impl("cuda")
def layer_norm_backward_cuda(gx, gw, gb, g, x, statistics, weight):
    normalize_rows_backward(gx, gw, gb, g, x, *mean_and_rstd(statistics), weight, tuple(range(statistics.ndim - 1, x.ndim)))


@layer_norm_backward.formula
def layer_norm_backward_formula(g, input, statistics, weight):
    mean, rstd = statistics
    dims, lead = tuple(range(mean.ndim, input.ndim)), tuple(range(mean.ndim))
    rest = (1,) * len(dims)
    rstd = rstd.reshape(*rstd.shape, *rest)
    xhat = (input - mean.reshape(*mean.shape, *rest)) * rstd
    gw = g if weight is None else g * weight
    gx = rstd * (gw - gw.mean(dims, keepdim=True) - xhat * (gw * xhat).mean(dims, keepdim=True))
    return gx, (g * xhat).sum(lead) if lead else g * xhat, g.sum(lead) if lead else g


@layer_norm_rows.samples
def layer_norm_samples(make):
    yield make(3, 7), (7,), make(7), make(7)
    yield make(2, 3, 5), (3, 5), make(3, 5), make(3, 5)
    yield make(37, 9), (9,)
    yield make(4, 5), (5,), make(5), None, 1e-2
    yield make(2, 301), (301,), None, make(301)
    yield make(6), (6,), make(6), make(6)
    yield make(0, 4), (4,), make(4), make(4)


@layer_norm_backward.samples
def layer_norm_backward_samples(make):
    yield make(3, 7), make(3, 7), make(2, 3), make(7)
    yield make(2, 3, 5), make(2, 3, 5), make(2, 2), make(3, 5)
    yield make(37, 9), make(37, 9), make(2, 37)
    yield make(6), make(6), make(2), make(6)


def norm_sizes(make, arguments, units):
    """Timed calls on the row lengths that models use, in bfloat16."""
    for m, n in (131072, 1024), (32768, 4096), (8192, 16384):
        yield f"{m}x{n}", lambda m=m, n=n: arguments(lambda *s: make(*s, dtype=types.bfloat16), m, n), units * 2 * m * n, 8 * m * n


layer_norm_rows.errors(lambda make: [((make(3, 4), (5,)), {}, RuntimeError, "expected an input whose last dims are (5,)"),
                                     ((make(3, 4), (4,), make(3)), {}, RuntimeError, "expected weight and bias of shape (4,)")])
layer_norm_rows.workloads(lambda make: norm_sizes(make, lambda make, m, n: (make(m, n), (n,), make(n), make(n)), 2))
layer_norm_backward.workloads(lambda make: norm_sizes(
    make, lambda make, m, n: (make(m, n), make(m, n), make(2, m).float(), make(n)), 3))


# ------------------------------------------------------------------ RMS norm
@op(returns=("out", "rstd"))
def rms_norm_rows(input, normalized_shape, weight=None, eps=1e-6):
    """RMS norm and the statistic of every row: (out, 1 / √(mean(x²) + eps)). Only `out` has a gradient."""
    lead, shape, device = leading("rms_norm", input, normalized_shape, weight), input.shape, input.storage.device
    order = () if device.type == "cuda" else (like_image(shape, input),)               # PyTorch has one kernel there, elsewhere products
    return [(shape, input.dtype, device, *order), (shape[:lead], input.dtype.compute, device)]


@rms_norm_rows.impl("cpu")
def rms_norm_cpu(out, rstd, x, normalized_shape, weight, eps):
    work = scratch(out, x := matrix(x, math.prod(normalized_shape)))
    normalize_array(work, x, None, rstd, eps)
    if weight is not None:
        work *= weight.reshape(-1)
    deliver(out, work)


@rms_norm_rows.impl("cuda")
def rms_norm_cuda(out, rstd, x, normalized_shape, weight, eps):
    normalize_rows(out, None, rstd, x, weight, None, eps, tuple(range(x.ndim - len(normalized_shape), x.ndim)))


@rms_norm_rows.grad("input", "weight")
def rms_norm_grad(g_out, input, normalized_shape, weight, rstd, eps):
    if again(input):
        rstd = (input.square().mean(tuple(range(-len(normalized_shape), 0))) + eps).rsqrt()
    return rms_norm_backward(g_out, input, rstd, weight)


@op(returns=("g_input", "g_weight"))
def rms_norm_backward(g, input, rstd, weight=None):
    """The gradients of RMS norm: of its input and weight, from that of its output and 1 / rms.

    With x̂ = x · rstd: gx = rstd · (g·w - x̂ · mean(g·w·x̂)), gw = Σ g·x̂.
    """
    parameter = input.shape[rstd.ndim:], (weight if weight is not None else input).dtype, input.device
    return [(input.shape, input.dtype, input.device), parameter]


@rms_norm_backward.impl("cpu")
def rms_norm_backward_cpu(gx, gw, g, x, rstd, weight):
    n = math.prod(x.shape[rstd.ndim:])
    g, x = matrix(g, n), matrix(x, n)
    gw[...] = gradients(work := scratch(gx, x), g, x, None, rstd, weight).reshape(gw.shape)
    deliver(gx, work)


@rms_norm_backward.impl("cuda")
def rms_norm_backward_cuda(gx, gw, g, x, rstd, weight):
    normalize_rows_backward(gx, gw, None, g, x, None, rstd, weight, tuple(range(rstd.ndim, x.ndim)))


@rms_norm_backward.formula
def rms_norm_backward_formula(g, input, rstd, weight):
    dims, lead = tuple(range(rstd.ndim, input.ndim)), tuple(range(rstd.ndim))
    rstd = rstd.reshape(*rstd.shape, *(1,) * len(dims))
    xhat = input * rstd
    gw = g if weight is None else g * weight
    return rstd * (gw - xhat * (gw * xhat).mean(dims, keepdim=True)), (g * xhat).sum(lead) if lead else g * xhat


@rms_norm_rows.samples
def rms_norm_samples(make):
    yield make(3, 7), (7,), make(7)
    yield make(2, 3, 5), (3, 5), make(3, 5)
    yield make(37, 9), (9,), None, 1e-2
    yield make(2, 301), (301,), make(301)
    yield make(6), (6,), make(6)
    yield make(0, 4), (4,), make(4)


@rms_norm_backward.samples
def rms_norm_backward_samples(make):
    yield make(3, 7), make(3, 7), make(3), make(7)
    yield make(2, 3, 5), make(2, 3, 5), make(2), make(3, 5)
    yield make(37, 9), make(37, 9), make(37)
    yield make(6), make(6), make(), make(6)


rms_norm_rows.errors(lambda make: [((make(3, 4), (5,)), {}, RuntimeError, "expected an input whose last dims are (5,)")])
rms_norm_rows.workloads(lambda make: norm_sizes(make, lambda make, m, n: (make(m, n), (n,), make(n)), 2))
rms_norm_backward.workloads(lambda make: norm_sizes(make, lambda make, m, n: (make(m, n), make(m, n), make(m).float(), make(n)), 3))


# ------------------------------------------------------------------ the public functions
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Normalize the last dims to mean 0 and variance 1, then scale and shift.

    out = (x - mean) / √(var + eps) · weight + bias, the moments over the dims of `normalized_shape`, the variance biased.
    weight and bias have that shape. Half types compute in float32. Ba, Kiros and Hinton, Layer Normalization, 2016.

    >>> import tritorch as torch; from tritorch.ops.normalize import layer_norm
    >>> layer_norm(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), (2,))
    tensor([[-1.0000,  1.0000],
            [ 0.0000,  0.0000]])
    """
    sizes = normalized_shape if normalized_shape.__class__ is tuple else whole_numbers("layer_norm", "normalized_shape", normalized_shape)
    return layer_norm_rows(input, sizes, weight, bias, eps)[0]


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """Divide the last dims by their root mean square, then scale.

    out = x / √(mean(x²) + eps) · weight; eps defaults to the machine epsilon of the dtype computed in, float32 for half types.
    Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.

    >>> import tritorch as torch; from tritorch.ops.normalize import rms_norm
    >>> rms_norm(torch.tensor([[3.0, 3.0]]), (2,))
    tensor([[1., 1.]])
    """
    sizes = normalized_shape if normalized_shape.__class__ is tuple else whole_numbers("rms_norm", "normalized_shape", normalized_shape)
    dtype = getattr(input, "dtype", types.float32).compute
    eps = types.finfo_of(dtype if dtype.is_floating_point else types.float32).eps if eps is None else eps
    return rms_norm_rows(input, sizes, weight, eps)[0]
