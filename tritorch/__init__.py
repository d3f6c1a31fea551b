"""tritorch: PyTorch's imperative style on hand-written Triton kernels, without torch.

>>> import tritorch as torch
>>> x = torch.ones(2, 3, requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([[2., 2., 2.],
        [2., 2., 2.]])
"""
import importlib
import os as _os

from tritorch import autograd, cuda, dispatch, surface
from tritorch.autograd import (
    enable_grad,
    inference_mode,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from tritorch.dtype import (
    bfloat16,
    can_cast,
    cdouble,
    cfloat,
    complex64,
    complex128,
    double,
    finfo,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    get_default_dtype,
    half,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    long,
    promote_types,
    result_type,
    set_default_dtype,
    short,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tritorch.dtype import types as _types
from tritorch.errors import OutOfMemoryError
from tritorch.errors import answered as _answered
from tritorch.generator import Generator
from tritorch.interop import as_tensor, asarray, from_dlpack, from_numpy, frombuffer
from tritorch.ops import methods
from tritorch.precision import get_float32_matmul_precision, set_float32_matmul_precision
from tritorch.printing import get_printoptions, set_printoptions
from tritorch.shape import Size
from tritorch.tensor import Tensor
from tritorch.torch_version import __version__

surface.attach()
globals().update(methods.surface)                                        # the functions of the operators' table
float, int, bool = _types.float, _types.int, _types.bool                 # the names of PyTorch, which shadow Python's here alone
inf, nan, pi, e, newaxis = _types.math.inf, _types.math.nan, _types.math.pi, _types.math.e, None

# `tritorch.dtype`, `device`, `layout` and `memory_format` are the classes, as in PyTorch: bound last, over the modules of the same names
from tritorch.device import device, get_default_device, set_default_device  # noqa: E402
from tritorch.dispatch import op  # noqa: E402
from tritorch.dtype import dtype  # noqa: E402
from tritorch.layout import jagged, layout, sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr, strided  # noqa: E402
from tritorch.memory_format import channels_last, channels_last_3d, contiguous_format, memory_format, preserve_format  # noqa: E402


def is_tensor(obj):
    """Whether obj is a Tensor.

    >>> import tritorch as torch
    >>> torch.is_tensor(torch.ones(2)), torch.is_tensor([1.0])
    (True, False)
    """
    return isinstance(obj, Tensor)


def is_floating_point(input):
    """Whether the dtype is a floating one.

    >>> import tritorch as torch
    >>> torch.is_floating_point(torch.tensor([1, 2]))
    False
    """
    try:
        return input.dtype.is_floating_point
    except AttributeError as error:
        return _answered(error)


def is_complex(input):
    """Whether the dtype is a complex one.

    >>> import tritorch as torch
    >>> torch.is_complex(torch.tensor([1j]))
    True
    """
    try:
        return input.dtype.is_complex
    except AttributeError as error:
        return _answered(error)


def numel(input):
    """Number of elements.

    >>> import tritorch as torch
    >>> torch.numel(torch.ones(2, 3))
    6
    """
    try:
        return input.numel()
    except AttributeError as error:
        return _answered(error)


def is_storage(obj):
    """Whether obj is the memory of a tensor."""
    from tritorch.storage import Storage, UntypedStorage

    return isinstance(obj, (Storage, UntypedStorage))


def __getattr__(name):
    """Packages and functions that load when they are first asked for."""
    if name in surface.PACKAGES:
        return importlib.import_module("tritorch." + name)
    home = "foreach" if name.startswith(surface.EVERY) else surface.LAZY.get(name)
    if home:
        value = globals()[name] = getattr(importlib.import_module("tritorch." + home), name)
        return value
    raise AttributeError(f"module 'tritorch' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *surface.PACKAGES, *surface.LAZY})


if _os.environ.get("TRITORCH_CPU") not in (None, "", "numpy"):
    from tritorch.cpu.compiled import from_environment as _from_environment

    _from_environment()
