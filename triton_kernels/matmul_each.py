"""Products of many matrices that are smaller than a tile, or of so few elements of K that a tile is hardly begun: a thread sums up for each
element of the result, whatever matrix it is of. What neighbours share comes from the first cache.

Epilogue, strides and dtypes are those of matmul.py.
"""
import triton
import triton.language as tl

from .matmul import A, B, batch_offset, step_of, store_each


@triton.jit
def each_kernel(out_ptr, pre_ptr, a_ptr, b_ptr, c_ptr, batches, stride_om, stride_on, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
                stride_cn, M, N, K, total, alpha, beta, SLOPE: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
                BLOCK: tl.constexpr):
    """Grid: blocks of the result's `total` elements."""
    T: tl.constexpr = a_ptr.dtype.element_ty
    FLOAT: tl.constexpr = tl.float64 if T == tl.float64 else tl.float32
    ACC: tl.constexpr = FLOAT if T.is_floating() else tl.int64 if T == tl.int64 else tl.int32
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:                                             # 2³¹ elements or more
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < total
    n, m, batch = i % N, i // N % M, i // N // M
    a_ptrs = a_ptr + batch_offset(batch, batches, A) + m.to(tl.int64) * stride_am
    b_ptrs = b_ptr + batch_offset(batch, batches, B) + n.to(tl.int64) * stride_bn
    acc = tl.zeros((BLOCK,), ACC)
    for k in range(0, K, 4):
        for j in tl.static_range(4):
            a = tl.load(a_ptrs + j * stride_ak, mask=mask & (k + j < K), other=0).to(ACC)
            acc += a * tl.load(b_ptrs + j * stride_bk, mask=mask & (k + j < K), other=0).to(ACC)
        a_ptrs += step_of(stride_ak, 4, True)
        b_ptrs += step_of(stride_bk, 4, True)
    store_each(out_ptr, pre_ptr, acc, c_ptr, i, mask, batches, stride_om, stride_on, stride_cm, stride_cn, M, N, alpha, beta, SLOPE,
               ACTIVATION)
