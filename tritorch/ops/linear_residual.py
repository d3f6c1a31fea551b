"""An affine map, dropout of it and a residual stream to which it is added, computed where the product is stored.

What it returns is, bit for bit, what the separate operators return: every step is rounded to the tensors' dtype.
"""
import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, sentence
from tritorch.ops.draws import place, random_dropout, threshold
from tritorch.ops.dropout import idle
from tritorch.ops.gemm import gemm
from tritorch.ops.linear import as_rows, linear
from tritorch.ops.pointwise import add
from tritorch.tensor import empty

HALF = 0xFFFFFFFF


@op
def linear_residual(input, weight, bias=None, residual=None, p=0.0, seed=0, offset=0, base=None):
    """An affine map of the last dim, dropout of it, added to a residual stream; one kernel where the result has an even width.

        out = residual + dropout(input @ weightᵀ + bias, p)

    input (…, k), weight (n, k), bias broadcasts to (…, n), of dtypes as in `linear`, floating; residual (…, n) of input's dtype, or None.
    The elements that `dropout` with the same seed and offset drops are dropped. Raises RuntimeError when shapes or dtypes do not fit,
    ValueError unless 0 ≤ p < 1.

    >>> import tritorch as torch
    >>> linear_residual(torch.ones(1, 3), torch.ones(2, 3), None, torch.tensor([[10.0, 20.0]]))
    tensor([[13., 23.]])
    """
    shape, dtype, device = linear.body(input, weight, bias)
    check(dtype.is_floating_point, "linear_residual", "floating tensors", dtype)
    if residual is not None and (residual.shape != shape or residual.dtype is not dtype):
        raise RuntimeError(sentence("linear_residual", f"a residual of shape {tuple(shape)} and {dtype}", residual.shape, residual.dtype))
    check(0 <= p < 1, "linear_residual", "0 ≤ p < 1", p, error=ValueError)
    return shape, dtype, device


@linear_residual.impl("cpu", raw=True)
def linear_residual_cpu(out, input, weight, bias, residual, p, seed, offset, base):
    one_by_one(out, input, weight, bias, residual, p, seed, offset, base)


def one_by_one(out, input, weight, bias, residual, p, seed, offset, base):
    """By the separate operators' implementations."""
    kind = out.device.type
    value = empty(out.shape, out.dtype, out.device)
    linear.impls[kind](value, input, weight, bias)
    if p:
        random_dropout.impls[kind](value, value, p, seed, offset, base, None)
    if residual is None:
        out.copy_(value)
    else:
        add.impls[kind](out, residual, value, 1)


def halves(number):
    """The 32-bit halves of a number of 64 bits, as floats."""
    return getattr(number, "parts", None) or (np.float64(number >> 32 & HALF), np.float64(number & HALF))


@linear_residual.impl("cuda", passes={"seed": halves, "offset": halves})
def linear_residual_cuda(out, input, weight, bias, residual, p, seed, offset, base):
    if not out.is_contiguous() or p and out.shape[-1] % 2 or not p and residual is None:
        return one_by_one(out, input, weight, bias, residual, p, seed, offset, base)
    last = () if residual is None else (as_rows(residual.unsqueeze(0)).contiguous(),)
    if p:
        last += (*halves(seed), *halves(offset), np.float64(threshold(p)), np.float64(1 / (1 - p)))
    if p and base is not None:
        last += base, np.float64(0)
    bias = bias if bias is None or bias.ndim < 2 else as_rows(bias.expand(1, *out.shape))
    gemm(as_rows(out.unsqueeze(0)), as_rows(input.unsqueeze(0)), weight.mT, bias, behind=last)


def linear_dropout_add(input, weight, bias, residual, p=0.5, training=True, *, generator=None):
    """residual + dropout(linear(input, weight, bias), p, training): how a block's output joins the stream, in one kernel.

    Shapes, dtypes and errors as in `linear_residual`; with the same generator it drops what `dropout` drops.

    >>> import tritorch as torch
    >>> torch.nn.functional.linear_dropout_add(torch.ones(1, 3), torch.ones(2, 3), None, torch.zeros(1, 2), training=False)
    tensor([[3., 3.]])
    """
    if idle(residual, p, training):
        return linear_residual(input, weight, bias, residual)
    if p == 1:
        return residual + linear(input, weight, bias) * 0.0
    return linear_residual(input, weight, bias, residual, p, *place(input.device, generator, residual.numel()))


@linear_residual.formula
def linear_residual_formula(input, weight, bias, residual, p, seed, offset, base):
    value = linear(input, weight, bias)
    value = random_dropout(value, p, seed, offset, base) if p else value
    return value if residual is None else residual + value


@linear_residual.samples
def linear_residual_samples(make):
    yield make(3, 4), make(6, 4), make(6), make(3, 6)
    yield make(3, 4), make(6, 4), make(6), make(3, 6), 0.5, 7, 0
    yield make(2, 3, 4), make(6, 4), None, make(2, 3, 6), 0.25, -5, (1 << 33) + 3
    yield make(19, 70), make(18, 70), make(18), None, 0.1, 1 << 40, 0
    yield make(2, 3, 4), make(5, 4), make(3, 5), make(2, 3, 5), 0.5, 3, 1
    yield make(2, 3, 4), make(6, 4), make(3, 6), make(2, 3, 6), 0.5, 3, 1
    yield make(4), make(6, 4), make(6), make(6), 0.5, 3, 1
    yield make(1, 70), make(6, 70), make(6), make(1, 6)
    yield make(3, 4), make(6, 4), make(6)
    yield make(0, 4), make(6, 4), None, make(0, 6), 0.5


@linear_residual.errors
def linear_residual_errors(make):
    yield (make(3, 4), make(5, 4), None, make(3, 4)), {}, RuntimeError, "a residual of shape (3, 5)"
    yield (make(3, 4), make(5, 4), None, None, 1.0), {}, ValueError, "0 ≤ p < 1"
    yield (make(3, 4), make(5, 6)), {}, RuntimeError, "expected input.shape[-1] == weight.shape[-1]"


@linear_residual.workloads
def linear_residual_workloads(make):
    half, (rows, n, k) = dict(dtype=types.bfloat16), (16384, 768, 3072)
    for p in (0.0, 0.1):
        yield (f"bf16 {rows}x{n}x{k}, p = {p}",
               lambda p=p: (make(rows, k, **half), make(n, k, **half), make(n, **half), make(rows, n, **half), p, 7, 0),
               2 * (rows * k + n * k + 2 * rows * n), 2 * rows * n * k)
