"""Layers whose weights are fake-quantized in every forward pass: what `prepare_qat` puts in the place of those of nn."""
from tritorch.errors import check
from tritorch.nn import conv, linear, sparse
from tritorch.nn import functional as F
from tritorch.nn.parameter import Parameter
from tritorch.schemes import per_channel_affine_float_qparams

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Embedding", "EmbeddingBag", "Linear"]


class _QAT:
    """What they have in common: `qconfig`, `weight_fake_quant`, and the ways from a layer of nn and back."""

    def _watch(self, qconfig, device, dtype):
        check(qconfig, type(self).__name__, "a qconfig", qconfig, error=AssertionError)
        self.qconfig = qconfig
        self.weight_fake_quant = qconfig.weight(factory_kwargs={"device": device, "dtype": dtype})

    @classmethod
    def _checked(cls, mod):
        """The layer of nn, which has to have a qconfig; AssertionError, as in PyTorch, for others."""
        check(type(mod) is cls._FLOAT_MODULE, cls.__name__, f"a {cls._FLOAT_MODULE.__name__}", type(mod).__name__, error=AssertionError)
        check(getattr(mod, "qconfig", None), cls.__name__, "a module with a qconfig", "one without", error=AssertionError)
        return mod

    @classmethod
    def from_float(cls, mod, use_precomputed_fake_quant=False):
        """The layer for the parameters of one of nn, which both share."""
        made = cls._like(cls._checked(mod), mod.qconfig)
        made.weight = mod.weight
        if hasattr(made, "bias"):
            made.bias = mod.bias
        return made

    def to_float(self):
        """The layer of nn with the same parameters."""
        made = self._FLOAT_MODULE(**self._arguments(self))
        made.weight = Parameter(self.weight.detach())
        if getattr(self, "bias", None) is not None:
            made.bias = Parameter(self.bias.detach())
        return made.train(self.training)

    @classmethod
    def _like(cls, mod, qconfig):
        return cls(**cls._arguments(mod), qconfig=qconfig)


class Linear(_QAT, linear.Linear):
    """`nn.Linear` with a fake-quantized weight.

    >>> import tritorch as torch
    >>> qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    >>> torch.ao.nn.qat.Linear(2, 3, qconfig=qconfig)(torch.ones(1, 2)).shape
    tritorch.Size([1, 3])
    """

    _FLOAT_MODULE = linear.Linear

    def __init__(self, in_features, out_features, bias=True, qconfig=None, device=None, dtype=None):
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._watch(qconfig, device, dtype)

    @staticmethod
    def _arguments(mod):
        return dict(in_features=mod.in_features, out_features=mod.out_features, bias=mod.bias is not None)

    def forward(self, input):
        return F.linear(input, self.weight_fake_quant(self.weight), self.bias)


class _Conv(_QAT):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, padding_mode="zeros",
                 qconfig=None, device=None, dtype=None):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        self._watch(qconfig, device, dtype)

    @staticmethod
    def _arguments(mod):
        return dict(in_channels=mod.in_channels, out_channels=mod.out_channels, kernel_size=mod.kernel_size, stride=mod.stride,
                    padding=mod.padding, dilation=mod.dilation, groups=mod.groups, bias=mod.bias is not None, padding_mode=mod.padding_mode)

    def forward(self, input):
        return self._conv_forward(input, self.weight_fake_quant(self.weight), self.bias)


class Conv1d(_Conv, conv.Conv1d):
    """`nn.Conv1d` with a fake-quantized weight."""

    _FLOAT_MODULE = conv.Conv1d


class Conv2d(_Conv, conv.Conv2d):
    """`nn.Conv2d` with a fake-quantized weight."""

    _FLOAT_MODULE = conv.Conv2d


class Conv3d(_Conv, conv.Conv3d):
    """`nn.Conv3d` with a fake-quantized weight."""

    _FLOAT_MODULE = conv.Conv3d


def _float_qparams(name, qconfig):
    """Tables have a scale and a zero point, which is no integer, for each row."""
    scheme = qconfig.weight().qscheme if qconfig else per_channel_affine_float_qparams
    check(scheme is per_channel_affine_float_qparams, name, "weights of per_channel_affine_float_qparams", scheme, error=AssertionError)


class Embedding(_QAT, sparse.Embedding):
    """`nn.Embedding` with a fake-quantized table."""

    _FLOAT_MODULE = sparse.Embedding

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
                 sparse=False, _weight=None, device=None, dtype=None, qconfig=None):
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight,
                         device=device, dtype=dtype)
        _float_qparams("Embedding", qconfig)
        self._watch(qconfig, device, dtype)

    @staticmethod
    def _arguments(mod):
        return dict(num_embeddings=mod.num_embeddings, embedding_dim=mod.embedding_dim, padding_idx=mod.padding_idx, max_norm=mod.max_norm,
                    norm_type=mod.norm_type, scale_grad_by_freq=mod.scale_grad_by_freq, sparse=mod.sparse)

    def forward(self, input):
        return F.embedding(input, self.weight_fake_quant(self.weight), self.padding_idx, self.max_norm, self.norm_type,
                           self.scale_grad_by_freq)


class EmbeddingBag(_QAT, sparse.EmbeddingBag):
    """`nn.EmbeddingBag` with a fake-quantized table."""

    _FLOAT_MODULE = sparse.EmbeddingBag

    def __init__(self, num_embeddings, embedding_dim, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean", sparse=False,
                 _weight=None, include_last_offset=False, padding_idx=None, qconfig=None, device=None, dtype=None):
        super().__init__(num_embeddings, embedding_dim, max_norm, norm_type, scale_grad_by_freq, mode, sparse, _weight,
                         include_last_offset, padding_idx, device=device, dtype=dtype)
        _float_qparams("EmbeddingBag", qconfig)
        self._watch(qconfig, device, dtype)

    @staticmethod
    def _arguments(mod):
        return dict(num_embeddings=mod.num_embeddings, embedding_dim=mod.embedding_dim, max_norm=mod.max_norm, norm_type=mod.norm_type,
                    scale_grad_by_freq=mod.scale_grad_by_freq, mode=mod.mode, sparse=mod.sparse,
                    include_last_offset=mod.include_last_offset, padding_idx=mod.padding_idx)

    def forward(self, input, offsets=None, per_sample_weights=None):
        return F.embedding_bag(input, self.weight_fake_quant(self.weight), offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
                               self.mode, self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx)
