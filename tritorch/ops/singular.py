"""Singular values and vectors of matrices."""
import numpy as np

from tritorch.autograd.modes import again
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import compare, copy, create, jacobi, view
from tritorch.ops.complex import imag
from tritorch.ops.composite import composite
from tritorch.ops.destinations import deliver_all
from tritorch.ops.eigen import diagonal_of, phase_free, positive, turn_of
from tritorch.ops.extremes import amax
from tritorch.ops.householder import qr_factors
from tritorch.ops.indexing import gather
from tritorch.ops.matrices import block, check_matrices, column_major, deliver, finite, precise, three
from tritorch.ops.precise_product import precise_product
from tritorch.ops.shaping import cat
from tritorch.ops.sorting import sort_pairs
from tritorch.ops.triangles import diag_embed
from tritorch.pairs import HOST, adjoint
from tritorch.return_types import result
from tritorch.shape import wrap_dim
from tritorch.tensor import own

svd_result = result("svd", "U S V")


@op(returns=("U", "S", "Vh", "info"))
def svd_factors(A):
    """(U, S, Vh, info) with A = U diag(S) Vh for A (…, m, n): U (…, m, k) and the adjoint of Vh (…, k, n) have orthonormal columns,
    S (…, k), real, falls and is not negative; k = min(m, n). Of each column of U the element of the greatest size is positive. info,
    int32, is 1 where A has numbers that are none."""
    check_matrices("linalg.svd", A=A)
    lead, (m, n) = A.shape[:-2], A.shape[-2:]
    k = min(m, n)
    left, right = (*lead, m, k), (*lead, k, n)
    across = None if A.is_cuda else column_major(right)                  # PyTorch has V there
    return [(left, A.dtype, A.device, column_major(left)), ((*lead, k), A.dtype.to_real(), A.device), (right, A.dtype, A.device, across),
            (lead, types.int32, A.device)]


@svd_factors.impl("cpu")
def svd_factors_cpu(U, S, Vh, info, A):
    info[...] = ~np.isfinite(A).all((-2, -1))
    for place in np.ndindex(A.shape[:-2]):
        if info[place]:
            U[place] = S[place] = Vh[place] = np.nan
        elif S.shape[-1]:
            U[place], S[place], Vh[place] = np.linalg.svd(A[place], full_matrices=False)
    if S.size:
        turn = turn_of(U)
        U *= turn
        Vh *= turn.conj().swapaxes(-1, -2)


@svd_factors.impl("cuda")
def svd_factors_cuda(U, S, Vh, info, A):
    if not S.numel():
        info.fill_(0)
        return
    a = three(A)
    size = amax(a.abs(), (1, 2), True)
    wide = A.shape[-1] > A.shape[-2]
    a = a / compare.where(size == 0, 1.0, size)                          # squares would overflow, or vanish
    u, s, v = of_tall(a.mT if wide else a)
    u, v = (v, u) if wide else (u, v)
    turn = compare.where(gather(u, -2, u.abs().argmax(-2, True)) < 0, -1.0, 1.0).to(u.dtype)
    lost = size * 0                                                      # NaN where a number is none
    deliver(U, (u * turn + lost).contiguous())
    deliver(Vh, (v * turn + lost).mT)
    deliver(S, (s * size.squeeze(-1)))
    deliver(info, (lost != 0).to(types.int32).reshape(-1))


def of_tall(a):
    """(U, S, V) of a (batch, m, n), m ≥ n: the columns of R of a = Q R are made orthogonal; their lengths are S."""
    n, Q = a.shape[-1], None
    if a.shape[-2] > n:
        Q, a = qr_factors(a, False)
    x = jacobi.stacked(a)
    jacobi.orthogonalize(x, n, amax((a * a).sum(1), -1))
    v, a = block(x, (n, 2 * n), (0, n)), block(x, (0, n), (0, n))
    s, order = sort_pairs((a * a).sum(1).sqrt(), -1, True)
    order = view.expand_to(order.unsqueeze(-2), a.shape)
    u, r = qr_factors(gather(a, -1, order), False)                       # orthonormal even where columns are zero
    u = u * compare.where(r.diagonal(0, -2, -1) < 0, -1.0, 1.0).to(u.dtype).unsqueeze(-2)
    return u if Q is None else precise_product(Q, u), s, gather(v, -1, order)


svd_factors.complex = HOST


@svd_factors.grad("A")
def svd_factors_grad(g_U, g_S, g_Vh, U, S, Vh):
    """J. Townsend, "Differentiating the singular value decomposition", 2016."""
    m, n, k = U.shape[-2], Vh.shape[-1], S.shape[-1]
    gaps = (S.unsqueeze(-2) - S.unsqueeze(-1)) * (S.unsqueeze(-2) + S.unsqueeze(-1))
    left, right = adjoint(U) @ g_U, Vh @ adjoint(g_Vh)
    left, right = left - adjoint(left), right - adjoint(right)
    gaps = compare.where((gaps == 0) & ((left == 0) & (right == 0) | diagonal_of(S)), 1.0, gaps)
    inner = left / gaps * S.unsqueeze(-2) + right / gaps * S.unsqueeze(-1)
    if U.dtype.is_complex:                                               # a pair of vectors may turn, the one against the other
        turns = left.diagonal(0, -2, -1)
        phase_free("linalg.svd", imag(turns + right.diagonal(0, -2, -1)) / 2)
        inner = inner - diag_embed(inner.diagonal(0, -2, -1) - turns / (2 * S))
    made = U @ (inner + diag_embed(g_S)) @ Vh
    if m > k:
        made = made + (g_U - U @ (adjoint(U) @ g_U)) / S.unsqueeze(-2) @ Vh
    if n > k:
        made = made + U @ ((g_Vh - g_Vh @ adjoint(Vh) @ Vh) / S.unsqueeze(-1))
    return made


@svd_factors.samples
def svd_factors_samples(make):
    for shape in ((3, 3), (2, 4, 3), (2, 3), (1, 1), (0, 2, 2), (2, 0), (0, 2)):
        yield spaced(make, *shape),


def spaced(make, *shape):
    """A sample of matrices whose singular values are not near each other."""
    x = make(*shape, dtype=precise(make), grad=False) / 4
    k = min(shape[-2:])
    x.diagonal(0, -2, -1).add_(2 * create.arange(1, k + 1, dtype=x.dtype.to_real()))
    return x.requires_grad_()


@svd_factors.errors
def svd_factors_errors(make):
    yield (make(3),), {}, RuntimeError, "linalg.svd: expected a matrix or a batch of matrices"
    yield (make(2, 2, integer=True),), {}, RuntimeError, "matrices of float32 or float64"


@svd_factors.workloads
def svd_factors_workloads(make):
    for batch, m, n in ((1, 1024, 1024), (1, 512, 512), (1024, 32, 32)):
        yield f"{batch} of {m}x{n} fp32", lambda b=batch, m=m, n=n: (make(b, m, n, grad=False),), 16 * batch * m * n, 22 * batch * n ** 3


@op(returns=("S", "U", "Vh", "info"))
def singular_values(A):
    """The outputs of `svd_factors` in another order; S alone has a gradient, as there is one where singular values are equal, too."""
    U, S, Vh, info = svd_factors.body(A)
    return [S, U, Vh, info]


@singular_values.impl("cpu")
def singular_values_cpu(S, U, Vh, info, A):
    svd_factors_cpu(U, S, Vh, info, A)


@singular_values.impl("cuda")
def singular_values_cuda(S, U, Vh, info, A):
    svd_factors_cuda(U, S, Vh, info, A)


singular_values.complex = HOST


@singular_values.grad("A")
def singular_values_grad(g_S, A, U, Vh):
    if again(A):
        U, _, Vh, _ = svd_factors(A)
    return U * g_S.unsqueeze(-2) @ Vh


@singular_values.samples
def singular_values_samples(make):
    yield spaced(make, 3, 2),
    yield spaced(make, 0, 2),


singular_values.workloads(svd_factors_workloads)


# ------------------------------------------------------------------ PyTorch's names above it
def decomposed(name, A, full):
    """(U, S, Vh), `full`: with square U and Vh. What completes them has no gradient."""
    U, S, Vh, info = svd_factors(A)
    finite(name, info)
    if full and U.shape[-2] > U.shape[-1]:
        U = own(cat([U.mT, complement(U).mT], -2).mT)                    # in the order of dims that the parts have
    if full and Vh.shape[-1] > Vh.shape[-2]:
        rest = adjoint(complement(adjoint(Vh)))
        Vh = cat([Vh, rest], -2) if Vh.is_cuda else own(cat([Vh.mT, rest.mT], -1).mT)
    return U, S, Vh


def complement(U):
    """Orthonormal columns (…, m, m - k) that are orthogonal to those of U (…, m, k)."""
    rest = qr_factors(U.detach(), True)[0][..., U.shape[-1]:]
    return positive(rest) if rest.numel() else rest


def values_of(name, A):
    """The singular values."""
    check_matrices(name, A=A)
    if A.dtype.is_complex and A.is_cuda:
        from tritorch.ops import embedded_values

        S, info = embedded_values.singular_values(A)
    else:
        S, _, _, info = singular_values(A)
    finite(name, info)
    return S


def spectral_norm(A, ord, dim, keepdim):
    """The greatest (ord 2), the least (-2) or the sum ('nuc') of the singular values of matrices in these two dims."""
    rows, columns = [wrap_dim(d, len(A.shape), "matrix_norm") for d in dim]
    check(rows != columns, "matrix_norm", "two different dims", dim)
    S = values_of("linalg.matrix_norm", view.movedim(A, (rows, columns), (-2, -1)))
    check(ord != -2 or S.shape[-1], "matrix_norm", "matrices that are not empty for ord -2", A.shape, error=IndexError)
    made = S.sum(-1) if ord == "nuc" or not S.shape[-1] else (S.amax if ord == 2 else S.amin)(-1)     # equal ones share the gradient
    if keepdim:
        for d in sorted((rows, columns)):
            made = view.unsqueeze(made, d)
    return made


def nuclear_norm(input, dim=None, keepdim=False, *, out=None):
    """The sum of singular values of matrices in the last two dims, or in `dim`.

    >>> import tritorch as torch
    >>> torch.nuclear_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor(7.)
    """
    return copy.deliver(spectral_norm(input, "nuc", (-2, -1) if dim is None else dim, keepdim), out)


@composite
def svd(input, some=True, compute_uv=True, *, out=None):
    """(U, S, V) with input = U diag(S) Vᴴ: `linalg.svd` under its older name, with V in place of its transpose.

    With `some` U is (…, m, k) and V (…, n, k), k = min(m, n), else both are square; without `compute_uv` they are square and zero.

    >>> import tritorch as torch
    >>> torch.svd(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).S
    tensor([4., 3.])
    """
    if compute_uv:
        U, S, Vh = decomposed("svd", input, not some)
        return deliver_all(svd_result, (U, S, adjoint(Vh)), out)
    S, (m, n) = values_of("svd", input), input.shape[-2:]
    lead = input.shape[:-2]
    return deliver_all(svd_result, (create.new_zeros(input, *lead, m, m), S, create.new_zeros(input, *lead, n, n)), out)
