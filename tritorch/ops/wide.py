"""Functions that take no half types: which those are is PyTorch's choice."""
import functools

from tritorch.errors import check, explained, tensors
from tritorch.tensor import Tensor


def wide_only(op):
    """The public function of an elementwise operator that refuses tensors of half types. It takes `out=`, as the operator does."""
    @explained
    @functools.wraps(op)
    def function(*args, **keywords):
        if not any(isinstance(x, Tensor) for x in (*args, *keywords.values())):
            tensors(op.__name__, **{op.names[0]: args[0] if args else None})
        for name, x in (*zip(op.names, args), *keywords.items()):
            if isinstance(x, Tensor) and name != "out":
                check(not x.dtype.is_floating_point or x.dtype.itemsize > 2, op.__name__, "float32, float64 or integers", x.dtype,
                      use="x.float()", error=NotImplementedError)
        return op(*args, **keywords)

    return function
