"""Picking elements: x[index tensors], nonzero, masked_select, take, one_hot. Rows of tables: embedding.py."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, explained, no_values
from tritorch.keywords import also
from tritorch.memory_format import picked
from tritorch.ops import copy, create, pointwise, view
from tritorch.ops.bounds import within
from tritorch.ops.indexing import (
    check_index,
    check_long,
    check_range,
    gather,
    index_select,
    index_select_cuda,
)
from tritorch.ops.put import flat_rows, put, put_shape
from tritorch.ops.shaping import stack
from tritorch.pairs import OWN
from tritorch.shape import broadcast_shapes, broadcast_strides, cdiv, memory_order, own_dim, prod, wrap_dim
from tritorch.tensor import empty, in_order, own

K = kernels("indexing")


@op
def pick(input, dim, index, strides=None):
    """The slices of `input` along `dim` that `index`, of any dims, names; negative ones count from the end, as in x[index]. The result has
    these strides, by default PyTorch's of x[index]."""
    check_index("index", index, IndexError)
    d = own_dim(dim, input.shape, "index")
    shape = (*input.shape[:d], *index.shape, *input.shape[d + 1:])
    if strides is None and not (input.is_contiguous() and index.is_contiguous()):
        strides = picked(shape, (*input.strides[:d], *input.strides[d + 1:]), d, index.strides)
    return shape, input.dtype, common_device("index", input, index), strides


@pick.impl("cpu")
def pick_cpu(out, input, dim, index, strides):
    check_range("index", index, input.shape[dim], wrap=True)
    np.copyto(out, np.take(input, index, axis=dim))


@pick.impl("cuda")
def pick_cuda(out, input, dim, index, strides):
    d, n = wrap_dim(dim, len(input.shape), "index"), len(index.shape)
    if n and not out.is_contiguous():                                    # the same with the dims in their order in memory
        order = memory_order(out.strides)
        places = [k for k, o in enumerate(order) if d <= o < d + n]
        if places[-1] - places[0] == n - 1:
            index = view.permute_dims(index.detach(), [order[k] - d for k in places])
            kept = [o if o < d else o - n + 1 for o in order if not d <= o < d + n]
            input = view.permute_dims(input.detach(), (*kept[:places[0]], d, *kept[places[0]:]))
            out, d = in_order(out, out.strides), places[0]
    index_select_cuda(out, input, d, index, "index", True)


@pick.grad("input")
def pick_grad(g, input_shape, dim, index):
    indices = tuple([index if d == dim % len(input_shape) else None for d in range(len(input_shape))])
    zeros = create.new_zeros(g, input_shape)
    return put.into(zeros, zeros, indices, g, True)


@pick.samples
def pick_samples(make):
    yield make(5, 3), 0, make(4, integer=True, low=-5, high=5)
    yield make(2, 7, 3), -2, make(9, integer=True, low=-7, high=7)
    yield make(2, 5, 3), 1, make(2, 4, integer=True, low=-5, high=5)
    yield make(6), 0, make(0, integer=True)
    yield make(4, 3), 1, make(integer=True, low=0, high=3)
    for strides in ((1, 8, 4, 16), (2, 16, 1, 8)):
        yield make(4, 3, 2), 1, make(2, 2, integer=True, low=0, high=3), strides


@pick.errors
def pick_errors(make):
    yield (make(3), 0, make(2, integer=True, low=-4, high=-3)), {}, IndexError, "expected indices in [-3, 2], got -4"


pick.complex = index_select.complex
pick.workloads(index_select.workloads_body)


def index(input, indices):
    """The elements that index tensors name together, one tensor or None for each dim: numpy's rules."""
    where = [d for d, k in enumerate(indices) if k is not None]
    if len(where) == 1:
        return pick(input, where[0], indices[where[0]])
    first, count = where[0], len(where)
    if where[-1] - first != count - 1:                                   # dims that are not neighbours come first
        order = (*where, *[d for d in range(len(input.shape)) if d not in where])
        input, indices, first = view.permute_dims(input, order), tuple([indices[d] for d in order]), 0
    together, after = indices[first:first + count], first + count
    common, shape = broadcast_shapes("index", *[k.shape for k in together]), put_shape(input, indices)
    strides = None
    if not input.is_contiguous() or not all(k.is_contiguous() and k.shape == common for k in together):
        rest = (*input.strides[:first], *input.strides[after:])
        strides = picked(shape, rest, first, *[broadcast_strides(k.shape, k.strides, common) for k in together])
    rows = view.reshape(input, (*input.shape[:first], prod(input.shape[first:after]), *input.shape[after:]))
    places = flat_rows(input.shape, indices, list(range(first, after)))
    return pick(rows, first, places if len(common) == 1 else view.reshape(places, common), strides)


# ------------------------------------------------------------------ places that are not zero
@op
def nonzero_places(input, count):
    """The flat places of the `count` elements that are not zero, in order; `nonzero` counts them first."""
    return (count,), types.int64, input.storage.device


@nonzero_places.impl("cpu")
def nonzero_places_cpu(out, input, count):
    out[...] = np.flatnonzero(input)


@nonzero_places.impl("cuda")
def nonzero_places_cuda(out, input, count):
    n = input.numel()
    if not n or not count:
        return
    input = input != 0 if input.dtype.is_complex else input
    made = out if out.is_contiguous() else empty(out.shape, out.dtype, out.device)
    flat, block = view.reshape(input.contiguous(), -1), tile(1024, 4096)
    counts = empty((cdiv(n, block),), types.int64, input.device)
    launch(K.count_kernel, (cdiv(n, block),), counts, flat, n, BLOCK=block)
    before = counts.cumsum(0) - counts
    launch(K.compact_kernel, (cdiv(n, block),), made, flat, before, n, BLOCK=block)
    if made is not out:
        out.copy_(made)


nonzero_places.complex = OWN


@nonzero_places.samples
def nonzero_places_samples(make):
    for shape in ((7,), (3, 5), (), (0, 2)):
        x = make(*shape, integer=True, low=0, high=2)
        yield x, int(np.count_nonzero(x.array))
    x = make(4, 3, grad=False)
    x = x > 0 if not x.dtype.is_complex else x
    yield x, int(np.count_nonzero(x.array))


@nonzero_places.workloads
def nonzero_places_workloads(make):
    x = make(1 << 24, integer=True, low=0, high=2)
    yield "16M int64", lambda: (x, int(np.count_nonzero(x.cpu().array))), 2 * x.nbytes, 0


def nonzero(input, *, as_tuple=False, out=None):
    """The places of the elements that are not zero, one row each (`as_tuple`: one tensor a dim). Waits for the device to count them.

    >>> import tritorch as torch; torch.tensor([[0, 1], [2, 0]]).nonzero().tolist()
    [[0, 1], [1, 0]]
    """
    check(out is None or not as_tuple, "nonzero", "out= without as_tuple", "both")
    if input.is_meta:
        raise no_values("nonzero", "a device with memory where shapes follow from values")
    count = int(input.count_nonzero().item()) if input.shape else int(bool(input.item()))
    flat = nonzero_places(input.detach(), count)
    columns, shape = [], input.shape if input.shape or not as_tuple else (1,)
    for n in reversed(shape):
        columns.append(flat % n)
        flat = flat // n
    columns.reverse()
    if as_tuple:
        return tuple(columns)
    if not columns:
        return copy.deliver(create.empty(count, 0, dtype=types.int64, device=input.device), out, exact=True)
    return copy.deliver(own(stack(columns).t()), out, exact=True)              # columns lie together, as PyTorch's


argwhere = nonzero


def mask_to_indices(mask, shape, count=False):
    """Index tensors, one a dim, of the places where a mask over dims of `shape` holds; of one on meta, of `count` places."""
    check(tuple(mask.shape) == tuple(shape), "index", f"a mask of shape {tuple(shape)}", tuple(mask.shape), error=IndexError)
    if mask.is_meta and count is not False:
        return [create.empty(count, dtype=types.int64, device=mask.device) for _ in shape]
    return nonzero(mask, as_tuple=True)


def masked_select(input, mask, *, out=None):
    """The elements where the mask holds, as a vector; both broadcast."""
    check(mask.dtype is types.bool, "masked_select", "a mask of bools", mask.dtype)
    shape = broadcast_shapes("masked_select", input.shape, mask.shape)
    places = nonzero_places(view.expand_to(mask, shape),
                            int(view.expand_to(mask, shape).count_nonzero().item()) if shape else int(mask.item()))
    made = index_select(view.reshape(view.expand_to(input, shape), -1), 0, places)
    return copy.deliver(made, out, exact=True)


def take(input, index, *, out=None):
    """The elements of the flattened tensor that `index` names, in the shape of `index`."""
    check_long("take", index)
    return copy.deliver(pick(view.reshape(input, -1), 0, copy.contiguous(index)), out, exact=True)


def take_along_dim(input, indices, dim=None, *, out=None):
    """The elements that `indices` names along `dim` (without dim: of the flattened tensor); other dims broadcast."""
    check_long("take_along_dim", indices)
    if dim is None:
        made = gather(view.reshape(input, -1), 0, view.reshape(indices, -1))
        return copy.deliver(made, out, exact=True)
    check(len(indices.shape) == len(input.shape), "take_along_dim", f"indices of {len(input.shape)} dims", indices.shape)
    d = own_dim(dim, input.shape, "take_along_dim")
    shape = broadcast_shapes("take_along_dim", (*input.shape[:d], 1, *input.shape[d + 1:]), (*indices.shape[:d], 1, *indices.shape[d + 1:]))
    indices = pointwise.remainder(indices, max(input.shape[d], 1))   # as PyTorch, which takes -1, and n, too
    made = gather(view.expand_to(input, (*shape[:d], input.shape[d], *shape[d + 1:])), d,
                  view.expand_to(indices, (*shape[:d], indices.shape[d], *shape[d + 1:])))
    return copy.deliver(made, out, exact=True)


@explained
@also(input="tensor")
def one_hot(tensor, num_classes=-1):
    """A new last dim of `num_classes` (-1: as many as needed), 1 at the place that the element names, else 0, as int64.

    >>> import tritorch as torch; torch.nn.functional.one_hot(torch.tensor([1, 0]), 3)
    tensor([[0, 1, 0],
            [1, 0, 0]])
    """
    check(tensor.dtype is types.int64, "one_hot", "an index of int64", tensor.dtype)
    if num_classes == -1:
        check(tensor.numel() > 0, "one_hot", "num_classes for an empty tensor", num_classes)
        num_classes = int(tensor.max().item()) + 1
    tensor = within(tensor, 0, num_classes - 1, "one_hot", "class values from 0 up and below num_classes")
    return (tensor.unsqueeze(-1) == create.arange(num_classes, device=tensor.device)).to(types.int64)


def unravel_index(indices, shape):
    """The places in a tensor of `shape` that flat indices stand for: one index tensor a dim.

    >>> import tritorch as torch; torch.unravel_index(torch.tensor([0, 5]), (2, 3))
    (tensor([0, 1]), tensor([0, 2]))
    """
    check(not indices.dtype.is_floating_point and indices.dtype is not types.bool, "unravel_index", "indices of integers", indices.dtype,
          error=TypeError)
    indices = indices.to(types.int64)
    shape = (shape,) if isinstance(shape, int) else shape
    check(isinstance(shape, (tuple, list)) and all(isinstance(n, int) for n in shape), "unravel_index", "a shape of ints", shape,
          error=TypeError)
    check(min(shape, default=0) >= 0, "unravel_index", "sizes that are not negative", shape, error=ValueError)
    places = []
    for n in reversed(shape):
        places.append(indices % n)
        indices = indices // n
    return tuple(places[::-1])
