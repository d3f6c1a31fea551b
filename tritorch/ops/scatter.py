"""Writing elements by an index along one dim: scatter, scatter_add, scatter_reduce, index_reduce."""
import numpy as np

from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import compare, copy, create, slicing, view
from tritorch.ops.bounds import every
from tritorch.ops.copy import transfer
from tritorch.ops.extremes import highest, lowest
from tritorch.ops.indexing import (
    REDUCTIONS,
    K,
    add_slices,
    check_places,
    check_range,
    finish,
    gather,
    in_order,
    linear_places,
    pointing,
    write_rows,
)
from tritorch.ops.padding import as_element
from tritorch.ops.segments import join_rows
from tritorch.pairs import HOLOMORPHIC, OWN, Parts, check_number, refuse
from tritorch.shape import prod, wrap_dim
from tritorch.tensor import Tensor


# ------------------------------------------------------------------ scatter
def _flat_cpu(input, dim, index):
    """(a fresh flat copy of input, the flat places that the index points to)."""
    shape, index = input.shape or (1,), index.reshape(index.shape or (1,))
    check_range("scatter", index, shape[dim], RuntimeError)
    grid = list(np.ogrid[tuple([slice(n) for n in index.shape])])
    grid[dim] = index
    places = np.ravel_multi_index(np.broadcast_arrays(*grid), shape) if index.size else np.zeros(index.shape, np.int64)
    return np.array(input).reshape(-1), places.reshape(-1)


def _source_cpu(src, index, like):
    if isinstance(src, np.ndarray):
        return src[tuple([slice(n) for n in index.shape])].reshape(-1)
    return np.full(index.size, src).astype(like.dtype)


def _flat_cuda(input, dim, index, src):
    """(places in the flat input, the tensor src as rows of width 1) on CUDA."""
    shape = input.shape or (1,)
    index = index if index.shape else view.reshape(index, 1)
    src = src if src.shape else view.reshape(src, 1)
    for k, n in enumerate(index.shape):
        src = slicing.narrow(src, k, 0, n)
    src = view.reshape(src.to(input.dtype), -1, 1)
    return linear_places(index, wrap_dim(dim, len(shape), "scatter"), shape, "scatter"), src


def _joined(out, input, dim, index, src, kind):
    """Fill out, which may be input, with input and the sources that fall on each of its elements. An index expanded from a column names
    rows: so many fewer places are sorted."""
    src, made = src.clone() if src.storage is out.storage else src, in_order(out)
    if input.ndim > 1 and dim % input.ndim == 0 and index.numel() and index.shape[1:] == input.shape[1:] and not any(
            step for n, step in zip(index.shape[1:], index.strides[1:]) if n > 1):
        column, width = view.reshape(index[(slice(None), *(slice(1),) * (input.ndim - 1))], -1), prod(input.shape[1:])
        places = linear_places(column, 0, input.shape[:1], "scatter")
        src = view.reshape(src[tuple([slice(n) for n in index.shape])], -1, width)
    else:
        (places, src), width = _flat_cuda(input, dim, index, src), 1
    target = view.reshape(made, -1, width)
    join_rows(target, target if input.data_ptr() == made.data_ptr() else view.reshape(input, -1, width), places, src, kind)
    finish(out, made)


@op(aliasable=("input",))
def scatter_write(input, dim, index, src):
    """input with src (a tensor or a number) written where `index` points along `dim`; of several writers of one element the last wins."""
    check_places("scatter", input.shape, dim, index, src)
    check(not isinstance(src, Tensor) or src.dtype is input.dtype, "scatter", f"a source of {input.dtype}", getattr(src, "dtype", None))
    check_number("scatter", input.dtype, src)
    return input.shape, input.dtype, common_device("scatter", input, index, src)


@scatter_write.impl("cpu")
def scatter_write_cpu(out, input, dim, index, src):
    made, places = _flat_cpu(input, dim, index)
    made[places] = _source_cpu(src, index, input)
    out[...] = made.reshape(out.shape)


@scatter_write.impl("cuda")
def scatter_write_cuda(out, input, dim, index, src):
    made = in_order(out)
    if input.data_ptr() != made.data_ptr():
        transfer(made, input)
    shape, strides = input.shape or (1,), made.strides or (1,)
    if isinstance(src, Tensor) and index.shape and index.shape[dim] == 1:                   # nobody writes where another does
        src = src[tuple([slice(n) for n in index.shape])].contiguous()
        pointing(K.put_kernel, made, (src,), index, wrap_dim(dim, index.ndim, "scatter"), shape, strides, "scatter")
    elif isinstance(src, Tensor):
        write_rows(view.reshape(made, -1, 1), 1, *_flat_cuda(input, dim, index, src))
    else:
        index, value = index if index.shape else view.reshape(index, 1), as_element(src, input.dtype)
        pointing(K.put_number_kernel, made, (value,), index, wrap_dim(dim, len(shape), "scatter"), shape, strides, "scatter")
    finish(out, made)


@scatter_write.grad("input")
def scatter_write_grad_input(g, dim, index):
    return scatter_write(g, dim, index, 0)


@scatter_write.grad("src")
def scatter_write_grad_src(g, input_shape, src_shape, dim, index):
    """Only the last writer of an element gets its gradient."""
    number = create.arange(index.numel(), device=g.device).reshape(index.shape)
    winner = scatter_write(create.full(input_shape, -1, dtype=types.int64, device=g.device), dim, index, number)
    picked = gather(g, dim, index).masked_fill(gather(winner, dim, index) != number, 0)
    return _padded(picked, src_shape)


def _padded(picked, shape):
    """Zeros of a shape with the part that the index covers filled in."""
    if picked.shape == shape:
        return picked
    out = create.new_zeros(picked, shape)
    out[tuple([slice(n) for n in picked.shape])] = picked
    return out


@scatter_write.samples
def scatter_write_samples(make):
    yield make(4, 3), 0, make(2, 3, integer=True, low=0, high=4), make(2, 3)
    yield make(3, 5), -1, make(3, 4, integer=True, low=0, high=5), make(3, 6)
    yield make(3, 4), 1, make(3, 2, integer=True, low=0, high=4), 2.5
    yield make(3, 4), 0, make(0, 4, integer=True), make(0, 4)
    yield make(), 0, make(integer=True, low=0, high=1), make()
    yield make(), 0, make(1, integer=True, low=0, high=1), make(1)
    yield make(3, 4, 5), 1, make(2, 1, 5, integer=True, low=0, high=4), make(3, 2, 6)


@scatter_write.errors
def scatter_write_errors(make):
    yield (make(3, 4), 0, make(2, 5, integer=True), make(2, 5)), {}, RuntimeError, "an index inside"
    yield (make(3), 0, make(2), make(2)), {}, RuntimeError, "an index of int64 or int32"


@op(aliasable=True)
def scatter_add(input, dim, index, src):
    """input with src added where `index` points along `dim`, equal places in their order.

    >>> import tritorch as torch; torch.zeros(3).scatter_add(0, torch.tensor([0, 0, 2]), torch.ones(3))
    tensor([2., 0., 1.])
    """
    check_places("scatter_add", input.shape, dim, index, src)
    check(src.dtype is input.dtype, "scatter_add", f"a source of {input.dtype}", src.dtype)
    return input.shape, input.dtype, common_device("scatter_add", input, index, src)


@scatter_add.impl("cpu")
def scatter_add_cpu(out, input, dim, index, src):
    made, places = _flat_cpu(input, dim, index)
    wide = made.astype(np.float32) if made.dtype.kind not in "fiubc" or made.dtype.itemsize == 2 and made.dtype.kind == "f" else made
    add_slices(wide, 0, places, _source_cpu(src, index, input).astype(wide.dtype))
    np.copyto(out, wide.reshape(out.shape), casting="unsafe")


@scatter_add.impl("cuda")
def scatter_add_cuda(out, input, dim, index, src):
    _joined(out, input, dim, index, src, "sum")


@scatter_add.grad("input")
def scatter_add_grad_input(g):
    return g


@scatter_add.grad("src")
def scatter_add_grad_src(g, src_shape, dim, index):
    return _padded(gather(g, dim, index), src_shape)


@scatter_add.samples
def scatter_add_samples(make):
    yield make(4, 3), 0, make(5, 3, integer=True, low=0, high=4), make(5, 3)
    yield make(3, 5), -1, make(3, 9, integer=True, low=0, high=5), make(3, 9)
    yield make(3, 4), 0, make(0, 4, integer=True), make(0, 4)
    yield make(), 0, make(integer=True, low=0, high=1), make()


@op(aliasable=True)
def scatter_join(input, dim, index, src, reduce):
    """input joined with src by "sum", "prod", "amax" or "amin" where `index` points along `dim`."""
    check_places("scatter_reduce", input.shape, dim, index, src)
    check(reduce in REDUCTIONS, "scatter_reduce", f"a reduction among {', '.join(REDUCTIONS)} or mean", repr(reduce))
    if input.dtype.is_complex and reduce in ("amax", "amin"):
        refuse("scatter_reduce", input)
    return input.shape, input.dtype, common_device("scatter_reduce", input, index, src)


@scatter_join.impl("cpu")
def scatter_join_cpu(out, input, dim, index, src, reduce):
    made, places = _flat_cpu(input, dim, index)
    wide = made.astype(np.float32) if made.dtype.itemsize == 2 and made.dtype.kind not in "iu" else made
    REDUCTIONS[reduce].at(wide, places, _source_cpu(src, index, input).astype(wide.dtype))
    np.copyto(out, wide.reshape(out.shape), casting="unsafe")


@scatter_join.impl("cuda")
def scatter_join_cuda(out, input, dim, index, src, reduce):
    _joined(out, input, dim, index, src, reduce)


@scatter_join.grad("input", "src")
def scatter_join_grad(g, out, input, dim, index, src, reduce):
    if reduce == "sum":
        return g, _padded(gather(g, dim, index), src.shape)
    if reduce == "prod":
        return _product_grads(g, out, input, dim, index, src)
    hit_input, hit_src = (input == out).to(g.dtype), (_cut(src, index) == gather(out, dim, index)).to(g.dtype)
    share = g / scatter_add(hit_input, dim, index, hit_src)              # ties share evenly
    return hit_input * share, _padded(hit_src * gather(share, dim, index), src.shape)


def _product_grads(g, out, input, dim, index, src):
    """g times the product of the other factors: by division, or, for the only 0 among them, the product with 1 in its place."""
    whole, part = input.masked_fill(input == 0, 1), _cut(src, index)
    g_input = g * scatter_join(whole, dim, index, src, "prod") / whole
    zero = part == 0
    alone = zero & (gather(scatter_add(create.zeros_like(input), dim, index, zero.to(input.dtype)), dim, index) == 1)
    rest = scatter_join(input, dim, index, part.masked_fill(alone, 1), "prod")
    g_src = compare.choose(alone, gather(g * rest, dim, index), gather(g * out, dim, index) / part.masked_fill(zero, 1))
    return g_input, _padded(g_src, src.shape)


def _cut(src, index):
    return src[tuple([slice(n) for n in index.shape])]


@scatter_join.samples
def scatter_join_samples(make):
    for reduce in REDUCTIONS if not make.dtype.is_complex else ("sum",):
        yield make(4, 3, positive=True), 0, make(5, 3, integer=True, low=0, high=4), make(5, 3, positive=True), reduce
    yield make(6), 0, make(0, integer=True), make(0), "amax" if not make.dtype.is_complex else "sum"


scatter_write.complex, scatter_add.complex, scatter_join.complex = Parts(words=True, values=("src",)), OWN, HOLOMORPHIC
for _made, _rest in ((scatter_write, ()), (scatter_add, ()), (scatter_join, ("amax",))):
    @_made.workloads
    def _workloads(make, _rest=_rest):
        n = 1 << 22
        x, index = make(n, grad=False), make(n, integer=True, low=0, high=n)
        yield "4M fp32", lambda: (x, 0, index, x, *_rest), 3 * x.nbytes + index.nbytes, n


def scatter(input, dim, index, src=None, *, value=None, reduce=None, out=None):
    """input with src (or a number) written where `index` points along `dim`: out[index[i][j]][j] = src[i][j] for dim 0.

    >>> import tritorch as torch; torch.zeros(3).scatter(0, torch.tensor([1]), 5.0)
    tensor([0., 5., 0.])
    """
    src = value if src is None else src
    if reduce is not None:
        check(reduce in ("add", "multiply"), "scatter", "reduce 'add' or 'multiply'", repr(reduce))
        src = src if isinstance(src, Tensor) else create.full(index.shape, src, dtype=input.dtype, device=input.device)
        return scatter_reduce(input, dim, index, src, "sum" if reduce == "add" else "prod", out=out)
    return scatter_write(input, dim, index, src) if out is None else scatter_write.into(out, input, dim, index, src)


def scatter_reduce(input, dim, index, src, reduce, *, include_self=True, out=None):
    """input joined with src where `index` points along `dim`, by "sum", "prod", "mean", "amax" or "amin"; without include_self only src
    counts."""
    check(reduce in (*REDUCTIONS, "mean"), "scatter_reduce", f"a reduction among {', '.join(REDUCTIONS)} or mean", repr(reduce))
    check(src.dtype is input.dtype, "scatter_reduce", f"a source of {input.dtype}", src.dtype)
    if not include_self:
        edge = {"amax": lowest, "amin": highest}.get(reduce)
        base = scatter_write(input, dim, index, edge(input.dtype) if edge and not input.dtype.is_complex else int(reduce == "prod"))
    else:
        base = input
    made = scatter_join(base, dim, index, src, "sum" if reduce == "mean" else reduce)
    if reduce == "mean":
        ones = create.ones_like(src.detach(), dtype=src.dtype.to_real())
        counts = scatter_add(create.full_like(input, 1 if include_self else 0, dtype=ones.dtype), dim, index, ones)
        counts = compare.clamp(counts, min=1)
        made = made / counts if made.dtype.has_gradients else made // counts
    return copy.deliver(made, out)


def index_reduce(input, dim, index, source, reduce, *, include_self=True, out=None):
    """input whose slices along `dim` that `index` names are joined with those of source, by "prod", "mean", "amax" or "amin"; without
    include_self only source counts.

    >>> import tritorch as torch
    >>> torch.ones(3).index_reduce(0, torch.tensor([0, 0, 2]), torch.tensor([2.0, 3.0, 4.0]), "prod")
    tensor([6., 1., 4.])
    """
    check(reduce in ("prod", "mean", "amax", "amin"), "index_reduce", "a reduction among prod, mean, amax, amin", repr(reduce))
    check(len(index.shape) <= 1, "index_reduce", "a vector of indices", index.shape, error=IndexError)
    d = wrap_dim(dim, len(input.shape), "index_reduce")
    want = (*input.shape[:d], index.numel(), *input.shape[d + 1:])
    check(source.shape == want or not input.shape and source.numel() == index.numel(), "index_reduce", f"a source of shape {want}",
          source.shape)
    if index.device.type == "cpu":
        check_range("index_reduce", every(index).array, input.shape[d] if input.shape else 1)
    places = index.reshape([-1 if k == d else 1 for k in range(len(source.shape))]).expand(source.shape)
    return scatter_reduce(input, dim, places, source, reduce, include_self=include_self, out=out)
