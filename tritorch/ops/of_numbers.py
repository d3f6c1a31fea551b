"""Calls of add, sub, mul and floor_divide that PyTorch answers beside those that their operators are for: two numbers give a tensor of no
dims, and x.add_(alpha, other) is the order that optimizers of before write.

>>> import tritorch as torch; torch.add(2, 3), torch.mul(2.0, 3)
(tensor(5), tensor(6.))
"""
import numbers
import warnings

from tritorch.errors import answers, variables
from tritorch.ops import pointwise
from tritorch.ops.create import tensor
from tritorch.tensor import Tensor

OPERATORS = pointwise.add, pointwise.sub, pointwise.mul, pointwise.floor_divide


def answer(frame):
    """Of a call that failed for its operands: (what it returns after all,). So no other call has to look for them."""
    values = variables(frame)
    door, args, out = values.get("door"), values.get("args", ()), values.get("out")
    if values.get("f") in (pointwise.add, pointwise.sub):                # x.add_(…) and x.sub_(…), see methods.in_place
        door, args, out = values["f"], (values["self"], *args), values["self"]
    if door in (pointwise.add, pointwise.sub) and len(args) == 3 and not isinstance(args[1], Tensor) and isinstance(args[2], Tensor):
        # of one element there is no error, and none is needed: alpha · other is other · alpha
        warnings.warn(f"{door.__name__}: (alpha, other) is the order of old programs; write (other, alpha=…)", stacklevel=5)
        return (door(args[0], args[2], args[1]) if out is None else door.into(out, args[0], args[2], args[1]),)
    if door not in OPERATORS or len(args) < 2 or not all(isinstance(v, numbers.Number) for v in args[:2]):
        return None
    args = tensor(args[0]), *args[1:]
    return (door(*args) if out is None else door.into(out, *args, **values["kw"]),)


answers.append(answer)
