"""PyTorch's other names of the pooling functions, of those that always give the places of the largest as well."""
from tritorch.errors import explained
from tritorch.ops.fractional_pooling import fractional_max_pool2d, fractional_max_pool3d
from tritorch.ops.pooling import adaptive_max_pool1d, adaptive_max_pool2d, max_pool1d, max_pool2d
from tritorch.ops.volumes import adaptive_max_pool3d, max_pool3d


@explained
def max_pool1d_with_indices(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The values and places of `max_pool1d`, whatever `return_indices` says.

    >>> import tritorch as torch
    >>> [x.tolist() for x in torch.max_pool1d_with_indices(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)]
    [[[3.0, 2.0]], [[1, 2]]]
    """
    return max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@explained
def max_pool2d_with_indices(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The values and places of `max_pool2d`, whatever `return_indices` says."""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@explained
def max_pool3d_with_indices(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The values and places of `max_pool3d`, whatever `return_indices` says."""
    return max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@explained
def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """The values and places of `adaptive_max_pool1d`, whatever `return_indices` says."""
    return adaptive_max_pool1d(input, output_size, True)


@explained
def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """The values and places of `adaptive_max_pool2d`, whatever `return_indices` says."""
    return adaptive_max_pool2d(input, output_size, True)


@explained
def adaptive_max_pool3d_with_indices(input, output_size, return_indices=False):
    """The values and places of `adaptive_max_pool3d`, whatever `return_indices` says."""
    return adaptive_max_pool3d(input, output_size, True)


@explained
def fractional_max_pool2d_with_indices(input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
    """The values and places of `fractional_max_pool2d`, whatever `return_indices` says."""
    return fractional_max_pool2d(input, kernel_size, output_size, output_ratio, True, _random_samples)


@explained
def fractional_max_pool3d_with_indices(input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
    """The values and places of `fractional_max_pool3d`, whatever `return_indices` says."""
    return fractional_max_pool3d(input, kernel_size, output_size, output_ratio, True, _random_samples)
