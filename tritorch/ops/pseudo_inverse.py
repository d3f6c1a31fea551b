"""Moore and Penrose's inverse of any matrix."""
import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import finfo, types
from tritorch.errors import check, explained
from tritorch.ops import compare, copy
from tritorch.ops.composite import composite
from tritorch.ops.copy import transfer
from tritorch.ops.matrices import check_matrices, finite
from tritorch.ops.precise_product import precise_product
from tritorch.ops.singular import spaced, svd_factors
from tritorch.ops.triangles import triangle
from tritorch.ops.view import expand_to
from tritorch.pairs import OWN, adjoint
from tritorch.shape import broadcast_shapes
from tritorch.tensor import Tensor


@op(returns=("out", "info"))
def pseudo_inverse(A, atol, rtol, hermitian):
    """(A⁺, info) of A (…, m, n): A⁺ (…, n, m) inverts singular values above max(atol, rtol · the greatest one), the others count as zero.
    atol and rtol are numbers, or tensors of the shape of the batch. `hermitian`: the lower triangle alone is read. info, int32, is 1 where
    A has numbers that are none."""
    check_matrices("linalg.pinv", hermitian, A=A)
    return [((*A.shape[:-2], A.shape[-1], A.shape[-2]), A.dtype, A.device), (A.shape[:-2], types.int32, A.device)]


@pseudo_inverse.impl("cpu")
def pseudo_inverse_cpu(out, info, A, atol, rtol, hermitian):
    A = np.tril(A) + np.tril(A, -1).swapaxes(-1, -2).conj() if hermitian else A
    info[...] = ~np.isfinite(A).all((-2, -1))
    if out.size:
        U, S, Vh = np.linalg.svd(np.where(info[..., None, None], 1, A), full_matrices=False)
        least = np.maximum(np.asarray(atol)[..., None], np.asarray(rtol)[..., None] * S[..., :1])
        parts = np.where(S > least, 1 / S, 0).astype(A.dtype)
        out[...] = (Vh.swapaxes(-1, -2).conj() * parts[..., None, :]) @ U.swapaxes(-1, -2).conj()
        out[info != 0] = np.nan


@pseudo_inverse.impl("cuda")
def pseudo_inverse_cuda(out, info, A, atol, rtol, hermitian):
    if A.dtype.is_complex:
        from tritorch.ops.embedded import pseudo_inverse_embedded

        return pseudo_inverse_embedded(out, info, A, atol, rtol, hermitian)
    A = A.detach()
    U, S, Vh, code = svd_factors(triangle(A, 0, False) + triangle(A, -1, False).mT if hermitian else A)
    transfer(info, code)
    if out.numel():
        parts = compare.where(above(S, atol, rtol), 1 / S, 0.0) + 0 * S
        transfer(out, precise_product(Vh.mT * parts.unsqueeze(-2), U.mT))


def above(S, atol, rtol):
    """Which singular values (…, k), in falling order, count as more than zero."""
    most = S[..., :1]
    atol, rtol = [x.unsqueeze(-1) if isinstance(x, Tensor) else x for x in (atol, rtol)]
    return (S > most * rtol) & (S > atol)


pseudo_inverse.complex = OWN


@pseudo_inverse.grad("A")
def pseudo_inverse_grad(g_out, A, out):
    """G. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose variables separate",
    1973."""
    P, Ph, G = out, adjoint(out), adjoint(g_out)
    first, last = G @ P @ Ph, Ph @ P @ G
    return first - A @ (P @ first) + last - (last @ P) @ A - Ph @ g_out @ Ph


@pseudo_inverse.samples
def pseudo_inverse_samples(make):
    yield spaced(make, 3, 2), 0.0, 1e-6, False
    yield spaced(make, 2, 2, 3), 1.0, 0.0, False
    yield spaced(make, 0, 2, 2), 0.0, 0.0, False


@pseudo_inverse.workloads
def pseudo_inverse_workloads(make):
    yield "512x512 fp32", lambda: (make(512, 512, grad=False), 0.0, 1e-6, False), 2 << 20, 24 * 512 ** 3


# ------------------------------------------------------------------ PyTorch's names above it
def tolerances(A, atol, rtol):
    """(atol, rtol) of PyTorch's arguments: rtol is by default that of the dtype and size, but 0 beside an atol above 0."""
    default = finfo(A.dtype.to_real()).eps * max(A.shape[-2:])
    if rtol is None:
        rtol = compare.where(atol > 0, 0.0, default) if isinstance(atol, Tensor) else 0.0 if atol else default
    return 0.0 if atol is None else atol, rtol


@explained
def pinv(input, rcond=None, hermitian=False, *, atol=None, rtol=None, out=None):
    """A⁺ (…, n, m) of A = input (…, m, n), of whose singular values those up to max(atol, rtol · the greatest) count as zero. float32 or
    float64.

    By default rtol is eps · max(m, n), or 0 beside an `atol` above 0; `rcond` is an older name of rtol. Both are numbers, or tensors that
    broadcast with the dims in front. `hermitian`: A is symmetric, its lower triangle alone is read. The gradient is right where singular
    values are equal or zero, too, as long as the rank does not change. Raises LinAlgError if A has numbers that are none.

    >>> import tritorch as torch
    >>> torch.linalg.pinv(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    check_matrices("linalg.pinv", hermitian, A=input)
    check(rcond is None or rtol is None, "linalg.pinv", "one of rcond and rtol", rcond, rtol)
    atol, rtol = tolerances(input, atol, rcond if rtol is None else rtol)
    lead = broadcast_shapes("linalg.pinv", input.shape[:-2], *[x.shape for x in (atol, rtol) if isinstance(x, Tensor)])
    atol, rtol = [expand_to(x, lead) if isinstance(x, Tensor) else float(x) for x in (atol, rtol)]
    made, info = pseudo_inverse(expand_to(input, (*lead, *input.shape[-2:])), atol, rtol, hermitian)
    finite("linalg.pinv", info)
    return copy.deliver(made, out)


@composite
def pinverse(input, rcond=1e-15):
    """`linalg.pinv` under its older name.

    >>> import tritorch as torch
    >>> torch.pinverse(torch.tensor([[2.0]]))
    tensor([[0.5000]])
    """
    return pinv(input, rcond)
