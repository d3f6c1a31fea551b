"""Systems of equations with a triangular matrix: T X = B by substitution."""
import numpy as np

from tritorch.autograd.parts import needed
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.errors import check
from tritorch.memory_format import contiguous_format
from tritorch.ops import copy, view
from tritorch.ops.copy import broadcast_view
from tritorch.ops.destinations import call, deliver_all
from tritorch.ops.matrices import (
    block,
    check_matrices,
    column_major,
    deliver,
    each,
    precise,
    regular,
    spread,
    subtract_product,
    working,
)
from tritorch.ops.triangles import triangle
from tritorch.pairs import OWN, adjoint
from tritorch.return_types import result
from tritorch.shape import broadcast_shapes, cdiv, next_power_of_2
from tritorch.tensor import own

K = kernels("triangular")
BLOCK = 64                                                               # of the rows that one kernel solves; products do the rest
triangular_solve_result = result("triangular_solve", "solution cloned_coefficient")


@op(aliasable=("B",))
def substitute(A, B, upper, unit, rows=False):
    """X with A X = B, where A (…, n, n) is triangular: of its elements only those on one side of the diagonal are read, the diagonal counts
    as ones if `unit`. B is (…, n, k); the dims in front broadcast. A zero on the diagonal gives infinities and NaN, no error. Columns of X
    are contiguous, or with `rows` its rows."""
    check_matrices("linalg.solve_triangular", True, A=A, B=B)
    check(A.shape[-1] == B.shape[-2], "linalg.solve_triangular", "as many rows in B as in A", A.shape, B.shape)
    lead = broadcast_shapes("linalg.solve_triangular", A.shape[:-2], B.shape[:-2])
    shape = (*lead, *B.shape[-2:])
    return shape, B.dtype, common_device("linalg.solve_triangular", A, B), None if rows else column_major(shape)


@substitute.impl("cpu")
def substitute_cpu(out, A, B, upper, unit, rows=False):
    if not out.size:
        return
    from scipy.linalg import blas

    solve = blas.get_blas_funcs("trsm", (A, B))
    A, B = [np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:])) for x in (A, B)]
    each(lambda a, b: solve(1.0, a, b, lower=not upper, diag=unit), (out,), A, B)


@substitute.impl("cuda")
def substitute_cuda(out, A, B, upper, unit, rows=False):
    if not out.numel():
        return
    if out.dtype.is_complex:
        from tritorch.ops.embedded import substitute_embedded

        return substitute_embedded(out, A, B, upper, unit)
    x = working(broadcast_view(B.detach(), out.shape), out)
    solve_in_place(x, spread(A, out.shape[:-2]), upper, unit)
    deliver(out, x)


def solve_in_place(x, t, upper, unit):
    """x = t⁻¹ x on a GPU, for x (batch, n, k): block after block, each taken off the rows that are left by a product."""
    n = t.shape[-1]
    starts = range(0, n, BLOCK)
    for start in reversed(starts) if upper else starts:
        here = start, min(start + BLOCK, n)
        known = block(x, here, (0, x.shape[-1]))
        substitute_block(known, block(t, here, here), upper, unit)
        left = (0, start) if upper else (here[1], n)
        if left[0] < left[1]:
            subtract_product(block(x, left, (0, x.shape[-1])), block(t, left, here), known)


def substitute_block(x, t, upper, unit):
    """x = t⁻¹ x in one launch, for matrices of at most BLOCK rows."""
    batch, n, k = x.shape
    rows, most = next_power_of_2(n), tile(32, 1024)
    columns = min(most // 2 if rows > 32 else most, next_power_of_2(k))               # of 64 rows 16 fit in the registers of a warp
    launch(K.substitute_kernel, (batch * cdiv(k, columns),), x, t, *x.strides, *t.strides, n, k, UPPER=upper, UNIT=unit,
           N=rows, BLOCK=columns, num_warps=1)


substitute.complex = OWN


@substitute.grad("A", "B")
def substitute_grad(g, A, out, upper, unit):
    solved = substitute(adjoint(A), g, not upper, unit)
    if not needed("A"):
        return None, solved
    return triangle(-solved @ adjoint(out), (1 if upper else -1) if unit else 0, upper), solved


@substitute.samples
def substitute_samples(make):
    kind = dict(dtype=precise(make))
    for shape, right, upper, unit in (((3, 3), (3, 2), False, False), ((2, 3, 3), (3, 1), True, False), ((4, 4), (2, 4, 3), True, True),
                                      ((1, 1), (1, 1), False, False), ((0, 0), (0, 2), False, False), ((2, 2), (2, 0), True, False)):
        yield regular(make, *shape), make(*right, **kind), upper, unit
    yield regular(make, 2, 3, 3), make(3, 2, **kind), True, False, True


@substitute.errors
def substitute_errors(make):
    yield (make(2, 3), make(2, 3), False, False), {}, RuntimeError, "expected square matrices, got (2, 3)"
    yield (make(3, 3), make(2, 3), False, False), {}, RuntimeError, "as many rows in B as in A"
    yield (make(3), make(3, 1), False, False), {}, RuntimeError, "a matrix or a batch of matrices"
    yield (make(2, 2, integer=True), make(2, 3), False, False), {}, RuntimeError, "matrices of float32 or float64"


@substitute.workloads
def substitute_workloads(make):
    for n, k in ((4096, 4096), (4096, 1)):
        yield f"{n}x{n}, {k} right sides, fp32", lambda n=n, k=k: (make(n, n, grad=False), make(n, k, grad=False), False,
                                                                   True), 4 * (n * n // 2 + 2 * n * k), n * n * k
    yield "4096 of 32x32 fp32", lambda: (make(4096, 32, 32, grad=False), make(4096, 32, 32, grad=False), False, True), 40 << 20, 4096 << 15


# ------------------------------------------------------------------ PyTorch's names above it
def solve_triangular(input, B, *, upper, left=True, unitriangular=False, out=None):
    """X with A X = B (or X A = B if not `left`) for triangular A = input (…, n, n).

    `upper` says which triangle of A is read, the other one may hold anything; with `unitriangular` the diagonal counts as ones. B is
    (…, n, k), or (…, k, n) if not `left`; the dims in front broadcast. float32 or float64. A zero on the diagonal gives infinities or NaN.

    >>> import tritorch as torch
    >>> torch.linalg.solve_triangular(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0], [3.0]]), upper=False)
    tensor([[1.],
            [2.]])
    """
    check_matrices("linalg.solve_triangular", True, A=input, B=B)
    if left:
        return call(substitute, (input, B, upper, unitriangular), out)
    check(input.shape[-1] == B.shape[-1], "linalg.solve_triangular", "as many columns in B as in A", input.shape, B.shape)
    return copy.deliver(own(substitute(input.mT, B.mT, not upper, unitriangular, True).mT), out, exact=True)


def triangular_solve(input, A, upper=True, transpose=False, unitriangular=False, *, out=None):
    """(X, a copy of A) with A X = input, or Aᵀ X = input if `transpose`, for triangular A; see `linalg.solve_triangular`.

    >>> import tritorch as torch
    >>> torch.triangular_solve(torch.tensor([[2.0]]), torch.tensor([[4.0]])).solution
    tensor([[0.5000]])
    """
    check_matrices("triangular_solve", False, input=input, A=A)
    made = substitute(A.mT if transpose else A, input, upper != transpose, unitriangular)
    coefficient = view.expand_to(A, (*made.shape[:-2], *A.shape[-2:])).mT.clone(memory_format=contiguous_format).mT
    return deliver_all(triangular_solve_result, (made, coefficient), out)
