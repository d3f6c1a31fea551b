"""Complex matrices on a GPU as real ones of twice as many rows and columns, in which each number a + bi is the matrix [a -b; b a]. Sums,
products, adjoints and inverses of these stand for those of the complex matrices, and so do Cholesky factors and pseudo-inverses, which are
unique; what pivots, reflects or rotates does not keep to them."""
import numpy as np

from tritorch.autograd.parts import needed
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.cholesky import cholesky_factor_cuda
from tritorch.ops.complex import imag, real, view_as_complex, view_as_real
from tritorch.ops.complex_gemm import turned
from tritorch.ops.copy import broadcast_view, transfer
from tritorch.ops.loops import SCALAR, launch_elementwise
from tritorch.ops.matrices import check_matrices, precise, scratch
from tritorch.ops.matrices import turned as transposed
from tritorch.ops.pseudo_inverse import pseudo_inverse_cuda
from tritorch.ops.shaping import stack
from tritorch.ops.solving import solve_square, solve_square_cpu, solve_square_cuda
from tritorch.ops.triangular import substitute_cuda
from tritorch.pairs import OWN, adjoint
from tritorch.tensor import empty, part, strided


def embedded(A):
    """Matrices (…, m, n) as real ones (…, 2m, 2n)."""
    return turned(A.detach(), conjugate=True)


def embedding(A):
    """`embedded` by operators, which have gradients."""
    re, im = real(A), imag(A)
    rows = stack([stack([re, -im], -1), stack([im, re], -1)], -3)
    return rows.reshape(*A.shape[:-2], 2 * A.shape[-2], 2 * A.shape[-1])


def every_other(x, rows, columns):
    """Every other row and column of real matrices, from these ones on."""
    m, n = x.shape[-2:]
    offset = x.offset + rows * x.strides[-2] + columns * x.strides[-1]
    return strided(x.storage, (*x.shape[:-2], m // 2, n // 2), (*x.strides[:-2], 2 * x.strides[-2], 2 * x.strides[-1]), offset, x.dtype)


def parts_as_rows(x):
    """Matrices (…, m, n) as real ones (…, 2m, n): the rows of real parts, each followed by that of its imaginary parts."""
    made = empty((*x.shape[:-2], 2 * x.shape[-2], x.shape[-1]), x.dtype.parts, x.device)
    for which in (0, 1):
        transfer(_rows(made, which), part(x, which))
    return made


def from_rows(out, made):
    """out = the complex matrices whose parts are the rows of `made`."""
    for which in (0, 1):
        transfer(part(out, which), _rows(made, which))


def _rows(x, which):
    shape, strides = (*x.shape[:-2], x.shape[-2] // 2, x.shape[-1]), (*x.strides[:-2], 2 * x.strides[-2], x.strides[-1])
    return strided(x.storage, shape, strides, x.offset + which * x.strides[-2], x.dtype)


def from_embedded(out, made):
    """out = the complex matrices that `made` stands for."""
    for which in (0, 1):
        transfer(part(out, which), every_other(made, which, 0))


def clear(made, row, column):
    """The imaginary parts of the diagonal, where they are read, become 0."""
    corners = every_other(made, row, column)
    strided(corners.storage, corners.shape[:-1], (*corners.strides[:-2], corners.strides[-2] + corners.strides[-1]), corners.offset,
            corners.dtype).fill_(0)


def places_of(info, found):
    """info = the rows of complex matrices in which rows of the real ones, from 1, are."""
    transfer(info, (found + 1) // 2)


@op(returns=("X", "info"))
def solve_complex(A, B):
    """(X, info) of `solve_square` for complex matrices on a GPU, by the factors of real ones.

    >>> import tritorch as torch; from tritorch.ops.embedded import solve_complex
    >>> solve_complex(torch.tensor([[2j]]), torch.tensor([[4j]]))[0]
    tensor([[2.+0.j]])
    """
    check_matrices("linalg.solve", True, A=A, B=B)
    check(A.dtype.is_complex, "linalg.solve", "complex matrices", A.dtype)
    X, _, _, info = solve_square.body(A, B)
    return [X, info]


@solve_complex.impl("cpu")
def solve_complex_cpu(X, info, A, B):
    LU = np.empty((*A.shape[:-2], *A.shape[:-3:-1]), A.dtype).swapaxes(-1, -2)
    solve_square_cpu(X, LU, np.empty(A.shape[:-1], np.int64), info, A, B)


@solve_complex.impl("cuda")
def solve_complex_cuda(X, info, A, B):
    whole, right = embedded(A), parts_as_rows(B.detach())
    made, codes = empty((*X.shape[:-2], 2 * X.shape[-2], X.shape[-1]), whole.dtype, X.device), scratch(A, *A.shape[:-2], dtype=types.int32)
    order = scratch(A, *whole.shape[:-1], dtype=types.int64)
    solve_square_cuda(made, transposed(empty(whole.shape, whole.dtype, X.device)), order, codes, whole, right)
    from_rows(X, made)
    places_of(info, codes)


solve_complex.complex = OWN


@solve_complex.grad("A", "B")
def solve_complex_grad(g_X, A, X):
    solved = solve_complex(adjoint(A), g_X)[0]
    return -solved @ adjoint(X) if needed("A") else None, solved


@solve_complex.samples
def solve_complex_samples(make):
    kind = dict(dtype=precise(make).to_complex())
    for shape, right in (((3, 3), (3, 2)), ((2, 3, 3), (3, 1)), ((2, 2), (2, 2, 3)), ((0, 0), (0, 1)), ((2, 2), (2, 0))):
        A = make(*shape, **kind, grad=False)
        A.diagonal(0, -2, -1).add_(3)
        yield A.requires_grad_(), make(*right, **kind)


@solve_complex.errors
def solve_complex_errors(make):
    yield (make(2, 2), make(2, 1)), {}, RuntimeError, "linalg.solve: expected complex matrices"


@solve_complex.workloads
def solve_complex_workloads(make):
    n = 1024
    x = make(n, n, grad=False, complex=True)
    yield f"{n}x{n}, as many right sides", lambda: (x, x), 24 * n * n, 64 * n ** 3 // 3


def least_squares(solve, A, B):
    """solve(A, B) of complex matrices by one for real ones."""
    X = solve(embedding(A), view_as_real(B).movedim(-1, -2).flatten(-3, -2))
    return view_as_complex(X.unflatten(-2, (A.shape[-1], 2)).movedim(-2, -1).contiguous())


def cholesky_embedded(L, info, A, upper):
    """The factors of the real matrices, whose rows and columns are in the order in which they remain triangular."""
    A = A.detach()
    whole, codes = embedded(adjoint(A) if upper else A), scratch(A, *A.shape[:-2], dtype=types.int32)
    clear(whole, 1, 0)
    made = empty(whole.shape, whole.dtype, A.device)
    cholesky_factor_cuda(made, codes, whole, False)
    if upper:
        transfer(part(transposed(L), 0), every_other(made, 0, 0))
        launch_elementwise(part(transposed(L), 1), (every_other(made, 1, 0),), SCALAR.neg, made.dtype)
    else:
        from_embedded(L, made)
    places_of(info, codes)


def substitute_embedded(out, A, B, upper, unit):
    """Rows are divided by the numbers on the diagonal: with ones there the real matrix is triangular, too."""
    A, B = A.detach(), B.detach()
    if not unit:
        ends = A.diagonal(0, -2, -1).unsqueeze(-1)
        A, B = A / ends, B / ends
    right = parts_as_rows(broadcast_view(B, out.shape))
    made, whole = empty(right.shape, right.dtype, out.device), embedded(A)
    clear(whole, 0 if upper else 1, 1 if upper else 0)
    substitute_cuda(made, whole, right, upper, True)
    from_rows(out, made)


def pseudo_inverse_embedded(out, info, A, atol, rtol, hermitian):
    """The pseudo-inverses of the real matrices; each singular value is there twice."""
    A = A.detach()
    if hermitian:
        below = A.tril(-1)
        A = below + adjoint(below) + A.diagonal(0, -2, -1).real.diag_embed()
    whole = embedded(A)
    made = empty((*whole.shape[:-2], whole.shape[-1], whole.shape[-2]), whole.dtype, A.device)
    pseudo_inverse_cuda(made, info, whole, atol, rtol, False)
    from_embedded(out, made)
