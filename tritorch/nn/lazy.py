"""Lazy layers: the sizes of their inputs come from the first input, and with it they become ordinary layers."""
from tritorch.errors import check
from tritorch.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from tritorch.nn.linear import Linear
from tritorch.nn.module import Module
from tritorch.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from tritorch.nn.parameter import UninitializedParameter, is_lazy


class LazyModuleMixin(Module):
    """What lazy layers share: they are made by `_init_lazy`, and complete themselves before the first forward."""

    def _init_lazy(self, weight, bias, device, dtype):
        for name, wanted in (("weight", weight), ("bias", bias)):
            if wanted:
                setattr(self, name, UninitializedParameter(device=device, dtype=dtype))
        self._initialize_hook = self.register_forward_pre_hook(_complete)

    def has_uninitialized_params(self):
        """Whether the first input is still awaited."""
        return any(map(is_lazy, self._parameters.values()))

    def reset_parameters(self):
        """Draw the parameters anew, once there are any."""
        if not self.has_uninitialized_params() and self._size():
            super().reset_parameters()

    def initialize_parameters(self, input):
        """Make the parameters that fit an input."""
        fresh = self.has_uninitialized_params()
        self._set_size(input)
        for name, shape in self._shapes().items():
            if is_lazy(getattr(self, name)):
                getattr(self, name).materialize(shape)
        if fresh:
            self.reset_parameters()

    def _upgrade_state_dict(self, state_dict, prefix, version):
        super()._upgrade_state_dict(state_dict, prefix, version)
        for name, parameter in self._parameters.items():
            saved = state_dict.get(prefix + name)
            if is_lazy(parameter) and saved is not None and not is_lazy(saved):
                parameter.materialize(saved.shape)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, parameter in self._parameters.items():
            if is_lazy(parameter):                                       # who loads it has to know that its shape says nothing
                destination[prefix + name] = parameter


def _complete(module, args):
    module.initialize_parameters(*args)
    module._initialize_hook.remove()
    del module._initialize_hook
    module.__class__ = module.cls_to_become


class LazyLinear(LazyModuleMixin, Linear):
    """`Linear` whose `in_features` is the size of the last dim of its first input.

    >>> import tritorch as torch
    >>> layer = torch.nn.LazyLinear(2)
    >>> layer(torch.ones(4, 3)).shape, layer
    (tritorch.Size([4, 2]), Linear(in_features=3, out_features=2, bias=True))
    """

    cls_to_become = Linear

    def __init__(self, out_features, bias=True, device=None, dtype=None):
        super().__init__(0, 0, False)
        self.out_features = out_features
        self._init_lazy(True, bias, device, dtype)

    def _size(self):
        return self.in_features

    def _set_size(self, input):
        check(input.ndim > 0, type(self).__name__, "an input of one dim or more", input.shape, error=IndexError)
        self.in_features = input.shape[-1]

    def _shapes(self):
        return {"weight": (self.out_features, self.in_features), "bias": (self.out_features,)}


class _LazyConv(LazyModuleMixin):
    def __init__(self, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, padding_mode="zeros", device=None,
                 dtype=None):
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self.out_channels = out_channels
        self._init_lazy(True, bias, device, dtype)

    def _size(self):
        return self.in_channels

    def _set_size(self, input):
        if input.ndim not in (self._ndim + 1, self._ndim + 2):
            raise RuntimeError(f"Expected {self._ndim + 1}D (unbatched) or {self._ndim + 2}D (batched) input to {type(self).__name__}, "
                               f"but got input of size: {input.shape}")
        self.in_channels = input.shape[-self._ndim - 1]
        self._check()

    def _shapes(self):
        return {"weight": (self.out_channels, self.in_channels // self.groups, *self.kernel_size), "bias": (self.out_channels,)}


class LazyConv1d(_LazyConv, Conv1d):
    """`Conv1d` whose `in_channels` comes from its first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """`Conv2d` whose `in_channels` comes from its first input.

    >>> import tritorch as torch
    >>> layer = torch.nn.LazyConv2d(4, kernel_size=3)
    >>> layer(torch.ones(1, 3, 8, 8)).shape, layer
    (tritorch.Size([1, 4, 6, 6]), Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1)))
    """

    cls_to_become = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """`Conv3d` whose `in_channels` comes from its first input."""

    cls_to_become = Conv3d


class _LazyConvTranspose(_LazyConv):
    def __init__(self, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1,
                 padding_mode="zeros", device=None, dtype=None):
        super(_LazyConv, self).__init__(0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode)
        self.out_channels = out_channels
        self._init_lazy(True, bias, device, dtype)

    def _shapes(self):
        return {"weight": (self.in_channels, self.out_channels // self.groups, *self.kernel_size), "bias": (self.out_channels,)}


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """`ConvTranspose1d` whose `in_channels` comes from its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """`ConvTranspose2d` whose `in_channels` comes from its first input.

    >>> import tritorch as torch
    >>> layer = torch.nn.LazyConvTranspose2d(4, kernel_size=2, stride=2)
    >>> layer(torch.ones(1, 3, 8, 8)).shape, layer
    (tritorch.Size([1, 4, 16, 16]), ConvTranspose2d(3, 4, kernel_size=(2, 2), stride=(2, 2)))
    """

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """`ConvTranspose3d` whose `in_channels` comes from its first input."""

    cls_to_become = ConvTranspose3d


class _LazyNorm(LazyModuleMixin):
    def __init__(self, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, device=None, dtype=None, *, bias=True):
        super().__init__(0, eps, momentum, False, track_running_stats, device, dtype, bias=False)
        self.affine = affine
        self._init_lazy(affine, affine and bias, device, dtype)

    def _size(self):
        return self.num_features

    def _set_size(self, input):
        check(input.ndim > 1, type(self).__name__, "an input of two dims or more", input.shape, error=IndexError)
        self.num_features = input.shape[1]
        self._make_statistics(self.num_features)

    def _make_statistics(self, size):
        for name, start in (("running_mean", 0), ("running_var", 1)) if self.track_running_stats else ():
            if getattr(self, name).numel() == 0:
                setattr(self, name, getattr(self, name).new_full((size,), start))

    def _upgrade_state_dict(self, state_dict, prefix, version):
        super()._upgrade_state_dict(state_dict, prefix, version)
        if prefix + "running_mean" in state_dict:
            self._make_statistics(len(state_dict[prefix + "running_mean"]))

    def _shapes(self):
        return {"weight": (self.num_features,), "bias": (self.num_features,)}


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """`BatchNorm1d` whose `num_features` comes from its first input.

    >>> import tritorch as torch
    >>> layer = torch.nn.LazyBatchNorm1d()
    >>> layer(torch.randn(4, 6)).shape, layer.num_features
    (tritorch.Size([4, 6]), 6)
    """

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """`BatchNorm2d` whose `num_features` comes from its first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """`BatchNorm3d` whose `num_features` comes from its first input."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """`InstanceNorm1d` whose `num_features` comes from its first input.

    >>> import tritorch as torch
    >>> layer = torch.nn.LazyInstanceNorm1d()
    >>> layer(torch.randn(4, 6, 5)).shape, layer.num_features
    (tritorch.Size([4, 6, 5]), 6)
    """

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """`InstanceNorm2d` whose `num_features` comes from its first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """`InstanceNorm3d` whose `num_features` comes from its first input."""

    cls_to_become = InstanceNorm3d
