"""Putting tensors together and their elements in another order: cat, stack, flip, roll, repeat and their like."""
import itertools

import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, sentence, whole_numbers
from tritorch.layout import strided as strided_layout
from tritorch.memory_format import contiguous_format, dense_strides, like_image
from tritorch.ops import copy, create, slicing, view
from tritorch.ops.cat import concatenated
from tritorch.ops.copy import transfer
from tritorch.ops.padding import roll_images
from tritorch.pairs import OWN, Parts
from tritorch.shape import Size, own_dim, wrap_dim, wrap_dims
from tritorch.shape import broadcast_shapes as common_shape
from tritorch.storage import Spread
from tritorch.tensor import Tensor, own, strided


# ------------------------------------------------------------------ cat
def several(name, tensors, error=RuntimeError):
    """A sequence of one tensor or more as a tuple."""
    if not hasattr(tensors, "__iter__") or isinstance(tensors, (Tensor, str)):
        raise TypeError(sentence(name, "a sequence of tensors", type(tensors).__name__))
    check(made := tuple(tensors), name, "at least one tensor", "none", error=error)
    return made


def cat(tensors, dim=0, *, axis=None, out=None):
    """The tensors joined one after the other along `dim`; all other sizes must agree.

    >>> import tritorch as torch; torch.cat([torch.zeros(2), torch.ones(1)])
    tensor([0., 0., 1.])
    """
    tensors, dim = several("cat", tensors, ValueError), dim if axis is None else axis
    if not all(isinstance(t, Tensor) for t in tensors):
        raise TypeError(sentence("cat", "tensors", ", ".join(sorted({type(t).__name__ for t in tensors}))))
    ndim = max([len(t.shape) for t in tensors])
    d = wrap_dim(dim, ndim, "cat")
    sizes = tuple([None if t.shape == (0,) and ndim != 1 else t.shape[d] if d < len(t.shape) else 0 for t in tensors])
    return concatenated(tensors, dim, sizes) if out is None else concatenated.into(out, tensors, dim, sizes)


concat = concatenate = cat


def stack(tensors, dim=0, *, axis=None, out=None):
    """The tensors, all of one shape, along a new dim.

    >>> import tritorch as torch; torch.stack([torch.zeros(2), torch.ones(2)]).shape
    tritorch.Size([2, 2])
    """
    tensors, dim = several("stack", tensors), dim if axis is None else axis
    check(len(shapes := dict.fromkeys([t.shape for t in tensors])) == 1, "stack", "one tensor or more of one shape", *shapes)
    shape, d = tensors[0].shape, wrap_dim(dim, len(tensors[0].shape) + 1, "stack")
    if d < len(shape) and out is None and all(type(t.storage) is not Spread and t.layout is strided_layout for t in tensors):
        return own(view.view_as_shape(cat(tensors, d), (*shape[:d], len(tensors), *shape[d:])))         # one view in the place of many
    return cat([view.unsqueeze(t, d) for t in tensors], d, out=out)


def atleast_1d(*tensors):
    """Tensors with at least one dim: a 0-dim tensor becomes a vector of one element.

    >>> import tritorch as torch
    >>> torch.atleast_1d(torch.tensor(2.0))
    tensor([2.])
    """
    return _each(tensors, lambda t: t if t.shape else view.reshape(t, 1))


def atleast_2d(*tensors):
    """Tensors with at least two dims: dims of size 1 are put in front.

    >>> import tritorch as torch
    >>> torch.atleast_2d(torch.tensor([1.0, 2.0]))
    tensor([[1., 2.]])
    """
    return _each(tensors, lambda t: t if len(t.shape) > 1 else view.reshape(t, 1, -1))


def atleast_3d(*tensors):
    """Tensors with at least three dims: (n) becomes (1, n, 1), (m, n) becomes (m, n, 1).

    >>> import tritorch as torch
    >>> torch.atleast_3d(torch.ones(4, 5)).shape
    tritorch.Size([4, 5, 1])
    """
    return _each(tensors, lambda t: t if len(t.shape) > 2 else view.unsqueeze(t, -1) if len(t.shape) == 2 else view.reshape(t, 1, -1, 1))


def _each(tensors, fn):
    if len(tensors) == 1 and not isinstance(tensors[0], Tensor):
        tensors = tensors[0]
        return tuple([fn(t) for t in tensors])
    return fn(tensors[0]) if len(tensors) == 1 else tuple([fn(t) for t in tensors])


def hstack(tensors, *, out=None):
    """The tensors side by side: joined along dim 1, or along dim 0 if they have one dim.

    >>> import tritorch as torch
    >>> torch.hstack([torch.tensor([1, 2]), torch.tensor([3])])
    tensor([1, 2, 3])
    """
    tensors = [atleast_1d(t) for t in several("hstack", tensors)]
    return cat(tensors, 0 if len(tensors[0].shape) == 1 else 1, out=out)


def vstack(tensors, *, out=None):
    """The tensors on top of each other: joined along dim 0, vectors as rows.

    >>> import tritorch as torch
    >>> torch.vstack([torch.tensor([1, 2]), torch.tensor([3, 4])])
    tensor([[1, 2],
            [3, 4]])
    """
    return cat([atleast_2d(t) for t in several("vstack", tensors)], 0, out=out)


row_stack = vstack


def dstack(tensors, *, out=None):
    """The tensors joined along dim 2.

    >>> import tritorch as torch
    >>> torch.dstack([torch.ones(2, 3), torch.zeros(2, 3)]).shape
    tritorch.Size([2, 3, 2])
    """
    return cat([atleast_3d(t) for t in several("dstack", tensors)], 2, out=out)


def column_stack(tensors, *, out=None):
    """One-dim tensors as columns, side by side.

    >>> import tritorch as torch
    >>> torch.column_stack([torch.tensor([1, 2]), torch.tensor([3, 4])])
    tensor([[1, 3],
            [2, 4]])
    """
    return cat([t if len(t.shape) > 1 else view.reshape(t, -1, 1) for t in several("column_stack", tensors)], 1, out=out)


# ------------------------------------------------------------------ another order
@op
def flip_dims(x, dims):
    """The order of the elements along each of `dims` reversed."""
    wrap_dims(dims, len(x.shape), "flip")
    return x.shape, x.dtype, x.storage.device, x.strides, dense_strides


@flip_dims.impl("cpu")
def flip_dims_cpu(out, x, dims):
    np.copyto(out, np.flip(x, dims) if x.shape else x)


@flip_dims.impl("cuda")
def flip_dims_cuda(out, x, dims):
    strides, offset = list(x.strides), x.offset
    for d in wrap_dims(dims, len(x.shape), "flip"):                      # the kernels step backwards as well
        offset, strides[d] = offset + max(x.shape[d] - 1, 0) * strides[d], -strides[d]
    transfer(out, strided(x.storage, x.shape, tuple(strides), offset, x.dtype))


@flip_dims.grad("x")
def flip_dims_grad(g, dims):
    return flip_dims(g, dims)


@flip_dims.samples
def flip_dims_samples(make):
    yield make(5), (0,)
    yield make(2, 3, 4), (0, -1)
    yield make(0, 3), (1,)
    yield make(3), ()


@op
def roll_dims(x, shifts, dims):
    """The elements moved by `shifts` along `dims`; those that leave at one end come in again at the other."""
    check(len(shifts) == len(dims), "roll", "as many shifts as dims", shifts, dims)
    wrap_dims(dims, len(x.shape), "roll")
    return x.shape, x.dtype, x.storage.device, like_image(x.shape, x)


@roll_dims.impl("cpu")
def roll_dims_cpu(out, x, shifts, dims):
    np.copyto(out, np.roll(x, shifts, dims) if dims else x)


@roll_dims.impl("cuda")
def roll_dims_cuda(out, x, shifts, dims):
    """Every dim falls into two blocks that change places: copy each combination of blocks, two of four dims in one pass."""
    if not out.numel():
        return
    if x.ndim == 4 and len({d % 4 for d in dims}) == len(dims) == 2:
        return roll_images(out, x, shifts, [d % 4 for d in dims])
    pieces = []
    for shift, d in zip(shifts, dims):
        n = x.shape[d]
        s = shift % n
        pieces.append([(d, a, b, m) for a, b, m in ((0, s, n - s), (n - s, 0, s)) if m])
    for blocks in itertools.product(*pieces):
        shape, source, target = list(x.shape), x.offset, out.offset
        for d, a, b, m in blocks:
            shape[d], source, target = m, source + a * x.strides[d], target + b * out.strides[d]
        transfer(strided(out.storage, tuple(shape), out.strides, target, out.dtype),
                 strided(x.storage, tuple(shape), x.strides, source, x.dtype))


@roll_dims.grad("x")
def roll_dims_grad(g, shifts, dims):
    return roll_dims(g, tuple([-s for s in shifts]), dims)


@roll_dims.samples
def roll_dims_samples(make):
    yield make(7), (3,), (0,)
    yield make(3, 4, 2, 5), (1, -5), (1, -1)
    yield make(0, 3), (2,), (1,)
    yield make(4), (0,), (0,)


flip_dims.complex, roll_dims.complex = OWN, Parts(words=True)
for _made, _rest in ((flip_dims, ((0,),)), (roll_dims, ((5,), (0,)))):
    @_made.workloads
    def _workloads(make, _rest=_rest):
        x = make(1 << 12, 1 << 12, grad=False)
        yield "4096x4096 fp32", lambda: (x, *_rest), 2 * x.nbytes, 0


def flip(input, *order, dims=None):
    """The order of the elements along each of `dims` reversed (a copy).

    >>> import tritorch as torch; torch.arange(3).flip(0)
    tensor([2, 1, 0])
    """
    return flip_dims(input, view.as_sizes(order if dims is None else (dims,)))


def fliplr(input):
    """Columns in reverse order."""
    check(len(input.shape) >= 2, "fliplr", "a tensor of at least 2 dims", input.shape)
    return flip_dims(input, (1,))


def flipud(input):
    """Rows in reverse order."""
    check(len(input.shape) >= 1, "flipud", "a tensor of at least one dim", input.shape)
    return flip_dims(input, (0,))


def rot90(input, k=1, dims=(0, 1)):
    """Turned k times by 90 degrees in the plane of two dims, from the first towards the second."""
    check(len(dims) == 2 and len(input.shape) >= 2, "rot90", "2 dims", tuple(dims), input.shape)
    a, b = [wrap_dim(d, len(input.shape), "rot90") for d in dims]
    check(a != b, "rot90", "two different dims", tuple(dims))
    k %= 4
    if k % 2 == 0:
        return flip_dims(input, (a, b)) if k else copy.clone(input, memory_format=contiguous_format)
    return view.transpose(flip_dims(input, (b,)) if k == 1 else flip_dims(input, (a,)), a, b)


def roll(input, shifts, dims=None):
    """The elements moved along dims (without dims: along the flattened tensor); those that leave at one end come in again at the other.

    >>> import tritorch as torch; torch.arange(4).roll(1)
    tensor([3, 0, 1, 2])
    """
    shifts = whole_numbers("roll", "shifts", shifts if isinstance(shifts, (tuple, list)) else (shifts,))
    if dims is None:
        check(len(shifts) == 1, "roll", "one shift without dims", shifts)
        return own(view.reshape(roll_dims(view.reshape(input, -1), shifts, (0,)), input.shape))
    dims = whole_numbers("roll", "dims", dims if isinstance(dims, (tuple, list)) else (dims,))
    check(len(shifts) == len(dims), "roll", "as many shifts as dims", shifts, dims)
    total = {}
    for shift, dim in zip(shifts, dims):
        d = own_dim(dim, input.shape, "roll")
        total[d] = total.get(d, 0) + shift
    return roll_dims(input, tuple(total.values()), tuple(total))


# ------------------------------------------------------------------ repetition
def repeat(input, *sizes, repeats=None):
    """The tensor repeated `sizes` times along each dim, new dims in front.

    >>> import tritorch as torch; torch.arange(2).repeat(2, 2)
    tensor([[0, 1, 0, 1],
            [0, 1, 0, 1]])
    """
    sizes = whole_numbers("repeat", "sizes", view.as_sizes(sizes if repeats is None else (repeats,)))
    lead = len(sizes) - len(input.shape)
    check(lead >= 0, "repeat", f"at least {len(input.shape)} sizes", sizes)
    check(min(sizes, default=0) >= 0, "repeat", "sizes that are not negative", sizes)
    shape = (1,) * lead + tuple(input.shape)
    spread = view.reshape(input, [m for n in shape for m in (1, n)])
    spread = view.expand_to(spread, tuple([m for r, n in zip(sizes, shape) for m in (r, n)]))
    return own(view.reshape(copy.clone(spread, memory_format=contiguous_format), [r * n for r, n in zip(sizes, shape)]))


def tile(input, *sizes, dims=None):
    """As `repeat`, but missing sizes count as 1."""
    dims = view.as_sizes(sizes if dims is None else (dims,))
    return repeat(input, (1,) * (len(input.shape) - len(dims)) + dims)


def repeat_interleave(input, repeats=None, dim=None, *, output_size=None):
    """Each element along `dim` repeated, one after the other; `repeats` is a number or one number an element.

    >>> import tritorch as torch; torch.arange(2).repeat_interleave(2)
    tensor([0, 0, 1, 1])
    """
    if repeats is None:                                                  # one tensor alone: the number of times for each place
        input, repeats = create.arange(input.shape[0], device=input.device), input
    input, dim = (view.reshape(input, -1), 0) if dim is None else (input, dim)
    d = own_dim(dim, input.shape, "repeat_interleave")
    n = input.shape[d]
    if output_size is not None and isinstance(repeats, Tensor) and repeats.is_meta:
        return input.index_select(d, create.empty(output_size, dtype=types.int64, device=repeats.device))
    if isinstance(repeats, Tensor) and repeats.numel() != 1:
        counts = repeats.cpu().numpy()
        check(counts.size == n, "repeat_interleave", f"{n} repeats", counts.size)
        check(counts.dtype.kind == "i" and (counts >= 0).all(), "repeat_interleave", "whole repeats that are not negative", repeats)
        check(output_size in (None, counts.sum()), "repeat_interleave", f"an output_size of {counts.sum()}, their sum", output_size)
        return input.index_select(d, create.tensor(np.repeat(np.arange(n), counts), device=input.device))
    count = int(repeats.item()) if isinstance(repeats, Tensor) else repeats
    check(count >= 0, "repeat_interleave", "repeats that are not negative", count)
    check(output_size in (None, n * count), "repeat_interleave", f"an output_size of {n * count}", output_size)
    spread = view.unsqueeze(input, d + 1).expand(*input.shape[:d], n, count, *input.shape[d + 1:])
    return view.reshape(copy.clone(spread, memory_format=contiguous_format), (*input.shape[:d], n * count, *input.shape[d + 1:]))


# ------------------------------------------------------------------ grids and pairs
def broadcast_tensors(*tensors):
    """All tensors expanded to their common shape.

    >>> import tritorch as torch
    >>> x, y = torch.broadcast_tensors(torch.ones(3, 1), torch.ones(4))
    >>> x.shape
    tritorch.Size([3, 4])
    """
    tensors = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    shape = common_shape("broadcast_tensors", *[t.shape for t in tensors]) if tensors else ()
    return tuple([view.expand_to(t, shape) for t in tensors])


def broadcast_shapes(*shapes):
    """The shape that tensors of these shapes, or ints for vectors, have in common.

    >>> import tritorch as torch; torch.broadcast_shapes((2,), (3, 1), (1, 1, 1))
    tritorch.Size([1, 3, 2])
    """
    return Size(common_shape("broadcast_shapes", (), *[(s,) if isinstance(s, int) else tuple(s) for s in shapes]))


def meshgrid(*tensors, indexing="ij"):
    """The coordinates of a grid: vector k varies along dim k ("xy": the first two dims exchanged).

    >>> import tritorch as torch
    >>> x, y = torch.meshgrid(torch.tensor([1, 2]), torch.tensor([3, 4, 5]), indexing="ij")
    >>> x
    tensor([[1, 1, 1],
            [2, 2, 2]])
    >>> y
    tensor([[3, 4, 5],
            [3, 4, 5]])
    """
    tensors = tuple(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    check(indexing in ("ij", "xy"), "meshgrid", "indexing 'ij' or 'xy'", repr(indexing))
    swap = indexing == "xy" and len(tensors) > 1
    order = (1, 0, *range(2, len(tensors))) if swap else range(len(tensors))
    vectors = [view.reshape(tensors[k], -1) for k in order]
    shape = tuple([v.shape[0] for v in vectors])
    if len({v.dtype for v in vectors}) != 1:
        raise RuntimeError(sentence("meshgrid", "one or more vectors of one dtype", ", ".join(str(v.dtype) for v in vectors) or "none"))
    check(all(len(t.shape) < 2 for t in tensors), "meshgrid", "tensors of at most one dim", *[t.shape for t in tensors])
    grids = [view.expand_to(view.reshape(v, (1,) * k + (-1,) + (1,) * (len(vectors) - k - 1)), shape) for k, v in enumerate(vectors)]
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


def diff(input, n=1, dim=-1, prepend=None, append=None, *, out=None):
    """The differences of neighbouring elements along `dim`, taken n times.

    >>> import tritorch as torch; torch.tensor([1, 4, 9]).diff()
    tensor([3, 5])
    """
    check(len(input.shape) > 0, "diff", "a tensor of at least one dim", "0 dims")
    check(n >= 0, "diff", "n of at least 0", n)
    d = wrap_dim(dim, len(input.shape), "diff")
    parts = [t for t in (prepend, input, append) if t is not None] if n else [input.clone()]
    made = cat(parts, d) if len(parts) > 1 else parts[0]
    for _ in range(min(n, made.shape[d])):
        size = made.shape[d] - 1
        front, back = slicing.narrow(made, d, 1, size), slicing.narrow(made, d, 0, size)
        made = front ^ back if made.dtype is types.bool else front - back
    return copy.deliver(made, out, exact=not n)
