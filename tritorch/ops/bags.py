"""Bags of rows of a table: their sums, means and largest elements, and the gradients, which add up equal rows in their order."""
import warnings

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.ops import create, view
from tritorch.ops.embedding import rarity, renormalize_rows
from tritorch.ops.faults import fault_word
from tritorch.ops.indexing import add_slices, check_index, finish, in_order, linear_places
from tritorch.ops.normalize import contiguous
from tritorch.ops.segments import join_rows
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import Tensor

K = kernels("bags")
NAME, INSIDE = "embedding_bag", "indices inside the table"
OFFSETS = "offsets from 0 on that do not fall, up to the number of indices"


# ------------------------------------------------------------------ what all of them check and lay out
def bags_of(table, index, offsets):
    """How many bags there are, after the checks of all that is looked up."""
    for x in (index, *(() if offsets is None else (offsets,))):
        check_index(NAME, x)
    check(len(table.shape) == 2, NAME, "a weight of 2 dims", table.shape, error=ValueError)
    check(table.dtype.is_floating_point, NAME, "a weight of a floating dtype", table.dtype)
    check(table.shape[0] > 0 or not index.numel(), NAME, "rows in the weight", table.shape)
    if offsets is None:
        check(len(index.shape) == 2, NAME, "offsets, or an input of 2 dims", index.shape, error=ValueError)
        return index.shape[0]
    check(len(index.shape) == len(offsets.shape) == 1, NAME, "vectors of indices and offsets", index.shape, offsets.shape, error=ValueError)
    return offsets.shape[0]


def layout_of(index, offsets):
    """The begin of each bag, as an array, and the bag of each index."""
    if offsets is None:
        starts = np.arange(index.shape[0]) * index.shape[1]
    else:
        starts = offsets.astype(np.int64)
        check(not starts.size or starts[0] == 0, NAME, "offsets from 0 on", starts[0] if starts.size else None)
        check(not starts.size or starts.max() <= index.size, NAME, f"offsets up to {index.size}, the number of indices", starts)
        check(bool((np.diff(starts) >= 0).all()), NAME, "offsets that do not fall", starts)
    return starts, np.repeat(np.arange(len(starts)), np.diff(np.append(starts, index.size))) if len(starts) else np.zeros(index.size, int)


def known_of(index, rows, padding_idx):
    """The indices in a row, and which of them count."""
    flat = index.reshape(-1)
    bad = (flat < 0) | (flat >= rows)
    check(not bad.any(), NAME, f"indices in [0, {rows - 1}]", flat[bad][0] if bad.any() else None)
    return flat, flat != padding_idx


def wide_of(dtype):
    return np.promote_types(dtype, np.float32)


def run_bags(kernel, outs, table, index, offsets, more, padding_idx, **constexprs):
    """Launch a kernel over bags × columns into outs, of which the first is (bags, columns)."""
    bags, width = outs[0].shape
    n, length = index.numel(), 0 if offsets is not None else index.shape[1]
    if not bags:
        outs[-1].fill_(0)
        return
    word, number = fault_word(table.device, NAME, INSIDE, RuntimeError)
    _, other = fault_word(table.device, NAME, OFFSETS, RuntimeError)
    block_r = min(tile(512, 1024), next_power_of_2(max(width, 1)))
    block_b = min(max(tile(512, 16384) // block_r, 1), next_power_of_2(bags))
    launch(kernel, (cdiv(bags, block_b) * cdiv(max(width, 1), block_r),), *outs, word, table, view.reshape(index, -1).contiguous(),
           contiguous(offsets), *more, bags, n, length, table.shape[0], width, *table.strides, padding_idx, number, other,
           BLOCK_B=block_b, BLOCK_R=block_r, **constexprs)


def written_in_order(outs, run):
    """`run` on contiguous tensors in the place of the outputs."""
    made = [in_order(x) for x in outs]
    run(made)
    for x, y in zip(outs, made):
        finish(x, y)


# ------------------------------------------------------------------ sums and means
@op(returns=("out", "sizes", "owners"))
def bag_sums(table, index, offsets=None, factors=None, mean=False, by_freq=False, padding_idx=-1):
    """The sum, or mean, of the rows of each bag, how many rows count, and to which bag each index belongs.

    table (rows, d), index (n,) with offsets (bags,), or (bags, length); factors (n,) multiply the rows. Indices of padding_idx do not
    count. `by_freq` divides the gradient of a row by the times that it is named.

    >>> import tritorch as torch
    >>> bag_sums(torch.eye(2), torch.tensor([0, 1, 1]), torch.tensor([0, 1]))[0].tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    bags, device = bags_of(table, index, offsets), common_device(NAME, *[x for x in (table, index, offsets, factors) if x is not None])
    if factors is not None:
        check(factors.shape == (index.numel(),), NAME, "a factor for each index", factors.shape)
        check(factors.dtype is table.dtype, NAME, f"per_sample_weights of {table.dtype}", factors.dtype)
    return [((bags, table.shape[1]), table.dtype, device), ((bags,), types.int64, device), ((index.numel(),), types.int64, device)]


@bag_sums.impl("cpu")
def bag_sums_cpu(out, sizes, owners, table, index, offsets, factors, mean, by_freq, padding_idx):
    starts, owners[...] = layout_of(index, offsets)
    flat, known = known_of(index, len(table), padding_idx)
    rows = table[flat[known]].astype(wide_of(table.dtype))
    if factors is not None:
        rows *= factors[known].astype(rows.dtype)[:, None]
    total, count = np.zeros(out.shape, rows.dtype), np.zeros(len(starts), np.int64)
    add_slices(total, 0, owners[known], rows)
    np.add.at(count, owners[known], 1)
    sizes[...] = count
    out[...] = total / np.maximum(count, 1)[:, None].astype(total.dtype) if mean else total


@bag_sums.impl("cuda")
def bag_sums_cuda(out, sizes, owners, table, index, offsets, factors, mean, by_freq, padding_idx):
    written_in_order((out, sizes, owners), lambda outs: run_bags(
        K.bag_sums_kernel, outs, table, index, offsets, (contiguous(factors),), padding_idx, MEAN=mean, AHEAD=4))


@bag_sums.grad("table", "factors")
def bag_sums_grad(g_out, table, index, offsets, factors, mean, by_freq, padding_idx, sizes, owners):
    g = g_out / sizes.clamp(min=1).to(g_out.dtype).unsqueeze(1) if mean else g_out
    more = factors
    if by_freq:
        more = view.reshape(rarity(index, table.shape[0], table.dtype), -1)
        more = more if factors is None else more * factors
    return (bag_gradient(g, index, owners, offsets, more, table.shape[0], padding_idx),
            None if factors is None else bag_dots(table, g, index, owners, offsets, padding_idx))


@op
def bag_gradient(rows, index, owners, offsets=None, factors=None, count=1, padding_idx=-1):
    """For each of `count` rows of a table the sum of the rows of the bags in which `index` names it, times factors; 0 for padding_idx."""
    return (count, rows.shape[1]), rows.dtype, rows.device


@bag_gradient.impl("cpu")
def bag_gradient_cpu(out, rows, index, owners, offsets, factors, count, padding_idx):
    flat, known = known_of(index, count, padding_idx)
    parts = rows[owners[known]].astype(wide_of(rows.dtype))
    if factors is not None:
        parts *= factors[known].astype(parts.dtype)[:, None]
    total = np.zeros(out.shape, parts.dtype)
    add_slices(total, 0, flat[known], parts)
    out[...] = total


@bag_gradient.impl("cuda")
def bag_gradient_cuda(out, rows, index, owners, offsets, factors, count, padding_idx):
    made, places = in_order(out), linear_places(view.reshape(index, -1), 0, (count,), NAME)
    join_rows(made, None, places, rows, skip=padding_idx, weights=contiguous(factors), owners=owners.contiguous())
    finish(out, made)


@bag_gradient.grad("rows", "factors")
def bag_gradient_grad(g, rows, index, owners, offsets, factors, padding_idx):
    g_rows = bag_sums(g, index, offsets, factors, False, False, padding_idx)[0]
    return g_rows, None if factors is None else bag_dots(g, rows, index, owners, offsets, padding_idx)


@op
def bag_dots(table, rows, index, owners, offsets=None, padding_idx=-1):
    """For each index the scalar product of the row of the table that it names with that of its bag; 0 for padding_idx."""
    return (index.numel(),), rows.dtype, rows.device


@bag_dots.impl("cpu")
def bag_dots_cpu(out, table, rows, index, owners, offsets, padding_idx):
    flat, known = known_of(index, len(table), padding_idx)
    kind = wide_of(table.dtype)
    out[...] = 0
    out[known] = (table[flat[known]].astype(kind) * rows[owners[known]].astype(kind)).sum(1)


@bag_dots.impl("cuda")
def bag_dots_cuda(out, table, rows, index, owners, offsets, padding_idx):
    made, n, width = in_order(out), index.numel(), table.shape[1]
    if n:
        block_r = min(tile(256, 1024), next_power_of_2(max(width, 1)))
        block_n = min(max(tile(1024, 16384) // block_r, 1), next_power_of_2(n))
        launch(K.bag_dots_kernel, (cdiv(n, block_n),), made, table, view.reshape(index, -1).contiguous(), rows, owners.contiguous(), n,
               table.shape[0], width, *table.strides, *rows.strides, padding_idx, BLOCK_N=block_n, BLOCK_R=block_r)
    finish(out, made)


@bag_dots.grad("table", "rows")
def bag_dots_grad(g, table, rows, index, owners, offsets, padding_idx):
    return (bag_gradient(rows, index, owners, offsets, g, table.shape[0], padding_idx),
            bag_sums(table, index, offsets, g, False, False, padding_idx)[0])


# ------------------------------------------------------------------ largest elements
@op(returns=("out", "chosen", "sizes", "owners"))
def bag_maxima(table, index, offsets=None, padding_idx=-1):
    """The largest element of every column in each bag, the row where it is (-1 in a bag without rows, whose elements are 0), and what
    `bag_sums` tells. The first element stays unless a later one is greater."""
    bags, device = bags_of(table, index, offsets), common_device(NAME, *[x for x in (table, index, offsets) if x is not None])
    found = (bags, table.shape[1])
    return [(found, table.dtype, device), (found, types.int64, device), ((bags,), types.int64, device),
            ((index.numel(),), types.int64, device)]


@bag_maxima.impl("cpu")
def bag_maxima_cpu(out, chosen, sizes, owners, table, index, offsets, padding_idx):
    starts, owners[...] = layout_of(index, offsets)
    flat, known = known_of(index, len(table), padding_idx)
    out[...], chosen[...] = 0, -1
    order, count = np.flatnonzero(known), np.zeros(len(starts), np.int64)
    np.add.at(count, owners[known], 1)
    sizes[...] = count
    first = np.cumsum(count) - count
    for k in range(count.max() if count.size else 0):                    # the k-th rows of all bags that have one
        bag = np.flatnonzero(count > k)
        row = flat[order[first[bag] + k]]
        better = (table[row] > out[bag]) | (k == 0)
        out[bag] = np.where(better, table[row], out[bag])
        chosen[bag] = np.where(better, row[:, None], chosen[bag])


@bag_maxima.impl("cuda")
def bag_maxima_cuda(out, chosen, sizes, owners, table, index, offsets, padding_idx):
    written_in_order((out, chosen, sizes, owners), lambda outs: run_bags(
        K.bag_maxima_kernel, outs, table, index, offsets, (), padding_idx))


@bag_maxima.grad("table")
def bag_maxima_grad(g_out, table_shape, chosen):
    empty_bags = chosen < 0
    return g_out.new_zeros(table_shape).scatter_add(0, chosen.masked_fill(empty_bags, 0), g_out.masked_fill(empty_bags, 0))


# ------------------------------------------------------------------ the public function
def first_offsets(offsets, include_last_offset):
    """Where bags begin."""
    check(not include_last_offset or offsets.shape[0] > 0, NAME, "at least one offset with include_last_offset", 0)
    return offsets[:-1] if include_last_offset else offsets


def looked_up(weight, index, offsets, by_freq, mode, sparse, factors, padding_idx):
    """The bags, the bag of each index, their sizes, and for mode 2 the row of each element, else the sizes."""
    check(mode == 0 or factors is None, NAME, "per_sample_weights for mode 'sum' alone", factors)
    rows = weight.shape[0]
    if padding_idx is None or padding_idx < -rows and rows == 0:
        padding_idx = -1
    else:
        check(-rows <= padding_idx < rows, NAME, f"a padding_idx in [{-rows}, {rows - 1}]", padding_idx)
        padding_idx += rows if padding_idx < 0 else 0
    if mode == 2:
        out, chosen, sizes, owners = bag_maxima(weight, index, offsets, padding_idx)
        return out, owners, sizes, chosen
    if sparse:
        from tritorch.sparse.embedding import bags as sums

        out, sizes, owners = sums(weight, index, offsets, factors, mode == 1, by_freq, padding_idx)
    else:
        out, sizes, owners = bag_sums(weight, index, offsets, factors, mode == 1, by_freq, padding_idx)
    return out, owners, sizes, sizes


@explained
def embedding_bag(input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean", sparse=False,
                  per_sample_weights=None, include_last_offset=False, padding_idx=None):
    """The sum, mean or largest elements ("max") of the rows of `weight` (n, d) in every bag of indices, without making those rows.

    input (bags, length), or (N,) with offsets (bags,) at which bags begin, also one at N with include_last_offset; the result is
    (bags, d), 0 for a bag without rows. per_sample_weights, like the input, multiply the rows, for "sum" alone. Indices of padding_idx do
    not count. With max_norm the rows used are first scaled down, in place; with scale_grad_by_freq the gradient of a row is divided by the
    times that it is named. With `sparse` the gradient is a sparse tensor of the rows named. Raises ValueError for
    shapes and modes that do not fit, RuntimeError for indices outside.

    >>> import tritorch as torch; F = torch.nn.functional
    >>> F.embedding_bag(torch.tensor([0, 1, 1]), torch.eye(2), torch.tensor([0, 1]), mode="mean")
    tensor([[1., 0.],
            [0., 1.]])
    """
    if weight.dtype is types.int64 and input.dtype.is_floating_point:
        warnings.warn("embedding_bag(weight, input, …) is deprecated: use embedding_bag(input, weight, …)", stacklevel=3)
        input, weight = weight, input
    fits = per_sample_weights is None or per_sample_weights.shape == input.shape
    check(fits, NAME, f"per_sample_weights of shape {tuple(input.shape)}", getattr(per_sample_weights, "shape", None), error=ValueError)
    check(len(weight.shape) == 2, NAME, "a weight of 2 dims", weight.shape, error=ValueError)
    check(len(input.shape) in (1, 2), NAME, "an input of 1 or 2 dims", input.shape, error=ValueError)
    if len(input.shape) == 2:
        check(offsets is None, NAME, "no offsets for an input of 2 dims, whose rows are the bags", offsets, error=ValueError)
    else:
        check(isinstance(offsets, Tensor) and len(offsets.shape) == 1, NAME, "a vector of offsets for an input of 1 dim",
              getattr(offsets, "shape", offsets), error=ValueError)
    check(mode in ("sum", "mean", "max"), NAME, "a mode among sum, mean, max", repr(mode), error=ValueError)
    check(mode != "max" or not scale_grad_by_freq, NAME, "scale_grad_by_freq for modes sum and mean", mode, error=ValueError)
    check(mode != "max" or not sparse, NAME, "sparse for modes sum and mean", mode, error=ValueError)
    check(mode == "sum" or per_sample_weights is None, NAME, "per_sample_weights for mode 'sum' alone", repr(mode),
          error=NotImplementedError)
    if max_norm is not None:
        renormalize_rows(weight, input, max_norm, norm_type)
    factors = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    if offsets is not None:
        offsets = first_offsets(offsets, include_last_offset)
    return looked_up(weight, input, offsets, scale_grad_by_freq, ("sum", "mean", "max").index(mode), sparse, factors, padding_idx)[0]


# ------------------------------------------------------------------ samples and workloads
def looked(make, bags, n, rows, d):
    """A table, indices and offsets of some bags, of which one is without rows."""
    offsets = np.sort(np.append(make.rng.integers(0, n + 1, max(bags - 2, 0)), [0, n])[:bags])
    return make(rows, d), make(n, integer=True, low=0, high=rows), create.tensor(offsets)


@bag_sums.samples
def bag_sums_samples(make):
    yield *looked(make, 4, 9, 5, 3), None, True, False, 2
    yield *looked(make, 3, 8, 6, 2), make(8), False, False, 1
    yield make(5, 4), make(3, 6, integer=True, low=0, high=5), None, make(18)
    yield make(5, 3), make(2, 0, integer=True), None, None, True
    yield make(4, 3), make(0, integer=True), make(0, integer=True)


def owned(make, bags, n, rows, d):
    """Indices of some bags, the bag of each, and the offsets."""
    _, index, offsets = looked(make, bags, n, rows, d)
    return index, create.tensor(layout_of(index.array, offsets.array)[1]), offsets


@bag_gradient.samples
def bag_gradient_samples(make):
    yield make(4, 3), *owned(make, 4, 9, 5, 3), make(9), 5, 2
    yield make(3, 2), *owned(make, 3, 40, 2, 2), None, 2, -1
    yield make(2, 3), make(2, 3, integer=True, low=0, high=4), create.tensor([0, 0, 0, 1, 1, 1]), None, make(6), 4, 0


@bag_dots.samples
def bag_dots_samples(make):
    yield make(5, 3), make(4, 3), *owned(make, 4, 9, 5, 3), 2
    yield make(4, 3), make(2, 3), make(2, 3, integer=True, low=0, high=4), create.tensor([0, 0, 0, 1, 1, 1])


@bag_maxima.samples
def bag_maxima_samples(make):
    yield *looked(make, 4, 9, 5, 3), 2
    yield make(5, 4), make(3, 6, integer=True, low=0, high=5)
    yield make(5, 3), make(2, 0, integer=True)


@bag_sums.errors
def bag_sums_errors(make):
    good = make(4, 3), make(5, integer=True, low=0, high=4)
    yield good, {}, ValueError, "expected offsets, or an input of 2 dims"
    yield (good[0], good[1] + 4, make(1, integer=True, low=0, high=1)), {}, RuntimeError, "expected indices in"
    yield (*good, make(1, integer=True, low=1, high=2)), {}, RuntimeError, "expected offsets from 0 on"
    yield (*good, create.tensor([0, 3, 2])), {}, RuntimeError, "expected offsets that do not fall"
    yield (*good, create.tensor([0]), make(4)), {}, RuntimeError, "expected a factor for each index"


def sizes_for(make, rows=1 << 20, bags=1 << 16, length=32, d=128):
    table, index = make(rows, d, grad=False), make(bags, length, integer=True, low=0, high=rows)
    owners = create.arange(bags, device=index.device).repeat_interleave(length)
    return table, index, owners, 4 * d * bags * (length + 1) + index.nbytes + owners.nbytes, bags * length * d


@bag_sums.workloads
def bag_sums_workloads(make):
    table, index, _, nbytes, flops = sizes_for(make)
    yield "65536 bags of 32 of 1048576x128 fp32", lambda: (table, index), nbytes, flops


@bag_maxima.workloads
def bag_maxima_workloads(make):
    table, index, _, nbytes, flops = sizes_for(make)
    yield "65536 bags of 32 of 1048576x128 fp32", lambda: (table, index), nbytes, flops


@bag_gradient.workloads
def bag_gradient_workloads(make):
    table, index, owners, nbytes, flops = sizes_for(make)
    rows = make(index.shape[0], table.shape[1], grad=False)
    yield "65536 bags of 32 of 1048576x128 fp32", lambda: (rows, index, owners, None, None, table.shape[0]), nbytes + table.nbytes, flops


@bag_dots.workloads
def bag_dots_workloads(make):
    table, index, owners, nbytes, flops = sizes_for(make)
    rows = make(index.shape[0], table.shape[1], grad=False)
    yield "65536 bags of 32 of 1048576x128 fp32", lambda: (table, rows, index, owners), nbytes, 2 * flops
