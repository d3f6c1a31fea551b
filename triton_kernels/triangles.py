"""Triangles of matrices."""
import triton
import triton.language as tl


@triton.jit
def triangle_kernel(out_ptr, x_ptr, stride_xb, stride_xm, stride_xn, M, N, diagonal, UPPER: tl.constexpr, BLOCK_M: tl.constexpr,
                    BLOCK_N: tl.constexpr):
    """One side of a diagonal of each matrix of a batch, into contiguous memory."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    batch = (tl.program_id(0) // (tiles_m * tiles_n)).to(tl.int64)
    m = (tl.program_id(0) // tiles_n % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = (tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    inside = (m < M) & (n < N)
    kept = (n - m >= diagonal) if UPPER else (n - m <= diagonal)
    x = tl.load(x_ptr + batch * stride_xb + m * stride_xm + n * stride_xn, mask=inside & kept, other=0)
    tl.store(out_ptr + batch * M * N + m * N + n, x, mask=inside)
