"""Layers that only rearrange: flatten, unflatten, shuffles, sliding blocks, upsampling."""
from tritorch.errors import real_numbers
from tritorch.nn import functional as F
from tritorch.nn.module import Module


class Flatten(Module):
    """Makes one dim of the dims from `start_dim` to `end_dim`.

    >>> import tritorch as torch
    >>> torch.nn.Flatten()(torch.ones(32, 1, 5, 5)).shape
    tritorch.Size([32, 25])
    """

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input):
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self):
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Makes several dims of one.

    >>> import tritorch as torch
    >>> torch.nn.Unflatten(1, (2, 5))(torch.ones(2, 10)).shape
    tritorch.Size([2, 2, 5])
    """

    def __init__(self, dim, unflattened_size):
        super().__init__()
        if not isinstance(unflattened_size, (tuple, list)) or not all(isinstance(size, int) for size in unflattened_size):
            raise TypeError(f"Unflatten: expected unflattened_size to be a tuple of ints, got {unflattened_size!r}")
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input):
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self):
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """(*, C r², H, W) to (*, C, H r, W r): each group of r² channels fills squares of r by r. Shi et al. 2016.

    >>> import tritorch as torch
    >>> torch.nn.PixelShuffle(3)(torch.ones(1, 9, 4, 4)).shape
    tritorch.Size([1, 1, 12, 12])
    """

    def __init__(self, upscale_factor):
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input):
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self):
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(*, C, H r, W r) to (*, C r², H, W): undoes `PixelShuffle`.

    >>> import tritorch as torch
    >>> torch.nn.PixelUnshuffle(2)(torch.ones(1, 1, 4, 6)).shape
    tritorch.Size([1, 4, 2, 3])
    """

    def __init__(self, downscale_factor):
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input):
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self):
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Reads the channels of (N, C, *), in `groups` rows, column by column. Zhang et al. 2018."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, input):
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self):
        return f"groups={self.groups}"


class Unfold(Module):
    """The sliding blocks of (N, C, H, W), as columns: (N, C · kernel size, number of blocks).

    >>> import tritorch as torch
    >>> torch.nn.Unfold((2, 3))(torch.ones(2, 5, 3, 4)).shape
    tritorch.Size([2, 30, 4])
    """

    def __init__(self, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input):
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """Adds up sliding blocks, given as columns, into (N, C, *output_size): the transpose of `Unfold`.

    >>> import tritorch as torch
    >>> torch.nn.Fold(output_size=(4, 5), kernel_size=(2, 2))(torch.ones(1, 3 * 4, 12)).shape
    tritorch.Size([1, 3, 4, 5])
    """

    def __init__(self, output_size, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__()
        self.output_size, self.kernel_size, self.dilation, self.padding, self.stride = output_size, kernel_size, dilation, padding, stride

    def forward(self, input):
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self):
        return (f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
                f"stride={self.stride}")


class Upsample(Module):
    """Resizes the spatial dims of (N, C, *) to `size` or by `scale_factor`; modes as in `nn.functional.interpolate`.

    >>> import tritorch as torch
    >>> torch.nn.Upsample(scale_factor=2)(torch.ones(1, 1, 2, 2)).shape
    tritorch.Size([1, 1, 4, 4])
    """

    def __init__(self, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None):
        super().__init__()
        self.size, self.mode, self.align_corners, self.recompute_scale_factor = size, mode, align_corners, recompute_scale_factor
        several = isinstance(scale_factor, tuple)
        if not several and scale_factor:
            real_numbers(type(self).__name__, scale_factor=scale_factor)
        self.scale_factor = tuple(map(float, scale_factor)) if several else float(scale_factor) if scale_factor else None

    def forward(self, input):
        return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)

    def extra_repr(self):
        how = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{how}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """`Upsample` in mode "nearest"."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """`Upsample` in mode "bilinear" with aligned corners."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
