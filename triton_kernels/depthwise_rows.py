"""Depthwise convolution row by row, for programs that are threads of the host: along a row of pixels each tap reads neighbours.

The image has been written with its padding around it, and with so many elements behind it that a row may be read past its end.
"""
import triton
import triton.language as tl


@triton.jit
def depthwise_rows_kernel(out_ptr, x_ptr, w_ptr, bias_ptr, stride_o, stride_x, stride_w, stride_b, P, Q, K, MULTIPLE, stride, dilation,
                          R: tl.constexpr, S: tl.constexpr, ACC: tl.constexpr, BLOCK_Q: tl.constexpr):
    """out (N, K, P, Q) of x (N, K / MULTIPLE, H, W) and weights (K, R, S). Grid: images · channels written, pieces of a row."""
    n, k = (tl.program_id(0) // K).to(tl.int64), (tl.program_id(0) % K).to(tl.int64)
    q = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    x_plane = x_ptr + n * stride_x[0] + k // MULTIPLE * stride_x[1]
    out_plane = out_ptr + n * stride_o[0] + k * stride_o[1]
    start = tl.zeros((), ACC)
    if bias_ptr is not None:
        start += tl.load(bias_ptr + k * stride_b).to(ACC)
    for p in range(P):
        total = tl.zeros((BLOCK_Q,), ACC) + start
        for r in tl.static_range(R):
            for s in tl.static_range(S):
                weight = tl.load(w_ptr + k * stride_w[0] + r * stride_w[1] + s * stride_w[2]).to(ACC)
                row = x_plane + (p * stride[0] + r * dilation[0]).to(tl.int64) * stride_x[2]
                total += tl.load(row + (q * stride[1] + s * dilation[1])).to(ACC) * weight
        tl.store(out_plane + p.to(tl.int64) * stride_o[2] + q * stride_o[3], total.to(out_ptr.dtype.element_ty), mask=q < Q)


@triton.jit
def depthwise_rows_weight_kernel(out_ptr, g_ptr, x_ptr, stride_o, stride_g, stride_x, N, P, Q, MULTIPLE, stride, dilation,
                                 R: tl.constexpr, S: tl.constexpr, ACC: tl.constexpr, BLOCK_Q: tl.constexpr):
    """The gradient of the weights, from that of the result, (N, K, P, Q). Grid: channels written, taps down."""
    k, r = tl.program_id(0).to(tl.int64), tl.program_id(1)
    totals = ()
    for _ in tl.static_range(S):
        totals += (tl.zeros((BLOCK_Q,), ACC),)
    for row in range(N * P):
        n, p = (row // P).to(tl.int64), row % P
        g_row = g_ptr + n * stride_g[0] + k * stride_g[1] + p.to(tl.int64) * stride_g[2]
        x_row = x_ptr + n * stride_x[0] + k // MULTIPLE * stride_x[1] + (p * stride[0] + r * dilation[0]).to(tl.int64) * stride_x[2]
        for first in range(0, Q, BLOCK_Q):
            q = first + tl.arange(0, BLOCK_Q)
            g = tl.load(g_row + q * stride_g[3], mask=q < Q, other=0).to(ACC)
            sums = ()
            for s in tl.static_range(S):
                x = tl.load(x_row + (q * stride[1] + s * dilation[1])).to(ACC)
                sums += (totals[s] + g * tl.where(q < Q, x, 0),)
            totals = sums
    for s in tl.static_range(S):
        at = out_ptr + k * stride_o[0] + r * stride_o[1] + s * stride_o[2]
        tl.store(at, tl.sum(totals[s], 0).to(out_ptr.dtype.element_ty))
