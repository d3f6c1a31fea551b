"""Least squares, ranks and conditions of matrices, and equations of tensors."""
import math
from math import prod

from tritorch.autograd.modes import no_grad
from tritorch.dtype import finfo, types
from tritorch.errors import LinAlgError, check, explained, sentence
from tritorch.linalg.norms import matrix_norm
from tritorch.linalg.solving import inv, solve
from tritorch.linalg.spectral import eigvalsh, svdvals
from tritorch.ops import compare, copy, create
from tritorch.ops.composite import composite
from tritorch.ops.embedded import least_squares
from tritorch.ops.householder import qr_factors
from tritorch.ops.matrices import check_matrices
from tritorch.ops.precise_product import precise_product
from tritorch.ops.pseudo_inverse import above, pinv, tolerances
from tritorch.ops.solving import inverse_of
from tritorch.ops.triangular import substitute
from tritorch.pairs import adjoint
from tritorch.return_types import result

lstsq_result = result("linalg_lstsq", "solution residuals rank singular_values")
DRIVERS = "gels", "gelsy", "gelsd", "gelss"


# ------------------------------------------------------------------ least squares
@composite
def lstsq(input, b, rcond=None, *, driver=None):
    """(solution, residuals, rank, singular_values) of the problem to make ‖A X - B‖ small, for A = input (…, m, n) and B = b (…, m, k) or
    (…, m).

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
    name, on_cpu = "linalg.lstsq", not input.is_cuda
    driver = ("gelsy" if on_cpu else "gels") if driver is None else driver
    check(driver in (DRIVERS if on_cpu else DRIVERS[:1]), name, f"driver {' or '.join(map(repr, DRIVERS if on_cpu else DRIVERS[:1]))}",
          repr(driver))
    check_matrices(name, A=input)
    check(0 <= len(input.shape) - len(b.shape) <= 1, name, "b of as many dims as input, or one less", input.shape, b.shape)
    vector = len(b.shape) < len(input.shape)
    b = b.unsqueeze(-1) if vector else b
    check_matrices(name, A=input, B=b)
    check(input.shape[:-1] == b.shape[:-1], name, "as many rows in b as in input, and equal batches", input.shape, b.shape)
    nothing = create.new_zeros(input, 0, dtype=input.dtype.to_real())
    rank, values, (m, n) = nothing.to(types.int64), nothing, input.shape[-2:]
    if driver == "gels":
        X = full_rank(input, b)
    else:
        rcond = finfo(input.dtype.to_real()).eps * max(m, n) if rcond is None else rcond
        X = precise_product(b.mT, pinv(input, rtol=rcond).mT).mT         # its columns are contiguous, as PyTorch's
        with no_grad():
            S = svdvals(input)
            rank = above(S, 0.0, rcond).sum(-1) if S.shape[-1] else create.new_zeros(input, input.shape[:-2], dtype=types.int64)
        values = S if driver != "gelsy" else nothing
    residuals = nothing
    if m > n and driver != "gelsy" and (driver == "gels" or bool((rank == n).all())):
        residuals = (precise_product(input, X) - b).abs().square().sum(-2)
    return lstsq_result(X.squeeze(-1) if vector else X, residuals, rank, values)


def full_rank(A, B):
    """X of the least norm that makes ‖A X - B‖ small, by A = Q R, or Aᵀ = Q R where there are more columns than rows."""
    if A.dtype.is_complex and A.is_cuda:
        return least_squares(full_rank, A, B)
    wide = A.shape[-1] > A.shape[-2]
    Q, R = qr_factors(adjoint(A) if wide else A, False)
    if A.is_cpu:
        ends = (R.detach().diagonal(0, -2, -1) == 0).any(-1)
        if ends.any():
            raise LinAlgError(sentence("linalg.lstsq", "matrices of full rank", "others", use="driver='gelsd'"))
    return (precise_product(substitute(adjoint(R), B, False, False).mT, Q.mT).mT if wide
            else substitute(R, precise_product(adjoint(Q), B), True, False))


# ------------------------------------------------------------------ ranks and conditions
@composite
def matrix_rank(input, tol=None, hermitian=False, *, atol=None, rtol=None, out=None):
    """How many singular values of A = input (…, m, n) (`hermitian`: sizes of eigenvalues) are above max(atol, rtol · the greatest), as
    int64.

    By default rtol is eps · max(m, n), or 0 beside an `atol` above 0; `tol` is an older name of atol. Both are numbers, or tensors that
    broadcast with the dims in front.

    >>> import tritorch as torch
    >>> torch.linalg.matrix_rank(torch.ones(3, 2))
    tensor(1)
    """
    check_matrices("linalg.matrix_rank", hermitian, A=input)
    check(tol is None or atol is None, "linalg.matrix_rank", "one of tol and atol", tol, atol)
    atol, rtol = tolerances(input, tol if atol is None else atol, 0.0 if tol is not None and rtol is None else rtol)
    with no_grad():
        S = eigvalsh(input).abs().sort(-1, True).values if hermitian else svdvals(input)
        made = above(S, atol, rtol).sum(-1) if S.shape[-1] else create.new_zeros(input, input.shape[:-2], dtype=types.int64)
    return copy.deliver(made, out)


@composite
def cond(input, p=None, *, out=None):
    """The condition of matrices: ‖A‖ₚ · ‖A⁻¹‖ₚ. p None or 2: the greatest singular value over the least, for any input (…, m, n), -2 the
    least over the greatest; 'fro', 'nuc', ±1, ±inf: with that norm, for square matrices, infinite where one is singular.

    >>> import tritorch as torch
    >>> torch.linalg.cond(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor(2.)
    """
    check(p in (None, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf), "linalg.cond", "p 'fro', 'nuc', ±1, ±2 or ±inf", repr(p))
    square = p not in (None, 2, -2)
    check_matrices("linalg.cond", square, A=input)
    if not input.numel():
        return copy.deliver(create.new_zeros(input, input.shape[:-2], dtype=input.dtype.to_real()), out)
    if not square:
        S = svdvals(input)
        most, least = S[..., 0], S[..., -1]
        return copy.deliver(least / most if p == -2 else most / least, out)
    inverse, info = inverse_of("linalg.cond", input)
    singular = (info > 0).unsqueeze(-1).unsqueeze(-1)
    made = matrix_norm(input, p) * matrix_norm(compare.where(singular, 0.0, inverse), p)
    return copy.deliver(compare.where(info > 0, math.inf, made), out)


# ------------------------------------------------------------------ tensors
@composite
def tensorinv(input, ind=2, *, out=None):
    """The inverse of a tensor as a map from its last dims to its first `ind` ones: X with tensordot(X, input, ind) the identity.

    >>> import tritorch as torch
    >>> torch.linalg.tensorinv(torch.eye(6).reshape(2, 3, 6)).shape
    tritorch.Size([6, 2, 3])
    """
    check(ind > 0, "linalg.tensorinv", "ind of at least 1", ind)
    first, last = input.shape[:ind], input.shape[ind:]
    check(prod(first) == prod(last), "linalg.tensorinv", "as many elements in the first dims as in the last", first, last)
    return copy.deliver(inv(input.reshape(prod(first), prod(last))).reshape((*last, *first)), out)


@composite
def tensorsolve(input, other, dims=None, *, out=None):
    """X with tensordot(input, X, X.ndim) = other; `dims` of input are moved to its end first.

    >>> import tritorch as torch
    >>> torch.linalg.tensorsolve(torch.eye(6).reshape(2, 3, 6), torch.ones(2, 3)).shape
    tritorch.Size([6])
    """
    input = input if dims is None else input.movedim(tuple(dims), tuple(range(input.ndim - len(dims), input.ndim)))
    first, last = input.shape[:other.ndim], input.shape[other.ndim:]
    check(prod(first) == prod(last) == other.numel(), "linalg.tensorsolve", "as many elements in the last dims of input as in other",
          input.shape, other.shape)
    return copy.deliver(solve(input.reshape(other.numel(), prod(last)), other.reshape(-1)).reshape(last), out)


@explained
def vander(x, *, N=None):
    """The powers x⁰ … x^(N-1) of the elements of vectors (…, n) as rows (…, n, N); N is n by default.

    >>> import tritorch as torch
    >>> torch.linalg.vander(torch.tensor([1, 2, 3])).tolist()
    [[1, 1, 1], [1, 2, 4], [1, 3, 9]]
    """
    x = x if x.shape else x.reshape(1)
    count = x.shape[-1] if N is None else N
    check(count > 1, "linalg.vander", "N of at least 2", count)
    return x.contiguous().unsqueeze(-1) ** create.arange(count, device=x.device)
