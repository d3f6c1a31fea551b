"""Affine maps of the last dim, `linear`, and the gradients of their weight and bias by one walk through the gradient of the result."""
from math import prod

import numpy as np

from tritorch.autograd.parts import alone, arrived, joined_grads, needed, wanted_dtype
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, sentence
from tritorch.ops.copy import transfer
from tritorch.ops.gemm import gemm
from tritorch.ops.products import add_product, addmm, affine_dtype, matmul, multiply, one_dtype, sum_dtype, with_arrived
from tritorch.pairs import OWN
from tritorch.shape import broadcast_shapes
from tritorch.storage import Spread
from tritorch.tensor import empty


@op
def linear(input, weight, bias=None):
    """An affine map of the last dim: the layer `nn.Linear`, its bias added where the product is stored.

        out = input @ weightᵀ + bias

    input (…, k), weight (n, k), bias broadcasts to (…, n), of one dtype, give (…, n). A bias beside half types may be float32.
    Raises RuntimeError when the shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.linear(torch.ones(3), torch.ones(2, 3), torch.tensor([0.0, 1.0]))
    tensor([3., 4.])
    """
    check(input.ndim >= 1 and weight.ndim == 2, "linear", "input of at least one dim and a matrix as weight", input.shape, weight.shape)
    check(input.shape[-1] == weight.shape[-1], "linear", "input.shape[-1] == weight.shape[-1]", input.shape, weight.shape)
    shape = (*input.shape[:-1], weight.shape[0])
    if bias is None:
        return shape, one_dtype("linear", input, weight), common_device("linear", input, weight)
    if bias.shape != weight.shape[:1]:
        check(broadcast_shapes("linear", bias.shape, shape) == shape, "linear", f"a bias that broadcasts to {shape}", bias.shape)
    return shape, affine_dtype("linear", input, weight, bias), common_device("linear", input, weight, bias)


@linear.impl("cpu")
def linear_cpu(out, input, weight, bias):
    multiply(out, input, weight.T, 1, bias)


@linear.impl("cuda")
def linear_cuda(out, input, weight, bias):
    if input.ndim == 1:
        input, out = input.unsqueeze(0), out.unsqueeze(0)
    gemm(out, input, weight.mT, bias)


linear.complex = OWN


@linear.grad("input")
def linear_grad_input(g, weight, input_shape):
    return with_arrived("input", input_shape, g, weight.conj() if weight.dtype.is_complex else weight)


@linear.samples
def linear_samples(make):
    yield make(3, 4), make(5, 4), make(5)
    yield make(2, 3, 4), make(5, 4), make(5)
    yield make(4), make(5, 4), make(5)
    yield make(19, 23), make(18, 23)
    yield make(3, 5, 2), make(7, 2), make(5, 7)
    yield make(2, 0), make(3, 0), make(3)
    yield make(0, 4), make(3, 4), make(3)
    yield make(2, 0, 4), make(3, 4)


@linear.errors
def linear_errors(make):
    yield (make(3, 4), make(5, 6)), {}, RuntimeError, "expected input.shape[-1] == weight.shape[-1], got (3, 4) and (5, 6)"
    yield (make(3, 4), make(5, 4), make(4)), {}, RuntimeError, "broadcast"


@linear.workloads
def linear_workloads(make):
    half = dict(dtype=types.bfloat16)
    for rows, n, k in ((16384, 2304, 768), (16384, 3072, 768), (16384, 768, 3072), (16384, 50304, 768), (64, 4096, 4096), (1, 4096, 4096)):
        yield (f"bf16 {rows}x{n}x{k}", lambda rows=rows, n=n, k=k: (make(rows, k, **half), make(n, k, **half), make(n, **half)),
               2 * (rows * k + n * k + rows * n), 2 * rows * n * k)


# ------------------------------------------------------------------ gradients of weight and bias
def as_rows(x):
    """All leading dims as one."""
    return x if len(x.shape) == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])


@op(returns=("weight", "bias"), aliasable=("weight_total", "bias_total"))
def linear_gradients(g, input, out_dtype=None, weight_total=None, bias_total=None):
    """The gradients of weight and bias of `linear`, given that of its result; both added to sums so far, or none.

        weight = weight_total + gᵀ @ input        bias = bias_total + Σᵢ g[i]

    g (rows, n) and input (rows, k), of one dtype, give (n, k) and (n,), of the dtypes of the sums so far. Without these, half types are
    summed in float32, which the bias keeps, and with out_dtype=float32 the weight. On Hopper the product sums up what it has in shared
    memory.

    >>> import tritorch as torch
    >>> linear_gradients(torch.ones(3, 1), torch.ones(3, 2))
    (tensor([[3., 3.]]), tensor([3.]))
    """
    fits = g.ndim == 2 == input.ndim and g.shape[0] == input.shape[0]
    check(fits, "linear_gradients", "matrices with the same rows", g.shape, input.shape)
    dtype, device = one_dtype("linear_gradients", g, input), common_device("linear_gradients", g, input)
    check(dtype.is_floating_point, "linear_gradients", "floating tensors", dtype)
    n, k = g.shape[1], input.shape[1]
    sums = [getattr(total, "shape", None) for total in (weight_total, bias_total)]
    if sums != [None, None] and sums != [(n, k), (n,)]:
        raise RuntimeError(sentence("linear_gradients", f"sums of shapes {(n, k)} and {(n,)}, or none", *sums))
    wanted = sum_dtype("linear_gradients", dtype, out_dtype, weight_total)
    return [((n, k), wanted, device), ((n,), dtype.compute if bias_total is None else bias_total.dtype, device)]


@linear_gradients.impl("cpu")
def linear_gradients_cpu(weight, bias, g, input, out_dtype, weight_total, bias_total):
    multiply(weight, g.T, input, 1, weight_total)
    sums = np.sum(g, 0, dtype=np.promote_types(g.dtype, np.float32))
    bias[...] = sums if bias_total is None else sums + bias_total


@linear_gradients.impl("cuda")
def linear_gradients_cuda(weight, bias, g, input, out_dtype, weight_total, bias_total):
    inside = bias.dtype is g.dtype.compute and bias.is_contiguous()
    sums = bias if inside else empty(bias.shape, g.dtype.compute, bias.device)
    if bias_total is not None and not (inside and bias.data_ptr() == bias_total.data_ptr()):
        transfer(sums, bias_total)
    gemm(weight, g.mT, input, weight_total, row_sums=sums)
    if sums is not bias:
        transfer(bias, sums)


@linear_gradients.formula
def linear_gradients_formula(g, input, out_dtype, weight_total, bias_total):
    product, sums = matmul(g.mT, input), g.to(g.dtype.compute).sum(0)
    product = product if out_dtype is None else product.to(out_dtype)
    return (product, sums) if weight_total is None else (weight_total + product, bias_total + sums)


@linear_gradients.samples
def linear_gradients_samples(make):
    yield make(7, 3), make(7, 4)
    yield make(33, 19), make(33, 18)
    yield make(1, 3), make(1, 2)
    yield make(7, 3), make(7, 4), None, make(3, 4), make(3)
    yield make(0, 3), make(0, 2)
    yield make(0, 3), make(0, 2), None, make(3, 2), make(3)
    yield make(3, 0), make(3, 2)
    yield make(3, 2), make(3, 0)


@linear_gradients.errors
def linear_gradients_errors(make):
    yield (make(3, 4), make(4, 5)), {}, RuntimeError, "expected matrices with the same rows, got (3, 4) and (4, 5)"
    yield (make(3, 4), make(3, 5), types.int32), {}, RuntimeError, "expected out_dtype tritorch.float32, got tritorch.int32"
    yield (make(3, 4), make(3, 5), None, make(4, 5)), {}, RuntimeError, "sums of shapes (4, 5) and (4,), or none, got (4, 5) and None"


@linear_gradients.workloads
def linear_gradients_workloads(make):
    half = dict(dtype=types.bfloat16)
    for rows, n, k in ((16384, 2304, 768), (16384, 3072, 768)):
        yield (f"bf16 {rows}x{n}x{k}", lambda rows=rows, n=n, k=k: (make(rows, n, **half), make(rows, k, **half), types.float32),
               2 * rows * (n + k) + 4 * n * k, 2 * rows * n * k)


def affine_gradients(g, input, weight, bias, bias_shape):
    """For a gradient rule: those of a weight and a bias, the inputs of its node with these names, from the gradient of their affine map."""
    pair = (g, input) if type(g.storage) is not Spread or g.shape[:-1] != input.shape[:-1] else Spread.rows_first(g, input)
    rows, x = map(as_rows, pair)
    if not needed(weight):
        return None, g
    if rows.dtype.is_complex:
        return matmul(rows.mT, x.conj()), g
    both = needed(bias) and bias_shape == (rows.shape[1],)
    if both and alone(weight):
        return linear_gradients(rows, x, wanted_dtype(weight))
    if both and joined_grads(lambda *totals: linear_gradients.into(totals, rows, x, totals[0].dtype, *totals), (rows, x), weight, bias):
        return None, None
    if not both and joined_grads(lambda total: add_product(total, rows.mT, x), (rows, x), weight):
        return None, g
    others, dtype = arrived(weight), wanted_dtype(weight)
    if others is None and both:
        return linear_gradients(rows, x, dtype)
    return (matmul(rows.mT, x) if others is dtype is None else addmm(others, rows.mT, x, 1, 1, dtype)), g


@linear.grad("weight", "bias")
def linear_grad_parameters(g, input, bias_shape):
    return affine_gradients(g, input, "weight", "bias", bias_shape)
