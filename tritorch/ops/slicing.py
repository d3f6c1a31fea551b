"""Views of some of the elements: select, slices, diagonals, windows, as_strided, and the pieces that split and chunk give."""
import operator

from tritorch.autograd.modes import state
from tritorch.autograd.parts import Part
from tritorch.dispatch import op
from tritorch.dtype import int64
from tritorch.errors import check, sentence, tensors, whole_numbers
from tritorch.keywords import also
from tritorch.ops.copy import copy_to
from tritorch.ops.create import arange
from tritorch.ops.view import same_memory
from tritorch.shape import extent, is_dense, own_dim, wrap_dim
from tritorch.storage import Spread
from tritorch.tensor import Tensor, empty


@op
def select(input, dim, index):
    """The slice at `index` of `dim`, without that dim.

    >>> import tritorch as torch; torch.arange(6).view(2, 3).select(1, -1)
    tensor([2, 5])
    """
    check(len(input.shape) > 0, "select", "a tensor of at least one dim", "0 dims", error=IndexError)
    d = wrap_dim(dim, len(input.shape), "select")
    n, k = input.shape[d], operator.index(index)
    if not -n <= k < n:
        raise IndexError(f"select: expected an index in [{-n}, {n - 1}] for dim {d}, got {k}")
    offset = input.offset + (k + n if k < 0 else k) * input.strides[d]
    return same_memory(input, input.shape[:d] + input.shape[d + 1:], input.strides[:d] + input.strides[d + 1:], offset)


@select.grad("input")
def select_grad(g, input_shape, input_strides, dim, index):
    return select_backward(g, input_shape, input_strides, dim, index)


@select.samples
def select_samples(make):
    yield make(3, 4), 0, 1
    yield make(3, 4), -1, -1
    yield make(5), 0, 2
    yield make(2, 0, 3), 0, 1


@op
def slice_dim(x, dim, start, stop, step):
    """Every step-th element from start to stop (both already inside the dim)."""
    shape, strides = list(x.shape), list(x.strides)
    shape[dim], strides[dim] = max(-(-(stop - start) // step), 0), strides[dim] * step
    return same_memory(x, tuple(shape), tuple(strides), x.offset + start * x.strides[dim] if shape[dim] else x.offset)


@slice_dim.grad("x")
def slice_dim_grad(g, x_shape, x_strides, dim, start, stop, step):
    return slice_backward(g, x_shape, x_strides, dim, start, stop, step)


@slice_dim.samples
def slice_dim_samples(make):
    yield make(5, 3), 0, 1, 4, 1
    yield make(2, 7), 1, 0, 7, 3
    yield make(4), 0, 4, 4, 1
    yield make(3, 2), 0, 0, 3, 1


@op
def as_strided(input, size, stride, storage_offset=None):
    """The storage read under any shape, strides and offset that stay inside it.

    >>> import tritorch as torch; torch.arange(4).as_strided((2, 2), (1, 2))
    tensor([[0, 2],
            [1, 3]])
    """
    size, stride = whole_numbers("as_strided", "sizes", size), whole_numbers("as_strided", "strides", stride)
    offset = input.offset if storage_offset is None else storage_offset
    check(len(size) == len(stride), "as_strided", "as many strides as sizes", size, stride)
    check(min((*size, *stride, offset), default=0) >= 0, "as_strided", "sizes, strides and offset that are not negative", size, stride,
          offset)
    need = (offset + extent(size, stride)) * input.dtype.itemsize
    check(need <= input.storage.nbytes or 0 in size, "as_strided", f"a layout inside the storage of {input.storage.nbytes} bytes",
          f"one that needs {need}")
    return same_memory(input, size, stride, offset)


@as_strided.grad("input")
def as_strided_grad(g, input_shape, input_strides, input_offset, size, stride, storage_offset):
    offset = input_offset if storage_offset is None else storage_offset
    return as_strided_backward(g, input_shape, input_strides, input_offset, tuple(size), tuple(stride), offset)


@as_strided.samples
def as_strided_samples(make):
    yield make(12), (3, 2), (4, 1), 1
    yield make(6), (2, 3), (1, 2), None
    yield make(8), (3, 4), (2, 1), 0                                     # overlapping rows
    yield make(5), (0,), (1,), 0


@op
def diagonal(input, offset=0, dim1=0, dim2=1):
    """The diagonal of two dims, as the last dim.

    >>> import tritorch as torch; torch.arange(9).view(3, 3).diagonal()
    tensor([0, 4, 8])
    """
    ndim = len(input.shape)
    a, b = wrap_dim(dim1, ndim, "diagonal"), wrap_dim(dim2, ndim, "diagonal")
    check(a != b, "diagonal", "two different dims", dim1, dim2)
    rows, cols = input.shape[a], input.shape[b]
    count = max(min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols), 0)
    start = input.offset + ((offset * input.strides[b] if offset >= 0 else -offset * input.strides[a]) if count else 0)
    rest = [d for d in range(ndim) if d not in (a, b)]
    return same_memory(input, (*[input.shape[d] for d in rest], count),
                       (*[input.strides[d] for d in rest], input.strides[a] + input.strides[b]), start)


@diagonal.grad("input")
def diagonal_grad(g, input_shape, offset, dim1, dim2):
    return diagonal_backward(g, input_shape, offset, dim1, dim2)


@diagonal.samples
def diagonal_samples(make):
    yield make(4, 3),
    yield make(2, 3, 4), 1, -2, -1
    yield make(3, 3), -2
    yield make(2, 2), 5


@op
def unfold(input, dimension, size, step):
    """Windows of `size` along a dim, every `step`; the window is the last dim.

    >>> import tritorch as torch; torch.arange(5).unfold(0, 3, 2)
    tensor([[0, 1, 2],
            [2, 3, 4]])
    """
    d = wrap_dim(dimension, len(input.shape), "unfold")
    n, s = (input.shape[d], input.strides[d]) if input.shape else (1, 1)
    check(0 <= size <= n, "unfold", f"a size of at most {n}", size)
    check(step > 0, "unfold", "a step of at least 1", step)
    shape, strides = list(input.shape), list(input.strides)
    if shape:
        shape[d], strides[d] = (n - size) // step + 1, s * step
    return same_memory(input, (*shape, size), (*strides, s))


@unfold.grad("input")
def unfold_grad(g, input_shape, dimension, size, step):
    zero = empty(input_shape, g.dtype, g.device)                         # only its layout is read
    windows = unfold(zero, dimension, size, step)
    return as_strided_backward(g, zero.shape, zero.strides, 0, windows.shape, windows.strides, windows.offset)


@unfold.samples
def unfold_samples(make):
    yield make(7), 0, 3, 2
    yield make(2, 6), 1, 2, 1
    yield make(5, 2), 0, 5, 1


# ------------------------------------------------------------------ their gradients: zeros with a part filled in
def _into_zeros(g, shape, take):
    """Zeros of `shape` whose part `take` is g."""
    if type(g.storage) is Spread:
        return Spread.on_whole(lambda g: _into_zeros(g, shape, take), g)
    out = g.new_zeros(shape)
    take(out).copy_(g)
    return out


def select_backward(g, shape, strides, dim, index):
    if state.grad:
        return _into_zeros(g, shape, lambda out: select(out, dim, index))
    d = wrap_dim(dim, len(shape), "select")
    return Part(shape, strides, [(g.unsqueeze(d), d, index % shape[d])])


def slice_backward(g, shape, strides, dim, start, stop, step):
    if g.shape == shape and step == 1:
        return g
    if not state.grad and step == 1:
        return Part(shape, strides, [(g, dim, start)])
    return _into_zeros(g, shape, lambda out: slice_dim(out, dim, start, stop, step))


def diagonal_backward(g, shape, offset, dim1, dim2):
    return _into_zeros(g, shape, lambda out: diagonal(out, offset, dim1, dim2))


def as_strided_backward(g, shape, strides, base_offset, size, stride, offset):
    """Elements that several places of the view read get the sum of their gradients; elements of the input that share
    memory share the gradient evenly, as in PyTorch."""
    if type(g.storage) is Spread:
        return Spread.on_whole(lambda g: as_strided_backward(g, shape, strides, base_offset, size, stride, offset), g)
    low = min(base_offset, offset)
    room = max(base_offset + extent(shape, strides), offset + extent(size, stride)) - low
    flat = g.new_zeros((room,))
    if is_dense(size, stride) or 0 in size:
        if 0 not in size:
            as_strided(flat, size, stride, offset - low).copy_(g)
    else:
        places = as_strided(_places(room, g.device), size, stride, offset - low)
        flat = flat.index_add(0, places.reshape(-1), g.reshape(-1))
    if not is_dense(shape, strides):
        mine = as_strided(_places(room, g.device), shape, strides, base_offset - low).reshape(-1)
        one = empty(mine.shape, g.dtype.parts, g.device).fill_(1)
        readers = empty((room,), g.dtype.parts, g.device).zero_().index_add(0, mine, one)
        flat = flat / readers.clamp(min=1)
    return as_strided(flat, shape, strides, base_offset - low)


def _places(count, device):
    return arange(count, dtype=int64, device=device)


# ------------------------------------------------------------------ PyTorch's names above them
def narrow(input, dim, start, length):
    """`length` elements of a dim from `start` on.

    >>> import tritorch as torch; torch.arange(5).narrow(0, 1, 3)
    tensor([1, 2, 3])
    """
    check(len(input.shape) > 0, "narrow", "a tensor of at least one dim", "0 dims")
    d = wrap_dim(dim, len(input.shape), "narrow")
    n = input.shape[d]
    if isinstance(start, Tensor):
        fits = not start.shape and start.dtype.category == 1
        check(fits, "narrow", "a whole number or a 0-dim tensor of one as start", start.dtype, start.shape)
        start = start.item()
    if not -n <= start <= n:
        raise IndexError(sentence("narrow", f"a start in [{-n}, {n}]", start))
    start += n if start < 0 else 0
    if not 0 <= length <= n - start:
        raise RuntimeError(sentence("narrow", f"a length of at most {n - start} from {start} on", length))
    return slice_dim(input, d, start, start + length, 1)


def unbind(input, dim=0, *, axis=None):
    """The slices along a dim, as a tuple of views."""
    d = own_dim(dim if axis is None else axis, input.shape, "unbind")
    return tuple([select(input, d, k) for k in range(input.shape[d])])


def split(tensor, split_size_or_sections=None, dim=0, *, split_size=None):
    """Views of at most split_size along a dim, or of the sizes given.

    >>> import tritorch as torch; [p.tolist() for p in torch.arange(5).split(2)]
    [[0, 1], [2, 3], [4]]
    """
    check(len(tensor.shape) > 0, "split", "a tensor of at least one dim", "0 dims")
    d = wrap_dim(dim, len(tensor.shape), "split")
    n, sizes = tensor.shape[d], split_size_or_sections if split_size is None else split_size
    if not isinstance(sizes, (tuple, list)):
        if sizes.__class__ is not int:
            (sizes,) = whole_numbers("split", "a size or sizes", (sizes,))
        check(sizes > 0 or n == 0 and sizes == 0, "split", "a size of at least 1", sizes)
        sizes = [min(sizes, n - k) for k in range(0, n, sizes or 1)] or [0]
    check(sum(sizes) == n and min(sizes) >= 0, "split", f"sizes that sum to {n}", tuple(sizes))
    out, start = [], 0
    for size in sizes:
        out.append(slice_dim(tensor, d, start, start + size, 1))
        start += size
    return tuple(out)


def chunk(input, chunks, dim=0):
    """At most `chunks` views of equal size along a dim, the last maybe smaller."""
    check(len(input.shape) > 0, "chunk", "a tensor of at least one dim", "0 dims")
    check(chunks > 0, "chunk", "at least 1 chunk", chunks)
    n = input.shape[wrap_dim(dim, len(input.shape), "chunk")]
    return split(input, max(-(-n // chunks), 1), dim) if n else split(input, [0] * chunks, dim)


@also(sections="indices_or_sections", indices="indices_or_sections", tensor_indices_or_sections="indices_or_sections")
def tensor_split(input, indices_or_sections, dim=0):
    """Views along a dim: `sections` parts as even as can be, or cut at the indices."""
    check(len(input.shape) > 0, "tensor_split", "a tensor of at least one dim", "0 dims")
    n = input.shape[wrap_dim(dim, len(input.shape), "tensor_split")]
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        parts = indices_or_sections
        check(parts > 0, "tensor_split", "at least 1 section", parts)
        check(parts < 1 << 63, "tensor_split", "a number of sections of 64 bits", parts, error=ValueError)
        sizes = [n // parts + (k < n % parts) for k in range(parts)]
    else:
        places = whole_numbers("tensor_split", "indices_or_sections", indices_or_sections)
        cuts = [0, *[min(max(c + n if c < 0 else c, 0), n) for c in places], n]
        sizes = [max(b - a, 0) for a, b in zip(cuts, cuts[1:])]
        starts = cuts[:-1]
        return tuple([slice_dim(input, wrap_dim(dim, len(input.shape), "tensor_split"), a, a + s, 1) for a, s in zip(starts, sizes)])
    return split(input, sizes, dim)


def split_with_sizes(input, split_sizes, dim=0):
    """Views of the given sizes along a dim."""
    return split(input, list(split_sizes), dim)


def _split_along(name, dim, least):
    def cut(input, indices_or_sections):
        tensors(name, input=input)
        check(len(input.shape) >= least, name, f"a tensor of at least {least} dims", input.shape)
        d = 0 if dim == 1 and len(input.shape) == 1 else dim
        if isinstance(indices_or_sections, int):
            parts = indices_or_sections
            check(parts > 0 and input.shape[d] % parts == 0, name, f"sections that divide {input.shape[d]}", parts)
        return tensor_split(input, indices_or_sections, d)

    cut.__name__ = cut.__qualname__ = name
    cut.__doc__ = f"Equal parts, or parts cut at indices, along dim {dim}."
    return cut


hsplit, vsplit, dsplit = _split_along("hsplit", 1, 1), _split_along("vsplit", 0, 2), _split_along("dsplit", 2, 3)


# ------------------------------------------------------------------ copies with a part replaced
def _replaced(input, src, part, name):
    gaps = not any(n > 1 and not s for n, s in zip(input.shape, input.strides))          # these stay; what is repeated gets memory
    out = copy_to(input, input.dtype, input.device, input.strides) if gaps else input.clone()
    target = part(out)
    check(target.shape == src.shape, name, f"a source of shape {tuple(target.shape)}", tuple(src.shape))
    target.copy_(src)
    return out


def select_scatter(input, src, dim, index):
    """A copy of input with `src` as its slice at `index` of `dim`."""
    return _replaced(input, src, lambda x: select(x, dim, index), "select_scatter")


def slice_scatter(input, src, dim=0, start=None, end=None, step=1):
    """A copy of input with `src` as its elements start:end:step along `dim`."""
    d = wrap_dim(dim, len(input.shape), "slice_scatter")
    first, stop, _ = slice(start, end, step).indices(input.shape[d])
    return _replaced(input, src, lambda x: slice_dim(x, d, first, max(stop, first), step), "slice_scatter")


def diagonal_scatter(input, src, offset=0, dim1=0, dim2=1):
    """A copy of input with `src` as its diagonal."""
    return _replaced(input, src, lambda x: diagonal(x, offset, dim1, dim2), "diagonal_scatter")


def as_strided_scatter(input, src, size, stride, storage_offset=None):
    """A copy of input with `src` as the part that `as_strided` would give."""
    return _replaced(input, src, lambda x: as_strided(x, size, stride, storage_offset), "as_strided_scatter")
