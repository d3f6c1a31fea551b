"""Scalar functions of the activations and their derivatives; the loops are in pointwise.py."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from triton_kernels.compare import clamp_numbers
from triton_kernels.scalar import div, sigmoid


@triton.jit
def relu(x):
    return tl.where(x > 0, x, tl.where(x == x, tl.zeros_like(x), x))


@triton.jit
def relu_backward(g, out):
    return tl.where(out <= 0, tl.zeros_like(g), g)


@triton.jit
def leaky_slope(x, slope):
    return tl.where(x > 0, x, x * slope)


@triton.jit
def threshold_at(x, threshold, value):
    return tl.where(x <= threshold, value, x).to(x.dtype)


@triton.jit
def hardshrink_at(x, lambd):
    return tl.where((x > lambd) | (x < -lambd) | (x != x), x, tl.zeros_like(x))


@triton.jit
def softshrink_at(x, lambd):
    return tl.where(x > lambd, x - lambd, tl.where(x < -lambd, x + lambd, x * 0)).to(x.dtype)


@triton.jit
def normal_cdf(x):
    return 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))


@triton.jit
def gelu_erf(x):
    return x * normal_cdf(x)


@triton.jit
def gelu_erf_backward(g, x):
    return g * (normal_cdf(x) + x * libdevice.exp(-0.5 * x * x) * 0.3989422804014327)


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)))


@triton.jit
def gelu_tanh_backward(g, x):
    square = x * x
    tanh = libdevice.tanh(0.7978845608028654 * x * (1.0 + 0.044715 * square))
    return g * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * 0.7978845608028654 * (1.0 + 0.134145 * square))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_backward(g, x):
    s = sigmoid(x)
    return g * s * (1.0 + x * (1.0 - s))


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + libdevice.log1p(libdevice.exp(-tl.abs(x)))


@triton.jit
def softplus_of(x, beta, threshold):
    return tl.where(x * beta > threshold, x, softplus((x * beta).to(x.dtype)) / beta).to(x.dtype)


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - libdevice.log1p(libdevice.exp(-tl.abs(x)))


@triton.jit
def mish(x):
    return x * libdevice.tanh(softplus(x))


@triton.jit
def elu_of(x, alpha):
    return tl.where(x > 0, x, libdevice.expm1(x) * alpha).to(x.dtype)


@triton.jit
def celu_of(x, alpha):
    return tl.where(x > 0, x, libdevice.expm1((x / alpha).to(x.dtype)) * alpha).to(x.dtype)


@triton.jit
def selu(x):
    return 1.0507009873554805 * tl.where(x > 0, x, 1.6732632423543772 * libdevice.expm1(x))


@triton.jit
def hardsigmoid(x):
    return div(clamp_numbers(x + 3.0, 0.0, 6.0), tl.full(x.shape, 6.0, x.dtype))


@triton.jit
def hardswish(x):
    return div(x * clamp_numbers(x + 3.0, 0.0, 6.0), tl.full(x.shape, 6.0, x.dtype))
