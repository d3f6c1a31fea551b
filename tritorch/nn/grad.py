"""Gradients of convolutions as functions, for a backward pass that is written by hand."""
from tritorch.nn.modules.utils import _pair, _single, _triple
from tritorch.ops import convolution_volumes
from tritorch.ops.convolution import convolution_input, convolution_weight

__all__ = ["conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight"]


def conv1d_input(input_size, weight, grad_output, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of `conv1d` with respect to its input, which is of size `input_size`."""
    settings = (1, *_single(stride)), (0, *_single(padding)), (1, *_single(dilation)), groups
    return convolution_input(grad_output.unsqueeze(2), weight.unsqueeze(2), (1, input_size[2]), *settings).squeeze(2)


def conv1d_weight(input, weight_size, grad_output, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of `conv1d` with respect to its weights, which are of size `weight_size`."""
    settings = (1, *_single(stride)), (0, *_single(padding)), (1, *_single(dilation)), groups
    return convolution_weight(grad_output.unsqueeze(2), input.unsqueeze(2), (1, weight_size[2]), *settings).squeeze(2)


def conv2d_input(input_size, weight, grad_output, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of `conv2d` with respect to its input, which is of size `input_size`.

    >>> import tritorch as torch
    >>> torch.nn.grad.conv2d_input((1, 1, 2, 3), torch.ones(1, 1, 1, 2), torch.ones(1, 1, 2, 2)).tolist()
    [[[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]]]]
    """
    return convolution_input(grad_output, weight, tuple(input_size[2:]), _pair(stride), _pair(padding), _pair(dilation), groups)


def conv2d_weight(input, weight_size, grad_output, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of `conv2d` with respect to its weights, which are of size `weight_size`.

    >>> import tritorch as torch
    >>> torch.nn.grad.conv2d_weight(torch.ones(1, 1, 3, 2), (1, 1, 2, 1), torch.ones(1, 1, 2, 2)).tolist()
    [[[[4.0], [4.0]]]]
    """
    return convolution_weight(grad_output, input, tuple(weight_size[2:]), _pair(stride), _pair(padding), _pair(dilation), groups)


def conv3d_input(input_size, weight, grad_output, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of `conv3d` with respect to its input, which is of size `input_size`.

    >>> import tritorch as torch
    >>> torch.nn.grad.conv3d_input((1, 1, 1, 1, 3), torch.ones(1, 1, 1, 1, 2), torch.ones(1, 1, 1, 1, 2)).flatten().tolist()
    [1.0, 2.0, 1.0]
    """
    settings = _triple(stride), _triple(padding), _triple(dilation), groups
    return convolution_volumes.conv3d_input(grad_output, weight, tuple(input_size[2:]), *settings)


def conv3d_weight(input, weight_size, grad_output, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of `conv3d` with respect to its weights, which are of size `weight_size`.

    >>> import tritorch as torch
    >>> torch.nn.grad.conv3d_weight(torch.ones(1, 1, 1, 3, 2), (1, 1, 1, 2, 1), torch.ones(1, 1, 1, 2, 2)).flatten().tolist()
    [4.0, 4.0]
    """
    settings = _triple(stride), _triple(padding), _triple(dilation), groups
    return convolution_volumes.conv3d_weight(grad_output, input, tuple(weight_size[2:]), *settings)
