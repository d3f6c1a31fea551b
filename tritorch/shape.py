"""Pure functions on shapes and strides: broadcasting, view rules, dims. Strides count elements, not bytes."""
import sys
from functools import lru_cache
from math import prod
from operator import index

from tritorch.errors import check, sentence, whole_numbers
from tritorch.own_name import ours


class Size(tuple):
    """The shape of a tensor: a tuple with `numel`. A part of it, `shape[1:]`, is a plain tuple: to give a Size makes every `shape[0]` a
    call of Python, several times as slow. Under `tritorch.as_torch()` it is a Size, since packages ask `x.shape[:-2].numel()`.

    >>> import tritorch; tritorch.ones(2, 3).shape
    tritorch.Size([2, 3])
    >>> tritorch.ones(2, 3).shape + (1,)
    tritorch.Size([2, 3, 1])
    """

    __slots__ = ()

    def numel(self):
        """Number of elements."""
        return prod(self)

    def __repr__(self):
        return ours(f"Size({list(self)})")

    def __format__(self, spec):
        if sys._getframe(1).f_globals.get("__name__", "").startswith("tritorch."):
            return tuple.__repr__(self)                                  # our own sentences speak of (2, 3)
        return object.__format__(self, spec)

    def __add__(self, other):
        return Size(tuple.__add__(self, other))

    def __radd__(self, other):
        return Size(tuple.__add__(other, self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times):
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __reduce__(self):
        return Size, (tuple(self),)

    def _part(self, index):
        """What `as_torch` puts in the place of `__getitem__`."""
        found = tuple.__getitem__(self, index)
        return Size(found) if type(index) is slice else found


numel = prod
_layouts = {}
_INT = {int}


def layout(shape):
    """(Size, contiguous strides, number of elements) of a shape; remembered, since programs use few shapes."""
    found = _layouts.get(shape)
    if found is None:
        if len(_layouts) > 8192:
            _layouts.clear()
        shape = whole_numbers("empty", "sizes", shape)
        found = Size(shape), contiguous_strides(shape), prod(shape)
        check(min(shape, default=0) >= 0, "empty", "sizes that are not negative", shape)
        _layouts[found[0]] = found
    return found


def contiguous_strides(shape):
    """Row-major strides. Sizes of 0 and 1 count as 1, as in PyTorch."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n if n > 1 else 1
    return tuple(out[::-1])


def is_contiguous(shape, strides):
    """Whether the elements lie in row-major order without gaps."""
    if strides == layout(shape)[1]:
        return True
    step = 1
    for n, s in zip(reversed(shape), reversed(strides)):
        if n != 1:
            if s != step:
                return prod(shape) == 0
            step *= n
    return True


def same_strides(shape, a, b):
    """Whether both strides reach the same elements: those of dims of size 1 say nothing."""
    return a == b or all(s == t or n == 1 for n, s, t in zip(shape, a, b))


def memory_order(strides):
    """The dims, outermost in memory first."""
    return sorted(range(len(strides)), key=lambda d: -strides[d])


def is_dense(shape, strides):
    """Whether the elements fill a block of memory exactly, in some order of the dims."""
    step = 1
    for s, n in sorted((s, n) for n, s in zip(shape, strides) if n != 1):
        if s != step:
            return prod(shape) == 0
        step *= n
    return True


def ordered_strides(shape, order):
    """Strides without gaps for dims in this order, innermost first."""
    out, step = [0] * len(shape), 1
    for d in order:
        out[d] = step
        step *= max(shape[d], 1)
    return tuple(out)


def extent(shape, strides):
    """Number of elements from the first to the last that the layout touches; 0 when empty."""
    last = 0
    for n, s in zip(shape, strides):
        if n == 0:
            return 0
        last += (n - 1) * s
    return last + 1


@lru_cache(maxsize=4096)
def broadcast_shapes(op, *shapes):
    """The common shape, or the sentence that names the shapes.

    >>> broadcast_shapes("add", (3, 1), (4,))
    (3, 4)
    """
    ndim = max(map(len, shapes))
    out = [1] * ndim
    for shape in shapes:
        lead = ndim - len(shape)
        for i, n in enumerate(shape):
            if n != 1:
                if out[lead + i] != n and out[lead + i] != 1:
                    raise RuntimeError(f"{op}: expected shapes that broadcast, got {' and '.join(str(tuple(s)) for s in shapes)}")
                out[lead + i] = n
    return tuple(out)


def broadcast_strides(shape, strides, to):
    """Strides of the same memory seen in the broadcast shape `to`."""
    lead = len(to) - len(shape)
    return (0,) * lead + tuple([0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, to[lead:])])


def wrap_dim(dim, ndim, op):
    """A dim in [0, ndim); 0-dim tensors accept -1 and 0."""
    bound = ndim or 1
    if dim.__class__ is not int:
        dim = _whole_dim(dim, op)
    if not -bound <= dim < bound:
        raise IndexError(f"{op}: expected a dim in [{-bound}, {bound - 1}], got {dim}")
    return dim + bound if dim < 0 else dim


def _whole_dim(dim, op):
    """A dim that is no int, but stands for one: numpy's, and tensors of one element; no bool."""
    try:
        if not isinstance(dim, bool):
            return index(dim)
    except (TypeError, RuntimeError):                                    # a tensor of more than one element
        pass
    raise TypeError(sentence(op, "an int as dim", repr(dim)))


def own_dim(dim, shape, op):
    """As `wrap_dim`, where a tensor of no dims will not do."""
    check(len(shape) > 0, op, "a tensor of at least one dim", "0 dims", error=IndexError)
    return wrap_dim(dim, len(shape), op)


def wrap_dims(dims, ndim, op):
    """Sorted dims out of None (all), an int or a sequence; a dim named twice is an error."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, int):
        dim = wrap_dim(dims, ndim, op)
        return (dim,) if ndim else ()
    if hasattr(dims, "__index__"):                                       # numpy's ints, tensors of one element
        return wrap_dims(whole_numbers(op, "dims", (dims,))[0], ndim, op)
    out = sorted([wrap_dim(d, ndim, op) for d in whole_numbers(op, "dims", dims)])
    check(len(set(out)) == len(out), op, "each dim once", tuple(dims))
    return tuple(out) if ndim else ()


def infer_shape(shape, count, op):
    """Fill in the one -1 of a shape from the number of elements."""
    if type(shape) is Size or type(shape) is tuple and {*map(type, shape)} == _INT:
        known = _layouts.get(shape)
        if known is not None and known[2] == count:                      # a shape that some tensor has had
            return known[0]
    shape = whole_numbers(op, "sizes", shape)
    if -1 in shape:
        known = -prod(shape)
        fits = shape.count(-1) == 1 and known > 0 and count % known == 0
        if not fits:
            raise RuntimeError(sentence(op, f"a shape whose one -1 can be told for {count} elements", shape))
        return tuple([count // known if n == -1 else n for n in shape])
    if prod(shape) != count or min(shape, default=0) < 0:
        raise RuntimeError(sentence(op, f"a shape of {count} elements", shape))
    return shape


def view_strides(shape, strides, new_shape):
    """Strides of the same memory under `new_shape`, or None if only a copy can have it.

    Neighbouring dims that follow each other without gaps form a chunk; the new dims must divide the chunks.
    """
    if strides == layout(shape)[1] or is_contiguous(shape, strides) or 0 in new_shape:
        return layout(new_shape)[1]
    chunks = []                                                          # (elements, step), outermost first
    for n, s in zip(shape, strides):
        if n == 1:
            continue
        if chunks and chunks[-1][1] == n * s:
            chunks[-1] = (chunks[-1][0] * n, s)
        else:
            chunks.append((n, s))
    out, left, step = [], 1, 1
    for n in reversed(new_shape):
        if left == 1 and n != 1:
            left, step = chunks.pop() if chunks else (1, 1)
        if n != 1:
            if left % n:
                return None
            left //= n
        out.append(step)
        step *= n
    return tuple(out[::-1]) if left == 1 and not chunks else None


def cdiv(a, b):
    """a / b rounded up."""
    return -(-a // b)


def next_power_of_2(n):
    """The smallest power of two that is at least n (and at least 1)."""
    return 1 << max(n - 1, 0).bit_length()
