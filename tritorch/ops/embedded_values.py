"""Eigenvalues of Hermitian matrices, and singular values of any complex ones, on a GPU: by real symmetric matrices of twice as many rows
and columns (see embedded.py), which have every eigenvalue twice. No complex vector can be told from their vectors where values are equal;
but gradients of values need no more than sums over all vectors of a value."""
import numpy as np

from tritorch.autograd.modes import no_grad
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import compare, create
from tritorch.ops.complex import real
from tritorch.ops.copy import transfer
from tritorch.ops.eigen import apart, symmetric_eigen_cpu, symmetric_eigen_cuda
from tritorch.ops.embedded import embedding
from tritorch.ops.matrices import check_matrices, scratch
from tritorch.ops.shaping import cat
from tritorch.ops.triangles import diag_embed, triangle
from tritorch.pairs import OWN, adjoint


@op
def hermitian(A, lower):
    """The Hermitian matrices of which A (…, n, n) has the lower, or the upper, triangle; of the diagonal the real parts count. The gradient
    is Hermitian, too."""
    check_matrices("linalg.eigvalsh", True, A=A)
    return A.shape, A.dtype, A.device


@hermitian.impl("cpu")
def hermitian_cpu(out, A, lower):
    below = np.tril(A, -1) if lower else np.triu(A, 1).conj().swapaxes(-1, -2)
    out[...] = below + below.conj().swapaxes(-1, -2)
    ends = np.arange(A.shape[-1])
    out[..., ends, ends] = A[..., ends, ends].real


@hermitian.impl("cuda")
def hermitian_cuda(out, A, lower):
    with no_grad():
        below = triangle(A, -1, False) if lower else adjoint(triangle(A, 1, True))
        transfer(out, below + adjoint(below) + diag_embed(real(A).diagonal(0, -2, -1)))


hermitian.complex = OWN


@hermitian.grad("A")
def hermitian_grad(g):
    return (g + adjoint(g)) / 2


@hermitian.samples
def hermitian_samples(make):
    yield apart(make, 3, 3), True
    yield apart(make, 2, 4, 4), False
    yield apart(make, 0, 2, 2), True


@hermitian.workloads
def hermitian_workloads(make):
    yield "1024x1024 fp32", lambda: (make(1024, 1024, grad=False), True), 8 << 20, 0


@op(returns=("L", "V", "info"))
def doubled_eigen(A):
    """(L, V, info) of symmetric matrices A (…, 2n, 2n) whose eigenvalues come in pairs: L (…, n) has one of each pair, rising, V and info
    are as those of `symmetric_eigen`. The gradients are those of functions that stay the same when the vectors of a pair are turned."""
    check_matrices("linalg.eigvalsh", True, A=A)
    check(not A.dtype.is_complex and A.shape[-1] % 2 == 0, "linalg.eigvalsh", "real matrices of an even number of rows", A.dtype, A.shape)
    return [((*A.shape[:-2], A.shape[-1] // 2), A.dtype, A.device), (A.shape, A.dtype, A.device), (A.shape[:-2], types.int32, A.device)]


@doubled_eigen.impl("cpu")
def doubled_eigen_cpu(L, V, info, A):
    every = np.empty(A.shape[:-1], A.dtype)
    symmetric_eigen_cpu(every, V, info, A, True)
    L[...] = every[..., ::2]


@doubled_eigen.impl("cuda")
def doubled_eigen_cuda(L, V, info, A):
    every = scratch(A, *A.shape[:-1])
    symmetric_eigen_cuda(every, V, info, A, True)
    transfer(L, every[..., ::2])


@doubled_eigen.grad("A")
def doubled_eigen_grad(g_L, g_V, L, V):
    """As that of `symmetric_eigen`, without what happens inside of a pair."""
    inner = V.mT @ g_V
    each = L.repeat_interleave(2, -1)
    place = create.arange(each.shape[-1], device=L.device) // 2
    inner = ((inner - inner.mT) / 2).masked_fill(place.unsqueeze(-1) == place, 0)
    gaps = each.unsqueeze(-2) - each.unsqueeze(-1)
    inner = inner / compare.where((gaps == 0) & (inner == 0), 1.0, gaps)
    return V @ (inner + diag_embed((g_L / 2).repeat_interleave(2, -1))) @ V.mT


@doubled_eigen.samples
def doubled_eigen_samples(make):
    for shape in ((4, 4), (2, 6, 6), (0, 2, 2)):                         # no pairs, of which any vectors would do
        yield apart(make, *shape).detach(),


@doubled_eigen.workloads
def doubled_eigen_workloads(make):
    yield "1024x1024 fp32", lambda: (make(1024, 1024, grad=False),), 12 << 20, 9 << 30


def hermitian_values(A, lower):
    """(eigenvalues, info) of Hermitian matrices (…, n, n)."""
    L, _, info = doubled_eigen(embedding(hermitian(A, lower)))
    return L, info


def singular_values(A):
    """(singular values, info) of complex matrices (…, m, n): the eigenvalues, but for signs and zeros, of [0 A; Aᴴ 0]."""
    m, n = A.shape[-2:]
    above, below = [create.new_zeros(A, *A.shape[:-2], k, k) for k in (m, n)]
    whole = cat([cat([above, A], -1), cat([adjoint(A), below], -1)], -2)
    L, _, info = doubled_eigen(embedding(whole))
    return L[..., m + n - min(m, n):].flip(-1), info
