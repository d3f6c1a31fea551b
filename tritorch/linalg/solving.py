"""Systems of equations, inverses and determinants."""
from tritorch.errors import explained
from tritorch.ops import copy, determinants, solving
from tritorch.ops.composite import composite
from tritorch.ops.destinations import deliver_all
from tritorch.ops.matrices import refuse
from tritorch.ops.solving import SINGULAR, inverse_of, lu_solved, solve_of
from tritorch.return_types import result
from tritorch.tensor import own

solve_ex_result = result("linalg_solve_ex", "result info")
inv_ex_result = result("linalg_inv_ex", "inverse info")
slogdet_result = result("linalg_slogdet", "sign logabsdet")


@composite
def solve(A, B, *, left=True, out=None):
    """X with A X = B (X A = B if not `left`) for square matrices A (…, n, n), by LU factorization. float32 or float64.

    B is (…, n, k), or vectors: (n,), or the shape of A without its last dim. The dims in front broadcast. Raises LinAlgError where A is
    singular.

    >>> import tritorch as torch
    >>> torch.linalg.solve(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0]))
    tensor([1.0000, 0.5000])
    """
    X, info = solve_of("linalg.solve", A, B, left)
    refuse("linalg.solve", info, *SINGULAR)
    return copy.deliver(own(X), out, exact=True)


@explained
def solve_ex(A, B, *, left=True, check_errors=False, out=None):
    """(result, info): as `solve`, but where A is singular `info`, int32, tells the place of the zero on U's diagonal, from 1, and nothing
    waits for the device unless `check_errors`.

    >>> import tritorch as torch
    >>> torch.linalg.solve_ex(torch.zeros(1, 1), torch.ones(1, 1)).info
    tensor(1, dtype=tritorch.int32)
    """
    X, info = solve_of("linalg.solve_ex", A, B, left)
    if check_errors:
        refuse("linalg.solve_ex", info, *SINGULAR)
    return deliver_all(solve_ex_result, (own(X), info), out)


def inv(A, *, out=None):
    """The inverse of square matrices (…, n, n), in float32 or float64. Raises LinAlgError where one is singular.

    To multiply by an inverse use `solve`, which is faster and more precise.

    >>> import tritorch as torch
    >>> torch.linalg.inv(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    return solving.inverse(A, out=out)


@explained
def det(A, *, out=None):
    """The determinants of square matrices (…, n, n), in float32 or float64; 0 where one is singular, and even there with a gradient.

    >>> import tritorch as torch
    >>> torch.linalg.det(torch.eye(2) * 3)
    tensor(9.)
    """
    return copy.deliver(solving.det(A), out, exact=True)


@explained
def inv_ex(A, *, check_errors=False, out=None):
    """(inverse, info): as `inv`, but where A is singular `info`, int32, tells the place of the zero on U's diagonal, from 1, and nothing
    waits for the device unless `check_errors`.

    >>> import tritorch as torch
    >>> torch.linalg.inv_ex(torch.eye(2)).info
    tensor(0, dtype=tritorch.int32)
    """
    X, info = inverse_of("linalg.inv_ex", A)
    if check_errors:
        refuse("linalg.inv_ex", info, *SINGULAR)
    return deliver_all(inv_ex_result, (own(X), info), out)


@explained
def lu_solve(LU, pivots, B, *, left=True, adjoint=False, out=None):
    """X with A X = B (X A = B if not `left`, with Aᴴ in A's place if `adjoint`) from what `lu_factor` gives for A (…, n, n).

    >>> import tritorch as torch
    >>> LU, pivots = torch.linalg.lu_factor(torch.tensor([[0.0, 2.0], [4.0, 0.0]]))
    >>> torch.linalg.lu_solve(LU, pivots, torch.tensor([[2.0], [4.0]]))
    tensor([[1.],
            [1.]])
    """
    return copy.deliver(own(lu_solved(LU, pivots, B, left, adjoint)), out, exact=True)


@explained
def slogdet(A, *, out=None):
    """(sign, logabsdet): the signs of determinants of (…, n, n) and the logarithms of their sizes, where the determinants themselves would
    overflow. A singular matrix has sign 0 and logarithm -inf.

    >>> import tritorch as torch
    >>> torch.linalg.slogdet(torch.eye(2)).logabsdet
    tensor(0.)
    """
    return deliver_all(slogdet_result, determinants.slogdet(A), out)
