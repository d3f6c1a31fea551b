"""Fake quantizers: modules that watch the range of a tensor and return it as integers would stand for it."""
from abc import ABC, abstractmethod

from tritorch.ao.quantization.observer import (
    Configured,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from tritorch.ao.quantization.other_observers import (
    FixedQParamsObserver,
    default_fixed_qparams_range_0to1_observer,
    default_fixed_qparams_range_neg1to1_observer,
)
from tritorch.dtype import iinfo, types
from tritorch.errors import check
from tritorch.nn.module import Module
from tritorch.ops import create
from tritorch.ops.fake_quantize import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from tritorch.ops.moving_range import fused_moving_avg_obs_fake_quant
from tritorch.schemes import (
    is_per_channel,
    is_symmetric,
    per_channel_affine_float_qparams,
    per_channel_symmetric,
    per_tensor_affine,
    per_tensor_symmetric,
)


class FakeQuantizeBase(ABC, Configured, Module):
    """The base of fake quantizers: two switches, `fake_quant_enabled` and `observer_enabled`, tensors of one element."""

    def __init__(self):
        super().__init__()
        self.register_buffer("fake_quant_enabled", create.tensor([1], dtype=types.uint8))
        self.register_buffer("observer_enabled", create.tensor([1], dtype=types.uint8))

    @abstractmethod
    def forward(self, x): ...

    @abstractmethod
    def calculate_qparams(self, **kwargs): ...

    def enable_fake_quant(self, enabled=True):
        """Whether tensors are changed."""
        self.fake_quant_enabled[0] = 1 if enabled else 0

    def disable_fake_quant(self):
        """Tensors are returned as they are."""
        self.enable_fake_quant(False)

    def enable_observer(self, enabled=True):
        """Whether ranges are watched."""
        self.observer_enabled[0] = 1 if enabled else 0

    def disable_observer(self):
        """Scale and zero point stay as they are."""
        self.enable_observer(False)


class FakeQuantize(FakeQuantizeBase):
    """(clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) · scale, with the scale and zero point that an observer
    tells. Gradients go straight through where nothing was clamped. AssertionError, as in PyTorch, for integers that the dtype has not.

    >>> import tritorch as torch
    >>> fake = torch.ao.quantization.FakeQuantize(quant_min=0, quant_max=255)
    >>> fake(torch.tensor([0.0, 1.234, 2.55]))
    tensor([0.0000, 1.2300, 2.5500])
    """

    def __init__(self, observer=MovingAverageMinMaxObserver, quant_min=None, quant_max=None, is_dynamic=False, **observer_kwargs):
        super().__init__()
        name = type(self).__name__
        if quant_min is not None and quant_max is not None:
            check(quant_min <= quant_max, name, "quant_min ≤ quant_max", quant_min, quant_max, error=AssertionError)
            given = getattr(getattr(observer, "p", None), "keywords", {})
            limits = iinfo(given.get("dtype", observer_kwargs.get("dtype", types.quint8)))
            check(limits.min <= quant_min and quant_max <= limits.max, name, f"integers from {limits.min} to {limits.max}", quant_min,
                  quant_max, error=AssertionError)
            observer_kwargs.update(quant_min=quant_min, quant_max=quant_max)
        observer_kwargs["is_dynamic"] = is_dynamic
        watching = self.activation_post_process = observer(**observer_kwargs)
        self.quant_min, self.quant_max, self.is_dynamic = watching.quant_min, watching.quant_max, watching.is_dynamic
        whole = watching.qscheme is not per_channel_affine_float_qparams
        self.register_buffer("scale", create.tensor([1.0], dtype=types.float32))
        self.register_buffer("zero_point", create.tensor([0], dtype=types.int32 if whole else types.float32))
        self.dtype, self.qscheme, self.ch_axis = watching.dtype, watching.qscheme, getattr(watching, "ch_axis", -1)
        self.is_per_channel = is_per_channel(self.qscheme)

    def calculate_qparams(self):
        """(scale, zero point) of what the observer has seen."""
        return self.activation_post_process.calculate_qparams()

    def forward(self, X):
        if self.observer_enabled[0] == 1:
            self.activation_post_process(X.detach())
            for kept, told in zip((self.scale, self.zero_point), self.calculate_qparams()):
                if kept.shape != told.shape:
                    kept.resize_(told.shape)
                kept.copy_(told)
        if self.fake_quant_enabled[0] == 1:
            low, high = self.activation_post_process.quant_min, self.activation_post_process.quant_max
            if self.is_per_channel:
                return fake_quantize_per_channel_affine(X, self.scale, self.zero_point, self.ch_axis, low, high)
            return fake_quantize_per_tensor_affine(X, self.scale, self.zero_point, low, high)
        return X

    def _switches(self):
        return f"fake_quant_enabled={self.fake_quant_enabled}, observer_enabled={self.observer_enabled}"

    def _integers(self):
        return f"quant_min={self.activation_post_process.quant_min}, quant_max={self.activation_post_process.quant_max}"

    def extra_repr(self):
        return (f"{self._switches()}, {self._integers()}, dtype={self.dtype}, qscheme={self.qscheme}, ch_axis={self.ch_axis}, "
                f"scale={self.scale}, zero_point={self.zero_point}")

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        """Scale and zero point may be of any number of channels."""
        for name in ("scale", "zero_point"):
            if prefix + name in state_dict:
                getattr(self, name).resize_(state_dict[prefix + name].shape)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)


class FixedQParamsFakeQuantize(FakeQuantize):
    """`FakeQuantize` with the scale and zero point of a `FixedQParamsObserver`."""

    def __init__(self, observer):
        super().__init__(observer=observer)
        watching = self.activation_post_process
        check(type(watching) is FixedQParamsObserver, "FixedQParamsFakeQuantize", "a FixedQParamsObserver", type(watching).__name__,
              error=AssertionError)
        check(not self.is_per_channel, "FixedQParamsFakeQuantize", "a scheme with one scale for a tensor", self.qscheme,
              error=AssertionError)
        self._observer_ctr, self.scale, self.zero_point = observer, watching.scale, watching.zero_point

    def calculate_qparams(self):
        """(scale, zero point) as they were given."""
        return self.scale, self.zero_point

    def extra_repr(self):
        return (f"{self._switches()}, scale={self.scale}, zero_point={self.zero_point}, dtype={self.dtype}, {self._integers()}, "
                f"qscheme={self.qscheme}")


class FusedMovingAvgObsFakeQuantize(FakeQuantize):
    """`FakeQuantize` with a moving average, as one function that waits for nothing: `fused_moving_avg_obs_fake_quant`."""

    def __init__(self, observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, **observer_kwargs):
        super().__init__(observer, quant_min, quant_max, **observer_kwargs)
        watching = self.activation_post_process
        check(isinstance(watching, (MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver)), type(self).__name__,
              "an observer of moving averages", type(watching).__name__, error=AssertionError)
        self.register_buffer("fake_quant_enabled", create.tensor([1], dtype=types.int64))
        self.register_buffer("observer_enabled", create.tensor([1], dtype=types.int64))
        self.is_symmetric_quant = is_symmetric(watching.qscheme)

    def extra_repr(self):
        return (f"{self._switches()}, scale={self.scale}, zero_point={self.zero_point}, dtype={self.dtype}, {self._integers()}, "
                f"qscheme={self.qscheme}, reduce_range={self.activation_post_process.reduce_range}")

    def forward(self, X):
        watching = self.activation_post_process
        return fused_moving_avg_obs_fake_quant(
            X, self.observer_enabled, self.fake_quant_enabled, watching.min_val, watching.max_val, self.scale, self.zero_point,
            watching.averaging_constant, watching.quant_min, watching.quant_max, self.ch_axis, self.is_per_channel, self.is_symmetric_quant)


# ------------------------------------------------------------------ what configurations begin with
_signed = dict(quant_min=-128, quant_max=127, dtype=types.qint8)
_signed_127 = dict(quant_min=-127, quant_max=127, dtype=types.qint8)
_unsigned = dict(quant_min=0, quant_max=255, dtype=types.quint8)
_average, _averages = MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
default_fake_quant = FakeQuantize.with_args(observer=_average, **_unsigned, qscheme=per_tensor_affine, reduce_range=True)
default_weight_fake_quant = FakeQuantize.with_args(observer=_average, **_signed, qscheme=per_tensor_symmetric, reduce_range=False)
default_dynamic_fake_quant = FakeQuantize.with_args(observer=_average, quant_min=0, quant_max=255, is_dynamic=True, dtype=types.quint8,
                                                    averaging_constant=1)
default_fixed_qparams_range_neg1to1_fake_quant = FixedQParamsFakeQuantize.with_args(observer=default_fixed_qparams_range_neg1to1_observer)
default_fixed_qparams_range_0to1_fake_quant = FixedQParamsFakeQuantize.with_args(observer=default_fixed_qparams_range_0to1_observer)
default_symmetric_fixed_qparams_fake_quant = default_fixed_qparams_range_neg1to1_fake_quant
default_affine_fixed_qparams_fake_quant = default_fixed_qparams_range_0to1_fake_quant
default_per_channel_weight_fake_quant = FakeQuantize.with_args(observer=_averages, **_signed, qscheme=per_channel_symmetric,
                                                               reduce_range=False, ch_axis=0)
default_embedding_fake_quant = FakeQuantize.with_args(observer=_averages, qscheme=per_channel_affine_float_qparams, dtype=types.quint8,
                                                      quant_min=0, quant_max=255, ch_axis=0, averaging_constant=1)
default_embedding_fake_quant_4bit = FakeQuantize.with_args(observer=_averages, qscheme=per_channel_affine_float_qparams, ch_axis=0,
                                                           dtype=types.quint4x2, averaging_constant=1)
default_fused_act_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(observer=_average, **_unsigned)
default_fused_wt_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(observer=_average, **_signed, qscheme=per_tensor_symmetric)
default_fused_per_channel_wt_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(observer=_averages, **_signed,
                                                                                  qscheme=per_channel_symmetric)
fused_wt_fake_quant_range_neg_127_to_127 = FusedMovingAvgObsFakeQuantize.with_args(observer=_average, **_signed_127,
                                                                                   qscheme=per_tensor_symmetric, eps=2**-12)
fused_per_channel_wt_fake_quant_range_neg_127_to_127 = FusedMovingAvgObsFakeQuantize.with_args(
    observer=_averages, **_signed_127, qscheme=per_channel_symmetric, eps=2**-12)


def disable_fake_quant(mod):
    """Switch off what changes tensors: `model.apply(disable_fake_quant)`; so are the following."""
    if isinstance(mod, FakeQuantizeBase):
        mod.disable_fake_quant()


def enable_fake_quant(mod):
    """Switch on what changes tensors."""
    if isinstance(mod, FakeQuantizeBase):
        mod.enable_fake_quant()


def disable_observer(mod):
    """Keep scales and zero points as they are."""
    if isinstance(mod, FakeQuantizeBase):
        mod.disable_observer()


def enable_observer(mod):
    """Have ranges watched."""
    if isinstance(mod, FakeQuantizeBase):
        mod.enable_observer()
