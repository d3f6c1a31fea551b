"""Convolution layers."""
import math

from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset
from tritorch.nn.sizes import sizes

_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """What all convolutions share; the arguments are PyTorch's."""

    transposed = False

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, padding_mode="zeros",
                 device=None, dtype=None, *, output_padding=0):
        super().__init__()
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size, self.stride, self.dilation, self.output_padding = (
            sizes(value, self._ndim) for value in (kernel_size, stride, dilation, output_padding))
        self.padding = padding if isinstance(padding, str) else sizes(padding, self._ndim)
        self._check()
        self._reversed_padding_repeated_twice = self._edges()
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(unset((*channels, *self.kernel_size), device, dtype))
        self.register_parameter("bias", Parameter(unset((out_channels,), device, dtype)) if bias else None)
        self.reset_parameters()

    def _check(self):
        if self.groups <= 0:
            raise ValueError("groups must be a positive integer")
        if self.in_channels % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        if self.out_channels % self.groups:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(self.padding, str):
            if self.padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {self.padding!r}, should be one of 'same', 'valid'")
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"padding='same': expected stride 1, got {self.stride}")
        if self.padding_mode not in _MODES:
            raise ValueError(f"padding_mode must be one of {_MODES}, but got padding_mode='{self.padding_mode}'")

    def _edges(self):
        """(before, after) of every spatial dim, the last dim first: what `pad` takes."""
        if self.padding == "valid":
            return [0, 0] * self._ndim
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
            return [edge for total in reversed(totals) for edge in (total // 2, total - total // 2)]
        return [edge for p in reversed(self.padding) for edge in (p, p)]

    def reset_parameters(self):
        """Draw weight and bias from U(-k, k), k = 1 / sqrt(in_channels / groups · kernel size)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self):
        shown = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, usual in (("padding", 0), ("dilation", 1), ("output_padding", 0)):
            value = getattr(self, name)
            if value != (usual,) * len(value):
                shown.append(f"{name}={value}")
        if self.groups != 1:
            shown.append(f"groups={self.groups}")
        if self.bias is None:
            shown.append("bias=False")
        if self.padding_mode != "zeros":
            shown.append(f"padding_mode={self.padding_mode}")
        return ", ".join(shown)


class _Conv(_ConvNd):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, padding_mode="zeros",
                 device=None, dtype=None):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)

    def _conv_forward(self, input, weight, bias):
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode), 0
        return self._convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, input):
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Conv):
    """Cross-correlation over one dim: (N, C_in, L) or (C_in, L) with weight (C_out, C_in / groups, K) gives (N, C_out, L_out).

    L_out = floor((L + 2 padding - dilation (K - 1) - 1) / stride) + 1. `padding` is also "same" or "valid"; `padding_mode` is
    "zeros", "reflect", "replicate" or "circular".

    >>> import tritorch as torch
    >>> torch.nn.Conv1d(16, 33, 3, stride=2)(torch.ones(20, 16, 50)).shape
    tritorch.Size([20, 33, 24])
    """

    _ndim = 1
    _convolve = staticmethod(F.conv1d)


class Conv2d(_Conv):
    """Cross-correlation over two dims: (N, C_in, H, W) or (C_in, H, W) with weight (C_out, C_in / groups, K_h, K_w).

    H_out = floor((H + 2 padding - dilation (K_h - 1) - 1) / stride) + 1, and W_out alike. `padding` is also "same" or "valid";
    `padding_mode` is "zeros", "reflect", "replicate" or "circular".

    >>> import tritorch as torch
    >>> torch.nn.Conv2d(3, 8, 3, padding=1)(torch.ones(2, 3, 5, 5)).shape
    tritorch.Size([2, 8, 5, 5])
    """

    _ndim = 2
    _convolve = staticmethod(F.conv2d)


class Conv3d(_Conv):
    """Cross-correlation over three dims: (N, C_in, D, H, W) or (C_in, D, H, W) with weight (C_out, C_in / groups, K_d, K_h, K_w).

    D_out = floor((D + 2 padding - dilation (K_d - 1) - 1) / stride) + 1, and H_out and W_out alike. `padding` is also "same" or "valid";
    `padding_mode` is "zeros", "reflect", "replicate" or "circular".

    >>> import tritorch as torch
    >>> torch.nn.Conv3d(3, 8, 3, padding=1)(torch.ones(2, 3, 4, 5, 5)).shape
    tritorch.Size([2, 8, 4, 5, 5])
    """

    _ndim = 3
    _convolve = staticmethod(F.conv3d)


class _ConvTranspose(_ConvNd):
    transposed = True

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1,
                 padding_mode="zeros", device=None, dtype=None):
        if padding_mode != "zeros":
            raise ValueError(f"{type(self).__name__}: expected padding_mode='zeros', got {padding_mode!r}")
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype,
                         output_padding=output_padding)

    def forward(self, input, output_size=None):
        extra = self.output_padding if output_size is None else self._output_padding(input, tuple(output_size))
        return self._convolve(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _output_padding(self, input, output_size):
        """What makes the result as large as is asked for."""
        if len(output_size) == input.ndim:
            output_size = output_size[-self._ndim:]
        if len(output_size) != self._ndim:
            raise ValueError(f"ConvTranspose{self._ndim}D: for {input.ndim}D input, output_size must have {self._ndim} or {input.ndim} "
                             f"elements (got {len(output_size)})")
        spatial = input.shape[-self._ndim:]
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1
                 for n, s, p, d, k in zip(spatial, self.stride, self.padding, self.dilation, self.kernel_size)]
        if not all(low <= n < low + s for n, low, s in zip(output_size, least, self.stride)):
            raise ValueError(f"output_size: expected from {least} to "
                             f"{[low + s - 1 for low, s in zip(least, self.stride)]} for an input of {tuple(spatial)}, got {output_size}")
        return tuple(n - low for n, low in zip(output_size, least))


class ConvTranspose1d(_ConvTranspose):
    """The transpose of `Conv1d`: (N, C_in, L) or (C_in, L) with weight (C_in, C_out / groups, K) gives (N, C_out, L_out).

    L_out = (L - 1) stride - 2 padding + dilation (K - 1) + output_padding + 1; `output_size` in the call chooses the output padding.

    >>> import tritorch as torch
    >>> torch.nn.ConvTranspose1d(16, 33, 3, stride=2)(torch.ones(20, 16, 50)).shape
    tritorch.Size([20, 33, 101])
    """

    _ndim = 1
    _convolve = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """The transpose of `Conv2d`: (N, C_in, H, W) or (C_in, H, W) with weight (C_in, C_out / groups, K_h, K_w).

    H_out = (H - 1) stride - 2 padding + dilation (K_h - 1) + output_padding + 1, and W_out alike; `output_size` in the call chooses the
    output padding.

    >>> import tritorch as torch
    >>> torch.nn.ConvTranspose2d(3, 8, 3, stride=2)(torch.ones(2, 3, 5, 5), output_size=(12, 11)).shape
    tritorch.Size([2, 8, 12, 11])
    """

    _ndim = 2
    _convolve = staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """The transpose of `Conv3d`: (N, C_in, D, H, W) or (C_in, D, H, W) with weight (C_in, C_out / groups, K_d, K_h, K_w).

    D_out = (D - 1) stride - 2 padding + dilation (K_d - 1) + output_padding + 1, and H_out and W_out alike; `output_size` in the call
    chooses the output padding.

    >>> import tritorch as torch
    >>> torch.nn.ConvTranspose3d(3, 8, 2, stride=2)(torch.ones(2, 3, 4, 5, 5)).shape
    tritorch.Size([2, 8, 8, 10, 10])
    """

    _ndim = 3
    _convolve = staticmethod(F.conv_transpose3d)
