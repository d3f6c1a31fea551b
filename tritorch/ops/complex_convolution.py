"""Convolutions of complex images on a GPU as real ones of twice as many channels: the parts of a channel are channels side by side, as they
lie in images that are channels last. The kernels and the precision are those of real convolutions, of complex128 those of float64."""
from tritorch.memory_format import channels_last, strides_in
from tritorch.ops import convolution_cuda
from tritorch.ops.complex_gemm import turned
from tritorch.ops.copy import transfer
from tritorch.ops.loops import COMPLEX, launch_elementwise
from tritorch.pairs import lengthened
from tritorch.tensor import empty_strided, strided


def convolve(out, x, weight, bias, *how):
    """out = bias + the convolution of x with the weights."""
    weight, bias = _weights(weight, True), None if bias is None else lengthened(bias)
    _into(out, lambda real: convolution_cuda.convolve(real, _channels(x), weight, bias, *how))


def convolve_input(out, gradient, weight, *how):
    """The transposed convolution of `gradient` with the weights."""
    _into(out, lambda real: convolution_cuda.convolve_input(real, _channels(gradient), _weights(weight, False), *how))


def convolve_weight(out, gradient, x, *how):
    """The sums of products of `gradient` and x: in real numbers those of Re gradient stand beside those of Im gradient."""
    k, c, *size = out.shape
    if out.numel():
        real = _images(2 * k, 2 * c, size, out.dtype.parts, out.device)
        convolution_cuda.convolve_weight(real, _channels(gradient), _channels(x), *how)
        row = c * size[0] * size[1]
        first, second = [strided(real.storage, out.shape, (2 * row, 1, size[1] * c, c), place, out.dtype) for place in (0, row)]
        launch_elementwise(out, (first, second), COMPLEX.add, out.dtype, (1j,))


def _images(n, channels, size, dtype, device):
    """Memory for images that are channels last."""
    shape = (n, channels, *size)
    return empty_strided(shape, strides_in("convolution", shape, channels_last), dtype, device)


def _lies(x):
    """Whether the channels of a pixel follow each other."""
    return x.strides[1] == 1 or x.shape[1] == 1


def _channels(x):
    """Images as real ones of twice as many channels, in the same memory where the channels of a pixel follow each other."""
    x = x if _lies(x) else x.contiguous(memory_format=channels_last)
    n, c, h, w = x.shape
    sn, _, sh, sw = x.strides
    return strided(x.storage, (n, 2 * c, h, w), (2 * sn, 1, 2 * sh, 2 * sw), 2 * x.offset, x.dtype.parts)


def _into(out, compute):
    """Have `compute` fill out, as real images."""
    made = out if _lies(out) else _images(*out.shape[:2], out.shape[2:], out.dtype, out.device)
    compute(_channels(made))
    if made is not out:
        transfer(out, made)


def _weights(weight, conjugate):
    """Weights (K, C, R, S) as real ones (2K, 2C, R, S) from parts to parts, for a transposed convolution or, if conjugate, for another."""
    k, c, r, s = weight.shape
    weight = weight.contiguous(memory_format=channels_last)
    rows = strided(weight.storage, (k, r * s * c), (r * s * c, 1), weight.offset, weight.dtype)
    made = turned(rows, conjugate=conjugate)
    return strided(made.storage, (2 * k, 2 * c, r, s), (2 * r * s * c, 1, 2 * s * c, 2 * c), 0, made.dtype)
