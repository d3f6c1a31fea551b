"""Depthwise convolutions where kernels are compiled for the host: row by row, over a copy with the padding around it."""
from tritorch.cuda.launch import compiled_for_host, kernels, launch
from tritorch.ops.copy import transfer
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty, strided

K = kernels("depthwise_rows")
TAPS, ROW = 49, 1024                    # the most taps, which are all written out, and the most pixels of a row at a time


def done(out, x, weight, bias, stride, padding, dilation, transposed):
    """Whether the convolution, or the gradient of the input, suits the kernels of rows. If so, it is filled."""
    if not transposed and rows_suit(x, weight.shape, padding):
        depthwise(out, x, weight, bias, stride, padding, dilation)
        return True
    around = turned_padding(weight.shape[2:], padding, dilation)
    if transposed and stride == (1, 1) and weight.shape[0] == x.shape[1] == out.shape[1] and rows_suit(x, weight.shape, around):
        depthwise_input(out, x, weight, around, dilation)
        return True
    return False


def rows_suit(x, weight, padding):
    """Whether rows are what lies together, and the kernel has been written for such weights and such padding."""
    return compiled_for_host() and x.strides[3] == 1 and weight[2] * weight[3] <= TAPS and min(padding) >= 0 and x.dtype.is_floating_point


def padded(x, padding, slack):
    """x with zeros around it, and `slack` more behind it all."""
    (n, c, h, w), (down, right) = x.shape, padding
    height, width = h + 2 * down, w + 2 * right
    flat = empty((n * c * height * width + slack,), x.dtype, x.device)
    flat.fill_(0)
    strides = (c * height * width, height * width, width, 1)
    transfer(strided(flat.storage, x.shape, strides, flat.offset + down * width + right, x.dtype), x)
    return strided(flat.storage, (n, c, height, width), strides, flat.offset, x.dtype)


def _ahead(block, stride):
    """How far a row may be read past its end."""
    return block * stride[1]


def depthwise(out, x, weight, bias, stride, padding, dilation):
    """out = bias + the convolution of x with weights (K, 1, R, S)."""
    (n, k, p, q), block = out.shape, min(next_power_of_2(out.shape[3]), ROW)
    strides = weight.strides
    x = padded(x, padding, _ahead(block, stride))
    launch(K.depthwise_rows_kernel, (n * k, cdiv(q, block)), out, x, weight, bias, out.strides, x.strides, (strides[0], *strides[2:]),
           0 if bias is None else bias.strides[0], p, q, k, k // x.shape[1], stride, dilation, R=weight.shape[2], S=weight.shape[3],
           ACC=getattr(K.tl, x.dtype.compute.name), BLOCK_Q=block)


def depthwise_input(out, gradient, weight, padding, dilation):
    """The gradient of the input where nothing is skipped and each channel has one result: the convolution with the weights turned round,
    and with the padding that is left then."""
    turned = empty(weight.shape, weight.dtype, weight.device)
    transfer(turned, weight.flip(2, 3))
    depthwise(out, gradient, turned, None, (1, 1), padding, dilation)


def turned_padding(taps, padding, dilation):
    """The padding of that convolution."""
    return tuple([(t - 1) * d - p for t, p, d in zip(taps, padding, dilation)])


def depthwise_weight(out, gradient, x, stride, padding, dilation):
    """The gradient of weights (K, 1, R, S)."""
    (n, k, p, q), block = gradient.shape, min(next_power_of_2(gradient.shape[3]), ROW)
    (_, _, r, s), strides = out.shape, out.strides
    x = padded(x, padding, _ahead(block, stride))
    launch(K.depthwise_rows_weight_kernel, (k, r), out, gradient, x, (strides[0], *strides[2:]), gradient.strides, x.strides, n, p, q,
           k // x.shape[1], stride, dilation, R=r, S=s, ACC=getattr(K.tl, x.dtype.compute.name), BLOCK_Q=block)
