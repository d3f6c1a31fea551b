"""Eigenvalues and eigenvectors of symmetric and Hermitian matrices."""
import numpy as np

from tritorch.autograd.modes import again, no_grad
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import compare, create, jacobi, slicing, view
from tritorch.ops.bounds import every
from tritorch.ops.complex import imag
from tritorch.ops.extremes import amax
from tritorch.ops.indexing import gather
from tritorch.ops.matrices import block, check_matrices, column_major, deliver, lapack, precise, working
from tritorch.ops.sorting import sort_pairs
from tritorch.ops.triangles import diag_embed, triangle
from tritorch.pairs import HOST, adjoint

PHASE = 1e-2                                                             # how much a loss may change with a phase, as in PyTorch


@op(returns=("L", "V", "info"))
def symmetric_eigen(A, lower):
    """(L, V, info) with A = V diag(L) Vᴴ for symmetric or Hermitian A (…, n, n), of which the lower triangle alone is read, or the upper
    one: L (…, n), real, rises, the columns of V (…, n, n) are orthonormal, and of each the element of the greatest size is positive. info,
    int32, is 1 where A has numbers that are none."""
    check_matrices("linalg.eigh", True, A=A)
    return [(A.shape[:-1], A.dtype.to_real(), A.device), (A.shape, A.dtype, A.device, column_major(A.shape)),
            (A.shape[:-2], types.int32, A.device)]


@symmetric_eigen.impl("cpu")
def symmetric_eigen_cpu(L, V, info, A, lower):
    solve = lapack("heevd" if A.dtype.kind == "c" else "syevd", A)
    info[...] = ~np.isfinite(np.tril(A) if lower else np.triu(A)).all((-2, -1))
    for place in np.ndindex(A.shape[:-2]):
        if info[place]:
            L[place] = V[place] = np.nan
        elif A.shape[-1]:
            L[place], V[place], _ = solve(A[place], lower=lower)
    if V.size:
        V *= turn_of(V)


def turn_of(V):
    """What makes the element of the greatest size of each column of V positive: numbers of size 1."""
    most = np.take_along_axis(V, np.abs(V).argmax(-2)[..., None, :], -2)
    if V.dtype.kind == "c":
        size = np.abs(most)
        return np.where(size == 0, 1, most.conj() / np.where(size == 0, 1, size)).astype(V.dtype)
    return np.where(most < 0, -1, 1).astype(V.dtype)


@symmetric_eigen.impl("cuda")
def symmetric_eigen_cuda(L, V, info, A, lower):
    if not V.numel():
        info.fill_(0)
        return
    n, source = A.shape[-1], A.detach()
    a = working(source if lower else source.mT)
    if n <= 2 * jacobi.PAIR:
        d, v = jacobi.rotations(a)
    else:
        d, v = large(a)
    d, order = sort_pairs(d, -1, False)
    deliver(L, d)
    deliver(info, (slicing.select(d, 1, 0) * 0 != 0).to(types.int32))   # NaN in one is NaN in all
    deliver(V, positive(gather(v, -1, view.expand_to(order.unsqueeze(-2), v.shape))))


def large(a):
    """(eigenvalues, eigenvectors), in no order, of the lower triangles of a (batch, n, n)."""
    batch, n, _ = a.shape
    a = triangle(a, 0, False) + triangle(a, -1, False).mT
    size = amax(a.abs(), (1, 2), True)
    size = compare.where(size == 0, 1.0, size)
    a = a / size
    norm = (a * a).sum((1, 2)).sqrt()
    x = jacobi.stacked(a)
    jacobi.diagonalize(x, norm)
    lost = (norm * 0).unsqueeze(-1)                                      # NaN if the matrix has numbers that are none, else 0
    return block(x, (0, n), (0, n)).diagonal(0, -2, -1) * size.squeeze(-1) + lost, block(x, (n, 2 * n), (0, n)) + lost.unsqueeze(-1)


def positive(v):
    """v with columns turned so that the element of the greatest size is positive."""
    most = gather(v, -2, v.abs().argmax(-2, True))
    if v.dtype.is_complex:
        return v * most.sgn().conj()
    return v * compare.where(most < 0, -1.0, 1.0).to(v.dtype)


symmetric_eigen.complex = HOST


@symmetric_eigen.grad("A")
def symmetric_eigen_grad(g_L, g_V, L, V):
    """M. Giles, "An extended collection of matrix derivative results for forward and reverse mode algorithmic differentiation", 2008."""
    inner = adjoint(V) @ g_V
    if V.dtype.is_complex:
        phase_free("linalg.eigh", imag(inner.diagonal(0, -2, -1)))
    inner = (inner - adjoint(inner)) / 2                                 # small changes of a symmetric matrix turn V by a skew one
    gaps = L.unsqueeze(-2) - L.unsqueeze(-1)
    inner = inner / compare.where((gaps == 0) & ((inner == 0) | diagonal_of(L)), 1.0, gaps)
    inner = inner - diag_embed(inner.diagonal(0, -2, -1)) + diag_embed(g_L)
    return V @ inner @ adjoint(V)


def phase_free(name, turns):
    """Raise unless a loss does not change with the phases of eigenvectors or singular vectors, of which any will do: `turns` is how it
    does. Waits for the device."""
    with no_grad():
        worst = amax(every(turns).abs()).item() if turns.numel() and not turns.is_meta else 0.0
    check(not worst > PHASE, name, "a loss that does not depend on the phases of complex vectors", "one that does")


def diagonal_of(L):
    """True on the diagonal of a matrix for vectors like L."""
    return create.eye(L.shape[-1], device=L.device) != 0


@symmetric_eigen.samples
def symmetric_eigen_samples(make):
    for shape in ((3, 3), (2, 4, 4), (1, 1), (0, 2, 2), (2, 0, 0)):
        yield apart(make, *shape), True
    yield apart(make, 5, 5), False


def apart(make, *shape):
    """A sample of symmetric matrices whose eigenvalues are not near each other."""
    x = make(*shape, dtype=precise(make), grad=False)
    x = (x + adjoint(x)) / 4
    x.diagonal(0, -2, -1).add_(2 * create.arange(shape[-1], dtype=x.dtype.to_real()))
    return x.requires_grad_()


@symmetric_eigen.errors
def symmetric_eigen_errors(make):
    yield (make(2, 3), True), {}, RuntimeError, "linalg.eigh: expected square matrices, got (2, 3)"
    yield (make(2, 2, integer=True), True), {}, RuntimeError, "matrices of float32 or float64"


@symmetric_eigen.workloads
def symmetric_eigen_workloads(make):
    for batch, n in ((1, 2048), (1, 512), (1024, 32)):
        yield f"{batch} of {n}x{n} fp32", lambda batch=batch, n=n: (make(batch, n, n, grad=False),
                                                                    True), 12 * batch * n * n, 9 * batch * n ** 3


@op(returns=("L", "V", "info"))
def symmetric_eigenvalues(A, lower):
    """`symmetric_eigen` whose L alone has a gradient, as there is one where eigenvalues are equal, too."""
    return symmetric_eigen.body(A, lower)


symmetric_eigenvalues.impl("cpu")(symmetric_eigen_cpu)
symmetric_eigenvalues.impl("cuda")(symmetric_eigen_cuda)


symmetric_eigenvalues.complex = HOST


@symmetric_eigenvalues.grad("A")
def symmetric_eigenvalues_grad(g_L, A, V, lower):
    V = symmetric_eigen(A, lower)[1] if again(A) else V
    return V * g_L.unsqueeze(-2) @ adjoint(V)


@symmetric_eigenvalues.samples
def symmetric_eigenvalues_samples(make):
    yield apart(make, 3, 3), True
    yield apart(make, 0, 2, 2), False


symmetric_eigenvalues.workloads(symmetric_eigen_workloads)


def is_lower(UPLO):
    """Whether the lower triangle is meant by 'L' or 'U'."""
    check(isinstance(UPLO, str) and UPLO.upper() in ("L", "U"), "linalg.eigh", "UPLO 'L' or 'U'", repr(UPLO))
    return UPLO.upper() == "L"
