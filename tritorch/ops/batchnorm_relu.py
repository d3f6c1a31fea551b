"""Batch norm, a residual and the rectifier in one pass over memory: the end of a block of a convolutional net.

Without a residual `batch_norm_train` and `batch_norm_apply` do it. With one the result is what is left to tell where it was above 0.
"""
from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.ops.activation import relu_backward
from tritorch.ops.arrays import either
from tritorch.ops.batchnorm import (
    apply_array,
    apply_channels,
    batch_norm_apply,
    batch_norm_backward,
    batch_norm_backward_formula,
    batch_norm_train,
    channels_check,
    check_statistics,
    follow,
    followed,
    gradient_promises,
    gradients_channels,
    image_sizes,
    moments_array,
    moments_channels,
    train_promises,
)


@op(returns=("out", "mean", "var"))
def batch_norm_add_relu(input, residual, weight=None, bias=None, eps=1e-5):
    """(max(batch norm of the input + residual, 0), mean, biased variance), with the statistics of the batch; the norm is rounded before the
    addition, as by itself. input and residual are of one shape and dtype. Only `out` has a gradient."""
    channels_check("batch_norm_relu", input, weight, bias)
    alike = residual.shape == input.shape and residual.dtype is input.dtype
    check(alike, "batch_norm_relu", f"a residual of shape {tuple(input.shape)} and {input.dtype}",
          None if alike else (tuple(residual.shape), residual.dtype))
    return train_promises(input)


@batch_norm_add_relu.impl("cpu")
def batch_norm_add_relu_cpu(out, mean, var, x, residual, weight, bias, eps):
    moments_array(mean, var, x)
    apply_array(out, x, mean, var, weight, bias, eps, True, residual)


@batch_norm_add_relu.impl("cuda")
def batch_norm_add_relu_cuda(out, mean, var, x, residual, weight, bias, eps):
    moments_channels(mean, var, x)
    apply_channels(out, x, mean, var, weight, bias, eps, True, residual)


@batch_norm_add_relu.grad("input", "residual", "weight", "bias")
def batch_norm_add_relu_grad(g_out, input, out, weight, mean, var, eps):
    return batch_norm_add_relu_backward(g_out, input, out, *followed(input, mean, var), weight, eps)


@op(returns=("g_input", "g_residual", "g_weight", "g_bias"))
def batch_norm_add_relu_backward(g, input, result, mean, var, weight=None, eps=1e-5, training=True):
    """The gradients of `batch_norm_add_relu`: that of the residual is g where the result is above 0, else 0, and the others are what
    `batch_norm_backward` makes of that."""
    of_input, *parameters = gradient_promises(input, weight)
    return [of_input, of_input, *parameters]


@batch_norm_add_relu_backward.impl("cpu")
def batch_norm_add_relu_backward_cpu(gx, gr, gw, gb, g, x, result, mean, var, weight, eps, training):
    gr[...] = either(result <= 0, g.dtype.type(0), g)
    batch_norm_backward.impls["cpu"](gx, gw, gb, gr, x, mean, var, weight, None, eps, training, False)


@batch_norm_add_relu_backward.impl("cuda")
def batch_norm_add_relu_backward_cuda(gx, gr, gw, gb, g, x, result, mean, var, weight, eps, training):
    gradients_channels(gx, gw, gb, g, x, mean, var, weight, None, eps, training, False, result, gr)


@batch_norm_add_relu_backward.formula
def batch_norm_add_relu_backward_formula(g, input, result, mean, var, weight, eps, training):
    g = relu_backward(g, result)
    gx, gw, gb = batch_norm_backward_formula(g, input, mean, var, weight, None, eps, training, False)
    return gx, g, gw, gb


@batch_norm_add_relu.samples
def batch_norm_add_relu_samples(make):
    yield make(4, 3), make(4, 3), make(3), make(3)
    yield make(2, 3, 5), make(2, 3, 5), None, make(3), 1e-2
    yield make(2, 5, 3, 4), make(2, 5, 3, 4), make(5)
    yield make(0, 3, 2), make(0, 3, 2)


@batch_norm_add_relu_backward.samples
def batch_norm_add_relu_backward_samples(make):
    yield make(4, 3), make(4, 3), make(4, 3), make(3), make(3, positive=True), make(3)
    yield make(2, 3, 5), make(2, 3, 5), make(2, 3, 5), make(3), make(3, positive=True), None, 1e-2, False
    yield make(2, 5, 3, 4), make(2, 5, 3, 4), make(2, 5, 3, 4), make(5), make(5, positive=True), make(5)


@batch_norm_add_relu.errors
def batch_norm_add_relu_errors(make):
    yield (make(2, 3, 4), make(2, 3)), {}, RuntimeError, "expected a residual of shape (2, 3, 4)"
    yield (make(2, 3), make(2, 3), make(2)), {}, RuntimeError, "expected parameters of shape (3,)"


image_sizes(batch_norm_add_relu, lambda image, w, b, *_: (image(), image(), w, b), 4)
image_sizes(batch_norm_add_relu_backward, lambda image, mean, var, w, _: (image(), image(), image(), mean, var, w), 7)


def batch_norm_relu(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, *, residual=None):
    """max(batch_norm(input) + residual, 0), with the arguments of `batch_norm`: one pass over the input for the statistics and one for all
    the rest. The residual has the shape and dtype of the input. Backward, the norm is not kept: where it was above 0 is told from the
    input, or, with a residual, from the result. `tritorch.compile` puts it in the place of the three functions.

    >>> import tritorch as torch
    >>> torch.nn.functional.batch_norm_relu(torch.tensor([[1.0], [3.0]]), None, None, training=True)
    tensor([[0.0000],
            [1.0000]])
    """
    check_statistics(input, running_mean, running_var, training)
    if not training:
        out = batch_norm_apply(input, running_mean, running_var, weight, bias, eps, residual is None)
        return out if residual is None else (out + residual).relu()
    out, *batch = (batch_norm_train(input, weight, bias, eps, True) if residual is None
                   else batch_norm_add_relu(input, residual, weight, bias, eps))
    follow(running_mean, running_var, batch, input, momentum)
    return out
