"""Moving and converting a module: the same Parameter objects get new memory, so that optimizers keep working."""
import warnings

from tritorch import __future__ as future
from tritorch.autograd.modes import no_grad
from tritorch.device import device as Device
from tritorch.dtype import as_dtype, bfloat16, float16, float32, float64
from tritorch.dtype import dtype as Dtype
from tritorch.nn.parameter import Parameter
from tritorch.ops.create import empty_like
from tritorch.tensor import Tensor
from tritorch.utils.swapping import swap_tensors


def typename(value):
    """The name of a value's type as error messages show it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Conversion:
    """The part of `Module` that changes the memory of all its tensors."""

    def _apply(self, fn, recurse=True):
        for module in self.children() if recurse else ():
            module._apply(fn)
        with no_grad():
            for name, parameter in self._parameters.items():
                if parameter is not None:                                # the object stays the same: optimizers hold it
                    data, grad = fn(parameter), parameter.grad           # where there is no memory for one of them, nothing has changed
                    grad = None if grad is None else fn(grad).requires_grad_(grad.requires_grad)
                    if future.get_swap_module_params_on_conversion() or future.get_overwrite_module_params_on_conversion():
                        self._renew(name, parameter, data, grad)
                    else:
                        parameter.data, parameter.grad = data, grad
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    vars(self)[name] = self._buffers[name] = fn(buffer)
        return self

    def _renew(self, name, parameter, data, grad):
        """Make a new parameter of what a conversion gave, in the place of the old one or swapped with it: see torch.__future__."""
        fresh, old = Parameter(data, parameter.requires_grad), parameter.grad
        if not future.get_swap_module_params_on_conversion():
            fresh.grad = grad
            self._parameters[name] = fresh
            return
        try:
            swap_tensors(parameter, fresh)
            if grad is not None:
                swap_tensors(old, grad)
                parameter.grad = old
        except RuntimeError as error:
            raise RuntimeError(f"{type(self).__name__}: expected a parameter {name} that can be swapped, got {error}") from error

    def to(self, *args, **kwargs):
        """Move and convert parameters and buffers in place: `to(device)`, `to(dtype)`, `to(tensor)`; only floating and complex ones change
        dtype, complex ones to a real dtype too, which keeps their real parts: `float()` and its like leave them as they are.
        `to(memory_format=torch.channels_last)` is for those of 4 dims (channels_last_3d: of 5): the weights of convolutions.

        >>> import tritorch as torch
        >>> torch.nn.Linear(3, 2).to(torch.float64).weight.dtype
        tritorch.float64
        """
        device, dtype, rest = _parse_to(*args, **kwargs)
        if dtype is not None and not dtype.has_gradients:
            raise TypeError(f"Module.to: expected a floating or complex dtype, got {dtype}")
        if dtype is not None and dtype.is_complex:
            warnings.warn(f"Module.to: not every module works with {dtype}, and real parameters become complex ones, too", stacklevel=2)
        wanted = rest.pop("memory_format", None)

        def convert(t):
            kind = dtype if dtype and t.dtype.has_gradients else t.dtype
            return t.to(device=device or t.device, dtype=kind, memory_format=wanted if t.ndim in (4, 5) else None, **rest)

        return self._apply(convert)

    def cuda(self, device=None):
        """Move all parameters and buffers to a GPU."""
        return self._apply(lambda t: t.cuda(device))

    def cpu(self):
        """Move all parameters and buffers to the CPU."""
        return self._apply(lambda t: t.cpu())

    def type(self, dst_type):
        """Convert all parameters and buffers."""
        return self._apply(lambda t: t.type(dst_type))

    def _real_to(self, dtype):
        return self._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)

    def float(self):
        """Convert floating parameters and buffers to float32."""
        return self._real_to(float32)

    def double(self):
        """Convert floating parameters and buffers to float64."""
        return self._real_to(float64)

    def half(self):
        """Convert floating parameters and buffers to float16."""
        return self._real_to(float16)

    def bfloat16(self):
        """Convert floating parameters and buffers to bfloat16."""
        return self._real_to(bfloat16)

    def to_empty(self, *, device, recurse=True):
        """Unset parameters and buffers of the same shapes and strides on a device, for a module that was made on meta.

        >>> import tritorch as torch
        >>> torch.nn.Linear(3, 2, device="meta").to_empty(device="cpu").weight.shape
        tritorch.Size([2, 3])
        """
        return self._apply(lambda t: empty_like(t.detach(), device=device), recurse)

    def share_memory(self):
        """Move all parameters, their gradients and all buffers to where other processes see them: `Tensor.share_memory_`.

        >>> import tritorch as torch
        >>> torch.nn.Linear(3, 2).share_memory().weight.is_shared()
        True
        """
        for x in (*self.parameters(), *self.buffers()):
            x.share_memory_()
            if x.grad is not None:
                x.grad.share_memory_()
        return self


def _parse_to(*args, device=None, dtype=None, **rest):
    """The device, dtype and other arguments of `to`."""
    for value in args:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, (Dtype, type)):
            dtype = as_dtype(value)
        elif isinstance(value, bool):
            rest["non_blocking"] = value
        elif isinstance(value, (str, int, Device)):
            device = value
        elif value is not None:
            raise TypeError(f"to: expected a device, a dtype or a tensor, got {typename(value)}")
    return device, dtype, rest
