"""What is made of LU factors: solutions of systems of equations, inverses, determinants."""
import numpy as np

from tritorch.autograd.modes import again
from tritorch.autograd.parts import needed
from tritorch.cuda.launch import kernels, launch
from tritorch.dispatch import common_device, op
from tritorch.dtype import finfo, types
from tritorch.errors import check, tensors
from tritorch.ops import compare, copy, create
from tritorch.ops.composite import composite
from tritorch.ops.copy import broadcast_view
from tritorch.ops.destinations import deliver_all
from tritorch.ops.indexing import gather
from tritorch.ops.lu import in_order, lu_factors, lu_factors_cpu, lu_factors_cuda, put_back, row_order
from tritorch.ops.matrices import (
    check_matrices,
    column_major,
    deliver,
    each,
    is_column_major,
    precise,
    refuse,
    regular,
    scratch,
    spread,
    three,
    turned,
)
from tritorch.ops.triangles import diag_embed
from tritorch.ops.triangular import solve_in_place, substitute
from tritorch.ops.view import expand_to
from tritorch.pairs import HOST, adjoint
from tritorch.return_types import result
from tritorch.shape import broadcast_shapes, next_power_of_2
from tritorch.tensor import own

K = kernels("lu")
lu_with_info = result("_lu_with_info", "LU pivots info")
SINGULAR = "matrices that can be inverted", "one whose U has a zero at place {} of its diagonal"


# ------------------------------------------------------------------ systems of equations
@op(returns=("X", "LU", "order", "info"))
def solve_square(A, B):
    """(X, LU, order, info): X with A X = B for A (…, n, n) and B (…, n, k), whose dims in front broadcast, and of the factors of A what
    `lu_factors` says of them."""
    check_matrices("linalg.solve", True, A=A, B=B)
    check(A.shape[-1] == B.shape[-2], "linalg.solve", "as many rows in B as in A", A.shape, B.shape)
    lead, home = broadcast_shapes("linalg.solve", A.shape[:-2], B.shape[:-2]), common_device("linalg.solve", A, B)
    shape = (*lead, *B.shape[-2:])
    return [(shape, B.dtype, home, column_major(shape)), (A.shape, A.dtype, home, column_major(A.shape)), (A.shape[:-1], types.int64, home),
            (A.shape[:-2], types.int32, home)]


@solve_square.impl("cpu")
def solve_square_cpu(X, LU, order, info, A, B):
    lu_factors_cpu(LU, np.empty(A.shape[:-1], np.int32), order, info, A, True)
    if not X.size:
        return
    from scipy.linalg import blas

    solve = blas.get_blas_funcs("trsm", (LU, B))
    LU, B, order = [np.broadcast_to(x, (*X.shape[:-2], *x.shape[-2:])) for x in (LU, B, order[..., None])]
    each(lambda lu, b, places: solve(1.0, lu, solve(1.0, lu, b[places[:, 0]], lower=True, diag=True)), (X,), LU, B, order)


@solve_square.impl("cuda")
def solve_square_cuda(X, LU, order, info, A, B):
    pivots = scratch(A, *A.shape[:-1], dtype=types.int32)
    lu_factors_cuda(LU, pivots, order, info, A, True)
    if X.numel():
        x = X if X.is_contiguous() or is_column_major(X) else scratch(X, *X.shape)
        operands = x, broadcast_view(B.detach(), X.shape), broadcast_view(order.unsqueeze(-1), X.shape)
        made, source, places = operands if x.is_contiguous() else [turned(v) for v in operands]
        gather.impls["cuda"](made, source, -2 if made is x else -1, places)
        rows, factors = three(x), spread(LU, X.shape[:-2])
        solve_in_place(rows, factors, False, True)
        solve_in_place(rows, factors, True, False)
        deliver(X, rows)


solve_square.complex = HOST


@solve_square.grad("A", "B")
def solve_square_grad(g_X, A, X, LU, order):
    solved = solve_square(adjoint(A), g_X)[0] if again(A) else solve_transposed(LU, order, g_X)
    return -solved @ adjoint(X) if needed("A") else None, solved


def solve_transposed(LU, order, g):
    """Aᵀ X = g from the factors of A, of complex numbers with the adjoint in the place of the transpose."""
    factors = adjoint(LU)
    x = substitute(factors, substitute(factors, g, False, False), True, True)
    return put_back(x, expand_to(order, x.shape[:-1]))


@solve_square.samples
def solve_square_samples(make):
    kind = dict(dtype=precise(make))
    for shape, right in (((3, 3), (3, 2)), ((2, 3, 3), (3, 1)), ((2, 2), (2, 2, 3)), ((0, 0), (0, 1)), ((2, 2), (2, 0))):
        yield regular(make, *shape), make(*right, **kind)


@solve_square.errors
def solve_square_errors(make):
    yield (make(2, 3), make(2, 3)), {}, RuntimeError, "linalg.solve: expected square matrices, got (2, 3)"
    yield (make(3, 3), make(2, 3)), {}, RuntimeError, "as many rows in B as in A"
    yield (make(3, 3), make(3, 3, dtype=types.float64)), {}, RuntimeError, "matrices of one dtype"


@solve_square.workloads
def solve_square_workloads(make):
    for batch, n, k in ((1, 4096, 1), (1, 4096, 4096), (4096, 32, 32)):
        size, flops = 8 * batch * n * (n + k), batch * n * n * (2 * n // 3 + 2 * k)
        yield f"{batch} of {n}x{n}, {k} right sides, fp32", lambda b=batch, n=n, k=k: (regular(make, b, n, n).detach(),
                                                                                       make(b, n, k, grad=False)), size, flops


def solve_of(name, A, B, left):
    """(X, info) with A X = B, or X A = B if not `left`; B may be vectors: if it has one dim, or the shape of A without its last."""
    tensors(name, A=A, B=B)
    check_matrices(name, True, A=A)
    vector = len(B.shape) == 1 or len(A.shape) - 1 == len(B.shape) and B.shape == A.shape[:-1]
    check(left or not vector, name, "matrices B if not left", B.shape)
    B = B.unsqueeze(-1) if vector else B
    check_matrices(name, True, A=A, B=B)
    check(A.shape[-1] == B.shape[-2 if left else -1], name, f"as many {'rows' if left else 'columns'} in B as in A", A.shape, B.shape)
    X, info = _solved(A, B) if left else _solved(A.mT, B.mT)
    return X.squeeze(-1) if vector else X if left else X.mT, info


def inverse_of(name, A):
    """(A⁻¹, info)."""
    check_matrices(name, True, A=A)
    return _solved(A, create.eye(A.shape[-1], dtype=A.dtype, device=A.device))


def _solved(A, B):
    """(X, info) with A X = B."""
    if A.dtype.is_complex and A.is_cuda:
        from tritorch.ops.embedded import solve_complex

        return solve_complex(A, B)
    X, _, _, info = solve_square(A, B)
    return X, info


@composite
def inverse(input, *, out=None):
    """The inverse of square matrices (…, n, n): `linalg.inv` under its older name.

    >>> import tritorch as torch
    >>> torch.inverse(torch.tensor([[2.0]]))
    tensor([[0.5000]])
    """
    X, info = inverse_of("linalg.inv", input)
    refuse("linalg.inv", info, *SINGULAR)
    return copy.deliver(own(X), out, exact=True)


def lu_solved(LU, pivots, B, left, turns):
    """X with A X = B (X A = B if not `left`, with Aᴴ in A's place if `turns`) from the factors of A."""
    name = "linalg.lu_solve"
    check_matrices(name, True, LU=LU, B=B)
    check(pivots.dtype is types.int32 and pivots.shape == LU.shape[:-1], name, f"int32 pivots of shape {tuple(LU.shape[:-1])}",
          pivots.dtype, pivots.shape)
    check(B.shape[-2 if left else -1] == LU.shape[-1], name, f"as many {'rows' if left else 'columns'} in B as in LU", LU.shape, B.shape)
    B, turns = (B, turns) if left else (adjoint(B), not turns)
    order = row_order(pivots, LU.shape[-1])
    if turns:
        X = solve_transposed(LU, order, B)
    else:
        B = expand_to(B, (*broadcast_shapes(name, LU.shape[:-2], B.shape[:-2]), *B.shape[-2:]))
        X = substitute(LU, substitute(LU, in_order(B, order), False, True), True, False)
    return X if left else adjoint(X)


@composite
def lu(A, pivot=True, get_infos=False, out=None):
    """`linalg.lu_factor` under its older name; with `get_infos` `linalg.lu_factor_ex`.

    >>> import tritorch as torch
    >>> LU, pivots, info = torch.lu(torch.ones(2, 2), get_infos=True); info
    tensor(2, dtype=tritorch.int32)
    """
    LU, pivots, _, info = lu_factors(A, pivot)
    if get_infos:
        return deliver_all(lu_with_info, (LU, pivots, info), out)
    refuse("lu", info, *SINGULAR)
    return (LU, pivots) if out is None else deliver_all(lu_with_info, (LU, pivots, info), (*out, info))[:2]


@composite
def lu_solve(input, LU_data, LU_pivots, *, out=None):
    """X with A X = input from what `linalg.lu_factor` gives for A; `linalg.lu_solve` with its arguments in another order.

    >>> import tritorch as torch
    >>> torch.lu_solve(torch.tensor([[2.0]]), *torch.linalg.lu_factor(torch.tensor([[4.0]])))
    tensor([[0.5000]])
    """
    return copy.deliver(own(lu_solved(LU_data, LU_pivots, input, True, False)), out, exact=True)


# ------------------------------------------------------------------ determinants
@op(returns=("det", "LU", "pivots", "order"))
def determinant(A):
    """(det, LU, pivots, order): the determinant of A (…, n, n), and its factors as `lu_factors` gives them."""
    check_matrices("linalg.det", True, A=A)
    return [(A.shape[:-2], A.dtype, A.device), (A.shape, A.dtype, A.device, column_major(A.shape)), (A.shape[:-1], types.int32, A.device),
            (A.shape[:-1], types.int64, A.device)]


@determinant.impl("cpu")
def determinant_cpu(det, LU, pivots, order, A):
    lu_factors_cpu(LU, pivots, order, np.empty(det.shape, np.int32), A, True)
    det[...] = parity_of(pivots) * np.diagonal(LU, 0, -2, -1).prod(-1)


def parity_of(pivots):
    """-1 for matrices with an odd number of exchanges, else 1."""
    return 1 - 2 * ((pivots != np.arange(1, pivots.shape[-1] + 1)).sum(-1) % 2)


@determinant.impl("cuda")
def determinant_cuda(det, LU, pivots, order, A):
    lu_factors_cuda(LU, pivots, order, scratch(A, *det.shape, dtype=types.int32), A, True)
    on_diagonals((det, None, None), LU, pivots)


def on_diagonals(outs, LU, pivots):
    """What of (det, sign, logabsdet) is not None, from the factors."""
    lu, places = three(LU), three(pivots.unsqueeze(-1))
    batch, n = lu.shape[:2]
    made = [o if o is None or o.is_contiguous() else scratch(o, *o.shape) for o in outs]
    if batch:
        launch(K.determinant_kernel, (batch,), *made, lu, places, lu.strides[0], lu.strides[1] + lu.strides[2], *places.strides[:2], n,
               BLOCK=min(1024, next_power_of_2(max(n, 1))), num_warps=1 if n <= 64 else 4)
    for o, m in zip(outs, made):
        if m is not o:
            copy.transfer(o, m)


determinant.complex = HOST


@determinant.grad("A")
def determinant_grad(g_det, A, det, LU, pivots, order):
    if again(A):
        return solve_square(adjoint(A), scaled_identity(g_det * det.conj(), A.shape[-1]))[0]
    u = LU.diagonal(0, -2, -1)
    nudged = compare.where(u == 0, finfo(A.dtype.to_real()).eps, u)                # near a singular matrix: cofactors are continuous there
    odd = (pivots != create.arange(1, u.shape[-1] + 1, device=u.device)).sum(-1) % 2
    size = nudged.prod(-1) * (1 - 2 * odd).to(A.dtype)
    return solve_transposed(LU + diag_embed(nudged - u), order, scaled_identity(g_det * size.conj(), A.shape[-1]))


def scaled_identity(x, n):
    """x · I for each number of x."""
    return diag_embed(expand_to(x.unsqueeze(-1), (*x.shape, n)))


@determinant.samples
def determinant_samples(make):
    kind = dict(dtype=precise(make))
    for shape in ((3, 3), (2, 4, 4), (1, 1), (0, 0), (0, 2, 2)):
        yield make(*shape, **kind),


@determinant.errors
def determinant_errors(make):
    yield (make(2, 3),), {}, RuntimeError, "linalg.det: expected square matrices, got (2, 3)"
    yield (make(2, 2, integer=True),), {}, RuntimeError, "matrices of float32 or float64"


@determinant.workloads
def determinant_workloads(make):
    yield "4096 of 32x32 fp32", lambda: (make(4096, 32, 32, grad=False),), 32 << 20, 4096 * 32 ** 3 * 2 // 3


@op(returns=("logabsdet", "sign", "LU", "order"))
def log_determinant(A):
    """(logabsdet, sign, LU, order): the logarithm of the size of the determinant of A (…, n, n), -inf for singular matrices, and its sign;
    and of the factors what `lu_factors` says of them."""
    check_matrices("linalg.slogdet", True, A=A)
    return [(A.shape[:-2], A.dtype, A.device), (A.shape[:-2], A.dtype, A.device), (A.shape, A.dtype, A.device, column_major(A.shape)),
            (A.shape[:-1], types.int64, A.device)]


@log_determinant.impl("cpu")
def log_determinant_cpu(logabsdet, sign, LU, order, A):
    pivots = np.empty(A.shape[:-1], np.int32)
    lu_factors_cpu(LU, pivots, order, np.empty(sign.shape, np.int32), A, True)
    u = np.diagonal(LU, 0, -2, -1)
    sign[...] = parity_of(pivots) * ((u > 0) * 1 - (u < 0)).prod(-1)             # of NaN 0, as in PyTorch
    logabsdet[...] = np.log(np.abs(u)).sum(-1)


@log_determinant.impl("cuda")
def log_determinant_cuda(logabsdet, sign, LU, order, A):
    pivots = scratch(A, *A.shape[:-1], dtype=types.int32)
    lu_factors_cuda(LU, pivots, order, scratch(A, *sign.shape, dtype=types.int32), A, True)
    on_diagonals((None, sign, logabsdet), LU, pivots)


@log_determinant.grad("A")
def log_determinant_grad(g_logabsdet, A, LU, order):
    wanted = scaled_identity(g_logabsdet, A.shape[-1])
    return solve_square(A.mT, wanted)[0] if again(A) else solve_transposed(LU, order, wanted)


log_determinant.samples(determinant_samples)


@log_determinant.errors
def log_determinant_errors(make):
    yield (make(2, 3),), {}, RuntimeError, "linalg.slogdet: expected square matrices, got (2, 3)"


@log_determinant.workloads
def log_determinant_workloads(make):
    yield "1024 of 64x64 fp32", lambda: (make(1024, 64, 64, grad=False),), 32 << 20, 1024 * 64 ** 3 * 2 // 3


def det(input):
    """The determinants of square matrices (…, n, n), in float32 or float64; 0 where one is singular, and even there with a gradient.

    >>> import tritorch as torch
    >>> torch.det(torch.tensor([[2.0, 1.0], [1.0, 3.0]]))
    tensor(5.)
    """
    return determinant(input)[0]
