"""The signs and logarithms of determinants, also of complex matrices."""
from tritorch.dtype import types
from tritorch.ops import compare, create
from tritorch.ops.complex import complex, imag, real
from tritorch.ops.lu import lu_factors
from tritorch.ops.matrices import check_matrices
from tritorch.ops.solving import log_determinant
from tritorch.ops.trigonometry import atan2
from tritorch.return_types import result

slogdet_result = result("slogdet", "sign logabsdet")


def logarithm(A):
    """(logabsdet, sign) of determinants; where the sign is complex, it has a gradient."""
    check_matrices("linalg.slogdet", True, A=A)
    if not A.dtype.is_complex:
        return log_determinant(A)[:2]
    LU, pivots, _, _ = lu_factors(A, True)
    u, places = LU.diagonal(0, -2, -1), create.arange(1, A.shape[-1] + 1, dtype=types.int32, device=A.device)
    odd = (pivots != places).sum(-1) % 2
    return u.abs().log().sum(-1), u.sgn().prod(-1) * (1 - 2 * odd)


def slogdet(input):
    """(sign, logabsdet): the signs of determinants and the logarithms of their sizes, where the determinants themselves would overflow.

    A singular matrix has sign 0 and logarithm -inf. Of complex matrices the sign is complex, of size 1.

    >>> import tritorch as torch
    >>> sign, logabsdet = torch.slogdet(torch.eye(3) * -1e20)
    >>> sign.item(), round(logabsdet.item(), 3)
    (-1.0, 138.155)
    """
    logabsdet, sign = logarithm(input)
    return slogdet_result(sign, logabsdet)


def logdet(input):
    """The logarithms of determinants: NaN where one is negative, -inf where it is 0; complex ones of complex matrices.

    >>> import tritorch as torch
    >>> torch.logdet(torch.eye(2) * 2)
    tensor(1.3863)
    """
    size, sign = logarithm(input)
    if sign.dtype.is_complex:
        return complex(size, atan2(imag(sign), real(sign)))
    return compare.where(sign == -1, float("nan"), size)
