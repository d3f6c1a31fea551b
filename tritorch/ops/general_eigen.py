"""Eigenvalues and eigenvectors of any square matrices: complex numbers, by LAPACK. On a GPU the host waits for the matrices, computes, and
copies what it found back."""
import numpy as np

from tritorch.autograd.modes import again
from tritorch.device import cpu
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import compare, create
from tritorch.ops.complex import imag, real
from tritorch.ops.copy import transfer
from tritorch.ops.eigen import phase_free, turn_of
from tritorch.ops.matrices import check_matrices, column_major, lapack, precise
from tritorch.ops.solving import solve_of
from tritorch.ops.triangles import diag_embed
from tritorch.pairs import OWN, adjoint
from tritorch.tensor import empty


@op(returns=("L", "V", "info"))
def general_eigen(A):
    """(L, V, info) with A V = V diag(L) for A (…, n, n): L (…, n) and V (…, n, n) are complex, the columns of V of length 1, and the
    element of the greatest size of each is positive. info, int32, is 1 where A has numbers that are none, 2 where LAPACK failed."""
    check_matrices("linalg.eig", True, A=A)
    kind = A.dtype.to_complex()
    return [(A.shape[:-1], kind, A.device), (A.shape, kind, A.device, column_major(A.shape)), (A.shape[:-2], types.int32, A.device)]


@general_eigen.impl("cpu")
def general_eigen_cpu(L, V, info, A):
    _fill(L, V, info, A)


def _fill(L, V, info, A):
    """What LAPACK finds for each matrix; without V the eigenvalues alone."""
    info[...] = ~np.isfinite(A).all((-2, -1))
    L[info != 0] = np.nan
    if V is not None:
        V[info != 0] = np.nan
    if not A.shape[-1]:
        return
    solve, whole = lapack("geev", A), A.dtype.kind == "c"
    for place in np.ndindex(A.shape[:-2]):
        if not info[place]:
            found, vectors, failed = _one(solve, whole, A[place], V is not None)
            L[place], info[place] = found, 2 * (failed != 0)
            if V is not None:
                V[place] = vectors
    if V is not None and V.size:
        V *= turn_of(V)


def _one(solve, whole, a, wanted):
    """(eigenvalues, eigenvectors, LAPACK's code) of a matrix. Of a real one pairs of columns hold the parts of conjugate vectors."""
    if whole:
        found, _, vectors, failed = solve(a, compute_vl=0, compute_vr=int(wanted))
        return found, vectors, failed
    turning, speed, _, vectors, failed = solve(a, compute_vl=0, compute_vr=int(wanted))
    found = turning + 1j * speed
    if wanted:
        parts, vectors = vectors, vectors.astype(np.result_type(vectors, np.complex64))
        first = np.flatnonzero(speed > 0)
        vectors[:, first] = parts[:, first] + 1j * parts[:, first + 1]
        vectors[:, first + 1] = vectors[:, first].conj()
    return found, vectors, failed


@general_eigen.impl("cuda")
def general_eigen_cuda(L, V, info, A):
    on_host(general_eigen_cpu, (L, V, info), A)


def on_host(fn, outs, *inputs):
    """Fill `outs` on a GPU by a function of arrays."""
    made = [empty(o.shape, o.dtype, cpu) for o in outs]
    fn(*[m.array for m in made], *[x.detach().cpu().array for x in inputs])
    for out, m in zip(outs, made):
        transfer(out, m)


general_eigen.complex = OWN


@general_eigen.grad("A")
def general_eigen_grad(g_L, g_V, L, V):
    """C. Boeddeker, P. Hanebrink, L. Drude, J. Heymann and R. Haeb-Umbach, "On the computation of complex-valued gradients with application
    to statistically optimum beamforming", 2017: columns of V keep their length, and the phases of those that a loss may not depend on."""
    inner = adjoint(V) @ g_V
    ends = inner.diagonal(0, -2, -1)
    phase_free("linalg.eig", imag(ends))
    inner = inner - adjoint(V) @ V * real(ends).unsqueeze(-2)
    gaps = (L.unsqueeze(-2) - L.unsqueeze(-1)).conj()
    inner = inner / compare.where(create.eye(L.shape[-1], device=L.device) != 0, 1.0, gaps)
    inner = inner - diag_embed(inner.diagonal(0, -2, -1)) + diag_embed(g_L)
    return unfolded(V, inner)


def unfolded(V, inner):
    """V⁻ᴴ inner Vᴴ."""
    turned = adjoint(V)
    return solve_of("linalg.eig", turned, inner @ turned, True)[0]


@general_eigen.samples
def general_eigen_samples(make):
    for shape in ((3, 3), (2, 4, 4), (1, 1), (0, 2, 2), (2, 0, 0)):
        yield ordered(make, *shape).detach(),


def ordered(make, *shape):
    """A sample of matrices whose eigenvalues LAPACK finds in the same order in either precision."""
    x = make(*shape, dtype=precise(make), grad=False) / 4
    x.diagonal(0, -2, -1).add_(2 * create.arange(shape[-1], dtype=x.dtype.to_real()))
    return x.requires_grad_()


@general_eigen.errors
def general_eigen_errors(make):
    yield (make(2, 3),), {}, RuntimeError, "linalg.eig: expected square matrices, got (2, 3)"
    yield (make(2, 2, integer=True),), {}, RuntimeError, "matrices of float32 or float64"


@general_eigen.workloads
def general_eigen_workloads(make):
    yield "256x256 fp32", lambda: (make(256, 256, grad=False),), 20 << 16, 25 * 256 ** 3


@op(returns=("L", "V", "info"))
def general_eigenvalues(A, vectors):
    """The outputs of `general_eigen`, L alone with a gradient; V, which that needs, is empty without `vectors`."""
    L, V, info = general_eigen.body(A)
    return [L, V if vectors else ((0,), *V[1:]), info]


@general_eigenvalues.impl("cpu")
def general_eigenvalues_cpu(L, V, info, A, vectors):
    _fill(L, V if vectors else None, info, A)


@general_eigenvalues.impl("cuda")
def general_eigenvalues_cuda(L, V, info, A, vectors):
    on_host(lambda L, V, info, a: general_eigenvalues_cpu(L, V, info, a, vectors), (L, V, info), A)


general_eigenvalues.complex = OWN


@general_eigenvalues.grad("A")
def general_eigenvalues_grad(g_L, A, V, vectors):
    check(vectors, "linalg.eigvals", "eigenvectors for a gradient", vectors)
    return unfolded(general_eigen(A)[1] if again(A) else V, diag_embed(g_L))


@general_eigenvalues.samples
def general_eigenvalues_samples(make):
    for shape in ((3, 3), (2, 2, 2), (0, 2, 2)):
        yield ordered(make, *shape), True
    yield ordered(make, 2, 3, 3).detach(), False


general_eigenvalues.workloads(lambda make: [("256x256 fp32", lambda: (make(256, 256, grad=False), False), 20 << 16, 10 * 256 ** 3)])
