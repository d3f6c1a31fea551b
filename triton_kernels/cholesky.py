"""The Cholesky factor of one block on the diagonal."""
import triton
import triton.language as tl

from .scalar import sqrt


@triton.jit
def cholesky_kernel(a_ptr, info_ptr, stride_b, stride_m, stride_n, n, first, N: tl.constexpr):
    """A block of each matrix of a batch becomes its lower factor, in place, with zeros above the diagonal; the lower triangle alone is
    read. `first` is the place of the block's first row in the matrix, info the number, from 1, of the first row where a root is not
    positive."""
    batch = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, N)
    i = r[:, None]
    j = r[None, :]
    a_ptr += batch * stride_b
    inside = (i < n) & (j < n)
    a = tl.load(a_ptr + tl.maximum(i, j).to(tl.int64) * stride_m + tl.minimum(i, j).to(tl.int64) * stride_n, mask=inside, other=0)
    failed = tl.load(info_ptr + batch)
    for k in range(n):
        column = tl.sum(tl.where(j == k, a, 0), 1)
        row = tl.sum(tl.where(i == k, a, 0), 0)                          # the same numbers, where they are wanted
        pivot = tl.sum(tl.where(r == k, column, 0), 0)
        failed = tl.where((failed == 0) & ~(pivot > 0), first + k + 1, failed)
        root = sqrt(pivot)
        column = column / root
        row = row / root
        a = tl.where((i > k) & (j > k), a - column[:, None] * row[None, :], tl.where((j == k) & (i >= k), column[:, None], a))
    tl.store(a_ptr + i.to(tl.int64) * stride_m + j.to(tl.int64) * stride_n, tl.where(i >= j, a, 0), mask=inside)
    tl.store(info_ptr + batch, failed)
