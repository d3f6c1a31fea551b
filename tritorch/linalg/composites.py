"""Least squares, ranks and conditions of matrices, and equations of tensors."""
import math
from math import prod

from tritorch.autograd.modes import no_grad
from tritorch.dtype import finfo, types
from tritorch.errors import LinAlgError, check, sentence
from tritorch.linalg.norms import matrix_norm
from tritorch.linalg.solving import inv, solve
from tritorch.linalg.spectral import eigvalsh, svdvals
from tritorch.ops import compare, copy, create
from tritorch.ops.composite import composite
from tritorch.ops.householder import qr_factors
from tritorch.ops.matrices import check_matrices, result
from tritorch.ops.precise_product import precise_product
from tritorch.ops.pseudo_inverse import above, pinv, tolerances
from tritorch.ops.solving import inverse_of
from tritorch.ops.triangular import substitute

lstsq_result = result("linalg_lstsq", "solution residuals rank singular_values")
DRIVERS = "gels", "gelsy", "gelsd", "gelss"


# ------------------------------------------------------------------ least squares
@composite
def lstsq(A, B, rcond=None, *, driver=None):
    """(solution, residuals, rank, singular_values) of the problem to make ‖A X - B‖ small, for A (…, m, n) and B (…, m, k) or (…, m).

    `driver` 'gels', the only one on a GPU and the default there, takes A to be of full rank and uses its QR factorization; 'gelsy' (the
    default on the CPU), 'gelsd' and 'gelss' use its singular values, of which those up to rcond (by default eps · max(m, n)) times the
    greatest count as zero, and tell the rank; then X is the smallest of the solutions. residuals are the sums of squares of A X - B if
    m > n and the rank is n, but for 'gelsy', singular_values those of A for 'gelsd' and 'gelss'; else they are empty tensors. float32 or
    float64; the solution has gradients.

    >>> import tritorch as torch
    >>> A, B = torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0], [3.0]])
    >>> found = torch.linalg.lstsq(A, B, driver="gels")
    >>> [round(x.item(), 3) for x in (found.solution, found.residuals)]
    [2.0, 2.0]
    """
    name, on_cpu = "linalg.lstsq", A.device.type == "cpu"
    driver = ("gelsy" if on_cpu else "gels") if driver is None else driver
    check(driver in (DRIVERS if on_cpu else DRIVERS[:1]), name, f"driver {' or '.join(map(repr, DRIVERS if on_cpu else DRIVERS[:1]))}",
          repr(driver))
    check_matrices(name, A=A)
    check(0 <= len(A.shape) - len(B.shape) <= 1, name, "B of as many dims as A, or one less", A.shape, B.shape)
    vector = len(B.shape) < len(A.shape)
    B = B.unsqueeze(-1) if vector else B
    check_matrices(name, A=A, B=B)
    check(A.shape[:-1] == B.shape[:-1], name, "as many rows in B as in A, and equal batches", A.shape, B.shape)
    nothing = create.new_zeros(A, 0)
    rank, values, (m, n) = nothing.to(types.int64), nothing, A.shape[-2:]
    if driver == "gels":
        X = full_rank(A, B)
    else:
        rcond = finfo(A.dtype).eps * max(m, n) if rcond is None else rcond
        X = precise_product(pinv(A, rtol=rcond), B)
        with no_grad():
            S = svdvals(A)
            rank = above(S, 0.0, rcond).sum(-1) if S.shape[-1] else create.new_zeros(A, A.shape[:-2], dtype=types.int64)
        values = S if driver != "gelsy" else nothing
    residuals = nothing
    if m > n and driver != "gelsy" and (driver == "gels" or bool((rank == n).all())):
        residuals = (precise_product(A, X) - B).square().sum(-2)
    return lstsq_result(X.squeeze(-1) if vector else X, residuals, rank, values)


def full_rank(A, B):
    """X of the least norm that makes ‖A X - B‖ small, by A = Q R, or Aᵀ = Q R where there are more columns than rows."""
    wide = A.shape[-1] > A.shape[-2]
    Q, R = qr_factors(A.mT if wide else A, False)
    if A.device.type == "cpu":
        ends = (R.detach().diagonal(0, -2, -1) == 0).any(-1)
        if ends.any():
            raise LinAlgError(sentence("linalg.lstsq", "matrices of full rank", "others", use="driver='gelsd'"))
    return (precise_product(Q, substitute(R.mT, B, False, False)) if wide
            else substitute(R, precise_product(Q.mT, B), True, False))


# ------------------------------------------------------------------ ranks and conditions
@composite
def matrix_rank(A, tol=None, hermitian=False, *, atol=None, rtol=None, out=None):
    """How many singular values of A (…, m, n) (`hermitian`: sizes of eigenvalues) are above max(atol, rtol · the greatest), as int64.

    By default rtol is eps · max(m, n), or 0 beside an `atol` above 0; `tol` is an older name of atol. Both are numbers, or tensors that
    broadcast with the dims in front.

    >>> import tritorch as torch
    >>> torch.linalg.matrix_rank(torch.ones(3, 2))
    tensor(1)
    """
    check_matrices("linalg.matrix_rank", hermitian, A=A)
    check(tol is None or atol is None, "linalg.matrix_rank", "one of tol and atol", tol, atol)
    atol, rtol = tolerances(A, tol if atol is None else atol, 0.0 if tol is not None and rtol is None else rtol)
    with no_grad():
        S = eigvalsh(A).abs().sort(-1, True).values if hermitian else svdvals(A)
        made = above(S, atol, rtol).sum(-1) if S.shape[-1] else create.new_zeros(A, A.shape[:-2], dtype=types.int64)
    return copy.deliver(made, out)


@composite
def cond(A, p=None, *, out=None):
    """The condition of matrices: ‖A‖ₚ · ‖A⁻¹‖ₚ. p None or 2: the greatest singular value over the least, for any (…, m, n), -2 the least
    over the greatest; 'fro', 'nuc', ±1, ±inf: with that norm, for square matrices, infinite where one is singular.

    >>> import tritorch as torch
    >>> torch.linalg.cond(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor(2.)
    """
    check(p in (None, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf), "linalg.cond", "p 'fro', 'nuc', ±1, ±2 or ±inf", repr(p))
    square = p not in (None, 2, -2)
    check_matrices("linalg.cond", square, A=A)
    if not A.numel():
        return copy.deliver(create.new_zeros(A, A.shape[:-2]), out)
    if not square:
        S = svdvals(A)
        most, least = S[..., 0], S[..., -1]
        return copy.deliver(least / most if p == -2 else most / least, out)
    inverse, info = inverse_of("linalg.cond", A)
    singular = (info > 0).unsqueeze(-1).unsqueeze(-1)
    made = matrix_norm(A, p) * matrix_norm(compare.where(singular, 0.0, inverse), p)
    return copy.deliver(compare.where(info > 0, math.inf, made), out)


# ------------------------------------------------------------------ tensors
@composite
def tensorinv(A, ind=2, *, out=None):
    """The inverse of a tensor as a map from its last dims to its first `ind` ones: X with tensordot(X, A, ind) the identity.

    >>> import tritorch as torch
    >>> torch.linalg.tensorinv(torch.eye(6).reshape(2, 3, 6)).shape
    tritorch.Size([6, 2, 3])
    """
    check(ind > 0, "linalg.tensorinv", "ind of at least 1", ind)
    first, last = A.shape[:ind], A.shape[ind:]
    check(prod(first) == prod(last), "linalg.tensorinv", "as many elements in the first dims as in the last", first, last)
    return copy.deliver(inv(A.reshape(prod(first), prod(last))).reshape((*last, *first)), out)


@composite
def tensorsolve(A, B, dims=None, *, out=None):
    """X with tensordot(A, X, X.ndim) = B; A's `dims` are moved to its end first.

    >>> import tritorch as torch
    >>> torch.linalg.tensorsolve(torch.eye(6).reshape(2, 3, 6), torch.ones(2, 3)).shape
    tritorch.Size([6])
    """
    A = A if dims is None else A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    first, last = A.shape[:B.ndim], A.shape[B.ndim:]
    check(prod(first) == prod(last) == B.numel(), "linalg.tensorsolve", "as many elements in the last dims of A as in B", A.shape, B.shape)
    return copy.deliver(solve(A.reshape(B.numel(), prod(last)), B.reshape(-1)).reshape(last), out)


def vander(x, *, N=None):
    """The powers x⁰ … x^(N-1) of the elements of vectors (…, n) as rows (…, n, N); N is n by default.

    >>> import tritorch as torch
    >>> torch.linalg.vander(torch.tensor([1, 2, 3])).tolist()
    [[1, 1, 1], [1, 2, 4], [1, 3, 9]]
    """
    count = (x.shape[-1] if x.shape else 1) if N is None else N
    check(count > 1 and len(x.shape) > 0, "linalg.vander", "vectors, and N of at least 2", x.shape, N)
    return x.unsqueeze(-1) ** create.arange(count, device=x.device)
