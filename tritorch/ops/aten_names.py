"""`tritorch.ops.aten`: the operators that are here, under PyTorch's names for them."""
import functools
import importlib
import math

from tritorch.dispatch import registry
from tritorch.ops import aten_attention, methods
from tritorch.ops.namespaces import OpNamespace, OpOverload, OpOverloadPacket
from tritorch.tensor import Tensor

# what overloads are called; which of them an operator has is not kept: all are the same function here
OVERLOADS = frozenset("""
    default out Tensor Scalar int float bool complex str input Tensor_out Scalar_out Tensor_Scalar Scalar_Tensor Tensor_Tensor
    Tensor_Scalar_out Scalar_Tensor_out Tensor_Tensor_out Scalar_Scalar dim dims dim_IntList dim_DimnameList dim_max dim_min dim_values
    dim_value int_out IntList_out correction unbiased dim_dtype dtype dtype_out dim_out values values_stable stable other unary_out self
    Tensor_mode Scalar_mode out_mode ScalarOpt_dim ScalarOpt_dtype ScalarOpt_dim_dtype mode src value reduce value_reduce two generator
    low low_generator names names_out start start_step start_out n m using_ints sections indices dtype_layout device other_scalar
    self_scalar other_scalar_out self_scalar_out x_scalar n_scalar p Tensor_int vec padding grad_input memory_format from to any all
    LongTensor Sequence ord_str U float_Tensor Tensor_float float_float size_list scale_list periodic beta reduction source_Tensor Int
    index array data list t""".split())
MODULES = {"linalg_": "linalg", "fft_": "fft", "special_": "special"}    # PyTorch has these functions under longer names
ALIKE = """celu channel_shuffle cosine_similarity glu hardsigmoid hardswish leaky_relu linear mish one_hot pad pairwise_distance pdist
    pixel_shuffle pixel_unshuffle relu6 scaled_dot_product_attention selu silu softplus gelu prelu threshold hardtanh hardshrink softshrink
    rrelu bilinear""".split()                                            # functions of nn.functional with PyTorch's arguments
UNLIKE = {
    "_softmax": lambda input, dim, half_to_float=False: registry["softmax"](input.float() if half_to_float else input, dim),
    "_log_softmax": lambda input, dim, half_to_float=False: registry["log_softmax"](input.float() if half_to_float else input, dim),
    "_to_copy": lambda input, *, dtype=None, device=None, non_blocking=False, **rest: input.to(
        dtype=dtype, device=device, non_blocking=non_blocking, copy=True),
    "_unsafe_view": lambda input, size: input.reshape(size).clone(),
    "lift_fresh": lambda input: input,
    "lift_fresh_copy": lambda input: input.clone(),
    "sym_size": lambda input, dim: input.shape[dim],
    "alias": lambda input: input.view_as(input),
    "detach": lambda input: input.detach(),
    "_pin_memory": lambda input, device=None: input.pin_memory(),
    "index": lambda input, indices: input[tuple([slice(None) if i is None else i for i in indices])],
    "slice": lambda input, dim=0, start=None, end=None, step=1: input[(slice(None),) * (dim % input.ndim) + (slice(start, end, step),)],
    "_sparse_addmm": lambda input, mat1, mat2, *, beta=1, alpha=1: input.addmm(mat1, mat2, beta=beta, alpha=alpha),
    "sigmoid_backward": lambda grad_output, output: registry["sigmoid_backward"](grad_output, output),
    "tanh_backward": lambda grad_output, output: registry["tanh_backward"](grad_output, output),
    "silu_backward": lambda grad_output, input: registry["silu_backward"](grad_output, input),
    "threshold_backward": lambda grad_output, input, threshold: grad_output * (input > threshold),
    "_softmax_backward_data": lambda grad_output, output, dim, input_dtype: registry["softmax_backward"](
        grad_output, output, dim).to(input_dtype),
    "_log_softmax_backward_data": lambda grad_output, output, dim, input_dtype: registry["log_softmax_backward"](
        grad_output, output, dim).to(input_dtype),
    "_safe_softmax": lambda self, dim, dtype=None: methods.surface["where"](
        (self == -math.inf).all(dim, True), 0.0, registry["softmax"](self, dim, dtype)),
    "native_dropout_backward": lambda grad_output, mask, scale: grad_output * mask * scale,
    "log_sigmoid": lambda input: registry["logsigmoid"](input),
    "_scaled_dot_product_flash_attention": aten_attention.flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu": aten_attention.flash_attention_for_cpu,
}


class AtenNamespace(OpNamespace):
    """Looks a name up when it is first asked for."""

    def __getattr__(self, name):
        function = None if name.startswith("__") else named(name)
        if function is None:
            raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{name}'")
        packet = AtenPacket(name, function)
        setattr(self, name, packet)
        return packet


class AtenPacket(OpOverloadPacket):
    """All overloads of an operator: the same function under each name."""

    def __init__(self, name, function):
        super().__init__("aten", name)
        self._overloads["default"], self.__doc__ = OpOverload("aten", name, "default", function), function.__doc__

    def __getattr__(self, name):
        if name in OVERLOADS and name not in self._overloads:
            self._overloads[name] = OpOverload("aten", self.__name__, name, self._overloads["default"].function)
        return super().__getattr__(name)

    def __call__(self, /, *args, **kwargs):
        return self._overloads["default"](*args, **kwargs)


@functools.cache
def method_names():
    """The names of Tensor's methods that are operators."""
    both = [name for table in (methods.METHODS, methods.BOTH) for names in table.values() for name in names.split()]
    written = [f"{name}_" for table in (methods.IN_PLACE, methods.IN_PLACE_VIEWS) for names in table.values() for name in names.split()]
    return {*both, *written, "detach", "detach_", "set_", "resize_"}


def named(name):
    """The function of an operator under PyTorch's name, None where there is none."""
    if name in UNLIKE:
        return UNLIKE[name]
    if name in methods.surface:
        return methods.surface[name]
    if name in method_names():
        return getattr(Tensor, name)
    top = importlib.import_module("tritorch")
    home = top.surface.LAZY.get(name, "")
    if home in ("native", "recurrent") or home.startswith("ops."):
        return getattr(top, name)
    if name in ALIKE:
        return getattr(importlib.import_module("tritorch.nn.functional"), name, None)
    for head, module in MODULES.items():
        if name.startswith(head):
            return getattr(importlib.import_module("tritorch." + module), name.removeprefix(head), None)

