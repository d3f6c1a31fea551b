"""Factors, inverses and solutions of small matrices, in batches.

They are computed on the host, in float32 or float64, whatever device the matrices are on: it waits for them. `inv`, `det`, `slogdet` and
`solve` have gradients; of the others none is known, and they say so.
"""
import collections

import numpy as np

from tritorch.autograd import Function, is_grad_enabled
from tritorch.errors import check
from tritorch.interop import from_numpy

SVD = collections.namedtuple("linalg_svd", "U S Vh")
QR = collections.namedtuple("linalg_qr", "Q R")
EIGH = collections.namedtuple("linalg_eigh", "eigenvalues eigenvectors")
SLOGDET = collections.namedtuple("linalg_slogdet", "sign logabsdet")
LSTSQ = collections.namedtuple("linalg_lstsq", "solution residuals rank singular_values")


def _host(name, f, *matrices, square=False):
    """f of the matrices as numpy arrays; what it returns as tensors where the first of them is."""
    A = matrices[0]
    check(len(A.shape) >= 2, name, "a matrix or a batch of matrices", A.shape)
    check(all(x.dtype.name in ("float32", "float64") for x in matrices), name, "float32 or float64", A.dtype, use="A.float()")
    check(not square or A.shape[-1] == A.shape[-2], name, "square matrices", A.shape)
    try:
        made = f(*[x.detach().cpu().numpy() for x in matrices])
    except np.linalg.LinAlgError as error:
        raise RuntimeError(f"linalg.{name}: expected matrices for which it exists, got {A.shape}: {error}") from None
    single = not isinstance(made, tuple)
    made = [from_numpy(np.array(x, dtype=None if np.asarray(x).dtype.kind == "i" else A.dtype.numpy)).to(A.device)
            for x in ((made,) if single else made)]
    return made[0] if single else made


def _without_gradient(name, *matrices):
    check(not (is_grad_enabled() and any(x.requires_grad for x in matrices)), name, "matrices that require no grad (it has no gradient)",
          "one that does", use="torch.no_grad() or detach()")


class _Inverse(Function):
    @staticmethod
    def forward(ctx, A):
        made = _host("inv", np.linalg.inv, A, square=True)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx, g):
        made, = ctx.saved_tensors
        return -(made.mT @ g @ made.mT)


class _LogDeterminant(Function):
    @staticmethod
    def forward(ctx, A):
        ctx.save_for_backward(A)
        sign, value = _host("slogdet", lambda a: tuple(np.linalg.slogdet(a)), A, square=True)
        ctx.mark_non_differentiable(sign)
        return sign, value

    @staticmethod
    def backward(ctx, unused, g):
        A, = ctx.saved_tensors
        return g[..., None, None] * inv(A).mT


def inv(A, *, out=None):
    """The inverse. Raises RuntimeError for a singular matrix.

    >>> import tritorch as torch; torch.linalg.inv(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    made = _Inverse.apply(A)
    return made if out is None else out.copy_(made)


def slogdet(A, *, out=None):
    """(sign, logabsdet) of the determinant."""
    return SLOGDET(*_LogDeterminant.apply(A))


def det(A, *, out=None):
    """The determinant.

    >>> import tritorch as torch; torch.linalg.det(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).round()
    tensor(-2.)
    """
    sign, value = _LogDeterminant.apply(A)
    return sign * value.exp()


def logdet(A):
    """The logarithm of the determinant, NaN where it is negative."""
    sign, value = _LogDeterminant.apply(A)
    return value + sign.sqrt().log()


def solve(A, B, *, left=True, out=None):
    """X in A X = B (X A = B with left=False); B is a matrix, or a vector of A's rows.

    >>> import tritorch as torch; torch.linalg.solve(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0]))
    tensor([1.0000, 0.5000])
    """
    if not left:
        return solve(A.mT, B.mT).mT
    column = len(B.shape) == 1 or len(B.shape) == len(A.shape) - 1 and B.shape == A.shape[:-1]
    if is_grad_enabled() and (A.requires_grad or B.requires_grad):
        made = inv(A) @ (B.unsqueeze(-1) if column else B)
    else:
        made = _host("solve", np.linalg.solve, A, B.unsqueeze(-1) if column else B, square=True)
    return made.squeeze(-1) if column else made


def cholesky(A, *, upper=False, out=None):
    """L of A = L Lᵀ, lower triangular; its transpose with upper=True. Raises RuntimeError unless A is positive definite."""
    _without_gradient("cholesky", A)
    made = _host("cholesky", np.linalg.cholesky, A, square=True)
    return made.mT if upper else made


def svd(A, full_matrices=True, *, driver=None, out=None):
    """(U, S, Vh) of A = U diag(S) Vh, S in descending order."""
    _without_gradient("svd", A)
    return SVD(*_host("svd", lambda a: tuple(np.linalg.svd(a, full_matrices=full_matrices)), A))


def svdvals(A, *, driver=None, out=None):
    """The singular values in descending order."""
    _without_gradient("svdvals", A)
    return _host("svdvals", lambda a: np.linalg.svd(a, compute_uv=False), A)


def qr(A, mode="reduced", *, out=None):
    """(Q, R) of A = Q R: Q has orthonormal columns, R is upper triangular. `mode` "complete" makes Q square."""
    check(mode in ("reduced", "complete"), "qr", "mode 'reduced' or 'complete'", repr(mode))
    _without_gradient("qr", A)
    return QR(*_host("qr", lambda a: tuple(np.linalg.qr(a, mode)), A))


def eigh(A, UPLO="L", *, out=None):
    """(eigenvalues, eigenvectors) of symmetric matrices, ascending; the lower triangle (UPLO "U": the upper one) is read."""
    _without_gradient("eigh", A)
    return EIGH(*_host("eigh", lambda a: tuple(np.linalg.eigh(a, UPLO)), A, square=True))


def eigvalsh(A, UPLO="L", *, out=None):
    """The eigenvalues of symmetric matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


def pinv(A, *, atol=None, rtol=None, hermitian=False, out=None):
    """The pseudo-inverse: singular values up to max(atol, rtol · the largest) count as 0."""
    _without_gradient("pinv", A)
    U, S, Vh = svd(A, full_matrices=False)
    rtol = (max(A.shape[-2:]) * np.finfo(A.dtype.numpy).eps if atol is None else 0.0) if rtol is None else rtol
    kept = S > (S.amax(-1, keepdim=True) * rtol).clamp(min=atol or 0.0)
    return (Vh.mT * (kept / S.masked_fill(~kept, 1))[..., None, :]) @ U.mT


def lstsq(A, B, rcond=None, *, driver=None):
    """The solution X of least |A X - B|, by the pseudo-inverse; of its fields the first is filled."""
    _without_gradient("lstsq", A, B)
    rtol = np.finfo(A.dtype.numpy).eps * max(A.shape[-2:]) if rcond is None else rcond
    none = A.new_empty(0)
    return LSTSQ(pinv(A, rtol=rtol) @ B, none, none.long(), none)


def old_svd(input, some=True, compute_uv=True, *, out=None):
    """(U, S, V) of input = U diag(S) Vᵀ; new programs say `linalg.svd`, which returns Vᵀ."""
    U, S, Vh = svd(input, full_matrices=not some)
    return collections.namedtuple("svd", "U S V")(U, S, Vh.mT)


def old_qr(input, some=True, *, out=None):
    """`linalg.qr` of mode "reduced", or "complete" with some=False."""
    return qr(input, "reduced" if some else "complete")


def old_cholesky(input, upper=False, *, out=None):
    """`linalg.cholesky`."""
    return cholesky(input, upper=upper)


FUNCTIONS = {"inverse": inv, "det": det, "logdet": logdet, "slogdet": slogdet, "pinverse": pinv, "svd": old_svd, "qr": old_qr,
             "cholesky": old_cholesky}                                   # of `tritorch`, and methods
