"""Singular values and vectors of large matrices, the greatest ones alone, by random projections."""
from tritorch.errors import check
from tritorch.ops.householder import qr_factors
from tritorch.ops.matrices import check_matrices
from tritorch.ops.random import randn
from tritorch.ops.singular import decomposed
from tritorch.pairs import adjoint


def svd_lowrank(A, q=6, niter=2, M=None):
    """(U, S, V) with U diag(S) Vᵀ near A (…, m, n), or near A - M: the q greatest singular values and their vectors, U (…, m, q), S (…, q),
    V (…, n, q). `niter` more products with A and its transpose make them more exact; they hang on random numbers, and q should be somewhat
    more than the rank; more than min(m, n) is as much. (N. Halko, P. Martinsson and J. Tropp, "Finding structure with randomness", 2011.)

    >>> import tritorch as torch
    >>> U, S, V = torch.svd_lowrank(torch.ones(8, 4), q=2)
    >>> round(S[0].item(), 3)
    5.657
    """
    check_matrices("svd_lowrank", A=A)
    A = A if M is None else A - M
    check(q >= 0, "svd_lowrank", "q of at least 0", q)
    wide = A.shape[-2] < A.shape[-1]
    A = adjoint(A) if wide else A
    Q = qr_factors(A @ randn(A.shape[-1], min(q, *A.shape[-2:]), dtype=A.dtype, device=A.device), False)[0]
    for _ in range(niter):
        Q = qr_factors(A @ qr_factors(adjoint(A) @ Q, False)[0], False)[0]
    U, S, Vh = decomposed("svd_lowrank", adjoint(Q) @ A, False)
    U, V = Q @ U, adjoint(Vh)
    return (V, S, U) if wide else (U, S, V)


def pca_lowrank(A, q=None, center=True, niter=2):
    """(U, S, V) of the q (by default at most 6) principal components of the rows of A (…, m, n): what `svd_lowrank` gives for A less, if
    `center`, the mean of its rows. The components are the columns of V, and their variances S² / (m - 1).

    >>> import tritorch as torch
    >>> [x.shape for x in torch.pca_lowrank(torch.eye(5), q=2)]
    [tritorch.Size([5, 2]), tritorch.Size([2]), tritorch.Size([5, 2])]
    """
    check_matrices("pca_lowrank", A=A)
    q = min(6, *A.shape[-2:]) if q is None else q
    check(0 <= q <= min(A.shape[-2:]), "pca_lowrank", f"q between 0 and {min(A.shape[-2:])}", q, error=ValueError)
    check(niter >= 0, "pca_lowrank", "niter of at least 0", niter, error=ValueError)
    return svd_lowrank(A - A.mean(-2, True) if center else A, q, niter)
