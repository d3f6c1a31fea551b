"""What operators of dense tensors do with sparse ones. A door that finds a sparse tensor among its arguments asks `instead` (see
`errors.OtherLayout`); an operator that is not in the table says that it is not made for them."""
from tritorch.autograd.modes import state
from tritorch.dispatch import registry
from tritorch.errors import OtherLayout, check, sentence
from tritorch.sparse import elementwise, products, reductions, shaping
from tritorch.sparse.base import Sparse
from tritorch.tensor import Tensor


def _copy_to(input, dtype, device, strides=None, non_blocking=False):
    return input.to(device, dtype, non_blocking=non_blocking, copy=True)


TABLE = {
    "add": elementwise.add, "sub": elementwise.sub, "mul": elementwise.mul, "div_true": elementwise.divided("true"),
    "floor_divide": elementwise.divided("floor"), "trunc_divide": elementwise.divided("trunc"), "pow": elementwise.power,
    "sum": reductions.total, "vector_norm": reductions.vector_norm, "any": reductions.any_of, "matmul": products.matmul,
    "addmm": products.addmm, "linear": products.linear,
    "transpose": shaping.transpose, "permute_dims": shaping.permute_dims, "unsqueeze": shaping.unsqueeze, "select": shaping.select,
    "index_select": shaping.index_select, "concatenated": shaping.concatenated,
    "empty_like": elementwise.empty_like, "copy_to": _copy_to,
    **{name: elementwise.unary(registry[name]) for name in elementwise.ZERO_KEEPING},
    **{name: elementwise.linear(name) for name in elementwise.LINEAR},
}


def instead(door, args, out=None):
    """The call of a door with sparse arguments, into `out` if there is one."""
    name = door.__name__
    found = TABLE.get(name)
    if out is not None and not isinstance(out, tuple) and not isinstance(out, Sparse) and name in ("add", "sub") and out is args[0]:
        return add_in_place(out, *args[1:], sign=1 if name == "add" else -1)
    if out is not None and name == "fill" and args[0] is out and not isinstance(args[1], Tensor) and args[1] == 0:
        return out.zero_()
    if found is None:
        layouts = ", ".join(dict.fromkeys(str(a.layout) for a in _tensors(args) if isinstance(a, Sparse))) or "sparse"
        raise NotImplementedError(sentence(name, "strided tensors", f"one of layout {layouts}", use="x.to_dense()")) from None
    made = found(*args)
    return made if out is None else delivered(name, out, made)


def _tensors(args):
    for a in args:
        if isinstance(a, Tensor):
            yield a
        elif isinstance(a, tuple):
            yield from _tensors(a)


def add_in_place(out, other, alpha=1, sign=1):
    """out + alpha · other written into a strided tensor, in the rows that the sparse one has."""
    fits = out.shape == other.shape and other.dtype.category <= out.dtype.category
    if fits and not (state.grad and (out.requires_grad or other.requires_grad)):
        return elementwise.add_into(out, other, alpha * sign)
    return out.copy_(elementwise.add(out, other, alpha * sign))


def delivered(name, out, made):
    """A result written into a destination, which takes the place of what it was."""
    check(isinstance(out, Tensor), name, "a tensor as destination", type(out).__name__, error=TypeError)
    if not isinstance(out, Sparse) and (not isinstance(made, Sparse) or name == "mul"):
        return out.copy_(made.to_dense())
    check(type(out) is type(made) and out.layout is made.layout, name, f"a destination of layout {made.layout}", out.layout)
    check(made.dtype.category <= out.dtype.category, name, f"a destination that {made.dtype} can be cast to", out.dtype)
    return out.become(made.to(out.dtype))


OtherLayout.instead = staticmethod(instead)
