"""Sorting and what rests on it: sort, topk, kthvalue, unique, searchsorted, histc, histogram."""
import math

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import promote, types
from tritorch.errors import check, real_numbers, tensors
from tritorch.memory_format import dense_strides
from tritorch.ops import compare, copy, create, linspace, slicing, view
from tritorch.ops.bincount import tally
from tritorch.ops.copy import transfer
from tritorch.ops.destinations import deliver_all
from tritorch.ops.indexing import finish, gather, in_order, index_select
from tritorch.ops.ordering import longest
from tritorch.ops.ordering_cpu import order_of, place_of
from tritorch.ops.scatter import scatter_write
from tritorch.ops.selection import first_of_rows, kth_of_rows
from tritorch.pairs import refuse
from tritorch.return_types import result
from tritorch.shape import cdiv, memory_order, own_dim, prod, wrap_dim
from tritorch.tensor import Tensor, empty

K = kernels("sorting")
sort_result = result("sort", "values indices")
topk_result = result("topk", "values indices")
kthvalue_result = result("kthvalue", "values indices")
histogram_result = result("histogram", "hist bin_edges")


# ------------------------------------------------------------------ the first k of each row, in order
@op(returns=("values", "indices"))
def sorted_first(input, k, dim, descending, alike=False):
    """The k smallest (or greatest) elements along `dim` in order, equal ones as they came, and where they were. NaN counts as the
    greatest. `alike`: the results keep the input's order of dims."""
    if not input.shape:
        check(0 <= k <= 1, "topk", "k of at most 1", k)
        return [((), input.dtype, input.storage.device), ((), types.int64, input.storage.device)]
    d = wrap_dim(dim, len(input.shape), "sort")
    check(0 <= k <= input.shape[d], "topk", f"k between 0 and {input.shape[d]}, the size of dim {d}", k)
    shape = (*input.shape[:d], k, *input.shape[d + 1:])
    order = (input.strides, dense_strides) if alike else ()
    return [(shape, input.dtype, input.storage.device, *order), (shape, types.int64, input.storage.device, *order)]


@sorted_first.impl("cpu")
def sorted_first_cpu(values, indices, input, k, dim, descending, alike=False):
    if not input.shape:
        values[...], indices[...] = input, 0
        return
    order = order_of(input, dim, descending, k)
    indices[...] = order
    values[...] = np.take_along_axis(input, order, dim)


def _trivial(values, indices, input):
    """Whether nothing is to be sorted: no elements, or a tensor without dims, which is then its own result."""
    if not input.shape:
        transfer(values, input)
        indices.fill_(0)
    return not input.shape or not values.numel()


@sorted_first.impl("cuda")
def sorted_first_cuda(values, indices, input, k, dim, descending, alike=False):
    if _trivial(values, indices, input):
        return
    d = wrap_dim(dim, len(input.shape), "sort")
    order = [*[o for o in memory_order(values.strides) if o != d], d]    # of the results: of `dim` alone it may differ
    rows = view.reshape(view.permute_dims(input, order).contiguous(), -1, input.shape[d])
    outs = [view.permute_dims(x, order) for x in (values, indices)]
    if all(x.is_contiguous() for x in outs):
        first_of_rows(*[view.reshape(x, -1, k) for x in outs], rows, descending)
        return
    made = [empty(x.shape, x.dtype, x.device) for x in outs]
    first_of_rows(*[view.reshape(m, rows.shape[0], k) for m in made], rows, descending)
    for out, m in zip(outs, made):
        transfer(out, m)


@sorted_first.grad("input")
def sorted_first_grad(g_values, indices, input_shape, dim):
    return scatter_write(create.new_zeros(g_values, input_shape), dim, indices, g_values)


@sorted_first.samples
def sorted_first_samples(make):
    yield make(7), 7, 0, False
    yield make(3, 9), 4, -1, True
    yield make(6, 2, 3), 6, 0, False
    yield make(40, integer=True, low=-3, high=3), 40, 0, True
    yield make(), 1, 0, False
    yield make(0, 3), 3, 1, False
    yield make(5, 3), 0, 0, True
    yield make(2, 300), 5, 1, True
    yield make(3, 4, 2), 4, 1, False, True


@sorted_first.workloads
def sorted_first_workloads(make):
    n, x = 1 << 26, make(1 << 14, 1 << 12, grad=False)
    yield "64M fp32", lambda: (x.view(-1), n, 0, False), 4 * x.nbytes, 0              # values in and out, indices out
    yield "64M bf16", lambda: (x.view(-1).to(types.bfloat16), n, 0, False), 3 * x.nbytes, 0
    yield "64 rows of 1M fp32", lambda: (x.view(64, -1), n // 64, 1, False), 4 * x.nbytes, 0
    yield "16384 rows of 4096 fp32", lambda: (x, 1 << 12, 1, False), 4 * x.nbytes, 0
    yield "1M rows of 64 fp32", lambda: (x.view(-1, 64), 64, 1, False), 4 * x.nbytes, 0
    yield "top 64 of 16384 rows of 4096 fp32", lambda: (x, 64, 1, True), x.nbytes, 0
    yield "top 64 of 64 rows of 1M fp32", lambda: (x.view(64, -1), 64, 1, True), x.nbytes, 0


def sort_pairs(input, dim, descending):
    """(values, indices) of all elements along `dim`, in stable order."""
    return sorted_first(input, input.shape[wrap_dim(dim, len(input.shape), "sort")] if input.shape else 1, dim, descending, True)


def sort(input, dim=-1, descending=False, stable=False, *, out=None):
    """The elements along `dim` in order, and where they were; always stable. NaN is the greatest.

    >>> import tritorch as torch; torch.tensor([3, 1, 2]).sort().values
    tensor([1, 2, 3])
    """
    return deliver_all(sort_result, sort_pairs(input, dim, descending), out)


def argsort(input, dim=-1, descending=False, *, stable=False):
    """Where the elements along `dim` are in their order."""
    return sort_pairs(input, dim, descending)[1]


def msort(input, *, out=None):
    """The elements along dim 0 in order."""
    made = sort_pairs(input, 0, False)[0]
    return copy.deliver(made, out)


def topk(input, k, dim=-1, largest=True, sorted=True, *, out=None):
    """The k greatest (or smallest) elements along `dim`, in order, and where they are.

    >>> import tritorch as torch; torch.tensor([3, 1, 2]).topk(2)
    tritorch.return_types.topk(
    values=tensor([3, 2]),
    indices=tensor([0, 2]))
    """
    return deliver_all(topk_result, sorted_first(input, k, dim, largest), out)


@op(returns=("values", "indices"))
def order_statistic(input, k, dim):
    """The k-th smallest element along `dim` (k from 1), in stable order, and where it is."""
    n = input.shape[wrap_dim(dim, len(input.shape), "kthvalue")] if input.shape else 1
    check(n > 0, "kthvalue", "a dim that is not empty", input.shape, error=IndexError)
    check(1 <= k <= n, "kthvalue", f"k between 1 and {n}", k)
    d = wrap_dim(dim, len(input.shape), "kthvalue")
    shape = (*input.shape[:d], *input.shape[d + 1:])
    return [(shape, input.dtype, input.storage.device), (shape, types.int64, input.storage.device)]


@order_statistic.impl("cpu")
def order_statistic_cpu(values, indices, input, k, dim):
    if not input.shape:
        values[...], indices[...] = input, 0
        return
    order = place_of(input, dim, k)
    indices[...] = order.reshape(indices.shape)
    values[...] = np.take_along_axis(input, order, dim).reshape(values.shape)


@order_statistic.impl("cuda")
def order_statistic_cuda(values, indices, input, k, dim):
    if _trivial(values, indices, input):
        return
    d = wrap_dim(dim, len(input.shape), "kthvalue")
    rows = view.reshape(view.movedim(input, d, -1).contiguous(), -1, input.shape[d])
    if tile(256, 32) <= rows.shape[1] <= longest():
        made = [empty((rows.shape[0],), x.dtype, x.device) for x in (values, indices)]
        kth_of_rows(*made, rows, k)
    else:
        made = [empty((rows.shape[0], k), x.dtype, x.device) for x in (values, indices)]
        first_of_rows(*made, rows, False)
        made = [slicing.select(m, 1, k - 1) for m in made]
    for out, m in zip((values, indices), made):
        transfer(out, view.reshape(m, out.shape))


@order_statistic.grad("input")
def order_statistic_grad(g_values, indices, input_shape, dim):
    if not input_shape:
        return g_values
    return scatter_write(create.new_zeros(g_values, input_shape), dim, indices.unsqueeze(dim), g_values.unsqueeze(dim))


@order_statistic.samples
def order_statistic_samples(make):
    yield make(7), 7, 0
    yield make(3, 9), 4, -1
    yield make(6, 2, 3), 1, 0
    yield make(2, 40), 21, 1
    yield make(40, integer=True, low=-3, high=3), 20, 0
    yield make(), 1, 0
    yield make(0, 3), 3, 1


@order_statistic.workloads
def order_statistic_workloads(make):
    x = make(1 << 14, 1 << 12, grad=False)
    yield "median of 16384 rows of 4096 fp32", lambda: (x, 1 << 11, 1), x.nbytes, 0


def kthvalue(input, k, dim=-1, keepdim=False, *, out=None):
    """The k-th smallest element along `dim` (k from 1), and where it is."""
    pair = order_statistic(input, k, dim)
    return deliver_all(kthvalue_result, [view.unsqueeze(x, dim) for x in pair] if keepdim and input.shape else pair, out)


# ------------------------------------------------------------------ different elements
def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    """Runs of equal elements (or, with `dim`, of equal slices) as one each."""
    if input.dtype.is_complex:
        refuse("unique_consecutive", input)
    if dim is None:
        rows, back = view.reshape(input, -1, 1), None
    else:
        back = own_dim(dim, input.shape, "unique")
        rows = _slices(input, back)
    n = rows.shape[0]
    first = create.ones(n, dtype=types.bool, device=input.device)
    if n > 1:
        first[1:] = (rows[1:] != rows[:-1]).any(1)
    starts = view.reshape(first.nonzero(), -1)
    made = rows[starts]
    made = view.reshape(made, -1) if back is None else view.movedim(view.reshape(made, made.shape[0], *input.shape[:back],
                                                                                 *input.shape[back + 1:]), 0, back)
    inverse = first.to(types.int64).cumsum(0) - 1
    if return_inverse and back is None:
        inverse = view.reshape(inverse, input.shape)
    ends = starts.new_full((starts.shape[0],), n)
    if starts.shape[0] > 1:
        ends[:-1] = starts[1:]
    return _chosen(made, inverse if return_inverse else None, ends - starts if return_counts else None)


def _slices(input, dim):
    """The slices along `dim` as rows."""
    size = prod(input.shape[:dim]) * prod(input.shape[dim + 1:])
    check(size > 0, "unique", "slices that are not empty", input.shape)
    return view.reshape(view.movedim(input, dim, 0), input.shape[dim], size)


def _chosen(made, inverse, counts):
    extra = [x for x in (inverse, counts) if x is not None]
    return (made, *extra) if extra else made


def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """The distinct elements in order (with `dim`: the distinct slices).

    >>> import tritorch as torch; torch.tensor([2, 1, 2]).unique()
    tensor([1, 2])
    """
    if dim is None:
        (rows, order), d = sort_pairs(view.reshape(input, -1), 0, False), None
    else:
        d = own_dim(dim, input.shape, "unique")
        flat = _slices(input, d)
        order = create.arange(input.shape[d], device=input.device)
        for column in reversed(range(flat.shape[1])):                    # the slices in lexical order: stable sorts from the last column on
            order = order[argsort(flat[order, column], 0)]
        rows = index_select(input, d, order)
    made = unique_consecutive(rows, True, True, d)
    inverse = scatter_write(create.empty_like(order), 0, order, view.reshape(made[1], -1)) if return_inverse else None
    if inverse is not None and d is None:
        inverse = view.reshape(inverse, input.shape)
    return _chosen(made[0], inverse, made[2] if return_counts else None)


# ------------------------------------------------------------------ places in sorted sequences
@op
def search_sorted_rows(sorted_sequence, values, right, kind):
    """How many elements of the sorted rows are below each value (`right`: below or equal)."""
    return values.shape, kind, common_device("searchsorted", sorted_sequence, values)


@search_sorted_rows.impl("cpu")
def search_sorted_rows_cpu(out, sorted_sequence, values, right, kind):
    side = "right" if right else "left"
    if sorted_sequence.ndim == 1:
        out[...] = np.searchsorted(sorted_sequence, values, side)
        return
    n = sorted_sequence.shape[-1]
    made = [np.searchsorted(s, v, side) for s, v in
            zip(sorted_sequence.reshape(prod(sorted_sequence.shape[:-1]), n), values.reshape(prod(values.shape[:-1]), values.shape[-1]))]
    out[...] = np.array(made).reshape(out.shape)


@search_sorted_rows.impl("cuda")
def search_sorted_rows_cuda(out, sorted_sequence, values, right, kind):
    count, n = values.numel(), sorted_sequence.shape[-1]
    if not count:
        return
    common = promote(sorted_sequence, values)
    made, block = in_order(out), tile(512, 4096)
    launch(K.search_kernel, (cdiv(count, block),), made, sorted_sequence.to(common).contiguous(), values.to(common).contiguous(), n,
           values.shape[-1] if values.shape else 1, count, STEPS=n.bit_length(), RIGHT=right, ONE=len(sorted_sequence.shape) == 1,
           WIDE=count + block >= 1 << 31, BLOCK=block)
    finish(out, made)


@search_sorted_rows.samples
def search_sorted_rows_samples(make):
    yield sort(make(9, grad=False)).values, make(3, 4, grad=False), False, types.int64
    yield sort(make(3, 6, grad=False)).values, make(3, 4, grad=False), True, types.int32
    yield create.arange(5, device=make(1).device), make(7, integer=True, low=-1, high=7), True, types.int64
    yield sort(make(4, grad=False)).values, make(grad=False), False, types.int64


@search_sorted_rows.workloads
def search_sorted_rows_workloads(make):
    x, places = make(1 << 22, grad=False), create.arange(1024, dtype=types.float32).to(make(1).device)
    yield "4M in 1024 fp32", lambda: (places, x, False, types.int64), 3 * x.nbytes, 0


def searchsorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None, out=None):
    """Where each value would go in the sorted rows so that they stay sorted: before equal elements, or after them if `right`.

    >>> import tritorch as torch; torch.searchsorted(torch.tensor([1, 3, 5]), torch.tensor([3, 4]))
    tensor([1, 2])
    """
    check(side in (None, "left", "right") and not (side == "left" and right), "searchsorted",
          "side 'left' or 'right' that agrees with right", (side, right))
    values = input if isinstance(input, Tensor) else create.tensor(input, device=sorted_sequence.device)
    check(values.device == sorted_sequence.device, "searchsorted", f"values on {sorted_sequence.device}", values.device)
    check(sorted_sequence.shape, "searchsorted", "a sorted sequence of at least 1 dim", sorted_sequence.shape)
    if len(sorted_sequence.shape) > 1:
        check(values.shape[:-1] == sorted_sequence.shape[:-1], "searchsorted", "the same leading dims", sorted_sequence.shape, values.shape)
    if sorter is not None:
        sorted_sequence = gather(sorted_sequence, -1, sorter)
    kind = types.int32 if out_int32 else types.int64
    args = sorted_sequence.detach(), values.detach(), right or side == "right", kind
    return search_sorted_rows(*args) if out is None else search_sorted_rows.into(out, *args)


def bucketize(input, boundaries, *, out_int32=False, right=False, out=None):
    """The number of the bucket, between sorted boundaries, that each value falls into."""
    check(len(boundaries.shape) == 1, "bucketize", "boundaries of 1 dim", boundaries.shape)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right, out=out)


def histc(input, bins=100, min=0, max=0, *, out=None):
    """How many elements fall into each of `bins` equal parts of [min, max], or, where these are equal, of the range of the data."""
    tensors("histc", input=input)
    real_numbers("histc", bins=bins, min=min, max=max)
    check(bins > 0, "histc", "at least 1 bin", bins)
    flat = view.reshape(input.detach(), -1)
    ranged = min == max and flat.numel() and not flat.is_meta            # what the range is does not show in the shape
    low, high = (float(flat.min().item()), float(flat.max().item())) if ranged else (float(min), float(max))
    low, high = (low - 1, high + 1) if low == high else (low, high)
    check(low < high, "histc", "max greater than min", (low, high))
    check(math.isfinite(low) and math.isfinite(high), "histc", "a finite range", (low, high))
    return copy.deliver(tally(flat, bins, low, high, True).to(input.dtype), out)


def histogram(input, bins, *, range=None, weight=None, density=False, out=None):
    """(hist, bin_edges): how many elements, or how much of `weight`, fall into each bin.

    `bins` is a number of equal parts of `range`, (low, high), by default that of the data; or a sorted tensor of edges. A bin holds its
    lower edge, the last one both. With `density` the integral over all bins is 1.

    >>> import tritorch as torch
    >>> hist, edges = torch.histogram(torch.tensor([1.0, 2.0, 1.0]), bins=4, range=(0.0, 3.0))
    >>> hist.tolist(), edges.tolist()
    ([0.0, 2.0, 1.0, 0.0], [0.0, 0.75, 1.5, 2.25, 3.0])
    """
    check(input.dtype.is_floating_point, "histogram", "a floating tensor", input.dtype)
    flat = view.reshape(input.detach(), -1)
    if isinstance(bins, int):
        check(bins > 0, "histogram", "at least 1 bin", bins)
        low, high = range or ((flat.min().item(), flat.max().item()) if flat.numel() else (0.0, 1.0))
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        bins = linspace.linspace(low, high, bins + 1, dtype=input.dtype, device=input.device)
    else:
        bins = bins.clone()                                              # given back, as tensors of the caller's own
    check(len(bins.shape) == 1 and bins.numel() > 1 and bins.dtype is input.dtype, "histogram", f"a vector of edges in {input.dtype}", bins)
    inside = (flat >= bins[0]) & (flat <= bins[-1])
    places = compare.clamp(searchsorted(bins, flat[inside], right=True) - 1, max=bins.numel() - 2)
    weight = weight if weight is None else view.reshape(weight.detach(), -1)[inside]
    made = places.bincount(weight, minlength=bins.numel() - 1).to(input.dtype)
    return deliver_all(histogram_result, (made / (made.sum() * bins.diff()) if density else made, bins), out)
