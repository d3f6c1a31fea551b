"""LU factorization with partial pivoting: a panel of columns, the exchange of rows beside it, and permutations."""
import triton
import triton.language as tl


@triton.jit
def panel_kernel(a_ptr, pivots_ptr, info_ptr, stride_b, stride_m, stride_n, stride_p, m, w, steps, first,
                 PIVOT: tl.constexpr, STEP: tl.constexpr, M: tl.constexpr, W: tl.constexpr):
    """A panel (m, w) of each matrix of a batch becomes L (below the diagonal, of which it has ones) and U, in registers: in those of one
    thread what is of a row, where columns are contiguous. `first` is the place of the panel's first row; pivots are rows, from 1, of the
    whole matrix, and info the first of the zeros on U's diagonal. m counts STEPs of rows: so many lie on one side of the last one."""
    batch = tl.program_id(0).to(tl.int64)
    m = m * STEP
    r = tl.arange(0, M)
    i = r[:, None]
    j = tl.arange(0, W)[None, :]
    at = a_ptr + batch * stride_b + i.to(tl.int64) * stride_m + j.to(tl.int64) * stride_n
    inside = (i < m) & (j < w)
    a = tl.load(at, mask=inside, other=0)
    singular = tl.load(info_ptr + batch)
    for k in range(steps):
        column = tl.sum(tl.where(j == k, a, 0), 1)
        p = k
        if PIVOT:
            size = tl.abs(column)
            size = tl.where(size == size, size, -1)                      # NaN is no pivot
            p = tl.argmax(tl.where((r >= k) & (r < m), size, -2), 0)
        upper = tl.sum(tl.where(i == p, a, 0), 0)
        moved = tl.sum(tl.where(i == k, a, 0), 0)
        pivot = tl.sum(tl.where(r == p, column, 0), 0)
        head = tl.sum(tl.where(r == k, column, 0), 0)
        column = tl.where(r == p, head, column)
        column = tl.where(pivot == 0, column, column / pivot)
        a = tl.where(i == k, upper[None, :], tl.where(i == p, moved[None, :], a))
        a = tl.where((i > k) & (j > k), a - column[:, None] * upper[None, :], tl.where((i > k) & (j == k), column[:, None], a))
        singular = tl.where((singular == 0) & (pivot == 0), first + k + 1, singular)
        tl.store(pivots_ptr + batch * stride_p + k, (first + p + 1).to(tl.int32))
    tl.store(at, a, mask=inside)
    tl.store(info_ptr + batch, singular)


@triton.jit
def long_column_kernel(a_ptr, pivots_ptr, info_ptr, stride_b, stride_m, stride_p, m, first, PIVOT: tl.constexpr, BLOCK: tl.constexpr):
    """A panel of one column, of any length: in pieces."""
    batch = tl.program_id(0).to(tl.int64)
    a_ptr += batch * stride_b
    i = tl.arange(0, BLOCK)
    p = 0
    if PIVOT:
        best = tl.full((BLOCK,), -2, a_ptr.dtype.element_ty)
        place = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, m, BLOCK):
            x = tl.abs(tl.load(a_ptr + (start + i).to(tl.int64) * stride_m, mask=start + i < m, other=-2))
            x = tl.where(start + i < m, tl.where(x == x, x, -1), -2)
            place = tl.where(x > best, start + i, place)
            best = tl.maximum(x, best)
        most = tl.max(best, 0)
        p = tl.min(tl.where(best == most, place, m), 0)
    pivot = tl.load(a_ptr + p.to(tl.int64) * stride_m) if PIVOT else tl.load(a_ptr)
    head = tl.load(a_ptr)
    singular = tl.load(info_ptr + batch)
    tl.debug_barrier()                                                   # rows are written from here on
    for start in range(0, m, BLOCK):
        row = start + i
        x = tl.load(a_ptr + row.to(tl.int64) * stride_m, mask=row < m, other=0)
        x = tl.where(row == p, head, x)
        x = tl.where(row == 0, pivot, tl.where(pivot == 0, x, x / pivot))
        tl.store(a_ptr + row.to(tl.int64) * stride_m, x, mask=row < m)
    tl.store(pivots_ptr + batch * stride_p, first + p + 1)
    tl.store(info_ptr + batch, tl.where((singular == 0) & (pivot == 0), first + 1, singular))


@triton.jit
def exchange_kernel(a_ptr, order_ptr, pivots_ptr, stride_b, stride_m, stride_n, stride_p, rows, first, w, N, begin, end,
                    BLOCK: tl.constexpr):
    """The exchanges of rows that a panel, the columns from begin to end, asks for, in all other columns and in the order of rows."""
    tiles = tl.cdiv(N, BLOCK)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    c = tile * BLOCK + tl.arange(0, BLOCK)
    beside = (c < begin) | ((c >= end) & (c < N))
    a_ptr += batch * stride_b + c.to(tl.int64) * stride_n
    pivots_ptr += batch * stride_p + first
    for k in range(w):
        here = a_ptr + (first + k).to(tl.int64) * stride_m
        p = tl.load(pivots_ptr + k) - 1
        there = a_ptr + p.to(tl.int64) * stride_m
        x = tl.load(here, mask=beside)
        y = tl.load(there, mask=beside)
        tl.store(here, y, mask=beside)
        tl.store(there, x, mask=beside)
    if tile == 0:
        exchange(order_ptr + batch * rows, pivots_ptr, first, w)


@triton.jit
def exchange(order_ptr, pivots_ptr, first, w):
    """Two numbers of an order of rows exchanged for each pivot; one thread does it all."""
    for k in range(w):
        p = tl.load(pivots_ptr + k) - 1
        x = tl.load(order_ptr + first + k)
        y = tl.load(order_ptr + p)
        tl.store(order_ptr + first + k, y)
        tl.store(order_ptr + p, x)


@triton.jit
def order_kernel(order_ptr, pivots_ptr, stride_p, rows, w, BLOCK: tl.constexpr):
    """The order of rows that pivots lead to."""
    batch = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    for start in range(0, rows, BLOCK):
        tl.store(order_ptr + batch * rows + start + i, start + i, mask=start + i < rows)
    tl.debug_barrier()
    exchange(order_ptr + batch * rows, pivots_ptr + batch * stride_p, 0, w)


@triton.jit
def multiplied(x, y):
    return x * y


@triton.jit
def determinant_kernel(det_ptr, sign_ptr, log_ptr, lu_ptr, pivots_ptr, stride_b, stride_d, stride_p, stride_k, n, BLOCK: tl.constexpr):
    """The product of U's diagonal, negative for an odd number of exchanges; or, if det_ptr is None, its sign and the logarithm of its
    size."""
    batch = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = lu_ptr.dtype.element_ty
    i = tl.arange(0, BLOCK)
    det = tl.full((BLOCK,), 1, dtype)
    logs = tl.zeros((BLOCK,), dtype)
    for start in range(0, n, BLOCK):
        place = (start + i).to(tl.int64)
        u = tl.load(lu_ptr + batch * stride_b + place * stride_d, mask=place < n, other=1)
        p = tl.load(pivots_ptr + batch * stride_p + place * stride_k, mask=place < n, other=0)
        turned = (place < n) & (p != start + i + 1)
        if det_ptr is None:
            logs += tl.log(tl.abs(u))
            u = tl.where(u > 0, 1, tl.where(u < 0, -1, 0).to(dtype))
        det *= tl.where(turned, -u, u)
    det = tl.reduce(det, 0, multiplied)
    if det_ptr is None:
        tl.store(sign_ptr + batch, det)
        tl.store(log_ptr + batch, tl.sum(logs, 0))
    else:
        tl.store(det_ptr + batch, det)
