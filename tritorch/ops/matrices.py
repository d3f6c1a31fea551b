"""What the factorizations of matrices share: checks, and working copies and their blocks."""
from math import prod

import numpy as np

from tritorch.dtype import types
from tritorch.errors import LinAlgError, check, sentence, tensors
from tritorch.ops.bounds import every
from tritorch.ops.copy import broadcast_view, transfer
from tritorch.ops.gemm import gemm
from tritorch.precision import highest
from tritorch.shape import same_strides
from tritorch.tensor import empty, strided

PRECISE = (types.float32, types.float64, types.complex64, types.complex128)


# ------------------------------------------------------------------ checks
def check_matrices(name, square=False, **matrices):
    """Raise unless these are batches of (square) matrices of float32 or float64, real or complex, all of one dtype."""
    tensors(name, **matrices)
    first = next(iter(matrices.values()))
    for x in matrices.values():
        if x.dtype not in PRECISE:                                       # PyTorch has no such code for half types
            error = NotImplementedError if x.dtype.is_floating_point else RuntimeError
            raise error(sentence(name, "matrices of float32 or float64", x.dtype))
        check(x.dtype is first.dtype, name, "matrices of one dtype", first.dtype, x.dtype)
        check(len(x.shape) >= 2, name, "a matrix or a batch of matrices", x.shape)
    check(not square or first.shape[-1] == first.shape[-2], name, "square matrices", first.shape)


def first_failure(info):
    """(the first nonzero number of `info`, " (batch element k)"), or (0, ""). Waits for the device; on meta nothing fails."""
    if info.is_meta:
        return 0, ""
    codes = every(info.detach()).cpu().array
    failed = np.flatnonzero(codes)
    if not failed.size:
        return 0, ""
    return int(codes.flat[failed[0]]), f" (batch element {failed[0]})" if codes.ndim else ""


def refuse(name, info, rule, got):
    """A LinAlgError if a number in `info` is not 0: that `rule` was expected, and `got`, in which {} is the number."""
    code, where = first_failure(info)
    if code:
        raise LinAlgError(sentence(name, rule, got.format(code) + where))


def finite(name, info):
    """A LinAlgError if a matrix had numbers that are none. Waits for the device."""
    code, where = first_failure(info)
    if code:
        raise LinAlgError(sentence(name, "finite numbers", "others" + where))


# ------------------------------------------------------------------ on the CPU
def each(fn, outs, *inputs):
    """Fill the numpy arrays `outs` by what `fn` returns for each matrix of `inputs`."""
    lead = inputs[0].shape[:-2]
    for place in np.ndindex(lead):
        made = fn(*[x[place] for x in inputs])
        for out, value in zip(outs, made if isinstance(made, tuple) else (made,)):
            out[place] = value


def lapack(name, *arrays):
    """LAPACK's routine for the dtype of these arrays: "potrf" is spotrf or dpotrf."""
    from scipy.linalg import lapack  # 60 ms to import: only when somebody asks

    return lapack.get_lapack_funcs(name, arrays)


# ------------------------------------------------------------------ on a GPU
def three(x):
    """x as (batch, rows, columns), without history; the same memory where its strides allow it."""
    from tritorch.ops.view import reshape

    return reshape(x.detach(), prod(x.shape[:-2]), *x.shape[-2:])


def working(x, target=None):
    """A copy (batch, rows, columns) of matrices that may be written, without gaps: in the memory of `target`, if it has none."""
    shape = (prod(x.shape[:-2]), *x.shape[-2:])
    made = empty(shape, x.dtype, x.device) if target is None or target.shape != x.shape else place_for(target, *shape)
    transfer(strided(made.storage, x.shape, unfolded(x.shape, made), made.offset, x.dtype), x.detach())
    return made


def scratch(like, *shape, dtype=None):
    """Fresh memory on the device of `like`."""
    return empty(shape, dtype or like.dtype, like.device)


def place_for(out, *shape):
    """Memory of this shape for what goes into `out`: its own, if the rows or columns of its matrices follow each other without gaps."""
    if out.is_contiguous():
        return strided(out.storage, shape, _rows(shape), out.offset, out.dtype)
    if is_column_major(out):
        return strided(out.storage, shape, column_major(shape), out.offset, out.dtype)
    return empty(shape, out.dtype, out.device)


def deliver(out, made):
    """Bring a result (batch, …) into `out`, unless it was made there."""
    strides = unfolded(out.shape, made)
    if made.storage is not out.storage or made.offset != out.offset or not same_strides(out.shape, out.strides, strides):
        transfer(out, strided(made.storage, out.shape, strides, made.offset, made.dtype))


def column_major(shape):
    """The strides of matrices whose columns are contiguous: so PyTorch's factorizations leave theirs."""
    strides = _rows((*shape[:-2], shape[-1], shape[-2]))
    return (*strides[:-2], strides[-1], strides[-2])


def is_column_major(x):
    """Whether a tensor of matrices has these strides."""
    return len(x.shape) > 1 and same_strides(x.shape, x.strides, column_major(x.shape))


def _rows(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def unfolded(shape, made):
    """Strides of a batch dim taken apart."""
    inner = len(made.shape) - 1
    lead = shape[:len(shape) - inner]
    return (*[s * made.strides[0] for s in _rows(lead)], *made.strides[1:])


def block(x, rows, columns):
    """The rows and columns, given as (begin, end), of each matrix of a batch."""
    (top, bottom), (left, right) = rows, columns
    offset = x.offset + top * x.strides[-2] + left * x.strides[-1]
    return strided(x.storage, (*x.shape[:-2], bottom - top, right - left), x.strides, offset, x.dtype)


def turned(x):
    """Each matrix of a batch transposed, in the same memory and without history."""
    return strided(x.storage, (*x.shape[:-2], x.shape[-1], x.shape[-2]), (*x.strides[:-2], x.strides[-1], x.strides[-2]), x.offset, x.dtype)


def spread(x, batch):
    """x (…, m, n) broadcast to a batch, as (batch, m, n); the stride of a batch of the same matrix is 0."""
    if not prod(x.shape[:-2]) > 1:
        return strided(x.storage, (prod(batch), *x.shape[-2:]), (0, *x.strides[-2:]), x.offset, x.dtype)
    return three(broadcast_view(x.detach(), (*batch, *x.shape[-2:])))


def product(out, a, b):
    """out = a @ b, as precisely as the dtype is."""
    if out.strides[-1] != 1:
        out, a, b = turned(out), turned(b), turned(a)
    with highest():
        gemm(out, a, b)


def subtract_product(out, a, b):
    """out -= a @ b."""
    if out.strides[-1] != 1:                                             # kernels write rows, and here columns are contiguous
        out, a, b = turned(out), turned(b), turned(a)
    with highest():
        gemm(out, a, b, out, -1, 1)


# ------------------------------------------------------------------ samples
def precise(make):
    """The dtype of samples: float32 in the place of half types, which these operators refuse."""
    kind = getattr(make, "dtype", None)                                  # that of workloads has none
    return kind if kind in PRECISE else PRECISE[0]


def regular(make, *shape):
    """A sample of matrices that are easy to invert: 3 is added to the diagonal."""
    x = make(*shape, dtype=precise(make), grad=False)
    x.diagonal(0, -2, -1).add_(3)
    return x.requires_grad_()
