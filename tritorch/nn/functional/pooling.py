"""Pooling and normalisation composed of other operators."""
from math import prod

from tritorch.errors import check, explained, whole_numbers
from tritorch.nn.sizes import sizes
from tritorch.ops.padding import pad
from tritorch.ops.pooling import avg_pool1d, avg_pool2d
from tritorch.ops.shaping import cat
from tritorch.ops.volumes import avg_pool3d


@explained
def lp_pool1d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(Σ x^p)^(1/p) of every `kernel_size` neighbours in (N, C, L) or (C, L)."""
    return _root(avg_pool1d(input ** norm_type, kernel_size, stride, 0, ceil_mode), norm_type, sizes(kernel_size, 1)[0])


@explained
def lp_pool2d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(Σ x^p)^(1/p) of every window of `kernel_size` in (N, C, H, W) or (C, H, W)."""
    kernel_size = whole_numbers("lp_pool2d", "kernel_size", sizes(kernel_size, 2))
    check(len(kernel_size) == 2, "lp_pool2d", "one or two numbers as kernel_size", kernel_size, error=ValueError)
    high, wide = kernel_size
    return _root(avg_pool2d(input ** norm_type, kernel_size, stride, 0, ceil_mode), norm_type, high * wide)


@explained
def lp_pool3d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(Σ x^p)^(1/p) of every window of `kernel_size` in (N, C, D, H, W) or (C, D, H, W).

    >>> import tritorch as torch
    >>> torch.nn.functional.lp_pool3d(torch.full((1, 1, 2, 2), 3.0), 2, (1, 2, 2)).tolist()
    [[[[6.0]]]]
    """
    kernel_size = whole_numbers("lp_pool3d", "kernel_size", sizes(kernel_size, 3))
    check(len(kernel_size) == 3, "lp_pool3d", "one or three numbers as kernel_size", kernel_size, error=ValueError)
    return _root(avg_pool3d(input ** norm_type, kernel_size, stride, 0, ceil_mode), norm_type, prod(kernel_size))


def _root(mean, norm_type, count):
    check(norm_type != 0, "lp_pool", "norm_type other than 0", norm_type, error=ZeroDivisionError)
    return (mean.sign() * mean.abs().relu() * count) ** (1.0 / norm_type)


@explained
def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """x / (k + α/size · Σ x²)^β, the sum over `size` neighbouring channels of (N, C, *). Krizhevsky et al. 2012."""
    size, = whole_numbers("local_response_norm", "size", (size,))
    if input.ndim < 3:
        raise ValueError(f"local_response_norm: expected an input of 3 dims or more, got {input.ndim}")
    if input.numel() == 0:
        return input
    n, c, *rest = input.shape
    squares = pad((input * input).reshape(n, 1, c, -1), (0, 0, size // 2, (size - 1) // 2))
    return input / (avg_pool2d(squares, (size, 1), 1).view(n, c, *rest) * alpha + k) ** beta


def cross_map_lrn(input, size, alpha, beta, k):
    """What `nn.CrossMapLRN2d` does: its sums run, and never lose the square of channel 0."""
    n, c, high, wide = input.shape
    squares, reach = (input * input).reshape(n, 1, c, high * wide), int((size - 1) / 2)
    sums = avg_pool2d(pad(squares, (0, 0, reach, reach)), (2 * reach + 1, 1), 1, divisor_override=1)
    if c > reach + 1:
        sums = cat((sums[:, :, :reach + 1], sums[:, :, reach + 1:] + squares[:, :, :1]), 2)
    return input * (sums.view(input.shape) * (alpha / size) + k) ** -beta
