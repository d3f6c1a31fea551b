"""Functions of `nn.functional` under further names: those that always give places, too, and a convolution whose first dim is time."""
from tritorch.errors import check, explained
from tritorch.ops.convolution import conv1d
from tritorch.ops.pooling import adaptive_max_pool1d, adaptive_max_pool2d, max_pool1d, max_pool2d


def max_pool1d_with_indices(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """`max_pool1d` with return_indices, whatever is given.

    >>> import tritorch as torch
    >>> torch.nn.functional.max_pool1d_with_indices(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    return max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool2d_with_indices(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """`max_pool2d` with return_indices, whatever is given."""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """`adaptive_max_pool1d` with return_indices, whatever is given."""
    return adaptive_max_pool1d(input, output_size, True)


def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """`adaptive_max_pool2d` with return_indices, whatever is given."""
    return adaptive_max_pool2d(input, output_size, True)


@explained
def conv_tbc(input, weight, bias, pad=0):
    """`conv1d` of sequences (T, B, C), with weight (R, C, K) and bias (K,): gives (T + 2 pad - R + 1, B, K).

    >>> import tritorch as torch
    >>> torch.nn.functional.conv_tbc(torch.arange(3.0).view(3, 1, 1), torch.ones(2, 1, 1), torch.zeros(1)).flatten()
    tensor([1., 3.])
    """
    check(input.ndim == 3, "conv_tbc", "an input (time, batch, channels)", tuple(input.shape))
    check(weight.ndim == 3, "conv_tbc", "a weight (width, channels, channels)", tuple(weight.shape))
    check(bias.shape == weight.shape[2:], "conv_tbc", f"a bias of shape {tuple(weight.shape[2:])}", tuple(bias.shape))
    return conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1)
