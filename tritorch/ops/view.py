"""Views of all elements under another shape or dtype: operators whose body returns a Tensor. They run nothing, on any device."""
import operator
from functools import lru_cache

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import answered, check, no_sizes, refuse_misuse, sentence, whole_numbers
from tritorch.shape import Size, infer_shape, layout, view_strides, wrap_dim
from tritorch.tensor import own, strided

# What follows from sizes, strides and ints alone is remembered: programs look at their tensors in few ways, and a look takes half as long.
geometry, INTS = lru_cache(4096), {int}


def same_memory(x, shape, strides, offset=None):
    return strided(x.storage, shape, strides, x.offset if offset is None else offset, x.dtype)


def as_sizes(sizes):
    """Sizes given one by one or as one sequence."""
    if len(sizes) == 1 and sizes[0].__class__ is not int and not hasattr(sizes[0], "__index__"):
        try:
            return tuple(sizes[0])
        except TypeError:
            raise TypeError(sentence("view", "ints or a sequence of ints as sizes", repr(sizes[0]))) from None
    if not sizes:
        raise TypeError(no_sizes)
    return sizes


# ------------------------------------------------------------------ the same elements under another shape
@op
def view_as_shape(x, shape):
    """The same memory under another shape, where its strides allow it.

    >>> import tritorch as torch; torch.arange(6).view(2, -1).shape
    tritorch.Size([2, 3])
    """
    shape, strides = _viewed("view", x.shape, x.strides, _ints("view", shape))
    if strides is None:
        raise RuntimeError(sentence("view", f"a shape that the strides {x.strides} allow", x.shape, shape,
                                    use="reshape(), which copies where it must"))
    return same_memory(x, shape, strides)


def _ints(name, sizes):
    return tuple(sizes) if INTS.issuperset(map(type, sizes)) else whole_numbers(name, "sizes", sizes)


@geometry
def _viewed(name, shape, strides, sizes):
    """The shape and, where there are any, the strides of the same memory; None in their place otherwise."""
    new = infer_shape(sizes, layout(shape)[2], name)
    return layout(new)[0], view_strides(shape, strides, new)


@view_as_shape.grad("x")
def view_as_shape_grad(g, x_shape):
    return g.reshape(x_shape)


@view_as_shape.samples
def view_as_shape_samples(make):
    yield make(3, 4), (12,)
    yield make(2, 3, 4), (6, -1)
    yield make(6), (1, 2, 1, 3)
    yield make(), (1, 1)
    yield make(0, 3), (3, 0)


@op
def permute_dims(x, dims):
    """The dims in another order.

    >>> import tritorch as torch; torch.ones(2, 3, 4).permute(2, 0, 1).shape
    tritorch.Size([4, 2, 3])
    """
    rule = _permuted if INTS.issuperset(map(type, dims)) else _permuted.__wrapped__
    return same_memory(x, *rule(x.shape, x.strides, tuple(dims)))


@geometry
def _permuted(shape, strides, dims):
    order = [wrap_dim(d, len(shape), "permute") for d in dims]
    if sorted(order) != [*range(len(shape))]:
        raise RuntimeError(sentence("permute", f"each of {len(shape)} dims once", tuple(dims)))
    return _in_order(shape, strides, order)


def _in_order(shape, strides, order):
    return layout(tuple([shape[d] for d in order]))[0], tuple([strides[d] for d in order])


@permute_dims.grad("x")
def permute_dims_grad(g, dims):
    back = [0] * len(dims)
    for k, d in enumerate(dims):
        back[d] = k
    return permute_dims(g, tuple(back))


@permute_dims.samples
def permute_dims_samples(make):
    yield make(2, 3, 4), (2, 0, 1)
    yield make(3, 4), (-1, 0)
    yield make(), ()
    yield make(0, 3), (1, 0)


@op
def transpose(input, dim0, dim1):
    """Two dims exchanged.

    >>> import tritorch as torch; torch.ones(2, 3).transpose(0, 1).shape
    tritorch.Size([3, 2])
    """
    rule = _transposed if dim0.__class__ is dim1.__class__ is int else _transposed.__wrapped__
    return same_memory(input, *rule(input.shape, input.strides, dim0, dim1))


@geometry
def _transposed(shape, strides, dim0, dim1):
    a, b = wrap_dim(dim0, len(shape), "transpose"), wrap_dim(dim1, len(shape), "transpose")
    order = [*range(len(shape))]
    if order:
        order[a], order[b] = b, a
    return _in_order(shape, strides, order)


@transpose.grad("input")
def transpose_grad(g, dim0, dim1):
    return transpose(g, dim0, dim1)


@transpose.samples
def transpose_samples(make):
    yield make(2, 3), 0, 1
    yield make(2, 3, 4), -1, 0
    yield make(), 0, -1


@op
def expand_to(x, shape):
    """Dims of size 1 repeated without copying; new dims in front; -1 keeps a size.

    >>> import tritorch as torch; torch.ones(3, 1).expand(2, 3, 4).stride()
    (0, 1, 0)
    """
    if not x.shape and shape.__class__ is Size:
        return same_memory(x, shape, (0,) * len(shape))
    lead = len(shape) - len(x.shape)
    if lead < 0:
        raise RuntimeError(sentence("expand", f"at least {len(x.shape)} sizes", tuple(shape)))
    full, strides = [], []
    try:
        for k, n in enumerate(map(operator.index, shape), -lead):
            size, step = (x.shape[k], x.strides[k]) if k >= 0 else (1, 0)
            if n == -1 and k >= 0:
                n = size
            elif n != size and (size != 1 or n < 0):
                raise RuntimeError(sentence("expand", "sizes equal to the tensor's, or anything where it has 1", tuple(shape), x.shape))
            full.append(n)
            strides.append(step if n == size else 0)
    except TypeError:
        whole_numbers("expand", "sizes", shape)
        raise
    return same_memory(x, tuple(full), tuple(strides))


@expand_to.grad("x")
def expand_to_grad(g):                                                   # the engine sums it back
    return g


@expand_to.samples
def expand_to_samples(make):
    yield make(3, 1), (3, 4)
    yield make(4), (2, 3, -1)
    yield make(), (2,)
    yield make(1), (0,)


@op
def squeeze_dims(x, dims):
    """The dims among `dims` that have size 1 left out."""
    ndim = len(x.shape)
    drop = {wrap_dim(d, ndim, "squeeze") for d in dims}
    check(len(drop) == len(dims), "squeeze", "each dim once", dims)
    keep = [d for d in range(ndim) if d not in drop or x.shape[d] != 1]
    return same_memory(x, tuple([x.shape[d] for d in keep]), tuple([x.strides[d] for d in keep]))


@squeeze_dims.grad("x")
def squeeze_dims_grad(g, x_shape):
    return g.reshape(x_shape)


@squeeze_dims.samples
def squeeze_dims_samples(make):
    yield make(1, 3, 1), (0, 2)
    yield make(1, 3, 1), (1, -1)
    yield make(), (0,)


@op
def unsqueeze(input, dim):
    """A new dim of size 1 at `dim`.

    >>> import tritorch as torch; torch.ones(3).unsqueeze(-1).shape
    tritorch.Size([3, 1])
    """
    shape, strides = input.shape, input.strides
    d = wrap_dim(dim, len(shape) + 1, "unsqueeze")
    step = shape[d] * strides[d] if d < len(shape) else 1
    return same_memory(input, (*shape[:d], 1, *shape[d:]), (*strides[:d], step, *strides[d:]))


@unsqueeze.grad("input")
def unsqueeze_grad(g, input_shape):
    return g.reshape(input_shape)


@unsqueeze.samples
def unsqueeze_samples(make):
    yield make(3, 4), 0
    yield make(3, 4), -1
    yield make(), 0


@op
def view_as_dtype(x, dtype):
    """The same bytes as elements of another type; the last dim shrinks or grows with the size of the elements."""
    old, new = x.dtype.itemsize, dtype.itemsize
    shape, strides, offset = list(x.shape), list(x.strides), x.offset
    if old != new:
        check(len(shape) > 0 and strides[-1] == 1, "view", "a last dim without gaps to change the size of elements", f"strides {x.strides}")
        ratio_ok = all((n * old) % new == 0 for n in (shape[-1], offset, *strides[:-1]))
        check(ratio_ok, "view", f"a last dim, strides and offset that divide into {dtype}", x.shape, x.strides, offset)
        shape[-1], offset = shape[-1] * old // new, offset * old // new
        strides = [s * old // new for s in strides[:-1]] + [1]
    return strided(x.storage, tuple(shape), tuple(strides), offset, dtype)


@view_as_dtype.samples
def view_as_dtype_samples(make):
    yield make(3, 4, dtype=types.float32, grad=False), types.int32
    yield make(3, 4, dtype=types.float32, grad=False), types.int16
    yield make(2, 4, dtype=types.float32, grad=False), types.float64


# ------------------------------------------------------------------ PyTorch's names above them
def view(input, *shape, size=None, dtype=None):
    """A view under another shape, or of another dtype: `x.view(2, -1)`, `x.view(tritorch.int32)`.

    >>> import tritorch as torch; torch.zeros(4).view(2, 2).shape
    tritorch.Size([2, 2])
    """
    if size is not None or dtype is not None:
        shape = (*shape, *(given for given in (size, dtype) if given is not None))
    if len(shape) == 1 and isinstance(shape[0], types.dtype):
        return view_as_dtype(input, types.as_dtype(shape[0]))
    return view_as_shape(input, as_sizes(shape))


def view_as(input, other):
    """A view with the shape of `other`."""
    return view_as_shape(input, other.shape)


def reshape(input, *sizes, shape=None):
    """The same elements under another shape: a view where it can be, else a copy.

    >>> import tritorch as torch; torch.arange(6).reshape(3, 2)
    tensor([[0, 1],
            [2, 3],
            [4, 5]])
    """
    try:
        sizes = as_sizes(sizes if shape is None else (shape,))
        shape, strides = _viewed("reshape", input.shape, input.strides, _ints("reshape", sizes))
    except AttributeError as error:
        if answer := refuse_misuse(error, "reshape", reshape, (input,)):
            return answer[0]
        raise
    if strides is None:
        return own(view_as_shape(input.contiguous(), shape))
    return view_as_shape(input, shape)


def ravel(input):
    """The elements as one dim, contiguous."""
    return reshape(input.contiguous(), -1)


def reshape_as(input, other):
    """The elements under the shape of `other`."""
    return reshape(input, other.shape)


def size(input, dim=None):
    """The shape, or its entry at `dim`."""
    try:
        return input.shape if dim is None else input.shape[dim]
    except (IndexError, TypeError):
        return input.shape[wrap_dim(dim, len(input.shape), "size")]


def stride(input, dim=None):
    """The strides in elements, or the one of `dim`."""
    try:
        return input.strides if dim is None else input.strides[dim]
    except (IndexError, TypeError):
        return input.strides[wrap_dim(dim, len(input.shape), "stride")]


def flatten(input, start_dim=0, end_dim=-1):
    """Dims start_dim..end_dim merged into one.

    >>> import tritorch as torch; torch.ones(2, 3, 4).flatten(1).shape
    tritorch.Size([2, 12])
    """
    try:
        a, b = wrap_dim(start_dim, len(input.shape), "flatten"), wrap_dim(end_dim, len(input.shape), "flatten")
        check(a <= b, "flatten", "start_dim before end_dim", start_dim, end_dim)
        if not input.shape:
            return reshape(input, 1)
        merged = 1
        for n in input.shape[a:b + 1]:
            merged *= n
        return input if a == b else reshape(input, (*input.shape[:a], merged, *input.shape[b + 1:]))
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def unflatten(input, dim, sizes):
    """One dim split into `sizes` (one may be -1)."""
    check(len(input.shape) > 0, "unflatten", "a tensor of at least one dim", "0 dims")
    d = wrap_dim(dim, len(input.shape), "unflatten")
    return reshape(input, (*input.shape[:d], *infer_shape(sizes, input.shape[d], "unflatten"), *input.shape[d + 1:]))


def permute(input, *order, dims=None):
    """The dims in another order: `x.permute(2, 0, 1)`."""
    return permute_dims(input, as_sizes(order if dims is None else (dims,)))


def expand(input, *sizes, size=None):
    """Dims of size 1 repeated without copying: `x.expand(2, -1)`."""
    return expand_to(input, as_sizes(sizes if size is None else (size,)))


def expand_as(input, other):
    """Expanded to the shape of `other`."""
    return expand_to(input, other.shape)


broadcast_to = expand


def squeeze(input, dim=None):
    """Dims of size 1 left out: all, or those named."""
    dims = tuple(range(len(input.shape))) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    return squeeze_dims(input, dims)


def t(input):
    """The transpose of a tensor of at most two dims."""
    try:
        check(len(input.shape) <= 2, "t", "at most 2 dims", input.shape)
        return transpose(input, 0, len(input.shape) - 1) if len(input.shape) == 2 else view_as(input, input)
    except Exception as error:
        return answered(error)


def movedim(input, source, destination):
    """Dims moved to other places, the rest in their order."""
    ndim = len(input.shape)
    source, destination = [(d,) if isinstance(d, int) else tuple(d) for d in (source, destination)]
    check(len(source) == len(destination), "movedim", "as many destinations as sources", source, destination)
    source, destination = [[wrap_dim(d, ndim, "movedim") for d in dims] for dims in (source, destination)]
    check(len(set(source)) == len(set(destination)) == len(source), "movedim", "each dim once", source, destination)
    rest = iter([d for d in range(ndim) if d not in source])
    place = dict(zip(destination, source))
    return permute_dims(input, tuple([place[k] if k in place else next(rest) for k in range(ndim)]))


moveaxis = movedim
swapaxes = swapdims = transpose


def matrices_transposed(input):
    """The last two dims exchanged: `x.mT`."""
    check(len(input.shape) != 1, "mT", "a matrix or a batch of matrices", input.shape)
    return transpose(input, -2, -1) if input.shape else input
