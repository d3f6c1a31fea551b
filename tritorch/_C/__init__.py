"""The few names below PyTorch's Python that programs use, as far as they mean something here.

>>> import tritorch as torch
>>> torch._C._get_tracing_state() is None
True
"""
from types import SimpleNamespace as _Namespace

from tritorch._C import _functorch
from tritorch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from tritorch.device import as_device, cpu
from tritorch.errors import LinAlgError as _LinAlgError  # noqa: F401
from tritorch.errors import OutOfMemoryError  # noqa: F401
from tritorch.generator import Generator  # noqa: F401
from tritorch.library.keys import DispatchKey, DispatchKeySet  # noqa: F401
from tritorch.library.keys import excluded as _ExcludeDispatchKeyGuard  # noqa: F401
from tritorch.nn.conversion import _parse_to as _destination
from tritorch.protocol import DisableTorchFunction, DisableTorchFunctionSubclass  # noqa: F401
from tritorch.protocol import disabled as _disabled_torch_function_impl  # noqa: F401
from tritorch.protocol import state as _seen
from tritorch.tensor import Tensor

_TensorMeta = type(Tensor)


class Graph:
    """What a graph of TorchScript would be. There are none: the name is for annotations."""


class Value:
    """What a value in such a graph would be."""


class Node:
    """What an operation in such a graph would be."""


def _get_tracing_state():
    """Always None: nothing is traced."""


def _are_functorch_transforms_active():
    """Whether a function is run by `vmap` or in forward mode. Reverse mode gives functions plain tensors, of which nobody can tell."""
    return any(True for _ in _functorch._levels())


def _get_privateuse1_backend_name():
    """The name of the device of others, which there is none of here."""
    return "privateuseone"


def _log_api_usage_once(event):
    """Nothing: no one counts what is used."""


def _get_default_device():
    """The type of the device of new tensors."""
    return as_device().type


def _get_accelerator():
    """The device of the accelerator, or of the CPU without one."""
    from tritorch.accelerator import current_accelerator

    return current_accelerator() or cpu


def _is_torch_function_enabled():
    """Whether classes are asked about calls in this thread: see DisableTorchFunctionSubclass."""
    return not _seen.off


def _is_torch_function_all_disabled():
    """Whether neither classes nor modes are asked: see DisableTorchFunction."""
    return _seen.off == 2


def _parse_to(*args, **kwargs):
    """The arguments of `to` as (device, dtype, non_blocking, memory_format)."""
    device, dtype, rest = _destination(*args, **kwargs)
    return None if device is None else as_device(device), dtype, rest.get("non_blocking", False), rest.get("memory_format")


def _AutoDispatchBelowAutograd():
    """Inside of `with`: operators of `tritorch.library` run the function for the device, without what is registered for autograd."""
    from tritorch.library.overload import below_autograd

    return below_autograd()


def _cuda_getCurrentRawStream(device):
    """The handle of the current stream of a device, by its index."""
    from tritorch.cuda.stream import current_stream

    return current_stream(device).cuda_stream


def _ignored(switch):
    """Nothing: there is no TorchScript to switch."""


def _jit_can_fuse_on_cpu():
    """Always False."""
    return False



_jit_set_profiling_executor = _jit_set_profiling_mode = _jit_set_texpr_fuser_enabled = _ignored
_jit_set_nvfuser_guard_mode = _jit_override_can_fuse_on_cpu = _jit_override_can_fuse_on_gpu = _jit_set_nvfuser_enabled = _ignored
_jit_can_fuse_on_gpu = _jit_can_fuse_on_cpu
_nn = _Namespace(_parse_to=_parse_to, flatten_dense_tensors=_flatten_dense_tensors, unflatten_dense_tensors=_unflatten_dense_tensors)
