"""lobpcg: a few eigenvalues at an end of the spectrum, and their vectors, by products with the matrix alone."""
from types import SimpleNamespace

from tritorch import linalg
from tritorch.autograd.function import Function
from tritorch.autograd.modes import no_grad
from tritorch.dtype import finfo, get_default_dtype
from tritorch.errors import check, explained
from tritorch.layout import strided
from tritorch.ops.create import eye
from tritorch.ops.random import randn
from tritorch.ops.shaping import cat, stack
from tritorch.ops.triangles import diag_embed


@explained
def lobpcg(A, k=None, B=None, X=None, n=None, iK=None, niter=None, tol=None, largest=None, method=None, tracker=None, ortho_iparams=None,
           ortho_fparams=None, ortho_bparams=None):
    """(E, V): the k largest, or smallest, eigenvalues of a symmetric matrix, and their vectors.

    A V = B V diag(E) and Vᵀ B V = 1 for A (…, m, m), dense or sparse, E (…, k), V (…, m, k) and positive definite B (…, m, m), the identity
    by default.

    A. Knyazev, "Toward the optimal preconditioned eigensolver: locally optimal block preconditioned conjugate gradient method", 2001, with
    a basis made orthonormal as A. Stathopoulos and K. Wu do, 2002. `X` (…, m, n) is where it begins, random by default, with n = k = 1;
    `iK` a preconditioner, near the inverse of A. It ends with residuals of at most `tol` of what rounding makes of them, √eps by default,
    or after `niter` steps, 1000 by default, -1 for no end. `tracker` is called after each with what there is so far (`E`, `X`, `R`,
    `tvars["rerr"]`, `ivars["istep"]`, `ivars["converged_count"]`), and ends it by `bvars["force_stop"] = True`. `method` "basic" and
    "ortho" are the same here, and the `ortho_` options change nothing. Gradients go to A, where B is None. Raises ValueError for fewer
    than 3n rows.

    >>> import tritorch as torch
    >>> E, V = torch.lobpcg(torch.diag(torch.arange(1.0, 10.0)), k=2)
    >>> [round(e, 3) for e in E.tolist()], V.shape
    ([9.0, 8.0], tritorch.Size([9, 2]))
    """
    check(len(A.shape) >= 2 and A.shape[-1] == A.shape[-2], "lobpcg", "square matrices", tuple(A.shape))
    check(B is None or B.shape == A.shape, "lobpcg", f"B of the shape of A, {tuple(A.shape)}", getattr(B, "shape", None))
    check(method in (None, "ortho", "basic"), "lobpcg", "method 'ortho' or 'basic'", method, error=ValueError)
    dtype, m = A.dtype if A.dtype.is_floating_point else get_default_dtype(), A.shape[-1]
    k = (1 if X is None else X.shape[-1]) if k is None else k
    n = (k if n is None else n) if X is None else X.shape[-1]
    check(1 <= k <= n, "lobpcg", f"1 to {n} eigenpairs", k, error=ValueError)
    check(m >= 3 * n, "lobpcg", f"at least {3 * n} rows for {n} vectors", m, error=ValueError)
    check(X is None or X.shape == (*A.shape[:-2], m, n), "lobpcg", f"X of shape {(*A.shape[:-2], m, n)}", getattr(X, "shape", None))
    check(B is None or not B.requires_grad, "lobpcg", "B without a gradient", "one that requires it")
    A = A if A.dtype is dtype else A.to(dtype)
    X = randn(*A.shape[:-2], m, n, dtype=dtype, device=A.device) if X is None else X
    options = SimpleNamespace(k=k, niter=1000 if niter is None else niter, largest=largest is None or bool(largest), tracker=tracker,
                              tol=finfo(dtype).eps ** 0.5 if tol is None else tol)
    if A.requires_grad:
        check(B is None and A.layout is strided, "lobpcg", "dense A and no B for a gradient", "others")
        return _Pairs.apply((A + A.mT) / 2, X, iK, options)
    with no_grad():
        return _batch(A, B, X, iK, options)


def _batch(A, B, X, iK, options):
    """(E, V) of every matrix."""
    if len(A.shape) == 2:
        return _one(A, B, X, iK, options)
    flat = [None if x is None else x.reshape(-1, *x.shape[-2:]) for x in (A, B, X, iK)]
    made = [_one(*[None if x is None else x[i] for x in flat], options) for i in range(flat[0].shape[0])]
    E, V = [stack(parts) for parts in zip(*made)]
    return E.reshape(*A.shape[:-2], options.k), V.reshape(*X.shape[:-1], options.k)


def _one(A, B, X, iK, options):
    """(E, V) of one matrix: the best vectors that X, their residuals W and the last step P span, again and again."""
    def times_b(x):
        return x if B is None else B @ x

    n, scale = X.shape[-1], X.norm().clamp(min=1e-30)
    norms = (A @ X).norm() / scale, times_b(X).norm() / scale
    now = SimpleNamespace(A=A, B=B, iK=iK, E=None, X=None, R=None, tvars={}, fvars={}, bvars={}, ivars={"istep": 0, "converged_count": 0})
    basis, P = _orthonormal(X, times_b), None
    while True:
        E, C = linalg.eigh(_symmetric(basis.mT @ (A @ basis)))
        E, C = (E[-n:].flip(0), C[:, -n:].flip(1)) if options.largest else (E[:n], C[:, :n])
        X, found = basis @ C, basis.shape[-1] > n
        P = basis[:, n:] @ C[n:] if found else None                      # what X gained
        R = A @ X - times_b(X) * E
        now.E, now.X, now.R, now.tvars["rerr"] = E, X, R, R.norm(dim=0) / (X.norm(dim=0) * (norms[0] + E.abs() * norms[1]))
        now.ivars["converged_count"] = int((now.tvars["rerr"] < options.tol).cumprod(0).sum().item())
        if options.tracker is not None:
            options.tracker(now)
        if now.ivars["converged_count"] >= options.k or now.ivars["istep"] == options.niter or now.bvars.get("force_stop"):
            return E[:options.k], X[:, :options.k]
        now.ivars["istep"] += 1
        kept = X
        for part in (P, R if iK is None else iK @ R):
            if part is not None:
                for _ in range(2):
                    part = part - kept @ (times_b(kept).mT @ part)
                    part = _orthonormal(part, times_b)
                kept = cat([kept, part], 1)
        basis = kept


def _orthonormal(x, times_b):
    """A basis, orthonormal under B, of what the columns span, without what rounding makes of dependent ones."""
    x = x / x.norm(dim=0).clamp(min=1e-30)
    size, turn = linalg.eigh(_symmetric(x.mT @ times_b(x)))
    keep = size > size.max().clamp(min=1e-30) * (finfo(x.dtype).eps * 10)
    return x @ (turn[:, keep] / size[keep].sqrt())


def _symmetric(x):
    return (x + x.mT) / 2


class _Pairs(Function):
    """Eigenpairs of dense symmetric matrices. The gradient of a vector has a part in the space of all k, and one in the rest, where
    (A - e) z = g is solved (M. Giles, "An extended collection of matrix derivative results", 2008, section 3.1)."""

    @staticmethod
    def forward(ctx, A, X, iK, options):
        E, V = _batch(A, None, X, iK, options)
        ctx.save_for_backward(A, E, V)
        return E, V

    @staticmethod
    def backward(ctx, g_E, g_V):
        A, E, V = ctx.saved_tensors
        k, m = E.shape[-1], A.shape[-1]
        rest = linalg.qr(V, mode="complete").Q[..., k:]
        gaps = E.unsqueeze(-2) - E.unsqueeze(-1) + eye(k, dtype=E.dtype, device=E.device)
        inside = V.mT @ g_V / gaps
        inside = inside - diag_embed(inside.diagonal(0, -2, -1)) + diag_embed(g_E)
        each = E[..., None, None] * eye(m - k, dtype=E.dtype, device=E.device) - (rest.mT @ A @ rest).unsqueeze(-3)
        beside = rest @ linalg.solve(each, (rest.mT @ g_V).mT).mT
        return (V @ inside + beside) @ V.mT, None, None, None
