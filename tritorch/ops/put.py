"""Writing elements where several index tensors point together: index_put, index_copy, index_fill, and writes under a mask."""
import numpy as np

from tritorch.cuda.launch import launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, refuse_misuse, sentence
from tritorch.memory_format import contiguous_format, dense_strides
from tritorch.ops import compare, copy, create, view
from tritorch.ops.bounds import every
from tritorch.ops.copy import transfer
from tritorch.ops.faults import fault_word
from tritorch.ops.indexing import (
    K,
    add_slices,
    check_index,
    check_long,
    check_range,
    finish,
    in_order,
    index_select,
    linear_places,
    write_rows,
)
from tritorch.ops.segments import join_rows
from tritorch.ops.tiling import collapse
from tritorch.pairs import OWN, check_number
from tritorch.shape import broadcast_shapes, cdiv, prod, wrap_dim
from tritorch.storage import Batched
from tritorch.tensor import Tensor, empty


@op(aliasable=("input",))
def put(input, indices, values, accumulate, wrap=True):
    """input with `values` written (or added) where the index tensors point; `indices` has one tensor or None for each dim. With `wrap`
    negative indices count from the end."""
    shape = put_shape(input, indices)
    if broadcast_shapes("index_put", shape, values.shape) != shape:
        raise RuntimeError(sentence("index_put", f"values that broadcast to {shape}", values.shape))
    if values.dtype is not input.dtype:
        raise RuntimeError(sentence("index_put", f"values of {input.dtype}", values.dtype))
    return input.shape, input.dtype, common_device("index_put", input, *indices, values), input.strides, dense_strides


def put_shape(input, indices):
    """The shape of input[indices]."""
    for k in indices:
        if k is not None:
            check_index("index", k, IndexError)
    picked = [d for d, k in enumerate(indices) if k is not None]
    try:
        common = broadcast_shapes("index", *[indices[d].shape for d in picked])
    except RuntimeError as error:
        raise IndexError(*error.args) from None
    kept = [n for d, n in enumerate(input.shape) if d not in picked]
    if picked == list(range(picked[0], picked[-1] + 1)):
        lead = picked[0]
        return (*kept[:lead], *common, *kept[lead:])
    return (*common, *kept)


@put.impl("cpu")
def put_cpu(out, input, indices, values, accumulate, wrap):
    picked = [d for d, k in enumerate(indices) if k is not None]
    for d in picked:
        check_range("index_put", indices[d], input.shape[d], wrap=wrap)
    made = np.array(input)
    key = tuple([slice(None) if k is None else k for k in indices])
    if accumulate:
        wide = made.astype(np.float32) if made.dtype.itemsize == 2 and made.dtype.kind not in "iu" else made
        if len(picked) == 1:
            d = picked[0]
            index, full = indices[d].reshape(-1).astype(np.int64, copy=False), (*input.shape[:d], *indices[d].shape, *input.shape[d + 1:])
            source = np.broadcast_to(values, full).reshape(*input.shape[:d], index.size, *input.shape[d + 1:])
            add_slices(wide, d, np.where(index < 0, index + input.shape[d], index), source.astype(wide.dtype))
        else:
            np.add.at(wide, key, values.astype(wide.dtype))
        made = wide
    else:
        made[key] = values
    np.copyto(out, made, casting="unsafe")


@put.impl("cuda")
def put_cuda(out, input, indices, values, accumulate, wrap):
    picked = [d for d, k in enumerate(indices) if k is not None]
    order = (*picked, *[d for d in range(len(input.shape)) if d not in picked])
    sizes = [input.shape[d] for d in order]
    rows, width = prod(sizes[:len(picked)]), prod(sizes[len(picked):])
    places, values = flat_rows(input.shape, indices, picked, wrap), values_of(input, indices, picked, values)
    if not accumulate:
        if input.data_ptr() != out.data_ptr():
            transfer(out, input)
        return write_rows(view.permute_dims(out, order), len(picked), places, values)
    here = out.is_contiguous() and order == (*range(len(order)),)        # the rows follow each other in memory as they are
    if here:
        made = view.reshape(out, rows, width)
        base = made if input.data_ptr() == out.data_ptr() else view.reshape(input, rows, width)
    else:
        made = base = empty((rows, width), out.dtype, out.device)
        transfer(view.reshape(made, sizes), view.permute_dims(input, order))
    join_rows(made, base, places, view.reshape(values, values.shape[0], width))
    if not here:
        transfer(out, view.permute_dims(view.reshape(made, sizes), [order.index(d) for d in range(len(order))]))


def values_of(input, indices, picked, values):
    """The values for input[indices], those of one place next to each other."""
    values = view.expand_to(values, put_shape(input, indices))
    count = len(broadcast_shapes("index", *[indices[d].shape for d in picked]))
    if picked == list(range(picked[0], picked[-1] + 1)):
        values = view.movedim(values, tuple(range(picked[0], picked[0] + count)), tuple(range(count)))
    return view.reshape(values, prod(values.shape[:count]), *values.shape[count:])


def flat_rows(shape, indices, picked, wrap=True):
    """The row of each place in the tensor whose picked dims are its rows; on CUDA -1 where an index is outside."""
    if len(picked) == 1 and indices[picked[0]].device.type != "cpu":
        return linear_places(view.reshape(indices[picked[0]], -1), 0, (shape[picked[0]],), "index", wrap)
    return joint_places(tuple([indices[d] for d in picked]), tuple([shape[d] for d in picked]), wrap)


@op
def joint_places(indices, sizes, wrap=True):
    """The flat places in a tensor of these sizes that index tensors, one a dim, name together; they broadcast. -1 where CUDA finds one
    outside, which is reported; the CPU raises IndexError. With `wrap` negative indices count from the end."""
    return (prod(broadcast_shapes("index", *[k.shape for k in indices])),), types.int64, common_device("index", *indices)


@joint_places.impl("cpu")
def joint_places_cpu(out, indices, sizes, wrap):
    total = 0
    for k, size in zip(indices, sizes):
        check_range("index", k, size, wrap=wrap)
        k = k.astype(np.int64, copy=False)
        total = total * size + np.where(k < 0, k + size, k)
    out[...] = total.reshape(-1)


@joint_places.impl("cuda")
def joint_places_cuda(out, indices, sizes, wrap):
    if out.numel():
        common, made, block = broadcast_shapes("index", *[k.shape for k in indices]), in_order(out), tile(512, 1 << 14)
        shape, *strides = collapse(common, *[view.expand_to(k, common).strides for k in indices], least=1)
        word, number = fault_word(out.device, "index")
        launch(K.joint_places_kernel, (cdiv(out.numel(), block),), made, word, tuple(indices), shape, sum(strides, ()), tuple(sizes),
               out.numel(), number, WRAP=wrap, RANK=len(shape), BLOCK=block)
        finish(out, made)


@joint_places.samples
def joint_places_samples(make):
    low = {"integer": True, "low": -3, "high": 3}
    yield (make(5, **low), make(5, **low)), (3, 7)
    yield (make(2, 1, **low), make(3, **low), make(**low)), (4, 3, 3)
    yield (make(4, integer=True, low=0, high=3), make(4, integer=True, low=0, high=3)), (3, 3), False
    yield (make(0, **low), make(1, **low)), (3, 3)


@joint_places.errors
def joint_places_errors(make):
    outside, inside = make(2, integer=True, low=3, high=4), make(2, integer=True, low=0, high=3)
    yield ((outside, inside), (3, 3)), {}, IndexError, "indices in [-3, 2], got 3"


@joint_places.workloads
def joint_places_workloads(make):
    index = make(1 << 22, integer=True, low=0, high=1 << 10)
    yield "4M int64 twice", lambda: ((index, index), (1 << 10, 1 << 10)), 3 * index.nbytes, 0


put.complex = OWN


@put.grad("input")
def put_grad_input(g, indices, accumulate, wrap):
    return g if accumulate else put(g, indices, create.new_zeros(g, ()), False, wrap)


@put.grad("values")
def put_grad_values(g, indices, accumulate, input_shape):
    from tritorch.ops.picking import index

    if accumulate:
        return index(g, indices)
    places = create.arange(prod(put_shape(g, indices)), device=g.device).reshape(put_shape(g, indices))
    winner = put(create.full(input_shape, -1, dtype=types.int64, device=g.device), indices, places, False)
    return index(g, indices).masked_fill(index(winner, indices) != places, 0)


@put.samples
def put_samples(make):
    low = {"integer": True, "low": -3, "high": 3}
    for accumulate in (False, True):
        yield make(4, 3), (make(5, **low), None), make(5, 3), accumulate
        yield make(4, 3, 5), (make(2, 1, **low), None, make(3, **low)), make(2, 3, 3), accumulate
        yield make(2, 4, 3), (None, make(2, **low), make(2, **low)), make(1), accumulate
    yield make(4), (make(0, integer=True),), make(0), False
    yield make(4, 3), (make(5, integer=True, low=0, high=4), None), make(5, 3), False, False


@put.workloads
def put_workloads(make):
    x, index = make(1 << 15, 1 << 10, grad=False), make(1 << 15, integer=True, low=0, high=1 << 15)
    yield "32768 rows of 1024 fp32", lambda: (x, (index, None), x, True), 3 * x.nbytes + index.nbytes, 1 << 25


def index_put(input, indices, values, accumulate=False, *, out=None):
    """input with `values` written (or, with accumulate, added) at the places that the index tensors name together."""
    from tritorch.ops.getitem import resolve

    check(isinstance(indices, (tuple, list)), "index_put", "a tuple of index tensors", type(indices).__name__, error=TypeError)
    key = tuple(indices)

    part, picks = resolve(input, key, values)
    check(picks is not None and part.shape == input.shape, "index_put", "index tensors", key)
    values = values.to(input.dtype) if values.dtype is not input.dtype and not values.shape else values
    return put(input, picks, values, accumulate) if out is None else put.into(out, input, picks, values, accumulate)


def write(part, picks, value):
    """`part[picks] = value` in place: what x[...] = v does after its basic part is resolved."""
    if not isinstance(value, Tensor):
        check_number("index_put", part.dtype, value)
        value = create.full((), value, dtype=part.dtype, device=part.device)
    value = value if value.shape else value.to(part.device)
    shape = put_shape(part, picks)
    while len(value.shape) > len(shape) and value.shape[0] == 1:
        value = value[0]
    put.into(part, part, picks, value, False)


# ------------------------------------------------------------------ along one dim
def _along(input, dim, index):
    return tuple([index.reshape(-1) if d == wrap_dim(dim, len(input.shape), "index") else None for d in range(len(input.shape))])


def index_copy(input, dim, index, source, *, out=None):
    """input with the slices along `dim` that `index` names replaced by those of source."""
    check(len(index.shape) <= 1, "index_copy", "a vector of indices", index.shape, error=IndexError)
    check_long("index_copy", index)
    d = wrap_dim(dim, len(input.shape), "index_copy")
    count = source.shape[d] if source.shape else 1
    check(count == index.numel(), "index_copy", f"a source of {index.numel()} slices", count, error=IndexError)
    want = (*input.shape[:d], count, *input.shape[d + 1:])
    check(source.shape == want or len(input.shape) < 2 and len(source.shape) < 2, "index_copy", f"a source of shape {want}", source.shape)
    made = index_put_along(input, dim, index, source, out, False)
    return made if out is not None else copy.contiguous(made)            # as PyTorch's


def index_fill(input, dim, index, value, *, out=None):
    """input with the slices along `dim` that `index` names filled with a number."""
    check(len(index.shape) <= 1, "index_fill", "a vector of indices", index.shape)
    check_long("index_fill", index, IndexError)
    check_number("index_fill", input.dtype, value)
    if isinstance(value, Tensor):
        check(not value.shape, "index_fill", "a number or a 0-dim tensor", value.shape)
        value = value.to(input.device, input.dtype)
    else:
        value = create.full((), value, dtype=input.dtype, device=input.device)
    return index_put_along(input, dim, index, value, out)


def index_put_along(input, dim, index, values, out=None, wrap=True):
    if not input.shape:                                                  # a number is a vector of one element
        made = index_put_along(view.reshape(input, 1), dim, index, values, wrap=wrap)
        return copy.deliver(view.reshape(made, ()), out)
    values = input, _along(input, dim, index), values, False, wrap
    return put(*values) if out is None else put.into(out, *values)


# ------------------------------------------------------------------ masks
def masked_fill(input, mask, value, *, out=None):
    """input with the number `value` where the mask holds, contiguous; the mask broadcasts.

    >>> import tritorch as torch; torch.arange(3).masked_fill(torch.tensor([True, False, True]), -1)
    tensor([-1,  1, -1])
    """
    try:
        check(mask.dtype is types.bool, "masked_fill", "a mask of bools", mask.dtype)
        check_number("masked_fill", input.dtype, value)
        if isinstance(value, Tensor):
            check(not value.shape, "masked_fill", "a number or a 0-dim tensor", value.shape)
            value = value.to(input.device, input.dtype)
        elif input.dtype.category == 1:
            copy.check_fits("masked_fill", value, input.dtype)
            value = int(value)
        elif input.dtype is types.bool:
            value = bool(value)
        made = compare.choose(mask, value, input) if out is None else compare.choose.into(out, mask, value, input)
        made = made if made.dtype is input.dtype else made.to(input.dtype)
        return made if out is not None or made.is_contiguous() else made.contiguous()
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def masked_scatter(input, mask, source, *, out=None):
    """input with the elements where the mask holds replaced by those of source, in order; input and mask broadcast."""
    from tritorch.ops.picking import mask_to_indices

    check(mask.dtype is types.bool, "masked_scatter", "a mask of bools", mask.dtype)
    check(source.dtype is input.dtype, "masked_scatter", f"a source of {input.dtype}", source.dtype)
    shape = broadcast_shapes("masked_scatter", input.shape, mask.shape)
    input, mask = view.expand_to(input, shape), view.expand_to(mask, shape)
    if type(mask.storage) is Batched and source.numel():                 # no index of one length for all samples of vmap
        made = _in_turn(input, mask, source)
        return made if out is None else copy.copy_(out, made)
    places, = mask_to_indices(mask.reshape(-1), (mask.numel(),), source.numel())
    check(source.numel() >= places.numel(), "masked_scatter", f"a source of at least {places.numel()} elements", source.numel())
    made = put(input.reshape(-1), (places,), source.reshape(-1)[:places.numel()], False).reshape(input.shape)
    return made if out is None else copy.copy_(out, made)


def _in_turn(input, mask, source):
    """masked_scatter by the running number of places where the mask holds."""
    turn = view.reshape(mask, -1).cumsum(0) - 1
    count = every(turn).amax().item() + 1 if turn.numel() and every(turn).numel() else 0
    check(source.numel() >= count, "masked_scatter", f"a source of at least {count} elements", source.numel())
    picked = index_select(view.reshape(source, -1), 0, compare.clamp(turn, min=0))
    return compare.choose(mask, view.reshape(picked, mask.shape), input)


# ------------------------------------------------------------------ single places
def put_elements(input, index, source, accumulate=False):
    """input with the elements of source written (or added) at places of the flattened tensor."""
    check_long("put", index)
    flat = view.reshape(input.clone(memory_format=contiguous_format), -1)
    made = view.reshape(put(flat, (view.reshape(index, -1),), view.reshape(source, -1), accumulate), input.shape)
    if input.is_contiguous():
        return made
    return copy.copy_to(made, made.dtype, made.device, dense_strides(input.shape, input.strides))


def put_(input, index, source, accumulate=False):
    """Write (or add) the elements of source at places of the flattened tensor."""
    return copy.copy_(input, put_elements(input, index, source, accumulate))


def fill_diagonal_(input, fill_value, wrap=False):
    """Write a number on the main diagonal (of equal dims if there are more than two); `wrap` starts again below it in tall matrices."""
    check(len(input.shape) >= 2, "fill_diagonal_", "at least 2 dims", input.shape)
    check(len(input.shape) == 2 or len(set(input.shape)) == 1, "fill_diagonal_", "equal sizes in more than 2 dims", input.shape)
    rows, count, step = input.shape[0], min(input.shape), sum(input.strides)
    copy.fill_(input.as_strided((count,), (step,), input.offset), fill_value)
    if wrap and len(input.shape) == 2:
        for start in range(input.shape[1] + 1, rows, input.shape[1] + 1):
            fill_diagonal_(input[start:], fill_value)
    return input


def apply_(input, callable):
    """Each element replaced by the Python function of it; on the CPU, slow."""
    check(input.device.type == "cpu", "apply_", "a tensor on the CPU", input.device, error=TypeError)
    check(not input.requires_grad, "apply_", "a tensor without gradient", "requires_grad=True", use="detach()")
    made = [callable(v) for v in view.reshape(input, -1).tolist()]
    return copy.copy_(input, view.reshape(create.tensor(made, dtype=input.dtype), input.shape))


def map_(input, tensor, callable):
    """Each element replaced by the Python function of it and the one of `tensor`; on the CPU, slow."""
    check(input.device.type == tensor.device.type == "cpu", "map_", "tensors on the CPU", input.device, tensor.device, error=TypeError)
    check(not input.requires_grad, "map_", "a tensor without gradient", "requires_grad=True", use="detach()")
    pairs = zip(view.reshape(input, -1).tolist(), view.reshape(view.expand_to(tensor, input.shape), -1).tolist())
    return copy.copy_(input, view.reshape(create.tensor([callable(a, b) for a, b in pairs], dtype=input.dtype), input.shape))
