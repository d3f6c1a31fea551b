"""L D Lᵀ and L D Lᴴ of symmetric and Hermitian matrices that need not be definite, by LAPACK (J. Bunch and L. Kaufman, "Some stable methods
for calculating inertia and solving symmetric linear systems", 1977). On a GPU the host waits for the matrices, computes, and copies what it
found back."""
import numpy as np

from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, underivable
from tritorch.ops.general_eigen import on_host
from tritorch.ops.matrices import check_matrices, column_major, each, lapack, precise
from tritorch.pairs import OWN
from tritorch.shape import broadcast_shapes


@op(returns=("LD", "pivots", "info"))
def ldl_factors(A, hermitian=False):
    """(LD, pivots, info) of symmetric or, if `hermitian`, Hermitian A (…, n, n), of which the lower triangle is read: L, with ones on the
    diagonal, and the blocks of D, of one or two rows, as LAPACK's sytrf leaves them below. pivots, int32, are rows from 1, negative for
    blocks of two. info is 0 or the number of the first zero on D's diagonal."""
    check_matrices("linalg.ldl_factor", True, A=A)
    home = A.device
    return [(A.shape, A.dtype, home, column_major(A.shape)), (A.shape[:-1], types.int32, home), (A.shape[:-2], types.int32, home)]


@ldl_factors.impl("cpu")
def ldl_factors_cpu(LD, pivots, info, A, hermitian):
    factor = lapack("hetrf" if hermitian and A.dtype.kind == "c" else "sytrf", A)

    def one(a):
        made, places, code = factor(a, lower=1) if a.size else (a, np.zeros(0, np.int32), 0)
        return np.tril(made), places, code

    each(one, (LD, pivots, info), A)


@ldl_factors.impl("cuda")
def ldl_factors_cuda(LD, pivots, info, A, hermitian):
    on_host(lambda *arrays: ldl_factors_cpu(*arrays, hermitian), (LD, pivots, info), A)


ldl_factors.complex = OWN


@ldl_factors.grad("A")
def ldl_factors_grad(g_LD):
    return underivable("linalg.ldl_factor")(g_LD)


def indefinite(make, *shape):
    """A sample of symmetric matrices some of whose eigenvalues are below 0, and whose diagonal asks for blocks of two rows."""
    x = make(*shape, dtype=precise(make), grad=False)
    x = x + x.mT
    x.diagonal(0, -2, -1).mul_(0.01)
    return x


@ldl_factors.samples
def ldl_factors_samples(make):
    for shape in ((4, 4), (2, 3, 3), (1, 1), (0, 2, 2), (2, 0, 0)):
        yield indefinite(make, *shape), False


@ldl_factors.errors
def ldl_factors_errors(make):
    yield (make(2, 3),), {}, RuntimeError, "linalg.ldl_factor: expected square matrices, got (2, 3)"
    yield (make(2, 2, integer=True),), {}, RuntimeError, "matrices of float32 or float64"


@ldl_factors.workloads
def ldl_factors_workloads(make):
    yield "512x512 fp32", lambda: (indefinite(make, 512, 512), False), 8 << 18, 512 ** 3 // 3


@op
def ldl_solution(LD, pivots, B, hermitian=False):
    """X with A X = B (…, n, k) from what `ldl_factors` says of A; dims in front broadcast."""
    check_matrices("linalg.ldl_solve", True, LD=LD, B=B)
    check(LD.shape[-1] == B.shape[-2], "linalg.ldl_solve", "as many rows in B as in LD", LD.shape, B.shape)
    check(pivots.dtype is types.int32, "linalg.ldl_solve", "pivots of int32", pivots.dtype)
    check(pivots.shape == LD.shape[:-1], "linalg.ldl_solve", f"pivots of shape {tuple(LD.shape[:-1])}", pivots.shape)
    lead = broadcast_shapes("linalg.ldl_solve", LD.shape[:-2], B.shape[:-2])
    shape = (*lead, *B.shape[-2:])
    return shape, B.dtype, common_device("linalg.ldl_solve", LD, B), column_major(shape)


@ldl_solution.impl("cpu")
def ldl_solution_cpu(X, LD, pivots, B, hermitian):
    if not X.size:
        return
    places, n = np.abs(pivots), LD.shape[-1]
    fit = bool(((places >= 1) & (places <= n)).all())                    # LAPACK does not look, and writes elsewhere
    check(fit, "linalg.ldl_solve", f"pivots between 1 and {n}, or -{n} and -1", None if fit else pivots[(places < 1) | (places > n)][0])
    solve = lapack("hetrs" if hermitian and LD.dtype.kind == "c" else "sytrs", LD, B)
    wide = [np.broadcast_to(v, (*X.shape[:-2], *v.shape[-2:])) for v in (LD, pivots[..., None], B)]
    each(lambda factors, places, b: solve(factors, places[:, 0], b, lower=1)[0], (X,), *wide)


@ldl_solution.impl("cuda")
def ldl_solution_cuda(X, LD, pivots, B, hermitian):
    on_host(lambda *arrays: ldl_solution_cpu(*arrays, hermitian), (X,), LD, pivots, B)


ldl_solution.complex = OWN
ldl_solution.grad("LD")(underivable("linalg.ldl_solve", "LD"))


@ldl_solution.grad("B")
def ldl_solution_grad(g, LD, pivots, hermitian):
    """A⁻ᴴ g, where A is symmetric the conjugate of A⁻¹ of the conjugate."""
    if hermitian or not g.dtype.is_complex:
        return ldl_solution(LD, pivots, g, hermitian)
    return ldl_solution(LD, pivots, g.conj(), False).conj()


@ldl_solution.samples
def ldl_solution_samples(make):
    for shape, right in (((4, 4), (4, 2)), ((2, 3, 3), (3, 1)), ((2, 2), (2, 2, 3)), ((0, 0), (0, 1)), ((2, 2), (2, 0))):
        LD, pivots, _ = ldl_factors(indefinite(make, *shape), False)
        yield LD.detach(), pivots, make(*right, dtype=precise(make)), False


@ldl_solution.errors
def ldl_solution_errors(make):
    A = make(2, 2, grad=False)
    yield (A, A.int()[0], make(3, 1)), {}, RuntimeError, "as many rows in B as in LD"
    yield (A, A[0], make(2, 1)), {}, RuntimeError, "pivots of int32"
    yield (A, A.int()[:, :1], make(2, 1)), {}, RuntimeError, "pivots of shape (2,)"
