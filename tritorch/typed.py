"""PyTorch's old constructors, one for every dtype: FloatTensor, LongTensor, … They are also types, of the tensors of their dtype on the CPU
or, as `tritorch.cuda.FloatTensor`, on CUDA."""
import numpy as np

from tritorch import protocol
from tritorch.device import set_default_device
from tritorch.dtype import dtype as dtypes
from tritorch.dtype import get_default_dtype, set_default_dtype, types
from tritorch.errors import check
from tritorch.interop import as_tensor
from tritorch.ops.copy import to
from tritorch.ops.create import empty
from tritorch.own_name import ours
from tritorch.shape import Size
from tritorch.storage import UntypedStorage
from tritorch.tensor import Tensor, alias


def _constructed(name, args, dtype, device):
    """Values that are not set, of sizes, or those of a sequence or array."""
    sizes = args[0] if len(args) == 1 and isinstance(args[0], Size) else args
    if all(isinstance(size, (int, np.integer)) for size in sizes):
        return empty(sizes if args else (0,), dtype=dtype, device=device)
    check(len(args) == 1 and not isinstance(args[0], (float, str)), name, "sizes, or one sequence of values",
          args[0] if len(args) == 1 else f"{len(args)} arguments", error=TypeError)
    return as_tensor(args[0], dtype=dtype, device=device)


def new_tensor(cls, *args, device=None, **given):
    """What calling the class Tensor makes: an unset tensor of the given sizes, or one of the values of a sequence (`data`), of the default
    dtype; of a tensor another one over the same memory, history included; of a storage one of all that is in it."""
    if given:
        check(given.keys() == {"data"} and not args, "Tensor", "sizes, or data, and device", *given, error=TypeError)
        args = (given["data"],)
    if len(args) == 1 and isinstance(args[0], (Tensor, UntypedStorage)):
        if isinstance(args[0], Tensor):
            return protocol.as_subclass(args[0], cls)
        seen = empty((0,), dtype=get_default_dtype(), device=args[0].device).set_(args[0])
    else:
        seen = _constructed("Tensor", args, get_default_dtype(), device)
    if cls is Tensor:
        return seen
    protocol.check_class("Tensor", cls)
    return alias(seen, cls)


def new(self, *args, device=None):
    """An unset tensor of the given sizes, or one of the values of a sequence, of this tensor's dtype and device."""
    return _constructed("new", args, self.dtype, self.device if device is None else device)


class _Typed(type):
    """The class of the constructors; an instance of one is any tensor of its dtype on its device."""

    def __call__(cls, *args):
        return _constructed(cls.__name__, args, cls.dtype, cls.device)

    def __instancecheck__(cls, x):
        return isinstance(x, Tensor) and x.dtype is cls.dtype and x.device.type == cls.device


def _typed(name, dtype, device="cpu"):
    return _Typed(name, (), {"dtype": dtype, "device": device, "__module__": __name__, "__doc__": f"""Tensors of
    {dtype.name} on the {device} device: {name}(2, 3) is not initialised, {name}([1, 2]) has these values. New programs say
    `tritorch.empty(…, dtype=…, device=…)` and `tritorch.tensor`."""})


_KINDS = {"BFloat16": types.bfloat16, "Bool": types.bool, "Byte": types.uint8, "Char": types.int8, "Double": types.float64,
          "Float": types.float32, "Half": types.float16, "Int": types.int32, "Long": types.int64, "Short": types.int16}
NAMES = {**_KINDS, "ComplexFloat": types.complex64, "ComplexDouble": types.complex128}         # as in PyTorch, these two only name types
BFloat16Tensor, BoolTensor, ByteTensor, CharTensor, DoubleTensor, FloatTensor, HalfTensor, IntTensor, LongTensor, ShortTensor = (
    _typed(f"{kind}Tensor", dtype) for kind, dtype in _KINDS.items())
ON_CUDA = {f"{kind}Tensor": _typed(f"{kind}Tensor", dtype, "cuda") for kind, dtype in _KINDS.items()}      # what tritorch.cuda offers


def type_(input, dtype=None, non_blocking=False):
    """The values in another dtype, or of an old type (tritorch.cuda.FloatTensor or its name); without one the name of the tensor's type."""
    if dtype is None:
        kind = next((kind for kind, dtype in NAMES.items() if dtype is input.dtype), input.dtype.name)
        home = input.device.type
        return ours(f"{'' if home == 'cpu' else f'{home}.'}{kind}Tensor")
    if isinstance(dtype, str):
        home, _, kind = dtype.removesuffix("Tensor").rpartition(".")
        check(kind in NAMES and home in ("torch", "torch.cuda", "tritorch", "tritorch.cuda"), "type", "the name of a tensor type",
              repr(dtype), error=ValueError)
        return to(input, "cuda" if home.endswith("cuda") else "cpu", NAMES[kind], non_blocking=non_blocking)
    if isinstance(dtype, _Typed):
        return to(input, dtype.device, dtype.dtype, non_blocking=non_blocking)
    return to(input, types.as_dtype(dtype), non_blocking=non_blocking)


def typename(obj, /):
    """The name of a tensor's type, `tritorch.FloatTensor` for example, or that of any other object's class with its module.

    >>> import tritorch as torch; torch.typename(torch.ones(1)), torch.typename(torch.float32), torch.typename(3)
    ('tritorch.FloatTensor', 'tritorch.dtype', 'int')
    """
    if isinstance(obj, Tensor):
        return type_(obj)
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    module = getattr(named, "__module__", None)
    if named is dtypes:
        return ours("dtype")
    return named.__qualname__ if module in (None, "", "builtins") else f"{module}.{named.__qualname__}"


_moved = []                                                              # whether new tensors go to CUDA because of what follows


def set_default_tensor_type(t, /):
    """Make the dtype and device of a floating tensor type, or of the one so named, those of tensors made from Python floats. New programs
    say `set_default_dtype` and `set_default_device`.

    >>> import tritorch as torch
    >>> torch.set_default_tensor_type(torch.DoubleTensor); torch.get_default_dtype()
    tritorch.float64
    >>> torch.set_default_tensor_type("torch.FloatTensor")
    """
    if isinstance(t, str):
        home, _, kind = t.removesuffix("Tensor").rpartition(".")
        known = kind in _KINDS and home in ("torch", "torch.cuda", "tritorch", "tritorch.cuda")
        check(known, "set_default_tensor_type", "the name of a tensor type", repr(t), error=TypeError)
        dtype, device = _KINDS[kind], "cuda" if home.endswith("cuda") else "cpu"
    else:
        check(isinstance(t, _Typed), "set_default_tensor_type", "a tensor type or its name", repr(t), error=TypeError)
        dtype, device = t.dtype, t.device
    check(dtype.is_floating_point, "set_default_tensor_type", "a type of floating tensors", dtype, error=TypeError)
    set_default_dtype(dtype)
    if device == "cuda" or _moved:
        set_default_device(device)
        _moved[:] = [device] if device == "cuda" else []
