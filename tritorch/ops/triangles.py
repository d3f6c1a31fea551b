"""Triangles and diagonals of matrices: tril, triu, diag, trace and their like."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, whole_numbers
from tritorch.layout import only_strided
from tritorch.memory_format import contiguous_format
from tritorch.ops import create, slicing, view
from tritorch.ops.copy import deliver, transfer
from tritorch.ops.shaping import atleast_2d, cat
from tritorch.pairs import Parts
from tritorch.shape import cdiv, next_power_of_2, wrap_dim

K = kernels("triangles")


@op
def triangle(input, diagonal, upper):
    """The elements on one side of a diagonal, zeros on the other: what tril and triu do."""
    check(len(input.shape) >= 2, "triu" if upper else "tril", "a tensor of at least 2 dims", input.shape)
    return input.shape, input.dtype, input.storage.device


triangle.exact, triangle.complex = True, Parts(words=True)


@triangle.impl("cpu")
def triangle_cpu(out, input, diagonal, upper):
    np.copyto(out, (np.triu if upper else np.tril)(input, diagonal))


@triangle.impl("cuda")
def triangle_cuda(out, input, diagonal, upper):
    if not out.numel():
        return
    if not out.is_contiguous() and out.mT.is_contiguous():               # as factors of matrices are
        out, input, diagonal, upper = out.detach().mT, input.detach().mT, -diagonal, not upper
    source = view.reshape(input, -1, *input.shape[-2:])
    target = out if out.is_contiguous() else create.empty(source.shape, dtype=out.dtype, device=out.device)
    batch, rows, cols = source.shape
    block_m, block_n = min(tile(16, 64), next_power_of_2(rows)), min(tile(64, 128), next_power_of_2(cols))
    grid = (cdiv(rows, block_m) * cdiv(cols, block_n) * batch,)
    launch(K.triangle_kernel, grid, target, source, *source.strides, rows, cols, diagonal, UPPER=upper, BLOCK_M=block_m, BLOCK_N=block_n)
    if target is not out:
        transfer(out, view.reshape(target, out.shape))


@triangle.grad("input")
def triangle_grad(g, diagonal, upper):
    return triangle(g, diagonal, upper)


@triangle.samples
def triangle_samples(make):
    yield make(4, 5), 0, True
    yield make(2, 5, 3), -1, False
    yield make(3, 3), 2, True
    yield make(0, 3), 0, False
    yield make(3, 4, integer=True), 1, False


@triangle.workloads
def triangle_workloads(make):
    x = make(1 << 12, 1 << 12, grad=False)
    yield "4096x4096 fp32", lambda: (x, 0, True), 2 * x.nbytes, 0


# ------------------------------------------------------------------ PyTorch's names above it
def tril(input, diagonal=0, *, out=None):
    """The lower triangle: elements above the diagonal are 0.

    >>> import tritorch as torch; torch.ones(2, 2).tril()
    tensor([[1., 0.],
            [1., 1.]])
    """
    return triangle(input, diagonal, False) if out is None else triangle.into(out, input, diagonal, False)


def triu(input, diagonal=0, *, out=None):
    """The upper triangle: elements below the diagonal are 0."""
    return triangle(input, diagonal, True) if out is None else triangle.into(out, input, diagonal, True)


def diag_embed(input, offset=0, dim1=-2, dim2=-1):
    """The last dim as a diagonal of two new dims, zeros elsewhere."""
    n = input.shape[-1] + abs(offset)
    ndim = len(input.shape) + 1
    a, b = wrap_dim(dim1, ndim, "diag_embed"), wrap_dim(dim2, ndim, "diag_embed")
    shape = list(input.shape[:-1])
    for d in sorted((a, b)):
        shape.insert(d, n)
    out = create.new_zeros(input, shape)
    slicing.diagonal(out, offset, a, b).copy_(input)
    return out


def diag(input, diagonal=0, *, out=None):
    """The diagonal of a matrix, or the matrix with a vector as its diagonal."""
    check(len(input.shape) in (1, 2), "diag", "a vector or a matrix", input.shape)
    if len(input.shape) == 1:
        return deliver(diag_embed(input, diagonal), out, exact=True)
    found = slicing.diagonal(input, diagonal)
    return found.clone(memory_format=contiguous_format) if out is None else deliver(found, out, exact=True)


def diagflat(input, offset=0):
    """A matrix with the elements, flattened, on its diagonal."""
    return diag_embed(view.reshape(input, -1), offset)


def trace(input):
    """The sum of a matrix's diagonal."""
    check(len(input.shape) == 2, "trace", "a matrix", input.shape)
    return slicing.diagonal(input).sum()


def block_diag(*tensors):
    """Matrices along the diagonal of a larger one, zeros elsewhere.

    >>> import tritorch as torch
    >>> torch.block_diag(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5]]))
    tensor([[1, 2, 0],
            [3, 4, 0],
            [0, 0, 5]])
    """
    blocks = [atleast_2d(t) for t in tensors] or [create.zeros(1, 0)]
    width, start, rows = sum(b.shape[1] for b in blocks), 0, []
    for b in blocks:
        left, right = [create.new_zeros(b, b.shape[0], n) for n in (start, width - start - b.shape[1])]
        rows.append(cat([left, b, right], 1))
        start += b.shape[1]
    return cat(rows, 0)


def _triangle_indices(keep, row, col, offset, dtype, device):
    row, col, offset = whole_numbers("triangle indices", "row, col and offset", (row, col, offset))
    check(row >= 0 and col >= 0, "triangle indices", "row and col of at least 0", row, col)
    places = np.array(np.nonzero(keep(np.ones((row, col), bool), offset)))
    return create.tensor(places, dtype=types.chosen(dtype, types.int64), device=device)


def tril_indices(row, col, offset=0, *, dtype=None, device=None, layout=None):
    """Rows and columns of the lower triangle of a matrix, as a (2, n) tensor.

    >>> import tritorch as torch
    >>> torch.tril_indices(2, 3)
    tensor([[0, 1, 1],
            [0, 0, 1]])
    """
    only_strided("tril_indices", layout)
    return _triangle_indices(np.tril, row, col, offset, dtype, device)


def triu_indices(row, col, offset=0, *, dtype=None, device=None, layout=None):
    """Rows and columns of the upper triangle of a matrix, as a (2, n) tensor.

    >>> import tritorch as torch
    >>> torch.triu_indices(2, 3)
    tensor([[0, 0, 0, 1, 1],
            [0, 1, 2, 1, 2]])
    """
    only_strided("triu_indices", layout)
    return _triangle_indices(np.triu, row, col, offset, dtype, device)
