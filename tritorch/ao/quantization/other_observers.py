"""Observers that see no range: fixed parameters, none at all, a recording; and the observers that configurations begin with."""
from tritorch.ao.quantization.observer import MinMaxObserver, ObserverBase, PerChannelMinMaxObserver
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create
from tritorch.schemes import (
    per_channel_affine_float_qparams,
    per_channel_symmetric,
    per_tensor_affine,
    per_tensor_symmetric,
)


class FixedQParamsObserver(ObserverBase):
    """Tells the scale and the zero point that it was given."""

    def __init__(self, scale, zero_point, dtype=types.quint8, qscheme=per_tensor_affine, quant_min=0, quant_max=255, is_dynamic=False,
                 **kwargs):
        check(not is_dynamic, "FixedQParamsObserver", "scales that are not found anew each time", "is_dynamic=True",
              error=NotImplementedError)
        super().__init__(dtype=dtype, is_dynamic=is_dynamic)
        self.quant_min, self.quant_max, self.qscheme = quant_min, quant_max, qscheme
        self.register_buffer("scale", create.tensor([scale], dtype=types.float32))
        self.register_buffer("zero_point", create.tensor([zero_point], dtype=types.int32))

    def forward(self, X):
        return X

    def calculate_qparams(self):
        """(scale, zero point) as they were given."""
        return self.scale, self.zero_point


class PlaceholderObserver(ObserverBase):
    """Sees nothing: it says which dtype what is there will have."""

    def __init__(self, dtype=types.float32, custom_op_name="", compute_dtype=None, quant_min=None, quant_max=None, qscheme=None, eps=None,
                 is_dynamic=False):
        super().__init__(dtype=dtype, is_dynamic=is_dynamic)
        self.qscheme = per_tensor_affine if qscheme is None else qscheme
        self.quant_min, self.quant_max, self.eps, self.custom_op = quant_min, quant_max, eps, custom_op_name
        if compute_dtype is not None:
            self.is_dynamic = True

    def forward(self, x):
        return x

    def extra_repr(self):
        return f"dtype={self.dtype}, is_dynamic={self.is_dynamic}"

    def calculate_qparams(self):
        """RuntimeError: nothing has been seen."""
        raise RuntimeError("PlaceholderObserver: expected an observer of values, got one that sees none")


class NoopObserver(ObserverBase):
    """Sees nothing and says nothing but a dtype."""

    def __init__(self, dtype=types.float16, custom_op_name=""):
        super().__init__(dtype=dtype, is_dynamic=False)
        self.custom_op = custom_op_name

    def forward(self, x):
        return x

    def calculate_qparams(self):
        """RuntimeError: nothing has been seen."""
        raise RuntimeError("NoopObserver: expected an observer of values, got one that sees none")


class ReuseInputObserver(NoopObserver):
    """Sees nothing: the result has the parameters of the input."""

    def __init__(self):
        super().__init__(types.quint8)


class RecordingObserver(ObserverBase):
    """Keeps all tensors that it sees: `get_tensor_value()`."""

    def __init__(self, dtype=types.quint8):
        super().__init__(dtype=dtype, is_dynamic=False)
        self.tensor_val = []

    def forward(self, x):
        self.tensor_val.append(x.clone())
        return x

    def calculate_qparams(self):
        """RuntimeError: it tells values, not parameters."""
        raise RuntimeError("RecordingObserver: expected an observer of ranges, got one of values; use get_tensor_value()")

    def get_tensor_value(self):
        """The tensors, the first one first."""
        return self.tensor_val


default_observer = MinMaxObserver.with_args(quant_min=0, quant_max=127)
default_placeholder_observer, default_reuse_input_observer = PlaceholderObserver, ReuseInputObserver
default_debug_observer = RecordingObserver
default_weight_observer = MinMaxObserver.with_args(dtype=types.qint8, qscheme=per_tensor_symmetric)
weight_observer_range_neg_127_to_127 = MinMaxObserver.with_args(dtype=types.qint8, qscheme=per_tensor_symmetric, quant_min=-127,
                                                                quant_max=127, eps=2**-12)
default_per_channel_weight_observer = PerChannelMinMaxObserver.with_args(dtype=types.qint8, qscheme=per_channel_symmetric)
per_channel_weight_observer_range_neg_127_to_127 = PerChannelMinMaxObserver.with_args(
    dtype=types.qint8, qscheme=per_channel_symmetric, quant_min=-127, quant_max=127, eps=2**-12)
default_dynamic_quant_observer = PlaceholderObserver.with_args(dtype=types.quint8, quant_min=0, quant_max=255, is_dynamic=True)
default_float_qparams_observer = PerChannelMinMaxObserver.with_args(dtype=types.quint8, qscheme=per_channel_affine_float_qparams, ch_axis=0)
default_float_qparams_observer_4bit = PerChannelMinMaxObserver.with_args(dtype=types.quint4x2, qscheme=per_channel_affine_float_qparams,
                                                                         ch_axis=0)
default_fixed_qparams_range_neg1to1_observer = FixedQParamsObserver.with_args(scale=2.0 / 256.0, zero_point=128, dtype=types.quint8,
                                                                              quant_min=0, quant_max=255)
default_fixed_qparams_range_0to1_observer = FixedQParamsObserver.with_args(scale=1.0 / 256.0, zero_point=0, dtype=types.quint8, quant_min=0,
                                                                           quant_max=255)
default_symmetric_fixed_qparams_observer = default_fixed_qparams_range_neg1to1_observer
default_affine_fixed_qparams_observer = default_fixed_qparams_range_0to1_observer
