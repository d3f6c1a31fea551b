"""Observers: modules that see tensors go by, return them, and tell the scale and zero point with which integers stand for their range.

Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference", CVPR 2018.
"""
import functools
from abc import ABC, abstractmethod

from tritorch.autograd.modes import no_grad
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.nn.module import Module
from tritorch.ops import compare, create
from tritorch.ops.extremes import amin_amax
from tritorch.ops.pointwise import maximum, minimum
from tritorch.schemes import (
    is_per_channel,
    is_symmetric,
    per_channel_affine,
    per_channel_affine_float_qparams,
    per_channel_symmetric,
    per_tensor_affine,
    per_tensor_symmetric,
)

EPS = 2.0 ** -23                                                         # of float32
RANGES = {types.qint8: (-128, 127), types.int8: (-128, 127), types.quint8: (0, 255), types.uint8: (0, 255),
          types.qint32: (-(2**31), 2**31 - 1), types.int32: (-(2**31), 2**31 - 1), types.int16: (-(2**15), 2**15 - 1),
          types.uint16: (0, 2**16 - 1)}
REDUCED = {types.qint8: (-64, 63), types.int8: (-64, 63), types.quint8: (0, 127), types.uint8: (0, 127)}


class PartialWrapper:
    """A constructor with some of its arguments given: what `with_args` returns. It has `with_args` itself."""

    def __init__(self, made):
        self.p, self.callable_args = made, {}

    def __call__(self, *args, **keywords):
        for name, made in self.callable_args.items():
            if name not in keywords:
                keywords[name] = made()
        return self.p(*args, **keywords)

    def __repr__(self):
        return repr(self.p) + repr(self.callable_args)

    def with_args(self, **kwargs):
        """The same with these arguments, too."""
        made = PartialWrapper(functools.partial(self.p, **kwargs))
        made.callable_args = dict(self.callable_args)
        return made

    def with_callable_args(self, **kwargs):
        """The same with arguments that are made by functions when they are needed."""
        made = self.with_args()
        made.callable_args = {**self.callable_args, **kwargs}
        return made


class Configured:
    """What observers and fake quantizers have in common: constructors with some arguments given."""

    @classmethod
    def with_args(cls, **kwargs):
        """A constructor with these arguments.

        >>> from tritorch.ao.quantization import MinMaxObserver
        >>> MinMaxObserver.with_args(reduce_range=True)().quant_max
        127
        """
        return PartialWrapper(functools.partial(cls, **kwargs))

    @classmethod
    def with_callable_args(cls, **kwargs):
        """A constructor with arguments that are made by functions when they are needed."""
        return PartialWrapper(functools.partial(cls)).with_callable_args(**kwargs)


class ObserverBase(ABC, Configured, Module):
    """The base of observers: `forward(x)` returns x, `calculate_qparams()` tells scale and zero point."""

    def __init__(self, dtype, is_dynamic=False):
        super().__init__()
        self.dtype, self.is_dynamic = dtype, is_dynamic

    @abstractmethod
    def forward(self, x): ...

    @abstractmethod
    def calculate_qparams(self, **kwargs): ...


class UniformQuantizationObserverBase(ObserverBase):
    """The base of observers of ranges: from minimum and maximum to scale and zero point. ValueError for dtypes without a range,
    AssertionError, as in PyTorch, for a range of integers without 0."""

    def __init__(self, dtype=types.quint8, qscheme=per_tensor_affine, reduce_range=False, quant_min=None, quant_max=None,
                 factory_kwargs=None, eps=EPS, is_dynamic=False, **kwargs):
        super().__init__(dtype=dtype, is_dynamic=is_dynamic)
        self.qscheme, self.reduce_range = qscheme, reduce_range
        self.register_buffer("eps", create.tensor([eps], dtype=types.float32))
        check(qscheme in (per_tensor_affine, per_tensor_symmetric, per_channel_affine, per_channel_symmetric,
                          per_channel_affine_float_qparams), type(self).__name__, "a scheme of uniform steps", qscheme,
              error=AssertionError)
        check(dtype in RANGES or dtype is types.quint4x2, type(self).__name__, "a dtype of integers that stand for numbers", dtype,
              error=AssertionError)
        self.has_customized_qrange = quant_min is not None and quant_max is not None
        if self.has_customized_qrange:
            check(quant_min <= 0 <= quant_max and quant_min < quant_max, type(self).__name__, "a range of integers with 0 in it",
                  quant_min, quant_max, error=AssertionError)
        self.quant_min, self.quant_max = self._range(quant_min, quant_max)

    def _range(self, low, high):
        """The integers that are used; all of the dtype, or half of them, if none are given."""
        if not self.has_customized_qrange:
            ranges = REDUCED if self.reduce_range and self.dtype in REDUCED else RANGES
            return (0, 15) if self.dtype is types.quint4x2 else ranges[self.dtype]
        if self.reduce_range and self.dtype in (*REDUCED, types.qint32):
            return (0, high // 2) if self.dtype in (types.quint8, types.uint8) else (low // 2, high // 2)
        return low, high

    def _calculate_qparams(self, min_val, max_val):
        """(scale, zero point) of ranges, as vectors."""
        if min_val.numel() == 0 or bool((min_val > max_val).any()):      # nothing has been seen
            return create.ones(1, device=min_val.device), create.zeros(1, dtype=types.int64, device=min_val.device)
        steps = float(self.quant_max - self.quant_min)
        low, high = min_val.clamp(max=0), max_val.clamp(min=0)
        if is_symmetric(self.qscheme):
            scale, zero = maximum(maximum(-low, high) / (steps / 2), self.eps), create.zeros_like(low, dtype=types.int64)
            if self.dtype in (types.quint8, types.uint8):
                zero = zero + ((self.quant_min + self.quant_max) // 2 if self.has_customized_qrange else 128)
        elif self.qscheme is per_channel_affine_float_qparams:
            scale = (max_val - min_val) / steps
            scale = compare.where(scale > self.eps, scale, create.ones_like(scale))
            zero = -min_val / scale
        else:
            scale = maximum((high - low) / steps, self.eps)
            zero = (self.quant_min - (low / scale).round().to(types.int32)).clamp(self.quant_min, self.quant_max)
        return scale.reshape(-1), zero.reshape(-1)

    def reset_min_max_vals(self):
        """Forget what was seen."""
        raise NotImplementedError(f"{type(self).__name__}: expected an observer that can forget, got one that cannot")


class RangeObserver(UniformQuantizationObserverBase):
    """What observers have in common that keep the smallest and the largest numbers, of a tensor or of each channel."""

    def see(self, low, high):
        """Take in what numbers of a tensor, or of each of its channels, are the smallest and the largest."""
        self.min_val.copy_(minimum(low, self.min_val))
        self.max_val.copy_(maximum(high, self.max_val))

    def calculate_qparams(self):
        """(scale, zero point) for what has been seen."""
        return self._calculate_qparams(self.min_val, self.max_val)

    def extra_repr(self):
        return f"min_val={self.min_val}, max_val={self.max_val}"


class MinMaxObserver(RangeObserver):
    """The smallest and the largest number that has been seen, of schemes with one scale for a tensor.

    scale = (max - min) / (quant_max - quant_min), zero_point = quant_min - round(min / scale) for a range widened to 0; of symmetric
    schemes scale = 2 · max(|min|, |max|) / (quant_max - quant_min).

    >>> import tritorch as torch
    >>> observer = torch.ao.quantization.MinMaxObserver()
    >>> observer(torch.tensor([-1.0, 0.5])); observer(torch.tensor([1.55]))
    tensor([-1.0000,  0.5000])
    tensor([1.5500])
    >>> observer.calculate_qparams()
    (tensor([0.0100]), tensor([100], dtype=tritorch.int32))
    """

    def __init__(self, dtype=types.quint8, qscheme=per_tensor_affine, reduce_range=False, quant_min=None, quant_max=None,
                 factory_kwargs=None, eps=EPS, is_dynamic=False, **kwargs):
        check(not is_per_channel(qscheme), type(self).__name__, "a scheme with one scale for a tensor", qscheme, error=NotImplementedError)
        super().__init__(dtype=dtype, qscheme=qscheme, reduce_range=reduce_range, quant_min=quant_min, quant_max=quant_max,
                         factory_kwargs=factory_kwargs, eps=eps, is_dynamic=is_dynamic, **kwargs)
        self.register_buffer("min_val", create.tensor(float("inf")))
        self.register_buffer("max_val", create.tensor(float("-inf")))
        check(qscheme is not per_tensor_symmetric or not reduce_range or dtype is not types.quint8, type(self).__name__,
              "symmetric integers of a signed dtype to reduce their range", dtype, error=NotImplementedError)

    @no_grad()
    def forward(self, x_orig):
        """Widen the range by that of a tensor, which is returned."""
        if x_orig.numel():
            x = x_orig.detach().to(self.min_val.dtype)
            low, high = amin_amax(x, tuple(range(x.ndim)))
            self.see(low, high)
        return x_orig

    def reset_min_max_vals(self):
        """Forget what was seen."""
        self.min_val.fill_(float("inf"))
        self.max_val.fill_(float("-inf"))


def averaged(old, seen, constant, nothing):
    """old + constant · (seen - old), or what was seen where nothing has been before; the device is not waited for."""
    return compare.where(nothing, seen, old + constant * (seen - old))


class MovingAverageMinMaxObserver(MinMaxObserver):
    """Moving averages of the smallest and the largest number of each tensor: old + averaging_constant · (seen - old)."""

    def __init__(self, averaging_constant=0.01, dtype=types.quint8, qscheme=per_tensor_affine, reduce_range=False, quant_min=None,
                 quant_max=None, eps=EPS, is_dynamic=False, **kwargs):
        self.__dict__["averaging_constant"] = averaging_constant
        check(not is_per_channel(qscheme), type(self).__name__, "a scheme with one scale for a tensor", qscheme, error=NotImplementedError)
        check(not is_dynamic or averaging_constant == 1, type(self).__name__, "averaging_constant 1 where scales are found anew each time",
              averaging_constant, error=NotImplementedError)
        super().__init__(dtype=dtype, qscheme=qscheme, reduce_range=reduce_range, quant_min=quant_min, quant_max=quant_max, eps=eps,
                         is_dynamic=is_dynamic, **kwargs)

    def see(self, low, high):
        nothing = (self.min_val == float("inf")) & (self.max_val == float("-inf"))
        self.min_val.copy_(averaged(self.min_val, low, self.averaging_constant, nothing))
        self.max_val.copy_(averaged(self.max_val, high, self.averaging_constant, nothing))


class PerChannelMinMaxObserver(RangeObserver):
    """`MinMaxObserver` for each place along `ch_axis`."""

    def __init__(self, ch_axis=0, dtype=types.quint8, qscheme=per_channel_affine, reduce_range=False, quant_min=None, quant_max=None,
                 factory_kwargs=None, eps=EPS, is_dynamic=False, **kwargs):
        check(is_per_channel(qscheme), type(self).__name__, "a scheme with a scale for each channel", qscheme, error=NotImplementedError)
        check(not is_dynamic, type(self).__name__, "scales that are not found anew each time", "is_dynamic=True", error=NotImplementedError)
        super().__init__(dtype=dtype, qscheme=qscheme, reduce_range=reduce_range, quant_min=quant_min, quant_max=quant_max,
                         factory_kwargs=factory_kwargs, eps=eps, is_dynamic=is_dynamic, **kwargs)
        self.ch_axis = ch_axis
        self.register_buffer("min_val", create.tensor([]))
        self.register_buffer("max_val", create.tensor([]))

    @no_grad()
    def forward(self, x_orig):
        """Widen the range of each channel by that of a tensor, which is returned."""
        if x_orig.numel():
            x = x_orig.detach().to(self.min_val.dtype)
            axis = self.ch_axis % x.ndim
            low, high = amin_amax(x, tuple([d for d in range(x.ndim) if d != axis])) if x.ndim > 1 else (x, x)
            if self.min_val.numel() == 0 or self.max_val.numel() == 0:
                self.min_val.resize_(low.shape).copy_(low)
                self.max_val.resize_(high.shape).copy_(high)
            else:
                self.see(low, high)
        return x_orig

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        """What has been seen may be of any number of channels."""
        for name in ("min_val", "max_val"):
            if prefix + name in state_dict:
                getattr(self, name).resize_(state_dict[prefix + name].shape)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def reset_min_max_vals(self):
        """Forget what was seen."""
        self.min_val.resize_(0)
        self.max_val.resize_(0)


class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver):
    """`MovingAverageMinMaxObserver` for each place along `ch_axis`."""

    def __init__(self, averaging_constant=0.01, ch_axis=0, dtype=types.quint8, qscheme=per_channel_affine, reduce_range=False,
                 quant_min=None, quant_max=None, eps=EPS, is_dynamic=False, **kwargs):
        super().__init__(ch_axis=ch_axis, dtype=dtype, qscheme=qscheme, reduce_range=reduce_range, quant_min=quant_min,
                         quant_max=quant_max, eps=eps, is_dynamic=is_dynamic, **kwargs)
        self.averaging_constant = averaging_constant

    def see(self, low, high):
        self.min_val.copy_(self.min_val + self.averaging_constant * (low - self.min_val))
        self.max_val.copy_(self.max_val + self.averaging_constant * (high - self.max_val))
