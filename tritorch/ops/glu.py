"""Gated linear units: one half of a tensor, as far as the other lets it through."""
import numpy as np

from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.memory_format import elementwise as elementwise_strides
from tritorch.ops.elementwise import launch_elementwise
from tritorch.ops.shaping import cat
from tritorch.ops.slicing import narrow
from tritorch.ops.slopes import K, sigmoid
from tritorch.shape import wrap_dim


def _halves(x, dim):
    """Both halves of a tensor or of a numpy array."""
    d, n = wrap_dim(dim, len(x.shape), "glu"), x.shape[dim] // 2
    return np.split(x, 2, d) if isinstance(x, np.ndarray) else (narrow(x, d, 0, n), narrow(x, d, n, n))


@op
def glu(input, dim=-1):
    """a · σ(b) for the halves a, b of `dim`. Dauphin et al., Language Modeling with Gated Convolutional Networks, 2017.

    >>> import tritorch as torch
    >>> torch.nn.functional.glu(torch.tensor([1.0, 2.0, 0.0, 0.0]))
    tensor([0.5000, 1.0000])
    """
    check(input.dtype.is_floating_point, "glu", "a floating dtype", input.dtype, error=NotImplementedError)
    check(len(input.shape) > 0, "glu", "at least one dim", "a scalar")
    d = wrap_dim(dim, len(input.shape), "glu")
    check(input.shape[d] % 2 == 0, "glu", f"an even size of dim {dim}", input.shape)
    shape = (*input.shape[:d], input.shape[d] // 2, *input.shape[d + 1:])
    return shape, input.dtype, input.device, input.strides, elementwise_strides


@glu.impl("cpu")
def glu_cpu(out, input, dim):
    a, b = _halves(input.astype(np.promote_types(input.dtype, np.float32), copy=False), dim)
    out[...] = a * sigmoid(b)


@glu.impl("cuda")
def glu_cuda(out, input, dim):
    launch_elementwise(out, _halves(input, dim), K.gated, out.dtype.compute)


@glu.grad("input")
def glu_grad(g, input, dim):
    return glu_backward(g, input, dim)


@op
def glu_backward(g_out, input, dim):
    """The gradient of glu: g · σ(b) beside g · a · σ(b) · (1 - σ(b))."""
    return input.shape, input.dtype, input.device, input.strides, elementwise_strides


@glu_backward.impl("cpu")
def glu_backward_cpu(out, g_out, input, dim):
    a, b = _halves(input.astype(np.promote_types(input.dtype, np.float32), copy=False), dim)
    first, second = _halves(out, dim)
    s = sigmoid(b)
    first[...], second[...] = g_out * s, g_out * a * (s * (1 - s))


@glu_backward.impl("cuda")
def glu_backward_cuda(out, g_out, input, dim):
    (a, b), (first, second) = _halves(input, dim), _halves(out, dim)
    launch_elementwise(first, (g_out, b), K.gated, out.dtype.compute)
    launch_elementwise(second, (g_out, a, b), K.gated_backward, out.dtype.compute)


@glu_backward.formula
def glu_backward_formula(g_out, input, dim):
    a, b = _halves(input, dim)
    s = b.sigmoid()
    return cat([g_out * s, g_out * a * (s * (1 - s))], dim)


@glu.samples
def glu_samples(make):
    yield make(3, 4),
    yield make(6, 5, 3), 0
    yield make(2, 4, 3), 1
    yield make(2), -1
    yield make(3, 0),


@glu_backward.samples
def glu_backward_samples(make):
    yield make(3, 2), make(3, 4), -1
    yield make(2, 2, 3), make(2, 4, 3), 1


@glu.errors
def glu_errors(make):
    yield (make(),), {}, RuntimeError, "expected at least one dim"
    yield (make(3),), {}, RuntimeError, "expected an even size of dim -1"
    yield (make(2, 4), 2), {}, IndexError, "expected a dim in [-2, 1]"


@glu.workloads
def glu_workloads(make):
    x = make(1 << 12, 1 << 12, grad=False)
    yield "16M fp32", lambda: (x, -1), 3 * x.nbytes // 2, 0


@glu_backward.workloads
def glu_backward_workloads(make):
    x, g = make(1 << 12, 1 << 12, grad=False), make(1 << 12, 1 << 11, grad=False)
    yield "16M fp32", lambda: (g, x, -1), 5 * x.nbytes // 2, 0
