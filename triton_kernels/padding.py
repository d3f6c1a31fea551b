"""Tensors with a number around them."""
import triton
import triton.language as tl

from triton_kernels.reduce import even


@triton.jit
def pad_kernel(out_ptr, x_ptr, shape, sizes, before, strides, M, N, value, OUTER: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A contiguous out of `shape`, whose element i of a dim is i - before of the `sizes` elements of x, value where there is none. Rows
    are all dims but the last: a division a row and dim. EVEN divides N; WIDE: rows, or offsets along the last dim, may pass 2³⁰."""
    N = even(N, EVEN)
    tiles = tl.cdiv(N, BLOCK_N)
    m = tl.program_id(0) // tiles
    m = (m.to(tl.int64) if WIDE else m) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:
        n = n.to(tl.int64)
    row = tl.zeros((BLOCK_M,), tl.int64)
    rest = m
    there = m < M
    for k in tl.static_range(OUTER):
        i = rest % shape[OUTER - 1 - k] - before[OUTER - 1 - k]
        rest = rest // shape[OUTER - 1 - k]
        there = there & (i >= 0) & (i < sizes[OUTER - 1 - k])
        row += i.to(tl.int64) * strides[OUTER - 1 - k]
    column = n - before[OUTER]
    inside = (column >= 0) & (column < sizes[OUTER])
    number = tl.full((BLOCK_M, BLOCK_N), value, out_ptr.dtype.element_ty)
    x = tl.load((x_ptr + row)[:, None] + (column * strides[OUTER])[None, :], mask=there[:, None] & inside[None, :], other=number)
    tl.store((out_ptr + m.to(tl.int64) * N)[:, None] + n[None, :], x, mask=(m < M)[:, None] & (n < N)[None, :])
