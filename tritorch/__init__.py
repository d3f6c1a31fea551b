"""tritorch: PyTorch's imperative style on hand-written Triton kernels, without torch.

>>> import tritorch as torch
>>> x = torch.ones(2, 3, requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([[2., 2., 2.],
        [2., 2., 2.]])
"""
from tritorch import autograd, cuda, dispatch
from tritorch.dtype import types as _types
from tritorch.autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from tritorch.autograd.modes import is_inference_mode_enabled
from tritorch.device import device, get_default_device, set_default_device
from tritorch.dispatch import op
from tritorch.dtype import can_cast, dtype, finfo, get_default_dtype, iinfo, promote_types, result_type, set_default_dtype
from tritorch.errors import OutOfMemoryError
from tritorch.ops import methods as _methods
from tritorch.shape import Size
from tritorch.tensor import Tensor

for _kind in _types.ALL:
    globals()[_kind.name] = _kind
double, float, half, long, int, short = _types.double, _types.float, _types.half, _types.long, _types.int, _types.short
globals().update(_methods.surface)
