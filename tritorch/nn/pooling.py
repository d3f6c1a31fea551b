"""Pooling layers."""
from tritorch.errors import check
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


class MaxPool3d(_MaxPoolNd):
    """The largest of every window of `kernel_size` in (N, C, D, H, W) or (C, D, H, W), `stride` (the kernel size unless given) apart.

    >>> import tritorch as torch
    >>> torch.nn.MaxPool3d(3, stride=2)(torch.ones(1, 2, 7, 7, 5)).shape
    tritorch.Size([1, 2, 3, 3, 2])
    """

    _pool = staticmethod(F.max_pool3d)


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


class MaxUnpool3d(_MaxUnpoolNd):
    """Puts values back where `MaxPool3d` with `return_indices` found them; the rest is zero.

    >>> import tritorch as torch
    >>> pool, unpool = torch.nn.MaxPool3d(2, return_indices=True), torch.nn.MaxUnpool3d(2)
    >>> unpool(*pool(torch.arange(8.0).view(1, 2, 2, 2))).flatten().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0]
    """

    _ndim = 3
    _unpool = staticmethod(F.max_unpool3d)


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


class _AvgPoolNd(Module):
    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input):
        return self._pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPoolNd):
    """The mean of every window of `kernel_size` in (N, C, H, W) or (C, H, W), `stride` (the kernel size unless given) apart.

    >>> import tritorch as torch
    >>> torch.nn.AvgPool2d(2)(torch.ones(1, 2, 6, 6)).shape
    tritorch.Size([1, 2, 3, 3])
    """

    _pool = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPoolNd):
    """The mean of every window of `kernel_size` in (N, C, D, H, W) or (C, D, H, W), `stride` (the kernel size unless given) apart.

    >>> import tritorch as torch
    >>> torch.nn.AvgPool3d((1, 2, 2))(torch.ones(1, 2, 4, 6, 6)).shape
    tritorch.Size([1, 2, 4, 3, 3])
    """

    _pool = staticmethod(F.avg_pool3d)


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


class LPPool3d(_LPPoolNd):
    """(Σ x^p)^(1/p) of every window of `kernel_size` in (N, C, D, H, W) or (C, D, H, W).

    >>> import tritorch as torch
    >>> torch.nn.LPPool3d(2, kernel_size=2)(torch.ones(1, 2, 2, 2)).tolist()
    [[[[2.8284270763397217]]]]
    """

    _pool = staticmethod(F.lp_pool3d)


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


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """Means over windows that divide (N, C, D, H, W) or (C, D, H, W) into `output_size` parts; None keeps a size.

    >>> import tritorch as torch
    >>> torch.nn.AdaptiveAvgPool3d((2, None, 1))(torch.ones(1, 3, 4, 5, 6)).shape
    tritorch.Size([1, 3, 2, 5, 1])
    """

    _pool = staticmethod(F.adaptive_avg_pool3d)


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


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """The largest of the windows that divide (N, C, D, H, W) or (C, D, H, W) into `output_size` parts; None keeps a size.

    >>> import tritorch as torch
    >>> torch.nn.AdaptiveMaxPool3d(1)(torch.arange(8.0).view(1, 2, 2, 2)).tolist()
    [[[[7.0]]]]
    """

    _pool = staticmethod(F.adaptive_max_pool3d)


class _FractionalMaxPoolNd(Module):
    def __init__(self, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
        super().__init__()
        name, kernel = type(self).__name__, kernel_size if isinstance(kernel_size, (tuple, list)) else (kernel_size,)
        check(all(k > 0 for k in kernel), name, "a kernel_size greater than 0", kernel_size, error=ValueError)
        check((output_size is None) != (output_ratio is None), name, "an output_size or an output_ratio", output_size, output_ratio,
              error=ValueError)
        self.kernel_size, self.return_indices = sizes(kernel_size, self._ndim), return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = None if output_size is None else sizes(output_size, self._ndim)
        self.output_ratio = None if output_ratio is None else sizes(output_ratio, self._ndim)
        if output_ratio is not None:
            check(len(self.output_ratio) >= self._ndim, name, f"an output_ratio of {self._ndim} numbers", output_ratio, error=IndexError)
            check(all(0 < r < 1 for r in self.output_ratio), name, "an output_ratio between 0 and 1", output_ratio, error=ValueError)

    def forward(self, input):
        return self._pool(input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples)


class FractionalMaxPool2d(_FractionalMaxPoolNd):
    """The largest of `output_size` windows of (N, C, H, W) or (C, H, W), at random steps, or of `output_ratio` of its size. Graham 2014.

    >>> import tritorch as torch
    >>> torch.nn.FractionalMaxPool2d(3, output_ratio=(0.5, 0.4))(torch.ones(2, 3, 20, 20)).shape
    tritorch.Size([2, 3, 10, 8])
    """

    _ndim = 2
    _pool = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPoolNd):
    """The largest of `output_size` windows of (N, C, D, H, W) or (C, D, H, W), at random steps, or of `output_ratio` of its size.

    >>> import tritorch as torch
    >>> torch.nn.FractionalMaxPool3d(3, output_size=(4, 5, 6))(torch.ones(2, 3, 10, 10, 10)).shape
    tritorch.Size([2, 3, 4, 5, 6])
    """

    _ndim = 3
    _pool = staticmethod(F.fractional_max_pool3d)
