"""LU factors of matrices by elimination with partial pivoting: P A = L U."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, sentence
from tritorch.ops import create
from tritorch.ops.copy import transfer
from tritorch.ops.destinations import deliver_all
from tritorch.ops.indexing import gather
from tritorch.ops.matrices import (
    block,
    check_matrices,
    column_major,
    deliver,
    each,
    lapack,
    place_for,
    precise,
    scratch,
    subtract_product,
    turned,
    working,
)
from tritorch.ops.scatter import scatter_write
from tritorch.ops.shaping import cat
from tritorch.ops.triangles import triangle
from tritorch.ops.triangular import solve_in_place, substitute
from tritorch.ops.view import expand_to
from tritorch.pairs import HOST, adjoint
from tritorch.return_types import result
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import own, strided

K = kernels("lu")
PANEL = {4: 1 << 15, 8: 1 << 13}                                         # elements of so many bytes that one kernel has in registers
WIDEST = 128                                                             # columns of a panel
PIECE = 4096                                                             # elements of a piece of a column that is longer than a panel
lu_unpack_result = result("lu_unpack", "P L U")


@op(returns=("LU", "pivots", "order", "info"))
def lu_factors(A, pivot):
    """(LU, pivots, order, info) of A (…, m, n): A[order] = L U. L, with ones on the diagonal, lies below the diagonal of LU, U on and above
    it. pivots, int32, are the rows, from 1, with which rows 1, 2, … were exchanged one after the other; order says the same as places of
    rows, int64. info is 0 or the number of the first zero on U's diagonal."""
    check_matrices("linalg.lu_factor", A=A)
    if not pivot and not A.is_cuda:
        raise RuntimeError(sentence("linalg.lu_factor", "pivot=True on the CPU", pivot))
    lead, (m, n) = A.shape[:-2], A.shape[-2:]
    return [(A.shape, A.dtype, A.device, column_major(A.shape)), ((*lead, min(m, n)), types.int32, A.device),
            ((*lead, m), types.int64, A.device), (lead, types.int32, A.device)]


@lu_factors.impl("cpu")
def lu_factors_cpu(LU, pivots, order, info, A, pivot):
    factor = lapack("getrf", A)

    def one(a):
        lu, places, code = factor(a) if a.size else (a, np.zeros(min(a.shape), np.int32), 0)
        return lu, places + 1, order_of(places, a.shape[0]), code

    each(one, (LU, pivots, order, info), A)


def order_of(places, rows):
    """The order of rows after exchanges with these places, from 0."""
    order = np.arange(rows)
    for k, p in enumerate(places):
        order[k], order[p] = order[p], order[k]
    return order


@lu_factors.impl("cuda")
def lu_factors_cuda(LU, pivots, order, info, A, pivot):
    a = turned(working(turned(A.detach()), turned(LU)))
    batch, m, n = a.shape
    k = min(m, n)
    places, rows, codes = place_for(pivots, batch, k), place_for(order, batch, m), place_for(info, batch)
    codes.fill_(0)
    if rows.numel():
        launch(K.order_kernel, (batch,), rows, places, k, m, 0, BLOCK=min(1024, next_power_of_2(m)), num_warps=1)
    if a.numel():
        columns(a, places, rows, codes, 0, k, pivot)
        if k < n:
            solve_in_place(block(a, (0, m), (k, n)), block(a, (0, m), (0, k)), False, True)
    for out, made in zip((turned(LU), pivots, order, info), (turned(a), places, rows, codes)):
        deliver(out, made)


def columns(a, pivots, order, info, begin, end, pivot):
    """Eliminate the columns from begin to end of (batch, m, n) below the diagonal, by halves: the left one, what follows from it for the
    right one, the right one. (S. Toledo, "Locality of reference in LU decomposition with partial pivoting", 1997.)"""
    m, n = a.shape[-2:]
    tall = next_power_of_2(m - begin)
    width = min(PANEL[a.dtype.itemsize] // tall, WIDEST)
    if end - begin <= max(width, 1):
        panel(a, pivots, info, begin, end, pivot, width and tall)
        if pivot:
            across = min(tile(256, 1 << 14), next_power_of_2(n))
            launch(K.exchange_kernel, (a.shape[0] * cdiv(n, across),), a, order, pivots, *a.strides, pivots.strides[0], m, begin,
                   end - begin, n, begin, end, BLOCK=across)
        return
    step = min(max(width, 1), 16)                                        # panels begin where addresses are multiples
    middle = begin + cdiv((end - begin + 1) // 2, step) * step
    columns(a, pivots, order, info, begin, middle, pivot)
    beside = block(a, (begin, middle), (middle, end))
    solve_in_place(beside, block(a, (begin, middle), (begin, middle)), False, True)
    subtract_product(block(a, (middle, m), (middle, end)), block(a, (middle, m), (begin, middle)), beside)
    columns(a, pivots, order, info, middle, end, pivot)


def panel(a, pivots, info, begin, end, pivot, tall):
    """Eliminate a panel in one kernel; `tall`: rows of its block, 0 if it does not fit."""
    m, (batch, w) = a.shape[-2], (a.shape[0], end - begin)
    here = block(a, (begin, m), (begin, end))
    places = strided(pivots.storage, (batch, w), pivots.strides, pivots.offset + begin, pivots.dtype)
    if tall:
        wide, step = next_power_of_2(w), 1 if (m - begin) % 4 else 4
        launch(K.panel_kernel, (batch,), here, places, info, *a.strides, pivots.strides[0], (m - begin) // step, w,
               min(m - begin, w), begin, PIVOT=pivot, STEP=step, M=tall, W=wide, num_warps=max(1, min(16, tall * wide // 1024)))
    else:
        launch(K.long_column_kernel, (batch,), here, places, info, *a.strides[:2], pivots.strides[0], m - begin, begin, PIVOT=pivot,
               BLOCK=min(PIECE, next_power_of_2(m - begin)), num_warps=8)


lu_factors.complex = HOST


@lu_factors.grad("A")
def lu_factors_grad(g_LU, LU, order):
    """The derivative of L U, solved for those of L and U (S. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra
    functions", 2010); of a tall or wide matrix the part beside the square one follows from it."""
    m, n = LU.shape[-2:]
    k = min(m, n)
    top, g_top = LU[..., :k, :k], g_LU[..., :k, :k]
    lower, upper = triangle(g_top, -1, False), triangle(g_top, 0, True)
    L, U = triangle(top, -1, False), triangle(top, 0, True)              # L without its ones
    rest = None
    if n > k:
        rest = substitute(adjoint(top), g_LU[..., k:], True, True)
        lower = lower - triangle(rest @ adjoint(LU[..., k:]), -1, False)
    if m > k:
        rest = adjoint(substitute(top, adjoint(g_LU[..., k:, :]), True, False))
        upper = upper - triangle(adjoint(LU[..., k:, :]) @ rest, 0, True)
    inner = triangle(lower + adjoint(L) @ lower, -1, False) + triangle(upper @ adjoint(U), 0, True)
    left = substitute(adjoint(top), inner, True, True)
    made = adjoint(substitute(top, adjoint(left), True, False))
    if rest is not None:
        made = cat([made, rest], -1 if n > k else -2)
    return put_back(made, order)


def in_order(x, order):
    """The rows of x as `order` has them: x[order] for each matrix; the dims in front broadcast."""
    return gather(x, -2, expand_to(order.unsqueeze(-1), x.shape))


def put_back(x, order):
    """The rows of x where `order` took them from, in columns that are contiguous."""
    x = x.mT
    return own(scatter_write(create.new_zeros(x, x.shape), -1, expand_to(order.unsqueeze(-2), x.shape), x).mT)


@lu_factors.samples
def lu_factors_samples(make):
    kind = dict(dtype=precise(make))
    for shape in ((3, 3), (2, 3, 5), (5, 2), (1, 1), (0, 2, 2), (2, 0)):
        yield make(*shape, **kind), True


@lu_factors.errors
def lu_factors_errors(make):
    yield (make(3), True), {}, RuntimeError, "a matrix or a batch of matrices"
    yield (make(2, 2, integer=True), True), {}, RuntimeError, "matrices of float32 or float64, got tritorch.int64"
    yield (make(2, 2, dtype=types.float16), True), {}, NotImplementedError, "matrices of float32 or float64"


@lu_factors.workloads
def lu_factors_workloads(make):
    for batch, n in ((1, 4096), (1, 512), (4096, 32)):
        yield f"{batch} of {n}x{n} fp32", lambda batch=batch, n=n: (make(batch, n, n, grad=False),
                                                                    True), 8 * batch * n * n, 2 * batch * n ** 3 // 3


# ------------------------------------------------------------------ pivots
@op
def row_order(pivots, rows):
    """The order in which `pivots` (…, k), int32 from 1, leave the rows 0, 1, …: the row that is first now, the second, …"""
    check(pivots.dtype is types.int32, "lu_unpack", "pivots of int32", pivots.dtype)
    check(len(pivots.shape) > 0 and pivots.shape[-1] <= rows, "lu_unpack", f"at most {rows} pivots for each matrix", pivots.shape)
    return (*pivots.shape[:-1], rows), types.int64, pivots.device


@row_order.impl("cpu")
def row_order_cpu(out, pivots, rows):
    for place in np.ndindex(pivots.shape[:-1]):
        out[place] = order_of(pivots[place] - 1, rows)


@row_order.impl("cuda")
def row_order_cuda(out, pivots, rows):
    made = out if out.is_contiguous() else scratch(out, *out.shape)
    if made.numel():
        pivots = pivots.contiguous()
        launch(K.order_kernel, (made.numel() // rows,), made, pivots, pivots.shape[-1], rows, pivots.shape[-1],
               BLOCK=min(1024, next_power_of_2(rows)), num_warps=1)
    if made is not out:
        transfer(out, made)


@row_order.samples
def row_order_samples(make):
    yield create.tensor([3, 3, 3], dtype=types.int32), 3
    yield create.tensor([[2, 2], [1, 4]], dtype=types.int32), 4
    yield create.new_zeros(make(1), 0, 2, dtype=types.int32), 2


@row_order.workloads
def row_order_workloads(make):
    places = create.arange(1, 4097, dtype=types.int32).to(make(1).device)
    yield "4096 rows", lambda: (places, 4096), 12 * 4096, 0


def unpack(LU, pivots, unpack_data, unpack_pivots):
    """(P, L, U) of A = P L U; what is not unpacked is an empty tensor."""
    m, n = LU.shape[-2:]
    k, nothing = min(m, n), create.new_zeros(LU, 0)
    P = L = U = nothing
    if unpack_data:
        L = triangle(LU[..., :k], -1, False) + create.eye(m, k, dtype=LU.dtype, device=LU.device)
        U = triangle(LU[..., :k, :], 0, True)
    if unpack_pivots:
        order = row_order(pivots, m).unsqueeze(-2)
        P = scatter_write(create.new_zeros(LU, *LU.shape[:-2], m, m), -2, order, create.new_ones(LU, order.shape))
    return P, L, U


def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True, *, out=None):
    """(P, L, U) with A = P L U, from what `linalg.lu_factor` gives for A (…, m, n).

    P is (…, m, m), L (…, m, k) with ones on the diagonal and U (…, k, n), k = min(m, n). What is not unpacked is an empty tensor.

    >>> import tritorch as torch
    >>> P, L, U = torch.lu_unpack(*torch.linalg.lu_factor(torch.tensor([[1.0, 2.0], [2.0, 2.0]])))
    >>> P.tolist(), L.tolist(), U.tolist()
    ([[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.5, 1.0]], [[2.0, 2.0], [0.0, 1.0]])
    """
    check_matrices("lu_unpack", LU_data=LU_data)
    return deliver_all(lu_unpack_result, unpack(LU_data, LU_pivots, unpack_data, unpack_pivots), out)
