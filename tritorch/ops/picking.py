"""Picking elements: x[index tensors], nonzero, masked_select, take, embedding, one_hot, bincount."""
import numpy as np

from tritorch.autograd.modes import no_grad
from tritorch.autograd.parts import joined_grads
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, explained, no_values, refuse_misuse, sentence, tensors, whole_numbers
from tritorch.keywords import also
from tritorch.ops import copy, create, pointwise, view
from tritorch.ops.indexing import (
    add_slices,
    check_index,
    check_long,
    finish,
    gather,
    in_order,
    index_add,
    index_select,
    index_select_cpu,
    index_select_cuda,
    linear_places,
)
from tritorch.ops.put import flat_rows, put, put_shape
from tritorch.ops.segments import join_rows
from tritorch.ops.shaping import stack
from tritorch.ops.tally import tally
from tritorch.ops.within import within
from tritorch.pairs import OWN
from tritorch.shape import broadcast_shapes, cdiv, own_dim, prod
from tritorch.tensor import empty, own

K = kernels("indexing")


@op
def pick(input, dim, index):
    """The slices of `input` along `dim` that the vector `index` names; negative ones count from the end, as in x[index]."""
    return index_select.body(input, dim, index)


@pick.impl("cpu")
def pick_cpu(out, input, dim, index):
    index_select_cpu(out, input, dim, index, "index", True)


@pick.impl("cuda")
def pick_cuda(out, input, dim, index):
    index_select_cuda(out, input, dim, index, "index", True)


@pick.grad("input")
def pick_grad(g, input_shape, dim, index):
    indices = tuple([index if d == dim % len(input_shape) else None for d in range(len(input_shape))])
    zeros = create.new_zeros(g, input_shape)
    return put.into(zeros, zeros, indices, g, True)


@pick.samples
def pick_samples(make):
    yield make(5, 3), 0, make(4, integer=True, low=-5, high=5)
    yield make(2, 7, 3), -2, make(9, integer=True, low=-7, high=7)
    yield make(6), 0, make(0, integer=True)


@pick.errors
def pick_errors(make):
    yield (make(3), 0, make(2, integer=True, low=-4, high=-3)), {}, IndexError, "expected indices in [-3, 2], got -4"


pick.complex = index_select.complex
pick.workloads(index_select.workloads_body)


def index(input, indices):
    """The elements that index tensors name together, one tensor or None for each dim: numpy's rules."""
    picked = [d for d, k in enumerate(indices) if k is not None]
    shape = put_shape(input, indices)
    if len(picked) == 1:
        d, places = picked[0], indices[picked[0]]
        if len(places.shape) == 1:
            return pick(input, d, places)
        return own(view.reshape(pick(input, d, view.reshape(places, -1)), shape))
    order = (*picked, *[d for d in range(len(input.shape)) if d not in picked])
    sizes = [input.shape[d] for d in order]
    rows = view.reshape(view.permute_dims(input, order), prod(sizes[:len(picked)]), *sizes[len(picked):])
    common = broadcast_shapes("index", *[indices[d].shape for d in picked])
    made = view.reshape(pick(rows, 0, flat_rows(input.shape, indices, picked)), *common, *sizes[len(picked):])
    if picked == list(range(picked[0], picked[-1] + 1)):
        made = view.movedim(made, tuple(range(len(common))), tuple(range(picked[0], picked[0] + len(common))))
    return own(made)


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
    return copy.deliver(stack(columns, 1), out, exact=True)


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
    return copy.deliver(made, out)


def take(input, index, *, out=None):
    """The elements of the flattened tensor that `index` names, in the shape of `index`."""
    check_long("take", index)
    made = view.reshape(pick(view.reshape(input, -1), 0, view.reshape(index, -1)), index.shape)
    return copy.deliver(own(made), out)


def take_along_dim(input, indices, dim=None, *, out=None):
    """The elements that `indices` names along `dim` (without dim: of the flattened tensor); other dims broadcast."""
    check_long("take_along_dim", indices)
    if dim is None:
        made = gather(view.reshape(input, -1), 0, view.reshape(indices, -1))
        return copy.deliver(made, out)
    d = own_dim(dim, input.shape, "take_along_dim")
    shape = broadcast_shapes("take_along_dim", (*input.shape[:d], 1, *input.shape[d + 1:]), (*indices.shape[:d], 1, *indices.shape[d + 1:]))
    indices = pointwise.remainder(indices, max(input.shape[d], 1))   # as PyTorch, which takes -1, and n, too
    made = gather(view.expand_to(input, (*shape[:d], input.shape[d], *shape[d + 1:])), d,
                  view.expand_to(indices, (*shape[:d], indices.shape[d], *shape[d + 1:])))
    return copy.deliver(made, out)


# ------------------------------------------------------------------ tables
@op
def table_rows(weight, index, padding_idx, by_freq=False):
    """The rows of `weight` that `index` names; the row padding_idx (-1: none) gets no gradient, with by_freq the others that of one of the
    times that they are named, on average."""
    check_index("embedding", index)
    check(len(weight.shape) == 2, "embedding", "a weight of 2 dims", weight.shape)
    return (*index.shape, weight.shape[1]), weight.dtype, weight.storage.device


@table_rows.impl("cpu", raw=True)
@table_rows.impl("cuda")
def table_rows_any(out, weight, index, padding_idx, by_freq):
    made = out if out.is_contiguous() else empty(out.shape, out.dtype, out.device)
    flat = view.reshape(made.detach(), -1, weight.shape[1])
    index_select.into(flat, weight.detach(), 0, view.reshape(index, -1))
    if made is not out:
        out.detach().copy_(made)


@table_rows.grad("weight")
def table_rows_grad(g, weight_shape, index, padding_idx, by_freq):
    if by_freq:
        g = g * rarity(index, weight_shape[0], g.dtype).unsqueeze(-1)

    def add(total):
        index_add.into(total, total, 0, view.reshape(index, -1), view.reshape(g, index.numel(), weight_shape[1]).to(total.dtype))

    if padding_idx < 0 and joined_grads(add, (g,), "weight"):
        return None                                                      # a pass over the rows that were read, not over the table
    return table_gradient(g, index, weight_shape[0], padding_idx)


def rarity(index, count, dtype):
    """1 over the times that an index names what it names, of each index."""
    flat, kind = view.reshape(index, -1), dtype.compute
    one = create.ones(flat.shape, dtype=kind, device=index.device)
    named = create.zeros(count, dtype=kind, device=index.device).index_add(0, flat, one)
    return view.reshape(named.index_select(0, flat).reciprocal().to(dtype), index.shape)


table_rows.complex = OWN


@table_rows.samples
def table_rows_samples(make):
    yield make(7, 3), make(2, 5, integer=True, low=0, high=7), -1
    yield make(4, 2, grad=False), make(6, integer=True, low=0, high=4), 1       # its gradient is not the derivative: tested by hand
    yield make(5, 3), make(0, integer=True), -1
    yield make(5, 1), make(integer=True, low=0, high=5), -1


@table_rows.workloads
def table_rows_workloads(make):
    weight, places = make(50304, 1024, grad=False), make(65536, integer=True, low=0, high=50304)
    yield "65536 of 50304x1024 fp32", lambda: (weight, places, -1), 2 * 65536 * 4096 + places.nbytes, 0


@op
def table_gradient(rows, index, count, padding_idx):
    """The gradient of a table of which `index` named some rows: for each of `count` rows the sum of its `rows`, 0 for padding_idx."""
    return (count, rows.shape[-1]), rows.dtype, rows.storage.device


@table_gradient.impl("cpu")
def table_gradient_cpu(out, rows, index, count, padding_idx):
    made = np.zeros(out.shape, np.float32 if out.dtype.itemsize == 2 else out.dtype)
    add_slices(made, 0, index.reshape(-1), np.asarray(rows, made.dtype).reshape(index.size, out.shape[1]))
    if padding_idx >= 0:
        made[padding_idx] = 0
    np.copyto(out, made, casting="unsafe")


@table_gradient.impl("cuda")
def table_gradient_cuda(out, rows, index, count, padding_idx):
    made = in_order(out)
    places = linear_places(view.reshape(index, -1), 0, (count,), "embedding")
    join_rows(made, None, places, view.reshape(rows, index.numel(), out.shape[1]), skip=padding_idx)
    finish(out, made)


table_gradient.complex = OWN


@table_gradient.grad("rows")
def table_gradient_grad(g, index, padding_idx):
    picked = table_rows(g, index, -1)
    return picked if padding_idx < 0 else picked.masked_fill((index == padding_idx).unsqueeze(-1), 0)


@table_gradient.samples
def table_gradient_samples(make):
    yield make(2, 5, 3), make(2, 5, integer=True, low=0, high=7), 7, -1
    yield make(6, 2), make(6, integer=True, low=0, high=4), 4, 1
    yield make(40, 33), make(40, integer=True, low=0, high=2), 3, -1              # long segments
    yield make(0, 3), make(0, integer=True), 5, -1
    yield make(3), make(integer=True, low=0, high=5), 5, -1


@table_gradient.workloads
def table_gradient_workloads(make):
    rows = make(65536, 1024, grad=False).to(types.bfloat16)
    nbytes = rows.nbytes + 50304 * 2048 + 65536 * 8
    for label, high in (("any", 50304), ("16 hot", 16)):
        places = make(65536, integer=True, low=0, high=high)
        yield f"65536 rows ({label}) to 50304x1024 bf16", lambda places=places: (rows, places, 50304, -1), nbytes, 1 << 26


def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """The rows of `weight` (n, d) that the integers in `input` name: shape (*, d).

    The row `padding_idx` gets no gradient; with `max_norm` the rows used are first scaled down, in place, to that norm; with
    `scale_grad_by_freq` the gradient of a row is divided by the times that it is named. With `sparse` the gradient is a sparse tensor
    of the rows that were named, and does not go with `scale_grad_by_freq`.

    >>> import tritorch as torch; w = torch.eye(3); torch.nn.functional.embedding(torch.tensor([2, 0]), w)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    try:
        count = weight.shape[0]
    except (AttributeError, IndexError) as error:
        if answer := refuse_misuse(error):
            return answer[0]
        tensors("embedding", weight=weight)
        raise RuntimeError(sentence("embedding", "a weight of 2 dims", weight.shape)) from None
    if padding_idx is not None:
        if padding_idx.__class__ is not int:
            padding_idx, = whole_numbers("embedding", "padding_idx", (padding_idx,))
        check(-count <= padding_idx < count, "embedding", f"a padding_idx in [{-count}, {count - 1}]", padding_idx)
        padding_idx += count if padding_idx < 0 else 0
    if max_norm is not None:
        renormalize_rows(weight, input, max_norm, norm_type)
    if sparse:
        from tritorch.sparse.embedding import looked_up

        return looked_up(weight, input, -1 if padding_idx is None else padding_idx, scale_grad_by_freq)
    return table_rows(weight, input, -1 if padding_idx is None else padding_idx, scale_grad_by_freq)


def renormalize_rows(weight, input, max_norm, norm_type):
    """Scale the rows that are used down, in place, to this norm."""
    with no_grad():
        used = view.reshape(input, -1)
        rows = index_select(weight, 0, used)
        norms = rows.norm(norm_type, 1, True)
        put.into(weight, weight, (used, None), rows * (max_norm / (norms + 1e-7)).clamp(max=1.0), False, False)


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


def bincount(input, weights=None, minlength=0):
    """How often each number from 0 up occurs in a vector of integers, or the sum of their weights."""
    check(len(input.shape) == 1 and not input.dtype.is_floating_point, "bincount", "a vector of integers", input.dtype, input.shape)
    check(minlength >= 0, "bincount", "a minlength of at least 0", minlength)
    least, most = stack(list(input.aminmax())).tolist() if input.numel() else (0, -1)
    check(least >= 0, "bincount", "integers that are not negative", least)
    size = max(int(most) + 1, minlength)
    if weights is None:
        return tally(input, size, 0.0, 0.0, False)
    kind = types.float64 if weights.dtype is not types.float32 else types.float32
    return create.zeros(size, dtype=kind, device=input.device).index_add(0, input.to(types.int64), weights.to(kind))


def unravel_index(indices, shape):
    """The places in a tensor of `shape` that flat indices stand for: one index tensor a dim.

    >>> import tritorch as torch; torch.unravel_index(torch.tensor([0, 5]), (2, 3))
    (tensor([0, 1]), tensor([0, 2]))
    """
    check(not indices.dtype.is_floating_point and indices.dtype is not types.bool, "unravel_index", "indices of integers", indices.dtype,
          error=TypeError)
    indices = indices.to(types.int64)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    places = []
    for n in reversed(shape):
        places.append(indices % n)
        indices = indices // n
    return tuple(places[::-1])
