"""softmax and log_softmax along a dim, and their fused gradients."""

import numpy as np

from tritorch.cuda.launch import kernels, launch, sm_count
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.arrays import single
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.reduce import sums_along
from tritorch.ops.rows import IN_REGISTERS, blocks, kept, rows, start_rows
from tritorch.shape import cdiv, wrap_dim
from tritorch.tensor import empty

K = kernels("softmax")


def launch_rows(kernel, family, tensors, dim, **constexprs):
    """Start a row kernel on tensors of one shape, outputs first."""
    first, shape = tensors[0], tensors[0].shape
    geometry = rows(shape, (wrap_dim(dim, len(shape), "softmax"),) if shape else (), *[t.strides for t in tensors])
    M, shape_m, stride_m, N, shape_n, stride_n, across, wide, _ = geometry
    if M * N:
        start_rows(kernel, family, geometry, first.dtype, (*tensors, shape_m, stride_m, shape_n, stride_n, M, N), held=16384, **constexprs,
                   ACC=getattr(K.tl, first.dtype.compute.name), WIDE=wide)


LONG = 2 * IN_REGISTERS
"""Columns from which on three launches are sooner done than one program with a row."""


def few_long(tensors, dim):
    """Whether rows are long, and too few for half of the multiprocessors to have a program: 8 of a million columns take 28 µs in pieces,
    not 194 (predicted)."""
    first = tensors[0]
    if not first.shape or first.shape[dim] <= LONG:
        return False
    M, *_, across, _, _ = rows(first.shape, (wrap_dim(dim, first.ndim, "softmax"),), *[t.strides for t in tensors])
    return 0 < 2 * cdiv(M, 64 if across else 1) <= sm_count()


def launch_long(kernel, tensors, dim, inputs, monoid, log):
    """Sums of whole rows of `inputs`, in pieces, and from them all tiles of the first of `tensors`."""
    out, dims = tensors[0], (wrap_dim(dim, tensors[0].ndim, "softmax"),)
    acc = out.dtype.compute
    sums = [empty(kept(out.shape, dims, False), acc, out.device) for _ in monoid.states]
    reduce_rows(sums, inputs, dims, False, monoid, acc)
    M, shape_m, stride_m, N, shape_n, stride_n, across, wide, align = rows(out.shape, dims, *[t.strides for t in (*tensors, *sums)])
    m, n = blocks(M, N, across)
    launch(kernel, (cdiv(N, n), cdiv(M, m)), *tensors, *sums, shape_m, stride_m, shape_n, stride_n, M, N, LOG=log,
           ACC=getattr(K.tl, acc.name), WIDE=wide, BLOCK_M=m, BLOCK_N=n, ALIGN=align)


def launch_forward(out, x, dim, log):
    if few_long((out, x), dim):
        launch_long(K.softmax_long_kernel, (out, x), dim, [x], Monoid("logsumexp", "logsumexp", "exponentials", (None, None)), log)
    else:
        launch_rows(K.softmax_kernel, "softmax", (out, x), dim, lanes=True, few=True, LOG=log)


def launch_backward(gx, g, y, dim, log):
    if few_long((gx, g, y), dim):
        inputs, lift = ([g], "sum") if log else ([g, y], "product")
        launch_long(K.softmax_backward_long_kernel, (gx, g, y), dim, inputs, Monoid(lift, "sum"), log)
    else:
        launch_rows(K.softmax_backward_kernel, "softmax_backward", (gx, g, y), dim, few=True, LOG=log)


# ------------------------------------------------------------------ numpy
def softmax_array(out, x, dim, log):
    """Softmax of an array; float32 math stays float32 and the output holds the intermediate values."""
    if not x.ndim or not x.size:
        out[...] = (x - x if log else np.exp(x - x)) if x.size else out
        return
    work = out if out.dtype == x.dtype else np.empty_like(x)
    np.subtract(x, np.maximum.reduce(x, dim, None, None, True), out=work)      # x.max() without 0.3 µs of its own
    if log:
        work -= np.log(sums_along(np.exp(work), dim))
    else:
        np.exp(work, out=work)
        work /= sums_along(work, dim)
    if work is not out:
        out[...] = work


def softmax_backward_array(gx, g, y, dim, log):
    g, y = single(g), single(y)
    if not g.ndim:
        gx[...] = g - np.exp(y) * g if log else (g - g * y) * y
        return
    work = gx if gx.dtype == g.dtype else np.empty_like(g)
    if log:
        np.exp(y, out=work)
        work *= -sums_along(g, dim)
        work += g
    else:
        np.multiply(g, y, out=work)
        np.subtract(g, sums_along(work, dim), out=work)
        work *= y
    if work is not gx:
        gx[...] = work


# ------------------------------------------------------------------ the operators
def describe(forward, backward):
    """What both are tested and timed with."""
    @forward.samples
    def forward_samples(make):
        yield make(5), 0
        yield make(3, 7), 1
        yield make(7, 3), 0
        yield make(2, 5, 3), -2
        yield make(2, 301), 1, types.float64
        yield make(), 0
        yield make(0, 3), 1

    @backward.samples
    def backward_samples(make):
        yield make(5), make(5), 0
        yield make(3, 7), make(3, 7), 1
        yield make(7, 3), make(7, 3), 0
        yield make(2, 5, 3), make(2, 5, 3), -2
        yield make(2, 301), make(2, 301), 1

    forward.errors(lambda make: [((make(2, 3), 2), {}, IndexError, "expected a dim in [-2, 1], got 2"),
                                 ((make(3, integer=True, low=0, high=4), 0), {}, RuntimeError, "expected a floating dtype")])
    shapes = (131072, 1024), (32768, 4096), (8192, 16384), (8192, 131072)
    forward.workloads(lambda make: [(f"{m}x{n}", lambda m=m, n=n: (make(m, n, dtype=types.bfloat16), -1), 2 * 2 * m * n, 5 * m * n)
                                    for m, n in shapes])
    backward.workloads(lambda make: [(f"{m}x{n}", lambda m=m, n=n: (make(m, n, dtype=types.bfloat16), make(m, n, dtype=types.bfloat16), -1),
                                      3 * 2 * m * n, 5 * m * n) for m, n in shapes])


def family(name, doc, log, composed):
    """softmax and log_softmax: the operator and the operator of its gradient."""
    def rule(input, dim, dtype=None):
        wrap_dim(dim, input.ndim, name)
        kind = input.dtype if dtype is None else types.as_dtype(dtype)
        check(kind.is_floating_point, name, "a floating dtype", kind, use="dtype=torch.float32")
        return input.shape, kind, input.device

    def backward_rule(gradient, output, dim):
        return output.shape, output.dtype, output.device

    rule.__name__, rule.__doc__ = name, doc
    backward_rule.__name__ = name + "_backward"
    backward_rule.__doc__ = f"The gradient of {name}, from that of its output and the output itself."
    forward, backward = op(rule), op(backward_rule)
    forward.exact = True

    @forward.impl("cpu")
    def forward_cpu(out, x, dim, dtype):
        softmax_array(out, single(x if dtype is None else x.astype(out.dtype, copy=False)), dim, log)

    @forward.impl("cuda")
    def forward_cuda(out, x, dim, dtype):
        x = x if x.dtype.is_floating_point else x.to(out.dtype)           # the kernel takes -inf for what lies past the end of a row
        launch_forward(out, x, dim, log)

    @forward.grad("input")
    def forward_grad(g, out, dim):
        return backward(g, out, dim)

    @backward.impl("cpu")
    def backward_cpu(gx, g, y, dim):
        softmax_backward_array(gx, g, y, dim, log)

    @backward.impl("cuda")
    def backward_cuda(gx, g, y, dim):
        launch_backward(gx, g, y, dim, log)

    backward.formula(composed)

    describe(forward, backward)
    return forward, backward


softmax, softmax_backward = family("softmax", """Exponentials along `dim`, scaled to sum to 1.

    out = exp(x) / Σ exp(x). With `dtype` the input is cast first. A row of -inf alone gives NaN.

    >>> import tritorch as torch; torch.tensor([0.0, 0.0, 0.0, 0.0]).softmax(dim=0)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """, False, lambda g, y, dim: (g - (g * y).sum(dim, keepdim=True)) * y)
log_softmax, log_softmax_backward = family("log_softmax", """Logarithm of softmax along `dim`, without overflow.

    out = x - log Σ exp(x). With `dtype` the input is cast first.

    >>> import tritorch as torch; torch.tensor([0.0, 0.0]).log_softmax(dim=0)
    tensor([-0.6931, -0.6931])
    """, True, lambda g, y, dim: g - y.exp() * g.sum(dim, keepdim=True))

