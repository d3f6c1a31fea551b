"""Normalisation layers."""
import warnings

from tritorch.autograd.modes import no_grad
from tritorch.autograd.places import stacklevel
from tritorch.dtype import int64
from tritorch.errors import check
from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.functional.pooling import cross_map_lrn
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset
from tritorch.nn.sizes import sizes
from tritorch.ops import batchnorm_parts  # noqa: F401  its operators are known to tests and benchmarks, like all others
from tritorch.ops.batchnorm import channels_check
from tritorch.ops.running_statistics import running_statistics


class _Affine(Module):
    """What all normalisations share: `weight` starts at one and `bias` at zero; either may be missing."""

    def _make_affine(self, shape, weight, bias, device, dtype):
        self.register_parameter("weight", Parameter(unset(shape, device, dtype)) if weight else None)
        self.register_parameter("bias", Parameter(unset(shape, device, dtype)) if weight and bias else None)

    def reset_parameters(self):
        """Set weight to one and bias to zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(_Affine):
    """(x - mean) / sqrt(var + eps) · weight + bias over the last dims, whose shape is `normalized_shape`. Ba et al. 2016.

    >>> import tritorch as torch
    >>> torch.nn.LayerNorm(10)(torch.ones(20, 5, 10)).shape
    tritorch.Size([20, 5, 10])
    """

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = sizes(normalized_shape, 1), eps, elementwise_affine
        self._make_affine(self.normalized_shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input):
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}")


class RMSNorm(Module):
    """x / sqrt(mean(x²) + eps) · weight over the last dims; `eps` is the dtype's machine epsilon unless given. Zhang and Sennrich 2019.

    >>> import tritorch as torch
    >>> torch.nn.RMSNorm([2, 3])(torch.ones(2, 2, 3)).shape
    tritorch.Size([2, 2, 3])
    """

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = sizes(normalized_shape, 1), eps, elementwise_affine
        self.register_parameter("weight", Parameter(unset(self.normalized_shape, device, dtype)) if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Set the weight to one."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """(x - mean) / sqrt(var + eps) · weight + bias over each of `num_groups` groups of the channels of (N, C, *). Wu and He 2018.

    >>> import tritorch as torch
    >>> torch.nn.GroupNorm(3, 6)(torch.ones(2, 6, 4, 4)).shape
    tritorch.Size([2, 6, 4, 4])
    """

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, device=None, dtype=None, *, bias=True):
        super().__init__()
        check(num_groups != 0, "GroupNorm", "num_groups other than 0", num_groups, error=ZeroDivisionError)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: expected groups of equal size, got {num_channels} channels in {num_groups} groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._make_affine((num_channels,), affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input):
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"


class LocalResponseNorm(Module):
    """x / (k + α/size · Σ x²)^β, the sum over `size` neighbouring channels. Krizhevsky et al. 2012."""

    def __init__(self, size, alpha=1e-4, beta=0.75, k=1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input):
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self):
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(Module):
    """x / (k + α/size · Σ x²)^β of (N, C, H, W), the sum over ⌊(size - 1) / 2⌋ channels on each side.

    As in PyTorch, which keeps this layer of Torch 7 as it was, a sum that has lost channel 0 gets its square back.

    >>> import tritorch as torch
    >>> torch.nn.CrossMapLRN2d(3, alpha=3.0, beta=1.0)(torch.ones(1, 2, 1, 1)).flatten().tolist()
    [0.3333333432674408, 0.3333333432674408]
    """

    def __init__(self, size, alpha=1e-4, beta=0.75, k=1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input):
        check(input.ndim == 4, "CrossMapLRN2d", "an input of 4 dims", input.shape, error=ValueError)
        return cross_map_lrn(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self):
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k:g}"


class _NormBase(_Affine):
    """Batch and instance norm: statistics over the batch, and their running averages."""

    _version = 2

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, device=None, dtype=None, *, bias=True):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._make_affine((num_features,), affine, bias, device, dtype)
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, unset((num_features,), device, dtype) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", unset((), device, int64) if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self):
        """Set the running mean to zero, the running variance to one and the count of batches to zero."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self):
        """Set all parameters and statistics to their start."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input):
        if input.ndim not in self._ndims:
            raise ValueError(f"expected {' or '.join(f'{n}D' for n in self._ndims)} input (got {input.ndim}D input)")

    def extra_repr(self):
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, bias={self.bias is not None}, "
                f"track_running_stats={self.track_running_stats}")

    def _upgrade_state_dict(self, state_dict, prefix, version):
        if (version is None or version < 2) and self.track_running_stats:            # the count came with version 2
            state_dict.setdefault(prefix + "num_batches_tracked", self.num_batches_tracked.detach().clone())


class _BatchNorm(_NormBase):
    def forward(self, input):
        self._check_input_dim(input)
        momentum = self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)         # the plain average of all batches
        in_use = not self.training or self.track_running_stats
        return F.batch_norm(input, self.running_mean if in_use else None, self.running_var if in_use else None, self.weight, self.bias,
                            self.training or self.running_mean is None, 0.0 if momentum is None else momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """(x - mean) / sqrt(var + eps) · weight + bias over batch and length, for each channel of (N, C) or (N, C, L). Ioffe and Szegedy 2015.

    In training mode with the statistics of the batch, of which `running_mean` and `running_var` keep averages
    (new = (1 - momentum) old + momentum batch); in evaluation mode with those.

    >>> import tritorch as torch
    >>> torch.nn.BatchNorm1d(3)(torch.ones(20, 3)).shape
    tritorch.Size([20, 3])
    """

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """`BatchNorm1d` for (N, C, H, W).

    >>> import tritorch as torch
    >>> norm = torch.nn.BatchNorm2d(3)
    >>> y = norm(torch.randn(8, 3, 4, 4))
    >>> norm.running_mean.shape, bool(y.mean((0, 2, 3)).abs().max() < 1e-5)
    (tritorch.Size([3]), True)
    """

    _ndims = (4,)


class BatchNorm3d(_BatchNorm):
    """`BatchNorm1d` for (N, C, D, H, W)."""

    _ndims = (5,)


class SyncBatchNorm(_BatchNorm):
    """`BatchNorm1d` for (N, C, *), in training by mean and variance over the batches of all processes of the group, which may be of
    different sizes, even empty. Its gradients are those of the sum of all processes' losses; that of weight and bias is this process's
    part, for DistributedDataParallel to reduce. In a world of one, without one, and in evaluation mode it is the batch norm of its batch.

    forward gathers 2C + 1 numbers of every process and backward sums 2C; the host waits for none of them. Where PyTorch wants a GPU, this
    computes on the CPU too.

    >>> import tritorch as torch
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    >>> torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)[1]
    SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, process_group=None, device=None,
                 dtype=None, *, bias=True):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input):
        if input.ndim < 2:
            raise ValueError(f"SyncBatchNorm: expected an input of 2 dims or more, got {input.ndim}")
        if input.shape[1] == 0:
            raise ValueError("SyncBatchNorm: expected channels, got none")

    def forward(self, input):
        if not self.training:
            return super().forward(input)
        from tritorch.nn import synchronized  # here, for it loads tritorch.distributed

        group = synchronized.group_of(self.process_group)
        if group is None or group.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        channels_check("SyncBatchNorm", input, self.weight, self.bias)
        mean, var, count = synchronized.statistics_of_all(input, group)
        if self.track_running_stats:
            self._follow(mean, var, count)
        return synchronized.Normalized.apply(input, self.weight, self.bias, mean, var, count, self.eps, group)

    @no_grad()
    def _follow(self, mean, var, count):
        """The running statistics go towards those of this batch, with the unbiased variance."""
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        running = self.running_mean, self.running_var
        running_statistics.into(running, *running, mean, var * (count / (count - 1)), momentum, 1.0)

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """The module with SyncBatchNorm in place of every batch norm, with the same parameters and statistics."""
        converted = module
        if isinstance(module, _BatchNorm):
            converted = SyncBatchNorm(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                                      process_group, bias=module.bias is not None)
            for registry in ("_parameters", "_buffers"):
                for name, tensor in getattr(module, registry).items():
                    setattr(converted, name, tensor)
            converted.training = module.training
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted


class _InstanceNorm(_NormBase):
    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=False, track_running_stats=False, device=None, dtype=None, *,
                 bias=True):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input):
        self._check_input_dim(input)
        unbatched = input.ndim == self._ndims[0]
        dim = 0 if unbatched else 1
        if input.shape[dim] != self.num_features:
            if self.affine:
                raise ValueError(f"expected input's size at dim={dim} to match num_features ({self.num_features}), "
                             f"but got: {input.shape[dim]}.")
            warnings.warn(f"{type(self).__name__}: num_features is {self.num_features}, dim {dim} of the input is {input.shape[dim]}: "
                          "without affine and running statistics nothing depends on it", stacklevel=stacklevel())
        output = F.instance_norm(input.unsqueeze(0) if unbatched else input, self.running_mean, self.running_var, self.weight, self.bias,
                                 self.training or not self.track_running_stats, 0.0 if self.momentum is None else self.momentum, self.eps)
        return output.squeeze(0) if unbatched else output


class InstanceNorm1d(_InstanceNorm):
    """(x - mean) / sqrt(var + eps) over the length, for each channel of each sample of (N, C, L) or (C, L). Ulyanov et al. 2016.

    >>> import tritorch as torch
    >>> torch.nn.InstanceNorm1d(3)(torch.ones(2, 3, 4)).shape
    tritorch.Size([2, 3, 4])
    """

    _ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """`InstanceNorm1d` for (N, C, H, W) or (C, H, W)."""

    _ndims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """`InstanceNorm1d` for (N, C, D, H, W) or (C, D, H, W)."""

    _ndims = (4, 5)
