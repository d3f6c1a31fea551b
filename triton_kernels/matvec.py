"""Matrix times vector: every element of the matrix is read once, in 16-byte pieces along whichever dim lies together in memory.

    pre = alpha · Σₖ w[n, k] · x[k] + beta · c[n]        w: (batch, N, K)   x: (batch, K)   out = ACTIVATION(pre), as in matmul.py
"""
import triton
import triton.language as tl

from .matmul import OUT, A, B, C, activated, batch_offset, combined, scaled, step_of


@triton.jit
def matvec_kernel(out_ptr, pre_ptr, w_ptr, x_ptr, c_ptr, batches, stride_os, stride_on, stride_wn, stride_wk, stride_xk, stride_cn, N, K,
                  K_SPAN, alpha, beta, SLOPE: tl.constexpr, ACTIVATION: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
                  TURNED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Grid: (blocks of N · batch, splits). Split s sums over K_SPAN elements of K and writes its part at s · stride_os. TURNED: in
    `batches` the vector's strides come before the matrix's."""
    T: tl.constexpr = w_ptr.dtype.element_ty
    FLOAT: tl.constexpr = tl.float64 if T == tl.float64 else tl.float32
    INTEGER: tl.constexpr = tl.int64 if T == tl.int64 else tl.int32
    ACC: tl.constexpr = FLOAT if T.is_floating() else INTEGER
    blocks = tl.cdiv(N, BLOCK_N)
    batch, split = tl.program_id(0) // blocks, tl.program_id(1)
    rn = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:                                             # some operand spans 2³¹ elements or more
        rn, split = rn.to(tl.int64), split.to(tl.int64)
    rk = split * K_SPAN + tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + batch_offset(batch, batches, A if TURNED else B) + rk * stride_xk
    w_ptrs = w_ptr + batch_offset(batch, batches, B if TURNED else A) + ((rn % N)[:, None] * stride_wn + rk[None, :] * stride_wk)
    sums = tl.zeros((BLOCK_N, BLOCK_K), ACC)             # summed over K once, at the end
    end = tl.minimum(split * K_SPAN + K_SPAN, K)
    for k in range(split * K_SPAN, end, BLOCK_K):
        if EVEN_K:
            x, w = tl.load(x_ptrs), tl.load(w_ptrs)
        else:
            inside = k + tl.arange(0, BLOCK_K) < end
            x = tl.load(x_ptrs, mask=inside, other=0)
            w = tl.load(w_ptrs, mask=inside[None, :], other=0)
        sums += w.to(ACC) * x.to(ACC)[None, :]
        x_ptrs += step_of(stride_xk, BLOCK_K, WIDE)
        w_ptrs += step_of(stride_wk, BLOCK_K, WIDE)
    TO: tl.constexpr = out_ptr.dtype.element_ty
    mask = rn < N
    acc = scaled(tl.sum(sums, 1), alpha, rn, rn, N, N)
    if c_ptr is not None:
        c = tl.load(c_ptr + batch_offset(batch, batches, C) + rn * stride_cn, mask=mask, other=0)
        acc = combined(acc, c, beta, TO, SLOPE)
    value = acc.to(TO)
    offsets = batch_offset(batch, batches, OUT) + split.to(tl.int64) * stride_os + rn * stride_on
    if pre_ptr is not None:
        tl.store(pre_ptr + offsets, value, mask=mask)
    tl.store(out_ptr + offsets, activated(value, ACTIVATION), mask=mask)
