"""Fused layers that train with fake-quantized weights: what `prepare_qat` puts in the place of those of `ao.nn.intrinsic`.

A batch norm is folded into the weights that are quantized, as it will be in the quantized model, and its statistics are those of the
batch: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", arXiv 1806.08342, section 3.2.2.
"""
from tritorch.ao.nn import intrinsic, qat
from tritorch.errors import check
from tritorch.nn import functional as F
from tritorch.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from tritorch.ops.create import zeros_like

__all__ = ["ConvBn1d", "ConvBn2d", "ConvBn3d", "ConvBnReLU1d", "ConvBnReLU2d", "ConvBnReLU3d", "ConvReLU1d", "ConvReLU2d", "ConvReLU3d",
           "LinearReLU", "freeze_bn_stats", "update_bn_stats"]


class _Fused:
    """Layers that are made from the first part of a fused one."""

    @classmethod
    def _checked(cls, mod):
        check(type(mod) is cls._FLOAT_MODULE, cls.__name__, f"a {cls._FLOAT_MODULE.__name__} of ao.nn.intrinsic", type(mod).__name__,
              error=AssertionError)
        check(getattr(mod, "qconfig", None), cls.__name__, "a module with a qconfig", "one without", error=AssertionError)
        return mod

    @classmethod
    def from_float(cls, mod, use_precomputed_fake_quant=False):
        """The layer for the parameters of a fused one, which both share."""
        first = cls._checked(mod)[0]
        made = cls(**cls._arguments(first), qconfig=mod.qconfig)
        made.weight, made.bias = first.weight, first.bias
        return made


class LinearReLU(_Fused, qat.Linear):
    """Linear with a fake-quantized weight, and ReLU."""

    _FLOAT_MODULE = intrinsic.LinearReLU

    def forward(self, input):
        return F.relu(super().forward(input))

    def to_float(self):
        """The fused layer with the same parameters."""
        return intrinsic.LinearReLU(_plain(self, qat.Linear), intrinsic.ReLU()).train(self.training)


def _plain(mod, kind):
    """The layer of nn with the parameters of a fused one."""
    made = kind._FLOAT_MODULE(**kind._arguments(mod))
    made.weight = mod.weight
    made.bias = mod.bias
    return made


class _ConvReLU(_Fused):
    def forward(self, input):
        return F.relu(self._conv_forward(input, self.weight_fake_quant(self.weight), self.bias))

    def to_float(self):
        """The fused layer with the same parameters."""
        return self._FLOAT_MODULE(_plain(self, self._base), intrinsic.ReLU()).train(self.training)


class ConvReLU1d(_ConvReLU, qat.Conv1d):
    """Conv1d with a fake-quantized weight, and ReLU."""

    _FLOAT_MODULE, _base = intrinsic.ConvReLU1d, qat.Conv1d


class ConvReLU2d(_ConvReLU, qat.Conv2d):
    """Conv2d with a fake-quantized weight, and ReLU."""

    _FLOAT_MODULE, _base = intrinsic.ConvReLU2d, qat.Conv2d


class ConvReLU3d(_ConvReLU, qat.Conv3d):
    """Conv3d with a fake-quantized weight, and ReLU."""

    _FLOAT_MODULE, _base = intrinsic.ConvReLU3d, qat.Conv3d


class _ConvBn(_Fused):
    """y = bn(conv(x, q(w · s)) / s + bias), with s = bn.weight / sqrt(running_var + eps) and q the fake quantizer."""

    _relu = False

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=None, padding_mode="zeros",
                 eps=1e-05, momentum=0.1, freeze_bn=False, qconfig=None):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bool(bias), padding_mode, qconfig)
        self.bn = self._norm(out_channels, eps, momentum)
        self._modules["weight_fake_quant"] = self._modules.pop("weight_fake_quant")      # in PyTorch's order, behind bn
        self.freeze_bn_stats() if freeze_bn else self.update_bn_stats()

    @classmethod
    def from_float(cls, mod, use_precomputed_fake_quant=False):
        """The layer for the parameters and the batch norm of a fused one, which both share."""
        first, bn = list(cls._checked(mod))[:2]
        made = cls(**cls._arguments(first), eps=bn.eps, momentum=bn.momentum, qconfig=mod.qconfig)
        made.weight, made.bias = first.weight, first.bias
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(made.bn, name, getattr(bn, name))
        return made

    def to_float(self):
        """The fused layer with the same parameters."""
        return self._FLOAT_MODULE(_plain(self, self._base), self.bn, *([intrinsic.ReLU()] if self._relu else [])).train(self.training)

    def reset_running_stats(self):
        """Forget the statistics of the batch norm."""
        self.bn.reset_running_stats()

    def update_bn_stats(self):
        """Normalise by the statistics of each batch, and keep averages of them."""
        self.freeze_bn, self.bn.training = False, True
        return self

    def freeze_bn_stats(self):
        """Normalise by the averages, which stay as they are."""
        self.freeze_bn, self.bn.training = True, False
        return self

    def train(self, mode=True):
        """Train, or evaluate; where statistics are frozen the batch norm evaluates either way."""
        self.training = mode
        if not self.freeze_bn:
            for module in self.children():
                module.train(mode)
        return self

    def forward(self, input):
        scale = self.bn.weight / (self.bn.running_var + self.bn.eps).sqrt()
        weight = self.weight_fake_quant(self.weight * scale.reshape(-1, *[1] * (self.weight.ndim - 1)))
        zeros = zeros_like(self.bias) if self.bias is not None else None
        rows = [1, -1] + [1] * (self.weight.ndim - 2)
        out = self._conv_forward(input, weight, zeros) / scale.reshape(rows)
        out = self.bn(out if self.bias is None else out + self.bias.reshape(rows))
        return F.relu(out) if self._relu else out


class ConvBn1d(_ConvBn, qat.Conv1d):
    """Conv1d and BatchNorm1d, folded into the weight that is fake-quantized."""

    _FLOAT_MODULE, _base, _norm = intrinsic.ConvBn1d, qat.Conv1d, BatchNorm1d


class ConvBn2d(_ConvBn, qat.Conv2d):
    """Conv2d and BatchNorm2d, folded into the weight that is fake-quantized."""

    _FLOAT_MODULE, _base, _norm = intrinsic.ConvBn2d, qat.Conv2d, BatchNorm2d


class ConvBn3d(_ConvBn, qat.Conv3d):
    """Conv3d and BatchNorm3d, folded into the weight that is fake-quantized."""

    _FLOAT_MODULE, _base, _norm = intrinsic.ConvBn3d, qat.Conv3d, BatchNorm3d


class ConvBnReLU1d(ConvBn1d):
    """`ConvBn1d` and ReLU."""

    _FLOAT_MODULE, _relu = intrinsic.ConvBnReLU1d, True


class ConvBnReLU2d(ConvBn2d):
    """`ConvBn2d` and ReLU."""

    _FLOAT_MODULE, _relu = intrinsic.ConvBnReLU2d, True


class ConvBnReLU3d(ConvBn3d):
    """`ConvBn3d` and ReLU."""

    _FLOAT_MODULE, _relu = intrinsic.ConvBnReLU3d, True


def freeze_bn_stats(mod):
    """Keep the statistics of batch norms in fused layers: `model.apply(freeze_bn_stats)`."""
    if isinstance(mod, _ConvBn):
        mod.freeze_bn_stats()


def update_bn_stats(mod):
    """Have the statistics of batch norms in fused layers follow the batches."""
    if isinstance(mod, _ConvBn):
        mod.update_bn_stats()
