"""Norms and products of vectors and matrices."""
import math

from tritorch.errors import check, explained
from tritorch.keywords import also
from tritorch.ops import copy, slicing
from tritorch.ops import vectors as _vectors
from tritorch.ops.extremes import amax, amin
from tritorch.ops.matmul import chain_matmul
from tritorch.ops.singular import spectral_norm
from tritorch.ops.statistics import vector_norm as _vector_norm
from tritorch.shape import wrap_dim


@explained
@also(input="x")
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None, out=None):
    """(Σ |x|^ord)^(1/ord) over `dim`, or over all elements.

    >>> import tritorch as torch; torch.linalg.vector_norm(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    return copy.deliver(_vector_norm(x, ord, dim, keepdim, dtype), out)


@explained
@also(input="A")
def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None, out=None):
    """The norm of matrices: "fro" (Frobenius), ±1 (sums of columns), ±inf (sums of rows), of their singular values 2 (the greatest),
    -2 (the least) and "nuc" (the sum).

    >>> import tritorch as torch
    >>> torch.linalg.matrix_norm(torch.tensor([[1.0, -2.0], [3.0, 4.0]]), ord=1)
    tensor(6.)
    """
    check(len(A.shape) >= 2, "matrix_norm", "a matrix or a batch of matrices", A.shape)
    check(ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf), "matrix_norm", "ord 'fro', 'nuc', ±1, ±2 or ±inf", repr(ord))
    A = A if dtype is None else A.to(dtype)
    if ord in ("nuc", 2, -2):
        return copy.deliver(spectral_norm(A, ord, dim, keepdim), out)
    if ord == "fro":
        return copy.deliver(_vector_norm(A, 2, tuple(dim), keepdim), out)
    rows, cols = [wrap_dim(d, len(A.shape), "matrix_norm") for d in dim]
    summed, rest = (rows, cols) if abs(ord) == 1 else (cols, rows)
    sums = A.abs().sum(summed, keepdim=True)
    if ord > 0 and not sums.shape[rest]:                                 # no column, or no row: none is greater than 0
        sums = sums.sum(rest, keepdim=True)
    made = (amax if ord > 0 else amin)(sums, (rest,), True)
    return copy.deliver(made if keepdim else made.squeeze((rows, cols)), out)


@explained
@also(input="A")
def norm(A, ord=None, dim=None, keepdim=False, *, out=None, dtype=None):
    """A vector norm, or with two dims (or a matrix and an `ord`) a matrix norm; without `ord` the 2-norm of the elements.

    >>> import tritorch as torch
    >>> torch.linalg.norm(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    if ord is None or isinstance(dim, int) or dim is not None and len(dim) == 1 or dim is None and len(A.shape) == 1:
        return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype, out=out)
    check(dim is not None or len(A.shape) == 2, "norm", "a matrix, a vector or dims", A.shape)
    return matrix_norm(A, ord, (0, 1) if dim is None else dim, keepdim, dtype=dtype, out=out)


@explained
def cross(input, other, *, dim=-1, out=None):
    """The cross product of vectors of 3 elements along `dim`.

    >>> import tritorch as torch
    >>> torch.linalg.cross(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.])
    """
    return _vectors.cross(input, other, dim, out=out)


@explained
def vecdot(x, y, *, dim=-1, out=None):
    """The dot products of vectors along `dim`, those of x conjugated."""
    check(x.dtype is y.dtype, "linalg.vecdot", "vectors of one dtype", x.dtype, y.dtype)
    return copy.deliver((x.conj() * y).sum(dim), out)


def diagonal(A, *, offset=0, dim1=-2, dim2=-1):
    """The diagonals of matrices.

    >>> import tritorch as torch
    >>> torch.linalg.diagonal(torch.tensor([[1, 2], [3, 4]]))
    tensor([1, 4])
    """
    return slicing.diagonal(A, offset, dim1, dim2)


@explained
def multi_dot(tensors, *, out=None):
    """The product of several matrices in the order that needs the fewest multiplications; the first and the last may be vectors.

    >>> import tritorch as torch
    >>> torch.linalg.multi_dot([torch.ones(2, 3), torch.ones(3, 4), torch.ones(4)])
    tensor([12., 12.])
    """
    first, *between, last = tensors
    row, column = first.ndim == 1, last.ndim == 1
    made = chain_matmul(first.unsqueeze(0) if row else first, *between, last.unsqueeze(1) if column else last)
    made = made.squeeze(1) if column else made
    return copy.deliver(made.squeeze(0) if row else made, out)
