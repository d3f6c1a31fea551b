"""PyTorch's old constructors, one for every dtype: FloatTensor, LongTensor, … They are also types, of the CPU tensors of their dtype."""
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.interop import as_tensor
from tritorch.ops.create import empty
from tritorch.tensor import Tensor


class _Typed(type):
    """The class of the constructors; an instance of one is any CPU tensor of its dtype."""

    def __call__(cls, *args):
        sizes = args[0] if len(args) == 1 and hasattr(args[0], "numel") and not isinstance(args[0], Tensor) else args
        if all(isinstance(size, int) for size in sizes):
            return empty(sizes or (0,), dtype=cls.dtype)
        check(len(args) == 1, cls.__name__, "sizes, or one sequence of values", f"{len(args)} arguments", error=TypeError)
        return as_tensor(args[0], dtype=cls.dtype)

    def __instancecheck__(cls, x):
        return isinstance(x, Tensor) and x.dtype is cls.dtype and x.device.type == "cpu"


def _typed(name, dtype):
    return _Typed(name, (), {"dtype": dtype, "__module__": __name__, "__doc__": f"""Tensors of {dtype.name} on the CPU: {name}(2, 3) is not
    initialised, {name}([1, 2]) has these values. New programs say `tritorch.empty(…, dtype=…)` and `tritorch.tensor`."""})


BFloat16Tensor = _typed("BFloat16Tensor", types.bfloat16)
BoolTensor = _typed("BoolTensor", types.bool)
ByteTensor = _typed("ByteTensor", types.uint8)
CharTensor = _typed("CharTensor", types.int8)
DoubleTensor = _typed("DoubleTensor", types.float64)
FloatTensor = _typed("FloatTensor", types.float32)
HalfTensor = _typed("HalfTensor", types.float16)
IntTensor = _typed("IntTensor", types.int32)
LongTensor = _typed("LongTensor", types.int64)
ShortTensor = _typed("ShortTensor", types.int16)
