"""Weights of convolutions in another memory format."""
from tritorch.nn.conv import _ConvNd


def _converted(module, memory_format, ndim):
    for part in module.modules():
        if isinstance(part, _ConvNd) and part.weight.ndim == ndim:
            part.weight.data = part.weight.detach().clone().contiguous(memory_format=memory_format)
    return module


def convert_conv2d_weight_memory_format(module, memory_format):
    """Bring the weights of all 2-D convolutions inside of a module, transposed ones too, to a memory format, and return the module: without
    a conversion on the way activations take on that of the weights.

    >>> import tritorch as torch
    >>> layer = torch.nn.utils.convert_conv2d_weight_memory_format(torch.nn.Conv2d(2, 3, 3), torch.channels_last)
    >>> layer.weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    return _converted(module, memory_format, 4)


def convert_conv3d_weight_memory_format(module, memory_format):
    """`convert_conv2d_weight_memory_format` for 3-D convolutions, mostly to `channels_last_3d`."""
    return _converted(module, memory_format, 5)
