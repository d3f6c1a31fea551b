"""Pooling layers."""
from tritorch.nn import functional as F
from tritorch.nn.module import Module
from tritorch.nn.sizes import sizes


class _MaxPoolNd(Module):
    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False):
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.return_indices, self.ceil_mode = padding, dilation, return_indices, ceil_mode

    def forward(self, input):
        return self._pool(input, self.kernel_size, self.stride, self.padding, self.dilation, ceil_mode=self.ceil_mode,
                          return_indices=self.return_indices)

    def extra_repr(self):
        return (f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
                f"ceil_mode={self.ceil_mode}")


class MaxPool1d(_MaxPoolNd):
    """The largest of every `kernel_size` neighbours in (N, C, L) or (C, L), `stride` (the kernel size unless given) apart.

    >>> import tritorch as torch
    >>> torch.nn.MaxPool1d(2)(torch.tensor([[1.0, 2, 3, 4]])).tolist()
    [[2.0, 4.0]]
    """

    _pool = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPoolNd):
    """The largest of every window of `kernel_size` in (N, C, H, W) or (C, H, W), `stride` (the kernel size unless given) apart.

    >>> import tritorch as torch
    >>> torch.nn.MaxPool2d(3, stride=2)(torch.ones(1, 2, 7, 7)).shape
    tritorch.Size([1, 2, 3, 3])
    """

    _pool = staticmethod(F.max_pool2d)


class _MaxUnpoolNd(Module):
    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        self.kernel_size, self.padding = sizes(kernel_size, self._ndim), sizes(padding, self._ndim)
        self.stride = self.kernel_size if stride is None else sizes(stride, self._ndim)

    def forward(self, input, indices, output_size=None):
        return self._unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpoolNd):
    """Puts values back where `MaxPool1d` with `return_indices` found them; the rest is zero.

    >>> import tritorch as torch
    >>> values, places = torch.nn.MaxPool1d(2, return_indices=True)(torch.tensor([[1.0, 2, 4, 3]]))
    >>> torch.nn.MaxUnpool1d(2)(values, places).tolist()
    [[0.0, 2.0, 4.0, 0.0]]
    """

    _ndim = 1
    _unpool = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpoolNd):
    """Puts values back where `MaxPool2d` with `return_indices` found them; the rest is zero.

    >>> import tritorch as torch
    >>> pool, unpool = torch.nn.MaxPool2d(2, return_indices=True), torch.nn.MaxUnpool2d(2)
    >>> unpool(*pool(torch.tensor([[[1.0, 2.0], [4.0, 3.0]]])))
    tensor([[[0., 0.],
             [4., 0.]]])
    """

    _ndim = 2
    _unpool = staticmethod(F.max_unpool2d)


class AvgPool1d(Module):
    """The mean of every `kernel_size` neighbours in (N, C, L) or (C, L), `stride` (the kernel size unless given) apart.

    >>> import tritorch as torch
    >>> torch.nn.AvgPool1d(2)(torch.tensor([[1.0, 2, 3, 4]])).tolist()
    [[1.5, 3.5]]
    """

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.kernel_size, self.padding = sizes(kernel_size, 1), sizes(padding, 1)
        self.stride = self.kernel_size if stride is None else sizes(stride, 1)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input):
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of every window of `kernel_size` in (N, C, H, W) or (C, H, W), `stride` (the kernel size unless given) apart.

    >>> import tritorch as torch
    >>> torch.nn.AvgPool2d(2)(torch.ones(1, 2, 6, 6)).shape
    tritorch.Size([1, 2, 3, 3])
    """

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input):
        return F.avg_pool2d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
                            self.divisor_override)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _LPPoolNd(Module):
    def __init__(self, norm_type, kernel_size, stride=None, ceil_mode=False):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input):
        return self._pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self):
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPoolNd):
    """(Σ x^p)^(1/p) of every `kernel_size` neighbours in (N, C, L) or (C, L).

    >>> import tritorch as torch
    >>> torch.nn.LPPool1d(2, kernel_size=2)(torch.tensor([[3.0, 4.0, 6.0, 8.0]]))
    tensor([[ 5., 10.]])
    """

    _pool = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPoolNd):
    """(Σ x^p)^(1/p) of every window of `kernel_size` in (N, C, H, W) or (C, H, W)."""

    _pool = staticmethod(F.lp_pool2d)


class _AdaptiveAvgPoolNd(Module):
    def __init__(self, output_size):
        super().__init__()
        self.output_size = output_size

    def forward(self, input):
        return self._pool(input, self.output_size)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """Means over windows that divide the length of (N, C, L) or (C, L) into `output_size` parts.

    >>> import tritorch as torch
    >>> torch.nn.AdaptiveAvgPool1d(2)(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    tensor([[1.5000, 3.5000]])
    """

    _pool = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """Means over windows that divide (N, C, H, W) or (C, H, W) into `output_size` parts; None keeps a size.

    >>> import tritorch as torch
    >>> torch.nn.AdaptiveAvgPool2d((1, None))(torch.ones(1, 2, 5, 7)).shape
    tritorch.Size([1, 2, 1, 7])
    """

    _pool = staticmethod(F.adaptive_avg_pool2d)


class _AdaptiveMaxPoolNd(Module):
    def __init__(self, output_size, return_indices=False):
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input):
        return self._pool(input, self.output_size, self.return_indices)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """The largest of the windows that divide the length of (N, C, L) or (C, L) into `output_size` parts.

    >>> import tritorch as torch
    >>> torch.nn.AdaptiveMaxPool1d(2)(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    tensor([[2., 4.]])
    """

    _pool = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """The largest of the windows that divide (N, C, H, W) or (C, H, W) into `output_size` parts; None keeps a size."""

    _pool = staticmethod(F.adaptive_max_pool2d)
