"""Elements by an index along one dim: index_select, index_add, gather, and how rows are taken and written on the GPU.

Sums over equal indices are made in a fixed order (indices sorted, then one program a run), so results are deterministic.
"""
from math import gcd

import numpy as np

from tritorch.cuda import tuner
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.memory_format import contiguous_format
from tritorch.ops import create, view
from tritorch.ops.arrays import number
from tritorch.ops.copy import transfer
from tritorch.ops.faults import fault_word
from tritorch.ops.segments import join_rows
from tritorch.ops.tiling import collapse, even_parts
from tritorch.pairs import OWN, Parts, both, check_number
from tritorch.shape import cdiv, contiguous_strides, next_power_of_2, prod, wrap_dim
from tritorch.tensor import Tensor, empty

K = kernels("indexing")
REDUCTIONS = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
WIDE = 256                                                               # elements of a slice from which on numpy adds it quicker by itself


def check_index(name, index, error=RuntimeError):
    """Indices are integers."""
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}: expected a tensor as index, got {type(index).__name__}")
    check(index.dtype.category == 1 and index.dtype.itemsize >= 4, name, "an index of int64 or int32", index.dtype, error=error)


def check_long(name, index, error=RuntimeError):
    """Where PyTorch takes no others, indices are of int64."""
    check(index.dtype is types.int64, name, "an index of int64", index.dtype, use="index.long()", error=error)


def check_range(name, index, size, error=IndexError, wrap=False):
    """On the CPU every index is looked at; with `wrap` negative ones count from the end."""
    least = -size if wrap else 0
    if index.size and not (least <= index.min() and index.max() < size):
        bad = index[(index < least) | (index >= size)].flat[0]
        raise error(f"{name}: expected indices in [{least}, {size - 1}], got {bad}")


# ------------------------------------------------------------------ rows in a canonical form
def three(shape, dim):
    """Sizes before, at and after a dim."""
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1:])


def take_rows(out, x, places, name, wrap, added=None):
    """out[p, k, r] = x[p, places[k], r] for a contiguous out; places outside are reported under `name` and give 0. With `wrap` negative
    ones count from the end. `added`, contiguous floating rows, are added in turn, over and over, as often as they fit."""
    parts, rows, width = x.shape
    count = places.shape[0]
    if not out.numel():
        return
    word, number = fault_word(out.device, name)
    even, every = gcd(16, width, x.strides[0], x.strides[1]), 1 if added is None else added.numel() // width

    def run(block):
        k, r = block["BLOCK_K"], block["BLOCK_R"]
        launch(K.take_rows_kernel, (cdiv(parts * count, k) * cdiv(width, r),), out, word, x, places, added, *x.strides, *places.strides,
               rows, count, width, parts * count, every, number, WRAP=wrap, EVEN=1 if even == 16 else even, ONE=parts == 1, **block)

    ways = _row_blocks(out.dtype.itemsize, width, parts * count)
    run(tuner.choose("take_rows", (out.dtype.itemsize, width), ways, K.take_rows_kernel, run))


def _row_blocks(size, width, count):
    """Rows and elements of them at a time: 4 KiB together, or other amounts. Rows that are longer are also taken column by column, all
    rows of a few KiB: what random indices name twice is then near in time, where a cache may still have it."""
    found = []
    for total, most, down, warps in ((4096, 2048, False, 4), (4096, 1024, False, 4), (8192, 4096, False, 4), (2048, 2048, False, 4),
                                     (8192, 4096, False, 8), (4096, 2048, True, 4), (4096, 1024, True, 4), (8192, 2048, True, 8),
                                     (4096, 4096, True, 4), (2048, 512, True, 2)):
        r = min(tile(max(most // size, 32), 1024), next_power_of_2(width))
        if not down or r < width:
            found.append({"BLOCK_K": min(max(tile(total // size, 16384) // r, 1), next_power_of_2(count)), "BLOCK_R": r, "DOWN": down,
                          "num_warps": warps})
    return found


def write_rows(out, lead, places, src):
    """out[places[i]] = src[i], the last of several winning. `out` has any strides; its first `lead` dims together are the rows."""
    if out.dtype is types.complex128:                                    # words of 64 bits
        out, src = both(out), both(src)
    rows, width = prod(out.shape[:lead]), prod(out.shape[lead:])
    if not src.numel() or not out.numel():
        return
    winner = empty((rows,), types.int64 if places.shape[0] >= 1 << 31 else types.int32, out.device).fill_(-1)
    block = tile(1024, 16384)
    launch(K.last_writer_kernel, (cdiv(places.shape[0], block),), winner, places, places.shape[0], rows, BLOCK=block)
    block_r = min(tile(256, 1024), next_power_of_2(width))
    block_n = max(tile(1024, 16384) // block_r, 1)
    along = collapse(out.shape[:lead], out.strides[:lead], least=1)
    across = collapse(out.shape[lead:], out.strides[lead:], src.strides[1:], least=1)
    launch(K.write_rows_kernel, (cdiv(rows, block_n) * cdiv(width, block_r),), out, src, winner, rows, width, *along, *across,
           src.strides[0], RANK_N=len(along[0]), RANK_R=len(across[0]), BLOCK_N=block_n, BLOCK_R=block_r)


def linear_places(index, dim, target_shape, name, wrap=False):
    """Where each element of an index along `dim` points in a contiguous tensor of target_shape, flat; -1 outside, which is reported. With
    `wrap` negative indices count from the end."""
    out = empty((index.numel(),), types.int64, index.device)
    pointing(K.places_kernel, out, (), index, dim, target_shape, contiguous_strides(target_shape), name, wrap)
    return out


def pointing(kernel, out, operands, index, dim, shape, strides, name, wrap=False):
    """Launch a kernel that goes through what an index points to, along `dim`, in a tensor of this shape and these strides."""
    if not index.numel():
        return
    steps = list(strides)
    step, steps[dim] = steps[dim], 0
    dims, si, st = collapse(index.shape, index.strides, steps)
    rows, cols = dims[-2:]
    block_n = tile(even_parts(cols, 1024), min(1024, next_power_of_2(cols)))
    block_m = min(max(tile(1024, 16384) // block_n, 1), next_power_of_2(rows))
    even = gcd(16, cols, *si[:-1])
    word, number = fault_word(out.device, name)
    launch(kernel, (cdiv(rows, block_m) * cdiv(cols, block_n) * (index.numel() // (rows * cols)),), out, word, *operands, index, dims, si,
           st, step, shape[dim], rows, cols, number, WRAP=wrap, OUTER=len(dims) - 2, EVEN=1 if even == 16 else even, BLOCK_M=block_m,
           BLOCK_N=block_n)


def in_order(out):
    """`out` itself if contiguous, else a scratch tensor that the caller copies back."""
    return out if out.is_contiguous() else empty(out.shape, out.dtype, out.device)


def finish(out, made):
    if made is not out:
        transfer(out, made)


# ------------------------------------------------------------------ along one dim
@op
def index_select(input, dim, index):
    """The slices of `input` along `dim` that `index` names.

    >>> import tritorch as torch; torch.arange(6).view(3, 2).index_select(0, torch.tensor([2, 0]))
    tensor([[4, 5],
            [0, 1]])
    """
    check_index("index_select", index)
    check(len(index.shape) <= 1, "index_select", "an index of at most 1 dim", index.shape, error=IndexError)
    check(input.shape or index.numel() == 1, "index_select", "one index for a tensor without dims", index.numel())
    d = wrap_dim(dim, len(input.shape), "index_select")
    return (*input.shape[:d], index.numel(),
            *input.shape[d + 1:]) if input.shape else (), input.dtype, common_device("index_select", input, index)


index_select.exact, index_select.complex = True, Parts(words=True)


@index_select.impl("cpu")
def index_select_cpu(out, input, dim, index, name="index_select", wrap=False):
    input = _one(input)
    check_range(name, index, input.shape[dim], wrap=wrap)
    np.copyto(out, np.take(input, index.reshape(-1), axis=dim).reshape(out.shape))


@index_select.impl("cuda")
def index_select_cuda(out, input, dim, index, name="index_select", wrap=False):
    made, d = in_order(out), wrap_dim(dim, len(input.shape), "index_select")
    take_rows(made, view.reshape(input, three(input.shape or (1,), d)), view.reshape(index, -1), name, wrap)
    finish(out, made)


@index_select.grad("input")
def index_select_grad(g, input_shape, dim, index):
    zeros = create.new_zeros(g, input_shape)
    return zeros.index_add(dim, index.reshape(-1), g) if input_shape else g.reshape(())


@index_select.samples
def index_select_samples(make):
    yield make(5, 3), 0, make(4, integer=True, low=0, high=5)
    yield make(2, 7, 3), -2, make(9, integer=True, low=0, high=7)
    yield make(6), 0, make(0, integer=True)
    yield make(3, 4), 1, make(integer=True, low=0, high=4)


@index_select.errors
def index_select_errors(make):
    yield (make(3), 0, make(2)), {}, RuntimeError, "an index of int64 or int32"
    yield (make(3), 1, make(2, integer=True)), {}, IndexError, "a dim in [-1, 0]"
    yield (make(3), 0, make(2, integer=True, low=-1, high=0)), {}, IndexError, "expected indices in [0, 2], got -1"


@index_select.workloads
def index_select_workloads(make):
    x, index = make(1 << 15, 1 << 10, grad=False), make(1 << 15, integer=True, low=0, high=1 << 15)
    yield "32768 rows of 1024 fp32", lambda: (x, 0, index), 2 * x.nbytes + index.nbytes, 0


@op(aliasable=True)
def index_add(input, dim, index, source, alpha=1):
    """input with alpha · source added to its slices along `dim` that `index` names, equal indices in their order.

    >>> import tritorch as torch; torch.zeros(3).index_add(0, torch.tensor([0, 0, 2]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([3., 0., 3.])
    """
    check_index("index_add", index)
    check(len(index.shape) <= 1, "index_add", "a vector of indices", index.shape, error=IndexError)
    d = wrap_dim(dim, len(input.shape), "index_add")
    want = (*input.shape[:d], index.numel(), *input.shape[d + 1:]) if input.shape else ()
    check(source.shape == want or source.numel() == prod(want) and len(source.shape) == len(want), "index_add", f"a source of shape {want}",
          source.shape)
    check(source.dtype is input.dtype, "index_add", f"a source of {input.dtype}", source.dtype)
    check_number("index_add", input.dtype, alpha)
    return input.shape, input.dtype, common_device("index_add", input, index, source)


@index_add.impl("cpu")
def index_add_cpu(out, input, dim, index, source, alpha):
    check_range("index_add", index, input.shape[dim] if input.shape else 1)
    wide = np.float32 if input.dtype.itemsize < 4 and input.dtype.kind not in "iub" else input.dtype
    made = np.array(input, wide, ndmin=1)
    index, source = index.reshape(-1), np.asarray(source, wide).reshape(source.shape or (1,))
    if made.ndim > 1:                                                    # slices of one place are added up first, as on a GPU
        places, which = np.unique(index, return_inverse=True)
        if places.size < index.size:
            sums = np.zeros([places.size if d == dim % made.ndim else n for d, n in enumerate(made.shape)], wide)
            add_slices(sums, dim, which, source, alpha)
            index, source, alpha = places, sums, 1
    add_slices(made, dim, index, source, alpha)
    np.copyto(out, made.reshape(input.shape), casting="unsafe")


def add_slices(made, dim, index, source, alpha=1):
    """made[index] += alpha·source along a dim, index from 0 on, in its order: slice by slice or, of small ones, element by element."""
    if not index.size or not source.size:
        return
    target, source = np.moveaxis(made, dim, 0), np.moveaxis(source, dim, 0)
    source = source if alpha == 1 else source * number(made.dtype, alpha)
    width = target[0].size
    if width >= WIDE:
        for place, slice_of in zip(index.tolist(), source):
            target[place] += slice_of
        return
    places = index.astype(np.int64)[:, None] * width + np.arange(width)
    flat = target.reshape(-1)
    np.add.at(flat, places.reshape(-1), source.reshape(-1))              # quick for one index of one dim alone
    if not np.may_share_memory(flat, made):
        target[...] = flat.reshape(target.shape)


@index_add.impl("cuda")
def index_add_cuda(out, input, dim, index, source, alpha):
    d = wrap_dim(dim, len(input.shape), "index_add")
    source = source.clone() if source.storage is out.storage else source
    if isinstance(alpha, complex):
        source, alpha = source * alpha, 1
    places = linear_places(view.reshape(index, -1), 0, (input.shape[d] if input.shape else 1,), "index_add")
    if out.is_contiguous() and prod(input.shape[:d]) == 1:               # the rows follow each other in memory as they are
        target = view.reshape(out, places_of(input.shape, d))
        base = target if input.data_ptr() == out.data_ptr() else view.reshape(input, target.shape)
        join_rows(target, base, places, view.reshape(source, places.shape[0], target.shape[1]), alpha=alpha)
    else:
        made = rows_first(input, d)
        join_rows(made, made, places, rows_first(source, d), alpha=alpha)
        transfer(out, rows_back(made, input.shape, d))


def places_of(shape, d):
    """(rows, width) of a contiguous tensor along its first dim d that is not 1."""
    return (shape[d], prod(shape[d + 1:])) if shape else (1, 1)


def rows_first(x, d):
    """A fresh (rows, width) tensor with the dim d of x as its rows."""
    x = view.view_as_shape(x, (1,)) if not x.shape else view.movedim(x, d, 0)
    return view.reshape(x.clone(memory_format=contiguous_format), x.shape[0], prod(x.shape[1:]))


def rows_back(rows, shape, d):
    """The opposite of rows_first, as a view."""
    if not shape:
        return view.reshape(rows, ())
    return view.movedim(view.reshape(rows, (shape[d], *shape[:d], *shape[d + 1:])), 0, d)


index_add.complex = OWN


@index_add.grad("input")
def index_add_grad_input(g):
    return g


@index_add.grad("source")
def index_add_grad_source(g, dim, index, source_shape, alpha):
    picked = index_select(g, dim, index.reshape(-1)).reshape(source_shape)
    return picked if alpha == 1 else picked * alpha.conjugate()


@index_add.samples
def index_add_samples(make):
    yield make(5, 3), 0, make(7, integer=True, low=0, high=5), make(7, 3)
    yield make(2, 3, 4), -2, make(5, integer=True, low=0, high=3), make(2, 5, 4), 0.5
    yield make(6), 0, make(0, integer=True), make(0)
    yield make(4, integer=True), 0, make(6, integer=True, low=0, high=4), make(6, integer=True)


@index_add.workloads
def index_add_workloads(make):
    x, index = make(1 << 14, 1 << 12, grad=False), make(1 << 14, integer=True, low=0, high=1 << 14)
    yield "16384 rows of 4096 fp32", lambda: (x, 0, index, x), 3 * x.nbytes + index.nbytes, 1 << 26


# ------------------------------------------------------------------ element by element
@op
def gather(input, dim, index, sparse_grad=False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so for every dim: one element of `input` for each of `index`. With `sparse_grad` the
    gradient is a sparse tensor of the elements taken.

    >>> import tritorch as torch; torch.tensor([[1, 2], [3, 4]]).gather(1, torch.tensor([[0, 0], [1, 0]]))
    tensor([[1, 1],
            [4, 3]])
    """
    if not isinstance(index, Tensor) or index.numel():                   # of torch.tensor([]) neither dtype nor dims matter
        check_places("gather", input.shape, dim, index)
    return index.shape, input.dtype, common_device("gather", input, index)


def check_places(name, shape, dim, index, source=None):
    """An index (and source) for gather and scatter: the dims of the tensor, no longer in any dim but the indexed one."""
    check_index(name, index)
    d = wrap_dim(dim, len(shape), name)
    check(len(index.shape) == len(shape) or 1 >= len(shape) + len(index.shape), name, f"an index of {len(shape)} dims", index.shape)
    if index.numel():
        check(all(n <= m for k, (n, m) in enumerate(zip(index.shape, shape)) if k != d), name,
              f"an index inside {tuple(shape)} but for dim {d}", index.shape)
    if isinstance(source, Tensor):
        check(len(source.shape) == len(index.shape) and all(n <= m for n, m in zip(index.shape, source.shape)), name,
              f"a source as large as the index {index.shape}", source.shape)


def _one(x):
    return x.reshape(1) if not x.shape else x


def _within(x, index, dim):
    """x cut to the index's size in every dim but `dim`."""
    return x[tuple([slice(None) if k == dim % index.ndim else slice(n) for k, n in enumerate(index.shape)])]


gather.exact, gather.complex = True, Parts(words=True)


@gather.impl("cpu")
def gather_cpu(out, input, dim, index, sparse_grad=False):
    if out.size:
        check_range("gather", index, input.shape[dim] if input.shape else 1, RuntimeError)
        input, index = _one(input), _one(index)
        out[...] = np.take_along_axis(_within(input, index, dim), index.astype(np.int64, copy=False), dim).reshape(out.shape)


@gather.impl("cuda")
def gather_cuda(out, input, dim, index, sparse_grad=False):
    made, shape = in_order(out), input.shape or (1,)
    index = index if index.shape else view.reshape(index, 1)
    pointing(K.gather_kernel, made, (input,), index, wrap_dim(dim, len(shape), "gather"), shape, input.strides or (1,), "gather")
    finish(out, made)


@gather.grad("input")
def gather_grad(g, input_shape, dim, index, sparse_grad):
    if sparse_grad and index.ndim == len(input_shape):
        from tritorch.sparse.embedding import elements

        return elements(g, input_shape, dim, index)
    zeros = create.new_zeros(g, input_shape)
    if index.ndim and index.shape[dim] == 1:                             # one of each row: no two gradients meet
        return zeros.scatter_(dim, index, g)                             # 4096 of 32000 float32 each: 128 µs, not 1972
    return zeros.scatter_add_(dim, index, g) if index.numel() else zeros


@gather.samples
def gather_samples(make):
    yield make(3, 4), 1, make(3, 2, integer=True, low=0, high=4)
    yield make(5, 3, 2), 0, make(7, 2, 2, integer=True, low=0, high=5)
    yield make(6), 0, make(4, integer=True, low=0, high=6)
    yield make(3, 4), 0, make(0, 4, integer=True)
    yield make(), 0, make(integer=True, low=0, high=1)
    yield make(5, 4), -1, make(5, 1, integer=True, low=0, high=4)


@gather.workloads
def gather_workloads(make):
    x, index = make(1 << 12, 1 << 12, grad=False), make(1 << 12, 1 << 12, integer=True, low=0, high=1 << 12)
    yield "4096x4096 fp32", lambda: (x, 1, index), 2 * x.nbytes + index.nbytes, 0
