"""Factorizations of matrices."""
from tritorch.autograd.modes import again
from tritorch.errors import check, explained
from tritorch.ops import copy, create
from tritorch.ops.cholesky import NOT_DEFINITE, checked_factor, cholesky_factor
from tritorch.ops.composite import composite
from tritorch.ops.destinations import deliver_all
from tritorch.ops.householder import geqrf_factors, qr_factors
from tritorch.ops.ldl import ldl_factors, ldl_solution
from tritorch.ops.lu import lu_factors, unpack
from tritorch.ops.matrices import check_matrices, refuse
from tritorch.ops.solving import SINGULAR
from tritorch.ops.triangles import triangle
from tritorch.return_types import result
from tritorch.tensor import own

cholesky_ex_result = result("linalg_cholesky_ex", "L info")
qr_result = result("linalg_qr", "Q R")
lu_result = result("linalg_lu", "P L U")
lu_factor_result = result("linalg_lu_factor", "LU pivots")
ldl_factor_result = result("linalg_ldl_factor", "LD pivots")
ldl_factor_ex_result = result("linalg_ldl_factor_ex", "LD pivots info")
lu_factor_ex_result = result("linalg_lu_factor_ex", "LU pivots info")

NO_DIVISOR = "matrices whose D has an inverse", "one whose D has a zero at place {} of its diagonal"


@explained
def cholesky_ex(input, *, upper=False, check_errors=False, out=None):
    """(L, info): the Cholesky factor without an error where there is none; `info`, int32, is 0 or the order of the first leading minor that
    is not positive, and L is not to be used there. Nothing waits for the device unless `check_errors`.

    >>> import tritorch as torch
    >>> torch.linalg.cholesky_ex(torch.tensor([[4.0, 2.0], [2.0, 1.0]])).info
    tensor(2, dtype=tritorch.int32)
    """
    made = cholesky_factor(input, upper)
    if check_errors:
        refuse("linalg.cholesky_ex", made[1], *NOT_DEFINITE)
    return deliver_all(cholesky_ex_result, made, out)


@composite
def cholesky(input, *, upper=False, out=None):
    """L with A = L Lᴴ, lower triangular, for symmetric or Hermitian positive definite A = input (…, n, n); if `upper`, U = Lᴴ. float32 or
    float64.

    Only the lower (if `upper`, the upper) triangle of A is read; the gradient is symmetric. Raises LinAlgError where A is not positive
    definite. (I. Murray, "Differentiation of the Cholesky decomposition", 2016)

    >>> import tritorch as torch
    >>> torch.linalg.cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    return checked_factor("linalg.cholesky", input, upper, out)


@explained
def lu_factor_ex(A, *, pivot=True, check_errors=False, out=None):
    """(LU, pivots, info): as `lu_factor`, but where U has a zero on its diagonal `info`, int32, tells its place, from 1, and nothing waits
    for the device unless `check_errors`.

    >>> import tritorch as torch
    >>> torch.linalg.lu_factor_ex(torch.ones(2, 2)).info
    tensor(2, dtype=tritorch.int32)
    """
    LU, pivots, _, info = lu_factors(A, pivot)
    if check_errors:
        refuse("linalg.lu_factor_ex", info, *SINGULAR)
    return deliver_all(lu_factor_ex_result, (LU, pivots, info), out)


@explained
def lu_factor(A, *, pivot=True, out=None):
    """(LU, pivots) with A = P L U for A (…, m, n), as `lu_solve` and `torch.lu_unpack` take them. float32 or float64.

    L, with ones on the diagonal, lies below the diagonal of LU, U on and above it. pivots, int32 (…, min(m, n)), are the rows, from 1, with
    which rows 1, 2, … were exchanged. Without `pivot`, on a GPU alone, rows stay where they are. Raises LinAlgError where U has a zero on
    its diagonal.

    >>> import tritorch as torch
    >>> torch.linalg.lu_factor(torch.tensor([[1.0, 2.0], [2.0, 2.0]])).pivots
    tensor([2, 2], dtype=tritorch.int32)
    """
    LU, pivots, _, info = lu_factors(A, pivot)
    refuse("linalg.lu_factor", info, *SINGULAR)
    return deliver_all(lu_factor_result, (LU, pivots), out)


@explained
def lu(A, *, pivot=True, out=None):
    """(P, L, U) with A = P L U for A (…, m, n): P (…, m, m) exchanges rows, L (…, m, k) is lower triangular with ones on the diagonal and
    U (…, k, n) upper triangular, k = min(m, n). float32 or float64. Without `pivot`, on a GPU alone, P is an empty tensor and A = L U.

    >>> import tritorch as torch
    >>> P, L, U = torch.linalg.lu(torch.tensor([[1.0, 2.0], [2.0, 2.0]]))
    >>> (P @ L @ U).tolist()
    [[1.0, 2.0], [2.0, 2.0]]
    """
    LU, pivots, _, _ = lu_factors(A, pivot)
    return deliver_all(lu_result, unpack(LU, pivots, True, pivot), out)


@composite
def qr(A, mode="reduced", *, out=None):
    """(Q, R) with A = Q R for A (…, m, n), by Householder reflections: Q has orthonormal columns, R is upper triangular. float32 or
    float64.

    mode 'reduced': Q is (…, m, k), R (…, k, n), k = min(m, n); 'complete': Q is (…, m, m), R (…, m, n); 'r': R alone, as in 'reduced', and
    an empty Q. The diagonal of R may be negative. Gradients need the first min(m, n) columns of A to be independent, and of tall matrices
    there are none in mode 'complete'.

    >>> import tritorch as torch
    >>> torch.linalg.qr(torch.tensor([[3.0], [4.0]]))
    tritorch.return_types.linalg_qr(
    Q=tensor([[-0.6000],
            [-0.8000]]),
    R=tensor([[-5.]]))
    """
    check(mode in ("reduced", "complete", "r"), "linalg.qr", "mode 'reduced', 'complete' or 'r'", repr(mode))
    check_matrices("linalg.qr", A=A)
    if mode == "r":
        k = min(A.shape[-2:])
        R = qr_factors(A, False)[1] if again(A) and A.requires_grad else own(triangle(geqrf_factors(A)[0][..., :k, :].mT, 0, False).mT)
        return deliver_all(qr_result, (create.new_zeros(A, 0), R), out)
    return deliver_all(qr_result, qr_factors(A, mode == "complete"), out)


@explained
def ldl_factor_ex(A, *, hermitian=False, check_errors=False, out=None):
    """(LD, pivots, info): as `ldl_factor`, but where D has a zero on its diagonal `info`, int32, tells its place, from 1, unless
    `check_errors`.

    >>> import tritorch as torch
    >>> torch.linalg.ldl_factor_ex(torch.zeros(2, 2)).info
    tensor(1, dtype=tritorch.int32)
    """
    made = ldl_factors(A, hermitian)
    if check_errors:
        refuse("linalg.ldl_factor_ex", made[2], *NO_DIVISOR)
    return deliver_all(ldl_factor_ex_result, made, out)


@explained
def ldl_factor(A, *, hermitian=False, out=None):
    """(LD, pivots) with A = L D Lᵀ, or L D Lᴴ if `hermitian`, for symmetric or Hermitian A (…, n, n) that need not be definite, as
    `ldl_solve` takes them. float32 or float64, real or complex; without a gradient.

    The lower triangle of A is read. LD and pivots are those of LAPACK's sytrf or hetrf: L, with ones on the diagonal, lies below that of D,
    whose blocks have one row or, where pivots, int32 from 1, are negative, two. Raises LinAlgError where D has a zero on its diagonal.

    >>> import tritorch as torch
    >>> torch.linalg.ldl_factor(torch.tensor([[4.0, 2.0], [2.0, 2.0]]))
    tritorch.return_types.linalg_ldl_factor(
    LD=tensor([[4.0000, 0.0000],
            [0.5000, 1.0000]]),
    pivots=tensor([1, 2], dtype=tritorch.int32))
    """
    LD, pivots, info = ldl_factors(A, hermitian)
    refuse("linalg.ldl_factor", info, *NO_DIVISOR)
    return deliver_all(ldl_factor_result, (LD, pivots), out)


@explained
def ldl_solve(LD, pivots, B, *, hermitian=False, out=None):
    """X (…, n, k) with A X = B from what `ldl_factor` made of A; `hermitian` as there. Gradients go to B.

    >>> import tritorch as torch
    >>> A = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> torch.linalg.ldl_solve(*torch.linalg.ldl_factor(A), torch.tensor([[2.0], [3.0]]))
    tensor([[3.],
            [2.]])
    """
    return copy.deliver(ldl_solution(LD, pivots, B, hermitian), out)
