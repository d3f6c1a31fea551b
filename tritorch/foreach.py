"""torch._foreach_*: one operator on every tensor of a list, as optimizers outside PyTorch call them. Here it is a loop."""
from tritorch.ops.statistics import vector_norm
from tritorch.tensor import Tensor

UNARY = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sigmoid
    sign sin sinh sqrt tan tanh trunc"""
MORE = "add addcdiv addcmul clamp_max clamp_min div lerp maximum minimum mul pow sub"
BOUNDS = {"maximum": "clamp_min", "minimum": "clamp_max"}                # with a number


def _one(name, x, args, keywords):
    """The operator on one tensor of the list."""
    if name.rstrip("_") in ("addcdiv", "addcmul") and len(args) == 3:
        args, keywords = args[:2], {"value": args[2]}
    if args and not isinstance(args[0], Tensor):
        name = BOUNDS.get(name.rstrip("_"), name.rstrip("_")) + "_" * name.endswith("_")
    if hasattr(Tensor, name) or not name.endswith("_"):
        return getattr(x, name)(*args, **keywords)
    return x.copy_(getattr(x, name[:-1])(*args, **keywords))


def _each(name):
    def f(self, *args, **keywords):
        if not isinstance(self, (list, tuple)):                          # _foreach_pow(2, tensors)
            return [self**x for x in args[0]]
        rows = zip(self, *[a if isinstance(a, (list, tuple)) else [a] * len(self) for a in args], strict=True)
        made = [_one(name, x, more, keywords) for x, *more in rows]
        return None if name.endswith("_") else made

    f.__name__ = f.__qualname__ = "_foreach_" + name
    f.__doc__ = f"`{name}` of every tensor of a list; other arguments are one for all, or lists."
    return f


def _foreach_copy_(self, src, non_blocking=False):
    """Copy every tensor of `src` into its like."""
    for x, y in zip(self, src, strict=True):
        x.copy_(y, non_blocking)


def _foreach_zero_(self):
    """Fill every tensor with zeros."""
    for x in self:
        x.zero_()


def _foreach_norm(self, ord=2, dtype=None):
    """The norm of every tensor."""
    return [vector_norm(x, ord, dtype=dtype) for x in self]


globals().update({f"_foreach_{name}{end}": _each(name + end) for name in (UNARY + " " + MORE).split() for end in ("", "_")})
