"""The operand of a complex matrix product that makes it a real one: see tritorch/ops/complex_gemm.py."""
import triton
import triton.language as tl

from .complex_scalar import mul
from .pairs import load_pair, store_pair


@triton.jit
def turned_kernel(out_ptr, b_ptr, stride_b, stride_bk, stride_bn, K, N, alpha, COMPUTE: tl.constexpr, CONJUGATE: tl.constexpr,
                  BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr):
    """out (batch, K, 2, N): the rows of α · b (batch, K, N), or of that conjugated, each followed by i times itself."""
    tiles_n, batch = tl.cdiv(N, BLOCK_N), tl.program_id(1).to(tl.int64)
    k = (tl.program_id(0) // tiles_n).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]
    n = (tl.program_id(0) % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inside = (k < K) & (n < N)
    x = load_pair(b_ptr, batch * stride_b + k * stride_bk + n * stride_bn, inside, COMPUTE)
    if alpha is not None:
        x = mul(x, alpha)
    y = -x[1] if CONJUGATE else x[1]
    at = ((batch * K + k) * 2) * N + n
    store_pair(out_ptr, at, x[0], y, inside)
    store_pair(out_ptr, at + N, -y, x[0], inside)
