"""Eigenvalues, singular values, and what is made of them."""
from tritorch.autograd.modes import is_grad_enabled
from tritorch.errors import LinAlgError, check, sentence
from tritorch.ops import copy
from tritorch.ops.composite import composite
from tritorch.ops.destinations import deliver_all
from tritorch.ops.eigen import is_lower, symmetric_eigen, symmetric_eigenvalues
from tritorch.ops.embedded_values import hermitian_values
from tritorch.ops.general_eigen import general_eigen, general_eigenvalues
from tritorch.ops.matrices import check_matrices, finite, first_failure
from tritorch.ops.singular import decomposed, values_of
from tritorch.return_types import result

eig_result = result("linalg_eig", "eigenvalues eigenvectors")
eigh_result = result("linalg_eigh", "eigenvalues eigenvectors")
svd_result = result("linalg_svd", "U S Vh")


@composite
def eigh(input, UPLO="L", *, out=None):
    """(eigenvalues, eigenvectors) with A = V diag(L) Vᴴ for symmetric or Hermitian A = input (…, n, n): L (…, n), real, rises, the
    columns of V are orthonormal.

    float32 or float64. The lower triangle alone is read, or with UPLO='U' the upper one. Eigenvectors are unique up to their signs, those
    of complex A up to phases, and a loss that depends on these raises RuntimeError in its gradient; complex A are for the CPU. Where
    eigenvalues are equal not even so: gradients through them are infinite or NaN there, those of eigenvalues are right. Raises
    LinAlgError if A has numbers that are none. On a GPU matrices of more than 64 rows are made diagonal by sweeps of rotations of blocks,
    and the host waits for each sweep.

    >>> import tritorch as torch
    >>> torch.linalg.eigh(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    tensor([1., 2.])
    """
    check_matrices("linalg.eigh", True, A=input)
    L, V, info = symmetric_eigen(input, is_lower(UPLO))
    finite("linalg.eigh", info)
    return deliver_all(eigh_result, (L, V), out)


@composite
def eigvalsh(input, UPLO="L", *, out=None):
    """The eigenvalues of symmetric or Hermitian matrices (…, n, n) in rising order; see `eigh`. Their gradients are right where some are
    equal, too.

    >>> import tritorch as torch
    >>> torch.linalg.eigvalsh(torch.eye(2) * 3)
    tensor([3., 3.])
    """
    check_matrices("linalg.eigvalsh", True, A=input)
    if input.dtype.is_complex and input.is_cuda:
        L, info = hermitian_values(input, is_lower(UPLO))
    else:
        L, _, info = symmetric_eigenvalues(input, is_lower(UPLO))
    finite("linalg.eigvalsh", info)
    return copy.deliver(L, out, exact=True)


@composite
def eig(input, *, out=None):
    """(eigenvalues, eigenvectors) of square matrices A = input (…, n, n): A V = V diag(L). Both are complex, in no order; the columns of V
    have length 1.

    float32 or float64, real or complex. Eigenvectors are unique up to phases: the gradient of a loss that depends on these raises
    RuntimeError, and where eigenvalues are equal it is infinite or NaN. The inverse of V is part of it, which does not exist for matrices
    that cannot be made diagonal. On a GPU the host waits for A and computes. Raises RuntimeError if A has numbers that are none.

    >>> import tritorch as torch
    >>> torch.linalg.eig(torch.tensor([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    tensor([0.+1.j, 0.-1.j])
    """
    L, V, info = general_eigen(input)
    found("linalg.eig", info)
    return deliver_all(eig_result, (L, V), out)


@composite
def eigvals(input, *, out=None):
    """The eigenvalues of square matrices (…, n, n), complex and in no order; see `eig`. On a GPU the host waits for A and computes.

    >>> import tritorch as torch
    >>> torch.linalg.eigvals(torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    tensor([2.+0.j, 3.+0.j])
    """
    L, _, info = general_eigenvalues(input, is_grad_enabled() and input.requires_grad or input._tangents is not None)
    found("linalg.eigvals", info)
    return copy.deliver(L, out)


def found(name, info):
    """Raise unless LAPACK found all eigenvalues."""
    code, where = first_failure(info)
    check(code != 1, name, "finite numbers", "others" + where)
    if code:
        raise LinAlgError(sentence(name, "an algorithm that converges", "one that does not" + where))


@composite
def svd(A, full_matrices=True, *, driver=None, out=None):
    """(U, S, Vh) with A = U diag(S) Vh for A (…, m, n): S (…, k) falls and is not negative, k = min(m, n); U (…, m, m) and Vh (…, n, n) are
    orthogonal, of which without `full_matrices` the first k columns of U and rows of Vh are returned.

    float32 or float64; complex A are for the CPU. Singular vectors are unique up to the signs, or phases, of pairs, and where singular
    values are equal not even so: gradients through them are infinite or NaN there (use `svdvals` for those of S), as they are where one is
    0 and A is not square. What completes U or Vh to a square has no gradient. Raises LinAlgError if A has numbers that are none. `driver`
    may name a routine of cuSOLVER's on a GPU, which is then not used: there is one method here.

    >>> import tritorch as torch
    >>> U, S, Vh = torch.linalg.svd(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    >>> U.shape, S.tolist(), Vh.shape
    (tritorch.Size([3, 3]), [4.0, 3.0], tritorch.Size([2, 2]))
    """
    check_driver(A, driver)
    return deliver_all(svd_result, decomposed("linalg.svd", A, full_matrices), out)


@composite
def svdvals(A, *, driver=None, out=None):
    """The singular values of matrices (…, m, n) in falling order; see `svd`. Their gradients are right where some are equal, too.

    >>> import tritorch as torch
    >>> torch.linalg.svdvals(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor([4., 3.])
    """
    check_driver(A, driver)
    return copy.deliver(values_of("linalg.svdvals", A), out, exact=True)


def check_driver(A, driver):
    """Raise unless `driver` may be said of A."""
    check_matrices("linalg.svd", A=A)
    if driver is not None and not A.is_cuda:
        raise RuntimeError(sentence("linalg.svd", "no driver on the CPU", repr(driver)))
    check(driver in (None, "gesvd", "gesvdj", "gesvda"), "linalg.svd", "driver 'gesvd', 'gesvdj' or 'gesvda'", repr(driver))
