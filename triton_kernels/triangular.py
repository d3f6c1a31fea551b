"""Triangular systems: one block of T on the diagonal, for many right sides."""
import triton
import triton.language as tl


@triton.jit
def substitute_kernel(x_ptr, t_ptr, stride_xb, stride_xm, stride_xn, stride_tb, stride_tm, stride_tn, n, K, UPPER: tl.constexpr,
                      UNIT: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """x = T⁻¹ x in place for BLOCK columns, row after row: a row that is known is taken off the ones that are left. With one warp the
    rows of a column lie in a few threads."""
    tiles = tl.cdiv(K, BLOCK)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    i = tl.arange(0, N)
    c = (tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    at = x_ptr + batch * stride_xb + i[:, None] * stride_xm + c[None, :] * stride_xn
    inside = (i < n)[:, None] & (c < K)[None, :]
    x = tl.load(at, mask=inside, other=0)
    t_ptr += batch * stride_tb
    for step in range(n):
        k = n - 1 - step if UPPER else step
        t = tl.load(t_ptr + i * stride_tm + k * stride_tn, mask=i < n, other=0)
        row = tl.sum(tl.where((i == k)[:, None], x, 0), 0)
        if not UNIT:
            row = row / tl.load(t_ptr + k * (stride_tm + stride_tn))
        left = (i < k) if UPPER else (i > k)
        x = tl.where(left[:, None], x - t[:, None] * row[None, :], tl.where((i == k)[:, None], row[None, :], x))
    tl.store(at, x, mask=inside)
