"""Medians: the middle element of each row in stable order, chosen where a program holds the row, else found in what was sorted."""
import numpy as np

from tritorch.cuda.launch import launch
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create, view
from tritorch.ops.copy import transfer
from tritorch.ops.ordering import longest
from tritorch.ops.ordering_cpu import order_of, place_of
from tritorch.ops.scatter import scatter_write
from tritorch.ops.selection import K, first_of_rows, kth_of_rows
from tritorch.shape import wrap_dim
from tritorch.tensor import empty


# ------------------------------------------------------------------ how they are found
def _place(rows, skip):
    """Of each row of a numpy array where its median is: that of its numbers, or, but for `skip`, its first NaN."""
    count = np.sum(rows == rows, 1)
    k = np.maximum((count + 1) // 2, 1) if skip else np.where(count < rows.shape[1], count + 1, (rows.shape[1] + 1) // 2)
    if k.size and (k == k[0]).all():                                     # no NaN
        return place_of(rows, 1, int(k[0]))
    return np.take_along_axis(order_of(rows, 1, False), k[:, None] - 1, 1)


def _find(values, indices, rows, skip):
    """The same on the GPU, into contiguous tensors of one element a row; `indices` may be None."""
    count, n = rows.shape
    kind = "numbers" if skip else "all"
    if n <= longest():
        indices = empty(values.shape, types.int64, rows.device) if indices is None else indices
        kth_of_rows(values, indices, rows, kind)
        return
    ordered, order = empty((count, n), rows.dtype, rows.device), empty((count, n), types.int64, rows.device)
    first_of_rows(ordered, order, rows, False)
    launch(K.middle_kernel, (count,), values, indices, ordered, order, n, STEPS=n.bit_length(), MEDIAN=kind, num_warps=1)


def _own(out):
    return out if out is None or out.is_contiguous() else empty(out.shape, out.dtype, out.device)


# ------------------------------------------------------------------ of rows
@op(returns=("values", "indices"))
def middle(input, dim, skip):
    """The median of the elements along `dim`, the lower of two, and where it is. With `skip` NaN does not count, else it is the median."""
    d = wrap_dim(dim, len(input.shape), "median")
    shape = (*input.shape[:d], *input.shape[d + 1:])
    check(not input.shape or input.shape[d] > 0, "median", "a dim that is not empty", input.shape, error=IndexError)
    return [(shape, input.dtype, input.storage.device), (shape, types.int64, input.storage.device)]


@middle.impl("cpu")
def middle_cpu(values, indices, input, dim, skip):
    if not input.ndim:
        values[...], indices[...] = input, 0
        return
    rows = np.moveaxis(input, dim, -1)
    rows = rows.reshape(values.size, input.shape[dim])
    place = _place(rows, skip)
    indices[...] = place.reshape(indices.shape)
    values[...] = np.take_along_axis(rows, place, 1).reshape(values.shape)


@middle.impl("cuda")
def middle_cuda(values, indices, input, dim, skip):
    if not input.shape:
        transfer(values, input)
        indices.fill_(0)
        return
    if not values.numel():
        return
    d = wrap_dim(dim, len(input.shape), "median")
    rows = view.reshape(view.movedim(input, d, -1).contiguous(), -1, input.shape[d])
    made = _own(values), _own(indices)
    _find(*made, rows, skip)
    for out, own in zip((values, indices), made):
        if own is not out:
            transfer(out, own)


@middle.grad("input")
def middle_grad(g_values, indices, input_shape, dim):
    if not input_shape:
        return g_values
    return scatter_write(create.new_zeros(g_values, input_shape), dim, indices.unsqueeze(dim), g_values.unsqueeze(dim))


@middle.samples
def middle_samples(make):
    yield make(7), 0, False
    yield make(3, 10), -1, True
    yield make(6, 2, 3), 1, False
    yield make(2, 600), 1, True
    yield make(600, 1), 0, False
    yield make(40, integer=True, low=-3, high=3), 0, False
    yield make(), 0, True
    yield make(0, 3), 1, False


@middle.errors
def middle_errors(make):
    yield (make(2, 0), 1, False), {}, IndexError, "expected a dim that is not empty"


@middle.workloads
def middle_workloads(make):
    x = make(1 << 14, 1 << 12, grad=False)
    yield "16384 rows of 4096 fp32", lambda: (x, 1, False), x.nbytes, 0


# ------------------------------------------------------------------ of all elements
@op
def middle_of_all(input, skip):
    """The median of all elements, as `middle`; its gradient is shared evenly by those that have its value, as in PyTorch."""
    return (), input.dtype, input.storage.device


@middle_of_all.impl("cpu")
def middle_of_all_cpu(out, input, skip):
    rows = input.reshape(1, -1)
    out[...] = np.take_along_axis(rows, _place(rows, skip), 1).reshape(())


@middle_of_all.impl("cuda")
def middle_of_all_cuda(out, input, skip):
    _find(out, None, view.reshape(input, 1, -1).contiguous(), skip)


@middle_of_all.grad("input")
def middle_of_all_grad(g, input, out):
    same = (input == out) | ((input != input) & (out != out))
    return (g / same.sum()).where(same, 0)


@middle_of_all.samples
def middle_of_all_samples(make):
    yield make(3, 5), False
    yield make(2, 4), True
    yield make(601), False
    yield make(40, integer=True, low=-3, high=3), False
    yield make(), True


@middle_of_all.workloads
def middle_of_all_workloads(make):
    x = make(1 << 24, grad=False)
    yield "16M fp32", lambda: (x, False), x.nbytes, 0
