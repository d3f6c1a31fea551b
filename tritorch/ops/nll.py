"""The negative log-likelihood of class indices: what is picked in every row, and its gradient. The public function is in `loss`."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.cross_entropy import CLASSES, check_weight, class_dim, counted, places, tight, unfit
from tritorch.ops.faults import fault_word
from tritorch.ops.normalize import contiguous
from tritorch.ops.rows import rows
from tritorch.shape import cdiv, next_power_of_2

K = kernels("loss")


@op(returns=("loss", "target_weight"))
def nll_rows(input, target, weight=None, ignore_index=-100):
    """-w_t · x_t of every sample, and w_t, 0 where t is ignored. Only `loss` has a gradient. Half types give float32.

    input (N, C, …) or (C,), target (N, …) or (), weight (C,) or None for ones.
    """
    name, dim = "nll_loss", class_dim(input)
    check(input.ndim > 0 and input.dtype.is_floating_point, name, "floating numbers of at least one dim", input.dtype, input.shape)
    rest = (*input.shape[:dim], *input.shape[dim + 1:])
    if target.shape != rest:
        raise unfit(name, input, target, rest)
    check(target.dtype in (types.int64, types.int32, types.uint8), name, "class indices", target.dtype)
    if weight is not None:
        check_weight(name, weight, input, dim)
    row = rest, input.dtype.compute, input.device
    return [row, row]


@nll_rows.impl("cpu")
def nll_rows_cpu(loss, target_weight, x, target, weight, ignore_index):
    dim = class_dim(x)
    counts, at = counted(target, x.shape[dim], ignore_index, "nll_loss")
    target_weight[...] = counts if weight is None else np.where(counts, weight[at], 0)
    loss[...] = np.where(counts, -x[places(at, dim)].astype(loss.dtype) * target_weight, 0)      # of classes not asked for some are -∞


@nll_rows.impl("cuda")
def nll_rows_cuda(loss, target_weight, x, target, weight, ignore_index):
    M, shape_m, stride_m, N, _, (stride_xn,), *_ = rows(x.shape, (class_dim(x),), *[t.strides for t in (loss, target_weight, x, target)])
    word, number = fault_word(x.device, "nll_loss", CLASSES)
    block = tile(256, 1 << 14)
    launch(K.nll_kernel, (cdiv(M, block),), loss, target_weight, word, x, target, contiguous(weight), shape_m, stride_m, stride_xn, M, N,
           ignore_index, number, ACC=getattr(K.tl, x.dtype.compute.name), BLOCK=block)


@nll_rows.grad("input")
def nll_rows_grad(g_loss, target, weight, ignore_index, input_shape, input_dtype):
    return nll_backward(g_loss, target, weight, ignore_index, input_shape[min(len(input_shape), 2) - 1], input_dtype)


@op
def nll_backward(gradient, target, weight=None, ignore_index=-100, classes=1, dtype=None):
    """The gradient of `nll_rows` with respect to its input, of this dtype: -w_t · g at the target of every sample, else 0."""
    dim = min(target.ndim, 1)
    return (*target.shape[:dim], classes, *target.shape[dim:]), dtype or gradient.dtype, gradient.device


@nll_backward.impl("cpu")
def nll_backward_cpu(gx, g, target, weight, ignore_index, classes, dtype):
    dim = class_dim(gx)
    counts, at = counted(target, classes, ignore_index, "nll_loss")
    gx[...] = 0
    gx[places(at, dim)] = np.where(counts, -g if weight is None else -g * weight[at], 0)


@nll_backward.impl("cuda")
def nll_backward_cuda(gx, g, target, weight, ignore_index, classes, dtype):
    geometry = rows(gx.shape, (class_dim(gx),), *[t.strides for t in (gx, g, target)])
    M, shape_m, stride_m, N, _, (stride_gxn,), *_ = geometry
    across = geometry.across
    block_n = min(next_power_of_2(N), tile(8 if across or N <= 16 else 16 if N <= 64 else min(tight(N), 1024), 2048))
    block_m = min(next_power_of_2(M), tile(1024, 1 << 16), max(tile(4096 if across else 2048, 1 << 16) // block_n, 1))
    tiles = cdiv(N, block_n)
    tiles = max(cdiv(tiles, 65535), 1 if N > 1024 else min(tiles, 16))   # of few classes one program has all: it reads a row's target once
    launch(K.nll_backward_kernel, (cdiv(M, block_m), cdiv(N, tiles * block_n)), gx, g, target, contiguous(weight), shape_m, stride_m,
           stride_gxn, M, N, ignore_index, ACC=getattr(K.tl, gx.dtype.compute.name), BLOCK_M=block_m, BLOCK_N=block_n, TILES=tiles,
           ALIGN=geometry.align)


@nll_backward.grad("gradient")
def nll_backward_grad(g, target, weight, ignore_index, gradient_dtype):
    return nll_rows(g, target, weight, ignore_index)[0].to(gradient_dtype)


# ------------------------------------------------------------------ samples and workloads
@nll_rows.samples
def nll_rows_samples(make):
    yield make(4, 7), make(4, integer=True, low=0, high=7)
    yield make(5, 3), make(5, integer=True, low=0, high=3), make(3, positive=True, grad=False), 1
    yield make(2, 5, 3, 2), make(2, 3, 2, integer=True, low=0, high=5), make(5, positive=True, grad=False), 2
    yield make(6), make(integer=True, low=0, high=6)
    yield make(0, 4), make(0, integer=True, low=0, high=4)


@nll_backward.samples
def nll_backward_samples(make):
    for x, target, *rest in nll_rows_samples(make):
        weight, ignored = (*rest, None, -100)[:2] if rest else (None, -100)
        yield make(*target.shape), target, weight, ignored, x.shape[min(x.ndim, 2) - 1]
    yield make(4), make(4, integer=True, low=0, high=7), None, -100, 7, types.float64


@nll_rows.errors
def nll_rows_errors(make):
    yield (make(4, 7), make(5, integer=True, low=0, high=7)), {}, ValueError, "expected targets of shape (4,)"
    yield (make(4, 7), make(4, integer=True, low=7, high=8)), {}, IndexError, "expected class indices in [0, 6], got 7"
    yield (make(4, 7), make(4, integer=True, low=0, high=7), make(3)), {}, RuntimeError, "expected a weight for each of 7 classes"


nll_rows.workloads(lambda make: [
    (f"{m}x{n}", lambda m=m, n=n: (make(m, n), make(m, integer=True, low=0, high=n)), m * (8 + 32 + 8), m) for m, n in [(1 << 20, 1000)]])
nll_backward.workloads(lambda make: [
    (f"{m}x{n}", lambda m=m, n=n: (make(m), make(m, integer=True, low=0, high=n), None, -100, n), 4 * m * n + 12 * m, m)
    for m, n in [(1 << 19, 1000), (1 << 24, 10)]])
