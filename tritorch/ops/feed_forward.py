"""Affine maps followed by an activation, computed where the product is stored, and the two layers of a feed-forward block.

What they return is, bit for bit, what the separate operators return: the product is rounded to the tensors' dtype before the activation.
"""
from tritorch.autograd.modes import again
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import activation as plain
from tritorch.ops.gemm import gemm
from tritorch.ops.linear import affine_gradients, linear
from tritorch.ops.products import affine_dtype, matmul, one_dtype
from tritorch.tensor import empty

# name: the activation, its derivative times a gradient
ACTIVATIONS = {"relu": (plain.relu, plain.relu_backward), "silu": (plain.silu, plain.silu_backward),
               "gelu": (plain.gelu_erf, plain.gelu_erf_backward), "gelu_tanh": (plain.gelu_tanh, plain.gelu_tanh_backward)}


def _known(name, activation, *operands):
    check(activation in ACTIVATIONS, name, f"an activation among {', '.join(ACTIVATIONS)}", repr(activation))
    dtype = one_dtype(name, *operands)
    check(dtype.is_floating_point, name, "floating tensors", dtype)


def _activated(out, pre, input, weight, bias, activation):
    """Fill out and pre on a GPU."""
    if input.ndim == 1:
        input, out, pre = [x.unsqueeze(0) for x in (input, out, pre)]
    target = out if out.strides == pre.strides else empty(pre.shape, pre.dtype, pre.device)     # the kernel has one set of strides for both
    gemm(target, input, weight.mT, bias, activation=ACTIVATIONS[activation][0].__name__, pre=pre)
    if target is not out:
        out.copy_(target)


# ------------------------------------------------------------------ a layer
@op(returns=("out", "pre"))
def linear_activation(input, weight, bias=None, activation="gelu"):
    """An affine map of the last dim and an activation of it.

        pre = input @ weightᵀ + bias        out = activation(pre)

    input (…, k), weight (n, k), bias broadcasts to (…, n), of dtypes as in `linear`; activation is "relu", "silu", "gelu" or
    "gelu_tanh". Both results are (…, n); gradients flow through out alone. Raises RuntimeError when shapes, dtypes or the name do not fit.

    >>> import tritorch as torch
    >>> out, pre = linear_activation(torch.ones(3), torch.ones(2, 3), torch.tensor([0.0, -9.0]), "relu")
    >>> out
    tensor([3., 0.])
    """
    _known("linear_activation", activation, input, weight)
    promise = linear.body(input, weight, bias)
    return [promise, promise]


@linear_activation.impl("cpu", raw=True)
def linear_activation_cpu(out, pre, input, weight, bias, activation):
    linear.impls["cpu"](pre, input, weight, bias)
    ACTIVATIONS[activation][0].impls["cpu"](out, pre)


@linear_activation.impl("cuda")
def linear_activation_cuda(out, pre, input, weight, bias, activation):
    _activated(out, pre, input, weight, bias, activation)


@linear_activation.grad("input", "weight", "bias")
def linear_activation_grad(g_out, input, weight, bias, activation, pre):
    if again(input, weight, bias):
        pre = linear(input, weight, bias)                                # pre as a function of what it is made of
    g = ACTIVATIONS[activation][1](g_out, pre)
    return g @ weight, *affine_gradients(g, input, "weight", "bias", bias.shape if bias is not None else None)


@linear_activation.samples
def linear_activation_samples(make):
    for activation in ("silu", "gelu", "gelu_tanh"):
        yield make(3, 4), make(5, 4), make(5), activation
    yield make(2, 3, 4), make(5, 4), make(5), "gelu_tanh"
    yield make(4), make(5, 4), make(5), "silu"
    yield make(19, 23), make(18, 23), None, "gelu"
    yield make(0, 4), make(3, 4), make(3)
    yield make(3, 4, low=0.5, high=1.0, positive=True), make(5, 4, low=0.5, high=1.0, positive=True), None, "relu"


@linear_activation.errors
def linear_activation_errors(make):
    yield (make(3, 4), make(5, 4), make(5), "swish"), {}, RuntimeError, "expected an activation among relu, silu, gelu, gelu_tanh"
    yield (make(3, 4), make(5, 6)), {}, RuntimeError, "expected input.shape[-1] == weight.shape[-1]"


@linear_activation.workloads
def linear_activation_workloads(make):
    half, (rows, n, k) = dict(dtype=types.bfloat16), (16384, 3072, 768)
    yield (f"bf16 {rows}x{n}x{k} gelu_tanh", lambda: (make(rows, k, **half), make(n, k, **half), make(n, **half), "gelu_tanh"),
           2 * (rows * k + n * k + 2 * rows * n), 2 * rows * n * k)


# ------------------------------------------------------------------ the way back through an activation
@op
def linear_slope(g_out, weight, pre, activation="gelu"):
    """The gradient of pre, given that of linear(activation(pre), weight): a product and the activation's derivative in one kernel.

        out = activation'(pre) · (g_out @ weight)

    g_out (…, n), weight (n, k) and pre (…, k), of one floating dtype, give (…, k).

    >>> import tritorch as torch
    >>> linear_slope(torch.ones(1), torch.ones(1, 2), torch.tensor([1.0, -1.0]), "relu")
    tensor([1., 0.])
    """
    _known("linear_slope", activation, g_out, weight, pre)
    check(weight.ndim == 2 and pre.shape == (*g_out.shape[:-1], weight.shape[1]) and g_out.shape[-1] == weight.shape[0], "linear_slope",
          "g_out (…, n), weight (n, k) and pre (…, k)", g_out.shape, weight.shape, pre.shape)
    return pre.shape, pre.dtype, common_device("linear_slope", g_out, weight, pre)


@linear_slope.impl("cpu", raw=True)
def linear_slope_cpu(out, g_out, weight, pre, activation):
    product = empty(out.shape, out.dtype, out.device)
    linear.impls["cpu"](product, g_out, weight.mT, None)
    ACTIVATIONS[activation][1].impls["cpu"](out, product, pre)


@linear_slope.impl("cuda")
def linear_slope_cuda(out, g_out, weight, pre, activation):
    if out.ndim == 1:
        out, g_out, pre = [x.unsqueeze(0) for x in (out, g_out, pre)]
    gemm(out, g_out, weight, pre, slope=ACTIVATIONS[activation][1].__name__)


@linear_slope.formula
def linear_slope_formula(g_out, weight, pre, activation):
    return ACTIVATIONS[activation][1](matmul(g_out, weight) if g_out.ndim > 1 else g_out @ weight, pre)


@linear_slope.samples
def linear_slope_samples(make):
    for activation in ("silu", "gelu", "gelu_tanh"):
        yield make(3, 4), make(4, 5), make(3, 5), activation
    yield make(2, 3, 4), make(4, 5), make(2, 3, 5), "relu"
    yield make(4), make(4, 5), make(5), "silu"
    yield make(0, 4), make(4, 5), make(0, 5)
    yield make(19, 23), make(23, 18), make(19, 18), "gelu_tanh"


@linear_slope.errors
def linear_slope_errors(make):
    yield (make(3, 4), make(5, 4), make(3, 4)), {}, RuntimeError, "g_out (…, n), weight (n, k) and pre (…, k)"
    yield (make(3, 4), make(4, 5), make(3, 5), "tanh"), {}, RuntimeError, "expected an activation among"


@linear_slope.workloads
def linear_slope_workloads(make):
    half, (rows, n, k) = dict(dtype=types.bfloat16), (16384, 768, 3072)
    yield (f"bf16 {rows}x{n}x{k} gelu_tanh", lambda: (make(rows, n, **half), make(n, k, **half), make(rows, k, **half), "gelu_tanh"),
           2 * (rows * n + n * k + 2 * rows * k), 2 * rows * n * k)


# ------------------------------------------------------------------ two layers
@op(returns=("out", "hidden", "pre"))
def feed_forward_layers(input, weight1, bias1, weight2, bias2, activation="gelu"):
    """Two affine maps with an activation between them, in two kernels; one more for the way back through both products and the activation.

        pre = input @ weight1ᵀ + bias1        hidden = activation(pre)        out = hidden @ weight2ᵀ + bias2

    input (…, k), weight1 (h, k), weight2 (n, h), biases None or broadcasting, of dtypes as in `linear`; activation as in linear_activation.
    Gradients flow through out alone.

    >>> import tritorch as torch
    >>> feed_forward_layers(torch.ones(3), torch.ones(2, 3), None, torch.ones(1, 2), None, "relu")[0]
    tensor([6.])
    """
    _known("feed_forward", activation, input, weight1, weight2)
    affine_dtype("feed_forward", input, weight2, bias2)
    hidden = linear.body(input, weight1, bias1)
    check(weight2.ndim == 2 and weight2.shape[1] == weight1.shape[0], "feed_forward", "weight2.shape[1] == weight1.shape[0]", weight1.shape,
          weight2.shape)
    return [((*input.shape[:-1], weight2.shape[0]), *hidden[1:]), hidden, hidden]


@feed_forward_layers.impl("cpu", raw=True)
def feed_forward_cpu(out, hidden, pre, input, weight1, bias1, weight2, bias2, activation):
    linear_activation_cpu(hidden, pre, input, weight1, bias1, activation)
    linear.impls["cpu"](out, hidden, weight2, bias2)


@feed_forward_layers.impl("cuda")
def feed_forward_cuda(out, hidden, pre, input, weight1, bias1, weight2, bias2, activation):
    _activated(hidden, pre, input, weight1, bias1, activation)
    linear.impls["cuda"](out, hidden, weight2, bias2)


@feed_forward_layers.grad("input", "weight1", "bias1", "weight2", "bias2")
def feed_forward_grad(g_out, input, weight1, bias1, weight2, bias2, activation, hidden, pre):
    if again(input, weight1, bias1):
        pre = linear(input, weight1, bias1)
        hidden = ACTIVATIONS[activation][0](pre)
    shapes = [None if bias is None else bias.shape for bias in (bias1, bias2)]
    second = affine_gradients(g_out, hidden, "weight2", "bias2", shapes[1])
    g = linear_slope(g_out, weight2, pre, activation)
    return g @ weight1, *affine_gradients(g, input, "weight1", "bias1", shapes[0]), *second


@feed_forward_layers.samples
def feed_forward_samples(make):
    yield make(3, 4), make(5, 4), make(5), make(2, 5), make(2), "gelu_tanh"
    yield make(2, 3, 4), make(5, 4), None, make(2, 5), None, "gelu"
    yield make(4), make(5, 4), make(5), make(2, 5), make(2), "silu"
    yield make(0, 4), make(5, 4), make(5), make(2, 5), make(2)


@feed_forward_layers.errors
def feed_forward_errors(make):
    yield (make(3, 4), make(5, 4), None, make(2, 6), None), {}, RuntimeError, "feed_forward: expected weight2.shape[1] == weight1.shape[0]"
    yield (make(3, 4), make(5, 4), None, make(2, 5), None, "tanh"), {}, RuntimeError, "expected an activation among"


@feed_forward_layers.workloads
def feed_forward_workloads(make):
    half, (rows, h, k) = dict(dtype=types.bfloat16), (16384, 3072, 768)
    yield (f"bf16 {rows}x{k}, {h} hidden, gelu_tanh",
           lambda: (make(rows, k, **half), make(h, k, **half), make(h, **half), make(k, h, **half), make(k, **half), "gelu_tanh"),
           2 * (2 * rows * k + 2 * h * k + 3 * rows * h), 4 * rows * h * k)


def feed_forward(input, weight1, bias1, weight2, bias2, activation="gelu"):
    """linear(activation(linear(input, weight1, bias1)), weight2, bias2), the same values with fewer passes over memory.

    input (…, k), weight1 (h, k), weight2 (n, h), biases or None, of one floating dtype, give (…, n). activation is "relu", "silu",
    "gelu" or "gelu_tanh". Raises RuntimeError when shapes, dtypes or the name do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.feed_forward(torch.ones(3), torch.ones(2, 3), None, torch.ones(1, 2), None, "relu")
    tensor([6.])
    """
    return feed_forward_layers(input, weight1, bias1, weight2, bias2, activation)[0]
