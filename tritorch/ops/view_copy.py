"""Views as tensors of their own: `view_copy` and the like copy what the view of their name would show; `unsafe_split` and its relatives are
views that know of no base."""
from tritorch.dtype import dtype as kinds
from tritorch.errors import check, explained
from tritorch.memory_format import contiguous_format
from tritorch.ops import complex, copy, slicing, view
from tritorch.tensor import Tensor, own


def _copied(seen, out=None):
    """A contiguous copy, or `out` holding the values."""
    return copy.clone(seen, memory_format=contiguous_format) if out is None else copy.deliver(seen, out, exact=True)


def _all_copied(name, pieces, out):
    """A copy of each piece; with `out`, a list of as many tensors, they are written into it."""
    if out is None:
        return tuple([_copied(piece) for piece in pieces])
    fits = isinstance(out, (tuple, list)) and len(out) == len(pieces)
    check(fits, name, f"{len(pieces)} tensors as destinations", len(out) if isinstance(out, (tuple, list)) else out)
    for piece, target in zip(pieces, out):
        copy.deliver(piece, target, exact=True)
    return None


# ------------------------------------------------------------------ one tensor
@explained
def alias_copy(input, *, out=None):
    """A contiguous copy of the tensor.

    >>> import tritorch as torch; torch.alias_copy(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    return _copied(input, out)


@explained
def detach_copy(input, *, out=None):
    """A contiguous copy without history."""
    return _copied(input.detach(), out)


@explained
def as_strided_copy(input, size, stride, storage_offset=None, *, out=None):
    """A copy of what `as_strided` shows."""
    return _copied(slicing.as_strided(input, tuple(size), tuple(stride), storage_offset), out)


@explained
def view_as_real_copy(input, *, out=None):
    """A copy of what `view_as_real` shows."""
    return _copied(complex.view_as_real(input), out)


@explained
def view_as_complex_copy(input, *, out=None):
    """A copy of what `view_as_complex` shows."""
    return _copied(complex.view_as_complex(input), out)


@explained
def diagonal_copy(input, offset=0, dim1=0, dim2=1, *, out=None):
    """A copy of what `diagonal` shows."""
    return _copied(slicing.diagonal(input, offset, dim1, dim2), out)


@explained
def expand_copy(input, size, *, implicit=False, out=None):
    """A copy of what `expand` shows, with memory for all of it. `implicit` changes nothing, as in PyTorch."""
    return _copied(view.expand(input, size), out)


@explained
def narrow_copy(input, dim, start, length, *, out=None):
    """A copy of what `narrow` shows.

    >>> import tritorch as torch; torch.narrow_copy(torch.tensor([1, 2, 3]), 0, 1, 2)
    tensor([2, 3])
    """
    return _copied(slicing.narrow(input, dim, start, length), out)


@explained
def permute_copy(input, dims, *, out=None):
    """A copy of what `permute` shows, contiguous in its new order."""
    return _copied(view.permute(input, dims), out)


@explained
def select_copy(input, dim, index, *, out=None):
    """A copy of what `select` shows."""
    return _copied(slicing.select(input, dim, index), out)


@explained
def slice_copy(input, dim=0, start=None, end=None, step=1, *, out=None):
    """A copy of every step-th slice of a dim from start to, not including, end.

    >>> import tritorch as torch; torch.slice_copy(torch.arange(6), 0, 1, None, 2)
    tensor([1, 3, 5])
    """
    check(input.ndim > 0, "slice_copy", "a tensor of at least one dim", "0 dims")
    check(step > 0, "slice_copy", "a step above 0", step)
    d = view.wrap_dim(dim, input.ndim, "slice_copy")
    return _copied(input[(slice(None),) * d + (slice(start, end, step),)], out)


@explained
def squeeze_copy(input, dim=None, *, out=None):
    """A copy of what `squeeze` shows."""
    return _copied(view.squeeze(input) if dim is None else view.squeeze(input, dim), out)


@explained
def t_copy(input, *, out=None):
    """A contiguous copy of what `t` shows."""
    return _copied(view.t(input), out)


@explained
def transpose_copy(input, dim0, dim1, *, out=None):
    """A contiguous copy of what `transpose` shows."""
    return _copied(view.transpose(input, dim0, dim1), out)


@explained
def unfold_copy(input, dimension, size, step, *, out=None):
    """A copy of what `Tensor.unfold` shows."""
    return _copied(slicing.unfold(input, dimension, size, step), out)


@explained
def unsqueeze_copy(input, dim, *, out=None):
    """A copy of what `unsqueeze` shows."""
    return _copied(view.unsqueeze(input, dim), out)


@explained
def view_copy(input, size=None, *, dtype=None, out=None):
    """A copy of what `view` shows, in another shape or of another dtype.

    >>> import tritorch as torch; torch.view_copy(torch.arange(4), (2, 2))
    tensor([[0, 1],
            [2, 3]])
    """
    size = dtype if size is None else size
    check(size is not None, "view_copy", "a size or a dtype", None, error=TypeError)
    return _copied(view.view(input, size) if isinstance(size, kinds) else view.reshape(input, size), out)


# ------------------------------------------------------------------ pieces
@explained
def unbind_copy(input, dim=0, *, out=None):
    """Copies of the slices along a dim; with `out`, a list of as many tensors, None."""
    return _all_copied("unbind_copy", slicing.unbind(input, dim), out)


@explained
def split_copy(input, split_size, dim=0, *, out=None):
    """Copies of the pieces that `split` gives.

    >>> import tritorch as torch; torch.split_copy(torch.arange(3), 2)
    (tensor([0, 1]), tensor([2]))
    """
    check(isinstance(split_size, int), "split_copy", "a whole number as split_size", repr(split_size), error=TypeError)
    return _all_copied("split_copy", slicing.split(input, split_size, dim), out)


@explained
def split_with_sizes_copy(input, split_sizes, dim=0, *, out=None):
    """Copies of pieces of these sizes."""
    return _all_copied("split_with_sizes_copy", slicing.split_with_sizes(input, split_sizes, dim), out)


@explained
def unsafe_split(input, split_size, dim=0):
    """The pieces that `split` gives, of which each may be written as a tensor of its own: that others are not to be written is up to you.

    >>> import tritorch as torch; torch.unsafe_split(torch.arange(3), 2)
    (tensor([0, 1]), tensor([2]))
    """
    check(isinstance(split_size, int), "unsafe_split", "a whole number as split_size", repr(split_size), error=TypeError)
    return tuple([own(piece) for piece in slicing.split(input, split_size, dim)])


@explained
def unsafe_split_with_sizes(input, split_sizes, dim=0):
    """Pieces of these sizes, as of `unsafe_split`."""
    return tuple([own(piece) for piece in slicing.split_with_sizes(input, split_sizes, dim)])


@explained
def unsafe_chunk(input, chunks, dim=0):
    """The pieces that `chunk` gives, as of `unsafe_split`."""
    return tuple([own(piece) for piece in slicing.chunk(input, chunks, dim)])


@explained
def fill(input, value):
    """A tensor like the input, all of whose elements are a number or a tensor without dims.

    >>> import tritorch as torch; torch.fill(torch.zeros(2), 3)
    tensor([3., 3.])
    """
    if isinstance(value, Tensor):
        check(not value.shape, "fill", "a number or a tensor without dims", value.shape)
    return copy.clone(input).fill_(value)
