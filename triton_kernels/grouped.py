"""Products of matrices that share one tensor: groups of rows each times a matrix of their own, or sums over groups of K.

`ends_ptr` (GROUPS,) int32 holds where each group ends, in ascending order; it stays on the device. What is out of order or too far is
reported, and taken as the nearest end there is.
"""
import triton
import triton.language as tl

from .indexing import report
from .matmul import multiply, step_of


@triton.jit
def group_places(ends_ptr, word_ptr, i, GROUPS, LAST, number, says):
    """Where groups i begin and end, from 0 to LAST. With `says` this program reports those that do not ascend."""
    starts = tl.load(ends_ptr + i - 1, mask=(i > 0) & (i <= GROUPS), other=0)
    ends = tl.load(ends_ptr + i, mask=i < GROUPS, other=LAST)
    if says:
        report(word_ptr, (i < GROUPS) & ((ends < starts) | (ends > LAST)), ends.to(tl.float64), number)
    return tl.minimum(tl.maximum(starts, 0), LAST), tl.minimum(tl.maximum(ends, 0), LAST)


@triton.jit
def pick(values, i, which):
    return tl.sum(tl.where(i == which, values, 0), 0)


@triton.jit
def grouped_rows_kernel(out_ptr, a_ptr, b_ptr, ends_ptr, word_ptr, stride_om, stride_on, stride_am, stride_ak, stride_bg, stride_bk,
                        stride_bn, GROUPS, M, N, K, number, PRECISION: tl.constexpr, EVEN_K: tl.constexpr, ALL: tl.constexpr,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[rows of group g] = a[those rows] @ b[g], 0 for rows behind the last group. Grid: (blocks of M + groups + 1) · blocks of N.
    ALL: a power of two above GROUPS."""
    T: tl.constexpr = a_ptr.dtype.element_ty
    ACC: tl.constexpr = tl.float64 if T == tl.float64 else tl.float32
    columns = tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.program_id(0) // columns, tl.program_id(0) % columns
    i = tl.arange(0, ALL)
    starts, ends = group_places(ends_ptr, word_ptr, i, GROUPS, M, number, tl.program_id(0) == 0)       # and the rows behind the last
    blocks = tl.where(i <= GROUPS, tl.cdiv(tl.maximum(ends - starts, 0), BLOCK_M), 0)
    group = tl.sum((tl.cumsum(blocks, 0) <= pid_m).to(tl.int32), 0)
    before = tl.sum(tl.where(i < group, blocks, 0), 0)
    end = pick(ends, i, group)
    rm = (pick(starts, i, group) + (pid_m - before) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    rn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    rk = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rm % M)[:, None] * stride_am + rk.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + group.to(tl.int64) * stride_bg + rk.to(tl.int64)[:, None] * stride_bk + (rn % N)[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in range(0, tl.where(group < GROUPS, K, 0), BLOCK_K):
        if EVEN_K:
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=(k + rk < K)[None, :], other=0)
            b = tl.load(b_ptrs, mask=(k + rk < K)[:, None], other=0)
        acc = multiply(a, b, acc, True, PRECISION)
        a_ptrs += step_of(stride_ak, BLOCK_K, True)
        b_ptrs += step_of(stride_bk, BLOCK_K, True)
    mask = (rm < end)[:, None] & (rn < N)[None, :]
    tl.store(out_ptr + rm[:, None] * stride_om + rn[None, :] * stride_on, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def grouped_sums_kernel(out_ptr, a_ptr, b_ptr, ends_ptr, word_ptr, stride_og, stride_om, stride_on, stride_am, stride_ak, stride_bk,
                        stride_bn, GROUPS, M, N, K, number, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                        BLOCK_K: tl.constexpr):
    """out[g] = a[:, columns of group g] @ b[those rows]. Grid: groups · blocks of M · blocks of N."""
    T: tl.constexpr = a_ptr.dtype.element_ty
    ACC: tl.constexpr = tl.float64 if T == tl.float64 else tl.float32
    columns = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * columns
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    starts, ends = group_places(ends_ptr, word_ptr, group + tl.arange(0, 1), GROUPS, K, number, tile == 0)
    start, end = tl.sum(starts, 0), tl.sum(ends, 0)
    rm = (tile // columns * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    rn = (tile % columns * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for first in range(start, end, BLOCK_K):
        rk = (first + tl.arange(0, BLOCK_K)).to(tl.int64)
        inside = rk < end
        a = tl.load(a_ptr + (rm % M)[:, None] * stride_am + rk[None, :] * stride_ak, mask=inside[None, :], other=0)
        b = tl.load(b_ptr + rk[:, None] * stride_bk + (rn % N)[None, :] * stride_bn, mask=inside[:, None], other=0)
        acc = multiply(a, b, acc, True, PRECISION)
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    out_ptrs = out_ptr + group.to(tl.int64) * stride_og + rm[:, None] * stride_om + rn[None, :] * stride_on
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)
